"""From a point to what vLLM is told: the same file that the simulator runs.

Checked before vLLM starts: what the engine would refuse, and what the recording could not keep.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.recording.inside.files import Requests
from orchestrator.recording.tokens import with_tokens
from profiles.errors import InputError, read_yaml
from profiles.foreign import json_object, read_file
from simulator.build import refusals
from simulator.config import PATH_FIELDS, Point, point_from_mapping, with_absolute_paths
from simulator.simulation import Prepared, prepare

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "phimoe": "PhiMoEForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
# Engine settings whose meaning is vLLM's own: it must end with the same value.
KEPT = (
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "scheduler_reserve_full_isl",
    "policy",
    "async_scheduling",
    "tensor_parallel_size",
)
SEED = 42


@dataclass(frozen=True)
class Recording:
    """What is to be recorded, with everything resolved."""

    source: Path
    mapping: dict[str, Any]  # the point file, its paths absolute
    prepared: Prepared
    requests: Requests
    device_model: bool
    model_json: dict[str, Any]
    engine_arguments: dict[str, Any]
    expected: dict[str, Any]

    @property
    def point(self) -> Point:
        return self.prepared.point


def load_recording(
    path: Path, *, device_model: bool, enforce_eager: bool, extra: dict[str, Any]
) -> Recording:
    """Read the point and check that vLLM can run it. `extra` are further engine arguments.

    Raises InputError.
    """
    path = Path(path)
    mapping = with_absolute_paths(read_yaml(path), path.parent)
    point = point_from_mapping(mapping, path.parent, path)
    prepared = prepare(point, path)
    check_recordable(prepared, path, device_model)
    requests = with_tokens(prepared.workload, prepared.arrival_ns, point.model.vocab_size)
    known = prepared.capacity.overridden or device_model
    engine = point.engine
    max_model_len = prepared.max_model_len
    expected = {
        **{name: getattr(engine, name) for name in KEPT},
        "async_scheduling": prepared.overhead.async_scheduling,
        "max_model_len": max_model_len,
    }
    arguments = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "seed": SEED,
        "dtype": engine.dtype,
        "kv_cache_dtype": "auto" if device_model else engine.kv_cache_dtype,
        "quantization": None if device_model else engine.quantization,
        "enforce_eager": enforce_eager or device_model,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "disable_log_stats": False,
        **{name: value for name, value in expected.items() if name != "policy"},
        "scheduling_policy": engine.policy,
    }
    if known:
        expected["num_gpu_blocks"] = prepared.capacity.num_gpu_blocks
        arguments["num_gpu_blocks_override"] = prepared.capacity.num_gpu_blocks
    for name, given in extra.items():
        if name in arguments:
            free = "an argument that the point does not set"
            raise InputError("command line", f"--engine-arg {name}", given, free)
    return Recording(
        source=path,
        mapping=mapping,
        prepared=prepared,
        requests=requests,
        device_model=device_model,
        model_json=model_json(mapping.get("model"), point),
        engine_arguments={**arguments, **extra},
        expected=expected,
    )


def check_recordable(prepared: Prepared, source: Path, device_model: bool) -> None:
    """Raises InputError for what vLLM would refuse or a recording could not show."""
    point, settings = prepared.point, prepared.settings
    if point.engine.is_infinilm:
        raise InputError(source, "engine.engine", point.engine.engine, "vllm, to record vLLM")
    if device_model and point.engine.tensor_parallel_size > 1:
        expected = "1: the device model is one worker"
        field = "engine.tensor_parallel_size"
        raise InputError(source, field, point.engine.tensor_parallel_size, expected)
    if point.prefix_storage != "none":
        expected = "none: a storage tier has no counterpart in the recorded engine"
        raise InputError(source, "prefix_storage", point.prefix_storage, expected)
    if point.placement is not None:
        expected = "nothing: weights and KV cache are on the recorded engine's device"
        raise InputError(source, "placement", point.placement.model_dump(), expected)
    if not point.engine.null_block:
        expected = "true: vLLM always keeps the null block"
        raise InputError(source, "engine.null_block", False, expected)
    tokens = settings.num_gpu_blocks * settings.block_size
    if tokens < prepared.max_model_len:
        expected = f"at most {tokens}, what the {settings.num_gpu_blocks} KV blocks hold"
        raise InputError(source, "engine.max_model_len", prepared.max_model_len, expected)
    if prepared.max_model_len > point.model.max_position_embeddings:
        limit = point.model.max_position_embeddings
        expected = f"at most the model's max_position_embeddings ({limit})"
        raise InputError(source, "engine.max_model_len", prepared.max_model_len, expected)
    refused = refusals(prepared.workload, settings)
    if refused:
        r, reason = next(iter(sorted(refused.items())))
        where = f"request {prepared.workload.request_ids[r]}"
        raise InputError(source, "workload", where, f"one that vLLM serves; {reason}")


def model_json(model: Any, point: Point) -> dict[str, Any]:
    """The model's config.json: the one that is named, or one of the point's fields."""
    path = model.get("hf_config") if isinstance(model, dict) else model
    if isinstance(path, str):
        file = Path(path)
        file = file / "config.json" if file.is_dir() else file
        data = json_object(read_file(file), file)
    else:
        data = json.loads(point.model.model_dump_json(exclude={"name"}, exclude_none=True))
        data |= {"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
    return {"architectures": [ARCHITECTURES[point.model.model_type]], **data}


def kv_cache_gib(recording: Recording) -> int:
    """What a CPU needs for the KV cache, in whole GiB (VLLM_CPU_KVCACHE_SPACE)."""
    return max(1, math.ceil(recording.prepared.capacity.kv_bytes / 2**30))


def point_beside(recording: Recording, folder: Path) -> dict[str, Any]:
    """The point as a file in `folder` that replays the recording there: paths relative to it."""
    data = {**recording.mapping, "recorded_run": ".", "arrivals": "recorded"}

    def relative(value: Any) -> Any:
        if isinstance(value, dict):
            return {**value, "path": relative(value["path"])} if "path" in value else value
        return os.path.relpath(value, folder) if isinstance(value, str) else value

    for section, fields in PATH_FIELDS.items():
        if isinstance(data.get(section), dict):
            paths = {f: relative(data[section][f]) for f in fields if f in data[section]}
            data[section] = {**data[section], **paths}
    if isinstance(data.get("model"), str):
        data["model"] = relative(data["model"])
    return data
