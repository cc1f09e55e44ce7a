"""What must hold between steps, whatever the configuration.

Checked in tests after every step, and in a run with `check_invariants: true`. The engine must run
without the short cut of core/stride.py, which leaves counters standing between steps.
"""

from __future__ import annotations

import numpy as np

from simulator.core import state
from simulator.core.state import Engine


class InvariantError(AssertionError):
    """The engine's state contradicts itself: a fault of servesweep, never of its input."""


def check_invariants(engine: Engine) -> None:
    """Raises InvariantError, showing both sides of what does not add up."""
    _check_blocks(engine)
    _check_index(engine)
    _check_requests(engine)
    _check_transfers(engine)
    for name, tier in (("near", engine.storage.near), ("far", engine.storage.far)):
        _check_tier(name, tier)
    _check_time(engine)
    if engine.settings[0].engine == state.INFINILM:
        _check_reservations(engine)


def _demand(name: str, ours: object, theirs: object) -> None:
    if ours != theirs:
        raise InvariantError(f"{name}: {ours} != {theirs}")


def free_queue(engine: Engine) -> list[int]:
    """Free blocks in eviction order."""
    pool = engine.kv.pool[0]
    queue: list[int] = []
    b = int(engine.kv.blocks.next_free[pool.free_head])
    while b != pool.free_tail and len(queue) <= pool.num_usable_blocks:
        queue.append(b)
        b = int(engine.kv.blocks.next_free[b])
    return queue


def _check_blocks(engine: Engine) -> None:
    """Blocks are conserved; a block's reference count is the number of its holders."""
    kv = engine.kv
    n = int(kv.pool[0].num_usable_blocks)
    held = np.zeros(n, np.int64)
    for request in kv.requests[kv.requests.num_blocks > 0]:
        start = int(request.block_table_start)
        table = kv.block_table[start : start + int(request.num_blocks)]
        _demand("blocks twice in one table", len(set(table.tolist())), len(table))
        held[table] += 1
    counts = kv.blocks.ref_cnt[:n]
    if not np.array_equal(held, counts):
        b = int(np.flatnonzero(held != counts)[0])
        raise InvariantError(f"block {b}: {held[b]} holders, reference count {counts[b]}")
    queue = free_queue(engine)
    _demand("free queue and number of free blocks", len(queue), int(kv.pool[0].num_free_blocks))
    _demand(
        "free queue and blocks nobody holds", sorted(queue), np.flatnonzero(counts == 0).tolist()
    )


def _check_index(engine: Engine) -> None:
    """Every indexed block is found under its hash, in both directions."""
    kv = engine.kv
    n = int(kv.pool[0].num_usable_blocks)
    indexed = set(np.flatnonzero(kv.blocks.block_hash[:n] != state.NONE).tolist())
    seen: set[int] = set()
    for block_hash in np.flatnonzero(kv.cached_blocks.first != state.NONE).tolist():
        before, b = state.NONE, int(kv.cached_blocks.first[block_hash])
        while b != state.NONE:
            block = kv.blocks[b]
            _demand(f"hash of block {b}", int(block.block_hash), block_hash)
            _demand(f"link back of block {b}", int(block.prev_same_hash), before)
            seen.add(b)
            before, b = b, int(block.next_same_hash)
        _demand(f"last block of hash {block_hash}", int(kv.cached_blocks.last[block_hash]), before)
    _demand("indexed blocks", seen, indexed)


def _check_requests(engine: Engine) -> None:
    """Every request is in exactly one place, and never ahead of itself."""
    requests, queues = engine.kv.requests, engine.queues
    counters = queues.counters[0]
    settings = engine.settings[0]
    running = queues.running[: counters.num_running].tolist()
    waiting = [
        *queues.preempted[: counters.num_preempted_waiting].tolist(),
        *queues.fresh[counters.fresh_head : counters.fresh_tail].tolist(),
        *queues.heap[: counters.heap_size].tolist(),
        *queues.skipped[: counters.num_skipped].tolist(),
    ]
    by_status = {s: np.flatnonzero(requests.status == s).tolist() for s in range(7)}
    _demand("running", sorted(running), by_status[state.RUNNING])
    all_waiting = (state.WAITING, state.PREEMPTED, state.WAITING_FOR_REMOTE_KVS)
    _demand("waiting", sorted(waiting), sorted(r for s in all_waiting for r in by_status[s]))
    _demand("unfinished", len(running) + len(waiting), int(counters.num_unfinished))
    if engine.settings[0].routed:  # others may take who has not come
        _demand("to come", int(counters.num_released), int(counters.num_to_come))
    else:
        _demand("to come", len(by_status[state.UNBORN]), int(counters.num_to_come))
    if len(running) > settings.max_num_seqs and settings.engine == state.VLLM:
        raise InvariantError(f"{len(running)} running, max_num_seqs {settings.max_num_seqs}")
    ahead = requests.num_computed_tokens > requests.num_tokens + requests.num_output_placeholders
    _demand("requests computed beyond their tokens", np.flatnonzero(ahead).tolist(), [])
    slots = requests.num_blocks * int(engine.kv.pool[0].block_size)
    short = (requests.status == state.RUNNING) & (requests.num_computed_tokens > slots)
    _demand("running without a slot for a token", np.flatnonzero(short).tolist(), [])
    # With loads beside steps, a request that has loaded or loads waits with its blocks, and a finished
    # one holds them until they are stored.
    connection = engine.storage.connection[0]
    holders = np.isin(requests.status, (state.RUNNING, state.WAITING_FOR_REMOTE_KVS))
    if engine.settings[0].kv_connector == state.OFFLOADING:
        holders |= np.isin(requests.status, all_waiting) & (requests.num_computed_tokens > 0)
        holders[engine.storage.held[: connection.num_held]] = True
    idle = ~holders & (requests.num_blocks > 0)
    _demand("blocks held by requests that do not run", np.flatnonzero(idle).tolist(), [])
    done = requests.status == state.FINISHED
    _demand(
        "finished requests and their length",
        requests.num_tokens[done].tolist(),
        requests.end_num_tokens[done].tolist(),
    )
    generated = int((requests.num_tokens - engine.kv.infos.num_prompt_tokens).sum())
    _demand("generated tokens", generated, int(counters.num_generated_tokens))


