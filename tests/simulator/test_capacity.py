"""KV blocks of a card, and the CUDA graph modes of an engine."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.card import Card
from profiles.errors import InputError
from profiles.model import Shard
from simulator.capacity import Capacity, resolve_capacity
from simulator.config import EngineConfig, Overhead
from simulator.overhead import default_capture_sizes, resolve_overhead
from simulator.step_tables import ModeTimes
from tests.profiles.models import LLAMA_8B, MIXTRAL
from tests.simulator.point import NOTHING, make_point


def capacity(memory_gib: float, card: dict[str, Any] | None = None, **engine: Any) -> Capacity:
    given = Card.model_validate({"name": "card", "memory_gib": memory_gib, **(card or {})})
    return resolve_capacity(LLAMA_8B, given, EngineConfig(**engine), "point")


@pytest.mark.parametrize(
    ("memory_gib", "utilization", "blocks"), [(24, 0.833919, 2588), (96, 0.9, 36578)]
)
def test_recorded_engines(memory_gib: float, utilization: float, blocks: int) -> None:
    assert capacity(memory_gib, gpu_memory_utilization=utilization).num_gpu_blocks == blocks


def test_bytes_add_up() -> None:
    found = capacity(24)
    assert found.block_bytes == 16 * 2 * 8 * 128 * 32 * 2
    assert found.weight_bytes == 8_030_261_248 * 2
    assert found.kv_bytes == int(24 * 2**30 * 0.9) - found.weight_bytes
    assert found.num_gpu_blocks == found.kv_bytes // found.block_bytes
    assert not found.overridden


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_a_rank_has_its_share(ranks: int) -> None:
    """KV heads are repeated from 16 ranks on, with their weights; norms are on every rank."""
    found = capacity(24, tensor_parallel_size=ranks)
    kv_heads = max(1, 8 // ranks)
    assert found.block_bytes == 16 * 2 * kv_heads * 128 * 32 * 2
    attention = 4096 * (2 * 4096 // ranks + 2 * kv_heads * 128)
    block = attention + 3 * 4096 * 14336 // ranks + 2 * 4096
    vocabulary = 2 * 128256 * 4096 // ranks
    assert found.weight_bytes == 2 * (32 * block + vocabulary + 4096)


def test_quantized_matrices_take_one_byte() -> None:
    """Embedding, head and norms keep two."""
    found = capacity(24, quantization="fp8", tensor_parallel_size=2)
    matrices = 32 * (4096 * (2048 + 1024) + 2048 * 4096 + 3 * 4096 * 7168)
    assert found.weight_bytes == capacity(24, tensor_parallel_size=2).weight_bytes - matrices


def test_experts_are_shared_and_routers_are_not() -> None:
    whole, half = MIXTRAL.num_parameters, MIXTRAL.parameters_of(Shard(tensor_parallel=2))
    on_every_rank = 32 * (8 * 4096 + 2 * 4096) + 4096  # routers and norms
    assert half == (whole - on_every_rank) // 2 + on_every_rank


def test_larger_blocks_are_fewer() -> None:
    assert capacity(24, block_size=32).num_gpu_blocks == capacity(24).num_gpu_blocks // 2


def test_kv_of_one_byte_makes_twice_as_many() -> None:
    found = capacity(24, kv_cache_dtype="fp8")
    assert found.block_bytes * 2 == capacity(24).block_bytes
    assert found.weight_bytes == capacity(24).weight_bytes


def test_dtype_is_of_weights_and_kv() -> None:
    found = capacity(96, dtype="float32")
    assert found.weight_bytes == 2 * capacity(96).weight_bytes
    assert found.block_bytes == 2 * capacity(96).block_bytes


def test_what_the_card_cannot_use_is_left_out() -> None:
    taken = {"activation_peak_bytes": 2**30, "context_bytes": 2**29}
    found = capacity(24, taken)
    assert capacity(24).kv_bytes - found.kv_bytes == 2**30 + 2**29


def test_override_counts_and_memory_does_not() -> None:
    found = capacity(1, num_gpu_blocks_override=100)
    assert (found.num_gpu_blocks, found.overridden) == (100, True)
    assert found.kv_bytes == 100 * found.block_bytes


def test_capture_sizes_as_vllm_chooses_them() -> None:
    assert default_capture_sizes(256) == (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
    assert default_capture_sizes(1024) == default_capture_sizes(256)
    assert default_capture_sizes(4) == (1, 2, 4, 8)
    assert default_capture_sizes(1) == (1, 2)


@pytest.mark.parametrize(
    ("mode", "decodes", "others"),
    [
        ("PIECEWISE", 2, 2),
        ("FULL_DECODE_ONLY", 1, 3),
        ("FULL_AND_PIECEWISE", 1, 2),
    ],
)
def test_each_mode_has_its_time(mode: str, decodes: int, others: int) -> None:
    overhead = Overhead.model_validate(
        {
            "cudagraph_mode": mode,
            "full_graph_ms": 1,
            "piecewise_ms": 2,
            "no_graph_ms": 3,
            "cudagraph_capture_sizes": (1, 2),
        }
    )
    found = resolve_overhead(overhead, EngineConfig(), None)
    assert found.mode_ns == ModeTimes(decodes * 10**6, others * 10**6, 3 * 10**6)
    assert found.capture_sizes == (1, 2)


def test_without_graphs_every_step_has_one_time() -> None:
    overhead = Overhead(cudagraph_mode="NONE", full_graph_ms=1, piecewise_ms=2, no_graph_ms=3)
    found = resolve_overhead(overhead, EngineConfig(), None)
    assert set(found.mode_ns) == {3 * 10**6}
    assert found.capture_sizes == ()


def test_nothing_by_default() -> None:
    found = resolve_overhead(Overhead(), EngineConfig(), None)
    assert found.mode_ns == ModeTimes()
    assert found.host_ns_per_step == found.host_ns_per_request == 0
    assert found.async_scheduling is True


def test_host_time_in_ns() -> None:
    overhead = Overhead(host_ms_per_step=0.4, host_ms_per_request=0.0000015)
    found = resolve_overhead(overhead, EngineConfig(async_scheduling=False), None)
    assert (found.host_ns_per_step, found.host_ns_per_request) == (400_000, 2)
    assert found.async_scheduling is False


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"card__memory_gib": 1e5}, "card.memory_bytes"),
        (
            {
                "placement": {
                    "memories": {"cpu": {"bandwidth_gbps": 1.0, "capacity_gib": 1e6}},
                    "kv_cache": "cpu",
                }
            },
            "placement.memories.cpu.capacity_gib",
        ),
    ],
)
def test_more_blocks_than_a_pool_can_have(changes: dict[str, Any], field: str) -> None:
    point = make_point(engine__num_gpu_blocks_override=NOTHING, **changes)
    with pytest.raises(
        InputError, match=rf"{field}: got .*, expected room for at most 100000000 KV"
    ):
        resolve_capacity(point.model, point.card, point.engine, "p", placement=point.moved)
