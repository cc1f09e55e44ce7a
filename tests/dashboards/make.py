"""Small sweeps with everything that dashboards show: a recorded truth, hostile names, failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dashboards.sweep_data import SweepData, read_sweep
from orchestrator.session import Session
from orchestrator.store import SweepStore
from simulator import point_from_mapping, simulate
from tests.orchestrator.sweep_make import BLOCKS, base, run_sweep, write_sweep
from tests.orchestrator.truth_make import HEADER, META

EVIL = "</script><script>window.hacked = 1</script>"
EVILS = (EVIL, "\"quoted\" 'name' & <b>bold</b> \u202e ünïcode 🦄 \u2028")
SLOW = {"workload": {"generate": {**base()["workload"]["generate"], "arrivals": {"rate": 8.0}}}}
POOLS = [12, 16, 24, 40]
CARD = {"name": "small", "memory_bytes": 1 << 20}


def write_truth_of(folder: Path, blocks: int = 24) -> Path:
    """A recorded run: what the base point gives with so many blocks, with hostile request ids."""
    point = base(engine={"num_gpu_blocks_override": blocks}, **SLOW)
    result = simulate(point_from_mapping(point, folder, "test"))
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for r, request in enumerate(result.requests.to_pylist()):
        times = {name: 100 + request[f"{name}_ns"] / 1e9 for name in ("queued", "first_scheduled")}
        rows.append(
            {
                "request_id": f"{EVIL} {r}",
                "input_toks": request["prompt_tokens"],
                "output_toks": request["output_tokens"],
                "arrival_time": 1787267980.0 + request["arrival_ns"] / 1e9,
                "queued_ts": times["queued"],
                "scheduled_ts": times["first_scheduled"],
                "first_token_ts": 100 + request["first_token_ns"] / 1e9,
                "last_token_ts": 100 + request["last_token_ns"] / 1e9,
            }
        )
    names = ("t_s", "prompt_throughput", "generation_throughput", "running", "waiting")
    lines = [
        ",".join(str(row[name]) for name in names) + f",{row['kv_cache_usage'] * 100}"
        for row in result.timeseries.to_pylist()
    ]
    cache = {**META["kv_cache"], "num_gpu_blocks": blocks}
    meta = {**META, "num_requests": len(rows), "kv_cache": cache}
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "timeseries.csv").write_text("".join(f"{line}\n" for line in (HEADER, *lines)))
    return folder


def sweep_fields(folder: Path, **fields: Any) -> dict[str, Any]:
    """Two cards of hostile names and four pools, against a recorded run."""
    truth = write_truth_of(folder / "card" / "model" / "vllm")
    return {
        "base": base(**SLOW),
        "cards": {name: {"card": CARD} for name in EVILS},
        "axes": {"card": list(EVILS), BLOCKS: POOLS},
        "truth": {"recorded": str(truth)},
    } | fields


def make_sweep(folder: Path, name: str = "small", **fields: Any) -> Session:
    """Run such a sweep into `folder`/out."""
    path = write_sweep(folder, name=name, **sweep_fields(folder, **fields))
    return run_sweep(path, folder / "out")[0]


def read(session: Session) -> SweepData:
    return read_sweep(session.store.folder)


def with_failure(session: Session, row: int, status: str = "error", reason: str = EVIL) -> None:
    """Make a point of the folder a failed one, as if its run had failed."""
    store: SweepStore = session.store
    rows = pq.read_table(store.results_path).to_pylist()
    found = []
    for one in rows:
        axes = {k.removeprefix("axes/"): v for k, v in one.items() if k.startswith("axes/")}
        metrics = {k: v for k, v in one.items() if isinstance(v, float) and v is not None}
        texts = {k: one[k] for k in ("index", "point_id", "run_id", "name", "status", "equals")}
        found.append({**texts, "notes": one["notes"], "axes": axes, "metrics": metrics})
    found[row] |= {"status": status, "reason": reason, "metrics": {}, "equals": None}
    store.write_results(found)
