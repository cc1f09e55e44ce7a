"""Attention of one block by itself, for what takes a step apart."""

from __future__ import annotations

from typing import Any

from simulator.core.jit import entry
from simulator.core.latency import Latency, attention_ns


@entry
def one_attention_ns(
    latency: Latency,
    outside: Any,
    prefill_chunk: int,
    kv_prefill: int,
    n_decode: int,
    kv_sum: int,
    kv_max: int,
    kv_min: int,
) -> int:
    return attention_ns(
        latency, outside, prefill_chunk, kv_prefill, n_decode, kv_sum, kv_max, kv_min
    )
