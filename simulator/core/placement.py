"""Steps whose weights or KV cache are outside the device.

A read of a memory takes latency + floor(bytes / bandwidth), and reads of one memory take turns.

Weights that are read serially are in the step tables: each read adds to the step. So are those that a
kernel streams: a layer takes the longer of its own time and the read. What is here is what no table
can say.

Prefetched weights. The layers of a stage run one after the other; each waits for its own weights:
    asked_k = the start of the step, or the end of the block whose buffer read k takes
    there_k = max(there of the read before it from the same memory, asked_k) + its time
    end_k   = max(end_(k-1), there_k) + time of the layers up to the next read
and the step is the last end_k. Nothing is read ahead of a step's start.

A KV cache outside. Attention of a block streams the cache while it computes, so it takes the longer of
its measured time and the transfer of all that the batch's requests hold after the step: what was there
is read, what is new is written. Where the same memory holds prefetched weights, these wait meanwhile.
"""

from __future__ import annotations

from simulator.core.jit import compiled, compiled_apart
from simulator.core.latency import (
    LINEAR_LAW,
    Latency,
    batch_attention_ns,
    linear_ns,
    mode_ns,
)
from simulator.core.state import Engine, Record


@compiled
def is_placed(latency: Latency) -> bool:
    """Whether a step needs what is here."""
    params = latency.params[0]
    return params.kv_token_bytes > 0 or params.num_reads > 0


@compiled_apart
def placed_step_ns(engine: Engine, batch: Record, num_tokens: int) -> int:
    """Device time of one batch in one stage; its dense layers run `num_tokens`."""
    latency = engine.latency
    params = latency.params[0]
    transfer = kv_transfer_ns(latency, batch)
    if params.law == LINEAR_LAW:
        kv_tokens = batch.kv_prefill + batch.prefill_chunk + batch.kv_decode_sum + batch.num_decodes
        ns = linear_ns(params, num_tokens, batch.num_requests, kv_tokens)
        ns += longer_attention_ns(engine, 0, transfer, params.num_layers) * params.num_layers
    else:
        measured = batch_attention_ns(latency, engine.outside, batch, num_tokens)
        attention = longer_attention_ns(engine, measured, transfer, params.num_layers)
        if params.num_reads > 0:
            ns = stage_ns(engine, 0, num_tokens, batch.num_requests, attention, transfer)
        else:
            ns = (
                latency.tokens_ns[num_tokens]
                + latency.sequences_ns[batch.num_requests]
                + params.num_layers * attention
            )
    return max(1, int(ns + mode_ns(params, num_tokens, batch.prefill_chunk)))


@compiled
def kv_transfer_ns(latency: Latency, batch: Record) -> int:
    """Of one block's KV cache, in the memory it is in; 0 on the device."""
    params = latency.params[0]
    tokens = batch.kv_prefill + batch.prefill_chunk + batch.kv_decode_sum + batch.num_decodes
    if params.kv_token_bytes == 0 or tokens == 0:
        return 0
    return params.kv_latency_ns + int(
        tokens * params.kv_token_bytes / latency.memory_bytes_per_ns[params.kv_memory]
    )


@compiled
def longer_attention_ns(engine: Engine, measured: int, transfer: int, num_layers: int) -> int:
    """A block's attention with its transfer; what `num_layers` of them wait for it is counted."""
    attention = max(measured, transfer)
    engine.placed.waits[0].kv_ns += (attention - measured) * num_layers
    return attention


@compiled_apart
def stage_ns(
    engine: Engine, stage: int, num_tokens: int, num_requests: int, attention: int, transfer: int
) -> int:
    """The layers of a pipeline stage with prefetched weights, without what the mode adds."""
    latency, placed = engine.latency, engine.placed
    params = latency.params[0]
    for memory in range(len(placed.free_ns)):
        placed.free_ns[memory] = 0
    ns = 0
    waited = 0
    for i in range(latency.stage_reads[stage], latency.stage_reads[stage + 1]):
        read = latency.reads[i]
        if read.memory >= 0:
            free_ns = placed.free_ns[read.memory]
            if read.after >= 0:
                free_ns = max(free_ns, placed.ended_ns[read.after])
            free_ns += read.ns
            placed.free_ns[read.memory] = free_ns
            if free_ns > ns:
                waited += free_ns - ns
                ns = free_ns
        ns += latency.layers_by_tokens[read.layers, num_tokens]
        if read.sequence_layers >= 0:
            ns += latency.layers_by_sequences[read.sequence_layers, num_requests]
        ns += read.attention * attention
        if transfer > 0:
            placed.free_ns[params.kv_memory] += read.attention * transfer
        placed.ended_ns[i] = ns
    placed.waits[0].weights_ns += waited
    return ns
