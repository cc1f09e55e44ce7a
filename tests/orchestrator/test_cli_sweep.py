"""`servesweep run`, `plan` and their exit codes, and what the command line imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from orchestrator import worker
from orchestrator.cli import main
from tests.orchestrator.sweep_make import (
    BASE,
    BLOCKS,
    TRUTH,
    UTILIZATION,
    base,
    run_sweep,
    write_sweep,
)

ROOT = Path(__file__).resolve().parents[2]
SEED = "workload.generate.seed"
CACHING = "engine.enable_prefix_caching"


def servesweep(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run(path: Path, out: Path, *options: str) -> Result:
    return servesweep("run", path, "--out", out, "--serial", *options)


def test_a_sweep_runs_and_says_what_it_found(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [10, 20, 40], UTILIZATION: [0.5, 0.9]}, truth=TRUTH)
    result = run(path, tmp_path / "out")
    assert result.exit_code == 0
    assert "6 points: 3 runs finished, 3 points equal to one of them, 0 failed" in result.output
    assert "% mean absolute difference, 40 blocks: num_gpu_blocks_override=40" in result.output
    assert f"results in {tmp_path / 'out' / 'small'}" in result.output
    again = run(path, tmp_path / "out")
    assert again.exit_code == 0
    assert "resuming: 3 points are done" in again.output


def test_changed_inputs_are_other_points_and_that_is_said(tmp_path: Path) -> None:
    run(write_sweep(tmp_path, axes={BLOCKS: [10, 20]}), tmp_path / "out")
    changed = write_sweep(tmp_path, axes={BLOCKS: [10, 20, 30], SEED: [3, 4]}, exclude=[{SEED: 3}])
    said = "resuming: 0 points are done, 2 are of other settings, inputs or versions"
    assert said in servesweep("plan", changed, "--out", tmp_path / "out").output
    result = run(changed, tmp_path / "out")
    assert said in result.output
    assert "3 points: 3 runs finished" in result.output


def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(worker, "run", fail)


def test_failed_points_are_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [10, 20]})
    failing(monkeypatch)
    result = run(path, tmp_path / "out")
    assert result.exit_code == 1
    assert "(num_gpu_blocks_override=20): error: RuntimeError: no luck" in result.stderr
    assert "2 points: 0 runs finished, 0 points equal to one of them, 2 failed" in result.output
    plan = servesweep("plan", path, "--out", tmp_path / "out")
    assert "no estimate, a point failed: error: RuntimeError: no luck" in plan.output
    assert plan.output.count("to run again: error") == 2
    monkeypatch.undo()
    assert run(path, tmp_path / "out").exit_code == 0


def test_too_many_failures_are_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_sweep(tmp_path, axes={SEED: list(range(9))}, execution={"max_failures": 2})
    failing(monkeypatch)
    result = run(path, tmp_path / "out")
    assert result.exit_code == 1
    assert "servesweep: 2 points failed, execution.max_failures is 2" in result.stderr
    assert "9 points: 0 runs finished, 0 points equal to one of them, 2 failed, 7 not run" in (
        result.output
    )


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"axis": {}}, "axis: got {}, expected no such field; known fields: axes, base"),
    ({"axes": {UTILIZATION: [7]}}, f"(gpu_memory_utilization 7): axes.{UTILIZATION}: got 7"),
    ({"truth": {"recorded": "no/where"}}, "truth: "),
    ({"base": {"model": 3, "workload": {}}, "axes": {"": [1]}}, "axes: got '', expected a field"),
    ({"axes": {CACHING: [True, False]}, "exclude": [{CACHING: 1}]}, "got 1, expected a value of"),
    ({"execution": {"cpus_per_point": 0.00001}}, "execution.cpus_per_point: got 1e-05, expected"),
    ({"execution": {"cpus_per_point": 0.12345}}, "expected at most 4 decimals, as Ray counts"),
    ({"execution": {"time_limit_s": True}}, "execution.time_limit_s: got True, expected"),
    ({"truth": {}}, "truth: got None, expected exactly one of recorded, vllm_bench, percentiles"),
]


@pytest.mark.parametrize("command", ["run", "plan", "track"])
@pytest.mark.parametrize(("fields", "said"), WRONG)
def test_wrong_inputs_are_exit_code_2_before_anything_runs(
    tmp_path: Path, command: str, fields: dict[str, Any], said: str
) -> None:
    path = write_sweep(tmp_path, **fields)
    result = servesweep(command, path, "--out", tmp_path / "out")
    assert result.exit_code == 2
    line = result.stderr.removesuffix("\n")
    assert line.startswith(f"servesweep: {path}")
    assert "\n" not in line
    assert said.replace("(gpu", "(engine.gpu") in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["run", "plan", "track"])
def test_a_point_is_no_sweep(tmp_path: Path, command: str) -> None:
    path = tmp_path / "point.yaml"
    path.write_text("model: {}\nworkload: {}\n")
    result = servesweep(command, path, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "base: got nothing, expected the point to vary; this file is a point" in result.stderr


def test_nothing_to_track_before_a_run(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [10]})
    result = servesweep("track", path, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "small: journal.jsonl: got nothing, expected the results of a sweep" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: {"range": [10, 3000, 1]}})
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli", "plan", path, "--out", tmp_path / "out"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith(b"point ")
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait()


def test_nobody_served_is_a_failure(tmp_path: Path) -> None:
    prompts = {"num_requests": 5, "prompt_tokens": {"fixed": 600}}
    workload = {"generate": BASE["workload"]["generate"] | prompts}
    changed = base(workload=workload, engine={"max_model_len": 512})
    result = run(write_sweep(tmp_path, base=changed, axes={BLOCKS: [40, 50]}), tmp_path / "out")
    assert result.exit_code == 1
    assert "nothing_served: no request finished, 5 were refused; first: " in result.stderr
    assert "2 failed" in result.output


def test_who_refuses_requests_comes_last(tmp_path: Path) -> None:
    workload = {
        "generate": BASE["workload"]["generate"] | {"prompt_tokens": {"uniform": [20, 400]}}
    }
    changed = base(workload=workload, engine={"num_gpu_blocks_override": 200})
    axes = {"engine.max_model_len": [60, 200, 512]}
    result = run(write_sweep(tmp_path, base=changed, axes=axes, truth=TRUTH), tmp_path / "out")
    ranked = [line for line in result.output.splitlines() if "% mean absolute" in line]
    assert "max_model_len=512" in ranked[0]
    assert "requests refused)" not in ranked[0]
    assert all(" of 30 requests refused)" in line for line in ranked[1:])


def test_a_truth_of_some_metrics_ranks_by_those(tmp_path: Path) -> None:
    some = {**TRUTH["percentiles"], "values": TRUTH["percentiles"]["values"][:5]}
    path = write_sweep(tmp_path, axes={BLOCKS: [10, 40]}, truth={"percentiles": some})
    result = run(path, tmp_path / "out")
    assert "% mean absolute difference over 5 of 15 metrics, " in result.output
    assert len(list((tmp_path / "out" / "small" / "points").iterdir())) == 2


def test_notes_are_of_the_point_not_of_the_one_it_equals(tmp_path: Path) -> None:
    truth = {"percentiles": {**TRUTH["percentiles"], "num_gpu_blocks": 7}}
    first, both = [0.5001], [0.5, 0.5001]
    fresh = tmp_path / "fresh"
    session, _ = run_sweep(write_sweep(tmp_path, axes={UTILIZATION: both}, truth=truth), fresh)
    whole = session.store.results_path.read_bytes()
    run_sweep(write_sweep(tmp_path, axes={UTILIZATION: first}, truth=truth), tmp_path / "out")
    path = write_sweep(tmp_path, axes={UTILIZATION: both}, truth=truth)
    resumed, _ = run_sweep(path, tmp_path / "out")
    assert resumed.plan.resumed == 1
    assert resumed.store.results_path.read_bytes() == whole


def test_wrong_input_that_is_found_late_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(write_sweep(tmp_path, axes={BLOCKS: [10, 20]}), out)
    results = (out / "small" / "results.parquet").read_bytes()
    changed = write_sweep(tmp_path, axes={BLOCKS: [30]})
    result = servesweep("run", changed, "--out", out, "--address", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "Ray: address: got '127.0.0.1:1', expected a Ray cluster that answers" in result.stderr
    assert (out / "small" / "results.parquet").read_bytes() == results
    fresh = servesweep("run", changed, "--out", tmp_path / "new", "--address", "127.0.0.1:1")
    assert fresh.exit_code == 2
    assert not (tmp_path / "new" / "small").exists()


def of_another_form() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"t_s": ["soon"]}), sink)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("damage", [b"", b"junk", of_another_form(), None])
def test_tables_that_are_damaged_are_made_again(tmp_path: Path, damage: bytes | None) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [20]}, truth=TRUTH)
    run(path, tmp_path / "out")
    for name in ("requests", "timeseries"):
        (table,) = (tmp_path / "out" / "small").glob(f"points/*/{name}.parquet")
        whole = table.read_bytes()
        table.unlink()
        if damage is not None:
            table.write_bytes(damage)
        assert run(path, tmp_path / "out").exit_code == 0
        assert table.read_bytes() == whole


def test_without_a_truth_the_quickest_come_first(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [10, 400, 500], CACHING: [True, False]})
    result = run(path, tmp_path / "out")
    lines = result.output.splitlines()
    shown = lines[lines.index("  lowest mean latency first:") + 1 :][:3]
    assert "num_gpu_blocks_override=500 enable_prefix_caching=True" in shown[0]
    assert [float(line.split()[1]) for line in shown] == sorted(
        float(line.split()[1]) for line in shown
    )
    plots = {path.name for path in (tmp_path / "out" / "small" / "plots").iterdir()}
    assert plots == {"latency.png", "over_time.png", "mean_latency.png"}


def test_no_file_is_exit_code_2(tmp_path: Path) -> None:
    result = run(tmp_path / "none.yaml", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.endswith("none.yaml: file: got nothing, expected an existing file\n")


@pytest.mark.parametrize("command", [["plan"], ["run", "--dry-run"]])
def test_a_plan_shows_what_would_run(tmp_path: Path, command: list[str]) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [10, 20]}, zipped=[{UTILIZATION: [0.5, 0.9]}])
    out = tmp_path / "out"
    fresh = servesweep(*command, path, "--out", out).output.splitlines()
    assert not out.exists(), "a plan leaves nothing behind"
    points = [line.split() for line in fresh[1:5]]
    assert [point[1] for point in points] == ["10", "10", "20", "20"]
    assert [point[2] for point in points] == ["to", "equals", "to", "equals"]
    assert points[1][3] == points[0][0]
    assert fresh[5] == "4 points, 2 equal to another, 0 done, 2 to run"
    assert fresh[6].startswith("about ")
    assert "(measured on one)" in fresh[6]
    small = write_sweep(tmp_path, axes={BLOCKS: [10]})
    run(small, out)
    path = write_sweep(tmp_path, axes={BLOCKS: [10, 20]})
    partly = servesweep(*command, path, "--out", out).output.splitlines()
    assert [line.split()[2] for line in partly[1:3]] == ["done", "to"]
    assert partly[3] == "2 points, 0 equal to another, 1 done, 1 to run"
    assert "(the mean of 1 in the journal)" in partly[4]
    run(path, out)
    assert servesweep(*command, path, "--out", out).output.splitlines()[-1] == "nothing to run"


IMPORTS = """
import sys
from orchestrator.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*[name for name in {names!r} if name in sys.modules], file=sys.stderr)
"""


def imported(*arguments: str, names: list[str]) -> str:
    """Which of the modules a command imports: the last line it leaves."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(names=names), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["wrong"]])
