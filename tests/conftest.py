"""What all tests share.

Property tests draw the same examples every time, so that a failure is there again at the next run.
`pytest --hypothesis-profile search` draws other ones each time, and more of them.
"""

import signal

from hypothesis import HealthCheck, settings

# A shell starts what is in the background with SIGINT ignored, and processes that tests start and stop
# would ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A compile or a busy machine makes an example slow; that is no failure.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "search",
    deadline=None,
    max_examples=2000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")
