"""Small sweeps for tests: a model of one layer, a card of a few KV blocks, a linear step law.

A block of 16 tokens takes 1 KiB of the card's 1 MiB, and requests are short, so a point takes about a
millisecond.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from orchestrator.expand import SweepPoint, expand
from orchestrator.plan import Plan
from orchestrator.session import Session
from orchestrator.sweep import load_sweep

MODEL = {
    "name": "small",
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 512,
}
BASE: dict[str, Any] = {
    "model": MODEL,
    "card": {"name": "small", "memory_bytes": 1 << 20},
    "engine": {"max_num_seqs": 8, "max_num_batched_tokens": 64},
    "workload": {
        "generate": {
            "num_requests": 30,
            "seed": 3,
            "arrivals": {"process": "poisson", "rate": 2000.0},
            "prompt_tokens": {"uniform": [20, 60]},
            "output_tokens": {"uniform": [5, 30]},
            "shared_prefix": {"groups": 2, "tokens": 32, "share": 0.5},
        }
    },
    "profile": {"linear": {"base_ns": 1_000_000, "per_token_ns": 10_000, "per_kv_token_ns": 100}},
}
UTILIZATION = "engine.gpu_memory_utilization"
BLOCKS = "engine.num_gpu_blocks_override"
BLOCK_BYTES = 16 * 2 * 2 * 8 * 2  # tokens x keys and values x heads x dimension x bytes

# Measured nowhere: something to compare with.
TRUTH = {
    "percentiles": {
        "definitions": {
            "ttft": "from_arrival",
            "tpot": "all_requests",
            "percentile": "linear",
        },
        "values": [
            {"metric": metric, "statistic": statistic, "value_ms": 10.0 * (i + 1) + j}
            for i, metric in enumerate(("ttft", "tpot", "latency"))
            for j, statistic in enumerate(("mean", "p50", "p90", "p95", "p99"))
        ],
    }
}


def base(**sections: Any) -> dict[str, Any]:
    """The base point; a section's fields are laid over it, None takes it out."""
    made = deepcopy(BASE)
    for name, value in sections.items():
        if isinstance(value, dict) and isinstance(made.get(name), dict):
            made[name] |= value
        else:
            made[name] = value
    return {name: value for name, value in made.items() if value is not None}


def write_sweep(folder: Path, *, name: str = "small", **fields: Any) -> Path:
    """A sweep file; without axes it is the base point alone."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    content = {"name": name, "base": base(), "tracking": {"enabled": False}} | fields
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def points_of(path: Path) -> list[SweepPoint]:
    return expand(load_sweep(path), path)


@dataclass
class Watch:
    """Progress that remembers."""

    outcomes: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, plan: Plan) -> None:
        pass

    def advance(self, plan: Plan, outcome: dict[str, Any], point: SweepPoint) -> None:
        assert outcome["point_id"] == point.point_id
        self.outcomes.append(outcome)

    def failure(self, outcome: dict[str, Any], point: SweepPoint) -> None:
        assert outcome["point_id"] == point.point_id
        self.failures.append(outcome)


def run_sweep(path: Path, out: Path, *, serial: bool = True) -> tuple[Session, Watch]:
    """Run it, without tracking."""
    session, watch = Session.open(path, out), Watch()
    session.run(watch, address=None, serial=serial, track=False)
    return session, watch


def results(session: Session) -> pa.Table:
    return pq.read_table(session.store.results_path)


def rows(session: Session) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = results(session).to_pylist()
    return found
