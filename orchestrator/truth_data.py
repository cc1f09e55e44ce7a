"""Ground truth in one form, whatever it was read from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from profiles.bundle import Floats, Ints
from simulator.metrics import PERCENTILES

Kind = Literal["recorded", "vllm_bench", "percentiles", "aiconfigurator"]

STATISTICS = ("mean", *(f"p{p}" for p in PERCENTILES))
HEADLINE = ("ttft_ms", "tpot_ms", "latency_ms")
METRICS = ("ttft_ms", "tpot_ms", "itl_ms", "latency_ms")

DEFINITIONS = """\
error         (simulated - truth) / truth x 100, signed; a truth of 0 has no error and is left out
TTFT          first token - start
TPOT          (last token - first token) / max(1, output tokens - 1), one value a request
ITL           every time between two consecutive tokens of a request, of all requests together
latency       last token - start
percentiles   interpolated linearly between order statistics
start         simulated: the arrival. recorded: the moment the client sent the request (sent_ts),
              where it was recorded; else the moment the engine queued it (queued_ts), because
              arrival_time is on another clock: a step that is running at the arrival delays it,
              so with arrivals from the workload the simulated TTFT holds a wait that the recorded
              one does not. With ttft: from_queue both count from the queue.
              vllm_bench: the client sent the request, so network and tokenization are in it.
              percentiles: as declared, from_queue takes the moment at which the simulated engine
              queued the request
one token     a request of one output token has a TPOT of 0 in recorded runs. `vllm bench serve`
              leaves it out of TPOT, and then it is left out of the simulated TPOT as well
mean absolute the mean of |error| over 15 headline metrics: mean, p50, p90, p95 and p99 of TTFT,
              TPOT and latency; over fewer it is called partial
requests      the sum of |simulated - truth| over matched requests, divided by the sum of the truth,
              of each headline metric; `err_pct/requests` is the mean of the three
per request   |simulated - truth| / truth x 100 of each matched request; requests match by id, or by
              position if that matches more, and only if prompt and output lengths agree
series        mean |simulated - truth| over the whole seconds both have, and the same divided by the
              truth's mean over them; second t is counted from the start of the workload
makespan      from the first start to the last token
throughput    finished requests and generated tokens, each divided by the makespan"""


@dataclass(frozen=True, eq=False)
class TruthRequests:
    """A row per request, in the order of the source. NaN for a request that failed."""

    ids: pa.StringArray | None
    num_prompt_tokens: Ints
    num_output_tokens: Ints
    ttft_ms: Floats
    tpot_ms: Floats
    latency_ms: Floats
    start_s: Floats | None = None
    """When each request started, from the first one that did."""

    def take(self, rows: Ints) -> TruthRequests:
        """The requests in these rows."""
        return TruthRequests(
            ids=self.ids.take(pa.array(rows)) if self.ids is not None else None,
            start_s=self.start_s[rows] if self.start_s is not None else None,
            **{
                name: getattr(self, name)[rows]
                for name in ("num_prompt_tokens", "num_output_tokens", *HEADLINE)
            },
        )

    def __len__(self) -> int:
        return len(self.num_prompt_tokens)

    @property
    def failed(self) -> NDArray[np.bool_]:
        return np.isnan(self.latency_ms)

    def name(self, index: int) -> str:
        return f"{self.ids[index].as_py()!r}" if self.ids is not None else f"number {index}"


@dataclass(frozen=True, eq=False)
class Truth:
    """What was measured. What the source does not have is None or not in a mapping.

    `metrics` has the form of a result's summary["latency"], `throughput` of summary["throughput"].
    """

    source: str
    kind: Kind
    content_id: str
    num_requests: int | None
    metrics: Mapping[str, Mapping[str, float]]
    requests: TruthRequests | None = None
    series: Mapping[str, Floats] = field(default_factory=dict)
    """`t_s` and columns of a result's timeseries, at whole seconds."""
    makespan_ms: float | None = None
    throughput: Mapping[str, float] = field(default_factory=dict)
    num_gpu_blocks: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Engine settings in vLLM's names, and `model`."""
    start: Literal["arrival_ns", "queued_ns"] = "arrival_ns"
    """The column of a result's requests from which its TTFT and latency count."""
    single_tokens_in_tpot: bool = True
    rows: Ints | None = None
    """Of a part: the workload's requests it holds; a result is compared in these alone."""
    notes: tuple[str, ...] = ()


def statistics(values: Floats) -> dict[str, float]:
    """The statistics of a summary, of at least one value."""
    found = (values.mean(), *np.percentile(values, PERCENTILES))
    return {name: float(value) for name, value in zip(STATISTICS, found, strict=True)}


def content_id(*parts: str | bytes) -> str:
    """One id of all parts, in their order."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
