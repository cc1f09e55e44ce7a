"""Columns of a workload that grow row by row in machine integers, one row after another."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profiles.errors import InputError
from simulator.workloads.workload import Workload


class Columns:
    """What a reader has read so far; `workload` gives the arrays without copying them."""

    def __init__(self, path: Path, chunk_size: int = 1) -> None:
        self.path = path
        self.chunk_size = chunk_size
        self.request_ids: list[str] = []
        self.prompts, self.outputs, self.priorities = array("i"), array("i"), array("i")
        self.parents = array("i")
        self.arrivals, self.tools = array("q"), array("q")
        self.offsets, self.token_ids = array("q", [0]), array("i")

    def __len__(self) -> int:
        return len(self.prompts)

    def end_request(
        self,
        request_id: str,
        *,
        arrival: int,
        prompt: int,
        output: int,
        priority: int = 0,
        parent: int = -1,
        tool: int = 0,
    ) -> None:
        """Complete a request; its known tokens have been added to `token_ids` before."""
        self.request_ids.append(request_id)
        self.arrivals.append(arrival)
        self.prompts.append(prompt)
        self.outputs.append(output)
        self.priorities.append(priority)
        self.parents.append(parent)
        self.tools.append(tool)
        self.offsets.append(len(self.token_ids))

    def count_from_earliest(self) -> None:
        """Make arrivals relative to the earliest one."""
        if len(self):
            earliest = min(self.arrivals)
            self.arrivals = array("q", (arrival - earliest for arrival in self.arrivals))

    def workload(self) -> Workload:
        if not self.request_ids:
            raise InputError(self.path, "file", "no requests", "at least one request")
        return Workload(
            request_ids=self.request_ids,
            arrival_ns=_numpy(self.arrivals),
            num_prompt_tokens=_numpy(self.prompts),
            num_output_tokens=_numpy(self.outputs),
            priority=_numpy(self.priorities),
            session_parent=_numpy(self.parents),
            tool_ns=_numpy(self.tools),
            token_offsets=_numpy(self.offsets),
            token_ids=_numpy(self.token_ids),
            chunk_size=self.chunk_size,
            source=str(self.path),
        )


def _numpy(column: array[int]) -> npt.NDArray[Any]:
    return np.frombuffer(column, dtype=f"i{column.itemsize}")
