"""Where ground truth comes from, as a sweep names it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from orchestrator.truth_part import Part
from profiles.errors import FieldError
from simulator.config import Frozen

Measured = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]

METRIC_NAMES = ("ttft", "tpot", "itl", "latency")
STATISTIC_NAMES = ("mean", "p50", "p90", "p95", "p99")

KNOWN_DEFINITIONS = {
    "ttft": ("from_arrival", "from_queue"),
    "tpot": ("all_requests", "two_tokens_or_more"),
    "percentile": ("linear",),
}


class Definitions(Frozen):
    """What the numbers of a table mean; a result is measured in the same way.

    ttft: TTFT and latency count from the request's arrival, or from when the engine queued it.
    tpot: (last token - first token) / max(1, output tokens - 1) of all requests (0 for a single
    token), or of requests with at least two output tokens, as `vllm bench serve` does.
    percentile: linear interpolation between order statistics, numpy's default.
    """

    ttft: Literal["from_arrival", "from_queue"]
    tpot: Literal["all_requests", "two_tokens_or_more"]
    percentile: Literal["linear"]

    @field_validator("ttft", "tpot", "percentile", mode="before")
    @classmethod
    def _comparable(cls, value: Any, info: Any) -> Any:
        known = KNOWN_DEFINITIONS[info.field_name]
        if value not in known:
            expected = f"{' or '.join(known)}; numbers of another definition cannot be compared"
            raise FieldError("", value, expected)
        return value


class MeasuredValue(Frozen):
    metric: Literal["ttft", "tpot", "itl", "latency"]
    statistic: Literal["mean", "p50", "p90", "p95", "p99"]
    value_ms: Measured


class PercentileTable(Frozen):
    """What a table of percentiles may say; also the content of its YAML file."""

    definitions: Definitions | None = None
    values: Annotated[tuple[MeasuredValue, ...], Field(min_length=1)] | None = None
    makespan_ms: Measured | None = None
    requests_per_s: Measured | None = None
    output_tokens_per_s: Measured | None = None
    num_gpu_blocks: Annotated[int, Field(strict=True, ge=1)] | None = None


class PercentilesConfig(PercentileTable):
    """A table given here (`values`) or in `file`: CSV with the columns metric, statistic, value_ms,
    or YAML with the fields of this table. `definitions` stand here or in the YAML file."""

    file: Path | None = None

    @model_validator(mode="after")
    def _one_table(self) -> Self:
        if (self.file is None) == (self.values is None):
            given = "both" if self.file is not None else None
            raise FieldError("values", given, "a table: either file or values")
        return self


class SiliconRow(Frozen):
    """A measurement that the package aiconfigurator-core collects: vLLM under a closed loop.

    `concurrency` requests in flight, each of `isl` prompt and `osl` output tokens.
    """

    system: str
    model: str
    tensor_parallel_size: Annotated[int, Field(strict=True, ge=1)]
    quantization: Literal["fp8"] | None = None
    isl: Annotated[int, Field(strict=True, ge=1)]
    osl: Annotated[int, Field(strict=True, ge=1)]
    concurrency: Annotated[int, Field(strict=True, ge=1)]
    vllm_version: str | None = None
    """Needed where several versions were measured."""


class TruthConfig(Frozen):
    """Exactly one of the first four.

    recorded: the folder of a run recorded with LLMServingSim's bench.
    vllm_bench: the JSON file of `vllm bench serve --save-result`, best with `--save-detailed`.
    percentiles: a table of what was measured or published.
    aiconfigurator: mean TTFT and TPOT of a row that the package aiconfigurator-core brings.
    """

    recorded: Path | None = None
    vllm_bench: Path | None = None
    percentiles: PercentilesConfig | None = None
    aiconfigurator: SiliconRow | None = None
    part: Part | None = None
    """Compare these requests alone."""
    ttft: Literal["from_arrival", "from_queue"] | None = None
    """Of `recorded`: TTFT and latency of a result count from its arrival (also None), or those of
    both sides from when the engine queued the request."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        forms = ("recorded", "vllm_bench", "percentiles", "aiconfigurator")
        given = [name for name in forms if getattr(self, name) is not None]
        if len(given) != 1:
            raise FieldError("", given or None, f"exactly one of {', '.join(forms)}")
        if self.ttft is not None and self.recorded is None:
            raise FieldError("ttft", self.ttft, f"nothing, because of {given[0]}")
        return self
