"""What the links between a model's ranks add to a step, as tables by tokens."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from profiles.architecture import ALL_REDUCE
from profiles.bundle import Bundle, LayerTable
from profiles.errors import InputError
from profiles.provenance import DERIVED, all_of
from profiles.routing import Routing, expert_block_ns
from simulator.config import EngineConfig, PackagedTables, Point
from simulator.network.collectives import Ints, message_ns
from simulator.network.config import NetworkConfig
from simulator.network.cost import collective_ns, collective_table
from simulator.network.experts import GATHERED, Axis, Exchange, ExpertRanks
from simulator.network.links import DATA, PIPELINE, TENSOR
from simulator.parallel import stage_layers
from simulator.step_tables import ONE_STAGE, Stages

DIMENSIONS: dict[Axis, int] = {"tensor": TENSOR, "pipeline": PIPELINE, "data": DATA}


def network_of(point: Point, source: str | Path, replicas: int = 1) -> NetworkConfig:
    """The network of one instance, or of a group of `replicas`. The point has links."""
    assert point.links is not None
    engine = point.engine
    ranks = (engine.tensor_parallel_size, engine.pipeline_parallel_size, replicas)
    return point.links.network(ranks, point.card.memory_bandwidth_gbps, source)


def with_all_reduce(bundle: Bundle, point: Point, source: str | Path) -> Bundle:
    """The bundle with the modelled all-reduce of hidden states among its dense layers."""
    network, most = network_of(point, source), point.engine.max_num_batched_tokens
    assert point.links is not None
    embedding = point.links.embedding_all_reduce
    return _with_all_reduce(bundle, network, hidden_bytes(point), most, embedding)


def hidden_bytes(point: Point) -> int:
    """Of one token's hidden state."""
    return point.model.hidden_size * point.model.bytes_per_element(point.engine.dtype)


@lru_cache(maxsize=16)
def _with_all_reduce(
    bundle: Bundle, network: NetworkConfig, token_bytes: int, max_num_tokens: int, embedding: bool
) -> Bundle:
    ns = collective_table(network, "all_reduce", token_bytes, max_num_tokens, (TENSOR,))[1:]
    tokens = np.arange(1, max_num_tokens + 1, dtype=np.int64)
    table = LayerTable(tokens, ns, all_of(DERIVED, tokens))
    total = hashlib.sha256(f"{bundle.content_id} {embedding}".encode() + ns.tobytes())
    return replace(
        bundle,
        content_id=total.hexdigest(),
        architecture=bundle.architecture.with_all_reduce(embedding),
        dense={**bundle.dense, ALL_REDUCE: table},
    )


def shared_experts(
    bundle: Bundle, point: Point, routing: Routing, replicas: int, source: str | Path
) -> tuple[int, ...]:
    """By tokens of all replicas: a block's experts on the slowest rank.

    Raises InputError if the bundle has no expert table over awake experts.
    """
    if bundle.moe is None:
        expected = "false, or tables with moe.csv: experts measured over tokens and experts awake"
        raise InputError(source, "engine.enable_expert_parallel", True, expected)
    return _experts_by_tokens(bundle, routing, replicas * point.engine.max_num_batched_tokens)


@lru_cache(maxsize=16)
def _experts_by_tokens(bundle: Bundle, routing: Routing, most: int) -> tuple[int, ...]:
    assert bundle.moe is not None
    return tuple(expert_block_ns(bundle.moe, routing, np.arange(most + 1, dtype=np.int64)).tolist())


def expert_exchange(point: Point, replicas: int, source: str | Path) -> tuple[int, ...]:
    """By the tokens of each of `replicas`: what they exchange around a block's experts.

    Among replicas NCCL as measured where `profile.expert_exchange` names a card, else the links; among
    a replica's ranks alone the links. Raises InputError.
    """
    engine, measured = point.engine, point.profile.expert_exchange
    if point.links is None and (measured is None or engine.tensor_parallel_size > 1):
        expected = "the links between replicas that share experts, or profile.expert_exchange"
        raise InputError(source, "links", None, expected)
    if measured is not None and engine.all2all_backend != GATHERED:
        expected = f"{GATHERED}, or no profile.expert_exchange: NCCL's collectives were measured"
        raise InputError(source, "engine.all2all_backend", engine.all2all_backend, expected)
    shares = np.arange(engine.max_num_batched_tokens + 1, dtype=np.int64)
    ranks = ExpertRanks(replicas, engine.tensor_parallel_size, engine.all2all_backend)
    element_bytes = point.model.bytes_per_element(engine.dtype)
    before, after = ranks.around(point.model, element_bytes, shares)
    ns = np.zeros_like(shares)
    for exchange in (*before, *after):
        if measured is not None and "data" in exchange.over:
            ns += _measured_ns(exchange, ranks, measured, source)
        else:
            dims = tuple(DIMENSIONS[axis] for axis in exchange.over)
            network = network_of(point, source, replicas)
            ns += collective_ns(network, exchange.kind, exchange.num_bytes, dims)
    return tuple(ns.tolist())


def _measured_ns(
    exchange: Exchange[Ints], ranks: ExpertRanks, tables: PackagedTables, source: str | Path
) -> Ints:
    """An all-gather or reduce-scatter as NCCL did it. Raises InputError."""
    from profiles.aiconfigurator.collectives import nccl_ns
    from profiles.aiconfigurator.source import Place, find_system

    system = find_system(tables.system, tables.version, Place(source, "profile.expert_exchange"))
    count = ranks.replicas * (ranks.tensor if "tensor" in exchange.over else 1)
    # NCCL's benchmarks count what all have gathered.
    if exchange.kind == "all_gather":
        return nccl_ns(system, "all_gather", count, count * exchange.num_bytes)
    return nccl_ns(system, "reduce_scatter", count, exchange.num_bytes)


def stages_of(point: Point, source: str | Path) -> Stages:
    """The pipeline stages, and how long a batch's hidden states travel from one to the next."""
    engine = point.engine
    if engine.pipeline_parallel_size == 1:
        return ONE_STAGE
    network = network_of(point, source)
    layers = _stage_sizes(point.model.num_hidden_layers, engine)
    return Stages(layers, _send_ns(network, hidden_bytes(point), engine.max_num_batched_tokens))


def _stage_sizes(num_layers: int, engine: EngineConfig) -> tuple[int, ...]:
    return tuple(
        end - first for first, end in stage_layers(num_layers, engine.pipeline_parallel_size)
    )


@lru_cache(maxsize=16)
def _send_ns(network: NetworkConfig, token_bytes: int, max_num_tokens: int) -> tuple[int, ...]:
    sizes = np.arange(max_num_tokens + 1, dtype=np.int64) * token_bytes
    return tuple(message_ns(network.dimensions[PIPELINE], 1, sizes).tolist())
