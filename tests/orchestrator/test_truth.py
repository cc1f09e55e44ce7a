"""Recorded runs and tables of percentiles as truth: what is read, what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from orchestrator.truth import DEFINITIONS, Truth, TruthConfig, load_truth
from profiles.errors import InputError, parse_model
from tests.orchestrator.truth_make import LEFT_OUT, write_recorded

DECLARED = {"ttft": "from_arrival", "tpot": "all_requests", "percentile": "linear"}
ROWS = [
    {"metric": "ttft", "statistic": "p50", "value_ms": 1540.0},
    {"metric": "ttft", "statistic": "p95", "value_ms": 11530},
    {"metric": "latency", "statistic": "mean", "value_ms": 20000.0},
]


def load(data: dict[str, Any], base: Path) -> Truth:
    return load_truth(parse_model(TruthConfig, data, "truth.yaml"), base)


def test_recorded_run(tmp_path: Path) -> None:
    write_recorded(tmp_path)
    truth = load({"recorded": "."}, tmp_path)
    ttft = {"mean": 250, "p50": 250, "p90": 370, "p95": 385, "p99": 397}
    assert truth.kind == "recorded"
    assert truth.metrics["ttft_ms"] == pytest.approx(ttft)
    assert truth.metrics["tpot_ms"]["mean"] == pytest.approx(125)
    assert truth.metrics["latency_ms"]["mean"] == pytest.approx(750)
    assert "itl_ms" not in truth.metrics
    assert truth.makespan_ms == pytest.approx(2000)
    assert truth.throughput == pytest.approx(
        {"requests_per_s": 2, "output_tokens_per_s": 10, "total_tokens_per_s": 335}
    )
    assert truth.num_gpu_blocks == 1000
    assert truth.series["kv_cache_usage"].tolist() == [0.1, 0.2]
    assert truth.series["generation_throughput"].tolist() == [6.0, 14.0]
    assert truth.requests is not None
    assert truth.requests.ids is not None
    assert truth.requests.ids.to_pylist() == ["bench-0", "bench-1", "bench-2", "bench-3"]
    assert truth.requests.latency_ms == pytest.approx([500, 1200, 300, 1000])
    assert truth.settings["max_num_seqs"] == 256
    assert truth.notes == ()


def test_a_truth_travels_and_knows_its_content(tmp_path: Path) -> None:
    write_recorded(tmp_path)
    truth = load({"recorded": "."}, tmp_path)
    again = pickle.loads(pickle.dumps(truth))
    assert again.content_id == truth.content_id
    assert truth.requests is not None
    assert again.requests.ids.equals(truth.requests.ids)
    write_recorded(tmp_path, change={"input_toks": 51})
    assert load({"recorded": "."}, tmp_path).content_id != truth.content_id


def test_from_the_queue_on_both_sides(tmp_path: Path) -> None:
    """The third request was sent 100 ms before the engine queued it: 400 ms, or 300 from the queue."""
    write_recorded(tmp_path, change={"sent_ts": 500.4})
    lines = (tmp_path / "requests.jsonl").read_text().splitlines()
    rows = [{"sent_ts": json.loads(line)["queued_ts"]} | json.loads(line) for line in lines]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sent, queued = (
        load({"recorded": ".", "ttft": ttft}, tmp_path) for ttft in ("from_arrival", "from_queue")
    )
    assert sent.requests is not None and queued.requests is not None
    assert sent.requests.ttft_ms == pytest.approx([100, 200, 400, 400])
    assert queued.requests.ttft_ms == pytest.approx([100, 200, 300, 400])
    assert queued.requests.latency_ms == pytest.approx([500, 1200, 300, 1000])
    assert (sent.start, queued.start) == ("arrival_ns", "queued_ns")
    assert sent.content_id == load({"recorded": "."}, tmp_path).content_id != queued.content_id


def test_what_a_recording_lacks_is_said(tmp_path: Path) -> None:
    write_recorded(tmp_path, meta={"kv_cache": None}, series=("0.5,1,2,3,4,0.0", "1.0,1,2,3,4,0.0"))
    truth = load({"recorded": "."}, tmp_path)
    assert truth.num_gpu_blocks is None
    assert "kv_cache_usage" not in truth.series
    assert "generation_throughput" not in truth.series
    assert truth.series["t_s"].tolist() == [1.0]
    assert truth.notes == (
        "the recorded series is not by the second: its throughput is not compared",
        "kv_cache_pct is 0 throughout: KV cache usage counts as not recorded",
        "the number of KV blocks was not recorded",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queued_ts": LEFT_OUT, "queued_time": 1.0}, "line 3: queued_ts: got nothing"),
        ({"output_toks": LEFT_OUT}, "line 3: output_toks: got nothing"),
        ({"first_token_ts": float("nan")}, "line 3: first_token_ts: got nan"),
        (
            {"queued_ts": -1.0},
            r"line 3: queued_ts: got -1.0, expected .*greater than or equal to 0",
        ),
        ({"request_id": "bench-1"}, "line 3: request_id: got 'bench-1', expected an id of its own"),
    ],
)
def test_wrong_recorded_requests(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_recorded(tmp_path, change=change)
    with pytest.raises(InputError, match=message):
        load({"recorded": "."}, tmp_path)


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (("1.0,1,2,3,4",), "line 2, row: got '1.0,1,2,3,4', expected 6 values"),
        (("1.0,1,2,nan,4,5",), "line 2, running: got nan, expected a finite number"),
        (("1.0,1,2,3,-4,5",), "line 2, waiting: got -4.0, expected a number from 0 on"),
        (("1.0,1,2,3,4,101",), "line 2, kv_cache_pct: got 101.0, expected a number from 0 to 100"),
        (("2.0,1,2,3,4,5", "1.0,1,2,3,4,5"), r"line 3, t: got 1.0, expected more than 2.0"),
        (("-1.0,1,2,3,4,5",), "line 2, t: got -1.0, expected a number from 0 on"),
        ((), "timeseries.csv: file: got 'a header only', expected at least one row"),
    ],
)
def test_wrong_recorded_series(tmp_path: Path, series: tuple[str, ...], message: str) -> None:
    write_recorded(tmp_path, series=series)
    with pytest.raises(InputError, match=message):
        load({"recorded": "."}, tmp_path)


def test_files_cut_short(tmp_path: Path) -> None:
    path = write_recorded(tmp_path) / "requests.jsonl"
    text = path.read_text()
    path.write_text(text[:-30])
    with pytest.raises(InputError, match=r"requests.jsonl, line 4: .*valid JSON"):
        load({"recorded": "."}, tmp_path)
    path.write_text("\n".join(text.splitlines()[:3]) + "\n")
    with pytest.raises(InputError, match=r"requests: got 3, expected the 4 of meta.json"):
        load({"recorded": "."}, tmp_path)
    path.write_text("")
    with pytest.raises(InputError, match=r"requests: got 0, expected the 4 of meta.json"):
        load({"recorded": "."}, tmp_path)
    path.write_text(text)
    series = tmp_path / "timeseries.csv"
    series.write_text(series.read_text()[:-2])
    with pytest.raises(InputError, match=r"line 3, row: .*cut short"):
        load({"recorded": "."}, tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "truth.yaml: TruthConfig: got None, expected exactly one of recorded, vllm_bench"),
        (
            {"recorded": "a", "vllm_bench": "b"},
            r"got \['recorded', 'vllm_bench'\], expected exactly",
        ),
        (
            {"record": "a"},
            "record: got 'a', expected no such field; known fields: aiconfigurator",
        ),
        ({"vllm_bench": "a", "ttft": "from_queue"}, "ttft: got 'from_queue', expected nothing"),
        ({"percentiles": {}}, "percentiles.values: got None, expected a table: either file or val"),
        (
            {"percentiles": {"values": [{**ROWS[0], "metric": "e2e"}]}},
            r"percentiles.values\[0\].metric: got 'e2e', expected 'ttft'",
        ),
    ],
)
def test_wrong_configurations(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(data, tmp_path)


def test_percentiles_in_the_configuration(tmp_path: Path) -> None:
    table = {"definitions": DECLARED, "values": ROWS, "output_tokens_per_s": 2509.7}
    truth = load({"percentiles": table}, tmp_path)
    assert truth.metrics == {"ttft_ms": {"p50": 1540, "p95": 11530}, "latency_ms": {"mean": 20000}}
    assert truth.throughput == {"output_tokens_per_s": 2509.7}
    assert (truth.start, truth.single_tokens_in_tpot) == ("arrival_ns", True)
    other = {"ttft": "from_queue", "tpot": "two_tokens_or_more", "percentile": "linear"}
    truth = load({"percentiles": {"definitions": other, "values": ROWS}}, tmp_path)
    assert (truth.start, truth.single_tokens_in_tpot) == ("queued_ns", False)


def test_percentiles_in_files(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("metric,statistic,value_ms\nttft,p50,12.5\nttft,p99,80\n")
    (tmp_path / "t.yaml").write_text(
        "definitions: {ttft: from_arrival, tpot: all_requests, percentile: linear}\n"
        "values:\n"
        "  - {metric: ttft, statistic: p50, value_ms: 12.5}\n"
        "  - {metric: ttft, statistic: p99, value_ms: 80}\n"
    )
    from_csv = load({"percentiles": {"file": "t.csv", "definitions": DECLARED}}, tmp_path)
    from_yaml = load({"percentiles": {"file": "t.yaml"}}, tmp_path)
    assert from_csv.metrics == from_yaml.metrics == {"ttft_ms": {"p50": 12.5, "p99": 80.0}}
    assert from_csv.content_id == from_yaml.content_id
    with pytest.raises(InputError, match=r"t.csv: percentiles.definitions: got nothing"):
        load({"percentiles": {"file": "t.csv"}}, tmp_path)
    with pytest.raises(InputError, match=r"t.yaml: definitions: .* expected it once"):
        load({"percentiles": {"file": "t.yaml", "definitions": DECLARED}}, tmp_path)


@pytest.mark.parametrize("name", ["ttft", "tpot", "percentile"])
def test_other_definitions_are_refused(tmp_path: Path, name: str) -> None:
    table = {"definitions": {**DECLARED, name: "nearest_rank"}, "values": ROWS}
    message = rf"definitions.{name}: got 'nearest_rank', expected .*another definition cannot be"
    with pytest.raises(InputError, match=message):
        load({"percentiles": table}, tmp_path)
    missing = {other: value for other, value in DECLARED.items() if other != name}
    with pytest.raises(InputError, match=rf"definitions.{name}: got nothing, expected a value"):
        load({"percentiles": {"definitions": missing, "values": ROWS}}, tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("ttft,p50,nan", "line 2, value_ms: got nan, expected a finite number"),
        ("ttft,p50,-3", "line 2: value_ms: got -3.0, expected greater than 0"),
        ("ttft,p50,0", "line 2: value_ms: got 0.0, expected greater than 0"),
        (
            "ttft,median,3",
            "line 2: statistic: got 'median', expected 'mean', 'p50'",
        ),
        ("ttft,p50,3\nttft,p50,4", "ttft p50: got 4.0, expected it once; it is 3 already"),
        ("ttft,p99,3\nttft,p50,4", r"ttft p99: got 3.0, expected at least p50 \(4\)"),
    ],
)
def test_wrong_tables(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(f"metric,statistic,value_ms\n{rows}\n")
    with pytest.raises(InputError, match=message):
        load({"percentiles": {"file": "t.csv", "definitions": DECLARED}}, tmp_path)


def test_definitions_can_be_printed() -> None:
    assert all(len(line) <= 100 for line in DEFINITIONS.splitlines())
    for word in ("TTFT", "TPOT", "ITL", "percentiles", "one token", "makespan", "per request"):
        assert word in DEFINITIONS
