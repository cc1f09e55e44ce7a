"""Comparisons whose numbers can be computed by hand (see truth_make)."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from orchestrator.compare import Comparison, compare
from orchestrator.truth import STATISTICS, Truth, TruthConfig, load_truth
from simulator.result import Result
from tests.orchestrator.truth_make import (
    DETAILS,
    LEFT_OUT,
    make_result,
    write_bench,
    write_recorded,
)

DECLARED = {"ttft": "from_arrival", "tpot": "all_requests", "percentile": "linear"}


def recorded(folder: Path, **changes: Any) -> Truth:
    return load_truth(TruthConfig(recorded=write_recorded(folder, **changes)), folder)


def table(*rows: tuple[str, str, float], **definitions: str) -> Truth:
    values = [{"metric": m, "statistic": s, "value_ms": v} for m, s, v in rows]
    data = {"percentiles": {"definitions": {**DECLARED, **definitions}, "values": values}}
    return load_truth(TruthConfig.model_validate(data), Path())


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    return compare(make_result(), recorded(tmp_path))


def test_errors_are_signed(comparison: Comparison) -> None:
    assert comparison.err_pct["ttft_ms"] == pytest.approx(dict.fromkeys(STATISTICS, 10.0))
    assert comparison.err_pct["tpot_ms"] == pytest.approx(dict.fromkeys(STATISTICS, -10.0))
    # Latency 470, 1120, 330, 980 for 500, 1200, 300, 1000: 725 for 750 on average.
    latency = comparison.err_pct["latency_ms"]
    assert latency["mean"] == pytest.approx(-100 / 30)
    assert latency["p50"] == pytest.approx((725 - 750) / 750 * 100)
    assert latency["p90"] == pytest.approx(((980 + 0.7 * 140) / (1000 + 0.7 * 200) - 1) * 100)
    assert "itl_ms" not in comparison.err_pct
    assert comparison.num_headline == 15
    expected = (5 * 10 + 5 * 10 + sum(map(abs, latency.values()))) / 15
    assert comparison.mean_abs_pct == pytest.approx(expected)


def test_errors_per_request(comparison: Comparison) -> None:
    requests = comparison.requests
    assert requests is not None
    assert (requests.matched, requests.unmatched, requests.unmatched_truth) == (4, 0, 0)
    assert requests.matched_by == "position"  # "0" and "bench-0"
    assert requests.examples == ()
    # 6, 6.67, 10 and 2 %; 30, 80, 30 and 20 ms.
    latency = requests.errors["latency_ms"]
    assert latency["median_abs_pct"] == pytest.approx((6 + 20 / 3) / 2)
    assert latency["p90_abs_pct"] == pytest.approx(20 / 3 + 0.7 * (10 - 20 / 3))
    assert latency["median_abs_ms"] == pytest.approx(30)
    assert latency["p90_abs_ms"] == pytest.approx(30 + 0.7 * 50)
    # The measured TPOT of one token is 0: it has no error in %.
    assert requests.errors["tpot_ms"]["median_abs_pct"] == pytest.approx(10)


def test_series_over_the_seconds_both_have(comparison: Comparison) -> None:
    assert comparison.series_seconds == 2
    assert comparison.series["running"] == {
        "mean_abs": pytest.approx(0.5),
        "mean_abs_pct": pytest.approx(0.5 / 1.5 * 100),
    }
    assert comparison.series["waiting"]["mean_abs"] == pytest.approx(1)
    assert comparison.series["kv_cache_usage"] == {
        "mean_abs": pytest.approx(0.025),
        "mean_abs_pct": pytest.approx(0.025 / 0.15 * 100),
    }


def test_makespan_throughput_blocks(comparison: Comparison) -> None:
    assert comparison.makespan_err_pct == pytest.approx(-1)  # 1980 ms for 2000
    assert comparison.throughput_err_pct["output_tokens_per_s"] == pytest.approx(100 / 99)
    assert comparison.blocks == (1000, 1000)
    assert comparison.notes == ()


def test_equal_is_zero(tmp_path: Path) -> None:
    flat = compare(make_result(ttft=1, tpot=1), recorded(tmp_path)).flat()
    of_times = [v for n, v in flat.items() if n.startswith("err_pct/") or "_ms/" in n]
    assert len(of_times) == 15 + 1 + 1 + 1 + 3 + 15
    assert max(map(abs, of_times)) < 1e-6


def test_flat_names_suit_mlflow_and_dictionaries_suit_json(comparison: Comparison) -> None:
    flat = comparison.flat()
    known = "err_pct/ttft_ms/p99", "err_pct/mean_abs", "requests/ttft_ms/median_abs_pct"
    assert set(known) <= set(flat)
    assert all(re.fullmatch(r"[A-Za-z0-9_/]+", name) for name in flat)
    assert all(isinstance(value, float) and math.isfinite(value) for value in flat.values())
    data = comparison.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["blocks"] == {"simulated": 1000, "truth": 1000}


def test_requests_match_by_id_in_any_order(tmp_path: Path) -> None:
    truth = recorded(tmp_path)
    ids = [f"bench-{r}" for r in range(4)]
    result = make_result(ids=ids)
    requests = compare(result, truth).requests
    assert requests is not None
    assert (requests.matched_by, requests.matched) == ("id", 4)
    turned = Result(result.summary, result.requests.take([3, 1, 0, 2]), result.timeseries)
    assert compare(turned, truth).requests == requests


def test_a_result_read_back_from_parquet(tmp_path: Path, comparison: Comparison) -> None:
    result = make_result()
    pq.write_table(result.requests, tmp_path / "requests.parquet", row_group_size=3)
    read = Result(result.summary, pq.read_table(tmp_path / "requests.parquet"), result.timeseries)
    assert compare(read, recorded(tmp_path)) == comparison


def test_requests_of_other_lengths_do_not_match(tmp_path: Path) -> None:
    comparison = compare(make_result(), recorded(tmp_path, change={"input_toks": 51}))
    requests = comparison.requests
    assert requests is not None
    assert (requests.matched, requests.unmatched, requests.unmatched_truth) == (3, 1, 1)
    assert requests.examples == ("simulated '2': 50 + 1 tokens, measured 'bench-2': 51 + 1",)
    assert comparison.notes == (
        "1 simulated and 1 measured requests are unmatched, first: simulated '2': 50 + 1 tokens, "
        "measured 'bench-2': 51 + 1",
        "only 3 of 4 requests match: errors per request say little, the measured workload may be "
        "another one",
    )


def test_requests_that_only_one_side_has(tmp_path: Path) -> None:
    truth = recorded(tmp_path)
    whole = make_result(ids=["bench-0", "bench-1", "new", "bench-3"])
    part = Result(whole.summary, whole.requests.take([0, 2, 3]), whole.timeseries)
    requests = compare(part, truth).requests
    assert requests is not None
    assert (requests.matched_by, requests.matched) == ("id", 2)
    assert requests.examples == (
        "simulated 'new': no such request was measured",
        "measured 'bench-1': not simulated",
        "measured 'bench-2': not simulated",
    )


def test_refused_and_capped_requests_are_reported(tmp_path: Path) -> None:
    truth = recorded(tmp_path)
    refused = compare(make_result(refused=3), truth)
    assert refused.requests is not None
    assert refused.requests.matched == 3
    assert refused.notes[:2] == (
        "1 of 4 simulated requests were refused, first: 3: too long for the pool",
        "metrics of 3 simulated and 4 measured requests",
    )
    assert "simulated '3': refused or cut short in the simulation" in refused.notes[2]
    capped = compare(make_result(outputs=(5, 8, 1, 3)), truth)
    assert capped.requests is not None
    assert capped.requests.matched == 3
    assert capped.notes[0] == "1 of 4 simulated requests were cut short at max_model_len 4096"


def test_block_counts_that_differ(tmp_path: Path) -> None:
    truth = recorded(tmp_path)
    comparison = compare(make_result(blocks=1047), truth)
    assert comparison.blocks == (1047, 1000)
    assert comparison.notes == (
        "KV blocks differ: 1047 simulated, 1000 measured (+4.70 %), at gpu_memory_utilization 0.92 "
        "and 0.9; errors of latency may come from that alone",
    )


def test_settings_that_differ(tmp_path: Path) -> None:
    truth = recorded(tmp_path)
    result = make_result(engine={"max_num_seqs": 64, "null_block": False})
    assert compare(result, truth).notes == (
        "settings differ: max_num_seqs 64 (measured 256), null_block False (measured True)",
    )


def test_measured_zeros_are_left_out_and_noted(tmp_path: Path) -> None:
    change = {"queued_ts": 0.5, "scheduled_ts": 0.5, "first_token_ts": 0.5, "last_token_ts": 0.5}
    truth = recorded(tmp_path, change=change, series=("1.0,1,1,1,0,5.0", "2.0,1,1,1,0,5.0"))
    comparison = compare(make_result(), truth)
    assert "mean_abs_pct" not in comparison.series["waiting"]
    assert comparison.series["waiting"]["mean_abs"] == pytest.approx(0.5)
    assert comparison.notes == ("series waiting: measured 0 throughout, no error in %",)
    aggregate = {**dict.fromkeys(DETAILS, LEFT_OUT), "median_itl_ms": 0.0}
    path = write_bench(tmp_path / "b.json", aggregate)
    bench = compare(make_result(), load_truth(TruthConfig(vllm_bench=path), tmp_path))
    assert "itl_ms p50 left out: the truth is 0" in bench.notes
    assert set(bench.err_pct["itl_ms"]) == {"mean", "p99"}


def test_fewer_than_fifteen_metrics(tmp_path: Path) -> None:
    comparison = compare(make_result(), table(("ttft", "p50", 200.0), ("ttft", "p99", 400.0)))
    assert comparison.err_pct == {"ttft_ms": pytest.approx({"p50": 37.5, "p99": 9.175})}
    assert comparison.num_headline == 2
    assert comparison.mean_abs_pct == pytest.approx((37.5 + 9.175) / 2)
    assert "err_pct/mean_abs_partial" in comparison.flat()
    assert "err_pct/mean_abs" not in comparison.flat()
    assert comparison.requests is None
    assert comparison.notes == (
        "not measured: tpot_ms, latency_ms",
        "mean absolute error over 2 of 15 headline metrics",
    )


def test_a_table_that_counts_from_the_queue() -> None:
    rows = ("ttft", "mean", 250.0), ("latency", "mean", 750.0)
    result = make_result(queue_ms=20)
    from_arrival = compare(result, table(*rows))
    from_queue = compare(result, table(*rows, ttft="from_queue"))
    assert from_arrival.err_pct["ttft_ms"]["mean"] == pytest.approx(10)
    assert from_queue.err_pct["ttft_ms"]["mean"] == pytest.approx((255 - 250) / 250 * 100)
    assert from_queue.err_pct["latency_ms"]["mean"] == pytest.approx((705 - 750) / 750 * 100)


def test_bench_results_leave_single_tokens_out_on_both_sides(tmp_path: Path) -> None:
    path = write_bench(tmp_path / "bench.json")
    comparison = compare(make_result(), load_truth(TruthConfig(vllm_bench=path), tmp_path))
    assert comparison.err_pct["tpot_ms"] == pytest.approx(dict.fromkeys(STATISTICS, -10.0))
    assert comparison.err_pct["itl_ms"] == pytest.approx(dict.fromkeys(STATISTICS, -10.0))
    assert comparison.num_headline == 15
    assert comparison.requests is not None
    assert (comparison.requests.matched, comparison.requests.unmatched_truth) == (4, 1)
    assert comparison.requests.examples == ("measured '4': failed in the measurement",)
    assert comparison.blocks == (1000, None)
    assert "blocks/truth" not in comparison.flat()


def test_comparing_is_fast(tmp_path: Path) -> None:
    result, truth, times = make_result(), recorded(tmp_path), []
    for _ in range(30):
        begin = time.perf_counter()
        compare(result, truth)
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.002
