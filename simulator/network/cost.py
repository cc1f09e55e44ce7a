"""Collectives over several dimensions, messages, and tables of both.

Over several dimensions a collective is a chain of phases, one dimension each, every rank holding
what the phase before left it. A phase starts when the one before has ended.
"""

from __future__ import annotations

from typing import overload

import numpy as np
import numpy.typing as npt

from profiles.errors import InputError
from simulator.network.collectives import Endpoint, Ints, bytes_after, message_ns, phase_ns
from simulator.network.config import KINDS, MAX_BYTES, CollectiveKind, NetworkConfig


@overload
def collective_ns(
    network: NetworkConfig,
    kind: CollectiveKind,
    num_bytes: int,
    dims: tuple[int, ...] | None = None,
) -> int: ...


@overload
def collective_ns(
    network: NetworkConfig,
    kind: CollectiveKind,
    num_bytes: npt.NDArray[np.integer],
    dims: tuple[int, ...] | None = None,
) -> Ints: ...


def collective_ns(
    network: NetworkConfig,
    kind: CollectiveKind,
    num_bytes: int | npt.NDArray[np.integer],
    dims: tuple[int, ...] | None = None,
) -> int | Ints:
    """How long a collective takes, ns, if all ranks start it together.

    `num_bytes` is the whole buffer (one rank's share for an all-gather), one size or an array of any
    shape. `dims` are the dimensions it runs over, None for all. One rank alone, or no bytes, take no
    time. Raises InputError for a kind, a size or dimensions that are not there.
    """
    if kind not in KINDS:
        raise InputError("network", "collective", kind, f"one of {', '.join(KINDS)}")
    involved = network.involved(dims)
    sizes = _checked(num_bytes)
    ns = _phases_ns(network, kind, np.maximum(sizes, least_bytes(network, kind)), involved)
    ns[sizes == 0] = 0
    return int(ns[0]) if isinstance(num_bytes, int) else ns.reshape(np.shape(num_bytes))


def _checked(num_bytes: int | npt.NDArray[np.integer]) -> Ints:
    given = np.asarray(num_bytes)
    if given.dtype.kind not in "iu":
        raise InputError("network", "num_bytes", num_bytes, "whole numbers of bytes")
    wrong = given[(given < 0) | (given > MAX_BYTES)]
    if wrong.size:
        expected = f"0 to {MAX_BYTES} (2^40) bytes in one transfer"
        raise InputError("network", "num_bytes", int(wrong.flat[0]), expected)
    return given.astype(np.int64).reshape(-1)


def least_bytes(network: NetworkConfig, kind: CollectiveKind) -> int:
    """A smaller buffer is padded, so that every rank of the whole network has a byte of it."""
    return 0 if kind == "all_gather" else network.ranks


def _phases_ns(
    network: NetworkConfig, kind: CollectiveKind, sizes: Ints, dims: tuple[int, ...]
) -> Ints:
    endpoint = Endpoint(network.endpoint_delay_ns, network.local_mem_gbps)
    total = np.zeros_like(sizes)
    for phase, dim in phases(network, kind, dims):
        dimension = network.dimensions[dim]
        implementation = network.implementation(kind, dim)
        if implementation == "doubleBinaryTree" and phase != "all_reduce":
            expected = (
                "another implementation in inner dimensions, where an all-reduce over several is a "
                "reduce-scatter and an all-gather; or collective_optimization: baseline"
            )
            raise InputError("network", f"all_reduce[{dim}]", implementation, expected)
        total += phase_ns(phase, implementation, dimension, endpoint, sizes)
        sizes = bytes_after(phase, dimension.ranks, sizes)
    return total


def phases(
    network: NetworkConfig, kind: CollectiveKind, dims: tuple[int, ...]
) -> list[tuple[CollectiveKind, int]]:
    """What runs in which dimension, in order. Dimensions of one rank have no phase."""
    active = [dim for dim in dims if network.dimensions[dim].ranks > 1]
    if kind == "all_gather":
        return [(kind, dim) for dim in reversed(active)]
    if kind != "all_reduce" or network.collective_optimization == "baseline" or not active:
        return [(kind, dim) for dim in active]
    *inner, outermost = active
    scatter: list[tuple[CollectiveKind, int]] = [("reduce_scatter", dim) for dim in inner]
    gather: list[tuple[CollectiveKind, int]] = [("all_gather", dim) for dim in reversed(inner)]
    return [*scatter, ("all_reduce", outermost), *gather]


def send_ns(network: NetworkConfig, source: int, destination: int, num_bytes: int) -> int:
    """From one rank's send to its arrival at another, ns.

    Ranks that differ in several dimensions are as far apart as in the innermost of them, as in
    ASTRA-Sim. Raises InputError for a rank that is not there, for a rank that sends to itself and
    for no bytes.
    """
    for name, rank in (("source", source), ("destination", destination)):
        if not 0 <= rank < network.ranks:
            expected = f"a rank of the network, 0 to {network.ranks - 1}"
            raise InputError("network", name, rank, expected)
    (size,) = _checked(num_bytes)
    if source == destination or size == 0:
        value = f"{num_bytes} bytes from {source} to {destination}"
        raise InputError("network", "send", value, "at least a byte, to another rank")
    ends = zip(network.address(source), network.address(destination), strict=True)
    dim, distance = next((dim, abs(a - b)) for dim, (a, b) in enumerate(ends) if a != b)
    return int(message_ns(network.dimensions[dim], distance, np.array([size]))[0])


def collective_table(
    network: NetworkConfig,
    kind: CollectiveKind,
    bytes_per_token: int,
    max_num_tokens: int,
    dims: tuple[int, ...] | None = None,
) -> Ints:
    """ns of one collective by the tokens of a step: int64[max_num_tokens + 1], read-only.

    An all-reduce of hidden states has bytes_per_token = hidden_size x bytes of an element. A step
    runs the same collective several times in every block, so the table times that number adds to
    the step's own table by tokens, and a step costs no lookup more than without a network.
    """
    if bytes_per_token < 1 or max_num_tokens < 0:
        value = (bytes_per_token, max_num_tokens)
        raise InputError("network", "table", value, "at least a byte a token, and no token or more")
    sizes = np.arange(max_num_tokens + 1, dtype=np.int64) * bytes_per_token
    table = collective_ns(network, kind, sizes, dims)
    table.flags.writeable = False
    return table
