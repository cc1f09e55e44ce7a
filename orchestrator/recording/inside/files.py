"""What is handed to vLLM's environment: the requests with their tokens, and the step law's arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.core.latency import PARAMS_DTYPE, READ_DTYPE, Latency

REQUEST_ARRAYS = (
    "arrival_ns",
    "num_prompt_tokens",
    "num_output_tokens",
    "priority",
    "session_parent",
    "tool_ns",
    "token_offsets",
    "token_ids",
)


@dataclass(frozen=True)
class Requests:
    """The workload with every token: prompt, then output, of all requests one after the other."""

    arrival_ns: Any
    num_prompt_tokens: Any
    num_output_tokens: Any
    priority: Any
    session_parent: Any
    tool_ns: Any
    token_offsets: Any  # n + 1
    token_ids: Any

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def prompt(self, number: int) -> list[int]:
        start = self.token_offsets[number]
        tokens: list[int] = self.token_ids[start : start + self.num_prompt_tokens[number]].tolist()
        return tokens

    def token(self, number: int, position: int) -> int:
        return int(self.token_ids[self.token_offsets[number] + position])

    def save(self, path: Path) -> None:
        np.savez(path, **{name: getattr(self, name) for name in REQUEST_ARRAYS})

    @classmethod
    def load(cls, path: str | Path) -> Requests:
        with np.load(path, allow_pickle=False) as data:
            return cls(**{name: data[name] for name in REQUEST_ARRAYS})


# Of laws that were written before there were pipeline stages, shared experts and other memories.
ONE_STAGE: dict[str, Any] = {
    "stage_layers": np.ones(1, np.int64),
    "stage_tokens_ns": np.zeros((1, 1), np.int64),
    "send_ns": np.zeros(1, np.int64),
    "expert_ns": np.zeros(1, np.int64),
    "stage_read_ns": np.zeros(1, np.int64),
    "reads": np.zeros(1, READ_DTYPE).view(np.recarray),
    "stage_reads": np.zeros(1, np.int64),
    "layers_by_tokens": np.zeros((1, 1), np.int64),
    "layers_by_sequences": np.zeros((1, 1), np.int64),
    "memory_bytes_per_ns": np.ones(1, np.float64),
    "exchange_ns": np.zeros(1, np.int64),
}


def save_latency(path: Path, latency: Latency, outside: Any) -> None:
    arrays: dict[str, Any] = {f"latency_{k}": np.asarray(v) for k, v in latency._asdict().items()}
    np.savez_compressed(path, outside=np.asarray(outside), **arrays)


def load_latency(path: str | Path) -> tuple[Latency, Any]:
    """The step law's arrays and an empty account of lookups outside the grid."""
    with np.load(path, allow_pickle=False) as data:
        told = set(data.files)
        arrays = {
            name: _records(data[f"latency_{name}"])
            for name in Latency._fields
            if f"latency_{name}" in told or name not in ONE_STAGE
        }
        missing = {name: array for name, array in ONE_STAGE.items() if name not in arrays}
        arrays["params"] = _with_all_fields(arrays["params"])
        return Latency(**arrays, **missing), _records(data["outside"])


def _with_all_fields(params: Any) -> Any:
    """The record as it is now: what it did not have yet is 0."""
    whole = np.zeros(len(params), PARAMS_DTYPE).view(np.recarray)
    for name in params.dtype.names:
        whole[name] = params[name]
    return whole


def _records(array: Any) -> Any:
    return array.view(np.recarray) if array.dtype.names else array
