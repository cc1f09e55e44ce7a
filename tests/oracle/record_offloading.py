"""Record what vLLM 0.19.0's scheduler decides with its own OffloadingConnector, without a device.

    python tests/oracle/record_offloading.py OUTDIR [NAMES...]             offloading_scenarios.py
    python tests/oracle/record_offloading.py OUTDIR --random 200 --seed 1  as many drawn at random

Scheduler, connector (the scheduler's side and the workers') and CPU manager are vLLM's. What copies
blocks is replaced by links on the virtual clock: one transfer at a time in each direction, each
latency + per_token x tokens long. Needs what record.py needs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

# First, because it sets what vLLM reads from the environment.
import torch
import vllm
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import (
    OffloadingConnectorWorker,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.kv_offload.mediums import CPULoadStoreSpec, GPULoadStoreSpec
from vllm.v1.kv_offload.worker.worker import OffloadingHandler, TransferResult
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from tests.oracle.offloading_scenarios import (
    OFFLOADING_SCENARIOS,
    Offloading,
    OffloadingScenario,
    random_offloading_scenario,
)
from tests.oracle.record import (
    BATCH_QUEUE_SIZE,
    MODEL,
    Engine,
    NoProgressError,
    Progress,
    Recording,
    Row,
    finished_ids,
    make_config,
    model_output,
    new_blocks,
    write_lines,
)
from tests.oracle.scenarios import Request, Settings, draw_requests

NEVER = 1 << 62


class Link(OffloadingHandler):
    """One direction: transfers one after the other, each known by the ns at which it ends."""

    def __init__(self, worker: Worker, to_device: bool) -> None:
        self.worker = worker
        self.to_device = to_device
        self.free_ns = 0
        self.under_way: deque[tuple[int, int]] = deque()  # (job, end)

    def transfer_async(self, job_id: int, spec: Any) -> bool:
        source, target = spec
        blocks = len((target if self.to_device else source).block_ids)
        tokens = blocks * self.worker.block_size
        law = self.worker.offloading
        # A store waits for what the device computes by then.
        earliest = self.worker.now if self.to_device else self.worker.computed_ns
        begin = max(earliest, self.worker.now, self.free_ns)
        self.free_ns = begin + law.latency_ns + law.per_token_ns * tokens
        self.under_way.append((job_id, self.free_ns))
        return True

    def get_finished(self) -> list[TransferResult]:
        done = []
        while self.under_way and self.under_way[0][1] <= self.worker.now:
            done.append(TransferResult(self.under_way.popleft()[0], True))
        return done

    def wait(self, job_ids: set[int]) -> None:
        for job, end in self.under_way:
            if job in job_ids:
                self.worker.now = max(self.worker.now, end)


class Worker:
    """vLLM's worker side of the connector, on the virtual clock."""

    def __init__(self, offloading: Offloading, block_size: int) -> None:
        self.offloading = offloading
        self.block_size = block_size
        self.now = 0
        self.computed_ns = 0
        self.side = OffloadingConnectorWorker(spec=None)
        self.loads, self.stores = Link(self, True), Link(self, False)
        self.side.worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, self.loads)
        self.side.worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, self.stores)

    def launch(
        self, output: SchedulerOutput, now: int, device_free: int
    ) -> tuple[int, KVConnectorOutput]:
        """What the worker does with a batch; when it has launched it, and what it reports with it."""
        # It takes batches one after the other, and may have waited with the one before.
        self.now, self.computed_ns = max(self.now, now), device_free
        meta = output.kv_connector_metadata
        self.side.handle_preemptions(meta)
        self.side.start_kv_transfers(meta)
        if output.total_num_scheduled_tokens:
            self.side.prepare_store_kv(meta)
        sending, recving = self.side.get_finished(output.finished_req_ids)
        return self.now, KVConnectorOutput(finished_sending=sending, finished_recving=recving)

    def next_end_ns(self, held: Sequence[str]) -> int:
        """When the next load ends, or the last store of a finished request."""
        ends = [end for _, end in self.loads.under_way]
        last = {self.side._jobs[job][0]: end for job, end in self.stores.under_way}
        ends += [last[r] for r in held if r in last]
        return min(ends, default=NEVER)


