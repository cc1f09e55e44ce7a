"""Recorded runs whose settings are known: a simulation written as a recording, and studies of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from orchestrator.calibration.session import Calibrated, calibrate
from orchestrator.calibration.study import Study, load_study
from simulator import Result, point_from_mapping, simulate
from tests.orchestrator.sweep_make import Watch, base
from tests.orchestrator.truth_make import HEADER, META

WORKLOAD: dict[str, Any] = {
    "generate": {
        "num_requests": 120,
        "seed": 5,
        "arrivals": {"process": "poisson", "rate": 120.0},
        "prompt_tokens": {"uniform": [20, 200]},
        "output_tokens": {"uniform": [5, 60]},
    }
}
ENGINE = {"max_num_seqs": 32, "max_num_batched_tokens": 256, "num_gpu_blocks_override": 400}


def known_base(**sections: Any) -> dict[str, Any]:
    """A point with capture sizes that a batch of decodes fits into, and prefill without graphs."""
    engine = ENGINE | sections.pop("engine", {})
    return base(workload=WORKLOAD, engine=engine, **sections)


def write_simulated(folder: Path, result: Result, blocks: int = 400) -> Path:
    """The result as vLLM's bench would have recorded it."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = result.requests.to_pylist()
    lines = [
        {
            "request_id": f"bench-{r}",
            "input_toks": row["prompt_tokens"],
            "output_toks": row["output_tokens"],
            "arrival_time": 1787267980.0 + r,
            "queued_ts": 500 + row["arrival_ns"] / 1e9,
            "scheduled_ts": 500 + row["first_scheduled_ns"] / 1e9,
            "first_token_ts": 500 + row["first_token_ns"] / 1e9,
            "last_token_ts": 500 + row["last_token_ns"] / 1e9,
        }
        for r, row in enumerate(rows)
    ]
    meta = META | {
        "num_requests": len(rows),
        "kv_cache": META["kv_cache"] | {"num_gpu_blocks": blocks},
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "timeseries.csv").write_text(f"{HEADER}\n1.0,1.0,1.0,1,0,10.0\n")
    return folder


def write_known(folder: Path, **sections: Any) -> Path:
    """A recording of `known_base` with these sections laid over it."""
    point = point_from_mapping(known_base(**sections), folder, "known")
    return write_simulated(folder, simulate(point))


def write_study(folder: Path, **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "name": "known",
        "base": known_base(),
        "tracking": {"enabled": False},
        "bootstrap": {"samples": 50},
    } | fields
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def run_study(
    path: Path, out: Path, *, serial: bool = True, change: dict[str, Any] | None = None
) -> tuple[Calibrated, list[Watch], list[str]]:
    """What it came to, who watched its rounds, and what was told."""
    study: Study = load_study(path)
    if change:
        study = study.model_copy(update=change)
    watches: list[Watch] = []
    told: list[str] = []

    def watch() -> Watch:
        watches.append(Watch())
        return watches[-1]

    done = calibrate(
        study,
        path,
        out,
        address=None,
        serial=serial,
        track=False,
        make_progress=watch,
        tell=told.append,
    )
    return done, watches, told


def simulated_points(watches: list[Watch]) -> int:
    return sum(len(watch.outcomes) for watch in watches)
