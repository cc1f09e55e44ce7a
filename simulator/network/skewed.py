"""When each rank leaves a collective that the ranks come to one after the other.

The same algorithms as in `collectives.py`, message by message: a message goes out when the one before
it has come and is dealt with, and is taken in when it has come and is asked for. Ranks lie in an
array with an axis a dimension; all groups of a dimension run at once. Started together all ranks
leave together, after exactly what `collectives.py` says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simulator.network.collectives import Endpoint, Ints, bytes_after, message_ns
from simulator.network.config import CollectiveKind, Dimension, NetworkConfig
from simulator.network.cost import collective_ns, least_bytes, phases


def ends_ns(
    network: NetworkConfig,
    kind: CollectiveKind,
    num_bytes: int,
    dims: tuple[int, ...],
    starts: Ints,
) -> Ints:
    """`starts[i, j, ...]`: when the rank at i, j, ... of the dimensions `dims` comes to it, ns.

    Trees are followed as a whole: all their ranks leave when the last one does.
    """
    trees = any(network.implementation(kind, dim) == "doubleBinaryTree" for dim in dims)
    if trees or (starts == starts.flat[0]).all():
        return np.full_like(starts, starts.max() + collective_ns(network, kind, num_bytes, dims))
    endpoint = Endpoint(network.endpoint_delay_ns, network.local_mem_gbps)
    size = np.array([max(num_bytes, least_bytes(network, kind))], np.int64)
    for phase, dim in phases(network, kind, dims):
        dimension = network.dimensions[dim]
        run = _RUNS[network.implementation(kind, dim)]
        # What an all-reduce gathers at its end goes around the other way.
        back = -1 if (kind, phase) == ("all_reduce", "all_gather") else 1
        moved = np.moveaxis(starts, dims.index(dim), 0)[::back]
        ends = run(phase, dimension, endpoint, int(size[0]), moved)[::back]
        starts = np.moveaxis(ends, 0, dims.index(dim))
        size = bytes_after(phase, dimension.ranks, size)
    return starts


def _message(dimension: Dimension, distance: int, num_bytes: int) -> int:
    return int(message_ns(dimension, distance, np.array([num_bytes]))[0])


def _reduce(endpoint: Endpoint, num_bytes: int) -> int:
    return int(endpoint.reduce_ns(np.array([num_bytes]))[0])


def _ring(
    kind: CollectiveKind, dimension: Dimension, endpoint: Endpoint, size: int, starts: Ints
) -> Ints:
    n, share = dimension.ranks, size if kind == "all_gather" else size // dimension.ranks
    message, reduced = _message(dimension, 1, share), _reduce(endpoint, share)
    count = {"all_reduce": 2 * (n - 1), "all_to_all": n * (n - 1) // 2}.get(kind, n - 1)
    sums = n - 1 if kind in ("all_reduce", "reduce_scatter") else 0
    sent = starts + endpoint.delay_ns
    for i in range(count):
        came = np.maximum(np.roll(sent, 1, axis=0) + message, sent)
        sent = came + endpoint.delay_ns + (reduced if i < sums else 0)
    return sent


def _halving_doubling(
    kind: CollectiveKind, dimension: Dimension, endpoint: Endpoint, size: int, starts: Ints
) -> Ints:
    n = dimension.ranks
    rounds = n.bit_length() - 1
    near = [(1 << k, size >> (k + 1)) for k in range(rounds)]
    if kind == "all_gather":
        exchanges, sums = [(n >> (k + 1), size << k) for k in range(rounds)], 0
    else:
        exchanges, sums = list(near), rounds - 1
        if kind == "all_reduce":
            last = size >> (rounds + 1)
            exchanges += [(n >> k, last << k) for k in range(1, rounds + 1)]
    places = np.arange(n)
    sent = starts + endpoint.delay_ns
    for i, (distance, num_bytes) in enumerate(exchanges):
        message = _message(dimension, distance, num_bytes)
        came = np.maximum(sent[places ^ distance] + message, sent)
        reduced = _reduce(endpoint, near[i + 1][1]) if i < sums else 0
        sent = came + endpoint.delay_ns + reduced
    return sent


def _direct(
    kind: CollectiveKind, dimension: Dimension, endpoint: Endpoint, size: int, starts: Ints
) -> Ints:
    n, e = dimension.ranks, endpoint.delay_ns
    share = size if kind == "all_gather" else size // n
    reduced = _reduce(endpoint, share) if kind in ("all_reduce", "reduce_scatter") else 0
    messages = [_message(dimension, distance, share) for distance in range(1, n)]
    sent = starts + e
    came = _arrivals(np.stack([sent] * (n - 1)), messages)
    if kind != "all_reduce":
        last: Ints = came.max(axis=0) + e + reduced
        return last
    # Every share and every result that is dealt with lets one result go, once all shares have come.
    shares = came + e + reduced
    all_came = came.max(axis=0)
    results = np.full_like(came, _NEVER)
    while True:
        dealt_with = np.sort(np.concatenate([shares, results + e]), axis=0)
        first = np.where(dealt_with >= all_came, dealt_with, _NEVER).min(axis=0)
        leaves = np.maximum(dealt_with[: n - 1], first)
        earlier = _arrivals(leaves, messages)
        if (earlier == results).all():
            end: Ints = np.maximum(results.max(axis=0) + e, shares.max(axis=0))
            return end
        results = earlier


def _arrivals(leaves: Ints, messages: list[int]) -> Ints:
    """[place - 1]: from the rank so many places before; what a rank sends goes as many on."""
    return np.stack(
        [
            np.maximum(np.roll(leaves[i], i + 1, axis=0) + message, leaves[i])
            for i, message in enumerate(messages)
        ]
    )


_NEVER = np.iinfo(np.int64).max // 4

_RUNS: dict[str, Callable[[CollectiveKind, Dimension, Endpoint, int, Ints], Ints]] = {
    "ring": _ring,
    "direct": _direct,
    "halvingDoubling": _halving_doubling,
}
