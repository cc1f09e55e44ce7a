"""An engine from a job's arguments, and what the engine made of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCHEDULERS = {False: "LoggingScheduler", True: "LoggingAsyncScheduler"}


def engine_arguments(job: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of vLLM's EngineArgs."""
    scheduler = SCHEDULERS[job["async_scheduling"]]
    arguments = {
        **job["engine_arguments"],
        "scheduler_cls": f"orchestrator.recording.inside.schedulers.{scheduler}",
    }
    if job["device_model"]:
        arguments["distributed_executor_backend"] = (
            "orchestrator.recording.inside.device.DeviceModel"
        )
    return arguments


def resolved(config: Any) -> dict[str, Any]:
    """The settings a VllmConfig ended in, in the names of a recorded run's meta.json."""
    cache, scheduler, model = config.cache_config, config.scheduler_config, config.model_config
    compilation, parallel = config.compilation_config, config.parallel_config
    mode = getattr(compilation.cudagraph_mode, "value", 0) or 0
    return {
        "engine": {
            "block_size": cache.block_size,
            "num_gpu_blocks": cache.num_gpu_blocks,
            "gpu_memory_utilization": cache.gpu_memory_utilization,
            "enable_prefix_caching": bool(cache.enable_prefix_caching),
            "kv_cache_dtype": str(cache.cache_dtype),
            "max_num_seqs": scheduler.max_num_seqs,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_model_len": model.max_model_len,
            "enable_chunked_prefill": bool(scheduler.enable_chunked_prefill),
            "long_prefill_token_threshold": scheduler.long_prefill_token_threshold,
            "scheduler_reserve_full_isl": bool(scheduler.scheduler_reserve_full_isl),
            "policy": scheduler.policy,
            "async_scheduling": bool(scheduler.async_scheduling),
            "dtype": str(model.dtype).removeprefix("torch."),
            "tensor_parallel_size": parallel.tensor_parallel_size,
            "data_parallel_size": parallel.data_parallel_size,
            "enable_expert_parallel": bool(parallel.enable_expert_parallel),
        },
        "compilation_config": {
            "mode": int(getattr(compilation.mode, "value", compilation.mode) or 0),
            "cudagraph_mode": list(mode) if isinstance(mode, tuple) else mode,
            "cudagraph_capture_sizes": list(compilation.cudagraph_capture_sizes or ()),
        },
    }


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """The settings that the engine made something else of."""
    return [
        f"{name} {value!r} became {found.get(name)!r}"
        for name, value in expected.items()
        if found.get(name) != value
    ]


def versions() -> dict[str, str]:
    import numpy
    import torch
    import vllm

    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def hardware() -> dict[str, Any]:
    """The processor, and the device if torch sees one."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    found: dict[str, Any] = {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "device": None,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["device"] = {"name": properties.name, "memory_bytes": properties.total_memory}
    return found


@contextmanager
def failure_told(out: Path) -> Iterator[None]:
    """Leave the message of what failed in failure.txt; vLLM's processes go on writing to the log."""
    try:
        yield
    except BaseException as error:
        (out / "failure.txt").write_text(f"{type(error).__name__}: {error}")
        raise
