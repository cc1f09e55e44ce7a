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
from profiles.routing import Policy
from simulator.calibration import AppliedCalibration, with_calibration
from simulator.cluster.config import ClusterConfig
from simulator.network.experts import GATHERED, Backend
from simulator.network.links import Links
from simulator.placement.config import Placement
from simulator.workloads import WorkloadConfig

Int = Annotated[int, Field(strict=True)]
# Far beyond any engine, and small enough that nothing derived from them overflows.
Positive = Annotated[int, Field(strict=True, ge=1, le=1 << 22)]
Length = Annotated[int, Field(strict=True, ge=2, le=1 << 30)]
MAX_BLOCKS = 100_000_000
Blocks = Annotated[int, Field(strict=True, ge=2, le=MAX_BLOCKS)]
Flag = Annotated[bool, Field(strict=True)]
Milliseconds = Annotated[float, Field(strict=True, ge=-1e6, le=1e6, allow_inf_nan=False)]
FinitePositive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


# Settings of vLLM's scheduler that InfiniLM's does not have, and as what it behaves; None: as neither.
VLLM_ALONE = {
    "async_scheduling": False,
    "enable_chunked_prefill": False,
    "long_prefill_token_threshold": 0,
    "null_block": False,
    "scheduler_reserve_full_isl": None,
}


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
    tensor_parallel_size: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    pipeline_parallel_size: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    enable_expert_parallel: Flag = False
    all2all_backend: Backend = GATHERED
    """How data-parallel replicas exchange tokens around the experts they share."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    quantization: Literal["fp8"] | None = None
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "float32", "fp8"] = "auto"
    null_block: Flag = True
    """vLLM keeps block 0 for itself. False hands out every block, as LLMServingSim does."""
    engine: Literal["vllm", "infinilm"] = "vllm"
    """Whose scheduler runs. InfiniLM prefills first, reserves blocks for a request's whole life and
    never preempts; its limit of requests is of a batch, and it hands out every block."""
    admission: Literal["legacy", "exact-scan", "incremental"] | None = None
    """InfiniLM's: what a running request reserves (core/admission.py)."""

    @property
    def is_infinilm(self) -> bool:
        return self.engine == "infinilm"

    @property
    def stored_kv_dtype(self) -> str:
        """Of the KV cache; auto: the model's own."""
        return self.dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype

    @property
    def keeps_null_block(self) -> bool:
        return self.null_block and not self.is_infinilm

    @property
    def runs_async(self) -> bool:
        """Whether batches are formed ahead. InfiniLM waits for a batch before it forms the next."""
        return self.async_scheduling and not self.is_infinilm

    @property
    def without_effect(self) -> dict[str, object]:
        """Settings that were given and that InfiniLM's scheduler does not follow."""
        if not self.is_infinilm:
            return {}
        given = {f: getattr(self, f) for f in VLLM_ALONE if f in self.model_fields_set}
        return {field: value for field, value in given.items() if value != VLLM_ALONE[field]}

    @model_validator(mode="after")
    def _admission_is_infinilms(self) -> Self:
        if self.is_infinilm and self.admission is None:
            expected = "legacy, exact-scan or incremental, because engine is infinilm"
            raise FieldError("admission", None, expected)
        if not self.is_infinilm and self.admission is not None:
            raise FieldError("admission", self.admission, "nothing, or engine: infinilm")
        if self.is_infinilm and self.policy != "fcfs":
            raise FieldError("policy", self.policy, "fcfs, because engine is infinilm")
        return self

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
        """The rules that need the model; raises InputError."""
        model.check_tensor_parallel(self.tensor_parallel_size, source)
        length = self.resolved_max_model_len(model)
        if length > 1 << 30:
            raise InputError(
                source,
                "model.max_position_embeddings",
                length,
                f"at most {1 << 30}, or max_model_len",
            )
        if self.is_infinilm:
            return
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
    """A tier of prefix storage: CPU or CXL memory.

    Capacity and bandwidth are those of the host: what all ranks keep and move together. Bandwidth is
    in 10^9 bytes a second, the same in each direction.
    """

    capacity_gib: FinitePositive
    bandwidth_gbps: FinitePositive
    latency_us: Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    chunk_tokens: Positive = 256
    shared: Flag = False
    """One pool and one link for all instances of a cluster, or for each its own."""


PROFILE_SOURCES = ("bundle", "bundles", "aiconfigurator", "datasheet", "linear")


