"""LLMServingSim's clusters, read in place: the ends of its own runs of the same ten requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import InputError
from simulator import simulate
from simulator.cluster.llmservingsim import load_cluster
from simulator.config import Point, point_from_mapping
from tests.profiles.bundles import REFERENCE, needs_reference

pytestmark = needs_reference


def scenario(name: str, **changes: Any) -> Point:
    """As LLMServingSim simulates it: synchronous, every block handed out, experts balanced."""
    path = REFERENCE / "cluster" / f"{name}.json"
    model = json.loads(path.read_text())["nodes"][0]["instances"][0]["model_name"]
    data = {
        "model": {"hf_config": str(REFERENCE / f"models/{model}.json"), "name": model},
        "card": {"name": "follows the file", "memory_gib": 1},
        "engine": {"max_num_seqs": 128, "async_scheduling": False, "null_block": False},
        "workload": {"jsonl": str(REFERENCE / "workloads/example_trace.jsonl")},
        "profile": {"bundles": str(REFERENCE / "perf")},
        "expert_routing": {"policy": "balanced"},
        "cluster": {"llmservingsim": str(path)},
    }
    return point_from_mapping(data | changes, Path(), "point")


@pytest.mark.parametrize(
    ("name", "theirs", "tolerance"),
    [
        ("single_node_single_instance", 1_663_996_645, 0),
        ("single_node_memory_instance", 1_663_996_645, 0),
        ("single_node_multi_instance", 1_664_893_230, 0),
        ("dual_node_multi_instance", 1_668_890_844, 0),
        ("single_node_4_instance_2TP", 1_430_842_636, 0),
        ("single_node_dp_instance", 1_444_267_327, 0.001),
        ("single_node_moe_single_instance", 1_945_309_759, 0.001),
        ("single_node_moe_multi_instance", 1_751_598_749, 0.0001),
        ("single_node_cxl_instance", 12_112_686_177, 0),
        # Theirs sends a step's output over the network as well.
        ("single_node_pd_instance", 1_661_784_496, 0.0001),
        ("single_node_moe_pd_instance", 2_081_236_210, 0.0001),
        ("single_node_pd_per_instance_config", 1_661_784_496, 0.0001),
    ],
)
def test_ends(name: str, theirs: int, tolerance: float) -> None:
    assert abs(end_ns(name) / theirs - 1) <= tolerance


@pytest.mark.parametrize(
    ("name", "theirs", "at_vllms_rules", "tolerance"),
    [
        # It forms a batch whenever the first stage is idle; vLLM waits for the oldest batch once it
        # has found nothing to schedule.
        ("single_node_pp_instance", 1_770_875_992, 1_673_919_051, 0),
        ("single_node_tp_pp_instance", 1_469_287_243, 1_448_857_628, 0),
        ("single_node_moe_pp_instance", 1_801_188_850, 1_947_746_969, 0.0002),
    ],
)
def test_ends_where_llmservingsim_does_not_follow_vllm(
    name: str, theirs: int, at_vllms_rules: int, tolerance: float
) -> None:
    """`at_vllms_rules` is its program with the rule named here changed."""
    ours = end_ns(name)
    assert abs(ours / at_vllms_rules - 1) <= tolerance
    assert abs(ours / theirs - 1) > 0.01


def test_experts_of_two_replicas_run_the_tokens_of_both() -> None:
    """Its program with the tokens of both replicas run and exchanged, over the link as it stands."""
    name = "single_node_moe_dp_ep_instance"
    read = load_cluster(REFERENCE / f"cluster/{name}.json", scenario(name).model, 2048)
    cluster = read.model_dump(exclude_unset=True)
    for instance in cluster["instances"]:
        instance["links"]["data"]["bandwidth_gibps"] = 16.0
    assert abs(end_ns(name, cluster=cluster) / 1_904_888_479 - 1) <= 0.0001


def end_ns(name: str, **changes: Any) -> int:
    result = simulate(scenario(name, **changes))
    assert result.summary["requests"]["finished"] == 10
    end: int = result.summary["end_ns"]
    return end


def test_embedding_is_where_vllm_adds_up_too() -> None:
    """With the all-reduce that LLMServingSim leaves out a step is longer by one of 65."""
    links = {"tensor": {"bandwidth_gibps": 16.0, "latency_ns": 20000.0}}
    theirs = scenario("single_node_4_instance_2TP")
    ours = scenario(
        "single_node_4_instance_2TP",
        cluster={"instances": [{"count": 4}]},
        engine={
            "max_num_seqs": 128,
            "async_scheduling": False,
            "null_block": False,
            "tensor_parallel_size": 2,
        },
        card={"name": "RTXPRO6000", "memory_gib": 96, "memory_bandwidth_gbps": 1597.0},
        links=links,
    )
    ends = [simulate(point).summary["latency"]["tpot_ms"]["mean"] for point in (theirs, ours)]
    assert ends[1] - ends[0] == pytest.approx(0.0405, abs=0.002)


def test_replicas_exchange_the_tokens_of_one() -> None:
    """As theirs do; vLLM's exchange those of both, so their link counts twice."""
    name = "single_node_moe_dp_ep_instance"
    model = scenario(name).model
    links = load_cluster(REFERENCE / f"cluster/{name}.json", model, 2048).instances[0].links
    assert links["tensor"] == {"bandwidth_gibps": 16.0, "latency_ns": 20000.0}
    assert links["data"] == {"bandwidth_gibps": 32.0, "latency_ns": 20000.0}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rtx4090_tp2_instance", "tp: got 2, expected one of 1"),
    ],
)
def test_what_is_not_simulated_is_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        simulate(scenario(name))


def test_another_model_is_refused() -> None:
    point = scenario("single_node_moe_single_instance")
    llama = scenario("single_node_single_instance").model
    with pytest.raises(InputError, match="model_name"):
        simulate(point.model_copy(update={"model": llama}))
