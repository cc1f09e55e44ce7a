"""How well the package's own tables interpolate, every inner sample left out in turn.

The rules are those that `compose.py` uses: linear over m, n, k of products and over batch size and
length of decodes, the curve of `Prefill.at` over prompt lengths.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from profiles.aiconfigurator.attention import Decode, Prefill, decode_table, prefill_table
from profiles.aiconfigurator.gemm import GemmTables
from profiles.aiconfigurator.shape import Shape
from profiles.aiconfigurator.source import System
from profiles.bundle import Floats, Ints
from profiles.leave_one_out import Errors
from profiles.provenance import MEASURED

LARGE = 1024  # products of models have at least so many outputs and inputs


def system_errors(system: System, shape: Shape) -> Iterator[Errors]:
    """Of the tables that `shape` is composed from."""
    gemm = GemmTables(system)
    for axis, name in enumerate("mnk"):
        yield Errors.of("gemm", name, _gemm_errors(gemm, axis))
    yield Errors.of("context_attention", "isl", _prefill_errors(prefill_table(system, shape)))
    decode = decode_table(system, shape)
    for axis, name in enumerate(("batch_size", "step")):
        yield Errors.of("generation_attention", name, _decode_errors(decode, axis))


def _gemm_errors(gemm: GemmTables, axis: int) -> Floats:
    keys = (gemm.m, gemm.n, gemm.k)
    kept = gemm.ns[:, keys[1] >= LARGE][:, :, keys[2] >= LARGE]
    key = keys[axis] if axis == 0 else keys[axis][keys[axis] >= LARGE]
    return _lines(np.moveaxis(kept, axis, -1), key)


def _decode_errors(decode: Decode, axis: int) -> Floats:
    measured = np.where(decode.source == MEASURED, decode.ns, np.nan)
    return _lines(np.moveaxis(measured, axis, -1), (decode.n_decode, decode.kv)[axis])


def _lines(ns: Floats, keys: Ints) -> Floats:
    """Along the last axis; a sample that lacks a neighbour is left out of the account."""
    below, there, above = ns[..., :-2], ns[..., 1:-1], ns[..., 2:]
    share = (keys[1:-1] - keys[:-2]) / (keys[2:] - keys[:-2])
    errors = np.abs((below + share * (above - below)) / there - 1)
    found: Floats = errors[np.isfinite(errors)]
    return found


def _prefill_errors(prefill: Prefill) -> Floats:
    errors = []
    for left_out in range(1, len(prefill.tokens) - 1):
        rest = Prefill(
            np.delete(prefill.tokens, left_out), np.delete(prefill.ns, left_out), prefill.kernel
        )
        read = rest.at(prefill.tokens[left_out : left_out + 1])[0]
        errors.append(abs(read / prefill.ns[left_out] - 1))
    return np.array(errors)
