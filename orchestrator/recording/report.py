"""A check in a few lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.truth_recorded import recorded_truth

if TYPE_CHECKING:
    from orchestrator.compare import Comparison
    from orchestrator.recording.check import HostTime, Recorded, StepCheck

NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "latency_ms": "latency"}
SHOWN = ("mean", "p50", "p99")


def host_line(folder: Path, host: HostTime) -> str:
    return (
        f"host time of {folder.name}: {host.per_step_ms:.3f} ms a step, "
        f"{host.per_request_ms * 1e3:.1f} us a request, over {host.steps} steps"
    )


def check_lines(
    recorded: Recorded, steps: StepCheck, comparison: Comparison, result: Any
) -> list[str]:
    run = recorded.run
    lines = [
        f"{recorded.folder.name}: vLLM {run.vllm_version}, {len(run)} requests",
        f"  steps: {steps.identical} of {steps.steps} identical with arrivals by step, "
        f"{steps.preemptions} preemptions",
    ]
    if steps.first_difference:
        lines.append("  " + steps.first_difference.replace("\n", "\n  "))
    summary = result.summary
    lines.append(
        f"  end to end: {summary['preemptions']} preemptions, {summary['steps']} steps; "
        f"makespan {comparison.makespan_err_pct:+.2f} %"
    )
    truth = recorded_truth(recorded.folder).metrics
    for metric, name in NAMES.items():
        errors, values = comparison.err_pct[metric], truth[metric]
        shown = "  ".join(f"{s} {values[s]:9.2f} ms {errors[s]:+6.2f} %" for s in SHOWN)
        lines.append(f"  {name:8s} {shown}")
    return lines