class ExpertRouting(Frozen):
    """How tokens choose experts, where tables were measured over the experts awake (routing.py)."""

    policy: Policy = "uniform"
    seed: Annotated[int, Field(strict=True, ge=0)] = 0
    skew: Annotated[float, Field(strict=True, ge=0, le=10, allow_inf_nan=False)] = 1.0
    shares: tuple[Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)], ...] = ()


class PackagedTables(Frozen):
    """Tables that the package aiconfigurator-core holds.

    `system` is one of its names (h100_sxm, l40s, ...), `version` the vLLM version that was measured,
    None for the newest.
    """

    system: Annotated[str, Field(min_length=1)]
    version: Annotated[str, Field(min_length=1)] | None = None


class DataSheet(Frozen):
    """A card that nobody measured: tables of the nearest one that the package has, scaled.

    The point's card gives memory_bandwidth_gbps and bfloat16_tflops.
    """

    nearest: Annotated[str, Field(min_length=1)]
    version: Annotated[str, Field(min_length=1)] | None = None

    @property
    def packaged(self) -> PackagedTables:
        return PackagedTables(system=self.nearest, version=self.version)


Factor = Annotated[float, Field(strict=True, ge=0.01, le=100, allow_inf_nan=False)]


class TableScale(Frozen):
    """What calibration leaves between measured tables and a recorded run: a factor on the times of
    each kind of table. 1 is as measured."""

    dense: Factor = 1.0
    per_sequence: Factor = 1.0
    attention: Factor = 1.0
    moe: Factor = 1.0


