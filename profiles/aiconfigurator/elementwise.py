"""What the package does not measure: norms, rotary embedding, activation, embedding, sampler.

All are memory traffic. A kernel costs a start of 2 us and its bytes, up to 0.4 of the last-level cache
at three times the memory's rate and the rest at the memory's. The sampler is 20 us and 2.2 passes over
float32 logits. Rows are `assumed`. Against LLMServingSim's Llama-3.1-8B tables, 1 to 2048 tokens: the
layers of a block together 0.79 to 1.08 times the measured time on an RTX PRO 6000 and 0.93 to 1.13 on an
RTX 4090, a single layer 0.3 to 1.9; the sampler 0.8 to 2.0, median 1.2.
"""

from __future__ import annotations

import numpy as np

from profiles.aiconfigurator.gemm import whole_ns
from profiles.aiconfigurator.shape import Shape
from profiles.aiconfigurator.source import System
from profiles.bundle import Floats, Ints, LayerTable
from profiles.provenance import ASSUMED, all_of

START_NS = 2000.0
CACHED_SHARE = 0.4
CACHE_SPEED = 3.0
SAMPLER_START_NS = 20_000.0
SAMPLER_PASSES = 2.2
ELEMENT = 2  # bytes of an activation

TOKENS = np.array([1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768], np.int64)
SEQUENCES = np.array([1, 16, 64, 128, 256, 512, 1024, 2048], np.int64)


def bytes_per_token(shape: Shape) -> dict[str, int]:
    """Elements that a token reads and writes, in bytes."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    q, kv = shape.q_size, shape.num_kv_heads * shape.head_dim
    elements = {
        "embedding": 2 * hidden,
        "layernorm": 4 * hidden,  # with the residual: two in, two out
        "final_layernorm": 4 * hidden,
        "qk_norm": 2 * (q + kv) * shape.tp,  # as the architecture has it: the same on every rank
        "rotary_emb": 2 * (q + kv),
        "act_fn": 3 * inner,  # gate and up in, one out
    }
    return {layer: ELEMENT * count for layer, count in elements.items() if count}


def traffic_ns(system: System, moved: Floats) -> Floats:
    """The time of a kernel that moves so many bytes."""
    cached = np.minimum(moved, CACHED_SHARE * system.device.l2_bytes)
    rate = system.bandwidth
    ns: Floats = START_NS + cached / (CACHE_SPEED * rate) + (moved - cached) / rate
    return ns


def elementwise_tables(system: System, shape: Shape) -> dict[str, LayerTable]:
    """The layers by tokens."""
    tables = {}
    for layer, moved in bytes_per_token(shape).items():
        keys = _with_corner(TOKENS, int(CACHED_SHARE * system.device.l2_bytes // moved))
        tables[layer] = _table(keys, traffic_ns(system, keys.astype(np.float64) * moved))
    return tables


def sampler_table(system: System, shape: Shape) -> LayerTable:
    """By sequences; over the whole vocabulary on every rank."""
    logits = SEQUENCES.astype(np.float64) * shape.vocab_size * shape.tp * 4
    ns = SAMPLER_START_NS + SAMPLER_PASSES * logits / system.bandwidth
    return _table(SEQUENCES, ns)


def _with_corner(tokens: Ints, corner: int) -> Ints:
    """The tokens at which a layer outgrows the cache are a key too: the line bends there."""
    keys: Ints = np.unique(np.append(tokens, corner)) if 1 < corner < tokens[-1] else tokens
    return keys


def _table(keys: Ints, ns: Floats) -> LayerTable:
    return LayerTable(keys, whole_ns(ns), all_of(ASSUMED, keys))
