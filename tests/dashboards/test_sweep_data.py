"""A sweep's folder as its dashboards read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards.sweep_data import distinct, find_sweep, read_sweep, short_names, truth_metrics
from dashboards.wording import number, verdict
from orchestrator.ranking import LATENCY, MEAN_ABS, best_points
from profiles.errors import InputError
from tests.dashboards.make import EVILS, POOLS, make_sweep, read, with_failure
from tests.orchestrator.sweep_make import BLOCKS, run_sweep, write_sweep


def test_everything_of_the_folder_is_there(tmp_path: Path) -> None:
    session = make_sweep(tmp_path)
    data = read(session)
    assert data.name == "small"
    assert data.axes == {
        "card": [EVILS[0]] * 4 + [EVILS[1]] * 4,
        BLOCKS: POOLS * 2,
    }
    assert data.blocks == POOLS * 2
    assert data.measure == MEAN_ABS
    assert data.counts() == {"points": 8, "finished": 4, "equal": 4, "failed": 0, "not_run": 0}
    (key,) = data.truths
    assert data.truth_of == [key] * 8
    assert truth_metrics(data.truths[key])["kv/blocks"] == 24.0
    requests, timeseries = data.tables(data.ranked[0][0]) or (None, None)
    assert requests.num_rows == 30 and timeseries.num_rows > 0
    assert data.tables(4) is not None, "a point that equals another has that one's tables"


def test_the_ranking_is_that_of_the_sweep(tmp_path: Path) -> None:
    session = make_sweep(tmp_path)
    data = read(session)
    first = [data.texts["point_id"][group[0]] for group in data.ranked]
    assert first == [point.point_id for point in best_points(session.plan, 10)]


def test_failed_points_are_told(tmp_path: Path) -> None:
    session = make_sweep(tmp_path)
    with_failure(session, 7)
    data = read(session)
    assert data.failed == [7]
    assert verdict(data).endswith("; 3 equal another, 1 failed.")
    assert data.metrics_of(7) == {}


def test_without_a_truth_the_quickest_is_best(tmp_path: Path) -> None:
    session, _ = run_sweep(write_sweep(tmp_path, axes={BLOCKS: [10, 40]}), tmp_path / "out")
    data = read(session)
    assert data.measure == LATENCY and not data.truths
    assert verdict(data).startswith("Of 2 points the quickest is num_gpu_blocks_override=40")


def test_nothing_to_rank_is_said(tmp_path: Path) -> None:
    session, _ = run_sweep(write_sweep(tmp_path), tmp_path / "out")
    with_failure(session, 0)
    assert verdict(read(session)) == "None of 1 point has a result to rank; 1 failed."


def test_wrong_folders_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"results\.parquet: got nothing, expected the results of a"
    ):
        read_sweep(tmp_path)
    (tmp_path / "results.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="expected a readable Parquet file"):
        read_sweep(tmp_path)


def test_a_sweep_is_found_by_its_file_or_folder(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, name="mine")
    assert find_sweep(path, tmp_path / "out") == tmp_path / "out" / "mine"
    assert find_sweep(tmp_path, tmp_path / "out") == tmp_path
    with pytest.raises(InputError, match="expected an existing file"):
        find_sweep(tmp_path / "no.yaml", tmp_path)


def test_distinct_values_and_short_names() -> None:
    assert distinct([3, 1, None, 1, 2.5]) == [1, 2.5, 3, None]
    assert distinct(["b", "a", "b"]) == ["b", "a"]
    assert distinct([True, False, True]) == [True, False]
    axes = ["engine.block_size", "tiers.cpu.capacity_gib", "tiers.cxl.capacity_gib"]
    short = ["block_size", "cpu.capacity_gib", "cxl.capacity_gib"]
    assert list(short_names(axes).values()) == short
    assert short_names(["a.size", "size"]) == {"a.size": "a.size", "size": "size"}


def test_axes_that_move_together_are_one(tmp_path: Path) -> None:
    zipped = [{BLOCKS: [10, 20, 40], "engine.max_num_seqs": [4, 6, 8]}]
    axes = {"engine.scheduler_reserve_full_isl": [True, False]}
    session, _ = run_sweep(write_sweep(tmp_path, axes=axes, zipped=zipped), tmp_path / "out")
    assert read(session).leading_axes == ["engine.scheduler_reserve_full_isl", BLOCKS]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "-"),
        (float("inf"), "-"),
        (0.0, "0"),
        (12.345678, "12.35"),
        (65457.3, "65457"),
        (0.45259, "0.453"),
    ],
)
def test_numbers_have_four_or_five_digits(value: float | None, said: str) -> None:
    assert number(value) == said
