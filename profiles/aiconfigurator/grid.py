"""The attention grid that the core reads, from prefill and decode tables and the rules for the rest."""

from __future__ import annotations

import itertools

import numpy as np

from profiles.aiconfigurator.attention import decode_table, prefill_table
from profiles.aiconfigurator.gemm import whole_ns
from profiles.aiconfigurator.mixed import Batches
from profiles.aiconfigurator.shape import Shape
from profiles.aiconfigurator.source import System
from profiles.bundle import AttentionGrid, Ints
from profiles.provenance import DERIVED, INTERPOLATED, MEASURED

# Between neighbours a ratio of at most 1.25, so that a line stays within 1.3 % of a square.
FINEST = 16
LARGEST_RATIO = 1.25
HISTORIES = (0, 256, 1024, 4096, 16384, 65536, 131072)
SHORTEST_KV = 31  # below, decode kernels take the same time


def attention_grid(system: System, shape: Shape) -> AttentionGrid:
    """Every (prefill_chunk, n_decode, kv_prefill, kv_decode). Raises InputError."""
    prefill, decode = prefill_table(system, shape), decode_table(system, shape)
    batches = Batches(system, shape, prefill, decode)
    chunks = refined(prefill.tokens)
    kept = (decode.kv >= SHORTEST_KV) | (decode.kv == decode.kv[0])
    kv, alone, alone_source = decode.kv[kept], decode.ns[:, kept], decode.source[:, kept]
    histories = np.array(HISTORIES, np.int64)

    prompts = np.broadcast_arrays(chunks[:, None], histories[None, :])
    fresh = np.where(np.isin(chunks, prefill.tokens), MEASURED, INTERPOLATED)
    prompts_source = np.where(histories[None, :] > 0, DERIVED, fresh[:, None])
    axes = np.broadcast_arrays(
        chunks[:, None, None, None],
        decode.n_decode[None, :, None, None],
        histories[None, None, :, None],
        kv[None, None, None, :],
    )
    chunk, n_decode, history, held = axes
    mixed_ns = batches.mixed_ns(chunk, history, n_decode, held, alone[None, :, None, :])

    zero = np.zeros(1, np.int64)
    only_decodes = np.broadcast_arrays(decode.n_decode[:, None], kv[None, :])
    parts = [
        (zero, only_decodes[0], zero, only_decodes[1], alone, alone_source),
        (
            prompts[0],
            zero,
            prompts[1],
            zero,
            batches.prefill_ns(prompts[0], prompts[1]),
            prompts_source,
        ),
        (chunk, n_decode, history, held, mixed_ns, np.array([batches.mixing.source])),
    ]
    columns = [
        np.concatenate([np.broadcast_to(part[i], part[4].shape).ravel() for part in parts])
        for i in range(6)
    ]
    order = np.lexsort(tuple(columns[i] for i in (3, 2, 1, 0)))
    return AttentionGrid(
        prefill_chunk=columns[0][order].astype(np.int64),
        n_decode=columns[1][order].astype(np.int64),
        kv_prefill=columns[2][order].astype(np.int64),
        kv_decode=columns[3][order].astype(np.int64),
        ns=whole_ns(columns[4][order]),
        source=columns[5][order].astype(np.uint8),
    )


def refined(samples: Ints) -> Ints:
    """The samples, and between neighbours that are far apart as many more as it takes."""
    found = [samples]
    for low, high in itertools.pairwise(samples.tolist()):
        if low >= FINEST:
            pieces = int(np.ceil(np.log(high / low) / np.log(LARGEST_RATIO)))
            found.append(np.round(np.geomspace(low, high, pieces + 1)).astype(np.int64))
    every: Ints = np.unique(np.concatenate(found))
    return every