@dataclass
class Batch:
    step: int
    end_ns: int
    scheduled: SchedulerOutput
    output: ModelRunnerOutput
    poll_ns: int

    @property
    def is_empty(self) -> bool:
        output = self.scheduled
        reported = self.output.kv_connector_output
        did = output.total_num_scheduled_tokens or output.preempted_req_ids
        return not (did or reported.finished_sending or reported.finished_recving)


class OffloadingEngine(Engine):
    def __init__(
        self,
        settings: Settings,
        requests: Sequence[Request],
        asynchronous: bool,
        model: Path,
        offloading: Offloading,
    ) -> None:
        self.offloading = offloading
        super().__init__(settings, requests, asynchronous, model)
        self.worker = Worker(offloading, settings.block_size)
        self.connector = self.scheduler.connector.connector_scheduler
        self.manager = self.connector.manager
        self.finished: list[str] = []  # in order
        self.connector_pc = [0, 0, 0, 0]
        self.record_decisions()

    def make_scheduler(self, asynchronous: bool, model: Path) -> Scheduler:
        settings, offloading = self.settings, self.offloading
        config = make_config(settings, asynchronous, model)
        config.scheduler_config.disable_hybrid_kv_cache_manager = True
        attention = FullAttentionSpec(
            block_size=settings.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        page = attention.page_size_bytes
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config={
                "cpu_bytes_to_use": offloading.cpu_blocks * offloading.block_size_factor * page,
                "block_size": settings.block_size * offloading.block_size_factor,
            },
        )
        kv_cache = KVCacheConfig(
            num_blocks=settings.num_gpu_blocks,
            kv_cache_tensors=[KVCacheTensor(size=page, shared_by=["layer"])],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
        )
        scheduler = (AsyncScheduler if asynchronous else Scheduler)(
            vllm_config=config,
            kv_cache_config=kv_cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=settings.block_size,
            log_stats=True,
        )
        manager = scheduler.connector.connector_scheduler.manager
        assert manager._num_blocks == offloading.cpu_blocks
        return scheduler

    def record_decisions(self) -> None:
        """Note loads, stores and reports of a step as they happen."""
        self.loads: dict[str, int] = {}
        self.stored: dict[str, int] = {}
        alloc = self.connector.update_state_after_alloc
        reqs_to_store = self.connector._get_reqs_to_store
        chunk = self.settings.block_size * self.offloading.block_size_factor

        def after_alloc(request: Any, blocks: Any, num_external_tokens: int) -> None:
            if num_external_tokens:
                self.loads[request.request_id] = num_external_tokens
            alloc(request, blocks, num_external_tokens)

        def to_store(output: SchedulerOutput) -> Any:
            chosen = reqs_to_store(output)
            self.stored = {r: len(dst.block_ids) * chunk for r, (_, dst) in chosen.items()}
            return chosen

        self.connector.update_state_after_alloc = after_alloc
        self.connector._get_reqs_to_store = to_store

    @property
    def held(self) -> list[str]:
        """Finished requests whose blocks are not free yet, in the order in which they finished."""
        return [r for r in self.finished if r in self.scheduler.requests]

    def schedule(self) -> tuple[SchedulerOutput, Row]:
        """Form a batch, and what the connector did with it."""
        self.loads, self.stored = {}, {}
        output = self.scheduler.schedule()
        waiting = RequestStatus.WAITING_FOR_REMOTE_KVS
        reported = self.scheduler.finished_recving_kv_req_ids
        loading = [
            r
            for r, s in self.scheduler.requests.items()
            if s.status == waiting and r not in reported
        ]
        return output, {
            "loads": self.loads,
            "loading": len(loading),
            "stores": self.stored,
        }

    def update(self, output: SchedulerOutput, result: ModelRunnerOutput) -> tuple[Any, Row]:
        """Apply a batch's output. Sets are put into the order in which requests finished, because
        their order decides which blocks are freed first and vLLM leaves it to chance.
        """
        reported = result.kv_connector_output
        order = {r: i for i, r in enumerate(self.finished)}
        sent = sorted(reported.finished_sending, key=order.__getitem__)
        received = sorted(reported.finished_recving, key=list(self.scheduler.requests).index)
        reported.finished_sending, reported.finished_recving = sent, received
        outputs = self.scheduler.update_from_output(output, result)
        stats = next(o.scheduler_stats for o in outputs.values() if o.scheduler_stats)
        counted = four(stats.connector_prefix_cache_stats)
        self.connector_pc = [a + b for a, b in zip(self.connector_pc, counted, strict=True)]
        self.finished += finished_ids(outputs)
        self.finished = [r for r in self.finished if r not in sent]
        return outputs, {"stored": sent, "loaded": sorted(received)}

    def wake_ns(self, now: int) -> int:
        """An engine with nothing to run goes on when a transfer ends or a request arrives."""
        arrival = NEVER if self.all_arrived else self.next_arrival_ns
        return max(now, min(arrival, self.worker.next_end_ns(self.held)))

    def waits(self, applied: Batch, in_flight: Sequence[Batch]) -> bool:
        """Whether, after an empty batch that changed nothing, the next one would be as empty."""
        newest = in_flight[-1] if in_flight else applied
        return bool(
            all(b.is_empty for b in (applied, *in_flight))
            and self.scheduler.has_unfinished_requests()
            and newest.poll_ns < self.worker.next_end_ns(self.held) < NEVER
        )


