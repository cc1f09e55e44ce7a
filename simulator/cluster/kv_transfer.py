"""Prefill and decode instances: what each does to hand a KV cache over, and what they cannot do yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from profiles.errors import InputError
from simulator.cluster.config import ClusterConfig, InstanceConfig
from simulator.core import state
from simulator.kv_transfer import NOT_KNOWN, KVTransferSettings, ready_ns
from simulator.profile_tables import element_types
from simulator.simulation import Prepared, point_bundle


def kv_transfer_settings(
    config: ClusterConfig, place: int, part: Prepared, source: str
) -> KVTransferSettings:
    """Of an instance of `config.instances[place]`, which errors call `source`. Raises InputError."""
    transfer = config.kv_transfer
    assert transfer is not None  # the configuration demands it
    point = part.point
    model, engine = point.model, point.engine
    by_layer = transfer.connector == "P2pNcclConnector"
    role = config.instances[place].role
    producer = role == "prefill"
    if engine.is_infinilm:
        raise InputError(source, "engine.engine", engine.engine, f"vllm, because role is {role}")
    if config.instances[place].data_parallel_group is not None:
        group = config.instances[place].data_parallel_group
        expected = f"none: replicas that step together do not hand over yet (role {role})"
        raise InputError(source, "data_parallel_group", group, expected)
    if by_layer and producer and engine.pipeline_parallel_size > 1:
        expected = "1, because kv_transfer.connector is P2pNcclConnector"
        stages = engine.pipeline_parallel_size
        raise InputError(source, "engine.pipeline_parallel_size", stages, expected)
    if point.prefix_storage != "none":
        expected = f"none, because an instance has role {role}"
        raise InputError(source, "prefix_storage", point.prefix_storage, expected)
    _, kv_dtype = element_types(point)
    # KV heads that several ranks hold are moved once.
    shards = min(engine.tensor_parallel_size, model.num_key_value_heads)
    ready = NOT_KNOWN
    if by_layer and producer:
        tokens = np.asarray(part.latency.padded_tokens, np.int64)
        ready = ready_ns(point_bundle(point, source), tokens)
    return KVTransferSettings(
        role=state.KV_PRODUCER if producer else state.KV_CONSUMER,
        by_layer=by_layer,
        bytes_per_token=model.kv_bytes_per_token(kv_dtype, num_layers=1 if by_layer else None),
        num_layers=model.num_hidden_layers,
        bytes_per_ns=transfer.bandwidth_gibps * 2**30 / 1e9,
        latency_ns=round(transfer.latency_ns),
        num_shards=shards * engine.pipeline_parallel_size,
        send_links=shards,
        ready_ns=ready,
    )


def over_links_of_both(
    parts: Sequence[KVTransferSettings | None],
) -> list[KVTransferSettings | None]:
    """What is sent goes over as many links as the decode instance with the fewest has."""
    fewest = [part.send_links for part in parts if part and part.role == state.KV_CONSUMER]
    return [part and replace(part, send_links=min([part.send_links, *fewest])) for part in parts]


def check_kv_transfer(
    configs: Sequence[InstanceConfig], instances: Sequence[Prepared], source: str | Path
) -> None:
    """What is handed over is stored in one way. Raises InputError."""
    apart = [
        (number, element_types(part.point)[1])
        for number, (one, part) in enumerate(zip(configs, instances, strict=True))
        if one.role != "both"
    ]
    for number, dtype in apart[1:]:
        if dtype != apart[0][1]:
            expected = (
                f"{apart[0][1]}, as instance {apart[0][0]}: KV caches are handed over as they are"
            )
            where = f"cluster: instance {number}: engine.kv_cache_dtype"
            raise InputError(source, where, dtype, expected)
