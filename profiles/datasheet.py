"""A card that nobody measured: the times of the nearest measured one, scaled by data sheets.

Every row is multiplied by the ratio of both cards' roofline times at its shape, max(bytes / bandwidth,
FLOP / peak). So a row keeps what the measured kernel falls short of its roofline, and the limit may be
another one on the other card. Starts of kernels scale with the rest, which makes small batches of a
faster card too fast. An all-reduce depends on links, which no card's sheet gives: it stays as it is.
All rows are `derived`, those of the all-reduce `assumed`.

Between measured cards, Llama-3.1-8B at TP 1, scaled / measured, decode steps of 8, 64 and 256 requests
and prompts of 512, 2048 and 8192 tokens: H200 from H100 0.90-0.99, H100 from A100 0.92-1.08, B200 from
H100 0.81-0.95, B300 from B200 0.99-1.10. L40S and RTX PRO 6000 reach a smaller and a different share of
their sheets' FLOP/s: decodes from each other 0.96-1.04, prompts 0.76-1.33; L40S from A100 0.77-1.22.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from profiles.aiconfigurator.elementwise import ELEMENT, bytes_per_token
from profiles.aiconfigurator.shape import Shape
from profiles.architecture import ALL_REDUCE
from profiles.bundle import AttentionGrid, Bundle, Floats, Ints, LayerTable
from profiles.card import Card
from profiles.provenance import ASSUMED, DERIVED, all_of
from profiles.routing import Routing

RECIPE = 1


@dataclass(frozen=True)
class Speeds:
    """Bytes and FLOP a ns."""

    bandwidth: float
    flops: float

    @classmethod
    def of(cls, card: Card) -> Speeds:
        """Of a card whose data sheet is complete, which a point that asks for this has."""
        assert card.memory_bandwidth_gbps is not None
        assert card.bfloat16_tflops is not None
        return cls(card.memory_bandwidth_gbps, card.bfloat16_tflops * 1e3)

    def roofline_ns(self, moved: Floats, flops: Floats) -> Floats:
        ns: Floats = np.maximum(moved / self.bandwidth, flops / self.flops)
        return ns


def scaled(nearest: Bundle, measured: Card, card: Card, shape: Shape) -> Bundle:
    """`nearest`, measured on `measured`, as `card` would be by its data sheet."""
    ours, theirs = Speeds.of(card), Speeds.of(measured)

    def ratio(moved: Floats, flops: Floats) -> Floats:
        found: Floats = ours.roofline_ns(moved, flops) / theirs.roofline_ns(moved, flops)
        return found

    def layer(name: str, table: LayerTable) -> LayerTable:
        if name == ALL_REDUCE:
            return replace(table, source=all_of(ASSUMED, table.keys))
        return LayerTable(
            table.keys,
            _times(table.ns, ratio(*layer_work(name, table.keys.astype(np.float64), shape))),
            all_of(DERIVED, table.keys),
        )

    grid = nearest.attention
    attention = replace(
        grid,
        ns=_times(grid.ns, ratio(*attention_work(grid, shape))),
        source=all_of(DERIVED, grid.ns),
    )
    name = f"datasheet {RECIPE} {nearest.content_id} {ours} {theirs}"
    return replace(
        nearest,
        content_id=hashlib.sha256(name.encode()).hexdigest(),
        card=card.name,
        dense={name: layer(name, table) for name, table in nearest.dense.items()},
        per_sequence={name: layer(name, table) for name, table in nearest.per_sequence.items()},
        attention=attention,
    )


def _times(ns: Ints, ratio: Floats) -> Ints:
    times: Ints = np.maximum(1, np.round(ns * ratio)).astype(np.int64)
    return times


def layer_work(layer: str, count: Floats, shape: Shape) -> tuple[Floats, Floats]:
    """Bytes and FLOP of a layer at so many tokens or sequences on one rank."""
    hidden = shape.hidden_size
    products = {
        "qkv_proj": (shape.qkv_size, hidden),
        "o_proj": (hidden, shape.q_size),
        "gate_up_proj": (2 * shape.intermediate_size, hidden),
        "down_proj": (hidden, shape.intermediate_size),
        "lm_head": (shape.vocab_size, hidden),
    }
    # Products of one byte read half as much and run at twice the peak, on either card.
    small = shape.weight_dtype == "fp8" and layer != "lm_head"
    element, pace = (1, 0.5) if small else (ELEMENT, 1.0)
    if layer in products:
        n, k = products[layer]
        moved = element * (n * k + count * k) + ELEMENT * count * n
        return moved, pace * 2.0 * count * n * k
    if layer == "moe":
        expert = 3.0 * hidden * shape.expert_size / shape.tp
        awake = Routing(shape.experts, shape.experts_per_token).awake(count)
        moved = element * awake * expert + 2.0 * ELEMENT * count * hidden
        return moved, pace * 2.0 * count * shape.experts_per_token * expert
    if layer == "sampler":
        return 4.0 * count * shape.vocab_size * shape.tp, np.zeros(len(count))
    return count * bytes_per_token(shape)[layer], np.zeros(len(count))


def attention_work(grid: AttentionGrid, shape: Shape) -> tuple[Floats, Floats]:
    """Bytes and FLOP of attention at every row: queries, the KV cache read once, scores and values."""
    chunk, history = grid.prefill_chunk.astype(np.float64), grid.kv_prefill.astype(np.float64)
    n_decode, held = grid.n_decode.astype(np.float64), grid.kv_decode.astype(np.float64)
    pairs = chunk * (history + (chunk + 1) / 2) + n_decode * (held + 1)
    kept = history * (chunk > 0) + chunk + n_decode * (held + 1)
    element = 1 if shape.kv_cache_dtype == "fp8" else 2
    moved = 2.0 * ELEMENT * (chunk + n_decode) * shape.q_size
    moved += 2.0 * element * kept * shape.num_kv_heads * shape.head_dim
    return moved, 4.0 * pairs * shape.q_size
