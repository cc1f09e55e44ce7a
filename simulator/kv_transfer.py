"""Hands KV caches from prefill to decode instances: settings, and what the core's records need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.bundle import Bundle, Ints
from simulator.core import state
from simulator.records import records
from simulator.step_tables import layers_ns

NOT_KNOWN = np.zeros((2, 1), np.int64)


@dataclass(frozen=True, eq=False)
class KVTransferSettings:
    """One instance's part, resolved."""

    role: int
    """state.KV_PRODUCER or state.KV_CONSUMER."""
    by_layer: bool
    bytes_per_token: int
    """Of all ranks and layers; by layer: of one layer."""
    num_layers: int
    bytes_per_ns: float
    latency_ns: int
    num_shards: int
    """Ranks that hold different parts of the KV cache, each with a link of its own."""
    send_links: int
    """By layer: links that a layer is sent over."""
    ready_ns: NDArray[np.int64]
    """[before, after] a block's attention, by tokens: see `ready_ns`."""


class Handover(NamedTuple):
    """What the instances of a cluster share."""

    transfers: state.Records  # TRANSFER[n]
    links: state.Records  # KV_LINK[instances]


def new_handover(settings: Sequence[KVTransferSettings | None], num_requests: int) -> Handover:
    """Nothing on the links; no request computed anywhere."""
    links = records(len(settings), state.KV_LINK)
    links.num_shards = [1 if one is None else one.num_shards for one in settings]
    return Handover(new_transfers(num_requests), links)


def new_transfers(num_requests: int) -> state.Records:
    transfers = records(max(1, num_requests), state.TRANSFER)
    transfers.first_pending = state.NONE
    transfers.store_end_ns = state.NEVER
    transfers.prefill_instance = state.NONE
    return transfers


def connect(connection: state.Record, settings: KVTransferSettings, instance: int) -> None:
    connection.kv_role = settings.role
    connection.by_layer = settings.by_layer
    connection.instance = instance
    connection.kv_bytes_per_token = settings.bytes_per_token
    connection.kv_send_links = settings.send_links
    connection.kv_layers = settings.num_layers
    connection.kv_bytes_per_ns = settings.bytes_per_ns
    connection.kv_latency_ns = settings.latency_ns


def ready_ns(bundle: Bundle | None, tokens: Ints) -> NDArray[np.int64]:
    """[before, after] x tokens, ns: the dense layers before the first block's attention ends, and those
    after the last one's. Without tables of layers it is not known ([2, 1])."""
    if bundle is None or bundle.architecture.is_whole_step:
        return NOT_KNOWN
    order = bundle.architecture
    before = (*order.prologue, *order.pre_attn)
    after = (*order.post_attn, *order.mlp_dense, *order.mlp_moe, *order.head)
    sums = [layers_ns(bundle.dense, part, (), 0, tokens).sum(axis=1) for part in (before, after)]
    return np.ascontiguousarray(np.stack(sums))
