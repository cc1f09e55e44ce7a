"""The device model: an executor that takes as long as a profile says, and computes nothing.

Everything of vLLM but the kernels is real. The device runs one batch after the other: a batch starts
when it is submitted or when the one before it ends, whichever is later, and ends after the time that
servesweep's own step law (`simulator.core.latency.step_ns`, uncompiled) gives it. Sampled tokens are
the workload's, where it knows them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic_ns
from typing import Any

from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

from orchestrator.recording.inside.files import Requests, load_latency
from orchestrator.recording.inside.law import device_ns, sleep_until
from orchestrator.recording.inside.log import DEVICE, log, request_number

LATENCY, WORKLOAD = "SERVESWEEP_LATENCY", "SERVESWEEP_WORKLOAD"  # environment: files
ASYNC = "SERVESWEEP_ASYNC_SCHEDULING"
NUM_BLOCKS = "SERVESWEEP_NUM_GPU_BLOCKS"
WARM_UP_TOKEN = 1


class Running(Future[Any]):
    """The output of a batch, there when the device has run it. Who asks waits; no thread does."""

    def __init__(
        self, output: ModelRunnerOutput, end_ns: int, ended: Callable[[Any], None]
    ) -> None:
        super().__init__()
        self.output, self.end_ns, self.ended = output, end_ns, ended

    def done(self) -> bool:
        return monotonic_ns() >= self.end_ns

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        sleep_until(self.end_ns)
        self.ended(self.output)
        return self.output


class DeviceModel(Executor):
    """Given to the engine by name (`distributed_executor_backend`)."""

    supports_pp = True

    def _init_executor(self) -> None:
        self.latency, self.outside = load_latency(os.environ[LATENCY])
        self.known = Requests.load(os.environ[WORKLOAD])
        # On a CPU vLLM turns asynchronous scheduling off; the device that is modelled has it.
        self.asynchronous = os.environ[ASYNC] == "1"
        self.scheduler_config.async_scheduling = self.asynchronous
        self.num_prompt_tokens: dict[str, int] = {}
        self.device_free_ns = 0
        self.submitted: Running | None = None
        self.connector: Any = None

    @property
    def max_concurrent_batches(self) -> int:
        return 2 if self.asynchronous else 1

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    # --- start

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        model, parallel = self.model_config, self.parallel_config
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size,
            num_kv_heads=model.get_num_kv_heads(parallel),
            head_size=model.get_head_size(),
            dtype=model.dtype,
        )
        layers = range(model.get_num_layers(parallel))
        self.block_bytes = spec.page_size_bytes * len(layers)
        return [{f"model.layers.{i}.self_attn.attn": spec for i in layers}]

    def determine_available_memory(self) -> list[int]:
        return [int(os.environ[NUM_BLOCKS]) * self.block_bytes]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        """Asked by later versions only; there is no cache whose layout could matter."""
        return [["LBHNC"]]

    def set_kv_cache_layout(self, layout_name: str) -> None:
        pass

    def initialize_from_config(self, kv_cache_configs: Any) -> None:
        if self.vllm_config.kv_transfer_config is not None:
            from orchestrator.recording.inside.transfers import Connector

            self.connector = Connector(self.vllm_config, kv_cache_configs[0], self.block_bytes)

    def compile_or_warm_up_model(self) -> None:
        pass

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    # --- steps

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        submitted_ns = monotonic_ns()
        if self.connector is not None:
            self.connector.begin(scheduler_output)
        names, sampled, batch = self._batch(scheduler_output)
        start_ns = end_ns = max(submitted_ns, self.device_free_ns)
        if batch:
            end_ns += device_ns(self.latency, self.outside, batch)
            self.device_free_ns = end_ns
        log.extend((DEVICE, start_ns, end_ns))
        index = {name: i for i, name in enumerate(names)}
        output = ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=sampled)
        finished = scheduler_output.finished_req_ids

        def ended(output: ModelRunnerOutput) -> None:
            if self.connector is not None:
                output.kv_connector_output = self.connector.finished(finished)

        self.submitted = Running(output, end_ns, ended)
        return self.submitted if non_block else self.submitted.result()

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Asynchronous scheduling asks for the output of the batch just submitted."""
        assert self.submitted is not None
        return self.submitted if non_block else self.submitted.result()

    def _batch(
        self, scheduler_output: Any
    ) -> tuple[list[str], list[list[int]], list[tuple[int, int]]]:
        """Names, sampled tokens and (scheduled, computed before) of the requests of a batch."""
        for name in scheduler_output.finished_req_ids:
            self.num_prompt_tokens.pop(name, None)
        reached: dict[str, tuple[int, int]] = {}  # tokens computed before, output tokens so far
        for new in scheduler_output.scheduled_new_reqs:
            self.num_prompt_tokens[new.req_id] = len(new.prompt_token_ids)
            reached[new.req_id] = (new.num_computed_tokens, 0)
        others = scheduler_output.scheduled_cached_reqs
        for name, computed, outputs in zip(
            others.req_ids, others.num_computed_tokens, others.num_output_tokens, strict=True
        ):
            reached[name] = (computed, outputs)
        names: list[str] = []
        sampled: list[list[int]] = []
        batch: list[tuple[int, int]] = []
        for name, scheduled in scheduler_output.num_scheduled_tokens.items():
            computed, outputs = reached[name]
            names.append(name)
            batch.append((scheduled, computed))
            samples = computed + scheduled >= self.num_prompt_tokens[name] + outputs
            sampled.append([self._token(name, computed + scheduled)] if samples else [])
        return names, sampled, batch

    def _token(self, name: str, position: int) -> int:
        number = request_number(name)
        return WARM_UP_TOKEN if number < 0 else self.known.token(number, position)

    # --- the rest of the interface has nothing to do

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return [None]

    def take_draft_token_ids(self) -> None:
        return None

    def execute_dummy_batch(self) -> None:
        pass

    def reset_mm_cache(self) -> None:
        pass

    def reset_encoder_cache(self) -> None:
        pass

    def check_health(self) -> None:
        pass

    def shutdown(self) -> None:
        pass
