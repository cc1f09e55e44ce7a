"""Measured steps as a profile: which batches, what is written, and what the simulator makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from orchestrator.recording.grid import chunks_of, groups_of, powers
from orchestrator.recording.measure import from_rounds, write_profile
from profiles.errors import InputError
from profiles.llmservingsim import load_bundle
from simulator import load_point, simulate
from simulator.step_tables import step_tables
from tests.orchestrator.recording_make import recording_of, write_point

RAW = {"versions": {"vllm": "0.0"}, "hardware": {"cores": 1}, "load_average": [0.5]}


def law(chunk: int, n: int, before: int, kv: int) -> int:
    """Linear in every axis, so that interpolation is exact wherever it is asked."""
    return 1_000_000 + 2000 * chunk + 50_000 * n + 30 * before + 7 * n * kv


def rounds_of(recording: Any, noise: tuple[int, ...]) -> list[list[dict[str, int]]]:
    made = []
    for extra in noise:
        steps = []
        for group in groups_of(recording.prepared):
            alone = [(0, 0)] if group.n_decode else []
            for chunk, before in [*alone, *group.chunks]:
                shape = (chunk, group.n_decode, before, group.kv_decode)
                steps.append(
                    {"prefill_chunk": chunk, "n_decode": group.n_decode, "kv_prefill": before}
                    | {"kv_decode": group.kv_decode, "ns": law(*shape) + extra, "host_ns": 1000}
                )
        made.append(steps)
    return made


def test_powers_end_with_the_last() -> None:
    assert powers(1, 12, 2) == [1, 2, 4, 8, 12]
    assert powers(16, 16, 4) == [16]
    assert powers(16, 7, 4) == [7]


def test_every_group_fits_into_the_engine(tmp_path: Path) -> None:
    recording = recording_of(write_point(tmp_path))
    settings = recording.prepared.settings
    groups = groups_of(recording.prepared)
    assert {group.n_decode for group in groups} == {0, 1, 2, 4, 8}
    assert all(not group.chunks for group in groups if group.n_decode == settings.max_num_seqs)
    pool = settings.num_usable_blocks * settings.block_size
    for group in groups:
        for chunk, before in group.chunks:
            tokens = group.n_decode * group.kv_decode + chunk + before
            assert tokens <= pool
            assert chunk + group.n_decode <= settings.max_num_batched_tokens
            assert before + group.n_decode <= settings.max_num_batched_tokens
            assert chunk + before < recording.prepared.max_model_len


def test_chunks_stand_alone_and_behind_others() -> None:
    assert list(chunks_of(64, 200, 1000)) == [(16, 0), (16, 64), (64, 0), (64, 64)]
    assert list(chunks_of(15, 200, 1000)) == []
    assert list(chunks_of(16, 200, 16)) == [(16, 0)]


def test_a_model_too_short_to_measure(tmp_path: Path) -> None:
    path = write_point(tmp_path, engine__max_model_len=90, workload__generate__prompt_tokens={
        "fixed": 20}, workload__generate__output_tokens={"fixed": 3},
        workload__generate__shared_prefix=None)  # fmt: skip
    with pytest.raises(InputError, match="max_model_len: got 90, expected more than 96"):
        groups_of(recording_of(path).prepared)


def test_medians_of_rounds() -> None:
    shape = {"prefill_chunk": 0, "n_decode": 1, "kv_prefill": 0, "kv_decode": 32}
    rounds = [[{**shape, "ns": ns, "host_ns": 1}] for ns in (100, 300, 110)]
    measured = from_rounds(rounds)
    assert measured.shapes.tolist() == [[0, 1, 0, 32]]
    assert measured.medians.tolist() == [110]
    assert measured.quartile_spread_pct.tolist() == pytest.approx([100 * 100 / 110])
    assert "1 batches, 3 rounds" in measured.overview()


def test_the_simulator_takes_the_measured_times(tmp_path: Path) -> None:
    recording = recording_of(write_point(tmp_path))
    out = tmp_path / "profile"
    measured = from_rounds(rounds_of(recording, (-500, 0, 900)))
    write_profile(recording, measured, RAW, out, "servesweep profiles measure ...")
    bundle = load_bundle(out)
    assert (bundle.architecture.name, bundle.model) == ("step", "test/model")
    # A step runs once, however many layers the model has.
    settings = recording.prepared.settings
    latency = step_tables(
        bundle,
        num_layers=32,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
    )
    assert latency.params.num_layers.tolist() == [1]
    assert latency.tokens_ns.max() == latency.sequences_ns.max() == 0
    data = yaml.safe_load((tmp_path / "point.yaml").read_text())
    data["profile"] = {"bundle": "profile"}
    (tmp_path / "replay.yaml").write_text(yaml.safe_dump(data))
    result = simulate(load_point(tmp_path / "replay.yaml"), steps=True)
    assert result.steps is not None
    rows = result.steps.to_pylist()
    alone = [row for row in rows if row["prefill_tokens"] == 0 and row["num_decodes"] in (1, 2, 4)]
    assert len(alone) > 20
    for row in alone:
        n, kv = row["num_decodes"], row["kv_decode"] // row["num_decodes"]
        expected = law(0, n, 0, max(kv, 32))  # clamped below the shortest
        assert row["end_ns"] - row["start_ns"] == pytest.approx(expected, abs=2)


def test_steps_of_another_model_are_refused(tmp_path: Path) -> None:
    recording = recording_of(write_point(tmp_path))
    measured = from_rounds(rounds_of(recording, (0, 0, 0)))
    write_profile(recording, measured, RAW, tmp_path / "profile", "")
    data = yaml.safe_load((tmp_path / "point.yaml").read_text())
    data["profile"] = {"bundle": "profile"}
    data["model"]["name"] = "other"
    (tmp_path / "point.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(InputError, match="got 'steps of test/model', expected steps measured with"):
        simulate(load_point(tmp_path / "point.yaml"))


def test_the_spread_is_written_beside_the_times(tmp_path: Path) -> None:
    recording = recording_of(write_point(tmp_path))
    measured = from_rounds(rounds_of(recording, (0, 100, 200)))
    write_profile(recording, measured, RAW, tmp_path / "profile", "the command")
    header, first, *rest = (tmp_path / "profile" / "spread.csv").read_text().splitlines()
    assert header.startswith("prefill_chunk,n_decode,kv_prefill,kv_decode,median_us,smallest_us")
    assert len(rest) + 1 == len(measured.shapes)
    median, smallest, largest = map(float, first.split(",")[4:7])
    assert np.allclose([median - smallest, largest - median], 0.1)
    meta = yaml.safe_load((tmp_path / "profile" / "meta.yaml").read_text())
    assert meta["measured"]["command"] == "the command"
    assert meta["measured"]["scheduler_ms_per_step"] == 0.001
