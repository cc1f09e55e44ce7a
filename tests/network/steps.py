"""Small steps for tests: two blocks with experts, over stages and replicas."""

from __future__ import annotations

from typing import Any

from profiles.model import ModelConfig
from simulator.network.config import NetworkConfig
from simulator.network.experts import Backend, ExpertRanks
from simulator.network.rank_trace import Axes, axes_of, rows_trace
from simulator.network.step_trace import LayerShapes, Row, step_rows
from simulator.network.trace import Trace
from simulator.step_layers import LayerTime, StepSize
from tests.network.make import dimension, make_network

MOE = ModelConfig(
    name="test/experts",
    model_type="mixtral",
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=100,
    torch_dtype="bfloat16",
    max_position_embeddings=512,
    num_experts=8,
    num_experts_per_tok=2,
)
LAYERS = (
    ("embedding", -1),
    *((name, block) for block in (0, 1) for name in ("layernorm", "attention", "o_proj", "moe")),
    ("sampler", -1),
)


def size(num_tokens: int = 10) -> StepSize:
    return StepSize(
        step=0,
        num_tokens=num_tokens,
        num_requests=3,
        prefill_tokens=8,
        num_decodes=2,
        kv_prefill=16,
        kv_decode=100,
        load_ns=0,
        device_ns=0,
    )


def links(*ranks: int) -> NetworkConfig:
    """As LLMServingSim makes of a cluster: each dimension slower than the one before."""
    dims = [
        dimension(n, "FullyConnected", bandwidth_gibps=64.0 / 4**i, latency_ns=500.0 * 4**i)
        for i, n in enumerate(ranks)
    ]
    return make_network(*dims, remote_memory={"bandwidth_gbps": 1.0, "latency_ns": 30})


def replica_rows(
    tensor: int,
    stages: int = 1,
    replicas: int = 1,
    backend: Backend = "allgather_reducescatter",
    model_type: str = "mixtral",
    slower_ns: int = 0,
) -> list[Row]:
    """`slower_ns`: what attention takes longer than elsewhere."""
    layers = [
        LayerTime(name, block, 1000 + 100 * i + slower_ns * (name == "attention"))
        for i, (name, block) in enumerate(LAYERS)
    ]
    model = MOE.model_copy(update={"model_type": model_type})
    shapes = LayerShapes(model, tensor, 2, 2, 2, replicas * tensor)
    return step_rows(
        layers,
        size(),
        shapes,
        modelled=tensor > 1,
        first_blocks=(0, 1)[:stages],
        experts=ExpertRanks(replicas, tensor, backend),
        share=10,
    )


def step(
    tensor: int, stages: int = 1, replicas: int = 1, host: bool = False, **rows: Any
) -> tuple[Trace, NetworkConfig, Axes, list[list[Row]]]:
    """Replicas after the first have a longer attention."""
    network = links(*(n for n in (tensor, stages, replicas) if n > 1))
    axes = axes_of(network, tensor, stages, replicas, "point.yaml")
    given = [
        replica_rows(tensor, stages, replicas, slower_ns=70 * replica, **rows)
        for replica in range(replicas)
    ]
    return rows_trace(given, network, axes, host=host), network, axes, given
