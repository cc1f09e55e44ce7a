"""One simulation step by step: spans and reasons against the run itself, files, limits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from dashboards import trace as tracing
from dashboards.trace import (
    BLOCKS,
    BUDGET,
    DECODE,
    KINDS,
    PREEMPTED,
    PREEMPTION,
    PREFILL,
    QUEUED,
    SEATS,
    Trace,
    Window,
    in_window,
    simulate_trace,
)
from dashboards.trace_events import events
from orchestrator.cli import main
from profiles.errors import InputError
from simulator import point_from_mapping
from tests.dashboards.test_report import Page
from tests.orchestrator.sweep_make import base

PRESSURE = {"num_gpu_blocks_override": 12, "max_num_seqs": 8, "max_num_batched_tokens": 64}


def traced(tmp_path: Path, **engine: Any) -> Trace:
    point = point_from_mapping(base(engine=PRESSURE | engine), tmp_path, "test")
    return simulate_trace(point, "test")


@pytest.fixture(params=[True, False], ids=["async", "sync"])
def trace(request: pytest.FixtureRequest, tmp_path: Path) -> Trace:
    return traced(tmp_path, async_scheduling=request.param)


def test_every_request_is_accounted_for(trace: Trace) -> None:
    """Spans of a request follow each other from its queueing to its last token, without overlap."""
    spans, requests = trace.spans, trace.result.requests.to_pylist()
    assert (spans.kind == PREEMPTED).sum() == trace.result.summary["preemptions"] > 0
    for r, request in enumerate(requests):
        own = np.flatnonzero(spans.request == r)
        assert spans.kind[own[0]] == QUEUED
        assert spans.begin_ns[own[0]] == request["queued_ns"]
        assert spans.end_ns[own[-1]] >= request["last_token_ns"]
        assert (spans.begin_ns[own[1:]] >= spans.end_ns[own[:-1]]).all()
        ran = own[np.isin(spans.kind[own], (PREFILL, DECODE))]
        scheduled = trace.entry_tokens[trace.entry_request == r].sum()
        assert spans.tokens[ran].sum() == scheduled
        assert (spans.kind[own] == PREEMPTED).sum() == request["preemptions"]
        first_token = spans.end_ns[ran][spans.end_ns[ran] >= request["first_token_ns"]]
        assert len(first_token)


def test_waits_are_explained_to_the_nanosecond(trace: Trace) -> None:
    spans = trace.spans
    waits = np.flatnonzero(np.isin(spans.kind, (QUEUED, PREEMPTED)))
    for i in waits:
        begin, end = int(spans.begin_ns[i]), int(spans.end_ns[i])
        reasons = trace.waited_for(begin, end)
        assert sum(round(ms * 1e6) for ms in reasons.values()) == end - begin
        assert all(ms > 0 for ms in reasons.values())


def test_reasons_are_those_of_the_scheduler(tmp_path: Path) -> None:
    """Each limit alone is found where nothing else limits."""
    plenty = {"num_gpu_blocks_override": 400, "max_num_seqs": 64, "max_num_batched_tokens": 4096}
    none = traced(tmp_path, **plenty).reason
    assert set(none.tolist()) == {-1}
    seats = traced(tmp_path, **plenty | {"max_num_seqs": 2}).reason
    assert set(seats.tolist()) == {-1, SEATS}
    budget = traced(tmp_path, **plenty | {"max_num_batched_tokens": 64}).reason
    assert set(budget.tolist()) == {-1, BUDGET}
    blocks = traced(tmp_path, **plenty | {"num_gpu_blocks_override": 12}).reason
    assert BLOCKS in blocks and PREEMPTION in blocks and SEATS not in blocks


def test_the_file_is_what_perfetto_reads(trace: Trace) -> None:
    found = json.loads(json.dumps(events(trace, Window(), "test")))
    by_phase: dict[str, list[dict[str, Any]]] = {}
    for event in found["traceEvents"]:
        by_phase.setdefault(event["ph"], []).append(event)
    assert set(by_phase) == {"M", "X", "C"}
    slices = by_phase["X"]
    steps = [event for event in slices if event["pid"] == 1]
    assert len(steps) == trace.result.summary["steps"]
    assert steps[0]["ts"] == trace.steps["start_ns"][0] / 1e3
    assert all(event["dur"] >= 0 for event in slices)
    names = {event["tid"]: event["args"]["name"] for event in by_phase["M"]
             if event["name"] == "thread_name" and event["pid"] == 2}  # fmt: skip
    assert len(names) == 30 and names[1] == f"request {trace.request_ids[0]}"
    kinds = {event["name"].split()[0] for event in slices if event["pid"] == 2}
    assert kinds == set(KINDS)
    counters = {event["name"] for event in by_phase["C"]}
    assert counters == {"running", "waiting", "free KV blocks", "tokens of the batch"}
    last = [event for event in by_phase["C"] if event["name"] == "free KV blocks"][-1]
    assert last["args"]["free KV blocks"] == trace.result.summary["kv"]["usable_blocks"]


def test_a_window_shows_a_part(trace: Trace) -> None:
    middle = trace.end_ns / 2e9
    window = Window(from_s=middle, until_s=middle + 0.005, requests=(trace.request_ids[3],))
    spans = in_window(trace, window, "test")
    assert set(spans.request.tolist()) <= {3}
    assert (spans.end_ns >= window.from_ns).all() and (spans.begin_ns <= window.until_ns).all()
    part = events(trace, Window(from_s=middle, until_s=middle + 0.005), "test")
    assert 0 < len(part["traceEvents"]) < len(events(trace, Window(), "test")["traceEvents"])


@pytest.mark.parametrize("engine", [{"max_num_batched_tokens": 33}, {}])
def test_spans_batches_and_tables_count_the_same(tmp_path: Path, engine: dict[str, Any]) -> None:
    """Also where the last chunk of a prompt is one token."""
    trace = traced(tmp_path, num_gpu_blocks_override=400, **engine)
    one = trace.entry_tokens == 1
    decodes = np.bincount(trace.entry_step[one], minlength=len(trace.steps["step"]))
    np.testing.assert_array_equal(decodes, trace.steps["num_decodes"])
    prompts = trace.result.requests["prompt_tokens"].to_numpy()[trace.entry_request]
    if engine:
        assert (one & (trace.entry_computed == prompts - 1)).any(), "a last chunk of one token"
    assert trace.spans.tokens[trace.spans.kind == DECODE].sum() == one.sum()


@pytest.mark.parametrize("option", ["--from-s", "--until-s"])
@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300"])
def test_seconds_that_are_none_are_one_clear_error(
    tmp_path: Path, option: str, seconds: str
) -> None:
    path = tmp_path / "point.yaml"
    path.write_text(yaml.safe_dump(base()))
    done = servesweep("trace", path, "--out", tmp_path / "out", option, seconds)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert f"{option}: got {float(seconds)}, expected seconds from 0 to 9e+09" in done.stderr


def test_a_place_that_cannot_be_written_is_told_before_it_simulates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "run", None)
    path = tmp_path / "point.yaml"
    path.write_text(yaml.safe_dump(base()))
    os.mkfifo(tmp_path / "trace.png")
    for out in (tmp_path, path / "inside"):
        done = servesweep("trace", path, "--out", out)
        assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert not (tmp_path / "trace.json").exists()


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (Window(from_s=1e6), "--from-s: got 1000000.0, expected a time within the run"),
        (Window(from_s=0.2, until_s=0.1), "--until-s: got 0.1, expected more than --from-s 0.2"),
        (
            Window(requests=("nobody",)),
            "--request: got 'nobody', expected an id of the workload: 0",
        ),
        (Window(max_events=10), "events', expected at most 10: narrow with --from-s"),
    ],
)
def test_wrong_windows_are_one_clear_error(tmp_path: Path, window: Window, message: str) -> None:
    trace = traced(tmp_path)
    with pytest.raises(InputError) as error:
        events(trace, window, "test")
    assert message in str(error.value)


def test_too_large_a_run_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "MAX_LOGGED", 100)
    monkeypatch.setattr(tracing, "run", None)
    with pytest.raises(InputError, match="output tokens', expected at most 100 output tokens"):
        traced(tmp_path)


def test_a_cluster_is_refused_before_it_starts(tmp_path: Path) -> None:
    cluster = {"instances": [{"count": 2}]}
    point = point_from_mapping(base(engine=PRESSURE, cluster=cluster), tmp_path, "test")
    with pytest.raises(InputError, match="expected no cluster: a trace shows the steps of one"):
        simulate_trace(point, "test")


def test_batches_of_a_pipeline_do_not_overlap_on_a_track(tmp_path: Path) -> None:
    point = base(
        engine=PRESSURE | {"pipeline_parallel_size": 2, "async_scheduling": False},
        model={"num_hidden_layers": 2},
        card={"memory_bandwidth_gbps": 100.0},
        links={"tensor": {"bandwidth_gibps": 100.0, "latency_ns": 1000.0}},
    )
    trace = simulate_trace(point_from_mapping(point, tmp_path, "test"), "test")
    slices = [e for e in events(trace, Window(), "test")["traceEvents"] if e["ph"] == "X"]
    for track in (1, 2):
        own = [e for e in slices if e["pid"] == 1 and e["tid"] == track]
        ends = [e["ts"] + e["dur"] for e in own]
        assert len(own) > 10
        assert all(b["ts"] >= end - 1e-6 for b, end in zip(own[1:], ends, strict=False))
    spans = trace.spans
    for r in range(30):
        own = np.flatnonzero(spans.request == r)
        assert (spans.begin_ns[own[1:]] >= spans.end_ns[own[:-1]]).all()


def servesweep(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_the_command_writes_trace_page_and_picture(tmp_path: Path) -> None:
    path = tmp_path / "point.yaml"
    path.write_text(yaml.safe_dump(base(engine=PRESSURE)))
    done = servesweep("trace", path, "--out", tmp_path / "a")
    assert done.exit_code == 0, done.output
    assert "30 of 30 requests finished" in done.stdout
    assert "queued" in done.stdout and "KV blocks" in done.stdout
    again = servesweep("trace", path, "--out", tmp_path / "b")
    assert again.exit_code == 0
    for name in ("trace.json", "trace.html", "trace.png"):
        content = (tmp_path / "a" / name).read_bytes()
        assert content == (tmp_path / "b" / name).read_bytes()
    page = Page((tmp_path / "a" / "trace.html").read_text(encoding="utf-8"))
    data = json.loads(page.data)
    assert data["name"] == "small on small" and len(data["ids"]) == 30
    assert len(data["waits"]) > 0 and data["left_out"] == ""
    assert (tmp_path / "a" / "trace.png").read_bytes()[:4] == b"\x89PNG"


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "point.yaml"
    path.write_text(yaml.safe_dump(base()))
    done = servesweep("trace", path, "--out", tmp_path / "out", "--max-events", "3")
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