def test_help_imports_next_to_nothing(arguments: list[str]) -> None:
    names = ["numpy", "ray", "mlflow", "pyarrow", "pydantic", "numba", "yaml"]
    assert imported(*arguments, names=names) == ""


def test_a_wrong_file_is_told_before_the_compiler_is_loaded(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axis={})
    assert imported("run", str(path), names=["numba", "ray", "mlflow", "pyarrow"]) == ""


def start(path: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli", "run", path, "--out", out, "--serial"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )


POINTS = 400  # some seconds, so that a slow machine can stop them in the middle


def many_seeds(folder: Path) -> Path:
    execution = {"points_per_task": 3}
    return write_sweep(folder, axes={SEED: list(range(POINTS))}, truth=TRUTH, execution=execution)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The results of a run that nobody stops."""
    folder = tmp_path_factory.mktemp("whole")
    return run_sweep(many_seeds(folder), folder)[0].store.results_path.read_bytes()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_stopped_and_resumed(tmp_path: Path, stop: signal.Signals, whole: bytes) -> None:
    """A real process, stopped in the middle; the same command then gives what it would have given."""
    path = many_seeds(tmp_path)
    journal = tmp_path / "out" / "small" / "journal.jsonl"
    with start(path, tmp_path / "out") as process:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 6:
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(stop)
        said = process.communicate()[1]
    if stop == signal.SIGINT:
        assert process.returncode == 130
        assert "stopped; the same command goes on where it was" in said
        partly = pq.read_table(journal.with_name("results.parquet"))["status"].to_pylist()
        assert 0 < partly.count("not_run") < POINTS
    else:
        assert process.returncode == -stop
    session, watch = run_sweep(path, tmp_path / "out")
    assert 0 < session.plan.resumed < POINTS
    assert len(watch.outcomes) == POINTS - session.plan.resumed
    assert session.store.results_path.read_bytes() == whole
