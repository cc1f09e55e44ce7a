"""The short cut of core/stride.py changes nothing: runs end in equal bytes with and without it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.nightly.scenarios import Scenario, latency_of, settings_of
from simulator.build import build_engine
from simulator.core import state
from simulator.prefix import block_hashes
from simulator.progress import run_to_end
from tests.oracle.check import scenarios_below

HERE = Path(__file__).parent
SCENARIOS = scenarios_below(HERE / "recordings") + scenarios_below(
    HERE.parents[2] / "shared" / "reference" / "vllm-oracle"
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: f"{s.folder.name}-{s.mode}")
def test_stride_changes_nothing(scenario: Scenario) -> None:
    assert final_state(scenario, stride=True) == final_state(scenario, stride=False)


def final_state(scenario: Scenario, *, stride: bool) -> dict[str, Any]:
    """Everything a run leaves behind, but for what only the short cut uses."""
    config, workload = scenario.config, scenario.workload
    settings = dataclasses.replace(settings_of(config), log_events=False, stride=stride)
    hashes = block_hashes(workload, settings.block_size)
    engine, _ = build_engine(workload, hashes, settings, latency_of(config))
    engine = run_to_end(engine, workload)
    counters = engine.queues.counters[0]
    intervals = engine.log.intervals[: engine.log.sizes[0].num_intervals]
    lengths, place = np.unique(intervals.ns, return_inverse=True)
    counts = np.bincount(place, weights=intervals["count"], minlength=len(lengths))
    fields = [name for name in state.REQUEST.names or () if name != "stride_from"]
    return {
        "steps": engine.log.steps[: counters.num_steps].tobytes(),
        "infos": engine.kv.infos.tobytes(),
        "requests": {name: engine.kv.requests[name].tolist() for name in fields},
        "blocks": engine.kv.blocks.tobytes(),
        "pool": engine.kv.pool.tobytes(),
        "intervals": {int(ns): int(n) for ns, n in zip(lengths, counts, strict=True) if n},
        "end_ns": int(counters.now_ns),
        "generated": int(counters.num_generated_tokens),
    }
