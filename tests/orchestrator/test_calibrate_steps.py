"""Host time from recorded steps."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.calibration.steps import host_time, least_absolute
from profiles.errors import InputError

REQUESTS = np.random.default_rng(1).integers(1, 65, 800)


def test_an_exact_law_is_found_exactly() -> None:
    host = 400_000 + 15_000 * REQUESTS
    assert least_absolute(host, REQUESTS) == pytest.approx([400_000, 15_000], rel=1e-9)


def test_noise_and_late_steps_leave_it_inside_its_intervals() -> None:
    random = np.random.default_rng(2)
    host = 400_000 + 15_000 * REQUESTS + random.normal(0, 20_000, len(REQUESTS)).astype(np.int64)
    host[::25] += 30_000_000  # every 25th step waits for something else
    found = host_time(host, REQUESTS, source="steps")
    value, low, high = found.per_step
    assert low <= 0.4 <= high
    assert value == pytest.approx(0.4, abs=0.01)
    value, low, high = found.per_request
    assert low <= 0.015 <= high
    assert value == pytest.approx(0.015, rel=0.03)
    estimates = found.estimates()
    assert estimates["host_ms_per_step"].fields == ("overhead.host_ms_per_step",)


def test_it_is_never_negative_in_a_card() -> None:
    estimates = host_time(15_000 * REQUESTS - 5_000, REQUESTS, source="steps").estimates()
    assert estimates["host_ms_per_step"].value == 0


def test_steps_that_say_nothing() -> None:
    with pytest.raises(InputError, match="at least 20"):
        host_time(REQUESTS[:10], REQUESTS[:10], source="steps")
    with pytest.raises(InputError, match="different numbers of requests"):
        host_time(REQUESTS, np.full(800, 4), source="steps")
