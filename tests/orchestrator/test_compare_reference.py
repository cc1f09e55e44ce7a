"""Known distances to recorded vLLM runs: they hold only if every definition is the intended one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from orchestrator.compare import Comparison, compare
from orchestrator.truth import Truth, TruthConfig, load_truth
from simulator import point_from_mapping, simulate
from tests.profiles.bundles import REFERENCE, needs_reference

pytestmark = needs_reference

MODEL = "Llama-3.1-8B"
LLMSERVINGSIM = {"null_block": False, "async_scheduling": False}
VLLM = {"null_block": True, "async_scheduling": True}


def folder(card: str) -> Path:
    return REFERENCE / "bench" / card / MODEL / "vllm"


@cache
def truth(card: str) -> Truth:
    return load_truth(TruthConfig(recorded=folder(card)), REFERENCE)


def replay(card: str, arrivals: str, engine: dict[str, Any]) -> Comparison:
    blocks, seats, memory = (2588, 256, 24) if card == "RTX4090" else (36578, 128, 96)
    point = {
        "model": {"hf_config": f"models/meta-llama/{MODEL}.json"},
        "card": {"name": card, "memory_gib": memory},
        "engine": {"num_gpu_blocks_override": blocks, "max_num_seqs": seats, **engine},
        "workload": {"jsonl": "workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl"},
        "profile": {"bundle": f"perf/{card}/meta-llama/{MODEL}/bf16"},
        "arrivals": arrivals,
        "recorded_run": str(folder(card)),
    }
    return compare(simulate(point_from_mapping(point, REFERENCE, "test")), truth(card))


@pytest.mark.parametrize(
    ("card", "arrivals", "engine", "mean_abs"),
    [
        ("RTX4090", "workload", LLMSERVINGSIM, 0.45),
        ("RTXPRO6000", "workload", LLMSERVINGSIM, 2.10),
        ("RTX4090", "recorded", LLMSERVINGSIM, 0.48),
        ("RTXPRO6000", "recorded", LLMSERVINGSIM, 2.10),
        ("RTX4090", "recorded", VLLM, 0.63),
        ("RTXPRO6000", "recorded", VLLM, 1.96),
    ],
)
def test_known_errors(card: str, arrivals: str, engine: dict[str, Any], mean_abs: float) -> None:
    comparison = replay(card, arrivals, engine)
    assert comparison.num_headline == 15
    assert comparison.mean_abs_pct == pytest.approx(mean_abs, abs=0.005)
    assert comparison.requests is not None
    assert (comparison.requests.matched, comparison.requests.matched_by) == (300, "position")
    assert comparison.series["running"]["mean_abs_pct"] < 5


@pytest.mark.parametrize(("engine", "median"), [(LLMSERVINGSIM, 6.5), (VLLM, 4.0)])
def test_known_error_of_a_single_request(engine: dict[str, Any], median: float) -> None:
    requests = replay("RTXPRO6000", "recorded", engine).requests
    assert requests is not None
    assert requests.errors["ttft_ms"]["median_abs_pct"] == pytest.approx(median, abs=0.05)


def test_recorded_settings_are_what_was_simulated() -> None:
    comparison = replay("RTX4090", "recorded", {**VLLM, "max_model_len": 32768})
    assert comparison.notes == ()
    assert comparison.blocks == (2588, 2588)
    other = replay("RTX4090", "recorded", {**VLLM, "num_gpu_blocks_override": 2700})
    assert other.notes[0].startswith("KV blocks differ: 2700 simulated, 2588 measured (+4.33 %)")


def test_older_recordings() -> None:
    older = truth("RTXPRO6000")
    assert older.num_gpu_blocks is None
    assert "kv_cache_usage" not in older.series
    assert len(older.notes) == 2
    assert set(replay("RTXPRO6000", "workload", VLLM).series) == {"running", "waiting"}
    two_ranks = REFERENCE / "bench/RTXPRO6000/Qwen3-30B-A3B-Instruct-2507/vllm"
    settings = load_truth(TruthConfig(recorded=two_ranks), REFERENCE).settings
    assert settings["data_parallel_size"] == 2
