"""`servesweep profiles measure`: a step-level profile of the real engine.

Every batch of the grid runs several times, the whole grid in rounds, and the medians are written as
tables of the architecture `step`, whose single layer is a whole step: from the end of scheduling to
the start of applying its output. What the scheduler itself takes is reported beside it.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from orchestrator.recording.grid import groups_of
from orchestrator.recording.record import prepare_job
from orchestrator.recording.spec import Recording
from orchestrator.recording.stage import check_python, run_inside
from profiles.llmservingsim import ATTENTION_KEYS, load_bundle
from simulator.profile_tables import variant_of

WARM_UP_ROUNDS = 1
COLUMNS = (*ATTENTION_KEYS, "time_us")
SPREAD = ("median_us", "smallest_us", "largest_us", "quartile_spread_pct")


@dataclass(frozen=True)
class Measured:
    """Shapes [k, 4] in the order of ATTENTION_KEYS and the times of every round [k, rounds], ns."""

    shapes: Any
    ns: Any
    host_ns: Any

    @property
    def medians(self) -> Any:
        return np.median(self.ns, axis=1)

    @property
    def quartile_spread_pct(self) -> Any:
        """(third quartile - first) / median of each shape, in %."""
        low, high = np.percentile(self.ns, (25, 75), axis=1)
        return 100 * (high - low) / self.medians

    def overview(self) -> str:
        spread = self.quartile_spread_pct
        return (
            f"{len(self.shapes)} batches, {self.ns.shape[1]} rounds; quartiles apart by "
            f"{np.median(spread):.1f} % of the median (median batch), {spread.max():.1f} % at most; "
            f"scheduler {np.median(self.host_ns) / 1e6:.3f} ms a step"
        )


def measure(
    recording: Recording,
    python: Path,
    out: Path,
    *,
    repeats: int,
    command: str,
    timeout_s: float,
) -> Measured:
    """Raises InputError for a wrong environment, RecordingError if vLLM fails."""
    groups = groups_of(recording.prepared)
    check_python(python)
    with tempfile.TemporaryDirectory(prefix="servesweep-") as temporary:
        raw_folder = Path(temporary)
        environment = prepare_job(recording, raw_folder)
        path = raw_folder / "job.json"
        settings = recording.prepared.settings
        job = json.loads(path.read_text()) | {
            "groups": [asdict(group) for group in groups],
            "repeats": repeats,
            "warm_up_rounds": WARM_UP_ROUNDS,
            "vocab_size": recording.point.model.vocab_size,
            "max_num_batched_tokens": settings.max_num_batched_tokens,
            "max_model_len": recording.prepared.max_model_len,
        }
        # Every chunk is to be computed, and one step is to end before the next is formed.
        job["engine_arguments"] |= {"enable_prefix_caching": False, "async_scheduling": False}
        job["async_scheduling"] = False
        environment |= {"SERVESWEEP_ASYNC_SCHEDULING": "0"}
        path.write_text(json.dumps(job))
        run_inside(python, "crafted", path, environment, timeout_s)
        raw = json.loads((raw_folder / "raw.json").read_text())
    measured = from_rounds(raw["rounds"])
    write_profile(recording, measured, raw, out, command)
    return measured


def from_rounds(rounds: list[list[dict[str, int]]]) -> Measured:
    """Each shape once, with its times in every round; a shape measured twice in one has more."""
    times: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for one_round in rounds:
        for step in one_round:
            shape = tuple(step[name] for name in ATTENTION_KEYS)
            times.setdefault(shape, []).append((step["ns"], step["host_ns"]))
    shapes = sorted(times)
    fewest = min(map(len, times.values()))
    kept = np.array([times[shape][:fewest] for shape in shapes])
    return Measured(np.array(shapes), kept[:, :, 0], kept[:, :, 1])


def write_profile(
    recording: Recording, measured: Measured, raw: dict[str, Any], out: Path, command: str
) -> None:
    """The folder that `profile: {bundle: ...}` reads; checked by reading it."""
    point = recording.point
    (out / "tp1").mkdir(parents=True, exist_ok=True)
    us = measured.medians / 1e3
    rows = (
        [*map(int, shape), f"{time:.3f}"] for shape, time in zip(measured.shapes, us, strict=True)
    )
    write_csv(out / "tp1" / "attention.csv", COLUMNS, rows)
    low, high = measured.ns.min(axis=1) / 1e3, measured.ns.max(axis=1) / 1e3
    spreads = zip(measured.shapes, us, low, high, measured.quartile_spread_pct, strict=True)
    write_csv(
        out / "spread.csv",
        (*ATTENTION_KEYS, *SPREAD),
        ([*map(int, shape), *(f"{value:.3f}" for value in values)] for shape, *values in spreads),
    )
    meta = {
        "architecture": "step",
        "hardware": point.card.name,
        "model": point.model.name,
        "variant": variant_of(point),
        "measured": {
            "command": command,
            "rounds": int(measured.ns.shape[1]),
            "versions": raw["versions"],
            "hardware": raw["hardware"],
            "load_average": raw["load_average"],
            "scheduler_ms_per_step": round(float(np.median(measured.host_ns)) / 1e6, 4),
        },
    }
    (out / "meta.yaml").write_text(yaml.safe_dump(meta, sort_keys=False))
    load_bundle(out)


def write_csv(path: Path, columns: tuple[str, ...], rows: Iterable[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
