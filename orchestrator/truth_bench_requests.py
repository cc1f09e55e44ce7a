"""The requests in a detailed result of `vllm bench serve`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orchestrator.truth_data import TruthRequests
from profiles.bundle import Floats, Ints
from profiles.errors import MISSING, InputError

MOST_S = 1e12
LISTS = ("input_lens", "output_lens", "ttfts", "itls", "errors")


@dataclass(frozen=True, eq=False)
class ClientTimes:
    requests: TruthRequests
    intervals_ms: Floats  # of all requests together
    makespan_s: float | None  # None for a file without start_times


def client_times(
    data: dict[str, Any], path: Path, completed: int, output_tokens: int
) -> ClientTimes | None:
    """The requests, None if the file has none of their lists. Raises InputError."""
    if not any(name in data for name in LISTS):
        return None
    lists = {name: _list(data, name, path) for name in LISTS}
    for name, values in lists.items():
        if len(values) != len(lists["ttfts"]):
            raise InputError(
                path, name, f"{len(values)} entries", f"{len(lists['ttfts'])} as ttfts"
            )
    prompts = _integers(lists["input_lens"], path, "input_lens")
    outputs = _integers(lists["output_lens"], path, "output_lens")
    ttfts = _seconds(lists["ttfts"], path, "ttfts")
    errors = lists["errors"]
    done = np.array([not error for error in errors], bool) & (ttfts > 0)
    _check_totals(path, done, outputs, completed, output_tokens)
    itls = [_intervals(itl, path, index) for index, itl in enumerate(lists["itls"])]
    for index in np.flatnonzero(done):
        if outputs[index] > 1 and not len(itls[index]):
            expected = f"intervals between {outputs[index]} tokens (was the answer streamed?)"
            raise InputError(path, f"itls[{index}]", [], expected)
    generating = np.array([itl.sum() for itl in itls])
    latency = ttfts + generating
    requests = TruthRequests(
        ids=pa.array([str(place) for place in range(len(prompts))]),
        num_prompt_tokens=prompts,
        num_output_tokens=outputs,
        ttft_ms=np.where(done, ttfts * 1e3, np.nan),
        tpot_ms=np.where(done, generating / np.maximum(1, outputs - 1) * 1e3, np.nan),
        latency_ms=np.where(done, latency * 1e3, np.nan),
    )
    makespan = None
    if "start_times" in data:
        starts = _seconds(_list(data, "start_times", path), path, "start_times")
        if len(starts) != len(done):
            expected = f"{len(done)} as ttfts"
            raise InputError(path, "start_times", f"{len(starts)} entries", expected)
        makespan = float((starts + latency)[done].max() - starts[done].min())
    intervals = np.concatenate([itls[index] for index in np.flatnonzero(done)]) * 1e3
    return ClientTimes(requests, intervals, makespan)


def _check_totals(
    path: Path, done: NDArray[np.bool_], outputs: Ints, completed: int, output_tokens: int
) -> None:
    if done.sum() != completed:
        expected = f"the {int(done.sum())} entries with a first token and no error"
        raise InputError(path, "completed", completed, expected)
    if outputs[done].sum() != output_tokens:
        expected = f"{int(outputs[done].sum())}, the sum of output_lens"
        raise InputError(path, "total_output_tokens", output_tokens, expected)


def _list(data: dict[str, Any], name: str, path: Path) -> list[Any]:
    if name not in data:
        there = ", ".join(other for other in LISTS if other in data)
        raise InputError(path, name, MISSING, f"a list, as there are {there}")
    if not isinstance(data[name], list):
        raise InputError(path, name, data[name], "a list with an entry per request")
    return list(data[name])


def _integers(values: Sequence[Any], path: Path, name: str) -> Ints:
    for index, value in enumerate(values):
        if type(value) is not int or not 0 <= value < 2**31:
            raise InputError(path, f"{name}[{index}]", value, "a number of tokens")
    return np.array(values, np.int64)


def _seconds(values: Sequence[Any], path: Path, name: str) -> Floats:
    """Times in seconds; every entry a number from 0 to MOST_S."""
    if all(type(value) is float or (type(value) is int and value < 1 << 53) for value in values):
        times = np.array(values, np.float64)
        wrong = np.flatnonzero(~((times >= 0) & (times <= MOST_S)))
        if not len(wrong):
            return times
        index = int(wrong[0])
    else:
        index = next(
            i
            for i, v in enumerate(values)
            if type(v) is not float and not (type(v) is int and v < 1 << 53)
        )
    raise InputError(path, f"{name}[{index}]", values[index], f"seconds from 0 to {MOST_S:.0e}")


def _intervals(values: Any, path: Path, index: int) -> Floats:
    if not isinstance(values, list):
        raise InputError(path, f"itls[{index}]", values, "a list of times")
    return _seconds(values, path, f"itls[{index}]")
