"""Prefix storage outside the device: tiers, and how an engine is connected to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.core import state
from simulator.kv_transfer import NOT_KNOWN, Handover, connect, new_transfers
from simulator.prefix import BlockHashes
from simulator.records import one, records

if TYPE_CHECKING:
    from simulator.build import EngineSettings

# vLLM's names of the connectors that can be simulated.
CONNECTORS = {
    "LMCacheConnectorV1": state.LMCACHE,
    "OffloadingConnector": state.OFFLOADING,
}


@dataclass(frozen=True)
class TierSettings:
    """A storage tier with everything resolved.

    `bytes_per_token` counts all ranks: what a host keeps of a token. `bytes_per_ns` is the bandwidth of
    a link in one direction, for all ranks and all engines that use the tier.
    """

    capacity_bytes: int
    tokens_per_chunk: int
    bytes_per_token: int
    bytes_per_ns: float
    latency_ns: int
    name: str = "tier"
    shared: bool = False


def build_tier(tier: TierSettings | None, block_size: int, hashes: BlockHashes) -> state.Tier:
    """An empty tier; one that is not there has no capacity.

    Engines may share it if their block hashes are numbered as in `hashes` (`BlockHashes.of_requests`).
    """
    store = one(state.TIER_STORE)
    store.free_place = state.NONE
    store.bytes_per_ns = 1.0
    n = 0
    if tier is not None:
        # No more chunks than the workload has blocks for can ever be stored.
        most = max(1, len(hashes.ids) // (tier.tokens_per_chunk // block_size))
        n = min(most, tier.capacity_bytes // (tier.tokens_per_chunk * tier.bytes_per_token))
        store.bytes_per_ns = tier.bytes_per_ns
        store.latency_ns = tier.latency_ns
    store.capacity, store.head, store.tail = n, n, n + 1
    chunks = records(n + 2, state.TIER_CHUNK)
    chunks.block_hash = state.NONE
    chunks.next_pending = state.NONE
    chunks.next[n], chunks.prev[n + 1] = n + 1, n
    num_hashes = max(1, hashes.count) if n else 1
    return state.Tier(np.full(num_hashes, state.NONE, np.int32), chunks, store)


def build_storage(
    settings: EngineSettings,
    hashes: BlockHashes,
    num_requests: int,
    shared: Sequence[state.Tier | None] = (),
    between: Handover | None = None,
    instance: int = 0,
) -> state.Storage:
    """An engine's connection to its tiers; those in `shared` others use too, None is one of its own.

    `between`: what the instances of a cluster hand KV caches over with; this one is `instance`.
    """
    chosen = settings.tiers if settings.uses_tiers else ()
    connection = one(state.CONNECTION)
    offloads = settings.offloads
    lmcache = settings.connector == state.LMCACHE
    kv_ready_ns = NOT_KNOWN
    if settings.kv_transfer is not None:
        connect(connection, settings.kv_transfer, instance)
        kv_ready_ns = settings.kv_transfer.ready_ns
    if chosen:
        first = chosen[0]
        connection.tokens_per_chunk = first.tokens_per_chunk
        connection.blocks_per_chunk = first.tokens_per_chunk // settings.block_size
        connection.bytes_per_token = first.bytes_per_token
    given = [*shared, None, None]
    tiers = [
        between or build_tier(tier, settings.block_size, hashes)
        for tier, between in zip(chosen, given, strict=False)
    ]
    absent = build_tier(None, settings.block_size, hashes)
    near, far = [*tiers, absent, absent][:2]
    n = num_requests if offloads else 0
    transfers = new_transfers(n) if between is None else between.transfers
    links = records(1, state.KV_LINK) if between is None else between.links
    seats = settings.max_num_seqs if offloads else 0
    return state.Storage(
        near=near,
        far=far,
        use=records(2, state.TIER_USE),
        connection=connection,
        pinned=np.zeros(max(1, len(hashes.ids)) if lmcache else 1, np.int8),
        transfers=transfers,
        being_loaded=np.zeros(max(1, hashes.count) if offloads else 1, np.int8),
        loading=np.zeros(n + 1, np.int32),
        held=np.zeros(n + 1, np.int32),
        jobs=records(2 * seats + 1, state.STORE_JOB),
        flushed=np.zeros(seats + 1, np.int32),
        kv_links=links,
        kv_ready_ns=kv_ready_ns,
    )
