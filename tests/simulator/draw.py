"""Random simulations for property tests: every setting, small pools, all kinds of traffic."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import strategies as st

from profiles.llmservingsim import load_bundle
from simulator.build import EngineSettings, TierSettings, build_engine
from simulator.core.latency import Latency
from simulator.core.state import Engine
from simulator.prefix import block_hashes
from simulator.step_tables import ModeTimes, linear_law, step_tables
from simulator.workloads import Workload
from tests.profiles.bundles import write_csv, write_variant
from tests.simulator.make import Ask, make_workload


class Simulation(NamedTuple):
    """What a run needs; `engine` makes a new one each time."""

    workload: Workload
    settings: EngineSettings
    law: tuple[int, int, int, int] | None  # None: measured tables

    def engine(self, **changes: Any) -> tuple[Engine, dict[int, str]]:
        settings = EngineSettings(**{**self.settings.__dict__, **changes})
        hashes = block_hashes(self.workload, settings.block_size)
        return build_engine(self.workload, hashes, settings, self.latency)

    @property
    def latency(self) -> Latency:
        return linear_law(*self.law) if self.law else measured_latency()

    @property
    def step_ns(self) -> int:
        """About what a step takes."""
        return self.law[0] if self.law else MEASURED_STEP_NS

    @property
    def may_livelock(self) -> bool:
        """Whether tied requests may preempt each other in turn for ever."""
        settings = self.settings
        return settings.policy == "priority" and not settings.scheduler_reserve_full_isl


MEASURED_STEP_NS = 10_000_000
CHUNKS, DECODES, LENGTHS = (0, 16, 64), (0, 1, 4, 32), (1, 16, 64)
RATES = 16  # buckets of how unequal the lengths of a batch are, each with a coefficient of its own
SKEW_AXES = {
    "pc": "exact",
    "n_bins": [0, 10**6],
    "n_labels": ["any"],
    "skew_rate_bins": [-0.01, *(k / RATES for k in range(1, RATES)), 1.01],
    "skew_rate_labels": [f"rate{k}" for k in range(RATES)],
    "kv_big_bins": [0, 10**9],
    "kv_big_labels": ["any"],
    "kp_bins": [-1, 10**9],
    "kp_labels": ["any"],
}


@cache
def measured_latency() -> Latency:
    """Tables in which a step's time also tells the longest and the shortest request of its batch."""
    fit = {"enabled": True, "bucket_axes": SKEW_AXES, "per_tp": {1: {"alpha_default": 0.5}}}
    with tempfile.TemporaryDirectory() as folder:
        variant = write_variant(Path(folder), seed=8, skew_fit=fit)
        write_csv(
            variant / "tp1/attention.csv",
            "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us",
            [
                (chunk, history, n, kv, 5 + 2 * chunk + history + 9 * n * kv)
                for chunk in CHUNKS
                for n in DECODES
                if chunk or n
                for history in (LENGTHS if chunk else (0,))
                for kv in (LENGTHS if n else (0,))
            ],
        )
        write_csv(
            variant / "tp1/skew_fit.csv",
            "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples",
            [
                (chunk, "any", f"rate{k}", "any", "any", 0.1 + 0.37 * (5 * k % RATES), 4)
                for chunk in CHUNKS
                for k in range(RATES)
            ],
        )
        with patch.dict(os.environ, SERVESWEEP_CACHE_DIR=folder):
            bundle = load_bundle(variant)
        return step_tables(
            bundle,
            num_layers=4,
            max_num_batched_tokens=256,
            max_num_seqs=32,
            capture_sizes=(1, 2, 4, 8),
            mode_ns=ModeTimes(full_graph=-100_000, piecewise=300_000, eager=2_000_000),
        )


