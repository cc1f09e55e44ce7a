"""Host time from recorded steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from orchestrator.calibration.steps import PER_REQUEST, PER_STEP, host_time, least_squares
from orchestrator.recording.steps import FILE, Step, read_steps, write_steps
from profiles.errors import InputError
from profiles.recorded import load_recorded_run
from simulator import point_from_mapping, simulate
from tests.orchestrator.calibration_make import (
    known_base,
    run_study,
    simulated_points,
    write_simulated,
    write_study,
)

REQUESTS = np.random.default_rng(1).integers(1, 65, 800)
LAW_MS = 0.4 + 0.015 * REQUESTS
STEP, REQUEST = {PER_STEP: (0.0, 2.0)}, {PER_REQUEST: (0.0, 0.2)}
BOTH = STEP | REQUEST


def test_an_exact_law_is_found_exactly() -> None:
    assert least_squares(LAW_MS, REQUESTS, BOTH) == pytest.approx([0.4, 0.015], rel=1e-9)
    assert least_squares(LAW_MS, REQUESTS, REQUEST | STEP) == pytest.approx([0.015, 0.4], rel=1e-9)


def test_noise_leaves_it_inside_its_intervals() -> None:
    host = LAW_MS + np.random.default_rng(2).normal(0, 0.02, len(REQUESTS))
    found = host_time(host, REQUESTS, BOTH, source="steps").estimates
    for field, value, apart in ((PER_STEP, 0.4, 0.01), (PER_REQUEST, 0.015, 0.0005)):
        estimate = found[field]
        assert estimate.fields == (field,)
        assert estimate.low is not None and estimate.high is not None
        assert estimate.low <= value <= estimate.high
        assert estimate.value == pytest.approx(value, abs=apart)


def test_late_steps_count_and_widen_the_interval() -> None:
    host = LAW_MS.copy()
    host[::100] += 20
    found = host_time(host, REQUESTS, BOTH, source="steps").estimates
    mean = found[PER_STEP].value + found[PER_REQUEST].value * REQUESTS.mean()
    assert mean == pytest.approx(host.mean(), rel=1e-5)
    low, high = found[PER_STEP].low, found[PER_STEP].high
    assert low is not None and high is not None
    assert high - low > 0.1


def test_one_term_alone_takes_all_of_it() -> None:
    """Not the number it has beside the other one."""
    found = host_time(LAW_MS, REQUESTS, STEP, source="steps").estimates
    assert list(found) == [PER_STEP]
    assert found[PER_STEP].value == pytest.approx(LAW_MS.mean(), rel=1e-5)
    found = host_time(LAW_MS, REQUESTS, REQUEST, source="steps").estimates
    expected = (LAW_MS * REQUESTS).sum() / (REQUESTS**2).sum()
    assert found[PER_REQUEST].value == pytest.approx(expected, rel=1e-5)


def test_it_stays_within_its_range() -> None:
    """At the end of one range, the other term is the best beside that."""
    negative = 0.015 * REQUESTS - 0.005
    found = host_time(negative, REQUESTS, BOTH, source="steps").estimates
    assert found[PER_STEP].value == 0
    alone = host_time(negative, REQUESTS, REQUEST, source="steps").estimates
    assert found[PER_REQUEST].value == alone[PER_REQUEST].value
    narrow = {PER_STEP: (0.0, 0.05)}
    found = host_time(LAW_MS, REQUESTS, narrow, source="steps").estimates
    assert found[PER_STEP].value == 0.05


def test_steps_that_say_nothing() -> None:
    with pytest.raises(InputError, match="at least 20"):
        host_time(LAW_MS[:10], REQUESTS[:10], BOTH, source="steps")
    four = np.full(800, 4)
    with pytest.raises(InputError, match="different numbers of requests"):
        host_time(LAW_MS, four, BOTH, source="steps")
    assert host_time(LAW_MS, four, STEP, source="steps").num_steps == 800


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


def host_study(
    tmp_path: Path,
    overhead: dict[str, float],
    parameters: dict[str, Any] = PARAMETERS,
    said: dict[str, float] | None = None,
    **run: Any,
) -> Path:
    """`said`: the overhead of the base."""
    recorded = write_with_steps(tmp_path / "recorded", overhead)
    return write_study(
        tmp_path,
        base=known_base(engine=SYNC, overhead=said or {}),
        parameters=parameters,
        runs={"one": {"truth": {"recorded": str(recorded)}} | run},
        search={"rounds": 2},
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
    assert "Host time (step, request): by regression on " in report
    assert done.card.warnings == ()
    assert "| step | overhead.host_ms_per_step | 0.5 | 0.5 .. 0.5 | 0 .. 2 |" in report


def test_the_rest_is_searched_with_it(tmp_path: Path) -> None:
    decode = {"fields": ["overhead.full_graph_ms"], "range": [0.0, 2.0], "resolution": 0.01}
    path = host_study(tmp_path, HOST | {"full_graph_ms": 0.7}, PARAMETERS | {"decode": decode})
    done, _, _ = run_study(path, tmp_path / "out")
    found = done.card.parameters
    assert list(found) == ["step", "request", "decode"]
    assert found["decode"].value == pytest.approx(0.7, abs=0.03)
    assert found["step"].value == pytest.approx(0.5, abs=1e-6)


def late(recorded: Path, rows: set[int]) -> None:
    """Steps with requests other than these become 5 ms later than they were."""
    meta = load_recorded_run(recorded)
    steps, moved = read_steps(recorded / FILE, len(meta)), 0
    for step in steps:
        step.t_ns += moved
        if not all(r in rows for r, _, _ in step.sched):
            moved += 5_000_000
    write_steps(recorded / FILE, steps)


def test_steps_with_held_out_requests_are_not_seen(tmp_path: Path) -> None:
    """Whatever they say: the fit is the same."""
    window = {"train": {"window_s": [0.0, 0.5]}}
    path = host_study(tmp_path, HOST, **window)
    whole, _, _ = run_study(path, tmp_path / "whole")
    recorded = tmp_path / "recorded"
    begin = load_recorded_run(recorded).begin_s
    late(recorded, set(np.flatnonzero(begin - begin.min() < 0.5).tolist()))
    again, _, _ = run_study(path, tmp_path / "again")
    assert again.card.parameters == whole.card.parameters
    assert again.card.parameters["step"].value == pytest.approx(0.5, abs=1e-6)
    # Without a part, all of them count.
    study = yaml.safe_load(path.read_text())
    del study["runs"]["one"]["train"]
    path.write_text(yaml.safe_dump(study))
    everything, _, _ = run_study(path, tmp_path / "everything")
    assert everything.card.parameters["step"].value > 0.6


def test_requests_that_share_their_steps_are_searched_for(tmp_path: Path) -> None:
    """Steps of every second request alone are those of an idle engine."""
    path = host_study(tmp_path, HOST, train={"every": 2})
    done, watches, told = run_study(path, tmp_path / "out")
    assert told[0].startswith("Host time (step, request) was searched for: of ")
    assert "with requests that the fit sees" in told[0]
    assert told[0] in (done.folder / "report.md").read_text()
    assert simulated_points(watches) > 100
    step = done.card.parameters["step"]
    assert step.low is not None and step.high is not None
    assert step.low <= 0.5 <= step.high


def test_one_of_the_two_beside_what_the_base_says(tmp_path: Path) -> None:
    alone = {"step": PARAMETERS["step"]}
    path = host_study(tmp_path, HOST, alone, {"host_ms_per_request": 0.02})
    done, _, _ = run_study(path, tmp_path / "out")
    assert done.card.parameters["step"].value == pytest.approx(0.5, abs=1e-6)
    assert done.judged[0].after["requests"] < 0.01
    # Without it, the time a step takes stands for both.
    path = host_study(tmp_path / "bare", HOST, alone)
    done, _, _ = run_study(path, tmp_path / "out2")
    assert done.card.parameters["step"].value > 0.6
    assert done.judged[0].after["requests"] < 0.3 * done.judged[0].before["requests"]


def test_host_time_that_moves_with_another_field_is_searched_for(tmp_path: Path) -> None:
    both = {"fields": [PER_STEP, "overhead.full_graph_ms"], "range": [0.0, 2.0]}
    path = host_study(tmp_path, HOST, {"both": both, "request": PARAMETERS["request"]})
    _, _, told = run_study(path, tmp_path / "out")
    assert told[0] == (
        "Host time (both, request) was searched for: both moves several fields together."
    )


def test_a_range_that_is_too_narrow_is_told(tmp_path: Path) -> None:
    narrow = {"fields": [PER_STEP], "range": [0.0, 0.1]}
    path = host_study(tmp_path, HOST, PARAMETERS | {"step": narrow})
    done, _, _ = run_study(path, tmp_path / "out")
    assert done.card.parameters["step"].value == 0.1
    assert "step is at the end of its range (0.1): widen the range" in done.card.warnings


def test_steps_cut_short(tmp_path: Path) -> None:
    path = host_study(tmp_path, HOST)
    steps = tmp_path / "recorded/steps.jsonl.gz"
    steps.write_bytes(steps.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"steps.jsonl.gz: file: .*a whole gzip file"):
        run_study(path, tmp_path / "out")
