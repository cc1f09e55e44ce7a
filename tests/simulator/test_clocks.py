"""Whole runs on measured cards against LLMServingSim's printed clocks (reference data)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profiles.errors import InputError
from profiles.llmservingsim import load_bundle
from profiles.recorded import load_recorded_run
from simulator import Point, Result, point_from_mapping, simulate
from simulator.core.jit import JIT
from simulator.simulation import prepare
from tests.profiles.bundles import REFERENCE, needs_reference

pytestmark = [
    needs_reference,
    pytest.mark.skipif(not JIT, reason="takes minutes uncompiled; test_determinism compares both"),
]

MODEL = "meta-llama/Llama-3.1-8B"
WORKLOAD = REFERENCE / "workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl"


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binary copies stay in the test's folder."""
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "store"))


def card_point(card: str, **sections: Any) -> Point:
    """The point behind a printed clock: synchronous, every block handed out, no overheads."""
    memory, engine = {
        "RTX4090": (24, {"gpu_memory_utilization": 0.833919, "max_num_seqs": 256}),
        "RTXPRO6000": (96, {"gpu_memory_utilization": 0.9, "max_num_seqs": 128}),
    }[card]
    data = {
        "model": {"hf_config": str(REFERENCE / f"models/{MODEL}.json"), "name": MODEL},
        "card": {"name": card, "memory_gib": memory},
        "workload": {"jsonl": str(WORKLOAD)},
        "profile": {"bundles": str(REFERENCE / "perf")},
        **sections,
        "engine": {
            **engine,
            "max_model_len": 32768,
            "null_block": False,
            "async_scheduling": False,
            **sections.get("engine", {}),
        },
    }
    return point_from_mapping(data, Path(), "point")


def recorded_run(card: str) -> str:
    return str(REFERENCE / f"bench/{card}/Llama-3.1-8B/vllm")


@pytest.mark.parametrize(
    ("card", "blocks", "steps", "preemptions", "hit_tokens", "end_ns"),
    [
        ("RTX4090", 2588, 6137, 194, 63_600, 183_706_634_969),
        ("RTXPRO6000", 36578, 2406, 0, 19_520, 64_679_407_283),
    ],
)
def test_printed_clocks(
    card: str, blocks: int, steps: int, preemptions: int, hit_tokens: int, end_ns: int
) -> None:
    summary = simulate(card_point(card)).summary
    assert summary["kv"]["num_gpu_blocks"] == summary["kv"]["usable_blocks"] == blocks
    assert summary["steps"] == steps
    assert summary["preemptions"] == preemptions
    assert summary["prefix_cache"]["hit_tokens_all_admissions"] == hit_tokens
    assert summary["end_ns"] == pytest.approx(end_ns, rel=1e-5)
    assert summary["requests"]["finished"] == 300
    assert summary["requests"]["refused"] == 0


def test_null_block_moves_the_clock_slightly() -> None:
    with_null = simulate(card_point("RTX4090", engine={"null_block": True})).summary
    assert with_null["kv"]["num_gpu_blocks"] == 2588
    assert with_null["kv"]["usable_blocks"] == 2587
    assert with_null["end_ns"] != simulate(card_point("RTX4090")).summary["end_ns"]
    assert with_null["end_ns"] == pytest.approx(183_706_634_969, rel=1e-2)


def test_a_pool_that_never_reuses_a_block_gives_the_same_when_it_is_larger() -> None:
    point = {"num_gpu_blocks_override": 60_000}
    first, second = (
        simulate(card_point("RTXPRO6000", engine={**point, "num_gpu_blocks_override": blocks}))
        for blocks in (60_000, 80_000)
    )
    assert first.summary["kv"]["capacity_inert"]
    assert first.requests.equals(second.requests)
    assert not simulate(card_point("RTX4090")).summary["kv"]["capacity_inert"]


def mean_ttft(result: Result) -> float:
    return result.summary["latency"]["ttft_ms"]["mean"]


