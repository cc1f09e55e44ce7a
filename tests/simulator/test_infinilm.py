"""InfiniLM's scheduler and its admissions, one rule at a time and on the checked workloads.

Steps are read as in test_scheduler.py: "+a:20" admits a with its whole prompt, "a:1" is a decode.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.admission import compiled_loops, engine_with
from benchmarks.manifests import FOLDER
from profiles.errors import InputError
from simulator import SimulationError, prepare, simulate
from simulator.build import ADMISSIONS as CODES
from simulator.build import EngineSettings, build_engine
from simulator.core import admission as rules
from simulator.core import state
from simulator.core.engine import advance
from simulator.core.state import Engine
from simulator.prefix import block_hashes
from simulator.progress import run_to_end
from simulator.step_tables import linear_law
from simulator.workloads.manifest import Manifest, load_manifest
from tests.simulator.core.calls import callable_from_python
from tests.simulator.make import STEP_NS, Ask, Played, make_workload, play
from tests.simulator.point import make_point

ADMISSIONS = ("legacy", "exact-scan", "incremental")
EXACT = ADMISSIONS[1:]
every_admission = pytest.mark.parametrize("admission", ADMISSIONS)


def infinilm(*asks: Ask, admission: str = "incremental", **changes: Any) -> Played:
    """Ten blocks of 16 tokens; no prefix caching unless asked."""
    settings = {"enable_prefix_caching": False, **changes}
    return play(*asks, engine="infinilm", admission=admission, **settings)


class TestBatches:
    @every_admission
    def test_prompts_go_first_and_alone(self, admission: str) -> None:
        """While b's prompt is computed a does not decode."""
        steps = infinilm(Ask(20, 4), Ask(30, 2, arrival=STEP_NS + 1), admission=admission).steps
        assert steps == ["+a:20", "a:1", "+b:30", "a:1 b:1 done:b", "a:1 done:a"]

    def test_as_many_prompts_as_the_budget_takes(self) -> None:
        played = infinilm(Ask(20, 1), Ask(10, 1), Ask(5, 1), max_num_batched_tokens=30)
        assert played.steps == ["+a:20 +b:10 done:a done:b", "+c:5 done:c"]

    def test_who_is_over_the_budget_goes_to_the_end_of_the_queue(self) -> None:
        played = infinilm(Ask(20, 1), Ask(20, 1), Ask(5, 1), max_num_batched_tokens=30)
        assert played.steps == ["+a:20 done:a", "+c:5 +b:20 done:c done:b"]

    def test_a_prompt_over_the_budget_runs_alone(self) -> None:
        played = infinilm(Ask(5, 1), Ask(50, 1), Ask(5, 1), max_num_batched_tokens=30)
        assert played.steps == ["+a:5 done:a", "+c:5 done:c", "+b:50 done:b"]

    def test_no_prompt_is_cut(self) -> None:
        """long_prefill_token_threshold and chunked prefill are vLLM's."""
        played = infinilm(Ask(50, 1), long_prefill_token_threshold=10, max_num_batched_tokens=20)
        assert played.steps == ["+a:50 done:a"]

    def test_a_full_batch_leaves_the_others_for_the_next(self) -> None:
        played = infinilm(Ask(5, 1), Ask(5, 1), Ask(5, 1), max_num_seqs=2)
        assert played.steps == ["+a:5 +b:5 done:a done:b", "+c:5 done:c"]

    def test_more_run_than_a_batch_holds_and_take_turns(self) -> None:
        played = infinilm(Ask(5, 3), Ask(5, 3), Ask(5, 3), max_num_seqs=2)
        assert played.steps == [
            "+a:5 +b:5",
            "+c:5",
            "a:1 b:1",
            "c:1 a:1 done:a",
            "b:1 c:1 done:b done:c",
        ]

    def test_one_batch_at_a_time(self) -> None:
        """The next is formed when the one before has ended, and costs its host time in full."""
        played = infinilm(Ask(5, 3), host_ns_per_step=70)
        assert np.diff(played.logged_steps.formed_ns).tolist() == [STEP_NS + 70] * 2