class ProfileConfig(Frozen):
    """Where step durations come from; exactly one of bundle, bundles, aiconfigurator, datasheet and
    linear.

    bundle: the folder of one variant, .../<card>/<model>/<variant>.
    bundles: the folder above all cards; card, model and variant follow the point.
    aiconfigurator: composed from the tables of that package. A point without a card has its system's.
    datasheet: times of the nearest measured card, scaled by the ratio of both data sheets.
    linear: a law instead of tables.
    """

    bundle: Path | None = None
    bundles: Path | None = None
    aiconfigurator: PackagedTables | None = None
    datasheet: DataSheet | None = None
    linear: LinearLaw | None = None
    all_reduce: PackagedTables | None = None
    """Whose all-reduce ranks run, for bundles that were measured on one rank at a time."""
    expert_exchange: PackagedTables | None = None
    """Whose NCCL collectives data-parallel replicas run around the experts they share; None: modelled
    from the point's links."""
    scale: TableScale = TableScale()
    unfitted_skew: Literal["pooled", "zero"] = "pooled"
    """Decode batches of unequal lengths that no fitted bucket covers: the coefficient pooled over
    the same bundle, or no correction. A bundle without a fit is never corrected."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in PROFILE_SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            raise FieldError("", given or None, f"exactly one of {', '.join(PROFILE_SOURCES)}")
        if self.all_reduce is not None and given[0] not in ("bundle", "bundles"):
            expected = f"nothing beside {given[0]}: only bundle and bundles may lack it"
            raise FieldError("all_reduce", self.all_reduce.system, expected)
        if self.expert_exchange is not None and given[0] not in ("bundle", "bundles"):
            expected = f"nothing beside {given[0]}: replicas share experts of bundles alone"
            raise FieldError("expert_exchange", self.expert_exchange.system, expected)
        if self.linear is not None and self.scale != TableScale():
            raise FieldError("scale", self.scale.model_dump(), "none, because linear has no tables")
        return self


class Point(Frozen):
    """One simulation."""

    model: ModelConfig
    card: Card
    engine: EngineConfig = EngineConfig()
    workload: WorkloadConfig
    profile: ProfileConfig
    links: Links | None = None
    """Between the ranks of the engine; what is measured or given in the profile comes first."""
    placement: Placement | None = None
    """Weights and KV cache outside the device."""
    expert_routing: ExpertRouting = ExpertRouting()
    overhead: Overhead = Overhead()
    cluster: ClusterConfig | None = None
    """Several instances; the point's sections are what they have in common."""
    prefix_storage: Literal["none", "cpu", "cxl", "cpu+cxl"] = "none"
    """Which of `tiers` keep prefixes that the device evicts; of two, cpu is looked up first."""
    kv_connector: Literal["LMCacheConnectorV1", "OffloadingConnector"] = "LMCacheConnectorV1"
    """vLLM's name of what moves prefixes to and from `tiers`: loads before the step, or loads and
    stores beside steps while the request waits."""
    tiers: dict[Literal["cpu", "cxl"], TierConfig] = {}
    arrivals: Literal["workload", "recorded"] = "workload"
    """When requests arrive: as the workload says, or as `recorded_run` has it: when the client sent
    them, where that was recorded, else when the engine queued them."""
    recorded_run: Path | None = None
    calibration: AppliedCalibration | None = None
    """In a file the path of a calibrated card; its values stand where the point says nothing."""
    check_invariants: Flag = False
    """Check the engine's invariants after every step. Slow."""

    @property
    def moved(self) -> Placement | None:
        """The placement, if it puts anything outside the device."""
        return self.placement if self.placement and self.placement.moves_anything else None

    @property
    def chosen_tiers(self) -> dict[str, TierConfig]:
        """The tiers in use by name, in the order they are looked up."""
        names = self.prefix_storage.split("+")
        return {name: tier for name in names for key, tier in self.tiers.items() if key == name}

    @model_validator(mode="after")
    def _tier_is_there(self) -> Self:
        if self.prefix_storage == "none":
            return self
        if self.engine.is_infinilm:
            expected = "none, because engine.engine is infinilm"
            raise FieldError("prefix_storage", self.prefix_storage, expected)
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
    def _shares_are_of_experts(self) -> Self:
        shares, experts = self.expert_routing.shares, self.model.experts
        if self.expert_routing.policy == "given":
            if len(shares) != experts or sum(map(bool, shares)) < self.model.experts_per_token:
                expected = f"{experts} shares, one an expert, as many above 0 as a token chooses"
                raise FieldError("expert_routing.shares", list(shares), expected)
        elif shares:
            raise FieldError("expert_routing.shares", list(shares), "none without policy given")
        return self

    @model_validator(mode="after")
    def _stages_are_linked(self) -> Self:
        stages = self.engine.pipeline_parallel_size
        if stages > 1 and self.engine.is_infinilm:
            expected = "1: InfiniLM has no pipeline stages"
            raise FieldError("engine.pipeline_parallel_size", stages, expected)
        if stages > 1 and self.links is None:
            expected = "the links between pipeline stages"
            raise FieldError("links", None, expected)
        if stages > self.model.num_hidden_layers:
            expected = f"at most {self.model.num_hidden_layers}, the model's layers"
            raise FieldError("engine.pipeline_parallel_size", stages, expected)
        return self

    @model_validator(mode="after")
    def _reads_have_layers(self) -> Self:
        moves = self.placement is not None and self.placement.moves_weights
        reads = self.placement.weight_reads if self.placement and moves else "serial"
        if reads != "serial" and self.profile.linear is not None:
            expected = "serial, because profile.linear has no layers"
            raise FieldError("placement.weight_reads", reads, expected)
        return self

    @model_validator(mode="after")
    def _card_is_described(self) -> Self:
        if self.profile.datasheet is not None:
            for field in ("memory_bandwidth_gbps", "bfloat16_tflops"):
                if getattr(self.card, field) is None:
                    expected = "a value from its data sheet, because of profile.datasheet"
                    raise FieldError(f"card.{field}", None, expected)
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
    data = with_calibration(with_absolute_paths(data, base), base, source)
    data["model"] = _model_data(data.get("model"), source)
    data = _with_card(data, source)
    # A known section left empty is one left out.
    given = {k: v for k, v in data.items() if v is not None or k not in Point.model_fields}
    point = parse_model(Point, given, source)
    point.engine.check_against(point.model, source)
    return point


# Where a point names files: section -> the fields that hold a path.
PATH_FIELDS: dict[str, tuple[str, ...]] = {
    "model": ("hf_config",),
    "profile": ("bundle", "bundles"),
    "workload": ("jsonl", "csv", "mooncake", "vllm_bench", "manifest"),
    "cluster": ("llmservingsim",),
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
    if "calibration" in data:
        data["calibration"] = absolute(data["calibration"])
    if isinstance(data.get("model"), str):
        data["model"] = absolute(data["model"])
    return data


def _with_card(data: dict[str, Any], source: str | Path) -> dict[str, Any]:
    """A point whose tables are a package's has the card they were measured on, unless it names one."""
    profile = data.get("profile")
    if data.get("card") is not None or not profile:
        return data
    try:
        tables = parse_model(ProfileConfig, profile, source).aiconfigurator
    except InputError as error:
        field = "profile" if error.field == ProfileConfig.__name__ else f"profile.{error.field}"
        raise InputError(source, field, error.value, error.expected) from None
    if tables is None:
        return data
    from profiles.aiconfigurator.source import Place, load_card

    return {**data, "card": load_card(tables.system, Place(source))}


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
