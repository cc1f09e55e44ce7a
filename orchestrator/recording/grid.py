"""Which batches are measured: a geometric grid over what the point's engine can form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from profiles.errors import InputError
from simulator.simulation import Prepared

SMALLEST_CHUNK, SHORTEST = 16, 32
STEPS_OF_A_GROUP = 64  # decodes grow by a token a step: room for that many


@dataclass(frozen=True)
class Group:
    """Decodes at one length, and the chunks that run beside them: (tokens, computed before)."""

    n_decode: int
    kv_decode: int
    chunks: tuple[tuple[int, int], ...]


def powers(first: int, last: int, factor: int) -> list[int]:
    """first, first x factor, ... and last."""
    found = []
    while first < last:
        found.append(first)
        first *= factor
    return [*found, last]


def groups_of(prepared: Prepared) -> list[Group]:
    """Every group fits into the pool and the model's length. Raises InputError if none does."""
    settings = prepared.settings
    pool = settings.num_usable_blocks * settings.block_size
    longest = prepared.max_model_len - STEPS_OF_A_GROUP
    if longest <= SHORTEST:
        expected = f"more than {SHORTEST + STEPS_OF_A_GROUP}, to measure"
        field = "engine.max_model_len"
        raise InputError("measure", field, prepared.max_model_len, expected)
    groups = []
    for n in (0, *powers(1, settings.max_num_seqs, 2)):
        for length in powers(SHORTEST, longest, 4) if n else (0,):
            # A block a request may be open, and each grows during the group.
            held = n * (length + STEPS_OF_A_GROUP + settings.block_size)
            if held > pool:
                continue
            # The chunks' request is one more running beside the decodes.
            room = min(settings.max_num_batched_tokens - n, pool - held, longest)
            chunks = (
                () if n >= settings.max_num_seqs else tuple(chunks_of(room, longest, pool - held))
            )
            if n or chunks:
                groups.append(Group(n, length, chunks))
    return groups


def chunks_of(largest: int, longest: int, free: int) -> Iterable[tuple[int, int]]:
    """Chunks up to `largest`, alone and behind tokens that were computed before."""
    if largest < SMALLEST_CHUNK:
        return
    for chunk in powers(SMALLEST_CHUNK, largest, 4):
        most = min(longest, free) - chunk
        yield chunk, 0
        # The tokens before are computed in one step, which has room for `largest` of them.
        if min(most, largest) >= SMALLEST_CHUNK:
            yield chunk, min(most, largest)
