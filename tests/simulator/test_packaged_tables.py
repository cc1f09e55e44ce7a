"""Points on tables of the package, on several ranks, and where their time comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profiles.errors import InputError
from profiles.provenance import ASSUMED, MEASURED, NAMES
from simulator import Point, point_from_mapping, prepare, simulate
from simulator.build import build_engine
from simulator.progress import run_to_end
from simulator.simulation import run
from simulator.time_sources import TimeSources, rows_below, time_by_source
from tests.profiles.bundles import needs_package, write_variant
from tests.profiles.models import LLAMA_8B, MIXTRAL
from tests.simulator.point import POINT, point_data


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "store"))


def point_on(profile: dict[str, Any], model: Any = LLAMA_8B, **engine: Any) -> Point:
    data = {
        "model": model.model_dump(mode="json"),
        "engine": {"max_num_seqs": 16, "max_num_batched_tokens": 256, **engine},
        "workload": POINT["workload"],
        "profile": profile,
    }
    return point_from_mapping(data, Path(), "point")


def measured_point(tmp_path: Path, **profile: Any) -> Point:
    folder = write_variant(tmp_path, tps=(1, 2))
    data = point_data(profile={"bundle": str(folder), **profile})
    return point_from_mapping(data, Path(), "point")


@needs_package
def test_a_point_has_the_card_of_its_tables() -> None:
    point = point_on({"aiconfigurator": {"system": "h100_sxm"}})
    assert point.card.memory_bytes == 80 * 2**30
    result = simulate(point)
    assert result.summary["requests"]["finished"] == 60
    shares = result.summary["time_by_source"]
    assert list(shares) == list(NAMES)
    assert sum(shares.values()) == pytest.approx(1, abs=1e-12)
    assert 0.1 < shares["measured"] < shares["interpolated"] + shares["measured"] < 0.95
    assert simulate(point).summary == result.summary


@needs_package
@pytest.mark.parametrize("model", [LLAMA_8B, MIXTRAL], ids=["dense", "experts"])
def test_more_ranks_are_faster_and_hold_more(model: Any) -> None:
    ready = [
        prepare(point_on({"aiconfigurator": {"system": "h200_sxm"}}, model, tensor_parallel_size=n))
        for n in (1, 2, 4)
    ]
    blocks = [each.capacity.num_gpu_blocks for each in ready]
    assert blocks[0] < blocks[1] / 2 < blocks[2] / 4
    ends = [run(each).summary["end_ns"] for each in ready]
    step_ns = [int(each.latency.tokens_ns[256]) for each in ready]
    assert step_ns[0] > step_ns[1] > step_ns[2]
    assert ends[0] >= ends[1] >= ends[2]


@needs_package
def test_a_tier_holds_the_bytes_of_all_ranks() -> None:
    """Where KV heads are repeated, 16 ranks of an 8-head model, twice the bytes are kept."""
    tier = {"prefix_storage": "cpu", "tiers": {"cpu": {"capacity_gib": 1, "bandwidth_gbps": 10}}}
    of_one = 2 * 8 * 128 * 32 * 2
    for ranks, expected in ((1, of_one), (2, of_one), (8, of_one)):
        point = point_on(
            {"aiconfigurator": {"system": "h100_sxm"}}, tensor_parallel_size=ranks
        ).model_copy(update=point_tiers(tier))
        (settings,) = prepare(point).settings.tiers
        assert settings is not None
        assert settings.bytes_per_token == expected


def point_tiers(tier: dict[str, Any]) -> dict[str, Any]:
    data = point_data(**tier)
    point = point_from_mapping(data, Path(), "point")
    return {"prefix_storage": point.prefix_storage, "tiers": point.tiers}


def test_a_bundle_without_an_all_reduce_is_refused_on_ranks(tmp_path: Path) -> None:
    point = measured_point(tmp_path)
    on_two = point.model_copy(
        update={"engine": point.engine.model_copy(update={"tensor_parallel_size": 2})}
    )
    with pytest.raises(
        InputError, match=r"tensor_parallel_size: got 2, expected 1, or .*all_reduce"
    ):
        prepare(on_two)


@needs_package
def test_an_all_reduce_may_be_given(tmp_path: Path) -> None:
    """Two a block of two blocks and one after the embedding: five of a 4.2 us call at 8 tokens."""
    point = measured_point(tmp_path, all_reduce={"system": "h100_sxm"})
    on_two = point.model_copy(
        update={"engine": point.engine.model_copy(update={"tensor_parallel_size": 2})}
    )
    from profiles.llmservingsim import load_bundle
    from simulator.step_tables import step_tables

    limits = {"num_layers": 2, "max_num_batched_tokens": 96, "max_num_seqs": 8}
    assert point.profile.bundle is not None
    alone = step_tables(load_bundle(point.profile.bundle, 2), **limits)  # type: ignore[arg-type]
    added = prepare(on_two).latency.tokens_ns[8] - alone.tokens_ns[8]
    assert added == pytest.approx(5 * 4200, rel=0.05)


def test_whole_experts_are_refused_on_ranks(tmp_path: Path) -> None:
    folder = write_variant(tmp_path, tps=(1, 2), architecture="mixtral")
    (folder / "tp1/moe.csv").write_text("tokens,activated_experts,time_us\n1,2,3.5\n")
    experts = {"model_type": "mixtral", "num_experts": 4, "num_experts_per_tok": 2}
    data = point_data(profile={"bundle": str(folder)}, engine__tensor_parallel_size=2)
    data["model"] |= experts
    point = point_from_mapping(data, Path(), "point")
    with pytest.raises(InputError, match=r"moe.csv of .* holds whole experts"):
        prepare(point)


def test_a_measured_bundle_is_measured_and_a_law_assumed(tmp_path: Path) -> None:
    measured = simulate(measured_point(tmp_path)).summary["time_by_source"]
    assert measured == {"measured": 1.0, "interpolated": 0.0, "derived": 0.0, "assumed": 0.0}
    law = simulate(point_from_mapping(point_data(), Path(), "point")).summary["time_by_source"]
    assert law == {"measured": 0.0, "interpolated": 0.0, "derived": 0.0, "assumed": 1.0}


def test_shares_add_up_to_the_time_of_the_steps(tmp_path: Path) -> None:
    """Layers are measured, the rows of attention assumed: the share is attention's, step by step."""
    ready = prepare(measured_point(tmp_path))
    engine, _ = build_engine(
        ready.workload, ready.hashes, ready.settings, ready.latency, ready.arrival_ns
    )
    engine = run_to_end(engine, ready.workload)
    steps = engine.log.steps[: engine.queues.counters[0].num_steps]
    steps = steps[steps.num_tokens > 0]
    layers = ready.sources.tokens_ns[steps.num_tokens].sum()
    layers += ready.sources.sequences_ns[steps.num_requests].sum()
    whole = int((steps.end_ns - steps.start_ns).sum())
    assumed = np.full(len(ready.sources.attention), ASSUMED, np.uint8)
    sources = TimeSources(ready.sources.tokens_ns, ready.sources.sequences_ns, assumed)
    shares = time_by_source(engine, sources)
    assert shares["assumed"] == pytest.approx((whole - layers) / whole, abs=1e-12)
    assert shares["measured"] == pytest.approx(layers / whole, abs=1e-12)
    # One row alone marked: the time of the steps that it lies below.
    rows = rows_below(engine.latency, steps)
    marked = np.full(len(assumed), MEASURED, np.uint8)
    marked[rows[0]] = ASSUMED
    one = time_by_source(engine, TimeSources(sources.tokens_ns, sources.sequences_ns, marked))
    of_row = (steps.end_ns - steps.start_ns - ready.latency.tokens_ns[steps.num_tokens])[
        rows == rows[0]
    ] - ready.latency.sequences_ns[steps.num_requests[rows == rows[0]]]
    assert one["assumed"] == pytest.approx(int(of_row.sum()) / whole, abs=1e-12)