class TestAdmission:
    """a holds 2 blocks and will never need a third; b and c want 2 each."""

    ASKS = (Ask(17, 10), Ask(17, 10), Ask(17, 10))

    def test_legacy_reserves_what_is_there_already(self) -> None:
        """a reserves 1 of the 2 blocks it leaves free, so b waits for a's end."""
        played = infinilm(*self.ASKS[:2], admission="legacy", num_gpu_blocks=5, max_num_seqs=1)
        assert played.steps[:2] == ["+a:17", "a:1"]
        assert played.steps[9:11] == ["a:1 done:a", "+b:17"]
        assert not any("^" in step or "-" in step for step in played.steps)

    @pytest.mark.parametrize("admission", EXACT)
    def test_exact_reserves_what_is_missing(self, admission: str) -> None:
        played = infinilm(*self.ASKS, admission=admission, num_gpu_blocks=5, max_num_seqs=1)
        assert played.steps[:3] == ["+a:17", "+b:17", "a:1"]

    @every_admission
    def test_within_a_batch_all_reserve_exactly(self, admission: str) -> None:
        played = infinilm(*self.ASKS, admission=admission, num_gpu_blocks=5)
        assert played.steps[0] == "+a:17 +b:17"

    @every_admission
    def test_blocks_to_come_are_kept_free(self, admission: str) -> None:
        """a grows from 1 block to 3; b would fit into what is free now, but not to a's end."""
        asks = (Ask(16, 20), Ask(17, 2, arrival=1))
        played = infinilm(*asks, admission=admission, num_gpu_blocks=5)
        assert played.steps[:2] == ["+a:16", "a:1"]
        assert "+b:17" in played.steps[20]
        assert infinilm(*asks, admission=admission, num_gpu_blocks=6).steps[1] == "+b:17"

    @pytest.mark.parametrize("admission", EXACT)
    def test_the_next_step_asks_another_one(self, admission: str) -> None:
        """b does not fit and goes behind c, which does."""
        asks = (Ask(16, 20), Ask(17, 2, arrival=1), Ask(5, 2, arrival=2))
        steps = infinilm(*asks, admission=admission, num_gpu_blocks=5).steps
        assert steps[:4] == ["+a:16", "a:1", "+c:5", "a:1 c:1 done:c"]

    @every_admission
    def test_max_tokens_counts_not_the_output(self, admission: str) -> None:
        """a ends after 2 tokens, but may ask for 32: 3 blocks of life."""
        asks = (Ask(16, 2, most=32), Ask(16, 2, arrival=1))
        played = infinilm(*asks, admission=admission, num_gpu_blocks=5)
        assert played.steps == ["+a:16", "a:1 done:a", "+b:16", "b:1 done:b"]
        assert infinilm(*asks, admission=admission, num_gpu_blocks=6).steps[1] == "+b:16"

    @every_admission
    def test_what_never_fits_is_refused(self, admission: str) -> None:
        """The last token has a slot in the reservation; vLLM's does not need it."""
        asks = (Ask(160, 1), Ask(5, 1, most=156), Ask(100, 60), Ask(5, 1))
        played = infinilm(*asks, admission=admission)
        assert played.refused == {
            0: "needs 11 blocks, the pool has 10",
            1: "needs 11 blocks, the pool has 10",
        }
        assert played.steps[0] == "+c:100"
        assert played.of("c").status == played.of("d").status == state.FINISHED
        assert not play(Ask(160, 1)).refused

    @every_admission
    def test_a_life_ends_at_max_model_len(self, admission: str) -> None:
        played = infinilm(Ask(100, 20, most=5000), admission=admission, max_model_len=160)
        assert not played.refused
        assert played.counters.peak_reserved_decode_blocks == 3


