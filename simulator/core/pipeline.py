"""Pipeline stages: a batch runs through one after the other, and each holds one batch at a time.

A stage starts a batch when the hidden states of the stage before have arrived and it is free. A block's
attention takes as long in every stage, so it is looked up once. A stage reads its own weights where
they are outside the device (placement.py); stages do not slow each other down on a memory's link.
"""

from __future__ import annotations

from simulator.core.jit import compiled
from simulator.core.latency import (
    LINEAR_LAW,
    batch_attention_ns,
    linear_ns,
    mode_ns,
)
from simulator.core.placement import kv_transfer_ns, longer_attention_ns, stage_ns
from simulator.core.state import Engine, Record


@compiled
def run_through(
    engine: Engine,
    batch: Record,
    num_tokens: int,
    expert_tokens: int,
    share_tokens: int,
    more_mode_ns: int,
) -> int:
    """Put a batch through all stages, as `engine.set_end`. Returns when the last one ends it."""
    latency = engine.latency
    params = latency.params[0]
    free_ns = engine.stage_free_ns
    last = len(free_ns) - 1
    attention = 0
    whole = 0
    if params.law == LINEAR_LAW:
        kv_tokens = batch.kv_prefill + batch.prefill_chunk + batch.kv_decode_sum + batch.num_decodes
        whole = linear_ns(params, num_tokens, batch.num_requests, kv_tokens)
    else:
        attention = batch_attention_ns(latency, engine.outside, batch, num_tokens)
    transfer = kv_transfer_ns(latency, batch)
    if transfer > 0:
        attention = longer_attention_ns(engine, attention, transfer, params.num_layers)
    mode = mode_ns(params, num_tokens, batch.prefill_chunk) + more_mode_ns
    experts = 0
    if len(latency.expert_ns) > 1:
        experts = latency.expert_ns[expert_tokens] + latency.exchange_ns[share_tokens]
    ns = batch.start_ns
    for stage in range(last + 1):
        num_layers = latency.stage_layers[stage]
        if stage > 0:
            ns += latency.send_ns[num_tokens]
        ns = max(ns, free_ns[stage])
        if params.law == LINEAR_LAW:
            ns += whole * num_layers // params.num_layers + num_layers * attention
        elif params.num_reads > 0:
            ns += stage_ns(engine, stage, num_tokens, batch.num_requests, attention, transfer)
        else:
            ns += latency.stage_tokens_ns[stage, num_tokens] + num_layers * (attention + experts)
            if stage == last:
                ns += latency.sequences_ns[batch.num_requests]
        ns += latency.stage_read_ns[stage] + mode * num_layers // params.num_layers
        free_ns[stage] = ns
    return max(batch.start_ns + 1, ns)
