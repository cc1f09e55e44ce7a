"""The parts of a calibration: objective, surface, intervals and warnings, and wrong studies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.calibration.evaluate import Candidates
from orchestrator.calibration.objective import RunValues, objective
from orchestrator.calibration.study import Parameter, Search, Study, load_study
from orchestrator.calibration.surface import minimum
from orchestrator.calibration.uncertainty import fit, warnings
from orchestrator.truth import TruthConfig, load_truth
from profiles.errors import InputError
from tests.orchestrator.calibration_make import known_base, run_study, write_known, write_study
from tests.orchestrator.truth_make import write_recorded

MEASURED = np.array([[10.0, 20.0, 30.0, 40.0], [1.0, 1.0, 2.0, 2.0], [50.0, 60.0, 70.0, 20.0]])


class TestObjective:
    def test_of_equal_values_is_zero(self) -> None:
        run = RunValues(MEASURED, np.stack([MEASURED, MEASURED]))
        assert objective("requests", [run]).tolist() == [0, 0]
        assert objective("statistics", [run]).tolist() == [0, 0]

    def test_errors_of_requests_do_not_cancel(self) -> None:
        """TTFT of two requests is off by 10 of 100, in opposite directions."""
        moved = MEASURED + np.array([[10.0, -10.0, 0, 0], [0] * 4, [0] * 4])
        run = RunValues(MEASURED, moved[np.newaxis])
        assert objective("requests", [run]) == pytest.approx([20 / 3])
        # [20, 10, 30, 40] is the same set: statistics see nothing.
        assert objective("statistics", [run]) == pytest.approx([0.0])

    def test_statistics_are_the_fifteen(self) -> None:
        run = RunValues(MEASURED, MEASURED[np.newaxis] * 1.1)
        assert objective("statistics", [run]) == pytest.approx([10.0])

    def test_the_mean_over_runs(self) -> None:
        one = RunValues(MEASURED, MEASURED[np.newaxis] * 1.1)
        other = RunValues(MEASURED, MEASURED[np.newaxis] * 0.8)
        assert objective("requests", [one, other]) == pytest.approx([15.0])

    def test_resampled_requests(self) -> None:
        moved = MEASURED.copy()
        moved[:, 0] *= 2
        run = RunValues(MEASURED, moved[np.newaxis])
        assert objective("requests", [run], [np.array([0, 0])]) == pytest.approx([100.0])
        assert objective("requests", [run], [np.array([1, 3])]) == pytest.approx([0.0])

    def test_a_candidate_that_did_not_serve_all_has_none(self) -> None:
        values = np.stack([MEASURED, np.full_like(MEASURED, np.nan)])
        assert objective("requests", [RunValues(MEASURED, values)]).tolist() == [0, np.inf]


class TestSurface:
    def grid(self) -> Any:
        x, y = np.meshgrid(np.linspace(-2, 2, 21), np.linspace(-4, 4, 21), indexing="ij")
        return np.column_stack([x.ravel(), y.ravel()])

    def test_a_quadratic_is_found_exactly(self) -> None:
        at = self.grid()
        x, y = at[:, 0] - 0.33, at[:, 1] + 1.27
        found = minimum(at, 1 + x**2 + 0.8 * x * y + 0.3 * y**2, near=0.5)
        assert found.kind == "surface"
        assert found.at == pytest.approx([0.33, -1.27])
        assert found.roughness == pytest.approx(0, abs=1e-9)

    def test_roughness_moves_it_little(self) -> None:
        at = self.grid()
        rough = np.random.default_rng(1).normal(0, 0.02, len(at))
        values = 1 + (at[:, 0] - 0.33) ** 2 + (at[:, 1] / 2) ** 2 + rough
        found = minimum(at, values, near=0.3)
        assert found.at == pytest.approx([0.33, 0.0], abs=0.1)
        assert found.roughness == pytest.approx(0.02, rel=0.3)

    @pytest.mark.parametrize(
        "values",
        [
            lambda at: 1 + at[:, 0] - at[:, 0].min(),  # falls to the end of the range
            lambda at: 2 - 0.01 * at[:, 0] ** 2,  # a hill
            lambda at: 1 + 1000 * np.abs(at).sum(axis=1),  # too few are near the best
        ],
    )
    def test_without_a_valley_the_best_candidate(self, values: Any) -> None:
        at = self.grid()
        seen = values(at)
        found = minimum(at, seen, near=0.3)
        assert found.kind == "candidate"
        assert found.at.tolist() == at[int(seen.argmin())].tolist()


def made_study(tmp_path: Path, **fields: Any) -> Study:
    parameters = {
        "a": {"fields": ["overhead.full_graph_ms"], "range": [0.0, 4.0], "resolution": 0.01},
        "b": {"fields": ["overhead.piecewise_ms"], "range": [0.0, 4.0], "resolution": 0.01},
    }
    content = {
        "parameters": parameters,
        "runs": {"one": {"truth": {"recorded": str(write_recorded(tmp_path))}}},
        **fields,
    }
    return load_study(write_study(tmp_path, **content))


def made_candidates(tmp_path: Path, law: Any) -> Candidates:
    """Candidates whose requests are all late by law(a, b) in %."""
    truth = load_truth(TruthConfig(recorded=write_recorded(tmp_path)), tmp_path)
    assert truth.requests is not None
    measured = np.stack([truth.requests.ttft_ms, truth.requests.tpot_ms, truth.requests.latency_ms])
    cells: list[Any] = [(a, b) for a in np.linspace(0, 4, 17) for b in np.linspace(0, 4, 17)]
    values = [measured * (1 + law(a, b) / 100) for a, b in cells]
    return Candidates(["one"], cells, {"one": values}, {"one": truth})


class TestWarnings:
    def test_none_where_all_is_well(self, tmp_path: Path) -> None:
        law = lambda a, b: 1 + (a - 2) ** 2 + (b - 1.5) ** 2  # noqa: E731
        found = fit(made_study(tmp_path), made_candidates(tmp_path, law))
        assert found.cell == (2, 1.5)
        assert found.warnings == ()

    def test_a_parameter_without_effect(self, tmp_path: Path) -> None:
        found = fit(made_study(tmp_path), made_candidates(tmp_path, lambda a, b: 1 + (a - 2) ** 2))
        assert found.cell[0] == 2
        assert (found.low[1], found.high[1]) == (0, 4)
        assert any("b is not identifiable: its interval, 0 to 4" in w for w in found.warnings)
        assert not any("a is not" in w for w in found.warnings)

    def test_only_the_sum_matters(self, tmp_path: Path) -> None:
        law = lambda a, b: 1 + (a + b - 4) ** 2  # noqa: E731
        found = fit(made_study(tmp_path), made_candidates(tmp_path, law))
        assert any(
            "a and b are determined together only (correlation -1.00" in w for w in found.warnings
        )

    def test_what_is_narrow_is_determined_whatever_it_goes_with(self, tmp_path: Path) -> None:
        study = made_study(tmp_path)
        at = np.linspace(1.95, 2.05, 21)
        low, high = np.array([1.95, 1.95]), np.array([2.05, 2.05])
        estimates = np.column_stack([at, 4 - at])
        assert warnings(study, (2, 2), low, high, estimates) == []
        wide = np.column_stack([at, 4 - 10 * (at - 2)])
        (said,) = warnings(study, (2, 2), low, np.array([2.05, 2.9]), wide)
        assert said.startswith("a and b are determined together only")

    def test_a_parameter_at_its_end(self, tmp_path: Path) -> None:
        law = lambda a, b: 5 - a + (b - 1.5) ** 2  # noqa: E731
        found = fit(made_study(tmp_path), made_candidates(tmp_path, law))
        assert found.cell[0] == 4
        assert "a is at the end of its range (4): widen the range" in found.warnings


class TestParameter:
    def test_whole_numbers_stay_whole(self) -> None:
        blocks = Parameter(fields=("engine.max_num_seqs",), range=(100, 900), resolution=25)
        assert blocks.snapped(333.3) == 325
        assert isinstance(blocks.snapped(333.3), int)
        assert (blocks.snapped(-5), blocks.snapped(1e9)) == (100, 900)

    def test_others_are_rounded_to_their_resolution(self) -> None:
        ms = Parameter(fields=("overhead.full_graph_ms",), range=(-0.5, 0.5), resolution=0.1)
        assert [ms.snapped(v) for v in (0.0, 0.04, 0.06, 0.31)] == [0.0, 0.0, 0.1, 0.3]


FIELD = "overhead.full_graph_ms"
BLOCKS = "engine.num_gpu_blocks_override"
SEATS = {"a": {"fields": ["engine.max_num_seqs"], "range": [8, 64]}}
GOOD = {"fields": [FIELD], "range": [0.0, 1.0]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"parameters": {}}, "parameters: got {}"),
        ({"parameters": {"a": {**GOOD, "fields": ["workload.limit"]}}}, "a field of card, engine"),
        ({"parameters": {"a": {**GOOD, "range": [1.0, 1.0]}}}, "low below high"),
        ({"parameters": {"a": {**GOOD, "resolution": 2.0}}}, "at most the range, 1"),
        ({"parameters": {"a": GOOD, "b": GOOD}}, "parameters.b.fields: .*a field given once"),
        (
            {"parameters": {"a": {**GOOD, "fields": ["overhead.mood"]}}},
            "parameters.a.fields: got 'overhead.mood', expected no such field; known fields",
        ),
        (
            {"parameters": {"a": {**GOOD, "fields": ["engine.max_num_seqs.x"]}}},
            "parameters.a.fields: got 'engine.max_num_seqs.x', .*max_num_seqs is 32, not a section",
        ),
        (
            {"parameters": {"a": {**GOOD, "range": [-9.0e9, 1.0]}}},
            "parameters.a.range: got -9000000000.0, expected .*-1000000",
        ),
        ({"parameters": {"a": {**GOOD, "range": [True, 5]}}}, r"range\[0\]: got True, .*a number"),
        (
            {"parameters": {"a": {**GOOD, "range": [float("nan"), 5]}}},
            r"range\[0\]: got nan, expected a finite number",
        ),
        ({"parameters": {"a": {**GOOD, "resolution": 0}}}, "resolution: got 0, expected above 0"),
        (
            {"parameters": {"a": {"fields": [BLOCKS], "range": [60.5, 80]}}},
            "parameters.a.range: got 60.5, expected a valid integer",
        ),
        (
            {"parameters": {"a": {"fields": [BLOCKS], "range": [60, 80], "resolution": 0.5}}},
            "parameters.a.resolution: got 0.5, expected a valid integer",
        ),
        ({"base": known_base() | {"engine": 5}, "parameters": SEATS}, "base.engine: got 5"),
        ({"search": {"seed": 2**32}}, "search.seed: got 4294967296"),
        ({"base": known_base() | {"card": {"name": 5, "memory_gib": 1}}}, "base.card.name: got 5"),
        ({"runs": {}}, "runs: got {}"),
        ({"objective": "mood"}, "objective: got 'mood'"),
        ({"base": {"model": 3}}, "card here or in base"),
        ({"axes": {}}, "this is a sweep"),
    ],
)
def test_wrong_studies(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    recorded = write_known(tmp_path / "recorded")
    runs = {"one": {"truth": {"recorded": str(recorded)}}}
    path = write_study(tmp_path, **({"parameters": {"a": GOOD}, "runs": runs} | fields))
    with pytest.raises(InputError, match=message) as caught:
        run_study(path, tmp_path / "out")
    assert str(caught.value).count(str(path)) == 1


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"train": "none"}, "at least one run with a train"),
        ({"train": "all", "test": "all"}, "rest or none, because the fit sees all"),
        ({"train": {"every": 1}}, "every"),
        ({"point": {"truth": 3}}, "runs.one.point.truth"),
        ({"point": {"engines": {}}}, "runs.one.point.engines"),
        ({"point": {"engine": None}}, "runs.one.point.engine: got None, .*left out"),
        ({"point": {"engine": {"max_num_seqs": "x"}}}, "runs.one.point.engine.max_num_seqs: got"),
        ({"point": {"card": {"memory_gib": 1}}}, "runs.one.point.card.name: got nothing"),
        ({"truth": {"recorded": "none"}}, "runs.one.truth: .*meta.json: file: got nothing"),
        ({"train": {"every": 2}, "test": {"every": 3}}, "requests that the fit never sees"),
    ],
)
def test_wrong_runs(tmp_path: Path, run: dict[str, Any], message: str) -> None:
    recorded = write_known(tmp_path / "recorded")
    runs = {"one": {"truth": {"recorded": str(recorded)}} | run}
    path = write_study(tmp_path, parameters={"a": GOOD}, runs=runs)
    with pytest.raises(InputError, match=message):
        run_study(path, tmp_path / "out")


def test_a_truth_of_another_workload(tmp_path: Path) -> None:
    recorded = write_recorded(tmp_path)
    runs = {"one": {"truth": {"recorded": str(recorded)}}}
    path = write_study(tmp_path, parameters={"a": GOOD}, runs=runs)
    with pytest.raises(InputError, match=r"runs.one.truth: requests: got 4, .*workload's 120"):
        run_study(path, tmp_path / "out")


@pytest.mark.parametrize("copied", [False, True])
def test_a_measurement_that_two_runs_name(tmp_path: Path, copied: bool) -> None:
    """What one run is fitted to judges nothing under another name."""
    recorded = write_known(tmp_path / "recorded")
    again = recorded
    if copied:
        again = shutil.copytree(recorded, tmp_path / "again")
        meta = again / "meta.json"
        meta.write_text(meta.read_text() + "\n")
    one = {"truth": {"recorded": str(recorded)}, "train": {"every": 2}, "test": "none"}
    other = {"truth": {"recorded": str(again)}, "train": "none"}
    parameters = {"a": GOOD}
    path = write_study(tmp_path, parameters=parameters, runs={"one": one, "other": other})
    message = "runs.other: test: got '60 requests that run one is fitted to, first 0', .*never sees"
    with pytest.raises(InputError, match=message):
        run_study(path, tmp_path / "out")
    other["test"] = {"every": 2, "first": 1}
    path = write_study(tmp_path, parameters=parameters, runs={"one": one, "other": other})
    done, _, _ = run_study(path, tmp_path / "out", change={"search": Search(rounds=1)})
    assert [(j.run, j.num_requests) for j in done.judged] == [("one", 60), ("other", 60)]
