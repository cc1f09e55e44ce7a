"""A night from its file to its folder, in this process; the detector by itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.nightly.at_commits import Runs
from orchestrator.nightly.baseline import Accepted, Baseline, load_baseline
from orchestrator.nightly.bisect import Bisection
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
        assert (found.answer("changed"), found.answer("accurate")) == ("yes", "no")

    def test_a_failure_that_was_accepted(self) -> None:
        failed = Accepted("failed", {}, {}, {"version": "1"})
        case = point("a", status="failed", reason="stuck", predictions={})
        assert judged(case, failed).findings == []
        assert judged(case, failed, bands={"m": 1.0}).exit_code == 2
        found = judged(point("a"), failed)
        assert found.exit_code == 2
        assert found.findings[0].text.startswith("succeeded, and failed when it was accepted")

    def test_what_fails_predicts_nothing(self) -> None:
        case = point("a", errors={"m": 0.0}, steps=steps(end_ns=[1]))
        case.fail("a worker disagrees")
        assert (case.status, case.reason) == ("failed", "a worker disagrees")
        assert (case.predictions, case.errors, case.steps) == ({}, {}, None)
        assert case.inputs == {"version": "1"}

    def test_a_regression_outweighs_what_could_not_be_compared(self) -> None:
        suite = suite_of(a={"point": "p", "group": "g"}, b={"point": "p", "group": "g"})
        cases = [point("a", predictions={"steps": 4.0}), point("b", status="wrong_input")]
        accepted = {n: Accepted("measured", {"steps": 3.0}, {}, {}) for n in ("a", "b")}
        assert judge(suite, cases, Baseline("", None, accepted), None).exit_code == 1

    def grouped(
        self,
        cases: list[Measured],
        last: dict[str, dict[str, float]] | None = None,
        **group: dict[str, float],
    ) -> Judgement:
        points = {case.name: {"point": "p", "group": "g"} for case in cases}
        data = {"name": "s", "baseline": "b", "points": points, "groups": {"g": group}}
        accepted = {
            case.name: Accepted("measured", {"steps": 3.0}, {}, {"version": "1"}) for case in cases
        }
        return judge(Suite.model_validate(data), cases, Baseline("", None, accepted), last)

    def test_a_group_has_bands_of_its_own(self) -> None:
        cases = [point("a", errors={"m": 2.0}), point("b", errors={"m": -0.5})]
        found = self.grouped(cases, bands={"m": 1.0})
        assert [f.text for f in found.findings] == ["m is 1.25 over 2 cases, its band is 1"]

    @pytest.mark.parametrize("check", ["bands", "worse"])
    def test_a_metric_that_a_group_does_not_have(self, check: str) -> None:
        """A check of nothing is none, with a night to hold it against or without."""
        cases = [point("a", errors={"m": 0.1}), point("b", errors={"m": 0.2})]
        for last in (None, {"a": {"m": 0.1}, "b": {"m": 0.2}}):
            found = self.grouped(cases, last, **{check: {"mm": 5.0}})
            assert (found.exit_code, found.answer("accurate")) == (2, "not compared")
            assert [f.text for f in found.findings] == [
                "mm was not measured of a, b; the group g has it"
            ]

    def test_a_case_without_the_groups_metric(self) -> None:
        """It is not left out of the mean without a word."""
        cases = [point("a", errors={"m": 0.1}), point("b")]
        found = self.grouped(cases, bands={"m": 1.0})
        assert found.exit_code == 2
        assert found.findings[0].text == "m was not measured of b; the group g has it"

    def test_a_group_that_did_not_run_is_skipped(self) -> None:
        cases = [point("a", errors={"m": 0.1}), point("b", status="skipped")]
        assert self.grouped(cases, bands={"m": 1.0}).exit_code == 0

    def test_a_trend_is_of_predictions_as_well(self) -> None:
        cases = [point("a")]
        assert self.grouped(cases, {"a": {"steps": 2.5}}, worse={"steps": 1.0}).exit_code == 0
        assert self.grouped(cases, {"a": {"steps": 1.5}}, worse={"steps": 1.0}).exit_code == 1
        nan = [point("a", errors={"m": float("nan")})]
        assert self.grouped(nan, {"a": {"m": 0.1}}, worse={"m": 1.0}).exit_code == 1


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


CASE = {"status": "measured", "predictions": {}, "errors": {}, "inputs": {}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"cases": ', "file: got 'JSONDecodeError: "),
        ("5", "baseline.json: BaselineFile: got 5"),
        ({"cases": 5}, "reason: got nothing"),
        ({"reason": "x", "cases": []}, "cases: got []"),
        ({"reason": "x", "cases": {"burst": CASE | {"predictions": [1]}}}, "predictions: got [1]"),
        ({"reason": "x", "cases": {"burst": CASE | {"inputs": None}}}, "inputs: got None"),
        ({"reason": "x", "cases": {"burst": CASE | {"status": "fine"}}}, "status: got 'fine'"),
        ({"reason": "x", "cases": {"burst": CASE | {"mood": 1}}}, "mood: got 1"),
    ],
)
def test_a_damaged_baseline(tmp_path: Path, content: Any, message: str) -> None:
    path = write_suite(tmp_path)
    (tmp_path / "baseline").mkdir()
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "baseline/baseline.json").write_text(text)
    done = night(path, "--no-track")
    assert done.exit_code == 2
    assert "baseline/baseline.json: " in done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a suite whose night was accepted, and was fine then."""
    folder = tmp_path_factory.mktemp("accepted")
    path = write_suite(folder)
    assert night(path, "--no-track", "--accept", "the first").exit_code == 0
    assert night(path, "--no-track").exit_code == 0
    return folder


