"""Host time from recorded steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.calibration.steps import host_time, least_squares
from orchestrator.recording.steps import FILE, Step, write_steps
from profiles.errors import InputError
from simulator import point_from_mapping, simulate
from tests.orchestrator.calibration_make import (
    known_base,
    run_study,
    simulated_points,
    write_simulated,
    write_study,
)

REQUESTS = np.random.default_rng(1).integers(1, 65, 800)


def test_an_exact_law_is_found_exactly() -> None:
    host = 400_000 + 15_000 * REQUESTS
    assert least_squares(host, REQUESTS) == pytest.approx([400_000, 15_000], rel=1e-9)


def test_noise_leaves_it_inside_its_intervals() -> None:
    random = np.random.default_rng(2)
    host = 400_000 + 15_000 * REQUESTS + random.normal(0, 20_000, len(REQUESTS)).astype(np.int64)
    found = host_time(host, REQUESTS, source="steps")
    value, low, high = found.per_step
    assert low <= 0.4 <= high
    assert value == pytest.approx(0.4, abs=0.01)
    value, low, high = found.per_request
    assert low <= 0.015 <= high
    assert value == pytest.approx(0.015, rel=0.03)
    estimates = found.estimates()
    assert estimates["host_ms_per_step"].fields == ("overhead.host_ms_per_step",)


def test_late_steps_count_and_widen_the_interval() -> None:
    host = 400_000 + 15_000 * REQUESTS
    host[::100] += 20_000_000
    found = host_time(host, REQUESTS, source="steps")
    mean = found.per_step[0] + found.per_request[0] * REQUESTS.mean()
    assert mean == pytest.approx(host.mean() / 1e6, rel=1e-9)
    assert found.per_step[2] - found.per_step[1] > 0.1


def test_it_is_never_negative_in_a_card() -> None:
    estimates = host_time(15_000 * REQUESTS - 5_000, REQUESTS, source="steps").estimates()
    assert estimates["host_ms_per_step"].value == 0


def test_steps_that_say_nothing() -> None:
    with pytest.raises(InputError, match="at least 20"):
        host_time(REQUESTS[:10], REQUESTS[:10], source="steps")
    with pytest.raises(InputError, match="different numbers of requests"):
        host_time(REQUESTS, np.full(800, 4), source="steps")


HOST = {"host_ms_per_step": 0.5, "host_ms_per_request": 0.02}
SYNC = {"async_scheduling": False}
PARAMETERS = {
    "step": {"fields": ["overhead.host_ms_per_step"], "range": [0.0, 2.0]},
    "request": {"fields": ["overhead.host_ms_per_request"], "range": [0.0, 0.2]},
}


def write_with_steps(folder: Path, overhead: dict[str, float]) -> Path:
    """A recording with the steps of a modelled device."""
    point = point_from_mapping(known_base(engine=SYNC, overhead=overhead), folder, "known")
    result = simulate(point, steps=True)
    assert result.steps is not None
    number = {name: r for r, name in enumerate(result.requests["request_id"].to_pylist())}
    steps = []
    for row in result.steps.to_pylist():
        batch = zip(row["requests"], row["scheduled_tokens"], row["computed_tokens"], strict=True)
        step = Step(
            t_ns=row["formed_ns"],
            schedule_ns=0,
            execute_ns=row["end_ns"] - row["formed_ns"],
            update_ns=0,
            formed_before_update=row["step"] + 1,
            sched=[(number[r], tokens, computed) for r, tokens, computed in batch],
            preempted=[],
            finished=[],
            running=0,
            waiting=0,
            free=0,
            running_after=row["running_after_update"],
            waiting_after=row["waiting_after_update"],
            free_after=0,
            device_ns=(row["start_ns"], row["end_ns"]),
        )
        steps.append(step)
    write_simulated(folder, result)
    write_steps(folder / FILE, steps)
    return folder


def host_study(tmp_path: Path, overhead: dict[str, float], **parameters: Any) -> Path:
    recorded = write_with_steps(tmp_path / "recorded", overhead)
    return write_study(
        tmp_path,
        base=known_base(engine=SYNC),
        parameters=PARAMETERS | parameters,
        runs={"one": {"truth": {"recorded": str(recorded)}}},
    )


def test_a_recording_with_steps_needs_no_search(tmp_path: Path) -> None:
    done, watches, told = run_study(host_study(tmp_path, HOST), tmp_path / "out")
    found = done.card.parameters
    assert found["step"].value == pytest.approx(0.5, abs=1e-6)
    assert found["request"].value == pytest.approx(0.02, abs=1e-6)
    assert told[0] == "step 0.5 by regression on the recorded steps"
    assert simulated_points(watches) <= 3
    assert done.judged[0].before["requests"] > 5
    assert done.judged[0].after["requests"] < 0.01
    report = (done.folder / "report.md").read_text()
    assert "The answer is the regression on recorded steps." in report
    assert "| step | overhead.host_ms_per_step | 0.5 | 0.5 .. 0.5 | 0 .. 2 |" in report


def test_the_rest_is_searched_with_it(tmp_path: Path) -> None:
    decode = {"fields": ["overhead.full_graph_ms"], "range": [0.0, 2.0], "resolution": 0.01}
    path = host_study(tmp_path, HOST | {"full_graph_ms": 0.7}, decode=decode)
    done, _, _ = run_study(path, tmp_path / "out")
    found = done.card.parameters
    assert list(found) == ["step", "request", "decode"]
    assert found["decode"].value == pytest.approx(0.7, abs=0.03)
    assert found["step"].value == pytest.approx(0.5, abs=1e-6)


def test_steps_cut_short(tmp_path: Path) -> None:
    path = host_study(tmp_path, HOST)
    steps = tmp_path / "recorded/steps.jsonl.gz"
    steps.write_bytes(steps.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"steps.jsonl.gz: file: .*a whole gzip file"):
        run_study(path, tmp_path / "out")
