"""Small workloads for tests."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from simulator.workloads import Workload


def make_workload(
    tokens: Sequence[Sequence[int]] = ((1, 2, 3),), *, chunk_size: int = 1, **changed: Any
) -> Workload:
    """Requests whose spans are `tokens`; by default everything but the last token is the prompt."""
    n = len(tokens)
    sizes = [len(span) * chunk_size for span in tokens]
    fields: dict[str, Any] = {
        "request_ids": [str(r) for r in range(n)],
        "arrival_ns": np.arange(n),
        "num_prompt_tokens": np.array([max(1, size - 1) for size in sizes]),
        "num_output_tokens": np.ones(n, np.int64),
        "priority": np.zeros(n, np.int32),
        "session_parent": np.full(n, -1),
        "tool_ns": np.zeros(n, np.int64),
        "token_offsets": np.cumsum([0, *(len(span) for span in tokens)]),
        "token_ids": np.fromiter(chain.from_iterable(tokens), np.int32),
        "chunk_size": chunk_size,
        "source": "made",
    }
    return Workload(**fields | changed)
