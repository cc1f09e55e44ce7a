"""Folders that are damaged, edited or of another version: one line that names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from dashboards.sweep_data import read_sweep
from dashboards.wording import verdict
from orchestrator.cli import main
from tests.dashboards.make import make_sweep
from tests.orchestrator.sweep_make import BLOCKS

AXIS = f"axes/{BLOCKS}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    session = make_sweep(tmp_path_factory.mktemp("sweep"), execution={"keep_requests": "all"})
    return session.store.folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "sweep"))


def refused(folder: Path, *said: str) -> None:
    for command in (["report", "--out", str(folder.parent / "page.html")], ["show"]):
        done = CliRunner().invoke(main, [*command, str(folder)])
        assert done.exit_code == 2, done.output
        assert done.stderr.count("\n") == 1 and all(part in done.stderr for part in said), (
            done.stderr
        )


def edit(path: Path, place: str, value: Any) -> None:
    data: Any = json.loads(path.read_text())
    *sections, last = place.split(".")
    inner = data
    for section in sections:
        inner = inner[int(section) if section.isdigit() else section]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        ("points", None, "points"),
        ("points", {}, "points"),
        ("points", ["a", "b"], "points[0]"),
        ("points", [], "points"),
        ("points.0.truth", 5, "points[0].truth"),
        ("points.0.truth", "../../etc", "points[0].truth"),
        ("points.0.truth", "0123", "truth/0123/truth.json: file: got nothing"),
        ("points.0.num_gpu_blocks", "many", "points[0].num_gpu_blocks"),
        ("points.0.num_gpu_blocks", 1 << 40, "points[0].num_gpu_blocks"),
        ("points.0.axes", [], "points[0].axes"),
        ("points.0.point_id", ..., "points[0].point_id: got nothing"),
        ("sweep", None, "sweep"),
        ("sweep", "small", "sweep"),
        ("sweep.name", 3, "sweep.name"),
        ("sweep.base", [], "sweep.base"),
        ("commit", 5, "commit"),
        ("servesweep", [], "servesweep"),
        ("format", 2, "format: got 2, expected 1"),
        ("more", 1, "more: got 1, expected no such field"),
    ],
)
def test_manifests(folder: Path, place: str, value: Any, field: str) -> None:
    edit(folder / "manifest.json", place, value)
    refused(folder, field)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("metrics", []),
        ("metrics", "fast"),
        ("metrics.ttft_ms", 5),
        ("metrics.ttft_ms.mean", "5"),
        ("throughput", None),
        ("source", None),
        ("kind", "guessed"),
        ("num_gpu_blocks", "24"),
        ("notes", "none"),
        ("settings", []),
        ("start", "now"),
        ("more", 1),
    ],
)
def test_truths(folder: Path, place: str, value: Any) -> None:
    (path,) = folder.glob("truth/*/truth.json")
    edit(path, place, value)
    refused(folder, "truth.json: ", place)


@pytest.mark.parametrize("content", ["", "no", "[]", "null", "[" * 100_000, '{"a": ' + "1" * 9000])
@pytest.mark.parametrize("file", ["manifest.json", "truth/*/truth.json"])
def test_what_is_no_json_of_ours(folder: Path, file: str, content: str) -> None:
    (path,) = folder.glob(file)
    path.write_text(content)
    refused(folder, f"{path}: ")
    path.unlink()
    refused(folder, f"{path}: file: got nothing")


def test_the_manifest_of_another_sweep(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"point_id": "', '"point_id": "x'))
    refused(folder, "manifest.json: points: got 'not ", "8 in results.parquet")


def column(name: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        if values is ...:
            return table.remove_column(at)
        column = pa.array([values] * len(table)) if not callable(values) else values(table[name])
        return table.set_column(at, name, column)

    return change


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


@pytest.mark.parametrize(
    ("file", "name", "values"),
    [
        ("results", "ttft_ms/mean", "slow"),
        ("results", "ttft_ms/mean", [1.0]),
        ("results", "ttft_ms/mean", True),
        ("results", "index", "first"),
        ("results", "index", ...),
        ("results", "status", None),
        ("results", "status", 5),
        ("results", "status", ...),
        ("results", "equals", 1.5),
        ("results", AXIS, [1, 2]),
        ("results", AXIS, {"a": 1}),
        ("results", AXIS, float("nan")),
        ("points/*/requests", "first_token_ns", "soon"),
        ("points/*/requests", "output_tokens", ...),
        ("points/*/requests", "finished", "yes"),
        ("points/*/timeseries", "running", ...),
        ("points/*/timeseries", "t_s", [1.0]),
        ("truth/*/requests", "ttft_ms", ...),
        ("truth/*/requests", "num_prompt_tokens", "many"),
        ("truth/*/series", "t_s", ...),
        ("truth/*/series", "running", "all"),
    ],
)
def test_tables(folder: Path, file: str, name: str, values: Any) -> None:
    for path in folder.glob(f"{file}.parquet"):
        rewrite(path, column(name, values))
    if "points" in file:  # which the terminal does not show
        arguments = ["report", str(folder), "--out", str(folder.parent / "page.html")]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 2 and done.stderr.count("\n") == 1
        assert f"column {name}: got" in done.stderr
    else:
        refused(folder, f"column {name}: got")


def test_a_column_twice(folder: Path) -> None:
    rewrite(
        folder / "results.parquet", lambda t: t.append_column("ttft_ms/mean", t["ttft_ms/mean"])
    )
    refused(folder, "file: got 'Multiple matches")


def test_without_the_number_of_metrics_the_verdict_leaves_it_out(folder: Path) -> None:
    assert " over 15 metrics" in verdict(read_sweep(folder))
    rewrite(folder / "results.parquet", column("num_headline", ...))
    assert "% mean absolute difference, with" in verdict(read_sweep(folder))
