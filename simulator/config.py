"""What one point is: model, card, engine settings in vLLM's names, workload, profile.

Every model is frozen and refuses unknown fields. Paths in a file are relative to that file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from profiles.card import Card
from profiles.errors import FieldError, InputError, named, parse_model, read_yaml
from profiles.model import ModelConfig
from simulator.workloads import WorkloadConfig

Int = Annotated[int, Field(strict=True)]
# Far beyond any engine, and small enough that nothing derived from them overflows.
Positive = Annotated[int, Field(strict=True, ge=1, le=1 << 22)]
Length = Annotated[int, Field(strict=True, ge=2, le=1 << 30)]
Blocks = Annotated[int, Field(strict=True, ge=2, le=100_000_000)]
Flag = Annotated[bool, Field(strict=True)]
Milliseconds = Annotated[float, Field(strict=True, ge=-1e6, le=1e6, allow_inf_nan=False)]
FinitePositive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineConfig(Frozen):
    """Engine settings, in vLLM's names and with vLLM's meaning.

    Defaults are vLLM 0.19's on a GPU, with the smaller batch limits it uses below 70 GB of memory.
    """

    block_size: Positive = 16
    gpu_memory_utilization: Annotated[
        float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)
    ] = 0.9
    num_gpu_blocks_override: Blocks | None = None
    max_num_seqs: Positive = 256
    max_num_batched_tokens: Positive = 2048
    max_model_len: Length | None = None
    enable_prefix_caching: Flag = True
    enable_chunked_prefill: Flag = True
    long_prefill_token_threshold: Annotated[int, Field(strict=True, ge=0)] = 0
    scheduler_reserve_full_isl: Flag = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: Flag = True
    tensor_parallel_size: Annotated[int, Field(strict=True, ge=1, le=1)] = 1
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "float32", "fp8"] = "auto"
    null_block: Flag = True
    """vLLM keeps block 0 for itself. False hands out every block, as LLMServingSim does."""

    @model_validator(mode="after")
    def _as_vllm_checks_it(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise FieldError(
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                f"at least max_num_seqs ({self.max_num_seqs})",
            )
        return self

    def resolved_max_model_len(self, model: ModelConfig) -> int:
        """max_model_len, or the model's own limit."""
        return self.max_model_len or model.max_position_embeddings

    def check_against(self, model: ModelConfig, source: str | Path) -> None:
        """The rules that need the model's length; raises InputError."""
        length = self.resolved_max_model_len(model)
        if length > 1 << 30:
            raise InputError(
                source,
                "model.max_position_embeddings",
                length,
                f"at most {1 << 30}, or max_model_len",
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < length:
            raise InputError(
                source,
                "engine.max_num_batched_tokens",
                self.max_num_batched_tokens,
                f"at least max_model_len ({length}), because chunked prefill is off",
            )
        if self.long_prefill_token_threshold > length:
            raise InputError(
                source,
                "engine.long_prefill_token_threshold",
                self.long_prefill_token_threshold,
                f"at most max_model_len ({length})",
            )


class Overhead(Frozen):
    """What a step costs beside its kernels. All zero and off by default.

    With CUDA graphs vLLM runs a step in one of three ways: a batch of decodes up to the largest
    capture size replays a full graph; other batches up to that size run piecewise; larger ones run
    without graphs. Each may have its own time, which is added to the tables' and may be negative.
    `pad_to_capture_size` looks dense layers up at the capture size the batch is padded to.
    Host time delays the start of a step: it adds to the step under synchronous scheduling and hides
    behind the step before it under asynchronous scheduling.
    """

    cudagraph_mode: Literal["NONE", "PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"] = (
        "FULL_AND_PIECEWISE"
    )
    cudagraph_capture_sizes: tuple[Positive, ...] | None = None
    """None: the sizes vLLM chooses for max_num_seqs."""
    from_recorded_run: Flag = False
    """Take mode, capture sizes and async_scheduling from `recorded_run`'s configuration."""
    pad_to_capture_size: Flag = False
    full_graph_ms: Milliseconds = 0.0
    piecewise_ms: Milliseconds = 0.0
    no_graph_ms: Milliseconds = 0.0
    host_ms_per_step: Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)] = 0.0
    host_ms_per_request: Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)] = (
        0.0
    )


