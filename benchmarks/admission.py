"""How long one admission check of InfiniLM's takes, against the number of running requests.

    python -m benchmarks.admission [--manifest FILE] [--seconds 0.2]

All three admissions are the engine's own compiled code. The requests are the manifest's: wave 1, over
and over until as many run as asked, each with its prompt computed and one token generated; the
candidates are those of wave 2, asked in turn and not admitted. The pool grows with the number that run
(the manifest's blocks per request of wave 1). Checks run in a compiled loop, whose own time, about a
nanosecond a turn, is in the figures. The last line is JSON: running, and for each admission
ns_per_check in the same order (median of 5), reserved blocks; and at_256, the ratios of the scans to
incremental.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.infinilm import ADMISSIONS
from benchmarks.manifests import FOLDER
from profiles.errors import InputError
from simulator.build import ADMISSIONS as CODES
from simulator.build import EngineSettings, build_engine
from simulator.core import state
from simulator.core.admission import can_accept, num_reserved_blocks
from simulator.core.engine import advance
from simulator.core.jit import JIT
from simulator.core.state import Engine
from simulator.prefix import block_hashes
from simulator.step_tables import linear_law
from simulator.workloads.manifest import Manifest, ManifestRequest, load_manifest

RUNNING = (1, 4, 16, 64, 256, 512, 1024)
REPEATS = 5


def compiled_loops() -> tuple[Callable[..., int], Callable[..., int]]:
    """(many checks, what is reserved), for calls from Python.

    Each turn writes to the pool's counters, so that no turn's work can be moved out of the loop.
    """

    def checks(engine: Engine, first: int, count: int, times: int) -> int:
        accepted = 0
        r = first
        for _ in range(times):
            num_running = engine.queues.counters[0].num_running
            engine.kv.pool[0].queries += 1
            if can_accept(engine, r, 0, num_running, 0):
                accepted += 1
            r += 1
            if r == first + count:
                r = first
        return accepted

    def reserved(engine: Engine) -> int:
        return num_reserved_blocks(engine, engine.queues.counters[0].num_running)

    if not JIT:
        return checks, reserved
    from numba import njit

    one, two = (njit(_nrt=False, error_model="numpy")(f) for f in (checks, reserved))
    return one, two


def engine_with(manifest: Manifest, running: int) -> tuple[Engine, int, int]:
    """An engine in which `running` requests of wave 1 have one token, and wave 2 waits.

    Returns it with the first candidate and their number.
    """
    wave1, wave2 = manifest.wave(1), manifest.wave(2)
    ours = [
        r.model_copy(update={"id": f"running-{i}"})
        for i, r in enumerate(islice(cycle(wave1), running))
    ]
    both: list[ManifestRequest] = [*ours, *wave2]
    workload = Manifest(
        name=manifest.name,
        block_size=manifest.block_size,
        num_blocks=manifest.num_blocks,
        requests=tuple(both),
    ).workload()
    settings = EngineSettings(
        num_gpu_blocks=max(16, -(-manifest.num_blocks * running // len(wave1))),
        max_model_len=1 << 20,
        block_size=manifest.block_size,
        null_block=False,
        max_num_seqs=running,
        max_num_batched_tokens=1 << 22,
        enable_prefix_caching=False,
        engine="infinilm",
        admission="incremental",
    )
    hashes = block_hashes(workload, settings.block_size)
    arrival = workload.arrival_ns.copy()
    arrival[running:] = 10**15  # after everything measured here
    engine, refused = build_engine(workload, hashes, settings, linear_law(1000, 0, 0, 0), arrival)
    assert not refused
    advance(engine, state.FOREVER, 1)  # forms the batch of all prompts
    advance(engine, 1001, 0)  # applies it: everybody has a token
    assert engine.queues.counters[0].num_running == running
    assert engine.queues.counters[0].num_generated_tokens == running
    return engine, running, len(wave2)


def ns_per_call(call: Callable[[int], Any], seconds: float) -> float:
    """Median over REPEATS of a loop's time by its turns; as many turns as fill `seconds`."""
    call(1)  # compiles it, the first time
    times = 64
    while True:
        start = time.perf_counter()
        call(times)
        spent = time.perf_counter() - start
        if spent > seconds / REPEATS / 4 or times > 1 << 28:
            break
        times *= 4
    times = max(1, int(times * seconds / REPEATS / spent))
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call(times)
        found.append((time.perf_counter() - start) / times * 1e9)
    return statistics.median(found)


def measure(manifest: Manifest, seconds: float) -> dict[str, Any]:
    checks, reserved = compiled_loops()
    report: dict[str, Any] = {"manifest": manifest.content_id, "running": list(RUNNING)}
    report |= {name: {"ns_per_check": [], "reserved_blocks": []} for name in ADMISSIONS}
    print(f"{'running':>8}" + "".join(f"{name:>16}" for name in ADMISSIONS) + "   ns per check")
    for running in RUNNING:
        engine, first, count = engine_with(manifest, running)
        for name in ADMISSIONS:
            engine.settings.admission = CODES[name]
            ns = ns_per_call(lambda n: checks(engine, first, count, n), seconds)  # noqa: B023
            report[name]["ns_per_check"].append(round(ns, 2))
            report[name]["reserved_blocks"].append(int(reserved(engine)))
        row = "".join(f"{report[name]['ns_per_check'][-1]:16.1f}" for name in ADMISSIONS)
        print(f"{running:8}{row}")
    at = RUNNING.index(256)
    ours = report["incremental"]["ns_per_check"][at]
    report["at_256"] = {
        f"{name}_by_incremental": round(report[name]["ns_per_check"][at] / ours, 1)
        for name in ("legacy", "exact-scan")
    }
    return report


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.admission",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--manifest", type=Path, default=FOLDER / "fixed.json")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each measurement")
    arguments = parser.parse_args()
    try:
        report = measure(load_manifest(arguments.manifest), arguments.seconds)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
