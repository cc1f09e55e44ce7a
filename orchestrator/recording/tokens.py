"""Token ids for every request of a workload, so that the real engine hits where the simulator does.

Tokens that the workload knows are used as they are, or spread over the vocabulary where they do not
fit into it (ids of a trace's chunks, or of another vocabulary): equal tokens stay equal. What the
workload does not know belongs to one request alone and is drawn at random from its number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.recording.inside.files import Requests
from simulator.workloads import Workload


def with_tokens(workload: Workload, arrival_ns: NDArray[np.int64], vocab_size: int) -> Requests:
    """The workload with every token of its requests, from 0 to `vocab_size` - 1."""
    offsets = np.zeros(len(workload) + 1, np.int64)
    np.cumsum(workload.num_tokens, out=offsets[1:])
    tokens = np.empty(int(offsets[-1]), np.int32)
    as_they_are = workload.chunk_size == 1 and workload.token_ids.max(initial=0) < vocab_size
    known = workload.num_known_tokens
    for r in range(len(workload)):
        of_request = tokens[offsets[r] : offsets[r + 1]]
        span = workload.token_ids[workload.token_offsets[r] : workload.token_offsets[r + 1]]
        if as_they_are:
            of_request[: known[r]] = span
        else:
            each = np.arange(workload.chunk_size)
            wide = span.astype(np.uint64)[:, np.newaxis] * np.uint64(workload.chunk_size)
            expanded = (wide + each.astype(np.uint64)).ravel()[: known[r]]
            of_request[: known[r]] = spread(expanded) % np.uint64(vocab_size)
        rest = len(of_request) - int(known[r])
        of_request[known[r] :] = np.random.default_rng(r).integers(0, vocab_size, rest)
    return Requests(
        arrival_ns=arrival_ns,
        num_prompt_tokens=workload.num_prompt_tokens,
        num_output_tokens=workload.num_output_tokens,
        priority=workload.priority,
        session_parent=workload.session_parent,
        tool_ns=workload.tool_ns,
        token_offsets=offsets,
        token_ids=tokens,
    )


def spread(values: NDArray[np.uint64]) -> Any:
    """SplitMix64's finalizer: neighbours end up far from each other."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
