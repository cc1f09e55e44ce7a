"""KV caches that go from the instance that computed the prompt to the one that decodes.

- Read when the prompt has been computed (vLLM's NixlConnector): the request waits in
  WAITING_FOR_REMOTE_KVS with blocks for its whole prompt, and the prefill instance holds its own blocks
  until they have been read. What the decode instance has cached already is not read. The machinery is
  the OffloadingConnector's (offloading.py): loads beside steps, reported with a batch's output.
- Sent layer by layer while the prompt is computed (P2pNcclConnector): the prefill instance's step ends
  when the last layer has been sent, and the decode instance finds everything there.

A transfer takes latency + floor(bytes / bandwidth) on the link of each rank that has a part of its own;
of two instances with different numbers of ranks the smaller number counts. A read takes turns with
others on the links of both instances; what is sent takes turns on the sender's, whose receiver is not
known yet.
"""

from __future__ import annotations

from simulator.core.jit import compiled, compiled_apart
from simulator.core.kv_cache_manager import cdiv
from simulator.core.latency import LINEAR_LAW, mode_ns
from simulator.core.state import NONE, Engine, KVCache, Record, Storage


@compiled
def remote_tokens(kv: KVCache, storage: Storage, r: int, num_hit_blocks: int) -> int:
    """Tokens of request `r` beyond the device's hit that a prefill instance has computed."""
    if storage.transfers[r].prefill_instance == NONE:
        return 0
    num_tokens = kv.infos[r].num_prompt_tokens
    # Sent ones are there at once, so the last is computed again where nobody sampled from it.
    if storage.connection[0].by_layer:
        num_tokens = min(num_tokens, kv.requests[r].num_tokens - 1)
    return max(0, num_tokens - num_hit_blocks * kv.pool[0].block_size)


@compiled
def take_over(
    engine: Engine, r: int, num_computed_tokens: int, num_tokens: int, now_ns: int
) -> None:
    """The request is admitted with `num_tokens` that were sent before; none: all is cached here.

    Where nothing is left to read the prefill instance is told that it may free its blocks.
    """
    storage = engine.storage
    transfer = storage.transfers[r]
    connection = storage.connection[0]
    if transfer.prefill_instance == NONE:
        return
    transfer.prefill_instance = NONE
    if not connection.by_layer:
        transfer.store_end_ns = now_ns + connection.kv_latency_ns
        return
    counts = storage.use[0]
    counts.loads += 1
    counts.loaded_tokens += num_tokens
    request = engine.kv.requests[r]
    if request.num_cached_tokens == NONE:
        request.num_cached_tokens = num_computed_tokens
        engine.kv.infos[r].num_external_tokens = num_tokens


@compiled_apart
def read_remote(storage: Storage, r: int, block_size: int, now_ns: int) -> None:
    """Put the read of request `r` onto the links of both instances."""
    connection = storage.connection[0]
    transfer = storage.transfers[r]
    ours = storage.kv_links[connection.instance]
    theirs = storage.kv_links[transfer.prefill_instance]
    # Blocks move whole.
    num_tokens = cdiv(transfer.load_tokens, block_size) * block_size
    num_bytes = num_tokens * connection.kv_bytes_per_token
    shard_bytes = num_bytes // min(ours.num_shards, theirs.num_shards)
    ns = connection.kv_latency_ns + int(shard_bytes / connection.kv_bytes_per_ns)
    begin_ns = max(now_ns, ours.in_free_ns, theirs.out_free_ns)
    transfer.load_end_ns = begin_ns + ns
    transfer.store_end_ns = begin_ns + ns  # the prefill instance may free its blocks
    ours.in_free_ns = begin_ns + ns
    theirs.out_free_ns = begin_ns + ns
    transfer.prefill_instance = NONE
    counts = storage.use[0]
    counts.loads += 1
    counts.loaded_tokens += transfer.load_tokens
    counts.loaded_bytes += num_bytes
    counts.load_ns += ns
    counts.link_wait_ns += begin_ns - now_ns


@compiled_apart
def sends_end_ns(engine: Engine, batch: Record) -> int:
    """When the KV cache of the batch formed last has been sent, each block's as soon as it is there.

    Blocks are sent one after the other and are ready evenly spaced in time, so it is the first one or
    the last one that decides. Tokens of a prefix hit are sent with the first chunk.
    """
    storage = engine.storage
    connection = storage.connection[0]
    latency = engine.latency
    params = latency.params[0]
    counters = engine.queues.counters[0]
    depth = engine.settings[0].batch_queue_size
    slot = (counters.oldest_batch + counters.num_batches - 1) % depth
    num_tokens = batch.num_tokens
    for i in range(batch.num_entries - batch.num_admitted, batch.num_entries):
        num_tokens += engine.batches.entries[slot, i].num_computed_tokens
    num_bytes = num_tokens * connection.kv_bytes_per_token
    link_bytes = num_bytes // connection.kv_send_links
    send_ns = connection.kv_latency_ns + int(link_bytes / connection.kv_bytes_per_ns)
    num_blocks = connection.kv_layers
    whole = batch.end_ns - batch.start_ns
    first_ns = batch.start_ns + whole // num_blocks
    last_ns = batch.end_ns
    if params.law != LINEAR_LAW and storage.kv_ready_ns.shape[1] > 1:
        head = latency.sequences_ns[batch.num_requests]
        mode = mode_ns(params, batch.num_tokens, batch.prefill_chunk)
        rest = whole - latency.tokens_ns[batch.num_tokens] - head - mode
        before = storage.kv_ready_ns[0, batch.num_tokens]
        first_ns = batch.start_ns + max(0, mode + before + rest // num_blocks)
        last_ns = max(first_ns, batch.end_ns - head - storage.kv_ready_ns[1, batch.num_tokens])
    end_ns = max(first_ns + num_blocks * send_ns, last_ns + send_ns)
    counts = storage.use[0]
    counts.stores += 1
    counts.written_bytes += num_bytes * num_blocks
    counts.store_ns += num_blocks * send_ns
    connection.stalled_ns += max(0, end_ns - batch.end_ns)
    return end_ns