def four(stats: Any) -> list[int]:
    return [stats.queries, stats.hits, stats.preempted_queries, stats.preempted_hits]


def record_synchronous(engine: OffloadingEngine, progress: Progress, steps: list[Row]) -> int:
    scheduler = engine.scheduler
    now = 0
    while not engine.all_arrived or scheduler.has_requests():
        if not scheduler.has_requests():
            now = max(now, engine.next_arrival_ns)
        engine.take_arrived(now)
        output, connector = engine.schedule()
        scheduled = engine.scheduled(output)
        resumed = sorted(output.scheduled_cached_reqs.resumed_req_ids)
        hits = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        hits |= {request_id: scheduled[request_id][1] for request_id in resumed}
        free_after_schedule = engine.num_free_blocks
        sampled: list[list[int]] = []
        for request_id in scheduled:
            state = scheduler.requests[request_id]
            at_end = state.num_computed_tokens >= state.num_tokens
            tokens = engine.output_tokens[request_id]
            sampled.append([tokens[state.num_output_tokens]] if at_end else [])
        launched, reported = engine.worker.launch(output, now, now)
        result = model_output(list(scheduled), sampled)
        result.kv_connector_output = reported
        outputs, transfers = engine.update(output, result)
        stats = next(o.scheduler_stats for o in outputs.values() if o.scheduler_stats)
        steps.append(
            {
                "step": progress.steps,
                "t_ns": now,
                "sched": scheduled,
                "new": [r.req_id for r in output.scheduled_new_reqs],
                "resumed": resumed,
                "new_blocks": new_blocks(output),
                "preempted": sorted(output.preempted_req_ids or ()),
                "finished": finished_ids(outputs),
                "free_after_schedule": free_after_schedule,
                "free_after_update": engine.num_free_blocks,
                "running": engine.num_running,
                "waiting": engine.num_waiting,
                "prefix_hits": {request_id: n for request_id, n in hits.items() if n},
                "pc": four(stats.prefix_cache_stats),
                **connector,
                **transfers,
            }
        )
        now = launched + engine.cost_ns(scheduled)
        if engine.waits(Batch(progress.steps, now, output, result, launched), ()):
            now = engine.wake_ns(now)
        progress.count(output)
    return now