class TestExecutionModes:
    """Arrivals as recorded; modes and capture sizes of the recorded engine where they are known."""

    @pytest.fixture(params=["RTX4090", "RTXPRO6000"])
    def card(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def run(self, card: str, **overhead: Any) -> Result:
        return simulate(
            card_point(
                card,
                arrivals="recorded",
                recorded_run=recorded_run(card),
                overhead={"from_recorded_run": card == "RTX4090", **overhead},
                engine={"null_block": True, "async_scheduling": card != "RTX4090"},
            )
        )

    def test_no_overhead_is_the_plain_clock(self, card: str) -> None:
        """The recorded engine scheduled asynchronously, whatever the point says."""
        found = self.run(card)
        plain = simulate(
            card_point(
                card,
                arrivals="recorded",
                recorded_run=recorded_run(card),
                engine={"null_block": True, "async_scheduling": True},
            )
        )
        assert found.summary["engine"]["async_scheduling"] is True
        assert found.requests.equals(plain.requests)
        assert found.summary["end_ns"] == plain.summary["end_ns"]

    @pytest.mark.parametrize(
        ("overhead", "direction"),
        [
            ({"full_graph_ms": -0.3}, -1),
            ({"piecewise_ms": 4.0}, 1),
            ({"no_graph_ms": 4.0}, 1),
            ({"full_graph_ms": -0.3, "piecewise_ms": 4.0, "no_graph_ms": 4.0}, 0),
            # Either way: some measured layers run more tokens in less time.
            ({"pad_to_capture_size": True}, 0),
        ],
        ids=str,
    )
    def test_they_move_the_clock(self, card: str, overhead: dict[str, Any], direction: int) -> None:
        before, after = self.run(card), self.run(card, **overhead)
        moved = after.summary["latency"]["latency_ms"]["mean"]
        moved -= before.summary["latency"]["latency_ms"]["mean"]
        assert moved != 0
        if direction:
            assert (moved > 0) == (direction > 0)
        # A correction of a step is small against the step.
        assert after.summary["end_ns"] == pytest.approx(before.summary["end_ns"], rel=0.05)

    def test_host_time_hides_behind_the_device(self, card: str) -> None:
        """0.4 ms are less than any step; added to each they would be half a second and more."""
        before, after = self.run(card), self.run(card, host_ms_per_step=0.4)
        assert after.summary["end_ns"] == pytest.approx(before.summary["end_ns"], abs=1e8)

    def test_asynchronous_preemptions_of_the_reference_card(self) -> None:
        summary = self.run("RTX4090").summary
        assert summary["kv"]["usable_blocks"] == 2587
        assert summary["preemptions"] == 180


class TestRecordedArrivals:
    def test_are_used(self) -> None:
        recorded = recorded_run("RTX4090")
        point = card_point("RTX4090", arrivals="recorded", recorded_run=recorded)
        result = simulate(point)
        queued_ns = load_recorded_run(Path(recorded)).begin_ns()
        arrival_ns = result.requests["arrival_ns"].to_numpy()
        workload_ns = prepare(point).workload.arrival_ns
        assert (arrival_ns == queued_ns + workload_ns.min()).all()
        assert 0 < np.abs(arrival_ns - workload_ns).max() < 200_000_000
        assert result.summary["arrivals"] == "recorded"

    def test_of_another_workload_are_refused(self) -> None:
        point = card_point(
            "RTX4090",
            arrivals="recorded",
            recorded_run=recorded_run("RTX4090"),
            workload={"jsonl": str(REFERENCE / "workloads/sharegpt-qwen3-30b-a3b-300-sps10.jsonl")},
        )
        with pytest.raises(InputError, match=r"requests.jsonl, line \d+: (in|out)put_toks: got"):
            prepare(point)

    def test_of_more_requests_are_refused(self) -> None:
        point = card_point(
            "RTX4090",
            arrivals="recorded",
            recorded_run=recorded_run("RTX4090"),
            workload={"jsonl": str(WORKLOAD), "limit": 299},
        )
        with pytest.raises(InputError, match=r"requests: got 300, expected the workload's 299"):
            prepare(point)

    def test_mode_of_a_recording_without_configuration_is_refused(self) -> None:
        old = recorded_run("RTXPRO6000")
        assert load_recorded_run(Path(old)).resolved is None
        point = card_point("RTXPRO6000", recorded_run=old, overhead={"from_recorded_run": True})
        with pytest.raises(InputError, match=r"meta\.json: resolved_config: got nothing|None"):
            prepare(point)


def test_lookups_outside_the_measured_grid_are_reported(tmp_path: Path) -> None:
    """A prompt of 40,000 tokens: its last chunk of 2048 follows 38,912 others."""
    workload = tmp_path / "long.jsonl"
    workload.write_text('{"input_toks": 40000, "output_toks": 2, "arrival_time_ns": 0}\n')
    point = card_point(
        "RTXPRO6000",
        workload={"jsonl": str(workload)},
        engine={"max_model_len": 60000},
    )
    result = simulate(point, steps=True)
    assert result.summary["requests"]["finished"] == 1
    found = result.summary["outside_measured_grid"]["attention/kv_prefill"]
    history = result.steps["kv_prefill"].to_numpy()
    grid = load_bundle(REFERENCE / f"perf/RTXPRO6000/{MODEL}/bf16").attention
    last = int(grid.kv_prefill.max())
    assert found["last_sample"] <= last < found["highest"]
    assert found["highest"] == history.max() == 2048 * 19
    assert found["above"] >= (history > last).sum() > 0
    assert (
        simulate(card_point("RTX4090"))
        .summary["outside_measured_grid"]
        .get("attention/kv_prefill", {})
        .get("highest", 0)
        < found["highest"]
    )
