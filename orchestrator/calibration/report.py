"""What a study found: the calibrated card, and the report people read."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from orchestrator.calibration.evaluate import Candidates
from orchestrator.calibration.judge import Judged
from orchestrator.calibration.study import Study
from orchestrator.calibration.uncertainty import Fit
from orchestrator.expand import SweepPoint
from orchestrator.store import SweepStore
from orchestrator.tracked import git_commit
from profiles.calibrated import CalibratedCard, Estimate
from profiles.errors import InputError
from profiles.whole import check_file, write_whole
from simulator.summary import servesweep_version

OBJECTIVES = {
    "requests": "sum of |simulated - truth| over requests / sum of the truth, mean of TTFT, TPOT, "
    "latency",
    "statistics": "mean |error| of mean, p50, p90, p95, p99 of TTFT, TPOT, latency",
}


def calibrated_card(
    study: Study, points: list[SweepPoint], found: Fit, judged: list[Judged]
) -> CalibratedCard:
    """`points` are candidates of the training runs; `data` holds card and model of each."""
    first = points[0].prepared.point
    data: dict[str, dict[str, str]] = {}
    for point in points:
        run = str(point.axes["card"])
        if run not in data:
            assert point.truth is not None
            data[run] = {
                "truth": point.truth.content_id,
                "workload": point.prepared.workload.content_id,
                "profile": point.prepared.profile_id,
                "part": str(study.runs[run].part("train")),
                "card": point.prepared.point.card.name,
                "model": point.prepared.point.model.name,
            }
    errors: dict[str, dict[str, dict[str, float]]] = {}
    for one in judged:
        errors.setdefault(one.run, {})[one.side] = {
            name: round(value, 4) for name, value in one.after.items()
        }
    versions = {"servesweep": servesweep_version()}
    commit = git_commit()
    if commit:
        versions["commit"] = commit
    return CalibratedCard(
        name=study.name,
        card=first.card.name,
        model=first.model.name,
        parameters={
            name: Estimate(
                fields=parameter.fields,
                value=value,
                low=float(f"{low:.6g}"),
                high=float(f"{high:.6g}"),
            )
            for (name, parameter), value, low, high in zip(
                study.parameters.items(), found.cell, found.low, found.high, strict=True
            )
        },
        objective=f"{study.objective}: {OBJECTIVES[study.objective]}",
        confidence=study.bootstrap.confidence,
        data=data,
        versions=versions,
        errors=errors,
        warnings=found.warnings,
    )


def check_writable(path: Path) -> None:
    """Before a study of hours whose card is to be written there. Raises InputError."""
    probe = path.with_name(f".{path.name}.{os.getpid()}")  # as write_whole does
    try:
        check_file(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        expected = f"a file that can be written: {error.strerror or error}"
        raise InputError("command line", "--card", str(path), expected) from None


def write_card(card: CalibratedCard, path: Path) -> None:
    text = "# Written by `servesweep calibrate`; a point names it: `calibration: FILE`.\n"
    data = card.model_dump(mode="json", exclude_none=True)
    text += yaml.safe_dump(data, sort_keys=False, width=100)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda p: p.write_text(text, encoding="utf-8"))


def write_report(
    study: Study,
    path: Path,
    store: SweepStore,
    tried: Candidates,
    found: Fit,
    judged: list[Judged],
    card: CalibratedCard,
    pictures: list[Path],
    host: str,
) -> list[Path]:
    """card.yaml, report.md and report.json beside the pictures. `host`: how host time was found, if
    it is a parameter. Returns what was written, and the pictures."""
    folder = store.folder
    card_path = folder / "card.yaml"
    write_card(card, card_path)
    data = {
        "study": study.name,
        "objective": card.objective,
        "candidates": len(tried.cells),
        "failed": tried.failed,
        "kind": found.kind,
        "roughness": found.roughness,
        "parameters": card.model_dump(mode="json")["parameters"],
        "judged": [_plain(one) for one in judged],
        "warnings": list(found.warnings),
        "data": card.data,
        "versions": card.versions,
    }
    text = markdown(study, path, tried, found, judged, card, [p.name for p in pictures], host)
    report, numbers = folder / "report.md", folder / "report.json"
    write_whole(report, lambda p: p.write_text(text, encoding="utf-8"))
    write_whole(numbers, partial(_dump, data))
    return [card_path, report, numbers, *pictures]


def _dump(data: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _plain(one: Judged) -> dict[str, Any]:
    return {
        "run": one.run,
        "side": one.side,
        "part": one.part,
        "requests": one.num_requests,
        "before": one.before,
        "after": one.after,
        "intervals": {name: list(ends) for name, ends in one.intervals.items()},
    }


def markdown(
    study: Study,
    path: Path,
    tried: Candidates,
    found: Fit,
    judged: list[Judged],
    card: CalibratedCard,
    pictures: list[str],
    host: str,
) -> str:
    percent = f"{study.bootstrap.confidence:.0%}"
    how = (
        f"the minimum of a quadratic through the candidates within {study.search.near:.0%} of the "
        f"best (the objective is rough by {found.roughness:.2g} around it)"
        if found.kind == "surface"
        else "the best candidate"
        if found.kind == "candidate"
        else "the regression on recorded steps"
    )
    lines = [
        f"# Calibration {study.name}",
        "",
        f"{card.fitted_to}, from `{path.name}`. {len(tried.cells)} candidates "
        f"({study.method}), {tried.failed} failed. Best objective {found.train:.3f} %. "
        f"The answer is {how}.",
        "",
        *([host, ""] if host else []),
        f"Objective, {card.objective}, in %.",
        "",
        f"| parameter | fields | value | {percent} interval | range |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {', '.join(e.fields)} | {e.value:g} | {e.low:.4g} .. {e.high:.4g} | "
            f"{_range(study, name)} |"
            for name, e in card.parameters.items()
        ),
        "",
        *([f"**{len(found.warnings)} warnings**", ""] if found.warnings else []),
        *(f"- {warning}" for warning in found.warnings),
        *([""] if found.warnings else []),
        *judged_table(judged, percent),
        "",
        "| run | truth | workload | profile |",
        "|---|---|---|---|",
        *(
            f"| {run} | {ids['truth'][:16]} | {ids['workload'][:16]} | {ids['profile'][:16]} |"
            for run, ids in card.data.items()
        ),
        "",
        ", ".join(f"{name} {value}" for name, value in card.versions.items()) + ".",
        "",
        *(f"![{name}](plots/{name})" for name in pictures),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _range(study: Study, name: str) -> str:
    low, high = study.parameters[name].range
    return f"{low:g} .. {high:g}"


def judged_table(judged: list[Judged], percent: str) -> list[str]:
    """Errors before and after, a line a run and side."""
    lines = [
        f"| run | requests | | requests, before | after ({percent} interval) | 15 statistics, before "
        f"| after ({percent} interval) |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in judged:
        cells = [
            f"{one.before[name]:.2f} % | {one.after[name]:.2f} %{_ends(one, name)}"
            for name in ("requests", "statistics")
        ]
        lines.append(
            f"| {one.run} | {one.num_requests} ({one.part}) | {one.label} | {' | '.join(cells)} |"
        )
    return lines


def _ends(one: Judged, name: str) -> str:
    if name not in one.intervals:
        return ""
    low, high = one.intervals[name]
    return f" ({low:.2f} .. {high:.2f})"