class TestPrefixCaching:
    def test_blocks_are_hit_once_they_are_computed(self) -> None:
        """b is in a's batch and computes everything; c comes later and hits both full blocks."""
        same = [1] * 40
        asks = (Ask(40, 1, tokens=same), Ask(40, 1, tokens=same), Ask(40, 1, 5, tokens=same))
        steps = infinilm(*asks, enable_prefix_caching=True).steps
        assert steps == ["+a:40 +b:40 done:a done:b", "+c:8 done:c"]

    def test_hits_in_the_free_queue_are_not_free_twice(self) -> None:
        """c's two hits are free blocks: 8 others are left, of which running b holds 3, to come 2.

        Then c needs 5 - 2: just enough, and not with a life of one block more.
        """
        same = [1] * 40

        def played(output: int) -> Played:
            asks = (
                Ask(40, 1, tokens=same),
                Ask(48, 30, arrival=STEP_NS),
                Ask(40, output, arrival=STEP_NS + 1, tokens=same),
            )
            return infinilm(*asks, enable_prefix_caching=True)

        assert played(40).steps[2] == "+c:8"
        assert played(41).steps[2] == "b:1"


def at_wave_2(manifest: Manifest, admission: str) -> tuple[Engine, int]:
    """Wave 1 in one batch, computed; wave 2 has just come. And what is reserved, as admission counts."""
    settings = EngineSettings(
        num_gpu_blocks=manifest.num_blocks,
        max_model_len=2048,
        block_size=manifest.block_size,
        null_block=False,
        max_num_seqs=len(manifest.requests),
        max_num_batched_tokens=1 << 20,
        enable_prefix_caching=False,
        engine="infinilm",
        admission=admission,
    )
    workload = manifest.workload()
    assert workload.wave is not None
    arrival = np.where(workload.wave == 0, 0, STEP_NS)
    hashes = block_hashes(workload, settings.block_size)
    engine, refused = build_engine(
        workload, hashes, settings, linear_law(STEP_NS, 0, 0, 0), arrival
    )
    assert not refused
    advance(engine, STEP_NS + 1, 1)
    advance(engine, STEP_NS + 1, 0)
    counters = engine.queues.counters[0]
    assert counters.num_generated_tokens == counters.num_running == len(manifest.wave(1))
    reserved = callable_from_python(rules.num_reserved_blocks)(engine, counters.num_running)
    return engine, int(reserved)


def admitted_at_once(engine: Engine) -> int:
    before = int(engine.queues.counters[0].num_running)
    advance(engine, state.FOREVER, 1)
    return int(engine.queues.counters[0].num_running) - before


# admission -> (reserved by wave 1, requests of wave 2 admitted at once)
CHECKED = {
    "fixed": (480, {"legacy": (256, 53), "exact-scan": (160, 91), "incremental": (160, 91)}),
    "aligned": (128, {"legacy": (128, 32), "exact-scan": (128, 32), "incremental": (128, 32)}),
    "mixed": (240, {"legacy": (128, 27), "exact-scan": (80, 46), "incremental": (80, 46)}),
    "boundary": (256, {"legacy": (128, 0), "exact-scan": (0, 64), "incremental": (0, 64)}),
}


@every_admission
@pytest.mark.parametrize("name", CHECKED)
def test_checked_workloads(name: str, admission: str) -> None:
    manifest = load_manifest(FOLDER / f"{name}.json")
    held, expected = CHECKED[name]
    engine, reserved = at_wave_2(manifest, admission)
    pool = engine.kv.pool[0]
    assert pool.num_usable_blocks - pool.num_free_blocks == held
    assert (reserved, admitted_at_once(engine)) == expected[admission]
    assert engine.queues.counters[0].num_reserved_decode_blocks == reserved_exactly(engine)
    done = run_to_end(engine, manifest.workload())
    assert done.kv.pool[0].num_free_blocks == manifest.num_blocks
    assert done.queues.counters[0].num_reserved_decode_blocks == 0


