"""Reads LLMServingSim's JSONL: one request or one agentic session a line, also gzipped.

    {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 0, "input_tok_ids": [5, 6, 7]}
    {"session_id": "s0", "arrival_time_ns": 0, "sub_requests":
        [{"input_toks": 3, "output_toks": 2, "tool_duration_ns": 1000}]}

Beyond LLMServingSim: optional `request_id` and `priority`. A wrong line is refused with its number
instead of being skipped, and an unknown field is an error, because a typo in an optional field
would otherwise silently turn prefix hits or tool times off.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profiles.errors import MISSING, InputError
from simulator.workloads.lines import (
    Line,
    check_fields,
    id_of,
    integer,
    json_lines,
    required_integer,
)
from simulator.workloads.store import cached
from simulator.workloads.workload import MAX_INT32, Workload

CALL_FIELDS = {"input_toks", "output_toks", "input_tok_ids", "output_tok_ids"}
REQUEST_FIELDS = CALL_FIELDS | {"arrival_time_ns", "request_id", "priority"}
SESSION_FIELDS = {"session_id", "arrival_time_ns", "sub_requests", "priority"}
SUB_REQUEST_FIELDS = CALL_FIELDS | {"tool_duration_ns"}


def load_jsonl(path: Path) -> Workload:
    """Read `path`, or its binary copy if the same bytes were read before."""
    return cached(path, "llmservingsim", read_jsonl)


def read_jsonl(path: Path) -> Workload:
    rows = _Rows(path)
    for line in json_lines(path):
        if "sub_requests" in line.row:
            rows.add_session(line)
        else:
            rows.add_request(line)
    return rows.workload()


class _Rows:
    """Columns that grow line by line; token ids never exist twice as Python integers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.request_ids: list[str] = []
        self.prompts, self.outputs, self.priorities = array("i"), array("i"), array("i")
        self.parents = array("i")
        self.arrivals, self.tools = array("q"), array("q")
        self.offsets, self.token_ids = array("q", [0]), array("i")
        self.line_of_id: dict[str, int] = {}

    def add_request(self, line: Line) -> None:
        row = line.row
        check_fields(line, row, REQUEST_FIELDS)
        arrival = required_integer(line, row, "arrival_time_ns", least=0)
        request_id = id_of(line, "request_id") if "request_id" in row else str(len(self))
        self._add_call(line, row, "", request_id, arrival=arrival)

    def add_session(self, line: Line) -> None:
        check_fields(line, line.row, SESSION_FIELDS)
        arrival = required_integer(line, line.row, "arrival_time_ns", least=0)
        session_id = id_of(line, "session_id")
        calls = line.row["sub_requests"]
        if not isinstance(calls, list) or not calls:
            raise line.error("sub_requests", calls, "a list of at least one call")
        for k, call in enumerate(calls):
            where = f"sub_requests[{k}]"
            if not isinstance(call, dict):
                raise line.error(where, call, "an object")
            check_fields(line, call, SUB_REQUEST_FIELDS, where + ".")
            tool = integer(line, call, "tool_duration_ns", least=0, where=where + ".")
            parent = len(self) - 1 if k else -1
            self._add_call(
                line,
                call,
                where + ".",
                f"{session_id}/{k}",
                arrival=arrival,
                parent=parent,
                tool=tool,
            )

    def _add_call(
        self,
        line: Line,
        call: dict[str, Any],
        where: str,
        request_id: str,
        *,
        arrival: int,
        parent: int = -1,
        tool: int = 0,
    ) -> None:
        if request_id in self.line_of_id:
            expected = f"an id of its own, line {self.line_of_id[request_id]} has it too"
            raise line.error("request_id", request_id, expected)
        self.line_of_id[request_id] = line.number
        prompt = required_integer(line, call, "input_toks", least=1, most=MAX_INT32, where=where)
        output = required_integer(
            line, call, "output_toks", least=1, most=MAX_INT32 - prompt, where=where
        )
        self._add_tokens(line, call, "input_tok_ids", prompt, where)
        if "output_tok_ids" in call and "input_tok_ids" not in call:
            expected = "a value, because output_tok_ids is given"
            raise line.error(where + "input_tok_ids", MISSING, expected)
        self._add_tokens(line, call, "output_tok_ids", output, where)
        self.request_ids.append(request_id)
        self.arrivals.append(arrival)
        self.prompts.append(prompt)
        self.outputs.append(output)
        self.priorities.append(
            integer(line, line.row, "priority", least=-MAX_INT32, most=MAX_INT32)
        )
        self.parents.append(parent)
        self.tools.append(tool)
        self.offsets.append(len(self.token_ids))

    def _add_tokens(
        self, line: Line, call: dict[str, Any], name: str, count: int, where: str
    ) -> None:
        if name not in call:
            return
        tokens = call[name]
        if not isinstance(tokens, list):
            raise line.error(where + name, tokens, "a list of token ids")
        if len(tokens) != count:
            toks = name.replace("tok_ids", "toks")
            raise line.error(where + name, f"{len(tokens)} ids", f"{count}, as {toks} says")
        try:
            self.token_ids.fromlist(tokens)
            added = np.frombuffer(self.token_ids, np.int32)[-count:]
            suspicious = line.has_true_or_false or bool(added.min() < 0)
            del added  # an array that numpy looks at can't grow
        except (TypeError, OverflowError):
            suspicious = True
        if suspicious:
            self._refuse_wrong_token(line, tokens, where + name)

    @staticmethod
    def _refuse_wrong_token(line: Line, tokens: list[Any], field: str) -> None:
        for i, token in enumerate(tokens):
            if type(token) is not int or not 0 <= token <= MAX_INT32:
                raise line.error(f"{field}[{i}]", token, f"a token id from 0 to {MAX_INT32}")

    def __len__(self) -> int:
        return len(self.request_ids)

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
            chunk_size=1,
            source=str(self.path),
        )


def _numpy(column: array[int]) -> npt.NDArray[Any]:
    return np.frombuffer(column, dtype=f"i{column.itemsize}")