@needs_package
def test_a_card_by_its_data_sheet_says_so() -> None:
    profile = {"datasheet": {"nearest": "h100_sxm"}}
    card = {"name": "H100-PCIe", "memory_gib": 80, "memory_bandwidth_gbps": 2000}
    data = point_data(profile=profile, card=card | {"bfloat16_tflops": 756})
    data["model"] = LLAMA_8B.model_dump(mode="json")
    summary = simulate(point_from_mapping(data, Path(), "point")).summary
    assert summary["time_by_source"]["derived"] == 1.0
    assert summary["notes"][0].startswith("the card H100-PCIe is modelled: times of h100_sxm")
    with pytest.raises(InputError, match=r"card.bfloat16_tflops: got None, expected a value from"):
        point_from_mapping({**data, "card": card}, Path(), "point")


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ({"aiconfigurator": {}}, "profile.aiconfigurator.system: got nothing"),
        ({"aiconfigurator": {"system": "h100"}}, "profile.aiconfigurator.system: got 'h100'"),
        ({"aiconfigurator": {"system": "h100_sxm"}, "linear": {"base_ns": 1}}, "profile: got"),
        ({"linear": {"base_ns": 1}, "all_reduce": {"system": "h100_sxm"}},
         "profile.all_reduce: got 'h100_sxm', expected nothing beside linear"),
    ],
)  # fmt: skip
@needs_package
def test_wrong_profiles(profile: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        point_on(profile)
    assert said in str(caught.value)


@needs_package
@pytest.mark.parametrize(
    ("card", "system", "noted"),
    [
        ("L40S", "l40s", False),
        ("H100", "h100_sxm", False),
        ("NVIDIA H100-SXM", "h100_sxm", False),
        ("RTXPRO6000", "rtx_pro_6000_server", False),
        ("RTX4090", "l40s", True),
        ("H200", "h100_sxm", True),
    ],
)
def test_tables_of_another_card_are_noted(card: str, system: str, noted: bool) -> None:
    point = point_on({"aiconfigurator": {"system": system}})
    point = point.model_copy(update={"card": point.card.model_copy(update={"name": card})})
    said = [note for note in prepare(point).notes if "the tables are of" in note]
    assert said == ([f"the tables are of {system}, the card is {card}"] if noted else [])


@needs_package
def test_an_instance_with_another_card_needs_its_tables() -> None:
    data = {
        "model": LLAMA_8B.model_dump(mode="json"),
        "workload": POINT["workload"],
        "profile": {"aiconfigurator": {"system": "h100_sxm"}},
        "cluster": {"instances": [{}, {"card": {"name": "H200", "memory_gib": 141}}]},
    }
    result = simulate(point_from_mapping(data, Path(), "point"))
    assert "the tables are of h100_sxm, the card is H200" in result.summary["notes"]
