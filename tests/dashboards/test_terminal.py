"""`servesweep show`: what a terminal gets, and what programs get."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dashboards.terminal import as_csv, as_json, as_text, clean
from dashboards.wording import blocks_title, number, title
from orchestrator.cli import main
from orchestrator.session import Session
from profiles.errors import InputError
from tests.dashboards.make import (
    CARD,
    EVIL,
    EVILS,
    POOLS,
    make_sweep,
    read,
    with_failure,
    write_truth_of,
)
from tests.orchestrator.sweep_make import BLOCKS, UTILIZATION, base, run_sweep, write_sweep
from tests.orchestrator.sweep_make import results as results_of


def servesweep(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    found = make_sweep(tmp_path_factory.mktemp("sweep"))
    with_failure(found, 7, reason="no luck\x1b[31m\nat all")
    return found


def test_best_worst_truth_map_and_failures(session: Session) -> None:
    text = as_text(read(session), 2, None)
    lines = text.splitlines()
    assert lines[0] == "small" and lines[1].startswith("Of 8 points the nearest to the truth")
    (truth,) = (line for line in lines if line.startswith("truth card/model"))
    assert truth.split()[2] == "24", "its blocks"
    best = [line for line in lines if line.startswith("best")]
    worst = [line for line in lines if line.startswith("worst")]
    assert len(best) == len(worst) == 1
    assert best[0].split()[1] == "1" and worst[0].split()[1] == "3"
    assert any(
        line.startswith("mean absolute difference (%): num_gpu_blocks_over") for line in lines
    )
    row = next(i for i, line in enumerate(lines) if "* is the best" in line)
    assert lines[row + 1].split() == [str(blocks) for blocks in POOLS]
    assert text.count("*") == 2, "the best cell, and the legend"
    assert lines[-1].startswith("failed ") and r"error: no luck\x1b[31m\nat all" in lines[-1]
    assert all(line.isprintable() for line in lines)


def test_json_says_everything(session: Session) -> None:
    data = read(session)
    found = json.loads(as_json(data))
    assert found["name"] == "small" and found["counts"]["failed"] == 1
    assert found["truths"][0]["metrics"]["kv/blocks"] == 24
    assert [point["rank"] for point in found["points"]] == [1, 2, 2, 3, 3, 4, 4, None]
    best = found["points"][0]
    assert best["axes"] == {"card": EVILS[0], BLOCKS: 40}
    assert best["metrics"] == data.metrics_of(best["index"])
    assert found["points"][-1]["reason"] == "no luck\x1b[31m\nat all"


def test_csv_is_a_row_a_point(session: Session) -> None:
    data = read(session)
    rows = list(csv.DictReader(io.StringIO(as_csv(data))))
    assert len(rows) == 8
    assert rows[0]["rank"] == "1" and rows[0]["num_gpu_blocks"] == "40"
    assert float(rows[0]["err_pct/mean_abs"]) == data.metrics_of(3)["err_pct/mean_abs"]
    assert {row["axes/card"] for row in rows} == set(map(clean, EVILS))
    assert as_csv(data).count("\n") == 9 and "\x1b" not in as_csv(data)
    assert rows[-1]["status"] == "error" and rows[-1]["err_pct/mean_abs"] == ""


def test_csv_has_every_column_and_no_formula(tmp_path: Path) -> None:
    names = ["=1+1", "@SUM(A1)", "-2", "plain"]
    cards = {name: {"card": CARD | {"memory_bytes": (1 << 20) + i}} for i, name in enumerate(names)}
    session = make_sweep(tmp_path, cards=cards, axes={"card": names})
    data = read(session)
    text = as_csv(data)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["axes/card"] for row in rows} == {"'=1+1", "'@SUM(A1)", "'-2", "plain"}
    results = results_of(session)
    assert set(rows[0]) == {*results.column_names, "rank", "num_gpu_blocks"}
    by_index = {int(row["index"]): row for row in rows}
    for one in results.to_pylist():
        row = by_index[one["index"]]
        assert row["run_id"] == one["run_id"]
        assert row["notes"] == clean(one["notes"] or "")
        assert float(row["err_pct/ttft_ms/mean"]) == one["err_pct/ttft_ms/mean"], "negative or not"


def test_one_form_at_a_time_and_wrong_commands_are_one_line(session: Session) -> None:
    folder = session.store.folder
    wrong = [
        (("show", folder, "--json", "--csv"), "--json or --csv, not both; `main show --help`"),
        (("show", folder, "--rows", "0"), "Invalid value for '--rows'"),
        (("show",), "Missing argument 'SWEEP'"),
        (("report", "a", "b", "c"), "one sweep, or two to compare; got 3"),
        (("profiles", "show", "--tp", "x"), "Invalid value for '--tp'"),
        (("shwo",), "No such command 'shwo'"),
        (("--no-such",), "No such option"),
    ]
    for arguments, said in wrong:
        done = servesweep(*arguments)
        assert done.exit_code == 2 and done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("servesweep: ") and said in done.stderr
    assert "Commands:" in servesweep("profiles").output, "nothing asked is help"


def test_a_long_axis_shares_cells(tmp_path: Path) -> None:
    axes = {UTILIZATION: {"linspace": [0.3, 0.9, 60]}}
    session, _ = run_sweep(write_sweep(tmp_path, axes=axes), tmp_path / "out")
    lines = as_text(read(session), 3, "kv/blocks").splitlines()
    (head,) = (
        line for line in lines if line.startswith("KV blocks in all: gpu_memory_utilization")
    )
    assert "neighbouring values share a cell" in head
    assert max(map(len, lines[lines.index(head) :])) <= 160


def test_an_unknown_metric_is_one_clear_error(session: Session) -> None:
    with pytest.raises(InputError, match="metric: got 'speed', expected a metric of the sweep: "):
        as_text(read(session), 2, "speed")


def test_nothing_moves_the_cursor() -> None:
    assert clean("a\x1b[2J\nb\t\u202ec") == r"a\x1b[2J\nb\t\u202ec"
    assert clean("ü" * 30, 10) == "ü" * 9 + "…"


def test_the_command_by_file_and_by_folder(session: Session, tmp_path: Path) -> None:
    folder = session.store.folder
    by_folder = servesweep("show", folder, "--json")
    assert by_folder.exit_code == 0 and json.loads(by_folder.stdout)["name"] == "small"
    by_file = servesweep("show", session.path, "--sweeps", folder.parent, "--csv")
    assert by_file.exit_code == 0 and by_file.stdout == as_csv(read(session))
    missing = servesweep("show", tmp_path)
    assert missing.exit_code == 2 and missing.stderr.count("\n") == 1
    assert "`servesweep run SWEEP.yaml` makes them" in missing.stderr


def test_a_reader_that_stops_early_is_no_error(session: Session) -> None:
    command = f"{sys.executable} -m orchestrator.cli show {session.store.folder} --csv | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("rank,index,point_id") and done.stderr == ""


def test_the_report_command(session: Session, tmp_path: Path) -> None:
    done = servesweep("report", session.store.folder, "--out", tmp_path / "deep" / "page.html")
    assert done.exit_code == 0
    assert (tmp_path / "deep" / "page.html").stat().st_size > 1_000_000
    assert done.stdout.splitlines()[-1] == f"wrote {tmp_path / 'deep' / 'page.html'}"
    assert servesweep("report", "a", "b", "c").exit_code == 2
    assert servesweep("report", session.store.folder, "--ignore", "card").exit_code == 2


def test_the_report_follows_a_link_and_refuses_a_pipe(session: Session, tmp_path: Path) -> None:
    page, link, pipe = (tmp_path / name for name in ("page.html", "link", "pipe"))
    link.symlink_to(page)
    assert servesweep("report", session.store.folder, "--out", link).exit_code == 0
    assert link.is_symlink() and page.stat().st_size > 1_000_000
    os.mkfifo(pipe)
    done = servesweep("report", session.store.folder, "--out", pipe)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1 and pipe.is_fifo()
    assert f"{pipe}: file: got 'a pipe', expected a regular file" in done.stderr


def test_sections_along_an_axis_are_told_apart(tmp_path: Path) -> None:
    axis = "workload.generate.arrivals"
    rates = [{"process": "poisson", "rate": rate} for rate in (1000.0, 2000.0)]
    session, _ = run_sweep(write_sweep(tmp_path, axes={axis: rates, BLOCKS: [10, 20]}), tmp_path)
    lines = as_text(read(session), 2, None).splitlines()
    (head,) = (i for i, line in enumerate(lines) if "* is the best" in line)
    assert lines[head + 1].split() == ["…1000.0}", "…2000.0}"]


def test_blocks_of_an_instance_and_of_all_are_told_apart(session: Session, tmp_path: Path) -> None:
    assert "KV blocks an" not in as_text(read(session), 2, None)
    cluster = {"instances": [{"count": 2}]}
    path = write_sweep(tmp_path, base=base(cluster=cluster), axes={BLOCKS: [20, 40]})
    data = read(run_sweep(path, tmp_path / "out")[0])
    assert data.blocks == [20, 40] and data.metrics["kv/blocks"].tolist() == [40.0, 80.0]
    assert blocks_title(data) == "KV blocks an instance"
    assert title("kv/blocks") == "KV blocks in all"


def test_run_writes_the_report(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [10, 20]})
    assert servesweep("run", path, "--out", tmp_path / "out", "--serial").exit_code == 0
    assert EVIL not in (tmp_path / "out" / "small" / "report.html").read_text(encoding="utf-8")


def test_points_with_truths_of_their_own_show_signed_errors(tmp_path: Path) -> None:
    folders = [
        write_truth_of(tmp_path / str(blocks) / "model" / "vllm", blocks) for blocks in (16, 24)
    ]
    truth = {"recorded": str(folders[0])}
    one = read(make_sweep(tmp_path / "one", axes={BLOCKS: [24]}, cards={}, truth=truth))
    assert "TTFT mean off" not in as_text(one, 5, None)
    axes = {BLOCKS: [16], "truth.recorded": [str(folder) for folder in folders]}
    two = read(make_sweep(tmp_path / "two", axes=axes, cards={}, truth=truth))
    lines = as_text(two, 5, None).splitlines()
    (best, second) = lines[(at := next(i for i, t in enumerate(lines) if t[:4] == "best")) : at + 2]
    for row in (0, 1):
        line = best if two.scores[row] == min(two.scores) else second
        for name in ("err_pct/ttft_ms/mean", "err_pct/tpot_ms/mean"):
            value = two.metrics[name][row]
            assert ("+" if value >= 0 else "") + number(value) in line.split()
    assert any(two.metrics["err_pct/ttft_ms/mean"][row] > 1 for row in (0, 1))
