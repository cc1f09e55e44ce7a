"""What a step ran, layer by layer, so that the parts add up to the time it took.

Dense and per-sequence layers are read from the bundle's tables as the step tables read them; what
is left of the step's time is attention, the same in every block. An execution mode that takes time
is a part of its own, and so is reading weights outside the device before their layers run; a mode that
saves time takes its share off every other part. A step whose layers wait for reads ahead of them, or
for a KV cache outside the device, is one part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from profiles.bundle import Bundle, Ints, LayerTable
from simulator.core import latency as core
from simulator.core.latency import Latency
from simulator.core.placement import is_placed
from simulator.step_tables import layers_ns

ATTENTION = "attention"
MODE = "execution_mode"
LOAD = "prefix_load"
READS = "weight_reads"
WHOLE = "step"
WHO_RAN = ("scheduled_tokens", "computed_tokens")
"""Columns of the steps table, a list each."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One run of a layer; `block` is the transformer block, -1 outside of them."""

    layer: str
    block: int
    ns: int


@dataclass(frozen=True)
class StepSize:
    """What a step had to do: the columns of a result's steps table, lengths in tokens."""

    step: int
    num_tokens: int
    num_requests: int
    prefill_tokens: int
    num_decodes: int
    kv_prefill: int
    kv_decode: int
    load_ns: int
    device_ns: int
    kv_decode_max: int = 0
    kv_decode_min: int = 0

    @classmethod
    def of(cls, row: dict[str, Any]) -> StepSize:
        """From a row of the steps table; the lengths of single decodes where it says who ran."""
        same = {name: int(row[name]) for name in cls.__dataclass_fields__ if name in row}
        lengths = [
            length
            for count, length in zip(*(row.get(name) or () for name in WHO_RAN), strict=True)
            if count == 1
        ]
        if lengths:
            same |= {"kv_decode_max": max(lengths), "kv_decode_min": min(lengths)}
        return cls(**same, device_ns=int(row["end_ns"]) - int(row["start_ns"]))


class StepLayers:
    """Splits steps of one profile; `bundle` is None for a linear law, whose step is one part."""

    def __init__(self, bundle: Bundle | None, latency: Latency, num_layers: int) -> None:
        self.bundle, self.latency, self.num_layers = bundle, latency, num_layers
        self.tables: dict[str, Ints] = {}
        if bundle is None:
            return
        for layer, table in bundle.dense.items():
            self.tables[layer] = one_layer_ns(layer, table, latency.padded_tokens.astype(np.int64))
        sequences = np.arange(len(latency.sequences_ns))
        for layer, table in bundle.per_sequence.items():
            self.tables[layer] = one_layer_ns(layer, table, sequences)

    def split(self, size: StepSize) -> list[LayerTime]:
        """In the order they run; their sum is the step's device time."""
        loads = [LayerTime(LOAD, -1, size.load_ns)] if size.load_ns else []
        ns = size.device_ns - size.load_ns
        if self.bundle is None or plain(is_placed)(self.latency):
            return [*loads, LayerTime(WHOLE, -1, ns)]
        mode = plain(core.mode_ns)(self.latency.params[0], size.num_tokens, size.prefill_tokens)
        names = self._order()
        known = sum(self._ns(name, size) for name, _ in names if name != ATTENTION)
        reads = self._read_ns(size, known)
        attention, rest = divmod(ns - int(mode) - known - reads, self.num_layers)
        if rest or attention < 0:
            # Cut to the least a step may take: what its parts were is not in its time any more.
            return [*loads, LayerTime(WHOLE, -1, ns)]
        layers = [
            LayerTime(name, block, attention if name == ATTENTION else self._ns(name, size))
            for name, block in names
            if name != ATTENTION or attention
        ]
        if reads:
            layers.insert(0, LayerTime(READS, -1, reads))
        if mode > 0:
            layers.append(LayerTime(MODE, -1, int(mode)))
        return [*loads, *taken_off(layers, max(0, -int(mode)))]

    def _read_ns(self, size: StepSize, known: int) -> int:
        """What the step's tables have beyond the layers'."""
        latency = self.latency
        tables = latency.tokens_ns[size.num_tokens] + latency.sequences_ns[size.num_requests]
        return max(0, int(tables) - known)

    def _order(self) -> list[tuple[str, int]]:
        assert self.bundle is not None
        order = self.bundle.architecture
        block = (*order.pre_attn, *order.post_attn, *order.mlp_dense, *order.mlp_moe)
        middle = [(name, i) for i in range(self.num_layers) for name in block]
        return [*((n, -1) for n in order.prologue), *middle, *((n, -1) for n in order.head)]

    def _ns(self, layer: str, size: StepSize) -> int:
        assert self.bundle is not None
        by_sequences = layer in self.bundle.per_sequence
        return int(self.tables[layer][size.num_requests if by_sequences else size.num_tokens])


def one_layer_ns(layer: str, table: LayerTable, queries: Ints) -> Ints:
    """One run of a layer at every query, ns: int64[len(queries)]."""
    ns: Ints = layers_ns({layer: table}, (layer,), (), 0, queries).sum(axis=1)
    return ns


def taken_off(layers: list[LayerTime], ns: int) -> list[LayerTime]:
    """`ns` less in all, each layer its share, none below 1 ns."""
    if not ns:
        return layers
    spare = [layer.ns - 1 for layer in layers]
    total, passed, given = sum(spare), 0, 0
    shorter = []
    for layer, own in zip(layers, spare, strict=True):
        passed += own
        due = ns * passed // total
        shorter.append(LayerTime(layer.layer, layer.block, layer.ns - (due - given)))
        given = due
    return shorter


def plain(function: Any) -> Any:
    """A compiled rule as the Python function it is."""
    return getattr(function, "py_func", function)
