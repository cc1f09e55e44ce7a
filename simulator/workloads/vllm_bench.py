"""Reads the requests of a result of `vllm bench serve --save-result --save-detailed`.

Prompt and output lengths are `input_lens` and `output_lens`, arrivals `start_times` from the earliest
on: when the client sent a request, also where it had to wait for a free place (`--max-concurrency`).
The file has no prompts, so no request shares a prefix with another. A request is known by its place in
the file.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from profiles.errors import MISSING, InputError
from profiles.foreign import json_object, read_file
from simulator.workloads.columns import Columns
from simulator.workloads.store import cached
from simulator.workloads.workload import MAX_INT32, MAX_NS, Workload

LENGTHS = ("input_lens", "output_lens")
NS_PER_S = 1_000_000_000
DETAILED = "a list with an entry per request, as --save-detailed writes it"
FAILED = "no error: what a request that failed asked of the engine is not known; drop_failed: true "
FAILED += "leaves such requests out"


def load_vllm_bench(path: Path, *, drop_failed: bool = False) -> Workload:
    """Raises InputError."""
    read = partial(read_vllm_bench, drop_failed=drop_failed)
    return cached(path, f"vllm_bench drop_failed={drop_failed}", read)


def read_vllm_bench(path: Path, *, drop_failed: bool = False) -> Workload:
    data = json_object(read_file(path), path)
    prompts, outputs, starts = (_list(data, name, path) for name in (*LENGTHS, "start_times"))
    errors = _list(data, "errors", path) if "errors" in data else [""] * len(prompts)
    for name, values in (("output_lens", outputs), ("start_times", starts), ("errors", errors)):
        if len(values) != len(prompts):
            expected = f"{len(prompts)}, as input_lens"
            raise InputError(path, name, f"{len(values)} entries", expected)
    columns = Columns(path)
    for place in range(len(prompts)):
        if errors[place] or outputs[place] == 0:
            if drop_failed:
                continue
            field, value = ("errors", errors[place]) if errors[place] else ("output_lens", 0)
            raise InputError(path, f"{field}[{place}]", value, FAILED)
        columns.end_request(
            str(place),
            arrival=_ns(starts[place], path, place),
            prompt=_tokens(prompts[place], path, f"input_lens[{place}]"),
            output=_tokens(outputs[place], path, f"output_lens[{place}]"),
        )
    columns.count_from_earliest()
    return columns.workload()


def _list(data: dict[str, Any], name: str, path: Path) -> list[Any]:
    found = data.get(name, MISSING)
    if not isinstance(found, list):
        raise InputError(path, name, found, DETAILED)
    return found


def _tokens(value: Any, path: Path, field: str) -> int:
    if type(value) is not int or not 1 <= value <= MAX_INT32 // 2:
        raise InputError(path, field, value, f"a number of tokens from 1 to {MAX_INT32 // 2}")
    return int(value)


def _ns(value: Any, path: Path, place: int) -> int:
    if type(value) not in (int, float) or not 0 <= value <= MAX_NS / NS_PER_S:
        expected = f"seconds from 0 to {MAX_NS // NS_PER_S}"
        raise InputError(path, f"start_times[{place}]", value, expected)
    return round(float(value) * NS_PER_S)
