"""Ground truth: a recorded run, a `vllm bench serve` result or a table of percentiles.

    truth = load_truth(TruthConfig(recorded="bench/RTX4090/Llama-3.1-8B/vllm"), base)

Load it once; it is plain data that can be sent to another process.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.truth_config import Definitions, PercentilesConfig, TruthConfig
from orchestrator.truth_data import DEFINITIONS, HEADLINE, STATISTICS, Truth, TruthRequests
from orchestrator.truth_part import part_of
from orchestrator.truth_percentiles import percentiles_truth
from orchestrator.truth_recorded import recorded_truth
from orchestrator.truth_vllm_bench import vllm_bench_truth

__all__ = [
    "DEFINITIONS",
    "HEADLINE",
    "STATISTICS",
    "Definitions",
    "PercentilesConfig",
    "Truth",
    "TruthConfig",
    "TruthRequests",
    "load_truth",
]


def load_truth(config: TruthConfig, base: Path) -> Truth:
    """The truth that `config` names; relative paths are taken from `base`. Raises InputError."""
    truth = _whole_truth(config, base)
    return truth if config.part is None else part_of(truth, config.part)


def _whole_truth(config: TruthConfig, base: Path) -> Truth:
    if config.recorded is not None:
        return recorded_truth(base / config.recorded, from_queue=config.ttft == "from_queue")
    if config.vllm_bench is not None:
        return vllm_bench_truth(base / config.vllm_bench)
    if config.aiconfigurator is not None:
        from orchestrator.truth_silicon import silicon_truth

        return silicon_truth(config.aiconfigurator)
    assert config.percentiles is not None  # TruthConfig demands one of the four
    return percentiles_truth(config.percentiles, base)
