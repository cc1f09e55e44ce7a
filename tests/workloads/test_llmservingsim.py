import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import InputError
from simulator.workloads.llmservingsim import load_jsonl, read_jsonl

Write = Callable[..., Path]

FLAT = {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 50}
TOKENS = FLAT | {"input_tok_ids": [5, 6, 7], "output_tok_ids": [8, 9]}
SESSION = {
    "session_id": "s7",
    "arrival_time_ns": 40,
    "sub_requests": [
        {"input_toks": 4, "output_toks": 1, "tool_duration_ns": 1000},
        {"input_toks": 6, "output_toks": 2, "tool_duration_ns": 2000, "input_tok_ids": [1] * 6},
        {"input_toks": 9, "output_toks": 3},
    ],
}


def lines(*rows: Any) -> list[str]:
    return [row if isinstance(row, str) else json.dumps(row) for row in rows]


def test_flat_requests_keep_file_order(write: Write) -> None:
    rows = [FLAT, TOKENS | {"arrival_time_ns": 10, "request_id": "mine", "priority": -2}]
    workload = read_jsonl(write("a.jsonl", *lines(*rows)))
    assert workload.request_ids == ["0", "mine"]
    assert workload.arrival_ns.tolist() == [50, 10]
    assert workload.num_prompt_tokens.tolist() == [3, 3]
    assert workload.num_output_tokens.tolist() == [2, 2]
    assert workload.priority.tolist() == [0, -2]
    assert workload.session_parent.tolist() == [-1, -1]
    assert workload.token_offsets.tolist() == [0, 0, 5]
    assert workload.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert workload.chunk_size == 1


def test_prompt_tokens_alone(write: Write) -> None:
    row = FLAT | {"input_tok_ids": [5, 6, 7]}
    workload = read_jsonl(write("a.jsonl", *lines(row)))
    assert workload.num_known_tokens.tolist() == [3]


def test_sessions_and_requests_in_one_file(write: Write) -> None:
    rows = [FLAT, SESSION | {"priority": 4}, FLAT]
    workload = read_jsonl(write("a.jsonl", *lines(*rows)))
    assert workload.request_ids == ["0", "s7/0", "s7/1", "s7/2", "4"]
    assert workload.session_parent.tolist() == [-1, -1, 1, 2, -1]
    assert workload.arrival_ns.tolist() == [50, 40, 40, 40, 50]
    assert workload.tool_ns.tolist() == [0, 1000, 2000, 0, 0]
    assert workload.priority.tolist() == [0, 4, 4, 4, 0]
    assert workload.token_offsets.tolist() == [0, 0, 0, 6, 6, 6]


def test_an_integer_is_an_id(write: Write) -> None:
    rows = [FLAT | {"request_id": 77}, SESSION | {"session_id": 5}]
    workload = read_jsonl(write("a.jsonl", *lines(*rows)))
    assert workload.request_ids == ["77", "5/0", "5/1", "5/2"]


def test_an_id_may_contain_true(write: Write) -> None:
    row = TOKENS | {"request_id": "true story, false end"}
    assert read_jsonl(write("a.jsonl", *lines(row))).num_known_tokens.tolist() == [5]


def test_empty_lines_and_a_missing_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n" + json.dumps(FLAT) + "\n  \n" + json.dumps(FLAT))
    assert len(read_jsonl(path)) == 2


def test_gzip_holds_the_same(write: Write, tmp_path: Path) -> None:
    plain = write("a.jsonl", *lines(TOKENS, SESSION))
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert load_jsonl(packed).content_id == load_jsonl(plain).content_id
    assert load_jsonl(packed).source == str(packed)


def without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


def with_call(k: int, **change: Any) -> dict[str, Any]:
    calls = [dict(call) for call in SESSION["sub_requests"]]  # type: ignore[attr-defined]
    calls[k].update(change)
    return SESSION | {"sub_requests": calls}