def _check_transfers(engine: Engine) -> None:
    """Who waits for a load is on the link or reported; who holds blocks for a store has finished."""
    storage, requests = engine.storage, engine.kv.requests
    connection = storage.connection[0]
    if engine.settings[0].kv_connector != state.OFFLOADING:
        return
    loading = storage.loading[: engine.queues.counters[0].num_loading].tolist()
    remote = np.flatnonzero(requests.status == state.WAITING_FOR_REMOTE_KVS)
    unreported = remote[storage.transfers.loaded[remote] == 0]
    _demand("loads and who waits for them", sorted(loading), unreported.tolist())
    ends = storage.transfers.load_end_ns[loading][: connection.num_submitted]
    _demand("loads in the order in which they end", sorted(ends.tolist()), ends.tolist())
    held = storage.held[: connection.num_held].tolist()
    _demand("blocks held twice", len(set(held)), len(held))
    _demand("held and not finished", [r for r in held if requests.status[r] != state.FINISHED], [])
    count = int(connection.blocks_per_chunk)
    chunks = {
        int(engine.kv.block_hashes[requests.block_hashes_start[r] + (chunk + 1) * count - 1])
        for r in loading
        for chunk in range(
            storage.transfers.load_first_chunk[r], storage.transfers.load_end_chunk[r]
        )
    }
    _demand("chunks being loaded", set(np.flatnonzero(storage.being_loaded).tolist()), chunks)
    places = [int(storage.near.place[block_hash]) for block_hash in chunks]
    lost = [p for p in places if p == state.NONE or storage.near.chunks.ref_cnt[p] < 1]
    _demand("chunks being loaded that are not pinned", lost, [])
    for r in range(len(requests)):
        place = int(storage.transfers.first_pending[r])
        while place != state.NONE:
            _demand("a chunk being stored", int(storage.near.chunks.ref_cnt[place]), state.PENDING)
            place = int(storage.near.chunks.next_pending[place])


def _check_tier(name: str, tier: state.Tier) -> None:
    """The tier's index, its order of use and its counters say the same; nothing is over capacity."""
    store = tier.store[0]
    if store.capacity == 0:
        return
    order: list[int] = []
    place = int(tier.chunks.next[store.head])
    while place != store.tail and len(order) <= store.capacity:
        order.append(place)
        place = int(tier.chunks.next[place])
    _demand(f"chunks of the {name} tier in order of use", len(order), int(store.num_chunks))
    indexed = np.flatnonzero(tier.place != state.NONE)
    _demand(
        f"chunks of the {name} tier by hash",
        {int(h): int(tier.place[h]) for h in indexed},
        {int(tier.chunks.block_hash[p]): p for p in order},
    )
    if store.num_chunks > store.capacity or store.num_places > store.capacity:
        raise InvariantError(f"{store.num_chunks} chunks in a tier of {store.capacity}")
    wrong = tier.chunks.ref_cnt[order] < state.PENDING
    _demand(f"references to chunks of the {name} tier", int(wrong.sum()), 0)


def _check_time(engine: Engine) -> None:
    """Clocks never go back; a batch is within its limits."""
    counters = engine.queues.counters[0]
    settings = engine.settings[0]
    formed = engine.log.steps[: counters.num_steps]
    applied = engine.log.steps[: counters.num_updates]
    recent = slice(-3, None)
    # An empty batch ends at once, whatever stages of a pipeline still run.
    ran = formed[-8:][formed[-8:].num_tokens > 0]
    for name, times in (("formed_ns", formed), ("end_ns", ran), ("update_ns", applied)):
        last = times[name][recent]
        if (np.diff(last) < 0).any():
            raise InvariantError(f"{name} goes back: {last.tolist()}")
    last = formed[-1:]
    over = last.num_tokens > settings.max_num_batched_tokens
    if settings.engine == state.INFINILM:
        over &= last.num_requests > 1  # one prompt may be larger, alone
    if over.any():
        raise InvariantError(f"{last.num_tokens} tokens in a batch")
    if (last.start_ns < last.formed_ns).any() or (last.end_ns < last.start_ns).any():
        raise InvariantError(f"a step runs before it is formed: {last.tolist()}")


def _check_reservations(engine: Engine) -> None:
    """InfiniLM's counter is what a scan finds, and everybody who runs can be served to the end."""
    counters, pool = engine.queues.counters[0], engine.kv.pool[0]
    running = engine.queues.running[: counters.num_running]
    requests, infos = engine.kv.requests[running], engine.kv.infos[running]
    life = -(-infos.num_life_tokens // pool.block_size) - requests.num_blocks
    _demand("reserved blocks", int(counters.num_reserved_decode_blocks), int(life.sum()))
    _demand("requests that hold more than their life's blocks", int((life < 0).sum()), 0)
    # The last token of a life needs no slot.
    needed = -(-(infos.num_life_tokens - 1) // pool.block_size) - requests.num_blocks
    if int(np.maximum(needed, 0).sum()) > pool.num_free_blocks:
        raise InvariantError(
            f"{needed.sum()} blocks to come for requests that run, {pool.num_free_blocks} are free"
        )
