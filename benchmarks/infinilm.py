"""InfiniLM's admission study, simulated: TTFT of the second wave and throughput, by admission.

    python -m benchmarks.infinilm [--manifest FILE] [--sweep FILE] [--out DIR]
    python -m benchmarks.infinilm --compare RUN RUN ...

Simulates legacy, exact-scan and incremental on one manifest with the base point of the sweep, and on the
fixed manifest puts the published measurement beside them. Of that only the legacy row was used to fit
the step times (infinilm_fit.py); the other two are predictions. With --out each run is written to
DIR/<admission>, as `servesweep simulate` writes it. With --compare such folders are put side by side;
runs of different manifests are refused. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.manifests import FOLDER
from profiles.errors import MISSING, InputError, read_yaml
from profiles.foreign import json_object, read_file
from simulator import Point, point_from_mapping
from simulator.workloads.manifest import load_manifest

SWEEP = FOLDER.parent / "infinilm_admission.yaml"
ADMISSIONS = ("legacy", "exact-scan", "incremental")
METRICS = ("wave2_ttft_p50_s", "wave2_ttft_p95_s", "output_tokens_per_s")

# Published for InfiniLM, TinyLlama-1.1B on one RTX 4090 D, the fixed workload, median of 3 runs.
PUBLISHED = {
    "legacy": (7.68, 8.87, 2704.85),
    "exact-scan": (1.54, 11.53, 2509.70),
    "incremental": (1.49, 11.47, 2507.13),
}

Summary = Mapping[str, Any]


def serving_point(
    admission: str, manifest: Path | None = None, sweep: Path = SWEEP, **sections: Any
) -> Point:
    """The base point of the sweep under InfiniLM's scheduler; `sections` replace whole ones.

    With a manifest, its requests in its pool.
    """
    base = dict(read_yaml(sweep)["base"])
    base["engine"] = {**base["engine"], "engine": "infinilm", "admission": admission}
    if manifest is not None:
        found = load_manifest(manifest)
        pool = {"block_size": found.block_size, "num_gpu_blocks_override": found.num_blocks}
        base["engine"] |= pool
        base["workload"] = {"manifest": str(manifest.resolve())}
    return point_from_mapping({**base, **sections}, sweep.parent, sweep)


def metrics(summary: Summary) -> tuple[float, float, float]:
    """In the order of METRICS."""
    ttft = summary["waves"][1]["ttft_ms"]
    throughput = summary["throughput"]["output_tokens_per_s"]
    return ttft["p50"] / 1e3, ttft["p95"] / 1e3, throughput


def read_summary(run: Path) -> Summary:
    path = run / "summary.json"
    return json_object(read_file(path), path)


def check_same_manifest(runs: Mapping[str, Summary]) -> str:
    """The manifest all runs were made with. Raises InputError if it is not one."""
    first, expected = "", ""
    for name, summary in runs.items():
        found = summary.get("workload", {}).get("manifest", MISSING)
        if found is MISSING or len(summary.get("waves", [])) < 2:
            wanted = "a run of a manifest with two waves"
            raise InputError(name, "workload.manifest", found, wanted)
        if expected and found != expected:
            wanted = f"{expected} as in {first}: runs of different manifests are not comparable"
            raise InputError(name, "workload.manifest", found, wanted)
        first, expected = first or name, found
    return expected


def other_differences(runs: Mapping[str, Summary]) -> list[str]:
    """What differs between runs beside their admission."""
    parts = {
        "model": lambda s: s["model"],
        "card": lambda s: s["card"],
        "profile": lambda s: s["profile"]["content_id"],
        "overhead": lambda s: s["overhead"],
        "blocks": lambda s: s["kv"]["usable_blocks"],
        "engine": lambda s: {k: v for k, v in s["engine"].items() if k != "admission"},
    }
    return [
        name
        for name, part in parts.items()
        if len({json.dumps(part(s), sort_keys=True) for s in runs.values()}) > 1
    ]


def compare(runs: Mapping[str, Summary], *, published: bool = False) -> dict[str, Any]:
    """Print the runs side by side, each against the first. Raises InputError."""
    manifest = check_same_manifest(runs)
    print(f"manifest {manifest}")
    if differences := other_differences(runs):
        print(f"beside admission these differ: {', '.join(differences)}")
    width = max(map(len, runs))
    print(f"{'':{width}}  wave-2 TTFT p50  wave-2 TTFT p95   output tokens/s")
    first: tuple[float, ...] = ()
    for name, summary in runs.items():
        found = metrics(summary)
        first = first or found
        print(f"{name:{width}}  {_row(found, first)}")
        if published:
            print(f"{'  published':{width}}  {_row(PUBLISHED[name], PUBLISHED['legacy'])}")
    return {
        "manifest": manifest,
        "runs": {
            name: {
                **dict(zip(METRICS, metrics(summary), strict=True)),
                **{k: summary["kv"][k] for k in summary["kv"] if "reserved" in k},
            }
            for name, summary in runs.items()
        },
        **({"published": PUBLISHED} if published else {}),
    }


def _row(values: tuple[float, ...], first: tuple[float, ...]) -> str:
    def change(i: int) -> str:
        return "" if values is first else f"({(values[i] / first[i] - 1) * 100:+.1f} %)"

    p50, p95, throughput = values
    return (
        f"{p50:5.2f} s {change(0):>8}  {p95:5.2f} s {change(1):>8}  "
        f"{throughput:7.2f} {change(2):>8}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.infinilm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--manifest", type=Path, default=FOLDER / "fixed.json")
    parser.add_argument("--sweep", type=Path, default=SWEEP)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path, nargs="+", metavar="RUN")
    arguments = parser.parse_args()
    try:
        if arguments.compare:
            report = compare({str(run): read_summary(run) for run in arguments.compare})
        else:
            report = simulated(arguments.manifest, arguments.sweep, arguments.out)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(report))
    return 0


def simulated(manifest: Path, sweep: Path, out: Path | None) -> dict[str, Any]:
    from simulator import simulate

    same = load_manifest(manifest).content_id == load_manifest(FOLDER / "fixed.json").content_id
    runs = {}
    for admission in ADMISSIONS:
        result = simulate(serving_point(admission, manifest, sweep), source=sweep)
        if out is not None:
            result.write(out / admission)
        runs[admission] = result.summary
    return compare(runs, published=same)


if __name__ == "__main__":
    sys.exit(main())
