"""Reads LLMServingSim's JSONL: one request or one agentic session a line, also gzipped.

    {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 0, "input_tok_ids": [5, 6, 7]}
    {"session_id": "s0", "arrival_time_ns": 0, "sub_requests":
        [{"input_toks": 3, "output_toks": 2, "tool_duration_ns": 1000}]}

Beyond LLMServingSim: optional `request_id` and `priority`. A wrong line is refused with its number
instead of being skipped, and an unknown field is an error, because a typo in an optional field
would otherwise silently turn prefix hits or tool times off.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from profiles.errors import MISSING
from simulator.workloads.columns import Columns
from simulator.workloads.lines import (
    Line,
    check_fields,
    id_of,
    integer,
    json_lines,
    required_integer,
)
from simulator.workloads.store import cached
from simulator.workloads.workload import MAX_INT32, MAX_NS, Workload

CALL_FIELDS = {"input_toks", "output_toks", "input_tok_ids", "output_tok_ids"}
REQUEST_FIELDS = CALL_FIELDS | {"arrival_time_ns", "request_id", "priority"}
SESSION_FIELDS = {"session_id", "arrival_time_ns", "sub_requests", "priority"}
SUB_REQUEST_FIELDS = CALL_FIELDS | {"tool_duration_ns"}


def load_jsonl(path: Path) -> Workload:
    """Read `path`, or its binary copy if the same bytes were read before."""
    return cached(path, "llmservingsim", read_jsonl)


def read_jsonl(path: Path) -> Workload:
    reader = _Reader(path)
    for line in json_lines(path):
        if "sub_requests" in line.row:
            reader.read_session(line)
        else:
            reader.read_request(line)
    return reader.columns.workload()


class _Reader:
    def __init__(self, path: Path) -> None:
        self.columns = Columns(path)
        self.line_of_id: dict[str, int] = {}

    def read_request(self, line: Line) -> None:
        check_fields(line, line.row, REQUEST_FIELDS)
        has_id = "request_id" in line.row
        request_id = id_of(line, "request_id") if has_id else str(len(self.columns))
        self._read_call(line, line.row, "", request_id)

    def read_session(self, line: Line) -> None:
        check_fields(line, line.row, SESSION_FIELDS)
        session_id = id_of(line, "session_id")
        calls = line.row["sub_requests"]
        if not isinstance(calls, list) or not calls:
            raise line.error("sub_requests", calls, "a list of at least one call")
        for k, call in enumerate(calls):
            where = f"sub_requests[{k}]."
            if not isinstance(call, dict):
                raise line.error(where[:-1], call, "an object")
            check_fields(line, call, SUB_REQUEST_FIELDS, where)
            parent = len(self.columns) - 1 if k else -1
            self._read_call(line, call, where, f"{session_id}/{k}", parent)

    def _read_call(
        self, line: Line, call: dict[str, Any], where: str, request_id: str, parent: int = -1
    ) -> None:
        if request_id in self.line_of_id:
            expected = f"an id of its own, line {self.line_of_id[request_id]} has it too"
            raise line.error("request_id", request_id, expected)
        self.line_of_id[request_id] = line.number
        prompt = required_integer(line, call, "input_toks", least=1, most=MAX_INT32, where=where)
        most = MAX_INT32 - prompt
        output = required_integer(line, call, "output_toks", least=1, most=most, where=where)
        if "output_tok_ids" in call and "input_tok_ids" not in call:
            expected = "a value, because output_tok_ids is given"
            raise line.error(where + "input_tok_ids", MISSING, expected)
        self._read_tokens(line, call, "input_tok_ids", prompt, where)
        self._read_tokens(line, call, "output_tok_ids", output, where)
        self.columns.end_request(
            request_id,
            arrival=required_integer(line, line.row, "arrival_time_ns", least=0, most=MAX_NS),
            prompt=prompt,
            output=output,
            priority=integer(line, line.row, "priority", least=-MAX_INT32, most=MAX_INT32),
            parent=parent,
            tool=integer(line, call, "tool_duration_ns", least=0, most=MAX_NS, where=where),
        )

    def _read_tokens(
        self, line: Line, call: dict[str, Any], name: str, count: int, where: str
    ) -> None:
        if name not in call:
            return
        tokens = call[name]
        if not isinstance(tokens, list):
            raise line.error(where + name, tokens, "a list of token ids")
        if len(tokens) != count:
            counted_by = name.replace("tok_ids", "toks")
            raise line.error(where + name, f"{len(tokens)} ids", f"{count}, as {counted_by} says")
        token_ids = self.columns.token_ids
        try:
            token_ids.fromlist(tokens)
            smallest = np.frombuffer(token_ids, np.int32)[-count:].min()
            suspicious = line.has_true_or_false or smallest < 0
        except (TypeError, OverflowError):
            suspicious = True
        if suspicious:
            for i, token in enumerate(tokens):
                if type(token) is not int or not 0 <= token <= MAX_INT32:
                    expected = f"a token id from 0 to {MAX_INT32}"
                    raise line.error(f"{where}{name}[{i}]", token, expected)
