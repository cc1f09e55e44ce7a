"""Which share of a run's device time comes from rows that were measured, interpolated, derived, assumed.

The steps a run left behind say what was looked up, so nothing is counted while it runs: the layers of
every step are taken apart exactly; what is left of its time is attention, and belongs to the source of
the grid row below the batch on every axis. Times that an execution mode adds are in no table and not
counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiles.provenance import ASSUMED, NAMES
from simulator.core import latency as core
from simulator.core.latency import Latency
from simulator.core.state import Engine


@dataclass(frozen=True, eq=False)
class TimeSources:
    """Beside a Latency: its times by source.

    tokens_ns[t, s], sequences_ns[q, s]: of tokens_ns[t] and sequences_ns[q] the part from source s.
    attention[i]: the source of grid_ns[i]. placed_tokens_ns[t], placed_sequences_ns[q]: of those times
    the part that is reading weights outside the device; one value for all of a law, None: none are.
    """

    tokens_ns: NDArray[np.int64]
    sequences_ns: NDArray[np.int64]
    attention: NDArray[np.uint8]
    placed_tokens_ns: NDArray[np.int64] | None = None
    placed_sequences_ns: NDArray[np.int64] | None = None

    def read_ns(self, tokens: Any, sequences: Any) -> int:
        """Of steps with so many tokens and sequences."""
        total = 0
        for ns, sizes in ((self.placed_tokens_ns, tokens), (self.placed_sequences_ns, sequences)):
            if ns is not None:
                total += int(ns[np.minimum(sizes, len(ns) - 1)].sum())
        return total

    @property
    def one_attention(self) -> bool:
        """Whether all rows of attention have one source, so that nobody has to find them."""
        return bool((self.attention == self.attention[0]).all())


def linear_sources() -> TimeSources:
    """A law is assumed as a whole."""
    none = np.zeros((1, len(NAMES)), np.int64)
    return TimeSources(none, none, np.full(1, ASSUMED, np.uint8))


def time_by_source(engine: Engine, sources: TimeSources) -> dict[str, float]:
    """Shares of the run's device time by source, in the order of NAMES; all 0 if nothing ran."""
    latency = engine.latency
    steps = engine.log.steps[: engine.queues.counters[0].num_steps]
    if not steps.num_tokens.all():
        steps = steps[steps.num_tokens > 0]
    tokens, sequences = map(np.ascontiguousarray, (steps.num_tokens, steps.num_requests))
    device_ns = steps.end_ns - steps.start_ns - steps.load_ns
    total = np.zeros(len(NAMES), np.int64)
    if latency.params[0].law == core.LINEAR_LAW:
        total[ASSUMED] = int(device_ns.sum())
    elif len(steps):
        total += np.bincount(tokens, minlength=len(sources.tokens_ns)) @ sources.tokens_ns
        total += np.bincount(sequences, minlength=len(sources.sequences_ns)) @ sources.sequences_ns
        layers_ns = latency.tokens_ns[tokens] + latency.sequences_ns[sequences]
        attention_ns = np.maximum(0, device_ns - layers_ns - _mode_ns(latency, steps))
        if sources.one_attention:
            by_source = [0] * len(NAMES)
            by_source[sources.attention[0]] = int(attention_ns.sum())
        else:
            found = sources.attention[rows_below(latency, steps)]
            by_source = [int(attention_ns[found == source].sum()) for source in range(len(NAMES))]
        total += _without_waits(by_source, engine)
    whole = int(total.sum())
    return {name: int(ns) / whole if whole else 0.0 for name, ns in zip(NAMES, total, strict=True)}


def _without_waits(by_source: list[int], engine: Engine) -> NDArray[np.int64]:
    """Attention's times: what of it was waiting for another memory is assumed, a share of each."""
    waits, whole = engine.placed.waits[0], sum(by_source)
    waited = min(int(waits.weights_ns) + int(waits.kv_ns), whole)
    left = [ns * (whole - waited) // whole if waited else ns for ns in by_source]
    left[ASSUMED] += whole - sum(left)
    return np.array(left, np.int64)


def _mode_ns(latency: Latency, steps: Any) -> NDArray[np.int64]:
    params = latency.params[0]
    decoding = np.where(steps.prefill_tokens == 0, params.full_graph_ns, params.piecewise_ns)
    ns: NDArray[np.int64] = np.where(
        steps.num_tokens > params.max_capture_size, params.eager_ns, decoding
    )
    return ns


def rows_below(latency: Latency, steps: Any) -> NDArray[np.int64]:
    """The grid row at the lower corner of every step's lookup, as core/latency.py finds it."""
    n_decode = steps.num_decodes
    mean = steps.kv_decode // np.maximum(1, n_decode)
    corner = latency.chunk_lo[steps.prefill_tokens] * latency.params[0].num_decode_samples
    slices = latency.slices[latency.slice_of[corner + latency.decode_lo[n_decode]]]
    row = slices.row + _below(latency, slices.axis, latency.kv_prefill_sample, steps.kv_prefill)
    rows = latency.rows[row]
    below = _below(latency, rows.axis, latency.kv_decode_sample, mean)
    found: NDArray[np.int64] = rows.ns + below
    return found


def _below(latency: Latency, axes: Any, sample_of: Any, query: Any) -> NDArray[np.int64]:
    axis = latency.axes[axes]
    sample = sample_of[np.minimum(query, len(sample_of) - 1)].astype(np.int64)
    lo = latency.axis_lo[np.minimum(axis.lo + sample, len(latency.axis_lo) - 1)]
    first = (axis["count"] == 1) | (query <= latency.axis_keys[axis["keys"]])
    below: NDArray[np.int64] = np.where(first, 0, lo)
    return below
