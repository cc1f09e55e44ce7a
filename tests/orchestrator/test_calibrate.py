"""Studies from file to folder: known settings are found again, on data held out from the fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from orchestrator.cli import main
from profiles.calibrated import load_calibrated_card
from simulator import load_point, simulate
from tests.orchestrator.calibration_make import (
    known_base,
    run_study,
    simulated_points,
    write_known,
    write_study,
)

DECODE = {
    "fields": ["overhead.full_graph_ms"],
    "range": [0.0, 2.0],
    "resolution": 0.01,
    "points": 7,
}
PREFILL = {
    "fields": ["overhead.piecewise_ms", "overhead.no_graph_ms"],
    "range": [0.0, 8.0],
    "resolution": 0.05,
    "points": 7,
}
OVERHEAD = {"full_graph_ms": 0.7, "piecewise_ms": 3.1, "no_graph_ms": 3.1}


def modes_study(tmp_path: Path, **fields: Any) -> Path:
    recorded = write_known(tmp_path / "recorded", overhead=OVERHEAD)
    run = {"truth": {"recorded": str(recorded)}, "train": {"every": 2}}
    parameters = {"decode_ms": DECODE, "prefill_ms": PREFILL}
    return write_study(
        tmp_path, parameters=parameters, runs={"one": run}, **({"search": {"rounds": 2}} | fields)
    )


def within(estimate: Any, value: float) -> bool:
    return bool(estimate.low <= value <= estimate.high)


def test_known_mode_times_are_found(tmp_path: Path) -> None:
    done, _, told = run_study(modes_study(tmp_path), tmp_path / "out")
    found = done.card.parameters
    assert within(found["decode_ms"], 0.7)
    assert within(found["prefill_ms"], 3.1)
    assert found["decode_ms"].value == pytest.approx(0.7, abs=0.05)
    assert found["prefill_ms"].value == pytest.approx(3.1, abs=0.3)
    sides = {one.side: one for one in done.judged}
    assert sides["train"].num_requests == sides["test"].num_requests == 60
    assert sides["test"].before["requests"] > 5
    assert sides["test"].after["requests"] < 0.1 * sides["test"].before["requests"]
    assert told[0].startswith("round 1: 49 candidates, best ")
    assert done.failed == 0


def test_what_is_written(tmp_path: Path) -> None:
    path = modes_study(tmp_path)
    done, _, _ = run_study(path, tmp_path / "out")
    report = (done.folder / "report.md").read_text()
    assert "| decode_ms | overhead.full_graph_ms | " in report
    assert "| one | 60 (all but every 2 from 0) | held out | " in report
    for name in ("objective.png", "objective_decode_ms_prefill_ms.png"):
        assert (done.folder / "plots" / name).read_bytes().startswith(b"\x89PNG")
        assert f"plots/{name}" in report
    numbers = json.loads((done.folder / "report.json").read_text())
    assert numbers["candidates"] == done.candidates
    assert [one["side"] for one in numbers["judged"]] == ["train", "test"]
    results = pq.read_table(done.folder / "results.parquet")
    assert len(results) == done.candidates
    assert "axes/overhead.no_graph_ms" in results.column_names
    # The card names its data, and a point can name the card.
    card = yaml.safe_load((done.folder / "card.yaml").read_text())
    about = {"truth", "workload", "profile", "part", "card", "model"}
    assert set(card["data"]["one"]) == about
    assert card["errors"]["one"]["test"] == {
        name: round(value, 4) for name, value in done.judged[1].after.items()
    }
    point = tmp_path / "point.yaml"
    calibration = str(done.folder / "card.yaml")
    point.write_text(yaml.safe_dump(known_base() | {"calibration": calibration}))
    applied = simulate(load_point(point)).summary["calibration"]["applied"]
    assert applied["overhead.full_graph_ms"] == done.card.parameters["decode_ms"].value


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    path = modes_study(tmp_path)
    first, watches, _ = run_study(path, tmp_path / "out")
    journal = first.folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    report = (first.folder / "report.json").read_bytes()
    assert simulated_points(watches) == len(lines)
    journal.write_bytes(b"".join(lines[:60]))
    again, watches, _ = run_study(path, tmp_path / "out")
    assert simulated_points(watches) == len(lines) - 60
    assert (again.folder / "report.json").read_bytes() == report
    _, watches, _ = run_study(path, tmp_path / "out")
    assert simulated_points(watches) == 0


def test_a_sampler_for_more_parameters(tmp_path: Path) -> None:
    parameters = {
        "decode_ms": DECODE,
        "prefill_ms": PREFILL,
        "blocks": {"fields": ["engine.num_gpu_blocks_override"], "range": [60, 400]},
    }
    recorded = write_known(
        tmp_path / "recorded", overhead=OVERHEAD, engine={"num_gpu_blocks_override": 110}
    )
    path = write_study(
        tmp_path,
        parameters=parameters,
        runs={"one": {"truth": {"recorded": str(recorded)}}},
        search={"trials": 160, "seed": 1},
    )
    done, _, _ = run_study(path, tmp_path / "out")
    found = done.card.parameters
    for name, value in (("decode_ms", 0.7), ("prefill_ms", 3.1), ("blocks", 110)):
        assert within(found[name], value), found
    assert isinstance(found["blocks"].value, int)
    assert found["blocks"].value == pytest.approx(110, abs=6)
    assert done.judged[0].after["requests"] < 0.15 * done.judged[0].before["requests"]
    again, watches, _ = run_study(path, tmp_path / "out")
    assert simulated_points(watches) == 0
    assert again.card == done.card


def test_on_ray_it_is_the_same(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    path = modes_study(tmp_path, search={"rounds": 1})
    serial, _, _ = run_study(path, tmp_path / "serial")
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR")
    try:
        parallel, _, _ = run_study(path, tmp_path / "ray", serial=False)
    finally:
        ray.shutdown()
    for name in ("report.json", "card.yaml", "results.parquet"):
        assert (parallel.folder / name).read_bytes() == (serial.folder / name).read_bytes()


def test_several_runs_share_the_parameters(tmp_path: Path) -> None:
    """Another engine's run, which the fit never sees, is judged as well."""
    ours = write_known(tmp_path / "ours", overhead=OVERHEAD)
    seats = {"max_num_seqs": 8}
    theirs = write_known(tmp_path / "theirs", overhead=OVERHEAD, engine=seats)
    runs = {
        "ours": {"truth": {"recorded": str(ours)}},
        "theirs": {
            "point": {"engine": seats},
            "truth": {"recorded": str(theirs)},
            "train": "none",
        },
    }
    parameters = {"decode_ms": DECODE, "prefill_ms": PREFILL}
    done, _, _ = run_study(write_study(tmp_path, parameters=parameters, runs=runs), tmp_path / "o")
    assert [(one.run, one.side) for one in done.judged] == [("ours", "train"), ("theirs", "test")]
    assert set(done.card.data) == {"ours"}
    held_out = done.judged[1]
    assert held_out.after["requests"] < 0.2 * held_out.before["requests"]