class LinearLaw(Frozen):
    """A step's duration without tables, in ns:

    base + per_token x tokens + per_kv_token x (tokens read and written by attention)
    + per_request x requests. The law of the recorded scheduler scenarios.
    """

    base_ns: Annotated[int, Field(strict=True, ge=0, le=10**12)]
    per_token_ns: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 0
    per_kv_token_ns: Annotated[int, Field(strict=True, ge=0, le=10**6)] = 0
    per_request_ns: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 0


class TierConfig(Frozen):
    """A tier of prefix storage: CPU or CXL memory of one instance.

    Capacity and bandwidth are those of the host: what all ranks keep and move together. Bandwidth is
    in 10^9 bytes a second, the same in each direction.
    """

    capacity_gib: FinitePositive
    bandwidth_gbps: FinitePositive
    latency_us: Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    chunk_tokens: Positive = 256


class ProfileConfig(Frozen):
    """Where step durations come from; exactly one of the three.

    bundle: the folder of one variant, .../<card>/<model>/<variant>.
    bundles: the folder above all cards; card, model and variant follow the point.
    linear: a law instead of tables.
    """

    bundle: Path | None = None
    bundles: Path | None = None
    linear: LinearLaw | None = None
    unfitted_skew: Literal["pooled", "zero"] = "pooled"
    """Decode batches of unequal lengths that no fitted bucket covers: the coefficient pooled over
    the same bundle, or no correction. A bundle without a fit is never corrected."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [n for n in ("bundle", "bundles", "linear") if getattr(self, n) is not None]
        if len(given) != 1:
            raise FieldError("", given or None, "exactly one of bundle, bundles, linear")
        return self


class Point(Frozen):
    """One simulation."""

    model: ModelConfig
    card: Card
    engine: EngineConfig = EngineConfig()
    workload: WorkloadConfig
    profile: ProfileConfig
    overhead: Overhead = Overhead()
    prefix_storage: Literal["none", "cpu", "cxl", "cpu+cxl"] = "none"
    """Which of `tiers` keep prefixes that the device evicts; of two, cpu is looked up first."""
    kv_connector: Literal["LMCacheConnectorV1", "OffloadingConnector"] = "LMCacheConnectorV1"
    """vLLM's name of what moves prefixes to and from `tiers`: loads before the step, or loads and
    stores beside steps while the request waits."""
    tiers: dict[Literal["cpu", "cxl"], TierConfig] = {}
    arrivals: Literal["workload", "recorded"] = "workload"
    """When requests arrive: as the workload says, or as `recorded_run` queued them."""
    recorded_run: Path | None = None
    check_invariants: Flag = False
    """Check the engine's invariants after every step. Slow."""

    @property
    def chosen_tiers(self) -> dict[str, TierConfig]:
        """The tiers in use by name, in the order they are looked up."""
        names = self.prefix_storage.split("+")
        return {name: tier for name in names for key, tier in self.tiers.items() if key == name}

    @model_validator(mode="after")
    def _tier_is_there(self) -> Self:
        if self.prefix_storage == "none":
            return self
        wanted = self.prefix_storage.split("+")
        if any(name not in self.tiers for name in wanted):
            known = f"none or one of tiers: {', '.join(self.tiers) or 'none there'}"
            raise FieldError("prefix_storage", self.prefix_storage, known)
        for name, tier in self.chosen_tiers.items():
            if tier.chunk_tokens % self.engine.block_size:
                raise FieldError(
                    f"tiers.{name}.chunk_tokens",
                    tier.chunk_tokens,
                    f"a multiple of engine.block_size ({self.engine.block_size})",
                )
        first, *others = self.chosen_tiers.values()
        for tier in others:
            if tier.chunk_tokens != first.chunk_tokens:
                raise FieldError(
                    f"tiers.{wanted[1]}.chunk_tokens",
                    tier.chunk_tokens,
                    f"as tiers.{wanted[0]}.chunk_tokens ({first.chunk_tokens}), because both are used",
                )
        if others and self.kv_connector == "OffloadingConnector":
            raise FieldError(
                "prefix_storage",
                self.prefix_storage,
                "one tier, because kv_connector OffloadingConnector moves to and from one",
            )
        if not self.engine.enable_prefix_caching:
            raise FieldError(
                "prefix_storage",
                self.prefix_storage,
                "none, because engine.enable_prefix_caching is off",
            )
        return self

    @model_validator(mode="after")
    def _recording_is_named(self) -> Self:
        asked = (
            "arrivals: recorded"
            if self.arrivals == "recorded"
            else "overhead.from_recorded_run"
            if self.overhead.from_recorded_run
            else None
        )
        if asked and self.recorded_run is None:
            raise FieldError("recorded_run", None, f"a recorded run's folder, because of {asked}")
        return self


