"""Memory placement on the axes of a sweep."""

from __future__ import annotations

from pathlib import Path

from tests.orchestrator.sweep_make import TRUTH, base, rows, run_sweep, write_sweep

MEMORY = {"bandwidth_gbps": 0.5, "latency_ns": 100, "capacity_gib": 1.0}


def test_placement_on_axes(tmp_path: Path) -> None:
    """Each is a run of its own, but for weights on the device, whose memory's speed is nothing."""
    axes = {
        "placement.weights": ["device", "cpu"],
        "placement.memories.cpu.bandwidth_gbps": [0.5, 5.0],
    }
    path = write_sweep(
        tmp_path, axes=axes, base=base() | {"placement": {"memories": {"cpu": MEMORY}}}, truth=TRUTH
    )
    session, _ = run_sweep(path, tmp_path / "out")
    table = rows(session)
    assert [row["status"] for row in table].count("finished") >= 3
    assert len({row["run_id"] for row in table}) == 3
    device, same, slow, fast = (row["latency_ms/mean"] for row in table)
    assert device == same < fast < slow
