"""Two sweeps, or two folders of sweeps, against each other."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dashboards.comparison import SweepComparison, compare_folders, summary_lines
from dashboards.comparison_data import comparison_data
from dashboards.report import write_comparison
from dashboards.wording import number
from orchestrator.cli import main
from orchestrator.session import Session
from profiles.errors import InputError
from tests.dashboards.make import EVILS, make_sweep, with_failure
from tests.dashboards.test_report import Page
from tests.orchestrator.sweep_make import BLOCKS, TRUTH, base, run_sweep, write_sweep

RESERVE = "engine.scheduler_reserve_full_isl"


def sweep(folder: Path, name: str = "small", **fields: Any) -> Session:
    return run_sweep(write_sweep(folder, name=name, **fields), folder / "out")[0]


def compared(a: Session, b: Session, *ignore: str) -> SweepComparison:
    (found,) = compare_folders(a.store.folder, b.store.folder, ignore).sweeps
    return found


def test_a_sweep_is_the_same_as_itself(tmp_path: Path) -> None:
    session = sweep(tmp_path, axes={BLOCKS: [10, 20, 40]})
    found = compared(session, session)
    assert [pair.state for pair in found.pairs] == ["same"] * 3
    assert all(pair.same_id for pair in found.pairs)
    assert found.sentence().startswith(
        "small: of 3 points in both 3 are the same; best mean latency"
    )


def test_changed_failing_and_missing_points_are_told(tmp_path: Path) -> None:
    a = sweep(tmp_path / "a", axes={BLOCKS: [10, 20, 40, 50]})
    other = write_sweep(tmp_path / "b", axes={BLOCKS: [60, 40, 20, 10]})
    text = other.read_text().replace("max_num_seqs: 8", "max_num_seqs: 2")
    assert "max_num_seqs: 2" in text
    other.write_text(text)
    b, _ = run_sweep(other, tmp_path / "b" / "out")
    with_failure(b, 3)
    found = compared(a, b)
    assert [(pair.a, pair.b, pair.state) for pair in found.pairs] == [
        (0, 3, "fails now"),
        (1, 2, "changed"),
        (2, 1, "changed"),
    ]
    assert not any(pair.same_id for pair in found.pairs)
    assert (found.only_a, found.only_b) == ([3], [0])
    said = (
        "small: of 3 points in both (3 with other inputs or another version) 2 changed, 1 fail now"
    )
    assert said in found.sentence() and "1 only in A, 1 only in B" in found.sentence()


def test_an_axis_of_one_alone_and_an_ignored_one_leave_the_best(tmp_path: Path) -> None:
    a = sweep(tmp_path / "a", axes={BLOCKS: [10, 40]})
    b = sweep(tmp_path / "b", axes={BLOCKS: [10, 40], RESERVE: [True, False]})
    found = compared(a, b)
    assert found.axes == (BLOCKS,)
    assert [(pair.of_a, pair.of_b) for pair in found.pairs] == [(1, 2), (1, 2)]
    for pair in found.pairs:
        values = found.b.metrics[found.b.measure]
        assert values[pair.b] == min(values[row] for row in (pair.b, pair.b ^ 1))
    ignored = compared(b, b, RESERVE)
    assert [(pair.of_a, pair.state) for pair in ignored.pairs] == [(2, "same"), (2, "same")]
    with pytest.raises(InputError, match="--ignore: got 'card', expected an axis: "):
        compared(a, b, "card")


def test_two_folders_are_compared_sweep_by_sweep(tmp_path: Path) -> None:
    for night in ("monday", "tuesday"):
        sweep(tmp_path / night, name="first", axes={BLOCKS: [10, 20]})
        sweep(tmp_path / night, name=f"only_{night}", axes={BLOCKS: [10]})
    a, b = tmp_path / "monday" / "out", tmp_path / "tuesday" / "out"
    found = compare_folders(a, b)
    assert [one.name for one in found.sweeps] == ["first"]
    assert (found.only_a, found.only_b) == (["only_monday"], ["only_tuesday"])
    assert summary_lines(found)[-2:] == ["only in A: only_monday", "only in B: only_tuesday"]
    with pytest.raises(InputError, match=r"expected a sweep's folder, as .* is"):
        compare_folders(a / "first", b)
    with pytest.raises(InputError, match="expected a sweep that is in"):
        compare_folders(a, _only(tmp_path))
    with pytest.raises(InputError, match="expected results of a sweep in it"):
        compare_folders(tmp_path / "none", tmp_path / "nothing")


def _only(tmp_path: Path) -> Path:
    sweep(tmp_path / "else", name="other", axes={BLOCKS: [10]})
    return tmp_path / "else" / "out"


def test_sweeps_of_different_measures_are_not_compared_by_one(tmp_path: Path) -> None:
    a = sweep(tmp_path / "a", axes={BLOCKS: [10, 20, 40]}, truth=TRUTH)
    b = sweep(tmp_path / "b", axes={BLOCKS: [20, 40, 50]})
    found = compared(a, b)
    best = [float(data.scores[data.ranked[0][0]]) for data in (found.a, found.b)]
    said = f"best mean absolute difference (%) {number(best[0])} in A, best mean latency (ms) "
    assert f"{said}{number(best[1])} in B, which do not compare." in found.sentence()
    (data,) = comparison_data(compare_folders(a.store.folder, b.store.folder))["sweeps"]
    assert data["measures"] == ["err_pct/mean_abs", "latency_ms/mean"]
    assert data["metric"] == "latency_ms/mean", "which both have"
    assert data["only_b"][0]["measure"] == found.b.metrics["latency_ms/mean"][2]
    for row in range(3):
        with_failure(b, row)
    said = f"best mean absolute difference (%) {number(best[0])} in A."
    assert compared(a, b).sentence().endswith(said)


def test_unrelated_sweeps_are_said_to_be(tmp_path: Path) -> None:
    a = sweep(tmp_path / "a", axes={BLOCKS: [10, 20]})
    other = base(model={"name": "other"})
    b = sweep(tmp_path / "b", axes={RESERVE: [True, False]}, base=other)
    said = compared(a, b).sentence()
    assert "they have no axis in common, the best of each stands for all" in said
    assert "A is of the model small, B of other" in said
    assert "no axis" not in compared(a, a).sentence()
    truths = [sweep(tmp_path / name, truth=TRUTH) for name in "cd"]
    assert "different truths" not in compared(*truths).sentence()
    values = [one | {"value_ms": 5.0} for one in TRUTH["percentiles"]["values"]]
    half = {"percentiles": TRUTH["percentiles"] | {"values": values}}
    changed = sweep(tmp_path / "e", truth=half)
    assert "they are measured against different truths" in compared(truths[0], changed).sentence()


def test_the_page_holds_both_sides_and_hostile_names_as_text(tmp_path: Path) -> None:
    a, b = make_sweep(tmp_path / "a"), make_sweep(tmp_path / "b")
    with_failure(b, 0)
    found = compare_folders(a.store.folder, b.store.folder)
    path = write_comparison(found, tmp_path / "page.html")
    page = Page(path.read_text(encoding="utf-8"))
    assert page.opened.count("script") == 3 and "b" not in page.opened
    data = comparison_data(found)
    (one,) = data["sweeps"]
    assert [point["state"] for point in one["points"]] == ["fails now"] + ["same"] * 7
    assert one["points"][0]["axes"][0] == EVILS[0]
    values = [
        np.frombuffer(base64.b64decode(side["base64"]), "<f8")
        for side in one["metrics"]["err_pct/mean_abs"]
    ]
    np.testing.assert_array_equal(values[0], found.sweeps[0].a.metrics["err_pct/mean_abs"])
    assert math.isnan(values[1][0]) and (values[0][1:] == values[1][1:]).all()
    assert write_comparison(found, tmp_path / "again.html").read_bytes() == path.read_bytes()


def test_the_command(tmp_path: Path) -> None:
    session = sweep(tmp_path, axes={BLOCKS: [10, 20]})
    folder, out = str(session.store.folder), tmp_path / "page.html"
    done = CliRunner().invoke(main, ["report", folder, folder, "--out", str(out)])
    assert done.exit_code == 0 and out.is_file()
    assert "small: of 2 points in both 2 are the same" in done.stdout
