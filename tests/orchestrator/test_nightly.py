"""A night from its file to its folder, in this process; the detector by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.nightly.baseline import Accepted, Baseline, load_baseline
from orchestrator.nightly.detector import Judgement, first_difference, judge
from orchestrator.nightly.measure import Measured
from orchestrator.nightly.suite import Suite, load_suite
from profiles.errors import InputError
from tests.orchestrator.nightly_make import SUITE
from tests.profiles.bundles import ROOT

ORACLE = {"decisions": str(ROOT / "tests/oracle/recordings/exact-pool")}


def write_suite(folder: Path, **changes: Any) -> Path:
    """The committed suite's `burst`, and one recorded scenario."""
    case: dict[str, Any] = yaml.safe_load(SUITE.read_text())["points"]["burst"]
    case["point"]["workload"]["jsonl"] = str(
        ROOT / "tests/oracle/recordings/burst/workload.jsonl.gz"
    )
    truth = (SUITE.parent / "truth/burst.yaml").read_text()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "truth").mkdir(exist_ok=True)
    (folder / "truth/burst.yaml").write_text(truth)
    data = {"name": "one", "baseline": "baseline", "oracle": ORACLE, "points": {"burst": case}}
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(data | changes))
    return path


def night(path: Path, *options: str) -> Any:
    arguments = ["nightly", str(path), "--serial", "--out", str(path.parent / "out"), *options]
    return CliRunner().invoke(main, arguments)


def test_artifacts_and_exit_codes(tmp_path: Path) -> None:
    path = write_suite(tmp_path)
    assert night(path, "--no-track").exit_code == 2
    assert night(path, "--no-track", "--accept", "the first").exit_code == 0
    done = night(path, "--no-track")
    assert done.exit_code == 0, done.output
    folder = tmp_path / "out/one"
    for name in ("measured.json", "judgement.json", "report.md", "junit.xml", "results.parquet"):
        assert (folder / name).is_file()
    measured = {case["name"]: case for case in json.loads((folder / "measured.json").read_text())}
    assert set(measured) == {"burst", "decisions/exact-pool-sync", "decisions/exact-pool-async"}
    assert measured["burst"]["errors"]["err_pct/mean_abs"] == 0
    baseline = load_baseline(tmp_path / "baseline")
    assert baseline is not None and baseline.reason == "the first"
    steps = baseline.cases["burst"].steps
    assert steps is not None and len(steps) == measured["burst"]["predictions"]["steps"] == 329


