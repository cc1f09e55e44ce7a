"""The `workload` part of a point: where requests come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from profiles.errors import FieldError
from simulator.workloads.distributions import Settings
from simulator.workloads.generate import GenerateConfig, generate
from simulator.workloads.llmservingsim import load_jsonl
from simulator.workloads.manifest import load_manifest
from simulator.workloads.traces import load_csv, load_mooncake
from simulator.workloads.vllm_bench import load_vllm_bench
from simulator.workloads.workload import Workload

File = Annotated[Path, Field(strict=False)]
SOURCES = ("jsonl", "csv", "mooncake", "vllm_bench", "manifest", "generate")


class CsvTrace(Settings):
    path: File
    format: Literal["auto", "azure", "burstgpt"] = "auto"
    drop_empty: bool = False  # leave out rows without prompt or output tokens


class MooncakeTrace(Settings):
    path: File
    chunk_size: Annotated[int, Field(ge=1, le=1 << 20)] = 512  # prompt tokens a hash id stands for
    drop_empty: bool = False


class BenchResult(Settings):
    path: File
    drop_failed: bool = False  # leave out requests that failed


class WorkloadConfig(Settings):
    """Exactly one source; a path alone is enough for `csv`, `mooncake` and `vllm_bench`."""

    jsonl: File | None = None
    csv: CsvTrace | None = None
    mooncake: MooncakeTrace | None = None
    vllm_bench: BenchResult | None = None
    manifest: File | None = None
    generate: GenerateConfig | None = None

    limit: Annotated[int, Field(ge=1)] | None = None  # the first so many requests in file order
    rate_scale: Annotated[float, Field(gt=0)] = 1.0  # arrivals this many times as fast
    # What every request asks for at most; None: the manifest's max_tokens, else what it gets.
    max_tokens: Annotated[int, Field(ge=1, le=1 << 30)] | None = None

    @property
    def path(self) -> Path | None:
        """The file that is read, if one is."""
        trace = self.csv or self.mooncake or self.vllm_bench
        return trace.path if trace is not None else self.jsonl or self.manifest

    @field_validator("csv", "mooncake", "vllm_bench", mode="before")
    @classmethod
    def _path_alone(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _check(self) -> WorkloadConfig:
        if sum(getattr(self, name) is not None for name in SOURCES) != 1:
            raise ValueError(f"exactly one of {', '.join(SOURCES)}")
        if self.manifest is not None and self.rate_scale != 1:
            expected = "1, because the waves of a manifest come when those before have first tokens"
            raise FieldError("rate_scale", self.rate_scale, expected)
        return self


def load_workload(config: WorkloadConfig, base: Path) -> Workload:
    """The requests `config` asks for; relative paths start at `base`, the YAML file's folder."""
    if config.jsonl is not None:
        workload = load_jsonl(base / config.jsonl)
    elif config.csv is not None:
        csv = config.csv
        workload = load_csv(base / csv.path, csv.format, drop_empty=csv.drop_empty)
    elif config.mooncake is not None:
        trace = config.mooncake
        workload = load_mooncake(
            base / trace.path, chunk_size=trace.chunk_size, drop_empty=trace.drop_empty
        )
    elif config.vllm_bench is not None:
        bench = config.vllm_bench
        workload = load_vllm_bench(base / bench.path, drop_failed=bench.drop_failed)
    elif config.manifest is not None:
        workload = load_manifest(base / config.manifest).workload()
    else:
        assert config.generate is not None
        workload = generate(config.generate)
    if config.limit is not None:
        workload = workload.first(config.limit)
    if config.max_tokens is not None:
        workload = workload.with_max_tokens(config.max_tokens)
    return workload.at_rate(config.rate_scale)
