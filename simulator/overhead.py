"""What a step costs beside its kernels, resolved to what the step tables and the core take."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError
from profiles.recorded import RecordedRun
from simulator.config import EngineConfig, Overhead
from simulator.step_tables import ModeTimes

NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class ResolvedOverhead:
    """Mode times by how a batch runs, and the capture sizes; empty sizes: no CUDA graphs."""

    mode_ns: ModeTimes
    capture_sizes: tuple[int, ...]
    async_scheduling: bool
    host_ns_per_step: int
    host_ns_per_request: int


def default_capture_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """The sizes vLLM 0.19 captures unless told otherwise: up to min(2 x max_num_seqs, 512)."""
    largest = min(2 * max_num_seqs, 512)
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    return tuple(size for size in sizes if size <= largest)


def resolve_overhead(
    overhead: Overhead, engine: EngineConfig, recorded: RecordedRun | None
) -> ResolvedOverhead:
    """Raises InputError if the recorded run that is asked does not hold its configuration."""
    mode: str = overhead.cudagraph_mode
    sizes = overhead.cudagraph_capture_sizes
    if sizes is None:
        sizes = default_capture_sizes(engine.max_num_seqs)
    asynchronous = engine.runs_async
    if overhead.from_recorded_run:
        assert recorded is not None  # Point demands it
        if recorded.resolved is None:
            raise InputError(
                recorded.source / "meta.json",
                "resolved_config",
                None,
                "the engine's resolved configuration, because of overhead.from_recorded_run",
            )
        mode = recorded.resolved.cudagraph_mode
        sizes = recorded.resolved.cudagraph_capture_sizes
        asynchronous = recorded.resolved.async_scheduling and not engine.is_infinilm
    full, piecewise, none = (
        round(ms * NS_PER_MS)
        for ms in (overhead.full_graph_ms, overhead.piecewise_ms, overhead.no_graph_ms)
    )
    decode_ns, other_ns = {
        "NONE": (none, none),
        "PIECEWISE": (piecewise, piecewise),
        "FULL": (full, full),
        "FULL_DECODE_ONLY": (full, none),
        "FULL_AND_PIECEWISE": (full, piecewise),
    }[mode]
    return ResolvedOverhead(
        mode_ns=ModeTimes(full_graph=decode_ns, piecewise=other_ns, eager=none),
        capture_sizes=() if mode == "NONE" else tuple(sizes),
        async_scheduling=asynchronous,
        host_ns_per_step=round(overhead.host_ms_per_step * NS_PER_MS),
        host_ns_per_request=round(overhead.host_ms_per_request * NS_PER_MS),
    )