def test_the_trend_is_against_the_last_accepted_night(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    groups = {"scheduler_clocks": {"worse": {"err_pct/mean_abs": 0.5}}}
    path = write_suite(tmp_path, groups=groups)
    assert "no night was tracked yet" in night(path, "--accept", "the first").output
    assert night(path).exit_code == 0
    truth = tmp_path / "truth/burst.yaml"
    data = yaml.safe_load(truth.read_text())
    for row in data["values"]:
        row["value_ms"] *= 1.01
    truth.write_text(yaml.safe_dump(data))
    suite = yaml.safe_load(path.read_text())
    suite["points"]["burst"]["bands"] = {}
    path.write_text(yaml.safe_dump(suite))
    worse = night(path, "--bisect")
    assert worse.exit_code == 1
    assert "err_pct/mean_abs is 0.9901, 0 in the last accepted night: worse by more" in worse.output
    assert "predictions changed: no; accurate: no" in worse.output
    assert "burst: the truth is another one, predictions are as they were" in worse.output
    # A night that was not fine is not what the next one is held against.
    assert night(path).exit_code == 1


def test_the_committed_suite_is_whole() -> None:
    suite = load_suite(SUITE)
    baseline = load_baseline(SUITE.parent / suite.baseline)
    assert baseline is not None
    points = {name for name in baseline.cases if "/" not in name}
    assert points == set(suite.points)
    assert all(case.status == "measured" for case in baseline.cases.values())


def test_the_truth_of_the_scheduler_clocks_is_the_recording(tmp_path: Path) -> None:
    from tests.oracle.latencies import latencies

    for name in ("burst", "turns"):
        written = yaml.safe_load((SUITE.parent / f"truth/{name}.yaml").read_text())
        assert written == latencies(ROOT / "tests/oracle/recordings" / name)


def steps(**columns: list[int]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


class TestFirstDifference:
    BEFORE = steps(end_ns=[10, 20, 30], num_tokens=[1, 2, 3], batch=[7, 8, 9])

    def test_equal(self) -> None:
        assert first_difference(self.BEFORE, self.BEFORE) is None

    def test_the_first_and_everything_in_it(self) -> None:
        now = steps(end_ns=[10, 21, 31], num_tokens=[1, 2, 4], batch=[7, 5, 9])
        assert first_difference(now, self.BEFORE) == (
            "first at step 1: end_ns 20 -> 21, another batch"
        )

    def test_a_run_that_goes_on(self) -> None:
        shorter = self.BEFORE.slice(0, 2)
        assert first_difference(self.BEFORE, shorter) == (
            "2 steps before, 3 now; the first 2 are equal"
        )


def suite_of(**points: dict[str, Any]) -> Suite:
    return Suite.model_validate({"name": "s", "baseline": "b", "points": points})


def point(name: str, **fields: Any) -> Measured:
    data: dict[str, Any] = {"predictions": {"steps": 3.0}, "inputs": {"version": "1"}} | fields
    return Measured(name, "g", "point", data.pop("status", "measured"), **data)


def judged(case: Measured, before: Accepted | None = None, **fields: Any) -> Judgement:
    suite = suite_of(**{case.name: {"point": "p.yaml", "group": "g"} | fields})
    before = before or Accepted("measured", {"steps": 3.0}, {}, {"version": "1"})
    return judge(suite, [case], Baseline("because", None, {case.name: before}), None)


class TestDetector:
    def test_fine(self) -> None:
        found = judged(point("a"))
        assert (found.findings, found.verdict, found.exit_code) == ([], "fine", 0)

    def test_the_smallest_change_of_a_prediction(self) -> None:
        found = judged(point("a", predictions={"steps": 3.0000000000000004}))
        assert (found.exit_code, found.answer("changed"), found.answer("accurate")) == (
            1,
            "yes",
            "yes",
        )

    def test_a_number_that_is_new_and_one_that_is_gone(self) -> None:
        assert judged(point("a", predictions={"steps": 3.0, "new": 1.0})).exit_code == 0
        gone = judged(point("a", predictions={"other": 3.0}))
        assert gone.exit_code == 1
        assert "steps 3.0 -> None" in gone.findings[0].text

    @pytest.mark.parametrize(
        ("value", "code"), [(0.99, 0), (-0.99, 0), (1.01, 1), (-1.01, 1), (float("nan"), 1)]
    )
    def test_bands_hold_on_either_side(self, value: float, code: int) -> None:
        found = judged(point("a", errors={"m": value}), bands={"m": 1.0})
        assert found.exit_code == code
        assert found.answer("changed") == "no"

    def test_a_band_without_a_measurement(self) -> None:
        assert judged(point("a"), bands={"m": 1.0}).exit_code == 2

    def test_from_success_to_failure(self) -> None:
        found = judged(point("a", status="failed", reason="stuck", predictions={}))
        assert found.exit_code == 1
        assert found.findings[0].text == "failed, and succeeded before: stuck"

    def test_a_regression_outweighs_what_could_not_be_compared(self) -> None:
        suite = suite_of(a={"point": "p", "group": "g"}, b={"point": "p", "group": "g"})
        cases = [point("a", predictions={"steps": 4.0}), point("b", status="wrong_input")]
        accepted = {n: Accepted("measured", {"steps": 3.0}, {}, {}) for n in ("a", "b")}
        assert judge(suite, cases, Baseline("", None, accepted), None).exit_code == 1

    def test_a_group_has_bands_of_its_own(self) -> None:
        suite = Suite.model_validate(
            {
                "name": "s",
                "baseline": "b",
                "points": {n: {"point": "p", "group": "g", "bands": {"m": 3.0}} for n in "ab"},
                "groups": {"g": {"bands": {"m": 1.0}}},
            }
        )
        cases = [point("a", errors={"m": 2.0}), point("b", errors={"m": -0.5})]
        accepted = {n: Accepted("measured", {"steps": 3.0}, {}, {"version": "1"}) for n in "ab"}
        found = judge(suite, cases, Baseline("", None, accepted), None)
        assert [f.text for f in found.findings] == ["m is 1.25 over 2 cases, its band is 1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": {}, "oracle": {}}, "an empty suite measures nothing"),
        ({"groups": {"nobody": {}}}, "a group with cases: decisions, scheduler_clocks"),
        ({"mood": 1}, "known fields"),
        ({"points": {"a": {"group": "decisions", "point": "p"}}}, "the name is one of oracle"),
        ({"points": {"a": {"group": "g", "point": "p", "bands": {"m": -1}}}}, "bands.m"),
    ],
)
def test_wrong_suites(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_suite(write_suite(tmp_path, **change))


def test_a_damaged_baseline(tmp_path: Path) -> None:
    path = write_suite(tmp_path)
    (tmp_path / "baseline").mkdir()
    (tmp_path / "baseline/baseline.json").write_text('{"cases": 5}')
    done = night(path, "--no-track")
    assert done.exit_code == 2
    assert "as `servesweep nightly --accept` writes it" in done.stderr
