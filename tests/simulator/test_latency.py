"""Step durations: against a naive reading of the same files, and rule by rule."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import typeof

from profiles.errors import InputError
from profiles.llmservingsim import load_bundle
from profiles.routing import Routing
from simulator.core import latency as core
from simulator.core.jit import JIT
from simulator.step_tables import ModeTimes, layers_ns, linear_law, new_outside, step_tables
from tests.profiles.bundles import REFERENCE, ROOT, needs_reference, write_variant
from tests.simulator.naive_latency import NaiveLatency, random_batches
from tests.simulator.step_times import step_times

LIMITS = {"num_layers": 3, "max_num_batched_tokens": 128, "max_num_seqs": 32}


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "store"))


def make_latency(tmp_path: Path, **options):
    variant_options = options.pop("variant", {})
    folder = write_variant(tmp_path, **variant_options)
    return folder, step_tables(load_bundle(folder), **{**LIMITS, **options})


def one(latency, *batch: int) -> tuple[int, np.recarray]:
    times, outside = step_times(latency, np.array([batch], np.int64))
    return int(times[0]), outside


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("unfitted", ["zero", "pooled"])
def test_equals_naive_reading(tmp_path: Path, seed: int, unfitted: str) -> None:
    folder, latency = make_latency(tmp_path, variant={"seed": seed}, unfitted_alpha=unfitted)
    naive = NaiveLatency(folder, 1, 3, unfitted)
    batches = random_batches(300 if JIT else 60, seed, tokens=90, seqs=20, kv=1200)
    times, _ = step_times(latency, batches)
    assert times.tolist() == [naive.step(batch) for batch in batches]


@needs_reference
@pytest.mark.parametrize("unfitted", ["zero", "pooled"])
@pytest.mark.parametrize(("card", "tp"), [("RTX4090", 1), ("RTXPRO6000", 1), ("RTXPRO6000", 2)])
def test_equals_naive_reading_of_measured_cards(card: str, tp: int, unfitted: str) -> None:
    folder = REFERENCE / f"perf/{card}/meta-llama/Llama-3.1-8B/bf16"
    latency = step_tables(
        load_bundle(folder, tp),
        num_layers=32,
        max_num_batched_tokens=4096,
        max_num_seqs=512,
        unfitted_alpha=unfitted,
    )
    naive = NaiveLatency(folder, tp, 32, unfitted)
    batches = random_batches(2000 if JIT else 100, tp, tokens=3000, seqs=320, kv=20000)
    times, _ = step_times(latency, batches)
    assert times.tolist() == [naive.step(batch) for batch in batches]


@needs_reference
def test_fit_that_is_not_enabled_is_not_used() -> None:
    root = REFERENCE / "perf"
    rtx4090 = load_bundle(root / "RTX4090/meta-llama/Llama-3.1-8B/bf16")
    assert (rtx4090.source / "tp1/skew_fit.csv").is_file()
    assert rtx4090.skew is None
    assert load_bundle(root / "RTXPRO6000/meta-llama/Llama-3.1-8B/bf16").skew is not None


@pytest.mark.skipif(not JIT, reason="compares compiled code with the same code uncompiled")
def test_compiled_equals_uncompiled(tmp_path: Path) -> None:
    folder = write_variant(tmp_path, seed=3)
    answers = []
    for jit in ("1", "0"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulator.step_times", str(folder), "7", "300"],
            cwd=ROOT,
            env={**os.environ, "SERVESWEEP_JIT": jit},
            check=True,
            capture_output=True,
            text=True,
        )
        answers.append(json.loads(done.stdout))
    assert [answer.pop("jit") for answer in answers] == [True, False]
    assert answers[0] == answers[1]
    assert sum(record[0] + record[1] for record in answers[0]["outside"]) > 100


@pytest.mark.skipif(not JIT, reason="needs compiled code")
def test_every_law_has_the_same_compiled_type(tmp_path: Path) -> None:
    _, tables = make_latency(tmp_path)
    _, without_fit = make_latency(tmp_path, variant={"skew_fit": {"enabled": False}})
    linear = linear_law(1000, 10, 1, 100)
    assert typeof(tables) == typeof(without_fit) == typeof(linear)
    assert typeof(new_outside(tables)) == typeof(new_outside(linear))
    assert not any(array.flags.writeable for latency in (tables, linear) for array in latency)


def test_linear_law() -> None:
    latency = linear_law(7000, 11, 3, 500)
    # one chunk of 20 after 30, decodes holding 5 and 9: 20 + 30 + 14 + 2 kv tokens
    assert one(latency, 22, 3, 20, 30, 2, 14, 9, 5)[0] == 7000 + 11 * 22 + 3 * 66 + 500 * 3
    assert one(latency, 1, 1, 0, 0, 1, 0, 0, 0)[0] == 7000 + 11 + 3 + 500
    time, outside = one(latency, 10**6, 10**5, 0, 0, 10**5, 10**12, 10**9, 0)
    assert time == 7000 + 11 * 10**6 + 3 * (10**12 + 10**5) + 500 * 10**5
    assert not outside.above.any()
    assert one(linear_law(-5000, 0, 0, 0), 1, 1, 0, 0, 1, 0, 0, 0)[0] == 1


def test_execution_modes_and_padding(tmp_path: Path) -> None:
    sizes = (1, 2, 4, 8, 24)
    modes = ModeTimes(full_graph=-300, piecewise=4000, eager=70000)
    folder, plain = make_latency(tmp_path)
    _, padded = make_latency(tmp_path, capture_sizes=sizes)
    _, unpadded = make_latency(
        tmp_path, capture_sizes=sizes, mode_ns=modes, pad_to_capture_size=False
    )
    naive = NaiveLatency(folder, 1, 3, "zero")
    decode = (5, 5, 0, 0, 5, 500, 100, 100)
    mixed = (21, 6, 16, 0, 5, 500, 100, 100)
    large = (45, 6, 40, 0, 5, 500, 100, 100)
    for batch, size, added in ((decode, 8, -300), (mixed, 24, 4000), (large, 45, 70000)):
        time = naive.step(batch)
        assert one(plain, *batch)[0] == time
        assert one(padded, *batch)[0] == naive.step(batch, dense_tokens=size)
        assert one(unpadded, *batch)[0] == time + added
    assert padded.padded_tokens[:10].tolist() == [1, 1, 2, 4, 4, 8, 8, 8, 8, 24]
    assert padded.padded_tokens[24:26].tolist() == [24, 25]
    _, off = make_latency(tmp_path, mode_ns=modes)
    assert one(off, *decode)[0] == naive.step(decode) + 70000  # without graphs all run eager


def test_capture_sizes_above_the_token_budget_are_not_captured(tmp_path: Path) -> None:
    modes = ModeTimes(eager=1)
    _, latency = make_latency(tmp_path, capture_sizes=(8, 200), mode_ns=modes)
    assert latency.params[0].max_capture_size == 8
    assert latency.padded_tokens[9] == 9


def test_lookups_outside_are_counted_once_a_batch_and_axis(tmp_path: Path) -> None:
    _, latency = make_latency(tmp_path)
    names = list(core.OUTSIDE_NAMES)

    def found(*batches):
        _, outside = step_times(latency, np.array(batches, np.int64))
        return {
            name: tuple(int(record[field]) for field in ("below", "above", "lowest", "highest"))
            for name, record in zip(names, outside, strict=True)
            if record.below or record.above
        }

    assert found((5, 5, 0, 0, 5, 500, 100, 100)) == {}
    assert found((0, 0, 0, 0, 0, 0, 0, 0), (1, 1, 1, 0, 0, 0, 0, 0)).keys() == {"dense/tokens"} | {
        "per_sequence/sequences"
    }
    # 100 and 120 tokens: above the 96 of the dense layers and the 64 of a chunk
    outside = found((100, 1, 100, 5, 0, 0, 0, 0), (120, 1, 120, 5, 0, 0, 0, 0))
    assert outside["dense/tokens"] == (0, 2, 1, 120)
    assert outside["attention/prefill_chunk"] == (0, 2, 0, 120)
    assert "attention/n_decode" not in outside
    assert "attention/kv_decode" not in outside
    # 20 decodes: above the 12 sequences and the 16 decodes, and both lookups for skew too long
    outside = found((20, 20, 0, 0, 20, 20 * 2000, 5000, 1), (20, 20, 0, 0, 20, 20, 1, 1))
    assert outside["per_sequence/sequences"] == (0, 2, 1, 20)
    assert outside["attention/n_decode"] == (0, 2, 0, 20)
    assert outside["attention/kv_decode"][:2] == (1, 1)
    assert outside["attention/kv_decode"][2:] == (1, 5000)
    assert "attention/prefill_chunk" not in outside
    assert "attention/kv_prefill" not in outside


def test_mean_length_is_what_is_counted_without_a_fit(tmp_path: Path) -> None:
    _, latency = make_latency(tmp_path, variant={"skew_fit": {"enabled": False}})
    _, outside = one(latency, 4, 4, 0, 0, 4, 4 * 40, 10**6, 1)
    assert outside.above[core.ATTENTION_KV_DECODE] == 0


def test_experts_are_read_at_those_that_are_awake(tmp_path: Path) -> None:
    """2 of 4 experts a token: 1 token wakes 2, 2 tokens 3, 4 tokens 3.75."""
    folder = write_variant(tmp_path, architecture="mixtral")
    rows = "tokens,activated_experts,time_us\n1,2,3.5\n4,2,10\n4,4,18\n"
    (folder / "tp1/moe.csv").write_text(rows)
    bundle = load_bundle(folder)
    with pytest.raises(InputError, match="routing: got None"):
        step_tables(bundle, **LIMITS)
    with_experts = step_tables(bundle, routing=Routing(4, 2), **LIMITS).tokens_ns
    without = layers_ns(
        bundle.dense,
        bundle.architecture.once("dense"),
        bundle.architecture.block("dense"),
        LIMITS["num_layers"],
        np.arange(LIMITS["max_num_batched_tokens"] + 1),
    ).sum(axis=1)
    block_ns = (with_experts - without) // LIMITS["num_layers"]
    two_awake = 3500 + (10_000 - 3500) / 3  # 2 tokens, between 1 and 4
    assert block_ns[1] == 3500
    assert block_ns[2] == round((two_awake + 18_000) / 2)
    assert block_ns[4] == 17000
