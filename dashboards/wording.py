"""Sentences and numbers as every dashboard puts them."""

from __future__ import annotations

import math

from dashboards.sweep_data import SweepData
from orchestrator.ranking import LATENCY, MEAN_ABS, PARTIAL
from orchestrator.store_truth import truth_label

TITLES = {
    MEAN_ABS: "mean absolute difference (%)",
    PARTIAL: "mean absolute difference (%), of some metrics",
    LATENCY: "mean latency (ms)",
    "latency_ms/p99": "latency p99 (ms)",
    "err_pct/ttft_ms/mean": "TTFT mean off (%)",
    "err_pct/tpot_ms/mean": "TPOT mean off (%)",
    "ttft_ms/mean": "TTFT mean (ms)",
    "ttft_ms/p50": "TTFT p50 (ms)",
    "ttft_ms/p99": "TTFT p99 (ms)",
    "tpot_ms/mean": "TPOT mean (ms)",
    "tpot_ms/p50": "TPOT p50 (ms)",
    "tpot_ms/p99": "TPOT p99 (ms)",
    "throughput/output_tokens_per_s": "output tokens/s",
    "kv/blocks": "KV blocks in all",
    "kv/preemptions": "preemptions",
    "prefix_cache/hit_rate": "prefix hit rate",
    "requests/refused": "refused requests",
}


def title(metric: str) -> str:
    """What a metric is called; one without a name of its own goes by its key."""
    return TITLES.get(metric, metric)


def number(value: float | None) -> str:
    """Five digits at most, none where there is no value."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    if size >= 10_000 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.{max(0, 4 - len(str(int(size))))}f}"


def blocks_title(data: SweepData) -> str:
    """Of the blocks that vLLM counts, which are those of one instance."""
    in_all = data.metrics.get("kv/blocks", ())
    several = any(
        each is not None and math.isfinite(total) and total != each
        for each, total in zip(data.blocks, in_all, strict=False)
    )
    return "KV blocks an instance" if several else "KV blocks"


def counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def verdict(data: SweepData) -> str:
    """The sweep in one sentence."""
    counts = data.counts()
    rest = [f"{counts[name]} {said}" for name, said in REST.items() if counts[name]]
    tail = f"; {', '.join(rest)}" if rest else ""
    if not data.ranked:
        return f"None of {counted(counts['points'], 'point')} has a result to rank{tail}."
    best = data.ranked[0][0]
    who, metrics = data.point_name(best), data.metrics_of(best)
    more = (
        f" (and {len(data.ranked[0]) - 1} more with this result)" if len(data.ranked[0]) > 1 else ""
    )
    value = float(data.scores[best])
    if data.measure == LATENCY:
        return (
            f"Of {counted(counts['points'], 'point')} the quickest is {who}{more}: mean latency "
            f"{number(value)} ms, {number(metrics.get('throughput/output_tokens_per_s'))} output "
            f"tokens/s{tail}."
        )
    key = data.truth_of[best]
    truth = data.truths.get(key) if key else None
    measured = f" to the truth ({truth_label(truth)})" if truth else " to its truth"
    blocks = ""
    if data.blocks[best] is not None:
        blocks = f", with {data.blocks[best]} KV blocks"
        if truth is not None and truth.num_gpu_blocks is not None:
            blocks += f" (measured: {truth.num_gpu_blocks})"
    headline = metrics.get("num_headline")
    over = "" if headline is None else f" over {counted(round(headline), 'metric')}"
    return (
        f"Of {counted(counts['points'], 'point')} the nearest{measured} is {who}{more}: "
        f"{value:.2f} % mean absolute difference{over}{blocks}{tail}."
    )


REST = {"equal": "equal another", "failed": "failed", "not_run": "did not run"}