def reserved_exactly(engine: Engine) -> int:
    running = engine.queues.running[: engine.queues.counters[0].num_running]
    life = engine.kv.infos.num_life_tokens[running]
    blocks = -(-life // int(engine.kv.pool[0].block_size))
    return int((blocks - engine.kv.requests.num_blocks[running]).sum())


def test_the_microbenchmark_takes_the_same_manifest() -> None:
    """256 running are the fixed workload; its loop accepts what the pool allows."""
    manifest = load_manifest(FOLDER / "fixed.json")
    engine, first, count = engine_with(manifest, 256)
    checks, reserved = compiled_loops()
    assert (first, count) == (256, 128)
    assert engine.kv.pool[0].num_usable_blocks == 864
    assert engine.kv.pool[0].num_free_blocks == 864 - 480
    for admission, expected in (("legacy", 256), ("exact-scan", 160), ("incremental", 160)):
        engine.settings.admission = CODES[admission]
        assert reserved(engine) == expected
        assert checks(engine, first, count, 2 * count) == 2 * count
    assert engine.queues.counters[0].num_running == 256


INFINILM: dict[str, Any] = {"engine__engine": "infinilm", "engine__num_gpu_blocks_override": 60}


class TestPoint:
    def test_summary(self) -> None:
        point = make_point(**INFINILM, engine__admission="legacy", workload__max_tokens=60)
        kv = simulate(point).summary["kv"]
        assert kv["num_reserved_decode_blocks"] == 0
        assert kv["peak_reserved_decode_blocks"] > 0
        assert kv["usable_blocks"] == kv["num_gpu_blocks"] == 60
        assert "num_reserved_decode_blocks" not in simulate(make_point()).summary["kv"]

    def test_runs_without_asking_ahead(self) -> None:
        summary = simulate(make_point(**INFINILM, engine__admission="incremental")).summary
        assert summary["engine"]["async_scheduling"] is False
        assert summary["notes"] == []

    def test_settings_without_effect_are_said(self) -> None:
        changes = {
            "engine__admission": "incremental",
            "engine__async_scheduling": True,
            "engine__scheduler_reserve_full_isl": False,
            "engine__null_block": False,
        }
        ours = simulate(make_point(**INFINILM, **changes))
        assert ours.summary["notes"] == [
            "without effect, because engine is infinilm: async_scheduling True, "
            "scheduler_reserve_full_isl False"
        ]
        plain = simulate(make_point(**INFINILM, engine__admission="incremental"))
        assert ours.requests.equals(plain.requests)

    def test_enough_blocks_give_the_same_result(self) -> None:
        """The pool must hold reservations too, not only what was used."""
        changes = {"engine__admission": "exact-scan", "workload__max_tokens": 400}
        large = INFINILM | changes | {"engine__num_gpu_blocks_override": 3000}
        run = simulate(make_point(**large))
        kv = run.summary["kv"]
        assert kv["capacity_inert"] and kv["enough_blocks"] > kv["distinct_blocks_used"]
        enough = large | {"engine__num_gpu_blocks_override": kv["enough_blocks"]}
        assert simulate(make_point(**enough)).requests.equals(run.requests)
        fewer = large | {"engine__num_gpu_blocks_override": kv["enough_blocks"] - 1}
        assert simulate(make_point(**fewer)).summary["kv"]["failed_allocations"] > 0

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"engine__engine": "sglang"}, "engine.engine: got 'sglang', expected 'vllm' or"),
            ({"engine__engine": "infinilm"}, "engine.admission: got None, expected legacy, exact"),
            (
                {"engine__admission": "legacy"},
                "engine.admission: got 'legacy', expected nothing, or",
            ),
            (
                {"engine__engine": "infinilm", "engine__admission": "exact"},
                "engine.admission: got 'exact', expected 'legacy', 'exact-scan' or 'incremental'",
            ),
            (
                {
                    "engine__engine": "infinilm",
                    "engine__admission": "legacy",
                    "engine__policy": "priority",
                },
                "engine.policy: got 'priority', expected fcfs",
            ),
            (
                {
                    "engine__engine": "infinilm",
                    "engine__admission": "legacy",
                    "prefix_storage": "cpu",
                    "tiers": {"cpu": {"capacity_gib": 1.0, "bandwidth_gbps": 1.0}},
                },
                "prefix_storage: got 'cpu', expected none, because engine.engine is infinilm",
            ),
        ],
    )
    def test_wrong_points(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError) as caught:
            make_point(**changes)
        assert message in str(caught.value)

    def test_a_prompt_beyond_the_budget_has_a_step_time(self, tmp_path: Path) -> None:
        """The tables reach as far as the longest prompt."""
        from tests.profiles.bundles import write_variant

        bundle = {"bundle": str(write_variant(tmp_path))}
        point = make_point(
            **INFINILM,
            engine__admission="legacy",
            engine__max_num_batched_tokens=8,
            engine__enable_prefix_caching=False,
            profile=bundle,
        )
        result = simulate(point, steps=True)
        longest = max(result.steps["num_tokens"].to_pylist())
        assert longest == max(result.requests["prompt_tokens"].to_pylist()) > 8


