"""What all tests share.

Property tests draw the same examples every time, so that a failure is there again at the next run.
`pytest --hypothesis-profile search` draws other ones each time, and more of them.
"""

from hypothesis import HealthCheck, settings

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
