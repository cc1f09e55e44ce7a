"""Runs crafted batches through the engine in this process, and writes how long each step took.

    python -m orchestrator.recording.inside.crafted JOB.json

A group has so many decodes at one length; beside them, step by step, chunks of one more request.
The scheduler is vLLM's; only its token budget is set before a step, so that a chunk has the size
that is wanted.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.recording.inside.engine import (
    engine_arguments,
    failure_told,
    hardware,
    resolved,
    versions,
)
from orchestrator.recording.inside.log import SCHEDULED, UPDATED, log, records
from orchestrator.recording.inside.schedulers import LoggingScheduler

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import EngineArgs, SamplingParams
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

SETTLING_STEPS = 2  # of decodes alone, before a group is measured


class CraftedScheduler(LoggingScheduler):
    """vLLM's scheduler with a token budget that the measurement sets."""

    budget: int | None = None

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if CraftedScheduler.budget is not None:
            self.max_num_scheduled_tokens = CraftedScheduler.budget
        return super().schedule(*args, **kwargs)


class Crafter:
    """An engine and the steps that were measured on it."""

    def __init__(self, engine: LLMEngine, job: dict[str, Any]) -> None:
        self.engine = engine
        self.vocab_size: int = job["vocab_size"]
        self.most_tokens: int = job["max_num_batched_tokens"]
        self.longest: int = job["max_model_len"]
        self.random = np.random.default_rng(0)
        self.added = 0
        self.measured: list[dict[str, int]] = []

    def group(self, n_decode: int, kv_decode: int, chunks: list[tuple[int, int]]) -> None:
        """Measure decodes alone, and beside them each (chunk, tokens computed before it)."""
        names = [self._add(kv_decode) for _ in range(n_decode)]
        CraftedScheduler.budget = self.most_tokens
        while not self._all_decode(names):
            self.engine.step()
        if n_decode:
            for _ in range(SETTLING_STEPS):
                self.engine.step()
            self._measure()
        for chunk, before in chunks:
            self._add(before + chunk, 1)
            if before:
                CraftedScheduler.budget = n_decode + before
                self.engine.step()
            CraftedScheduler.budget = n_decode + chunk
            self._measure()
        CraftedScheduler.budget = self.most_tokens
        self.engine.abort_request(names)
        while self.engine.has_unfinished_requests():
            self.engine.step()

    def _add(self, prompt: int, output: int | None = None) -> str:
        self.added += 1
        name = f"m{self.added}"
        sampling = SamplingParams(
            max_tokens=output or self.longest - prompt,
            ignore_eos=True,
            temperature=0.0,
            detokenize=False,
        )
        tokens = self.random.integers(0, self.vocab_size, prompt).tolist()
        self.engine.add_request(name, {"prompt_token_ids": tokens}, sampling)
        return name

    def _all_decode(self, names: list[str]) -> bool:
        running = scheduler_of(self.engine).requests.values()
        ready = [r for r in running if r.num_output_tokens > 0]
        return len(ready) >= len(names)

    def _measure(self) -> None:
        del log[:]
        self.engine.step()
        (_, scheduled), (_, updated) = (
            record for record in records(log) if record[0] in (SCHEDULED, UPDATED)
        )
        flat = scheduled[8 : 8 + 3 * scheduled[6]]
        batch = list(zip(flat[1::3], flat[2::3], strict=True))
        chunks = [(n, kv) for n, kv in batch if n > 1]
        lengths = [kv for n, kv in batch if n == 1]
        self.measured.append(
            {
                "prefill_chunk": sum(n for n, _ in chunks),
                "n_decode": len(lengths),
                "kv_prefill": sum(kv for _, kv in chunks),
                "kv_decode": sum(lengths) // max(1, len(lengths)),
                "ns": updated[1] - scheduled[2],
                "host_ns": scheduled[2] - scheduled[1] + updated[2] - updated[1],
            }
        )


def scheduler_of(engine: LLMEngine) -> Any:
    return engine.engine_core.engine_core.scheduler


def measure(job: dict[str, Any], out: Path) -> None:
    arguments = engine_arguments(job) | {
        "scheduler_cls": "orchestrator.recording.inside.crafted.CraftedScheduler"
    }
    if current_platform.is_cpu() and not job["device_model"]:
        # As vLLM serves on a CPU: without a worker process it would not bind its threads.
        arguments["distributed_executor_backend"] = "mp"
    # By name, so that the engine's class and this module's are one.
    sys.modules["orchestrator.recording.inside.crafted"] = sys.modules[__name__]
    engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    crafter = Crafter(engine, job)
    rounds = []
    for _ in range(job["warm_up_rounds"] + job["repeats"]):
        crafter.measured = []
        for group in job["groups"]:
            chunks = [tuple(chunk) for chunk in group["chunks"]]
            crafter.group(group["n_decode"], group["kv_decode"], chunks)
        rounds.append(crafter.measured)
    raw = {
        "rounds": rounds[job["warm_up_rounds"] :],
        "resolved": resolved(engine.vllm_config),
        "versions": versions(),
        "hardware": hardware(),
        "load_average": [os.getloadavg()[0]],
    }
    (out / "raw.json").write_text(json.dumps(raw))


def main() -> None:
    path = Path(sys.argv[1])
    with failure_told(path.parent):
        measure(json.loads(path.read_text()), path.parent)


if __name__ == "__main__":
    main()
