"""Prefetched weights: reads, and the runs of layers between them, for core/placement.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from profiles.bundle import Bundle, Ints, LayerTable
from simulator.core import latency as core
from simulator.core.latency import Latency
from simulator.placement.config import DEVICE
from simulator.placement.links import Links
from simulator.placement.weights import BEFORE, LayerWeights, stage_order
from simulator.step_layers import one_layer_ns
from simulator.step_tables import frozen

Layer = tuple[int, str]  # block, name
Read = tuple[int, int, int]  # memory, ns, after: as in core.READ_DTYPE
NO_READ: Read = (-1, 0, -1)


@dataclass
class Runs:
    """The reads of all stages so far; each distinct run of layers is a row of times."""

    bundle: Bundle
    reads: list[tuple[int, ...]] = field(default_factory=list)
    by_tokens: dict[tuple[str, ...], int] = field(default_factory=dict)
    by_sequences: dict[tuple[str, ...], int] = field(default_factory=dict)

    def add(self, read: Read, run: Sequence[Layer]) -> None:
        names = sorted(name for _, name in run)
        dense = tuple(name for name in names if name in self.bundle.dense)
        late = tuple(name for name in names if name in self.bundle.per_sequence)
        row = self.by_sequences.setdefault(late, len(self.by_sequences)) if late else -1
        attention = sum(name in self.bundle.architecture.tables["attention"] for name in names)
        layers = self.by_tokens.setdefault(dense, len(self.by_tokens))
        self.reads.append((*read, layers, row, attention))


def prefetched(
    latency: Latency,
    bundle: Bundle,
    links: Links,
    held: Sequence[Sequence[LayerWeights]],
    num_layers: int,
) -> Latency:
    """`held`: of every stage the layers with weights, in the order they run."""
    runs, starts, first = Runs(bundle), [0], 0
    for layers, count in zip(held, latency.stage_layers.tolist(), strict=True):
        order = stage_order(bundle.architecture, first, first + count, num_layers)
        if links.placement.offload_prefetch_step is None:
            _each_for_itself(runs, order, layers, links)
        else:
            _block_by_block(runs, order, layers, links, num_layers)
        starts.append(len(runs.reads))
        first += count
    params = latency.params.copy()
    params.num_reads = len(runs.reads)
    padded = latency.padded_tokens.astype(np.int64)
    sequences = np.arange(len(latency.sequences_ns))
    return frozen(
        latency._replace(
            params=params,
            reads=np.array(runs.reads, core.READ_DTYPE).view(np.recarray),
            stage_reads=np.array(starts, np.int64),
            layers_by_tokens=_times(runs.by_tokens, bundle.dense, padded),
            layers_by_sequences=_times(runs.by_sequences, bundle.per_sequence, sequences),
        )
    )


def _each_for_itself(
    runs: Runs, order: Sequence[Layer], held: Sequence[LayerWeights], links: Links
) -> None:
    """All reads are asked for when the stage starts; every layer waits for its own."""
    names = list(links.placement.memories)
    left, read = list(reversed(held)), NO_READ
    run: list[Layer] = []
    for layer in order:
        own = left.pop() if left and (left[-1].block, left[-1].layer) == layer else None
        if own is not None and own.place != DEVICE:
            if run:
                runs.add(read, run)
            read, run = (names.index(own.place), links.ns(own), -1), []
        run.append(layer)
    runs.add(read, run)


def _block_by_block(
    runs: Runs,
    order: Sequence[Layer],
    held: Sequence[LayerWeights],
    links: Links,
    num_layers: int,
) -> None:
    """A block waits for all of its weights, in the buffer of an earlier block that has run.

    Only blocks have buffers: what comes before and after them is asked for when the stage starts.
    """
    names, step = list(links.placement.memories), links.placement.offload_prefetch_step or 1
    ends: list[int] = []  # by block with reads: the place of its last layers among the reads
    for block in dict.fromkeys(block for block, _ in order):
        inside = BEFORE < block < num_layers
        wanted = [one for one in held if one.block == block and one.place != DEVICE]
        after = ends[-step] if inside and len(ends) >= step else -1
        ns: Counter[int] = Counter()
        for one in wanted:
            ns[names.index(one.place)] += links.ns(one)
        waits: list[Read] = [(memory, total, after) for memory, total in ns.items()] or [NO_READ]
        for read in waits[:-1]:
            runs.add(read, ())
        runs.add(waits[-1], [layer for layer in order if layer[0] == block])
        if wanted and inside:
            ends.append(len(runs.reads) - 1)


def _times(rows: dict[tuple[str, ...], int], tables: dict[str, LayerTable], queries: Ints) -> Ints:
    found = np.zeros((max(1, len(rows)), len(queries)), np.int64)
    for names, row in rows.items():
        for name, times in Counter(names).items():
            found[row] += times * one_layer_ns(name, tables[name], queries)
    return found
