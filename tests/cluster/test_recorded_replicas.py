"""The recorded vLLM run of two replicas that share experts, with vLLM's defaults and nothing fitted."""

from __future__ import annotations

import pytest

from benchmarks.data_parallel import PUBLISHED, cases, errors, mean_abs
from tests.profiles.bundles import REFERENCE, needs_package, needs_reference

pytestmark = [needs_package, needs_reference]


def test_closer_than_the_published_replay() -> None:
    (defaults,) = (case for case in cases() if case.name == "router told every 100 ms")
    found = errors(defaults, REFERENCE)
    assert mean_abs(PUBLISHED) == pytest.approx(4.85, abs=0.005)
    assert mean_abs(found) < 2.0
    tpot_mean, latency_mean = found[5], found[10]
    assert abs(tpot_mean) < 1.0 and abs(latency_mean) < 1.0
