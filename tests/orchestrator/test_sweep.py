"""The sweep file: what it may say, and what is said of what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.axes import Spaced, axis_values
from orchestrator.sweep import load_sweep
from profiles.errors import InputError
from tests.orchestrator.sweep_make import BLOCKS, TRUTH, UTILIZATION, base, write_sweep


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ({"linspace": [0.8, 0.95, 4]}, [0.8, 0.85, 0.9, 0.95]),
        ({"linspace": [0.9, 0.1, 5]}, [0.9, 0.7, 0.5, 0.3, 0.1]),
        ({"linspace": [0.3, 0.3, 1]}, [0.3]),
        ({"logspace": [0.01, 1, 3]}, [0.01, 0.1, 1.0]),
        ({"range": [0.8, 0.9, 0.04]}, [0.8, 0.84, 0.88]),
        ({"range": [0.1, 0.3, 0.1]}, [0.1, 0.2, 0.3]),
    ],
)
def test_values_by_rule(rule: dict[str, Any], values: list[float]) -> None:
    assert Spaced.model_validate(rule).values() == values


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ({"linspace": [64, 256, 4]}, [64, 128, 192, 256]),
        ({"logspace": [64, 512, 4]}, [64, 128, 256, 512]),
        ({"logspace": [1, 1000, 4]}, [1, 10, 100, 1000]),
        ({"range": [10, 0, -3]}, [10, 7, 4, 1]),
    ],
)
def test_whole_values_are_integers(rule: dict[str, Any], values: list[int]) -> None:
    """Fields such as max_num_seqs take no 64.0."""
    found = Spaced.model_validate(rule).values()
    assert found == values
    assert {type(value) for value in found} == {int}


AXIS = f"axes.{UTILIZATION}"


@pytest.mark.parametrize(
    ("fields", "field", "value", "expected"),
    [
        ({"axis": {}}, "axis", {}, "no such field; known fields: axes, base"),
        ({"name": "a b"}, "name", "a b", "pattern"),
        ({"base": None}, "base", None, "valid dictionary"),
        ({"axes": {UTILIZATION: 0.9}}, AXIS, 0.9, "a list of values, or one of linspace"),
        ({"axes": {UTILIZATION: []}}, AXIS, [], "at least one value"),
        ({"axes": {UTILIZATION: {"linspce": [0, 1, 2]}}}, f"{AXIS}.linspce", [0, 1, 2], "known"),
        ({"axes": {UTILIZATION: {}}}, AXIS, None, "exactly one of linspace, logspace, range"),
        (
            {"axes": {UTILIZATION: {"linspace": [0, 1, 2], "range": [0, 1, 1]}}},
            AXIS,
            ["linspace", "range"],
            "exactly one of",
        ),
        ({"axes": {UTILIZATION: {"linspace": [0.1, 0.9]}}}, f"{AXIS}.linspace[2]", None, "a value"),
        ({"axes": {UTILIZATION: {"linspace": [0.1, 0.9, 0]}}}, f"{AXIS}.linspace[2]", 0, "1"),
        ({"axes": {UTILIZATION: {"linspace": [0.1, 0.9, 2.5]}}}, f"{AXIS}.linspace[2]", 2.5, "int"),
        (
            {"axes": {UTILIZATION: {"linspace": [0.1, 0.9, 1]}}},
            f"{AXIS}.linspace",
            (0.1, 0.9, 1),
            "a count of at least 2",
        ),
        (
            {"axes": {UTILIZATION: {"linspace": [0.1, float("inf"), 3]}}},
            f"{AXIS}.linspace[1]",
            float("inf"),
            "finite",
        ),
        (
            {"axes": {UTILIZATION: {"logspace": [0, 1, 3]}}},
            f"{AXIS}.logspace",
            (0, 1, 3),
            "ends above 0",
        ),
        (
            {"axes": {UTILIZATION: {"range": [0, 1, -0.1]}}},
            f"{AXIS}.range",
            (0, 1, -0.1),
            "a step that leads from start to stop",
        ),
        (
            {"axes": {UTILIZATION: {"range": [0, 1, 1e-9]}}},
            f"{AXIS}.range",
            (0, 1, 1e-9),
            "at most 200000 values",
        ),
        ({"axes": {UTILIZATION: {"named": {}}}}, f"{AXIS}.named", {}, "at least 1 item"),
        ({"axes": {UTILIZATION: {"named": [0.5]}}}, f"{AXIS}.named", [0.5], "valid dictionary"),
        (
            {"axes": {UTILIZATION: {"named": {"half": 0.5}, "range": [0, 1, 1]}}},
            f"{AXIS}.range",
            [0, 1, 1],
            "no such field",
        ),
        (
            {"axes": {BLOCKS: {"named": {"few": 10}}}, "exclude": [{BLOCKS: 10}]},
            f"exclude[0].{BLOCKS}",
            10,
            "a value of the axis: few",
        ),
        (
            {"axes": {BLOCKS: {"range": [10, 1009, 1]}, UTILIZATION: {"linspace": [0.1, 1, 500]}}},
            "axes",
            "500000 points",
            "at most 200000 points",
        ),
        (
            {"axes": {BLOCKS: [10]}, "zipped": [{BLOCKS: [20]}]},
            f"zipped[0].{BLOCKS}",
            BLOCKS,
            "an axis given once",
        ),
        (
            {"zipped": [{BLOCKS: [10, 20], UTILIZATION: [0.5]}]},
            "zipped[0]",
            {BLOCKS: 2, UTILIZATION: 1},
            "as many values for each",
        ),
        ({"zipped": [{}]}, "zipped[0]", {}, "at least one axis"),
        (
            {"axes": {BLOCKS: [10, 20]}, "exclude": [{"engine.policy": "fcfs"}]},
            "exclude[0].engine.policy",
            "engine.policy",
            f"an axis: {BLOCKS}",
        ),
        (
            {"axes": {BLOCKS: [10, 20]}, "exclude": [{BLOCKS: 30}]},
            f"exclude[0].{BLOCKS}",
            30,
            "a value of the axis: 10, 20",
        ),
        ({"axes": {BLOCKS: [10]}, "exclude": [{}]}, "exclude[0]", {}, "at least one axis"),
        (
            {"axes": {"card": ["A", "B"]}, "cards": {"A": {"card": {"name": "A"}}}},
            "axes.card",
            "B",
            "a name under cards: A",
        ),
        ({"cards": {"A": {}}}, "cards", ["A"], "an axis `card`"),
        (
            {"axes": {"card": {"named": {"A": "B"}}}, "cards": {"A": {"card": {"name": "A"}}}},
            "axes.card",
            "named",
            "a list: cards have names already",
        ),
        ({"axes": {"engine": [None, {}]}}, "axes.engine", None, "a section, as a point must have"),
        (
            {"axes": {"workload": {"named": {"none": None}}}},
            "axes.workload",
            None,
            "a section, as a point must have",
        ),
        (
            {"axes": {"card": ["A"]}, "cards": {"A": {"profile": {}}}},
            "cards.A.card",
            None,
            "the card itself",
        ),
        (
            {"axes": {"card": ["A"]}, "cards": {"A": {"card": {}, "cores": 1}}},
            "cards.A.cores",
            1,
            "one of truth, model, card",
        ),
        ({"execution": {"time_limit": 5}}, "execution.time_limit", 5, "known fields: cpus"),
        ({"execution": {"time_limit_s": 0}}, "execution.time_limit_s", 0, "greater than 0"),
        ({"execution": {"cpus_per_point": 1.5}}, "execution.cpus_per_point", 1.5, "whole"),
        ({"truth": {}}, "truth", None, "exactly one of recorded, vllm_bench, percentiles"),
        ({"base": base(truth=TRUTH)}, "base.truth", TRUTH, "truth beside base"),
    ],
)
def test_wrong_files_are_one_error(
    tmp_path: Path, fields: dict[str, Any], field: str, value: Any, expected: str
) -> None:
    path = write_sweep(tmp_path, **fields)
    with pytest.raises(InputError) as caught:
        load_sweep(path)
    error = caught.value
    assert (error.source, error.field) == (str(path), field)
    if value is not None:
        assert error.value == value
    assert expected in error.expected
    assert "\n" not in str(error)


def test_a_whole_file(tmp_path: Path) -> None:
    path = write_sweep(
        tmp_path,
        axes={UTILIZATION: {"linspace": [0.5, 0.9, 3]}, "card": ["A"]},
        zipped=[{"engine.max_num_seqs": [4, 8], "engine.max_num_batched_tokens": [32, 64]}],
        exclude=[{UTILIZATION: 0.7, "engine.max_num_seqs": 8}],
        cards={
            "A": {"card": {"name": "A", "memory_gib": 1}},
            "B": {"card": {"name": "B", "memory_gib": 2}},
        },
        truth=TRUTH,
        execution={"time_limit_s": 10, "max_failures": 3},
    )
    sweep = load_sweep(path)
    assert sweep.place(UTILIZATION) == AXIS
    assert sweep.place("engine.max_num_seqs") == "zipped[0].engine.max_num_seqs"


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"range": [1234567890123, 1234567890126, 1]}, [1234567890123 + i for i in range(4)]),
        ({"range": [2**53 + 1, 2**53 + 3, 1]}, [2**53 + 1, 2**53 + 2, 2**53 + 3]),
        ({"linspace": [2**53 + 1, 2**53 + 3, 3]}, [2**53 + 1, 2**53 + 2, 2**53 + 3]),
        ({"range": [0.1, 0.7, 0.1]}, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]),
        ({"linspace": [-1e308, 1e308, 3]}, [-1e308, 0, 1e308]),
        ({"logspace": [5e-324, 1, 2]}, [5e-324, 1]),
        ({"logspace": [1, 100, 3]}, [1, 10, 100]),
        ({"logspace": [7, 7, 1]}, [7]),
    ],
)
def test_values_are_exact(given: dict[str, Any], values: list[float]) -> None:
    found = axis_values(Spaced.model_validate(given))
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]