def test_waves_that_never_come_are_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wave that cannot be served has no successor; a sweep says so before anything runs."""

    def stuck(*_: object) -> None:
        raise SimulationError("no progress after step 7")

    monkeypatch.setattr("simulator.waves.run_to_end", stuck)
    workload = {"manifest": str(FOLDER / "fixed.json")}
    point = make_point(
        engine__max_model_len=2048, model__max_position_embeddings=2048, workload=workload
    )
    with pytest.raises(InputError, match=r"workload: got 'manifest fixed', .* no progress after"):
        prepare(point)


def test_waves_wait_for_first_tokens() -> None:
    """simulator/waves.py: a wave arrives with the last first token of those before it."""
    from simulator.waves import wave_arrivals

    asks = (
        Ask(20, 3, wave=0),
        Ask(20, 1, wave=0),
        Ask(5000, 1, wave=0),  # refused: nobody waits for it
        Ask(5, 2, wave=1),
        Ask(5, 1, wave=1, arrival=7),
        Ask(5, 1, wave=2),
    )
    workload = make_workload(*asks)
    settings = EngineSettings(
        num_gpu_blocks=11, max_model_len=1000, max_num_batched_tokens=30, max_num_seqs=30,
        engine="infinilm", admission="legacy", enable_prefix_caching=False,
    )  # fmt: skip
    hashes = block_hashes(workload, settings.block_size)
    arrival = wave_arrivals(workload, hashes, settings, linear_law(STEP_NS, 0, 0, 0))
    # a, then b; d and the first of a's decodes follow, e comes 7 ns later and is prefilled next.
    assert arrival.tolist() == [0, 0, 0, 2 * STEP_NS, 2 * STEP_NS + 7, 4 * STEP_NS]


def test_one_wave_is_a_workload_too(tmp_path: Path) -> None:
    fixed = load_manifest(FOLDER / "fixed.json")
    one = fixed.model_copy(update={"requests": fixed.wave(1)[:8]})
    path = tmp_path / "one.json"
    path.write_text(one.text())
    result = simulate(
        make_point(
            workload={"manifest": str(path)},
            engine={"block_size": 256, "num_gpu_blocks_override": 60},
            engine__engine="infinilm",
            engine__admission="incremental",
            engine__max_num_batched_tokens=8192,
            model__max_position_embeddings=4096,
        )
    )
    assert result.summary["requests"]["finished"] == 8
