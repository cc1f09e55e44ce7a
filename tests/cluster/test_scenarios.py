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
        ("single_node_multi_instance", 1_664_893_230, 0),
        ("single_node_dp_instance", 1_444_267_327, 0.001),
        ("single_node_moe_single_instance", 1_945_309_759, 0.001),
        ("single_node_memory_instance", 1_663_996_645, 0),
        ("single_node_cxl_instance", 12_112_686_177, 0),
        # Theirs sends a step's output over the network as well.
        ("single_node_pd_instance", 1_661_784_496, 0.0001),
        ("single_node_moe_pd_instance", 2_081_236_210, 0.0001),
        ("single_node_pd_per_instance_config", 1_661_784_496, 0.0001),
        # Theirs looks for work every millisecond while a stage is idle, which it is between the
        # tokens of a lone request; without that the pipeline is faster.
        ("single_node_tp_pp_instance", 1_469_287_243, 0.015),
    ],
)
def test_ends(name: str, theirs: int, tolerance: float) -> None:
    result = simulate(scenario(name))
    assert result.summary["requests"]["finished"] == 10
    assert abs(result.summary["end_ns"] / theirs - 1) <= tolerance


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
    links = load_cluster(REFERENCE / f"cluster/{name}.json", model).instances[0].links
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
