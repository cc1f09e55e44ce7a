import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import InputError, parse_model
from simulator.workloads import Workload, WorkloadConfig, load_workload

Write = Callable[..., Path]
ROW = {"input_toks": 3, "output_toks": 1}
CALL = {"timestamp": 4, "input_length": 8, "output_length": 2, "hash_ids": [3]}
GENERATE = {"num_requests": 30, "arrivals": {"rate": 5}}


def loaded(base: Path, **fields: Any) -> Workload:
    return load_workload(parse_model(WorkloadConfig, fields, "point.yaml"), base)


def test_jsonl_with_a_limit_and_another_rate(write: Write) -> None:
    rows = [json.dumps(ROW | {"arrival_time_ns": 100 * i}) for i in range(5)]
    path = write("a.jsonl", *rows)
    workload = loaded(path.parent, jsonl="a.jsonl", limit=3, rate_scale=4)
    assert workload.arrival_ns.tolist() == [0, 25, 50]
    assert workload.source == str(path)
    assert len(loaded(Path("elsewhere"), jsonl=str(path))) == 5
    assert len(loaded(path.parent, jsonl="a.jsonl", limit=99)) == 5


def test_traces_by_path_or_with_options(write: Write) -> None:
    base = write("m.jsonl", json.dumps(CALL)).parent
    assert loaded(base, mooncake="m.jsonl").chunk_size == 512
    assert loaded(base, mooncake={"path": "m.jsonl", "chunk_size": 8}).chunk_size == 8
    write(
        "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03,5,1",
        "2023-11-16 18:17:04,0,1",
    )
    kept = loaded(base, csv={"path": "a.csv", "format": "azure", "drop_empty": True})
    assert kept.num_prompt_tokens.tolist() == [5]
    with pytest.raises(InputError, match=r"a.csv: line 3: ContextTokens: got 0"):
        loaded(base, csv="a.csv")


def test_generated(tmp_path: Path) -> None:
    workload = loaded(tmp_path, generate=GENERATE, limit=20)
    assert len(workload) == 20
    assert workload.source == "generate (seed 0)"


def test_a_configuration_survives_json() -> None:
    config = parse_model(WorkloadConfig, {"generate": GENERATE | {"priorities": [1, 2]}}, "x")
    assert WorkloadConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {},
            "WorkloadConfig: got {}, expected exactly one of jsonl, csv, mooncake, vllm_bench, "
            "manifest, generate",
        ),
        ({"jsonl": "a", "csv": "b"}, "WorkloadConfig: got .*, expected exactly one of jsonl, csv"),
        ({"jsonl": 7}, "jsonl: got 7, expected"),
        ({"jsnl": "a"}, "jsnl: got 'a', expected no such field; known fields: csv, generate, js"),
        ({"csv": {"path": "a", "format": "orca"}}, "csv.format: got 'orca', expected"),
        ({"csv": {"path": "a", "drop": True}}, "csv.drop: got True, expected no such field; kn"),
        ({"csv": {"path": "a", "drop_empty": "yes"}}, "csv.drop_empty: got 'yes', expected"),
        ({"csv": {}}, "csv.path: got nothing, expected a value, it is required"),
        ({"mooncake": {"path": "a", "chunk_size": 0}}, "mooncake.chunk_size: got 0, expected"),
        ({"jsonl": "a", "limit": 0}, "limit: got 0, expected"),
        ({"jsonl": "a", "limit": True}, "limit: got True, expected"),
        ({"jsonl": "a", "rate_scale": 0}, "rate_scale: got 0, expected"),
        ({"jsonl": "a", "rate_scale": float("inf")}, "rate_scale: got inf, expected"),
        ({"generate": GENERATE | {"seed": "x"}}, "generate.seed: got 'x', expected"),
    ],
)
def test_wrong_configurations(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^point.yaml: {message}"):
        loaded(Path(), **fields)


def test_a_rate_too_slow_for_the_clock(write: Write) -> None:
    path = write("a.jsonl", json.dumps(ROW | {"arrival_time_ns": 1 << 60}))
    with pytest.raises(InputError, match="rate_scale: got 1e-09, expected"):
        loaded(path.parent, jsonl="a.jsonl", rate_scale=1e-9)