WRONG: list[tuple[Any, str]] = [
    (without(FLAT, "input_toks"), "input_toks: got nothing, expected an integer, it is required"),
    (without(FLAT, "output_toks"), "output_toks: got nothing"),
    (without(FLAT, "arrival_time_ns"), "arrival_time_ns: got nothing"),
    (FLAT | {"input_toks": True}, "input_toks: got True, expected an integer"),
    (FLAT | {"input_toks": 3.0}, "input_toks: got 3.0, expected an integer"),
    (FLAT | {"input_toks": "3"}, "input_toks: got '3', expected an integer"),
    (FLAT | {"input_toks": None}, "input_toks: got None, expected an integer"),
    (FLAT | {"input_toks": 0}, "input_toks: got 0, expected at least 1"),
    (FLAT | {"output_toks": -1}, "output_toks: got -1, expected at least 1"),
    (FLAT | {"output_toks": 1 << 31}, "output_toks: got 2147483648, expected at most 2147483644"),
    (FLAT | {"arrival_time_ns": -5}, "arrival_time_ns: got -5, expected at least 0"),
    (FLAT | {"arrival_time_ns": 1 << 63}, "arrival_time_ns: got 9223372036854775808, expected at"),
    (FLAT | {"arrival_time_ns": 1.5}, "arrival_time_ns: got 1.5, expected an integer"),
    (FLAT | {"priority": "high"}, "priority: got 'high', expected an integer"),
    (FLAT | {"request_id": ""}, "request_id: got '', expected a string that is not empty"),
    (FLAT | {"request_id": 1.5}, "request_id: got 1.5, expected a string"),
    (FLAT | {"request_id": "first"}, "request_id: got 'first', expected .* line 1 has it too"),
    (FLAT | {"inputs": 3}, "inputs: got 3, expected no such field; known fields: arrival_time_ns,"),
    (FLAT | {"tool_duration_ns": 3}, "tool_duration_ns: got 3, expected no such field"),
    (TOKENS | {"input_toks": 4}, "input_tok_ids: got '3 ids', expected 4, as input_toks says"),
    (TOKENS | {"output_toks": 1}, "output_tok_ids: got '2 ids', expected 1, as output_toks says"),
    (TOKENS | {"input_tok_ids": []}, "input_tok_ids: got '0 ids', expected 3"),
    (TOKENS | {"input_tok_ids": None}, "input_tok_ids: got None, expected a list of token ids"),
    (TOKENS | {"input_tok_ids": [1, -2, 3]}, r"input_tok_ids\[1\]: got -2, expected a token id"),
    (TOKENS | {"input_tok_ids": [1, 2, 1 << 31]}, r"input_tok_ids\[2\]: got 2147483648, expected"),
    (TOKENS | {"input_tok_ids": [1, 2.0, 3]}, r"input_tok_ids\[1\]: got 2.0, expected a token id"),
    (TOKENS | {"input_tok_ids": [1, 2, True]}, r"input_tok_ids\[2\]: got True, expected a token"),
    (TOKENS | {"output_tok_ids": ["8", 9]}, r"output_tok_ids\[0\]: got '8', expected a token id"),
    (TOKENS | {"output_tok_ids": [8, None]}, r"output_tok_ids\[1\]: got None, expected a token"),
    (without(TOKENS, "input_tok_ids"), "input_tok_ids: got nothing, expected a value, because"),
    (without(SESSION, "session_id"), "session_id: got nothing, expected a string"),
    (without(SESSION, "arrival_time_ns"), "arrival_time_ns: got nothing"),
    (SESSION | {"sub_requests": []}, r"sub_requests: got \[\], expected a list of at least one"),
    (SESSION | {"sub_requests": {}}, "sub_requests: got {}, expected a list"),
    (SESSION | {"sub_requests": [7]}, r"sub_requests\[0\]: got 7, expected an object"),
    (SESSION | {"input_toks": 3}, "input_toks: got 3, expected no such field; known fields: arr"),
    (with_call(1, input_toks=0), r"sub_requests\[1\].input_toks: got 0, expected at least 1"),
    (with_call(0, tool_ms=3), r"sub_requests\[0\].tool_ms: got 3, expected no such field"),
    (with_call(2, tool_duration_ns=-1), r"sub_requests\[2\].tool_duration_ns: got -1, expected at"),
    (with_call(1, input_tok_ids=[1]), r"sub_requests\[1\].input_tok_ids: got '1 ids', expected 6"),
]


@pytest.mark.parametrize(("row", "message"), WRONG)
def test_a_wrong_row_is_named(write: Write, row: Any, message: str) -> None:
    path = write("a.jsonl", *lines(FLAT | {"request_id": "first"}, "", row))
    with pytest.raises(InputError, match=f"a.jsonl: line 3: {message}"):
        read_jsonl(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"input_toks": 3,', "line 2: got .*, expected a JSON object on one line$"),
        ('{"input_toks": NaN}', "line 2: got .* at column 16', expected a JSON object"),
        ("[1, 2]", r"line 2: got \[1, 2\], expected a JSON object"),
        ("17", "line 2: got 17, expected a JSON object"),
    ],
)
def test_a_line_that_is_no_object(write: Write, text: str, message: str) -> None:
    path = write("a.jsonl", *lines(FLAT, text, FLAT))
    with pytest.raises(InputError, match=f"a.jsonl: {message}"):
        read_jsonl(path)


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(FLAT) + "\n" + json.dumps(TOKENS)[:-12])
    with pytest.raises(InputError, match=r"line 2: .* the file may have been cut off"):
        read_jsonl(path)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_file_without_requests(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(
        InputError, match=r"a.jsonl: file: got 'no requests', expected at least one"
    ):
        load_jsonl(path)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"request_id": "\xff"}\n')
    with pytest.raises(InputError, match=r"a.jsonl: line 1: got"):
        read_jsonl(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for read in (read_jsonl, load_jsonl):
        with pytest.raises(
            InputError, match=r"none.jsonl: file: got nothing, expected an existing"
        ):
            read(tmp_path / "none.jsonl")
        with pytest.raises(InputError, match=r"file: got .*, expected a readable file"):
            read(tmp_path)


@pytest.mark.parametrize("cut", [5, 40, -4])
def test_a_damaged_gzip_file(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(TOKENS) + "\n").encode() * 50)[:cut])
    with pytest.raises(
        InputError, match=r"a.jsonl.gz: file: got .*, expected a complete gzip file"
    ):
        read_jsonl(path)


def test_a_file_that_only_claims_to_be_gzip(write: Write) -> None:
    with pytest.raises(InputError, match=r"expected a complete gzip file"):
        read_jsonl(write("a.jsonl.gz", *lines(FLAT)))
