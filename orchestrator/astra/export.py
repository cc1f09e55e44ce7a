"""A point's steps as files that ASTRA-Sim and LLMServingSim's converter read.

OUT/manifest.json                       what each step is and how long it takes in process
OUT/<dialect>/network.yml, system.json, memory.json (upstream: remote_memory.json)
OUT/<dialect>/step_000012/step.<rank>.et
OUT/llmservingsim/step_000012/trace.txt the same step in LLMServingSim's text form; of several replicas
                                        trace.<replica>.txt
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.astra.steps import PointSteps, Step
from profiles.errors import InputError
from simulator.network.chakra import encoded
from simulator.network.config import NetworkConfig
from simulator.network.dialect import DIALECTS, Dialect
from simulator.network.files import write_files
from simulator.network.rank_trace import Axes
from simulator.network.text_trace import text_trace
from simulator.network.trace import Receive, Send

MANIFEST = "manifest.json"
PREFIX = "step"
TEXT = "trace"
STEP_FOLDERS = "step_" + "[0-9]" * 6


def step_folder(number: int) -> str:
    return f"step_{number:06d}"


def export(
    point: PointSteps, numbers: Sequence[int], dialects: Sequence[Dialect], out: Path
) -> dict[str, Any]:
    """Write the steps; returns what the manifest says. Steps of an earlier export make room, other
    files stay. Raises InputError, and then leaves what was there."""
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".export-", dir=out))
    try:
        manifest = _write(point, numbers, dialects, unfinished)
        _put(unfinished, out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        if new:
            # Not empty if it was interrupted while things were put into their places.
            with contextlib.suppress(OSError):
                out.rmdir()
        raise
    unfinished.rmdir()
    return manifest


def _write(
    point: PointSteps, numbers: Sequence[int], dialects: Sequence[Dialect], out: Path
) -> dict[str, Any]:
    network = point.network
    for dialect in dialects:
        write_files(out / dialect, network, dialect, exact_ns=True)
    steps = []
    for number in numbers:
        expected_ns = {}
        for dialect in dialects:
            step = point.step(number, dialect)
            write_step(step, network, point.axes, dialect, out / dialect / step_folder(number))
            expected_ns[dialect] = max(step.expected_ns)
        steps.append(
            {
                "step": number,
                "folder": step_folder(number),
                "requests": step.size.num_requests,
                "tokens": step.size.num_tokens,
                "device_ns": step.size.device_ns,
                "expected_ns": expected_ns,
            }
        )
    manifest = {
        "point": point.path.name,
        "ranks": network.ranks,
        "dimensions": point.axes._asdict(),
        "network": network.model_dump(mode="json"),
        "dialects": list(dialects),
        "steps": steps,
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def _put(unfinished: Path, out: Path) -> None:
    """Everything in its place, the manifest last: without one the folder is no export."""
    earlier = [path for dialect in DIALECTS for path in (out / dialect).glob(STEP_FOLDERS)]
    for path in earlier:
        if not path.is_dir() or path.is_symlink():
            raise InputError(path, "file", "no folder", "a folder of an earlier export, or nothing")
    (out / MANIFEST).unlink(missing_ok=True)
    for path in earlier:
        shutil.rmtree(path)
    for folder in [path for path in unfinished.iterdir() if path.is_dir()]:
        (out / folder.name).mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.replace(out / folder.name / path.name)
        folder.rmdir()
    (unfinished / MANIFEST).replace(out / MANIFEST)


def write_step(
    step: Step, network: NetworkConfig, axes: Axes, dialect: Dialect, folder: Path
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    dimensions = len(network.dimensions)
    if dialect == "llmservingsim":
        for replica, rows in enumerate(step.replicas):
            name = f"{TEXT}.{replica}.txt" if len(step.replicas) > 1 else f"{TEXT}.txt"
            (folder / name).write_text(text_trace(rows, network, axes), encoding="utf-8")
    # Ranks that run the same have the same file, but for those in messages.
    made: dict[int, bytes] = {}
    for rank, nodes in enumerate(step.trace.ranks):
        if id(nodes) not in made or any(isinstance(node, Send | Receive) for node in nodes):
            made[id(nodes)] = encoded(
                nodes, dialect, rank=rank, num_dimensions=dimensions, exact_ns=True
            )
        (folder / f"{PREFIX}.{rank}.et").write_bytes(made[id(nodes)])
