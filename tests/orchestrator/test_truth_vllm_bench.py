"""Results of `vllm bench serve` as truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.compare import compare
from orchestrator.truth import Truth, TruthConfig, load_truth
from orchestrator.truth_vllm_bench import METRICS
from profiles.errors import InputError
from simulator import simulate
from tests.orchestrator.truth_make import DETAILS, LEFT_OUT, bench_data, write_bench
from tests.simulator.point import make_point


def load(folder: Path, changes: dict[str, Any] | None = None) -> Truth:
    write_bench(folder / "bench.json", changes)
    return load_truth(TruthConfig(vllm_bench=Path("bench.json")), folder)


def test_detailed_result(tmp_path: Path) -> None:
    truth = load(tmp_path)
    assert truth.metrics["ttft_ms"] == pytest.approx(
        {"mean": 250, "p50": 250, "p90": 370, "p95": 385, "p99": 397}
    )
    assert truth.metrics["latency_ms"]["mean"] == pytest.approx(750)
    assert truth.makespan_ms == pytest.approx(2000)
    assert truth.throughput["output_tokens_per_s"] == pytest.approx(10)
    assert truth.settings == {"model": "test/small-model"}
    assert truth.num_requests == 4
    assert truth.notes == (
        "times were taken at the client: network and tokenization are in them",
        "1 of 5 requests failed and are in no statistic",
        "1 requests of one output token are not in TPOT, as vLLM has it",
    )


def test_one_token_requests_are_not_in_tpot(tmp_path: Path) -> None:
    truth = load(tmp_path)
    assert truth.metrics["tpot_ms"]["mean"] == pytest.approx(500 / 3)
    assert not truth.single_tokens_in_tpot


def test_itl_is_of_all_intervals(tmp_path: Path) -> None:
    truth = load(tmp_path)
    assert truth.metrics["itl_ms"]["mean"] == pytest.approx((14 * 100 + 2 * 300) / 16)
    assert truth.metrics["itl_ms"]["p90"] == pytest.approx(200)  # halfway from 100 to 300


def test_failed_requests_keep_their_place(tmp_path: Path) -> None:
    truth = load(tmp_path)
    assert truth.requests is not None
    assert truth.requests.ids is not None
    assert truth.requests.ids.to_pylist() == ["0", "1", "2", "3", "4"]
    assert truth.requests.failed.tolist() == [False] * 4 + [True]
    assert np.isnan(truth.requests.ttft_ms[4])


def test_without_details_only_what_is_stated(tmp_path: Path) -> None:
    truth = load(tmp_path, dict.fromkeys(DETAILS, LEFT_OUT))
    assert truth.requests is None
    assert sorted(truth.metrics["ttft_ms"]) == ["mean", "p50", "p99"]
    assert truth.metrics["tpot_ms"]["mean"] == pytest.approx(500 / 3)
    assert truth.makespan_ms == 2500
    assert truth.throughput["output_tokens_per_s"] == pytest.approx(8)
    assert truth.notes[-2:] == (
        "no requests in the file (--save-detailed): only what it states is compared",
        "makespan is the benchmark's whole duration, before the first request included",
    )


def test_metrics_that_vllm_was_not_asked_for(tmp_path: Path) -> None:
    absent = [name for name in bench_data() if name.endswith("_e2el_ms")]
    truth = load(tmp_path, dict.fromkeys((*DETAILS, *absent), LEFT_OUT))
    assert sorted(truth.metrics) == ["itl_ms", "tpot_ms", "ttft_ms"]


def test_zero_is_what_vllm_writes_of_nothing(tmp_path: Path) -> None:
    zeros = {name: 0.0 for name in bench_data() if name.endswith("_itl_ms")}
    truth = load(tmp_path, {**dict.fromkeys(DETAILS, LEFT_OUT), **zeros})
    assert "itl_ms" not in truth.metrics


def test_limited_concurrency_is_said(tmp_path: Path) -> None:
    truth = load(tmp_path, {"max_concurrency": 8})
    assert any(note.startswith("at most 8 requests were under way") for note in truth.notes)


def test_chunks_that_are_not_tokens(tmp_path: Path) -> None:
    """Several tokens in a chunk: latency and TPOT stay, ITL would be of something else."""
    itls = [[0.2, 0.2], *bench_data()["itls"][1:]]
    mean = float(np.mean([v for itl in itls for v in itl])) * 1e3
    truth = load(tmp_path, {"itls": itls, "mean_itl_ms": mean})
    assert "itl_ms" not in truth.metrics
    assert truth.metrics["tpot_ms"]["mean"] == pytest.approx(500 / 3)
    assert truth.notes[-2:] == (
        "14 intervals between chunks for 16 between tokens",
        "ITL is left out: chunks are not tokens here",
    )


def test_without_start_times(tmp_path: Path) -> None:
    truth = load(tmp_path, {"start_times": LEFT_OUT})
    assert truth.makespan_ms == 2500
    assert "makespan is the benchmark's whole duration" in truth.notes[-1]


ITLS = bench_data()["itls"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"completed": LEFT_OUT}, "completed: got nothing"),
        ({"duration": float("nan")}, "duration: got nan"),
        ({"duration": -1.0}, "duration: got -1.0, expected greater than 0"),
        ({"completed": 0}, "completed: got 0, expected at least one request that did not fail"),
        (
            {"completed": 5},
            "completed: got 5, expected the 4 entries with a first token and no err",
        ),
        ({"total_output_tokens": 21}, "total_output_tokens: got 21, expected 20, the sum of"),
        ({"ttfts": LEFT_OUT, "ttft_list": []}, "ttfts: got nothing, expected a list, as there are"),
        ({"errors": LEFT_OUT}, "errors: got nothing, expected a list"),
        ({"itls": 3}, "itls: got 3, expected a list with an entry per request"),
        ({"itls": [*ITLS[:4]]}, "itls: got '4 entries', expected 5 as ttfts"),
        ({"itls": [None, *ITLS[1:]]}, r"itls\[0\]: got None, expected a list of times"),
        ({"itls": [[0.1, -0.1], *ITLS[1:]]}, r"itls\[0\]\[1\]: got -0.1, expected seconds from 0"),
        ({"itls": [[], *ITLS[1:]]}, r"itls\[0\]: got \[\], expected intervals between 5 tokens"),
        ({"ttfts": [0.1, "0.2", 0.3, 0.4, 0]}, r"ttfts\[1\]: got '0.2', expected seconds from 0"),
        (
            {"ttfts": [0.1, float("nan"), 0.3, 0.4, 0]},
            r"ttfts\[1\]: got nan, expected seconds from 0",
        ),
        ({"ttfts": [0.1, 0.0, 0.3, 0.4, 0]}, "completed: got 4, expected the 3 entries"),
        ({"ttfts": [0.1, 0.2, 0.3, 0.8, 0]}, "mean_ttft_ms: got 250.0, expected 350, as its req"),
        ({"output_lens": [5, 11, 1, 3.0, 0]}, r"output_lens\[3\]: got 3.0, expected a number of"),
        ({"start_times": [1.0]}, "start_times: got '1 entries', expected 5 as ttfts"),
        (
            {"mean_ttft_ms": LEFT_OUT, "avg_ttft_ms": 250.0},
            "mean_ttft_ms: got nothing, expected a value, as there is median_ttft_ms",
        ),
        ({"median_tpot_ms": float("inf")}, "median_tpot_ms: got inf, expected a finite"),
        ({"median_tpot_ms": None}, "median_tpot_ms: got None, expected a finite"),
    ],
)
def test_wrong_results(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, changes)


def test_wrong_files(tmp_path: Path) -> None:
    path = write_bench(tmp_path / "bench.json")
    config = TruthConfig(vllm_bench=path)
    path.write_text(path.read_text()[:-10])
    with pytest.raises(InputError, match=r"bench.json: line 1, column .*expected valid JSON"):
        load_truth(config, tmp_path)
    path.write_text("[]")
    with pytest.raises(InputError, match=r"bench.json: file: got \[\], expected an object"):
        load_truth(config, tmp_path)
    path.write_text("{}")
    with pytest.raises(InputError, match=r"bench.json: num_prompts: got nothing"):
        load_truth(config, tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"bench.json: file: got nothing, expected an existing"):
        load_truth(config, tmp_path)


def test_nothing_measured(tmp_path: Path) -> None:
    stated = [name for name in bench_data() if name.endswith("_ms")]
    with pytest.raises(InputError, match=r"mean_ttft_ms: got nothing, expected a metric of vllm"):
        load(tmp_path, dict.fromkeys((*DETAILS, *stated), LEFT_OUT))


def test_its_own_requests_match_also_where_one_failed(tmp_path: Path) -> None:
    """The second of five failed: those after it are known by their place in the file."""
    errors = ["", "gone", "", "", ""]
    data = bench_data()
    ttfts = [*data["ttfts"][:1], 0.0, *data["ttfts"][2:4], 0.1]
    outputs = [data["output_lens"][0], 0, *data["output_lens"][2:4], 1]
    itls = [data["itls"][0], [], *data["itls"][2:4], []]
    means = {
        f"{s}_{m}_ms": LEFT_OUT for s in ("mean", "median", "p99", "std") for m in METRICS.values()
    }
    path = write_bench(
        tmp_path / "bench.json",
        {
            **means,
            "errors": errors,
            "ttfts": ttfts,
            "output_lens": outputs,
            "itls": itls,
            "total_output_tokens": sum(outputs),
        },
    )
    point = make_point(workload={"vllm_bench": {"path": str(path), "drop_failed": True}})
    truth = load_truth(TruthConfig(vllm_bench=path), tmp_path)
    found = compare(simulate(point), truth).requests
    assert found is not None
    assert (found.matched, found.matched_by, found.unmatched_truth) == (4, "id", 1)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ttfts": [10**400, 0.1, 0.1, 0.1, 0.0]}, r"ttfts\[0\]"),
        ({"start_times": [1.0, 2.0, 1e308, 3.0, 4.0]}, r"start_times\[2\]"),
        ({"total_input_tokens": 10**400}, "total_input_tokens"),
    ],
)
def test_numbers_beyond_all_bounds(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        load(tmp_path, changes)


def test_json_of_endless_levels(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(InputError, match="expected JSON of few levels"):
        load_truth(TruthConfig(vllm_bench=path), tmp_path)
