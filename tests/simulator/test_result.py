"""What a run leaves: tables and summary against the run itself, and files that appear whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simulator import Result, simulate
from simulator.result import steps_table, timeseries_table
from simulator.step_tables import linear_law
from tests.profiles.bundles import write_variant
from tests.simulator.make import Ask, play
from tests.simulator.point import make_point
from tests.simulator.points import PRESSURE

SECOND = 1_000_000_000
FILES = ["requests.parquet", "timeseries.parquet", "steps.parquet", "summary.json"]


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(make_point(**PRESSURE), steps=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class TestFiles:
    def test_written_and_read_again(self, result: Result, tmp_path: Path) -> None:
        folder = tmp_path / "some" / "where"
        assert [path.name for path in result.write(folder)] == FILES
        assert sorted(contents(folder)) == sorted(FILES)
        for name in ("requests", "timeseries", "steps"):
            assert pq.read_table(folder / f"{name}.parquet").equals(getattr(result, name))

        def no_constant(name: str) -> NoReturn:
            raise AssertionError(f"{name} is not JSON")

        text = (folder / "summary.json").read_text()
        assert json.loads(text, parse_constant=no_constant) == result.summary

    def test_twice_the_same_bytes(self, result: Result, tmp_path: Path) -> None:
        result.write(tmp_path / "a")
        result.write(tmp_path / "b")
        again = simulate(make_point(**PRESSURE), steps=True)
        again.write(tmp_path / "c")
        assert contents(tmp_path / "a") == contents(tmp_path / "b") == contents(tmp_path / "c")

    def test_steps_of_an_earlier_run_do_not_stay(self, result: Result, tmp_path: Path) -> None:
        result.write(tmp_path)
        simulate(make_point(**PRESSURE)).write(tmp_path)
        assert "steps.parquet" not in contents(tmp_path)

    @pytest.mark.parametrize("failing", [0, 1, 2])
    def test_a_file_that_cannot_be_written_is_not_there(
        self,
        result: Result,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        failing: int,
    ) -> None:
        write, calls = pq.write_table, []

        def breaks_off(table: pa.Table, path: Path, **options: Any) -> None:
            if len(calls) == failing:
                Path(path).write_bytes(b"PAR1 and then the disk was full")
                raise OSError("no space left on device")
            calls.append(path)
            write(table, path, **options)

        monkeypatch.setattr(pq, "write_table", breaks_off)
        with pytest.raises(OSError, match="no space"):
            result.write(tmp_path)
        assert sorted(contents(tmp_path)) == sorted(FILES[:failing])

    def test_an_older_file_survives_a_failure(
        self, result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result.write(tmp_path)
        before = contents(tmp_path)

        def fails(table: pa.Table, path: Path, **_: Any) -> None:
            Path(path).write_bytes(b"half")
            raise KeyboardInterrupt

        monkeypatch.setattr(pq, "write_table", fails)
        with pytest.raises(KeyboardInterrupt):
            simulate(make_point()).write(tmp_path)
        assert contents(tmp_path) == before


class TestSteps:
    def test_are_the_logged_events(self) -> None:
        asks = tuple(Ask(20 + 7 * r, 9, arrival=2500 * r) for r in range(12))
        played = play(*asks, num_gpu_blocks=9, max_num_batched_tokens=48, max_num_seqs=8)
        rows = steps_table(played.engine, played.workload).to_pylist()
        assert [row["step"] for row in rows] == list(range(len(played.steps)))
        seen: set[str] = set()
        for row, line in zip(rows, played.steps, strict=True):
            words = []
            for name, count in zip(row["requests"], row["scheduled_tokens"], strict=True):
                new = "+" if name not in seen else ""
                resumed = "^" if f"^{name}:{count}" in line else ""
                words.append(f"{new or resumed}{name}:{count}")
                seen.add(name)
            words += [f"-{name}" for name in sorted(row["preempted"])]
            words += [f"done:{name}" for name in row["finished"]]
            assert " ".join(words) == line
        assert sum(len(row["preempted"]) for row in rows) == played.counters.num_preemptions > 0

    def test_lists_agree_with_the_counts(self, result: Result) -> None:
        assert result.steps is not None
        for row in result.steps.to_pylist():
            size = row["num_requests"]
            lists = ("requests", "scheduled_tokens", "computed_tokens", "new_blocks")
            assert [len(row[name]) for name in lists] == [size] * 4
            assert sum(row["scheduled_tokens"]) == row["num_tokens"]
            assert len(row["preempted"]) == row["num_preempted"]
            assert len(row["finished"]) == row["num_finished"]
            chunks = [n for n in row["scheduled_tokens"] if n > 1]
            assert sum(chunks) == row["prefill_tokens"]
            assert size - len(chunks) == row["num_decodes"]

    def test_only_where_asked_for(self) -> None:
        assert simulate(make_point()).steps is None

    def test_of_nothing(self) -> None:
        played = play(Ask(5000, 1))
        assert steps_table(played.engine, played.workload).num_rows == 0


class TestTimeseries:
    def test_by_hand(self) -> None:
        """Steps of 0.4 s: tokens at 0.4, 0.8, 1.2; then nothing until a request at 3.0."""
        asks = (Ask(30, 3), Ask(20, 1, arrival=3 * SECOND))
        played = play(*asks, latency=linear_law(400_000_000, 0, 0, 0))
        assert timeseries_table(played.engine).to_pylist() == [
            {
                "t_s": 1,
                "prompt_throughput": 30.0,
                "generation_throughput": 2.0,
                "running": 1,
                "waiting": 0,
                "kv_cache_usage": pytest.approx(0.2),
            },
            {
                "t_s": 2,
                "prompt_throughput": 0.0,
                "generation_throughput": 1.0,
                "running": 0,
                "waiting": 0,
                "kv_cache_usage": 0.0,
            },
            {
                "t_s": 3,
                "prompt_throughput": 0.0,
                "generation_throughput": 0.0,
                "running": 0,
                "waiting": 0,
                "kv_cache_usage": 0.0,
            },
            {
                "t_s": 4,
                "prompt_throughput": 20.0,
                "generation_throughput": 1.0,
                "running": 0,
                "waiting": 0,
                "kv_cache_usage": 0.0,
            },
        ]

    def test_a_second_includes_its_end(self) -> None:
        played = play(Ask(30, 2), latency=linear_law(SECOND, 0, 0, 0))
        assert timeseries_table(played.engine)["generation_throughput"].to_pylist() == [1.0, 1.0]

    def test_before_the_first_step_ended_nothing_is_known(self) -> None:
        played = play(Ask(30, 1), latency=linear_law(5 * SECOND // 2, 0, 0, 0))
        table = timeseries_table(played.engine)
        assert table["running"].to_pylist() == [0, 0, 0]
        assert table["generation_throughput"].to_pylist() == [0.0, 0.0, 1.0]

    def test_sums_are_the_totals(self, result: Result) -> None:
        series, summary = result.timeseries, result.summary
        generated = series["generation_throughput"].to_numpy().sum()
        assert generated == summary["generated_tokens"] == summary["workload"]["output_tokens"]
        assert series["prompt_throughput"].to_numpy().sum() == summary["workload"]["prompt_tokens"]
        assert series.num_rows == -(-summary["end_ns"] // SECOND)
        usage = series["kv_cache_usage"].to_numpy()
        assert usage.min() >= 0
        assert usage.max() <= 1


class TestSummary:
    def test_counts(self, result: Result) -> None:
        summary, requests = result.summary, result.requests
        assert summary["requests"]["finished"] == requests.num_rows == 60
        assert summary["preemptions"] == requests["preemptions"].to_numpy().sum() > 0
        preempted = (requests["preemptions"].to_numpy() > 0).sum()
        assert summary["requests"]["preempted"] == preempted
        assert summary["steps"] == result.steps.num_rows
        assert summary["kv"]["usable_blocks"] == 23
        assert summary["kv"]["peak_blocks_in_use"] == 23

    def test_throughput_is_from_the_first_arrival_to_the_last_token(self, result: Result) -> None:
        arrival = result.requests["arrival_ns"].to_numpy()
        last = result.requests["last_token_ns"].to_numpy()
        makespan_ns = int(last.max() - arrival.min())
        summary = result.summary
        assert summary["makespan_ms"] == makespan_ns / 1e6
        assert summary["end_ns"] == last.max()
        tokens = summary["generated_tokens"]
        rates = summary["throughput"]
        assert rates["output_tokens_per_s"] == pytest.approx(tokens * 1e9 / makespan_ns)
        assert rates["requests_per_s"] == pytest.approx(60e9 / makespan_ns)

    def test_hit_rate_counts_first_admissions_once(self, result: Result) -> None:
        requests, cache = result.requests, result.summary["prefix_cache"]
        hit = requests["hit_tokens_gpu"].to_numpy().sum()
        looked_up = requests["prompt_tokens"].to_numpy().sum()
        assert cache["hit_tokens"] == hit > 0
        assert cache["hit_rate"] == hit / looked_up
        # vLLM's own counters have every retry of a blocked admission as well.
        assert cache["vllm"]["queries"] > looked_up

    def test_without_cache(self) -> None:
        cache = simulate(make_point(engine__enable_prefix_caching=False)).summary["prefix_cache"]
        assert cache["hit_rate"] == cache["hit_tokens"] == cache["looked_up_tokens"] == 0

    def test_everybody_refused(self, tmp_path: Path) -> None:
        point = make_point(
            engine__max_model_len=8,
            workload__generate__prompt_tokens={"fixed": 30},
            workload__generate__num_requests=25,
        )
        result = simulate(point, steps=True)
        result.write(tmp_path)
        summary = json.loads((tmp_path / "summary.json").read_text())
        assert summary["requests"]["refused"] == 25
        assert len(summary["requests"]["refusals"]) == 20
        assert summary["latency"] == {}
        assert summary["end_ns"] is summary["makespan_ms"] is None
        assert summary["steps"] == summary["generated_tokens"] == 0
        assert result.timeseries.num_rows == 0
        # A workload's arrivals are known, whatever became of the requests.
        assert result.requests["arrival_ns"].null_count == 0
        assert result.requests["first_token_ns"].null_count == 25

    def test_refused_ones_do_not_count_in_the_latencies(self) -> None:
        generate = {
            "num_requests": 40,
            "arrivals": {"rate": 20.0},
            "prompt_tokens": {"uniform": [5, 200]},
            "output_tokens": {"fixed": 8},
        }
        result = simulate(make_point(engine__max_model_len=100, workload={"generate": generate}))
        summary = result.summary
        assert 0 < summary["requests"]["refused"] < 40
        ttft = result.requests.filter(result.requests["finished"])
        waits = ttft["first_token_ns"].to_numpy() - ttft["arrival_ns"].to_numpy()
        assert summary["latency"]["ttft_ms"]["mean"] == pytest.approx(np.mean(waits) / 1e6)

    def test_capacity_is_inert_where_nothing_was_reused_or_waited_for(self) -> None:
        changes = {"workload__generate__num_requests": 10}
        point = make_point(engine__num_gpu_blocks_override=5000, **changes)
        assert simulate(point).summary["kv"]["capacity_inert"]
        larger = make_point(engine__num_gpu_blocks_override=9000, **changes)
        assert simulate(point).requests.equals(simulate(larger).requests)
        assert not simulate(make_point(**PRESSURE)).summary["kv"]["capacity_inert"]

    def test_capacity_is_not_inert_where_it_refused_somebody(self) -> None:
        asks = {"num_requests": 1, "arrivals": {"rate": 1.0}, "prompt_tokens": {"fixed": 300}}
        point = make_point(engine__num_gpu_blocks_override=5, workload={"generate": asks})
        summary = simulate(point).summary
        assert summary["requests"]["refused"] == 1
        assert not summary["kv"]["capacity_inert"]

    def test_a_pool_below_max_model_len_is_noted(self) -> None:
        notes = simulate(make_point(engine__num_gpu_blocks_override=24)).summary["notes"]
        assert any("vLLM would not start" in note for note in notes)
        assert simulate(make_point()).summary["notes"] == []


def test_lookups_outside_the_measured_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured up to chunks of 64 tokens after at most 1000 others; nothing is silent."""
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "store"))
    prompt = tmp_path / "long.jsonl"
    prompt.write_text('{"input_toks": 4000, "output_toks": 1, "arrival_time_ns": 0}\n')
    point = make_point(
        model__max_position_embeddings=5000,
        engine__num_gpu_blocks_override=400,
        engine__max_num_batched_tokens=80,
        workload={"jsonl": str(prompt)},
        profile={"bundle": str(write_variant(tmp_path))},
    )
    found = simulate(point).summary["outside_measured_grid"]
    assert found["attention/prefill_chunk"] == {"above": 50, "highest": 80, "last_sample": 64}
    history = found["attention/kv_prefill"]
    assert history["highest"] == 3920
    assert history["last_sample"] <= 1000
    assert history["above"] >= sum(80 * k > 1000 for k in range(50))
    assert "attention/n_decode" not in found


def test_checking_invariants_changes_nothing() -> None:
    for policy in ("fcfs", "priority"):
        point = {**PRESSURE, "engine__policy": policy}
        plain = simulate(make_point(**point))
        checked = simulate(make_point(**point, check_invariants=True))
        assert checked.summary == plain.summary
        assert checked.requests.equals(plain.requests)