def record_asynchronous(engine: OffloadingEngine, progress: Progress, steps: list[Row]) -> int:
    scheduler = engine.scheduler
    promised = dict.fromkeys(engine.output_tokens, 0)
    queue: deque[Batch] = deque()
    now = device_free = 0
    while not engine.all_arrived or scheduler.has_requests() or queue:
        if not scheduler.has_requests() and not queue:
            now = max(now, engine.next_arrival_ns)
        engine.take_arrived(now)
        if scheduler.has_requests():
            placeholders = {i: s.num_output_placeholders for i, s in scheduler.requests.items()}
            output, connector = engine.schedule()
            scheduled = engine.scheduled(output)
            sampled: list[list[int]] = []
            for request_id in scheduled:
                state = scheduler.requests[request_id]
                samples = state.num_output_placeholders > placeholders[request_id]
                position = promised[request_id]
                promised[request_id] += samples
                tokens = engine.output_tokens[request_id]
                sampled.append([tokens[position]] if samples else [])
            launched, reported = engine.worker.launch(output, now, device_free)
            start = max(launched, device_free)
            end = start
            if scheduled:
                end = device_free = start + engine.cost_ns(scheduled)
            steps.append(
                {
                    "kind": "schedule",
                    "step": progress.steps,
                    "t_ns": now,
                    "start_ns": start,
                    "end_ns": end,
                    "sched": scheduled,
                    "new": [r.req_id for r in output.scheduled_new_reqs],
                    "resumed": sorted(output.scheduled_cached_reqs.resumed_req_ids),
                    "new_blocks": new_blocks(output),
                    "preempted": sorted(output.preempted_req_ids or ()),
                    "samples": [i for i, tokens in zip(scheduled, sampled, strict=True) if tokens],
                    "free": engine.num_free_blocks,
                    "running": engine.num_running,
                    "waiting": engine.num_waiting,
                    **connector,
                }
            )
            result = model_output(list(scheduled), sampled)
            result.kv_connector_output = reported
            queue.append(Batch(progress.steps, end, output, result, launched))
            progress.count(output)
            if scheduled and len(queue) < BATCH_QUEUE_SIZE and queue[0].end_ns > now:
                continue
        if not queue:
            continue
        batch = queue.popleft()
        now = max(now, batch.end_ns)
        outputs, transfers = engine.update(batch.scheduled, batch.output)
        steps.append(
            {
                "kind": "update",
                "step": batch.step,
                "t_ns": now,
                "finished": finished_ids(outputs),
                "free": engine.num_free_blocks,
                "running": engine.num_running,
                "waiting": engine.num_waiting,
                **transfers,
            }
        )
        if engine.waits(batch, queue):
            now = engine.wake_ns(now)
    return now


RECORDERS = {False: record_synchronous, True: record_asynchronous}
PREFIXES = ((False, ""), (True, "async_"))


def record(
    made: OffloadingScenario,
    requests: Sequence[Request],
    asynchronous: bool,
    model: Path,
    most: int,
) -> Recording:
    settings = made.scenario.settings
    refused = [r.request_id for r in requests if settings.refuses(r)]
    served = [r for r in requests if r.request_id not in refused]
    engine = OffloadingEngine(settings, served, asynchronous, model, made.offloading)
    progress = Progress(most)
    steps: list[Row] = []
    end_ns = RECORDERS[asynchronous](engine, progress, steps)
    config: Row = {"vllm_version": vllm.__version__}
    if asynchronous:
        config |= {"async_scheduling": True, "batch_queue_size": BATCH_QUEUE_SIZE}
    config |= settings.as_config() | {"offloading": made.offloading.as_config()}
    config |= {"steps": progress.steps, "preemptions": progress.preemptions, "end_ns": end_ns}
    config |= {"connector_pc": engine.connector_pc, "chunks": len(engine.manager._policy.blocks)}
    if refused:
        config["refused"] = refused
    return Recording(config, steps)


def record_scenario(made: OffloadingScenario, folder: Path, model: Path, most: int) -> None:
    requests = draw_requests(made.scenario)
    both = [(prefix, record(made, requests, mode, model, most)) for mode, prefix in PREFIXES]
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "workload.jsonl.gz", (r.as_row() for r in requests))
    for prefix, one in both:
        (folder / f"{prefix}config.json").write_text(json.dumps(one.config, indent=1))
        write_lines(folder / f"{prefix}steps.jsonl.gz", one.steps)
    counts = ", ".join(
        f"{prefix}steps {one.config['steps']} preemptions {one.config['preemptions']} "
        f"loads {sum(len(row.get('loads', ())) for row in one.steps)}"
        for prefix, one in both
    )
    print(f"{made.name}: {counts}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Record decisions with vLLM's OffloadingConnector."
    )
    parser.add_argument("outdir", type=Path)
    parser.add_argument("names", nargs="*", help="scenarios; all of them if none is named")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="draw N scenarios")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=100_000)
    arguments = parser.parse_args()
    if arguments.random:
        chosen = [random_offloading_scenario(i, arguments.seed) for i in range(arguments.random)]
    else:
        known = {made.name: made for made in OFFLOADING_SCENARIOS}
        chosen = [known[name] for name in arguments.names or known]
    stuck = 0
    with tempfile.TemporaryDirectory() as temporary:
        model = Path(temporary)
        (model / "config.json").write_text(json.dumps(MODEL))
        for made in chosen:
            try:
                record_scenario(made, arguments.outdir / made.name, model, arguments.max_steps)
            except (NoProgressError, AssertionError) as problem:
                stuck += 1
                print(f"{made.name}: {type(problem).__name__}: {problem}", flush=True)
    return 1 if stuck else 0


if __name__ == "__main__":
    sys.exit(main())
