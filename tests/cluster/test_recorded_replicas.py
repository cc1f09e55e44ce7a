"""The recorded vLLM run of two replicas that share experts, with vLLM's defaults and nothing fitted.

And who of a recording shared a replica, by hand.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.data_parallel import PUBLISHED, cases, errors, mean_abs, simulated
from benchmarks.replica_pairs import neighbours
from profiles.recorded import load_recorded_run
from tests.orchestrator.truth_make import write_recorded
from tests.profiles.bundles import REFERENCE, needs_package, needs_reference


@needs_package
@needs_reference
def test_closer_than_the_published_replay() -> None:
    (defaults,) = (case for case in cases() if case.name == "router told every 100 ms")
    found = errors(defaults, simulated(defaults, REFERENCE), REFERENCE)
    assert mean_abs(PUBLISHED) == pytest.approx(4.85, abs=0.005)
    assert mean_abs(found) < 2.0
    tpot_mean, latency_mean = found[5], found[10]
    assert abs(tpot_mean) < 1.0 and abs(latency_mean) < 1.0


def test_who_shared_a_replica(tmp_path: Path) -> None:
    """0 and 1 get their first tokens at one time, 2 theirs 0.2 ms later; 3 ends as 0 does, later."""
    run = load_recorded_run(write_recorded(tmp_path))
    times = {
        "scheduled_s": [1.0, 2.0, 3.0, 4.0],
        "first_token_s": [5.0, 5.0, 5.0002, 6.0],
        "last_token_s": [9.0, 8.0, 7.0, 9.0],
    }
    run = replace(run, **{name: np.array(values) for name, values in times.items()})
    assert dict(neighbours(run)) == {0: False, 1: True, 2: True}
    run = replace(run, last_token_s=np.array([9.0, 9.0003, 7.0, 9.0]))
    with pytest.raises(ValueError, match="requests 0 and 1 are on one side and on two"):
        list(neighbours(run))