def test_a_card_fitted_to_two_cards_names_both(tmp_path: Path) -> None:
    ours = write_known(tmp_path / "ours", overhead=OVERHEAD)
    theirs = write_known(tmp_path / "theirs", overhead=OVERHEAD, engine={"max_num_seqs": 8})
    other = known_base()["card"] | {"name": "Other"}
    point = {"engine": {"max_num_seqs": 8}, "card": other}
    runs = {
        "ours": {"truth": {"recorded": str(ours)}},
        "theirs": {"point": point, "truth": {"recorded": str(theirs)}},
    }
    path = write_study(tmp_path, parameters={"decode_ms": DECODE}, runs=runs, search={"rounds": 1})
    done, _, _ = run_study(path, tmp_path / "out")
    model, card = known_base()["model"]["name"], known_base()["card"]["name"]
    assert (done.card.card, done.card.others) == (card, (("Other", model),))
    report = (done.folder / "report.md").read_text()
    assert f"{model} on {card} and {model} on Other, from `study.yaml`." in report
    applied = load_calibrated_card(done.folder / "card.yaml")
    assert applied.others == done.card.others


def test_a_card_that_cannot_be_written_stops_the_study_first(tmp_path: Path) -> None:
    path = modes_study(tmp_path)
    (tmp_path / "file").write_text("")
    arguments = ["calibrate", str(path), "--serial", "--no-track", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, [*arguments, "--card", str(tmp_path / "file/card.yaml")])
    assert done.exit_code == 2
    assert "--card: got '" in done.stderr and "a file that can be written: " in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path: Path) -> None:
    path = modes_study(tmp_path, search={"rounds": 1})
    arguments = ["calibrate", str(path), "--serial", "--no-track", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, [*arguments, "--card", str(tmp_path / "cards/a.yaml")])
    assert done.exit_code == 0, done.output
    assert "decode_ms 1 (90% interval 0 .. 2): overhead.full_graph_ms" in done.stdout
    assert "| one | 60 (all but every 2 from 0) | held out | " in done.stdout
    written = (tmp_path / "cards/a.yaml").read_bytes()
    assert written == (tmp_path / "out/known/card.yaml").read_bytes()


def test_candidates_that_fail_are_told(tmp_path: Path) -> None:
    """A pool too small for the longest request refuses it: such a candidate has no objective."""
    recorded = write_known(tmp_path / "recorded")
    path = write_study(
        tmp_path,
        parameters={"blocks": {"fields": ["engine.num_gpu_blocks_override"], "range": [3, 6]}},
        runs={"one": {"truth": {"recorded": str(recorded)}}},
    )
    arguments = ["calibrate", str(path), "--serial", "--no-track", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert "candidates that serve every request of the training runs" in done.stderr
