"""How fast one point is simulated.

    python -m benchmarks.replay [--case RTX4090/Llama-3.1-8B | generated] [--reference FOLDER]

The last line is JSON: case, steps, warm_ms (median of complete simulations, the engine built anew for
each), cold_s (a new process, from its first import to the end of its first simulation, with warm caches
on disk), peak_mib (of the process that measures), tokens_per_s (generated tokens by warm time); and
beside it build_ms and result_ms, what building the engine and making the result's tables take.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.cases import REFERENCE, ROOT, generated_point, replay_point
from profiles.errors import InputError
from simulator import Point

COLD = """
import sys, time
start = time.perf_counter()
from pathlib import Path
from benchmarks.replay import point_of
from simulator import prepare
from simulator.build import build_engine
from simulator.progress import run_to_end
ready = prepare(point_of(sys.argv[1], Path(sys.argv[2])))
engine, _ = build_engine(
    ready.workload, ready.hashes, ready.settings, ready.latency, ready.arrival_ns
)
run_to_end(engine, ready.workload)
print(time.perf_counter() - start)
"""


def point_of(case: str, reference: Path) -> Point:
    return generated_point(reference) if case == "generated" else replay_point(case, reference)


def cold_seconds(case: str, reference: Path, repeats: int) -> float:
    """Median over new processes."""
    times = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, "-c", COLD, case, str(reference)],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        times.append(float(done.stdout.split()[-1]))
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--case", default="RTX4090/Llama-3.1-8B")
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    parser.add_argument("--runs", type=int, help="default 25, 5 for the generated case")
    arguments = parser.parse_args()
    generated = arguments.case == "generated"
    runs = arguments.runs or (5 if generated else 25)

    from simulator import prepare
    from simulator.build import build_engine
    from simulator.progress import run_to_end
    from simulator.result import requests_table, timeseries_table

    try:
        ready = prepare(point_of(arguments.case, arguments.reference))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    build, simulate, result = [], [], []
    for turn in range(runs + 1):
        start = time.perf_counter()
        engine, refused = build_engine(
            ready.workload, ready.hashes, ready.settings, ready.latency, ready.arrival_ns
        )
        built = time.perf_counter()
        engine = run_to_end(engine, ready.workload)
        simulated = time.perf_counter()
        requests_table(engine, ready.workload, refused)
        timeseries_table(engine)
        if turn:  # the first run loads or compiles the code
            build.append(built - start)
            simulate.append(simulated - built)
            result.append(time.perf_counter() - simulated)
    counters = engine.queues.counters[0]
    warm = statistics.median(simulate)
    generated_tokens = int(counters.num_generated_tokens)
    print(
        f"{arguments.case}: {counters.num_steps} steps, {generated_tokens} generated tokens, "
        f"{counters.num_preemptions} preemptions; "
        f"{warm * 1e3:.2f} ms ({min(simulate) * 1e3:.2f} to {max(simulate) * 1e3:.2f}, {runs} runs)"
    )
    report = {
        "case": arguments.case,
        "steps": int(counters.num_steps),
        "warm_ms": round(warm * 1e3, 3),
        "cold_s": round(
            cold_seconds(arguments.case, arguments.reference, 1 if generated else 3), 3
        ),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "tokens_per_s": round(generated_tokens / warm),
        "build_ms": round(statistics.median(build) * 1e3, 3),
        "result_ms": round(statistics.median(result) * 1e3, 3),
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
