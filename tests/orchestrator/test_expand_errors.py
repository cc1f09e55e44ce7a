"""Points that are refused: before anything runs, with the field as the sweep file has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiles.errors import InputError
from tests.orchestrator.sweep_make import BLOCKS, TRUTH, UTILIZATION, base, points_of, write_sweep

CARD = {"card": {"name": "A", "memory_bytes": 1 << 20}}
SEQS = "engine.max_num_seqs"


def refused(folder: Path, **fields: Any) -> InputError:
    path = write_sweep(folder, **fields)
    with pytest.raises(InputError) as caught:
        points_of(path)
    assert "\n" not in str(caught.value)
    assert caught.value.source.startswith(str(path))
    return caught.value


@pytest.mark.parametrize(
    ("fields", "field", "value", "expected"),
    [
        ({"axes": {UTILIZATION: [0.5, 1.2]}}, f"axes.{UTILIZATION}", 1.2, "less than or equal"),
        (
            {"zipped": [{UTILIZATION: [0.5, 0.0]}]},
            f"zipped[0].{UTILIZATION}",
            0.0,
            "greater than 0",
        ),
        (
            {"axes": {"engine.gpu_memory_utilisation": [0.5]}},
            "axes.engine.gpu_memory_utilisation",
            0.5,
            "no such field; known fields: admission, all2all_backend, async_scheduling",
        ),
        ({"axes": {"engines.policy": ["fcfs"]}}, "axes.engines.policy", None, "no such field"),
        ({"axes": {"seed": [1]}}, "axes.seed", 1, "no such field"),
        (
            {"axes": {"model.hidden_size.x": [1]}},
            "axes.model.hidden_size.x",
            1,
            "no such field: hidden_size is 16, not a section with fields",
        ),
        ({"axes": {SEQS: [1.5]}}, f"axes.{SEQS}", 1.5, "integer"),
        ({"axes": {SEQS: {"linspace": [1, 8, 3]}}}, f"axes.{SEQS}", 4.5, "integer"),
        ({"axes": {"engine.async_scheduling": [1]}}, "axes.engine.async_scheduling", 1, "bool"),
        (
            {"axes": {"workload.generate.seed": [-1]}},
            "axes.workload.generate.seed",
            -1,
            "greater than or equal to 0",
        ),
        (
            {"axes": {"overhead.cudagraph_capture_sizes": [[1, 0]]}},
            "axes.overhead.cudagraph_capture_sizes[1]",
            0,
            "greater than or equal to 1",
        ),
        ({"base": base(engine={"max_num_seqs": 0})}, "base.engine.max_num_seqs", 0, "greater"),
        ({"base": base(workload=None)}, "base.workload", None, "a value, it is required"),
        (
            {"axes": {SEQS: [8, 128]}},
            "base.engine.max_num_batched_tokens",
            64,
            "at least max_num_seqs (128)",
        ),
        (
            {"axes": {UTILIZATION: [0.5, 0.001]}},
            f"axes.{UTILIZATION}",
            0.001,
            "more than 0.0",
        ),
        (
            {"axes": {"card": ["A"]}, "cards": {"A": {"card": {"name": "A", "memory_gib": -1}}}},
            "cards.A.card.memory_gib",
            -1,
            "a size in GiB above 0",
        ),
        (
            {"axes": {"card": ["A"]}, "cards": {"A": {**CARD, "engine": {"max_seqs": 3}}}},
            "cards.A.engine.max_seqs",
            3,
            "no such field",
        ),
        (
            {"axes": {"card": ["A"]}, "cards": {"A": {**CARD, "truth": {"recordd": "x"}}}},
            "cards.A.truth.recordd",
            "x",
            "no such field",
        ),
        (
            {"axes": {BLOCKS: [10]}, "exclude": [{BLOCKS: 10}]},
            "exclude",
            1,
            "to leave at least one point",
        ),
    ],
)
def test_the_field_is_named_as_the_file_has_it(
    tmp_path: Path, fields: dict[str, Any], field: str, value: Any, expected: str
) -> None:
    error = refused(tmp_path, **fields)
    assert error.field == field
    if value is not None:
        assert error.value == value
    assert expected in error.expected


def test_the_cell_is_named(tmp_path: Path) -> None:
    """With several axes the value at fault may be wrong for one of them only."""
    error = refused(tmp_path, axes={"engine.max_num_batched_tokens": [64, 256], SEQS: [8, 128]})
    assert error.source.endswith(
        "small.yaml, point 1 (engine.max_num_batched_tokens 64, engine.max_num_seqs 128)"
    )


@pytest.mark.parametrize(
    ("fields", "where", "missing"),
    [
        ({"truth": {"recorded": "not/here"}}, "small.yaml, truth: ", "not/here"),
        ({"truth": {"vllm_bench": "r.json"}}, "small.yaml, truth: ", "r.json"),
        (
            {"axes": {"card": ["A"]}, "cards": {"A": {**CARD, "truth": {"recorded": "gone"}}}},
            "small.yaml, cards.A.truth: ",
            "gone",
        ),
        (
            {"base": base(profile={"linear": None, "bundles": "perf"})},
            "small.yaml, base.profile: ",
            "perf/small/small/bf16",
        ),
        (
            {"axes": {"model": ["models/none.json"]}},
            "small.yaml, point 0 (model models/none.json), axes.model: ",
            "models/none.json",
        ),
    ],
)
def test_files_that_are_missing_are_named(
    tmp_path: Path, fields: dict[str, Any], where: str, missing: str
) -> None:
    error = refused(tmp_path, **fields)
    assert where in error.source
    assert missing in str(error)


def test_a_truth_without_sense_is_named(tmp_path: Path) -> None:
    wrong = {"percentiles": {**TRUTH["percentiles"], "definitions": None}}
    error = refused(tmp_path, truth=wrong)
    assert "truth" in error.source
    assert "definitions" in error.field
