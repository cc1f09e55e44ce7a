"""A simulated result against what was measured. What the numbers mean: truth_data.DEFINITIONS.

Nothing is ever filled in: what one side does not have, or a truth of 0, is left out and noted.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.truth_data import HEADLINE, METRICS, STATISTICS, Truth, statistics
from orchestrator.truth_matching import (
    FEW,
    RequestComparison,
    SimulatedRequests,
    compare_requests,
    simulated_requests,
)
from orchestrator.truth_notes import blocks_note, population_note, settings_note
from profiles.errors import InputError

if TYPE_CHECKING:
    from simulator.result import Result

NUM_HEADLINE = len(HEADLINE) * len(STATISTICS)
# Rates of single seconds are not judged: a step that ends just before or after a tick moves them.
SERIES = ("running", "waiting", "kv_cache_usage")
RATES = ("prompt_throughput", "generation_throughput")


@dataclass(frozen=True)
class Comparison:
    """Errors in % are signed, (simulated - truth) / truth x 100.

    `mean_abs_pct` is over `num_headline` of the 15 headline metrics, None over none of them.
    `series`: column -> mean_abs and mean_abs_pct (of the truth's mean), over `series_seconds`.
    `blocks`: KV blocks, simulated and measured.
    """

    truth_id: str
    err_pct: dict[str, dict[str, float]]
    mean_abs_pct: float | None
    num_headline: int
    requests: RequestComparison | None
    series: dict[str, dict[str, float]]
    series_seconds: int
    makespan_err_pct: float | None
    throughput_err_pct: dict[str, float]
    blocks: tuple[int, int | None]
    notes: tuple[str, ...]
    standing: tuple[str, ...]
    """Of the notes, those that settings and truth alone give (truth_notes.standing_notes)."""

    @property
    def run_notes(self) -> list[str]:
        return [note for note in self.notes if note not in self.standing]

    def flat(self) -> dict[str, float]:
        """Every number under a name that MLflow takes. `err_pct/mean_abs` is over all 15 metrics,
        over fewer it is `err_pct/mean_abs_partial`."""
        flat = {f"err_pct/{m}/{s}": v for m, e in self.err_pct.items() for s, v in e.items()}
        if self.mean_abs_pct is not None:
            partial = "" if self.num_headline == NUM_HEADLINE else "_partial"
            flat[f"err_pct/mean_abs{partial}"] = self.mean_abs_pct
        flat["num_headline"] = float(self.num_headline)
        if self.makespan_err_pct is not None:
            flat["err_pct/makespan"] = self.makespan_err_pct
        flat |= {f"err_pct/throughput/{n}": v for n, v in self.throughput_err_pct.items()}
        if self.requests is not None:
            for count in ("matched", "unmatched", "unmatched_truth"):
                flat[f"requests/{count}"] = float(getattr(self.requests, count))
            sums = [errors["sum_abs_pct"] for errors in self.requests.errors.values()]
            if len(sums) == len(HEADLINE):
                flat["err_pct/requests"] = sum(sums) / len(sums)
            for metric, errors in self.requests.errors.items():
                flat |= {f"requests/{metric}/{n}": v for n, v in errors.items()}
        for column, errors in self.series.items():
            flat |= {f"series/{column}/{n}": v for n, v in errors.items()}
        if self.series:
            flat["series/seconds"] = float(self.series_seconds)
        flat["blocks/simulated"] = float(self.blocks[0])
        if self.blocks[1] is not None:
            flat["blocks/truth"] = float(self.blocks[1])
        return flat

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = asdict(self)
        data["blocks"] = {"simulated": self.blocks[0], "truth": self.blocks[1]}
        data["notes"] = list(self.notes)
        del data["standing"]
        if self.requests is not None:
            data["requests"]["examples"] = list(self.requests.examples)
        return data


def compare(result: Result, truth: Truth) -> Comparison:
    """How far `result` is from `truth`."""
    summary, notes = result.summary, list(truth.notes)
    table = result.requests
    if truth.rows is not None:
        check_rows(len(table), truth)
        table = table.take(truth.rows)
    simulated = simulated_requests(table, truth.start)
    notes += population_note(summary, truth)
    err_pct = _metric_errors(_metrics(summary, simulated, truth), truth, notes)
    headline = [abs(v) for metric in HEADLINE for v in err_pct.get(metric, {}).values()]
    if len(headline) < NUM_HEADLINE:
        notes.append(f"mean absolute error over {len(headline)} of {NUM_HEADLINE} headline metrics")
    requests = None
    if truth.requests is not None:
        requests = compare_requests(simulated, truth.requests)
        notes += _matching_notes(requests, max(len(simulated.finished), len(truth.requests)))
    makespan = _errors(
        {"makespan_ms": summary.get("makespan_ms")}, {"makespan_ms": truth.makespan_ms}, "", notes
    )
    series, seconds = _series_errors(result, truth, notes)
    blocks = (summary["kv"]["num_gpu_blocks"], truth.num_gpu_blocks)
    standing = blocks_note(blocks, summary["engine"], truth)
    standing += settings_note(summary["engine"], summary["model"], truth)
    notes += standing
    return Comparison(
        truth_id=truth.content_id,
        err_pct=err_pct,
        mean_abs_pct=sum(headline) / len(headline) if headline else None,
        num_headline=len(headline),
        requests=requests,
        series=series,
        series_seconds=seconds,
        makespan_err_pct=makespan.get("makespan_ms"),
        throughput_err_pct=_errors(
            summary.get("throughput", {}), truth.throughput, "throughput ", notes
        ),
        blocks=blocks,
        notes=tuple(notes),
        standing=(*truth.notes, *standing),
    )


def check_rows(simulated: int, truth: Truth) -> None:
    """Raises InputError if the truth is a part of another workload."""
    assert truth.rows is not None
    if int(truth.rows.max()) >= simulated:
        expected = f"the requests of a workload of {simulated}, in its order"
        raise InputError(truth.source, "part", f"request {int(truth.rows.max())}", expected)


def _metrics(
    summary: dict[str, Any], simulated: SimulatedRequests, truth: Truth
) -> dict[str, dict[str, float]]:
    """The result's statistics, in the truth's definitions where the summary has others."""
    metrics: dict[str, dict[str, float]] = dict(summary["latency"])
    finished = simulated.finished
    if truth.rows is not None:
        metrics = (
            {name: statistics(getattr(simulated, name)[finished]) for name in HEADLINE}
            if finished.any()
            else {}
        )
    elif truth.start != "arrival_ns" and finished.any():
        metrics["ttft_ms"] = statistics(simulated.ttft_ms[finished])
        metrics["latency_ms"] = statistics(simulated.latency_ms[finished])
    if not truth.single_tokens_in_tpot:
        several = finished & (simulated.output_tokens > 1)
        if not several.any():
            metrics.pop("tpot_ms", None)
        elif several.sum() < finished.sum():
            metrics["tpot_ms"] = statistics(simulated.tpot_ms[several])
    return metrics


def _metric_errors(
    simulated: dict[str, dict[str, float]], truth: Truth, notes: list[str]
) -> dict[str, dict[str, float]]:
    errors = {}
    for metric in METRICS:
        if metric in truth.metrics:
            ours = simulated.get(metric, {})
            found = _errors(ours, truth.metrics[metric], f"{metric} ", notes)
            if found:
                errors[metric] = found
    absent = [metric for metric in HEADLINE if metric not in truth.metrics]
    if absent:
        notes.append(f"not measured: {', '.join(absent)}")
    return errors


def _errors(simulated: Any, truth: Any, what: str, notes: list[str]) -> dict[str, float]:
    """Signed errors in %; a truth of 0 or a value that is not there is left out and noted."""
    errors = {}
    for name, measured in truth.items():
        ours = simulated.get(name)
        if measured is None:
            continue
        if not math.isfinite(measured) or measured == 0:
            notes.append(f"{what}{name} left out: the truth is {measured:g}")
        elif ours is None or not math.isfinite(ours):
            notes.append(f"{what}{name} left out: the simulation has none")
        else:
            errors[name] = (ours - measured) / measured * 100
    return errors


def _matching_notes(requests: RequestComparison, total: int) -> list[str]:
    notes = []
    if requests.examples:
        notes.append(
            f"{requests.unmatched} simulated and {requests.unmatched_truth} measured requests are "
            f"unmatched, first: {'; '.join(requests.examples)}"
        )
    if requests.matched < FEW * total:
        notes.append(
            f"only {requests.matched} of {total} requests match: errors per request say little, "
            "the measured workload may be another one"
        )
    return notes


def _series_errors(
    result: Result, truth: Truth, notes: list[str]
) -> tuple[dict[str, dict[str, float]], int]:
    """By column, and the number of seconds that both sides have."""
    if not truth.series:
        return {}, 0
    t, measured_t = result.timeseries["t_s"].to_numpy(), truth.series["t_s"]
    at = np.searchsorted(t, measured_t)
    inside = np.flatnonzero(at < len(t))
    common = inside[t[at[inside]] == measured_t[inside]]
    if not len(common):
        notes.append("series: no second in common")
        return {}, 0
    at = at[common]
    errors = {}
    for column in SERIES:
        if column not in truth.series:
            continue
        measured = truth.series[column][common]
        apart = float(np.abs(result.timeseries[column].to_numpy()[at] - measured).mean())
        errors[column] = {"mean_abs": apart}
        mean = float(measured.mean())
        if mean > 0:
            errors[column]["mean_abs_pct"] = apart / mean * 100
        else:
            notes.append(f"series {column}: measured 0 throughout, no error in %")
    return errors, len(common)
