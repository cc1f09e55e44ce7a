import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import InputError
from simulator.workloads.traces import read_csv, read_mooncake, wall_clock_ns

Write = Callable[..., Path]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
CALL = {"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [46, 47]}


def test_azure(write: Write) -> None:
    path = write(
        "a.csv",
        AZURE,
        "2023-11-16 18:17:03.9799600,4808,10",
        "2023-11-16 18:17:04.0319601,3180,8",
        "",
        "2023-11-17 00:00:00,7,1",
    )
    workload = read_csv(path)
    assert workload.arrival_ns.tolist() == [0, 52_000_100, 20_576_020_040_000]
    assert workload.num_prompt_tokens.tolist() == [4808, 3180, 7]
    assert workload.num_output_tokens.tolist() == [10, 8, 1]
    assert workload.request_ids == ["0", "1", "2"]
    assert workload.token_ids.size == 0


def test_azure_with_zones_and_out_of_order(write: Write) -> None:
    path = write(
        "a.csv",
        AZURE,
        "2024-05-10 00:00:01.5+00:00,5,1",
        "2024-05-10 02:00:00+02:00,6,1",
        "2024-05-09T23:59:58Z,6,1",
        "2024-05-09 19:00:01-05:00,6,1",
    )
    assert read_csv(path).arrival_ns.tolist() == [3_500_000_000, 2 * 10**9, 0, 3 * 10**9]


def test_columns_in_any_order_packed_and_with_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    text = "\ufeffGeneratedTokens,TIMESTAMP,ContextTokens\r\n3,2023-11-16 18:17:03,5\r\n"
    path.write_bytes(gzip.compress(text.encode()))
    workload = read_csv(path, "azure")
    assert (workload.num_prompt_tokens[0], workload.num_output_tokens[0]) == (5, 3)


def test_burstgpt(write: Write) -> None:
    rows = [BURSTGPT, "5,ChatGPT,472,18,490,Conversation log", "45.5,GPT-4,10,230,240,API log"]
    workload = read_csv(write("a.csv", *rows))
    assert workload.arrival_ns.tolist() == [0, 40_500_000_000]
    assert workload.num_prompt_tokens.tolist() == [472, 10]
    assert workload.num_output_tokens.tolist() == [18, 230]


def test_wall_clock_keeps_every_digit() -> None:
    assert wall_clock_ns("1970-01-01 00:00:01.123456789") == 1_123_456_789
    assert wall_clock_ns("1970-01-01 02:00:00+01:30") == 1800 * 10**9


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2023-11-16 18:17:03,0,10", "ContextTokens: got 0, expected at least 1; drop_empty: true"),
        ("2023-11-16 18:17:03,5,0", "GeneratedTokens: got 0, expected at least 1; drop_empty: tr"),
        ("2023-11-16 18:17:03,5,-1", "GeneratedTokens: got '-1', expected an integer from 0"),
        ("2023-11-16 18:17:03,5.0,1", "ContextTokens: got '5.0', expected an integer from 0"),
        ("2023-11-16 18:17:03,1_0,1", "ContextTokens: got '1_0', expected an integer from 0"),
        ("2023-11-16 18:17:03,nan,1", "ContextTokens: got 'nan', expected an integer from 0"),
        (f"2023-11-16 18:17:03,{'9' * 5000},1", "ContextTokens: got '999.*, expected an integer"),
        ("2023-11-16 18:17:03,,1", "ContextTokens: got '', expected an integer from 0"),
        ("2023-11-16 18:17:03,2147483648,1", "ContextTokens: got '2147483648', expected an int"),
        ("2023-11-16 18:17:03,2147483647,1", "prompt and output tokens: got 2147483648, expected"),
        ("2023-11-16 25:17:03,5,1", "TIMESTAMP: got '2023-11-16 25:17:03', expected a time like"),
        ("2023-02-30 18:17:03,5,1", "TIMESTAMP: got '2023-02-30 18:17:03', expected a time like"),
        ("9999-02-20 18:17:03,5,1", "TIMESTAMP: got '9999-02-20 18:17:03', expected a time like"),
        ("17.5,5,1", "TIMESTAMP: got '17.5', expected a time like"),
        ("2023-11-16 18:17:03,5", "got '2 fields', expected 3, as the header has"),
        ("2023-11-16 18:17:03,5,1,9", "got '4 fields', expected 3, as the header has"),
    ],
)
def test_a_wrong_row_of_azure(write: Write, row: str, message: str) -> None:
    path = write("a.csv", AZURE, "2023-11-16 18:17:03.9799600,4808,10", row)
    with pytest.raises(InputError, match=f"a.csv: line 3: {message}"):
        read_csv(path)


@pytest.mark.parametrize("time", ["-1", "nan", "inf", "1e30", "soon", ""])
def test_a_wrong_time_of_burstgpt(write: Write, time: str) -> None:
    path = write("a.csv", BURSTGPT, f"{time},ChatGPT,472,18,490,Conversation log")
    with pytest.raises(InputError, match=f"line 2: Timestamp: got '{time}', expected seconds"):
        read_csv(path)


