"""How fast one point is simulated.

    python -m benchmarks.replay [--case RTX4090/Llama-3.1-8B | generated] [--reference FOLDER] [--rival]

The last line is JSON: case, steps, warm_ms (median of complete simulations, the engine built anew for
each), cold_s (a new process, from its first import to the end of its first simulation, with warm caches
on disk), peak_mib (of the process that measures), tokens_per_s (generated tokens by warm time); and
beside it build_ms and result_ms, what building the engine and making the result's tables take.

With --rival the plain Python loop of plain_loop.py simulates the same in between, must agree, and adds
plain_ms (median of its runs, its objects made before) and ratio (plain_ms by warm_ms).
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

RIVAL_RUNS = 5

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


def peak_mib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def milliseconds(times: list[float]) -> str:
    median, first, last = (f(times) * 1e3 for f in (statistics.median, min, max))
    return f"{median:.2f} ms ({first:.2f} to {last:.2f}, {len(times)} runs)"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--case", default="RTX4090/Llama-3.1-8B")
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    parser.add_argument("--runs", type=int, help="default 25, 5 for the generated case")
    parser.add_argument("--rival", action="store_true", help="the plain Python loop beside it")
    arguments = parser.parse_args()
    generated = arguments.case == "generated"
    runs = arguments.runs or (5 if generated else 25)
    if arguments.rival and generated:
        parser.error("--rival needs a replay: the generated case is asynchronous, the loop is not")
    if arguments.rival and runs < 3:
        parser.error("--rival needs --runs of at least 3")

    from benchmarks.plain_loop import PlainLoop, check_supported, differences
    from simulator import prepare
    from simulator.build import build_engine
    from simulator.progress import run_to_end
    from simulator.result import requests_table, timeseries_table

    try:
        ready = prepare(point_of(arguments.case, arguments.reference))
        if arguments.rival:
            check_supported(ready.workload, ready.settings, ready.latency)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    build, simulate, result = [], [], []
    plain: list[float] = []
    cpu: dict[str, list[float]] = {"engine": [], "plain": []}
    for turn in range(runs + 1):
        start = time.perf_counter()
        engine, refused = build_engine(
            ready.workload, ready.hashes, ready.settings, ready.latency, ready.arrival_ns
        )
        built = time.perf_counter()
        cpu_start = time.thread_time()
        engine = run_to_end(engine, ready.workload)
        simulated = time.perf_counter()
        cpu_end = time.thread_time()
        requests_table(engine, ready.workload, refused)
        timeseries_table(engine)
        if turn:  # the first run loads or compiles the code
            build.append(built - start)
            simulate.append(simulated - built)
            cpu["engine"].append(cpu_end - cpu_start)
            result.append(time.perf_counter() - simulated)
        if not plain:
            peak = peak_mib()  # without the rival's objects
        if arguments.rival and turn and turn % max(1, runs // RIVAL_RUNS) == 0:
            rival = PlainLoop(
                ready.workload, ready.hashes, ready.settings, ready.latency, ready.arrival_ns
            )
            start, cpu_start = time.perf_counter(), time.thread_time()
            rival.run()
            plain.append(time.perf_counter() - start)
            cpu["plain"].append(time.thread_time() - cpu_start)
            if found := differences(rival, engine):
                print("plain loop and engine differ:", "; ".join(found), file=sys.stderr)
                return 1
    counters = engine.queues.counters[0]
    warm = statistics.median(simulate)
    generated_tokens = int(counters.num_generated_tokens)
    print(
        f"{arguments.case}: {counters.num_steps} steps, {generated_tokens} generated tokens, "
        f"{counters.num_preemptions} preemptions; "
        f"{milliseconds(simulate)}"
    )
    report = {
        "case": arguments.case,
        "steps": int(counters.num_steps),
        "warm_ms": round(warm * 1e3, 3),
        "cold_s": round(
            cold_seconds(arguments.case, arguments.reference, 1 if generated else 3), 3
        ),
        "peak_mib": peak,
        "tokens_per_s": round(generated_tokens / warm),
        "build_ms": round(statistics.median(build) * 1e3, 3),
        "result_ms": round(statistics.median(result) * 1e3, 3),
    }
    if plain:
        median = statistics.median(plain)
        cpu_ratio = statistics.median(cpu["plain"]) / statistics.median(cpu["engine"])
        print(
            f"plain loop: {milliseconds(plain)}; ratio in CPU time {cpu_ratio:.1f}; "
            f"equal: clock {counters.now_ns} ns, {counters.num_steps} steps, "
            f"{counters.num_preemptions} preemptions, "
            f"{counters.hit_tokens_all_admissions} hit tokens, the end of every step, "
            "first and last tokens"
        )
        report |= {"plain_ms": round(median * 1e3, 1), "ratio": round(median / warm, 1)}
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