def remove_steps(baseline: Path) -> None:
    (baseline / "burst.parquet").unlink()


def other_steps(baseline: Path) -> None:
    pq.write_table(steps(end_ns=[1, 2]), baseline / "burst.parquet")


def other_columns(baseline: Path) -> None:
    pq.write_table(steps(mood=[0] * 329), baseline / "burst.parquet")


def corrupt_steps(baseline: Path) -> None:
    content = bytearray((baseline / "burst.parquet").read_bytes())
    content[40:200] = bytes(160)
    (baseline / "burst.parquet").write_bytes(content)


def file_for_a_folder(baseline: Path) -> None:
    shutil.rmtree(baseline)
    baseline.write_text("")


def folder_for_a_file(baseline: Path) -> None:
    (baseline / "baseline.json").unlink()
    (baseline / "baseline.json").mkdir()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_steps, "baseline/burst.parquet: file: got nothing, expected 329 steps"),
        (other_steps, "baseline/burst.parquet: steps: got 2, expected 329"),
        (other_columns, "baseline/burst.parquet: columns: got 'mood'"),
        (corrupt_steps, "baseline/burst.parquet: file: got '"),
        (file_for_a_folder, "baseline: baseline: got 'no folder'"),
        (folder_for_a_file, "baseline/baseline.json: file: got 'Is a directory'"),
    ],
)
def test_a_damaged_folder_is_not_none(
    accepted: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    """And what the night before said is gone."""
    folder = shutil.copytree(accepted, tmp_path / "copy")
    damage(folder / "baseline")
    done = night(folder / "suite.yaml", "--no-track")
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    for name in ("measured.json", "judgement.json", "report.md", "junit.xml", "results.parquet"):
        assert not (folder / "out/one" / name).exists()


def test_a_reason_without_words_is_refused_first(accepted: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(accepted, tmp_path / "copy")
    before = (folder / "out/one/report.md").stat().st_mtime_ns
    done = night(folder / "suite.yaml", "--no-track", "--accept", "")
    assert done.exit_code == 2
    assert "--accept: got '', expected the reason, in words" in done.stderr
    assert (folder / "out/one/report.md").stat().st_mtime_ns == before


def test_a_run_at_a_commit_that_takes_too_long_has_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_suite(tmp_path)
    monkeypatch.setattr("orchestrator.nightly.at_commits.TIMEOUT_S", 0.01)
    runs = Runs(tmp_path, load_suite(path), path, point("burst"))
    assert runs.here() is None
    assert runs.problem == "no result after 0.01 s"


def test_a_night_is_written_down_before_it_is_bisected(
    accepted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(accepted, tmp_path / "copy")

    def stop(*_: object) -> list[str]:
        assert "fine" in (folder / "out/one/report.md").read_text()
        raise KeyboardInterrupt

    monkeypatch.setattr(Bisection, "origins", stop)
    assert night(folder / "suite.yaml", "--no-track", "--bisect").exit_code == 130
    judgement = json.loads((folder / "out/one/judgement.json").read_text())
    assert (judgement["verdict"], judgement["origins"]) == ("fine", [])