@st.composite
def engine_settings(draw: st.DrawFn) -> EngineSettings:
    block_size = draw(st.sampled_from((1, 2, 3, 4, 4, 8, 16)))
    max_model_len = draw(st.integers(2, 60))
    # Mostly a pool that holds the longest request, so that few are refused.
    least = max(1, -(-(max_model_len - 1) // block_size)) if draw(st.integers(0, 3)) else 1
    num_usable_blocks = least * draw(st.sampled_from((1, 1, 2, 4))) + draw(st.integers(0, 8))
    max_num_seqs = draw(st.integers(1, 8))
    chunked = draw(st.booleans())
    budget = draw(st.integers(max_num_seqs, 40))
    null_block = draw(st.booleans())
    caching = draw(st.integers(0, 3)) > 0
    return EngineSettings(
        num_gpu_blocks=num_usable_blocks + null_block,
        max_model_len=max_model_len,
        block_size=block_size,
        null_block=null_block,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget if chunked else max(budget, max_model_len),
        enable_prefix_caching=caching,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=min(draw(st.sampled_from((0, 0, 1, 3, 10))), max_model_len),
        scheduler_reserve_full_isl=draw(st.booleans()),
        policy=draw(st.sampled_from(("fcfs", "fcfs", "priority"))),
        async_scheduling=draw(st.booleans()),
        host_ns_per_step=draw(st.sampled_from((0, 0, 7, 3000))),
        host_ns_per_request=draw(st.sampled_from((0, 0, 2))),
        **(draw(connections(block_size)) if caching else {}),
    )


@st.composite
def connections(draw: st.DrawFn, block_size: int) -> dict[str, Any]:
    """No tier, one or two that are loaded from before steps, one that is loaded from beside them."""
    kind = draw(st.sampled_from(("none", "none", "one", "two", "beside", "beside")))
    if kind == "none":
        return {}
    tokens = block_size * draw(st.integers(1, 3))
    tiers = [draw(tier_settings(tokens)) for _ in range(2 if kind == "two" else 1)]
    name = "OffloadingConnector" if kind == "beside" else "LMCacheConnectorV1"
    return {"kv_connector": name, "tiers": tuple(tiers)}


@st.composite
def tier_settings(draw: st.DrawFn, tokens: int) -> TierSettings:
    return TierSettings(
        capacity_bytes=tokens * draw(st.integers(0, 8) | st.just(1000)),
        tokens_per_chunk=tokens,
        bytes_per_token=1,
        bytes_per_ns=draw(st.sampled_from((0.01, 1e-6))),
        latency_ns=draw(st.sampled_from((0, 400, 30_000))),
    )


@st.composite
def workloads(draw: st.DrawFn, max_model_len: int, step_ns: int) -> Workload:
    """Bursts, quiet times, shared prefixes, prompts that are too long, sessions of a few calls."""
    last_calls: list[int] = []
    asks: list[Ask] = []
    now = 0
    for r in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from((0, 0, 0, 1, step_ns // 2, step_ns, 5 * step_ns, 40 * step_ns)))
        longest = draw(st.sampled_from((max_model_len // 3, max_model_len - 1, max_model_len + 1)))
        prompt = draw(st.integers(1, max(1, longest)))
        output = draw(st.integers(1, draw(st.sampled_from((3, 20, 60)))))
        # Streams of equal tokens: two requests of one stream share what is known of both.
        stream = draw(st.integers(0, 2))
        known = draw(st.sampled_from((prompt // 2, prompt, prompt + output))) if stream else 0
        after = -1
        if last_calls and draw(st.integers(0, 3)) == 0:
            after = last_calls.pop(draw(st.integers(0, len(last_calls) - 1)))
        last_calls.append(r)
        asks.append(
            Ask(
                prompt,
                output,
                arrival=now,
                priority=draw(st.sampled_from((0, 0, 1, -1))),
                tokens=[stream] * known,
                name=f"req-{r}",
                after=after,
                tool=draw(st.sampled_from((0, 1, step_ns, 3 * step_ns))),
            )
        )
    return make_workload(*asks)


@st.composite
def simulations(draw: st.DrawFn) -> Simulation:
    settings = draw(engine_settings())
    base = draw(st.sampled_from((1, 1000, 300_000_000)))
    law = (
        base,
        draw(st.sampled_from((0, base // 50, 2))),
        draw(st.sampled_from((0, 1))),
        base // 9,
    )
    return Simulation(draw(workloads(settings.max_model_len, base)), settings, law)