def load_point(path: str | Path) -> Point:
    """Read a point from YAML. Raises InputError."""
    path = Path(path)
    data = read_yaml(path)
    if "base" in data:
        expected = "the fields of a point; this file is a sweep, `servesweep run` takes it"
        raise InputError(path, "base", data["base"], expected)
    return point_from_mapping(data, path.parent, path)


def point_from_mapping(data: dict[str, Any], base: Path, source: str | Path) -> Point:
    """A point from a mapping; relative paths are taken from `base`, errors name `source`."""
    data = with_absolute_paths(data, base)
    data["model"] = _model_data(data.get("model"), source)
    # A known section left empty is one left out.
    given = {k: v for k, v in data.items() if v is not None or k not in Point.model_fields}
    point = parse_model(Point, given, source)
    point.engine.check_against(point.model, source)
    return point


# Where a point names files: section -> the fields that hold a path.
PATH_FIELDS: dict[str, tuple[str, ...]] = {
    "model": ("hf_config",),
    "profile": ("bundle", "bundles"),
    "workload": ("jsonl", "csv", "mooncake"),
}


def with_absolute_paths(data: dict[str, Any], base: Path) -> dict[str, Any]:
    """The mapping with every path in it taken from `base`."""

    def absolute(value: Any) -> Any:
        if isinstance(value, str):
            if "\0" in value or not value.isprintable():
                raise InputError(base, "path", value, "a path of printable characters")
            # Not resolve(): a link that leads nowhere is for whoever opens it to report.
            return os.path.abspath(base / value)  # noqa: PTH100
        if isinstance(value, dict) and isinstance(value.get("path"), str):
            return {**value, "path": absolute(value["path"])}
        return value

    data = dict(data)
    for section, fields in PATH_FIELDS.items():
        if isinstance(data.get(section), dict):
            paths = {f: absolute(data[section][f]) for f in fields if f in data[section]}
            data[section] = {**data[section], **paths}
    if "recorded_run" in data:
        data["recorded_run"] = absolute(data["recorded_run"])
    if isinstance(data.get("model"), str):
        data["model"] = absolute(data["model"])
    return data


def _model_data(value: Any, source: str | Path) -> Any:
    """A model is its fields, the path of a Hugging Face config.json, or {hf_config, name}."""
    if isinstance(value, str):
        with named(source, "model"):
            return ModelConfig.from_hf(Path(value))
    if isinstance(value, dict) and "hf_config" in value:
        unknown = sorted(set(value) - {"hf_config", "name"})
        if unknown:
            raise InputError(
                source, f"model.{unknown[0]}", value[unknown[0]], "only name beside hf_config"
            )
        if not isinstance(value["hf_config"], str):
            raise InputError(source, "model.hf_config", value["hf_config"], "a path")
        with named(source, "model.hf_config"):
            return ModelConfig.from_hf(Path(value["hf_config"]), value.get("name"))
    return value
