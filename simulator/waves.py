"""When the waves of a workload arrive.

A wave arrives when every request of the waves before it has its first token: a client that waits for
them before it sends the next. What happens until then does not depend on what comes after, so the
waves before are simulated alone, with the same settings and step times, and the last first token is
the arrival of the next. A request that is refused is not waited for.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.build import EngineSettings, build_engine
from simulator.core import state
from simulator.core.latency import Latency
from simulator.prefix import BlockHashes
from simulator.progress import run_to_end
from simulator.workloads import Workload


def wave_arrivals(
    workload: Workload, hashes: BlockHashes, settings: EngineSettings, latency: Latency
) -> NDArray[np.int64]:
    """Arrival in ns of each request of a workload with waves."""
    assert workload.wave is not None
    arrival = workload.arrival_ns.copy()
    starts = (np.flatnonzero(np.diff(workload.wave) > 0) + 1).tolist()
    ends = [*starts[1:], len(workload)] if starts else []
    for start, end in zip(starts, ends, strict=True):
        before = workload.first(int(start))
        known = replace(hashes, offsets=hashes.offsets[: start + 1])
        engine, _ = build_engine(before, known, settings, latency, arrival[:start])
        first = run_to_end(engine, before).kv.infos.first_token_ns
        arrival[start:end] += max(0, int(first.max(initial=state.NEVER)))
    arrival.flags.writeable = False
    return arrival