def test_empty_rows_can_be_left_out(write: Write) -> None:
    rows = [BURSTGPT, "5,a,0,18,18,b", "6,a,7,0,7,b", "9,a,7,1,8,b", "10,a,7,2,9,b"]
    workload = read_csv(write("a.csv", *rows), drop_empty=True)
    assert workload.arrival_ns.tolist() == [0, 10**9]
    assert workload.request_ids == ["0", "1"]
    with pytest.raises(InputError, match=r"file: got 'no requests', expected at least one"):
        read_csv(write("b.csv", *rows[:3]), drop_empty=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("auto", "line 1: got 'a,b,c', expected the columns TIMESTAMP, .* or Timestamp, Request"),
        ("azure", "line 1: got 'a,b,c', expected the columns TIMESTAMP, ContextTokens, Generated"),
        ("burstgpt", "line 1: got 'a,b,c', expected the columns Timestamp, Request tokens, Resp"),
    ],
)
def test_an_unknown_header(write: Write, name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"a.csv: {message}"):
        read_csv(write("a.csv", "a,b,c", "1,2,3"), name)


def test_no_header_and_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.touch()
    with pytest.raises(InputError, match=r"a.csv: file: got 'no header'"):
        read_csv(path)
    path.write_bytes(AZURE.encode() + b"\n\xff\xfe,1,2\n")
    with pytest.raises(InputError, match=r"a.csv: line .*: got .*, expected CSV in UTF-8"):
        read_csv(path)
    with pytest.raises(InputError, match=r"none.csv: file: got nothing, expected an existing file"):
        read_csv(tmp_path / "none.csv")


def test_mooncake(write: Write) -> None:
    second = {"timestamp": 3053.5, "input_length": 1024, "output_length": 1, "hash_ids": [46, -9]}
    path = write("m.jsonl", json.dumps(CALL), json.dumps(second))
    workload = read_mooncake(path)
    assert workload.chunk_size == 512
    assert workload.arrival_ns.tolist() == [0, 3_053_500_000]
    assert workload.num_prompt_tokens.tolist() == [600, 1024]
    assert workload.token_offsets.tolist() == [0, 2, 4]
    assert workload.token_ids.tolist() == [1, 2, 1, 0]  # which are equal, not which they were
    assert workload.num_known_tokens.tolist() == [600, 1024]


def test_mooncake_without_the_id_of_the_last_chunk(write: Write) -> None:
    workload = read_mooncake(write("m.jsonl", json.dumps(CALL | {"hash_ids": [46]})))
    assert workload.num_known_tokens.tolist() == [512]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": -1}, "timestamp: got -1, expected milliseconds, at least 0"),
        ({"timestamp": True}, "timestamp: got True, expected milliseconds"),
        ({"timestamp": "0"}, "timestamp: got '0', expected milliseconds"),
        ({"timestamp": 1e30}, r"timestamp: got 1e\+30, expected milliseconds"),
        ({"input_length": 6.5}, "input_length: got 6.5, expected an integer"),
        ({"input_length": 0, "hash_ids": []}, "input_length: got 0, expected at least 1; drop_e"),
        ({"output_length": 0}, "output_length: got 0, expected at least 1; drop_empty: true"),
        ({"output_length": (1 << 31) - 600}, "prompt and output tokens: got 2147483648, expected"),
        ({"hash_ids": [1, 2, 3]}, "hash_ids: got '3 ids', expected 2 for 600 prompt tokens in"),
        ({"hash_ids": []}, "hash_ids: got '0 ids', expected 2 for 600 prompt tokens in chunks"),
        ({"hash_ids": "46"}, "hash_ids: got '46', expected a list of integers"),
        ({"hash_ids": [46, True]}, r"hash_ids\[1\]: got True, expected a 64-bit integer"),
        ({"hash_ids": [1 << 63, 1]}, r"hash_ids\[0\]: got 9223372036854775808, expected a 64-bit"),
        ({"hash_id": [46]}, r"hash_id: got \[46\], expected no such field; known fields: hash_ids"),
    ],
)
def test_a_wrong_row_of_mooncake(write: Write, change: dict[str, Any], message: str) -> None:
    path = write("m.jsonl", json.dumps(CALL), json.dumps(CALL | change))
    with pytest.raises(InputError, match=f"m.jsonl: line 2: {message}"):
        read_mooncake(path)


@pytest.mark.parametrize("name", sorted(CALL))
def test_a_missing_field_of_mooncake(write: Write, name: str) -> None:
    row = {key: value for key, value in CALL.items() if key != name}
    with pytest.raises(InputError, match=f"m.jsonl: line 1: {name}: got nothing, expected"):
        read_mooncake(write("m.jsonl", json.dumps(row)))


def test_empty_calls_of_mooncake_can_be_left_out(write: Write) -> None:
    rows = [CALL | {"output_length": 0}, CALL]
    workload = read_mooncake(write("m.jsonl", *map(json.dumps, rows)), drop_empty=True)
    assert workload.request_ids == ["0"]
