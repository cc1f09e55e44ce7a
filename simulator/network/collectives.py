"""What one collective costs over one dimension, for many sizes at once.

The formulas are those of ASTRA-Sim's congestion-unaware analytical network with one chunk in flight
(`preferred-dataset-splits` 1): every rank starts at once, links never wait for each other, a message
over h hops takes floor(h x latency + bytes / bandwidth). e is the endpoint delay, n the ranks.
Divisions cut as the program's do. Sizes are bytes of the whole buffer; of one rank's share for an
all-gather.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.network.config import CollectiveKind, Dimension, Implementation

Ints = npt.NDArray[np.int64]


class Endpoint(NamedTuple):
    """A rank's own part in a message."""

    delay_ns: int
    local_mem_gbps: float

    def reduce_ns(self, num_bytes: Ints) -> Ints:
        """Two reads and a write of partial results."""
        once = num_bytes / (self.local_mem_gbps * 1_000_000_000) * 1e9
        return 3 * once.astype(np.int64)


def message_ns(dimension: Dimension, distance: int, num_bytes: Ints) -> Ints:
    """From one rank to another `distance` away."""
    hop_ns = dimension.hops(distance) * dimension.latency_ns
    return (hop_ns + num_bytes / dimension.bytes_per_ns).astype(np.int64)


def phase_ns(
    kind: CollectiveKind,
    implementation: Implementation,
    dimension: Dimension,
    endpoint: Endpoint,
    num_bytes: Ints,
) -> Ints:
    """One collective over one dimension of at least two ranks."""
    cost = {"ring": ring_ns, "direct": direct_ns, "halvingDoubling": halving_doubling_ns}
    if implementation == "doubleBinaryTree":
        return double_tree_ns(dimension, endpoint, num_bytes)
    return cost[implementation](kind, dimension, endpoint, num_bytes)


def bytes_after(kind: CollectiveKind, ranks: int, num_bytes: Ints) -> Ints:
    """What a rank holds afterwards, which is what the next dimension works on."""
    if kind == "all_gather":
        return num_bytes * ranks
    return num_bytes // ranks if kind == "reduce_scatter" else num_bytes


def ring_ns(kind: CollectiveKind, dimension: Dimension, endpoint: Endpoint, size: Ints) -> Ints:
    """Around the ring, a share at a time."""
    n, e = dimension.ranks, endpoint.delay_ns
    share = size // n
    if kind == "all_gather":
        return n * e + (n - 1) * message_ns(dimension, 1, size)
    if kind == "all_to_all":
        messages = n * (n - 1) // 2
        return (messages + 1) * e + messages * message_ns(dimension, 1, share)
    reduced = (n - 1) * endpoint.reduce_ns(share)
    if kind == "reduce_scatter":
        return n * e + (n - 1) * message_ns(dimension, 1, share) + reduced
    return (2 * n - 1) * e + 2 * (n - 1) * message_ns(dimension, 1, share) + reduced


def direct_ns(kind: CollectiveKind, dimension: Dimension, endpoint: Endpoint, size: Ints) -> Ints:
    """Everyone to everyone at once; the farthest rank decides."""
    n, e = dimension.ranks, endpoint.delay_ns
    share = size if kind == "all_gather" else size // n
    if kind == "all_reduce":
        return direct_all_reduce_ns(dimension, endpoint, share)
    reduced = endpoint.reduce_ns(share) if kind == "reduce_scatter" else 0
    return 2 * e + message_ns(dimension, n // 2, share) + reduced


def direct_all_reduce_ns(dimension: Dimension, endpoint: Endpoint, share: Ints) -> Ints:
    """Shares to everyone, then results to everyone.

    The first result leaves when every share has come and one of them has just been added up; the
    i-th one not before the i-th share is added up, and it goes to the rank i places on. Where all
    ranks are equally far apart that is 3e + 2 messages + one reduction.
    """
    n, e = dimension.ranks, endpoint.delay_ns
    reduced = endpoint.reduce_ns(share)
    if dimension.topology != "Ring":
        return 3 * e + 2 * message_ns(dimension, 1, share) + reduced
    near = [message_ns(dimension, distance, share) for distance in range(1, n // 2 + 1)]
    added = [e + message + e + reduced for message in near]
    all_came = e + near[-1]
    first = added[-1]
    for ns in reversed(added):
        first = np.where(ns >= all_came, ns, first)
    end = np.zeros_like(share)
    for distance, message in enumerate(near, start=1):
        # Of the two ranks that are so far away the one that gets its result later.
        leaves = np.maximum(added[(n - distance - 1) // 2], first)
        end = np.maximum(end, leaves + message)
    return end + e


def halving_doubling_ns(
    kind: CollectiveKind, dimension: Dimension, endpoint: Endpoint, size: Ints
) -> Ints:
    """Exchanges with partners twice as far each time; `ranks` is a power of two."""
    n, e = dimension.ranks, endpoint.delay_ns
    rounds = n.bit_length() - 1
    if kind == "all_gather":
        sent = (message_ns(dimension, n >> (k + 1), size << k) for k in range(rounds))
        return (rounds + 1) * e + total(sent)
    halves = [size >> k for k in range(1, rounds + 1)]
    scattered = total(message_ns(dimension, 1 << k, half) for k, half in enumerate(halves))
    reduced = total((endpoint.reduce_ns(half) for half in halves[1:]), like=size)
    if kind == "reduce_scatter":
        return (rounds + 1) * e + scattered + reduced
    # The way back doubles what halving once more had left.
    last = size >> (rounds + 1)
    back = (message_ns(dimension, n >> k, last << k) for k in range(1, rounds + 1))
    return (2 * rounds + 1) * e + scattered + total(back) + reduced


def double_tree_ns(dimension: Dimension, endpoint: Endpoint, size: Ints) -> Ints:
    """Up a binary tree and down again, whole; `ranks` is a power of two. An all-reduce only."""
    rounds = dimension.ranks.bit_length() - 1
    up = total(message_ns(dimension, 1 << k, size) for k in range(rounds))
    reduced = (2 * rounds - 1) * endpoint.reduce_ns(size)
    return (2 * rounds + 1) * endpoint.delay_ns + 2 * up + reduced


def total(parts: Iterable[Ints], like: Ints | None = None) -> Ints:
    """Their sum; zeros shaped like `like` where there are none."""
    found = list(parts)
    if not found:
        assert like is not None
        return np.zeros_like(like)
    summed: Ints = np.sum(found, axis=0, dtype=np.int64)
    return summed
