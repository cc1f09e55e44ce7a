"""Times of many batches through `step_ns`, compiled or not as SERVESWEEP_JIT says.

As a program: `python -m tests.simulator.step_times <variant> <seed> <count>` prints them as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from profiles.llmservingsim import load_bundle
from simulator.core.jit import JIT
from simulator.core.latency import Latency, step_ns
from simulator.step_tables import ModeTimes, new_outside, step_tables
from tests.simulator.naive_latency import random_batches


def _fill(latency: Latency, outside: Any, batches: Any, times: Any) -> None:
    for i in range(len(batches)):
        times[i] = step_ns(
            latency,
            outside,
            batches[i, 0],
            batches[i, 1],
            batches[i, 2],
            batches[i, 3],
            batches[i, 4],
            batches[i, 5],
            batches[i, 6],
            batches[i, 7],
        )


if JIT:
    from numba import njit

    _fill = njit(_nrt=False, error_model="numpy")(_fill)


def step_times(latency: Latency, batches: np.ndarray) -> tuple[np.ndarray, np.recarray]:
    """The batches' times, and the lookups outside the grid."""
    outside = new_outside(latency)
    times = np.zeros(len(batches), np.int64)
    _fill(latency, outside, batches, times)
    return times, outside


def main(variant: str, seed: str, count: str) -> None:
    latency = step_tables(
        load_bundle(Path(variant)),
        num_layers=3,
        max_num_batched_tokens=128,
        max_num_seqs=32,
        capture_sizes=(1, 2, 4, 8, 32),
        mode_ns=ModeTimes(-700, 900, 5000),
    )
    batches = random_batches(int(count), int(seed), tokens=90, seqs=20, kv=1200)
    times, outside = step_times(latency, batches)
    print(json.dumps({"jit": JIT, "times": times.tolist(), "outside": outside.tolist()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
