"""A sweep's folder: results with the same columns whatever they hold, a manifest of what was asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from orchestrator.store import results_table
from tests.orchestrator.sweep_make import BLOCKS, UTILIZATION, results, run_sweep, write_sweep


def row(index: int, axes: dict[str, Any], **more: Any) -> dict[str, Any]:
    fixed = {"point_id": f"p{index}", "run_id": f"r{index}", "name": "n", "status": "finished"}
    return {"index": index, "axes": axes, "metrics": {}} | fixed | more


@pytest.mark.parametrize(
    ("values", "kind", "held"),
    [
        ([1, 2], pa.int64(), [1, 2]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([0.5, None], pa.float64(), [0.5, None]),
        ([None, 3000], pa.int64(), [None, 3000]),
        ([True, False], pa.bool_(), [True, False]),
        ([True, 1], pa.string(), ["true", "1"]),
        (["a", "b"], pa.string(), ["a", "b"]),
        (["a", 1], pa.string(), ["a", "1"]),
        ([[1, 2], [4]], pa.string(), ["[1, 2]", "[4]"]),
        ([{"jsonl": "a"}, {"csv": "b"}], pa.string(), ['{"jsonl": "a"}', '{"csv": "b"}']),
        ([1 << 63, 1], pa.string(), [str(1 << 63), "1"]),
    ],
)
def test_axes_as_columns(values: list[Any], kind: pa.DataType, held: list[Any]) -> None:
    table = results_table([row(i, {"axis": value}) for i, value in enumerate(values)])
    assert table.schema.field("axes/axis").type == kind
    assert table["axes/axis"].to_pylist() == held


def test_columns_have_their_types_without_values(tmp_path: Path) -> None:
    """Nobody failed, nobody equals anybody: the columns are there all the same."""
    session, _ = run_sweep(write_sweep(tmp_path, axes={BLOCKS: [20]}), tmp_path / "out")
    schema = results(session).schema
    assert schema.names[:8] == [
        "index",
        "point_id",
        "run_id",
        "name",
        "status",
        "equals",
        "reason",
        "notes",
    ]
    assert schema.field("index").type == pa.int64()
    assert {schema.field(name).type for name in schema.names[1:8]} == {pa.string()}
    assert schema.names[8] == f"axes/{BLOCKS}"
    assert {field.type for field in list(schema)[9:]} == {pa.float64()}


def test_points_that_are_there_twice_are_reported_with_the_one_they_equal(tmp_path: Path) -> None:
    axes = {UTILIZATION: [0.5, 0.5001, 0.5], "engine.max_num_seqs": [8]}
    session, watch = run_sweep(write_sweep(tmp_path, axes=axes), tmp_path / "out")
    table = results(session).to_pylist()
    assert len(watch.outcomes) == 1
    first, other, again = table
    assert [r["equals"] for r in table] == [None, first["point_id"], first["point_id"]]
    assert again["point_id"] == first["point_id"] != other["point_id"]
    assert {r["status"] for r in table} == {"finished"}
    assert len({r["makespan_ms"] for r in table}) == 1


def test_the_manifest_says_what_was_asked(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [20, 30]})
    session, _ = run_sweep(path, tmp_path / "out")
    manifest = json.loads(session.store.manifest_path.read_text())
    assert manifest["sweep_id"] == session.sweep_id
    assert manifest["sweep"]["axes"] == {BLOCKS: [20, 30]}
    assert [point["num_gpu_blocks"] for point in manifest["points"]] == [20, 30]
    assert [point["point_id"] for point in manifest["points"]] == [
        point.point_id for point in session.plan.points
    ]
