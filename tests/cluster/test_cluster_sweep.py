"""Clusters as points of a sweep: on an axis, through Ray, with ids of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orchestrator.sweep_make import TRUTH, rows, run_sweep, write_sweep

ONE = {"instances": [{"count": 1}]}
TWO = {"instances": [{"count": 2}], "routing": {"policy": "round_robin"}}
LEAST = {"instances": [{"count": 2}], "routing": {"policy": "least_loaded"}}
UNEQUAL = {"instances": [{"count": 1}, {"count": 1, "engine": {"max_num_seqs": 2}}]}


@pytest.mark.parametrize("serial", [True, False])
def test_clusters_on_an_axis(tmp_path: Path, serial: bool) -> None:
    path = write_sweep(tmp_path, axes={"cluster": [ONE, TWO, LEAST, UNEQUAL]}, truth=TRUTH)
    session, watch = run_sweep(path, tmp_path / "out", serial=serial)
    table = rows(session)
    assert [row["status"] for row in table] == ["finished"] * 4
    assert len({row["run_id"] for row in table}) == len(watch.outcomes) == 4
    assert [row["kv/blocks"] for row in table] == [table[0]["kv/blocks"] * n for n in (1, 2, 2, 2)]
    assert table[1]["latency_ms/mean"] < table[0]["latency_ms/mean"]
    again, _ = run_sweep(path, tmp_path / "again")
    assert rows(again) == table
