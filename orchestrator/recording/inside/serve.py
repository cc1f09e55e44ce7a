"""Runs a workload through vLLM's AsyncLLM and writes what happened, for `folder.py` to put in order.

    python -m orchestrator.recording.inside.serve JOB.json

Requests are sent at the workload's times by this one client; the later calls of a session when the
call before has ended and its tool has run.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from time import monotonic_ns
from typing import Any

from vllm import AsyncEngineArgs, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from orchestrator.recording.inside.engine import (
    differences,
    engine_arguments,
    failure_told,
    hardware,
    resolved,
    versions,
)
from orchestrator.recording.inside.files import Requests
from orchestrator.recording.inside.log import request_name

START_DELAY_NS = 200_000_000  # from the end of the preparations to the workload's time 0
WARM_UP_PROMPTS = (8, 64, 256, 1024)
WARM_UP_OUTPUT = 8

iterations: list[tuple[Any, ...]] = []


class Iterations(StatLoggerBase):
    """Keeps what the engine reports of every iteration."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        pass

    def log_engine_initialized(self) -> None:
        pass

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
        if scheduler_stats is None:
            return
        seen = iteration_stats
        iterations.append(
            (
                monotonic_ns(),
                scheduler_stats.num_running_reqs,
                scheduler_stats.num_waiting_reqs
                + getattr(scheduler_stats, "num_skipped_waiting_reqs", 0),
                scheduler_stats.kv_cache_usage,
                seen.num_prompt_tokens if seen else 0,
                seen.num_generation_tokens if seen else 0,
            )
        )


def sampling(num_output_tokens: int) -> SamplingParams:
    """Exactly so many tokens, unless the request reaches max_model_len before."""
    return SamplingParams(
        max_tokens=num_output_tokens,
        ignore_eos=True,
        temperature=0.0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


class Client:
    """Sends the workload and keeps a row a request."""

    def __init__(self, engine: AsyncLLM, requests: Requests) -> None:
        self.engine, self.requests = engine, requests
        self.rows: list[dict[str, Any]] = []
        parents = requests.session_parent.tolist()
        self.next_call = {parent: r for r, parent in enumerate(parents) if parent >= 0}
        self.prompts = [requests.prompt(r) for r in range(len(requests))]

    async def run(self, start_ns: int) -> None:
        roots = [r for r, p in enumerate(self.requests.session_parent.tolist()) if p < 0]
        await asyncio.gather(*(self._session(r, start_ns) for r in roots))

    async def _session(self, r: int, start_ns: int) -> None:
        await sleep_until(start_ns + int(self.requests.arrival_ns[r]))
        while True:
            await self._call(r)
            if r not in self.next_call:
                return
            await asyncio.sleep(float(self.requests.tool_ns[r]) / 1e9)
            r = self.next_call[r]

    async def _call(self, r: int) -> None:
        sent_ns = monotonic_ns()
        last: Any = None
        async for output in self.engine.generate(
            {"prompt_token_ids": self.prompts[r]},
            sampling(int(self.requests.num_output_tokens[r])),
            request_name(r),
            priority=int(self.requests.priority[r]),
        ):
            last = output
        metrics = last.metrics
        self.rows.append(
            {
                "request": r,
                "sent_ns": sent_ns,
                "ended_ns": monotonic_ns(),
                "output_tokens": len(last.outputs[0].token_ids),
                "cached_tokens": last.num_cached_tokens,
                "arrival_time": metrics.arrival_time,
                "queued_ts": metrics.queued_ts,
                "scheduled_ts": metrics.scheduled_ts,
                "first_token_ts": metrics.first_token_ts,
                "last_token_ts": metrics.last_token_ts,
            }
        )


async def sleep_until(at_ns: int) -> None:
    await asyncio.sleep(max(0.0, (at_ns - monotonic_ns()) / 1e9))


async def warm_up(engine: AsyncLLM, longest: int) -> None:
    """A few requests of several lengths, none of the workload's."""

    async def one(name: str, tokens: list[int]) -> None:
        async for _ in engine.generate(
            {"prompt_token_ids": tokens}, sampling(WARM_UP_OUTPUT), name
        ):
            pass

    lengths = [n for n in WARM_UP_PROMPTS if n + WARM_UP_OUTPUT < longest]
    await asyncio.gather(*(one(f"warm-{n}", [1 + n % 7] * n) for n in lengths))


async def record(job: dict[str, Any], out: Path) -> None:
    requests = Requests.load(job["workload"])
    arguments = engine_arguments(job)
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[Iterations])
    try:
        found = resolved(engine.vllm_config)
        if job["device_model"]:  # the executor switched it on, on its side
            found["engine"]["async_scheduling"] = job["async_scheduling"]
        wrong = differences(job["expected"], found["engine"])
        if wrong:
            raise RuntimeError(f"vLLM changed the settings: {'; '.join(wrong)}")
        await warm_up(engine, job["longest_warm_up"])
        await asyncio.sleep(0.3)
        if not await engine.reset_prefix_cache():
            raise RuntimeError("vLLM did not empty its prefix cache after the warm-up")
        iterations.clear()
        load = [os.getloadavg()[0]]
        client = Client(engine, requests)
        start_ns = monotonic_ns() + START_DELAY_NS
        await client.run(start_ns)
        load.append(os.getloadavg()[0])
        await asyncio.sleep(0.3)
        await engine.reset_prefix_cache()  # cuts the log
    finally:
        engine.shutdown()
    raw = {
        "start_ns": start_ns,
        "requests": sorted(client.rows, key=lambda row: row["request"]),
        "iterations": iterations,
        "resolved": found,
        "versions": versions(),
        "hardware": hardware(),
        "load_average": load,
    }
    (out / "raw.json").write_text(json.dumps(raw))


def main() -> None:
    path = Path(sys.argv[1])
    with failure_told(path.parent):
        asyncio.run(record(json.loads(path.read_text()), path.parent))


if __name__ == "__main__":
    main()
