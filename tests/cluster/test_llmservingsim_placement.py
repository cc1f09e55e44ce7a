"""Placement rules of LLMServingSim's cluster files, and what they take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import InputError
from simulator import point_from_mapping, simulate
from simulator.cluster.llmservingsim import load_cluster
from simulator.config import Point
from simulator.simulation import prepare
from tests.cluster.test_scenarios import scenario
from tests.profiles.bundles import needs_reference
from tests.simulator.point import make_point, point_data

CPU = {"mem_size": 512, "mem_bw": 256, "mem_latency": 0}
CXL = {"mem_size": 1024, "mem_bw": 60, "mem_latency": 250, "num_devices": 2}
# Ends of the ten requests of LLMServingSim's own run, in the order of the workload.
CXL_ENDS = [
    7_940_428_159,
    12_112_686_177,
    8_278_709_389,
    1_963_985_771,
    11_435_976_963,
    7_714_906_207,
    10_195_627_842,
    1_851_221_734,
    7_489_379_625,
    3_993_727_493,
]


def cluster_file(folder: Path, placement: dict[str, Any], **changes: Any) -> Path:
    instance = {
        "model_name": "test/model",
        "hardware": "TestCard",
        "npu_mem": {"mem_size": 1, "mem_bw": 1000, "mem_latency": 0},
        "tp_size": 1,
        "placement": placement,
    }
    node = {"num_instances": 1, "cpu_mem": CPU, "instances": [instance]} | changes.pop("node", {})
    file = {"num_nodes": 1, "link_bw": 16, "link_latency": 0, "nodes": [node], "cxl_mem": CXL}
    path = folder / "cluster.json"
    path.write_text(json.dumps(file | changes))
    return path


def read(folder: Path, placement: dict[str, Any], **changes: Any) -> dict[str, Any]:
    path = cluster_file(folder, placement, **changes)
    (instance,) = load_cluster(path, make_point().model, 2048).instances
    return instance.placement


@needs_reference
def test_every_request_ends_when_theirs_does() -> None:
    assert simulate(scenario("single_node_cxl_instance")).requests["last_token_ns"].to_pylist() == (
        CXL_ENDS
    )


@needs_reference
def test_weights_elsewhere_are_room_for_blocks() -> None:
    """LLMServingSim keeps their room; without it there are as many as on the whole card."""
    on_device = prepare(scenario("single_node_memory_instance")).capacity
    elsewhere = prepare(scenario("single_node_cxl_instance")).capacity
    assert elsewhere.weight_bytes == 0
    assert elsewhere.kv_bytes - on_device.kv_bytes == on_device.weight_bytes


def test_all_on_the_npu_is_no_placement(tmp_path: Path) -> None:
    rule = {"weights": "npu", "kv_loc": "NPU:3", "kv_evict_loc": "cpu"}
    given = {"default": rule, "blocks": [{"blocks": "0-1", **rule}], "layers": {"lm_head": rule}}
    assert read(tmp_path, given) == {}
    assert read(tmp_path, {}) == {}


def test_layers_win_over_blocks_and_later_blocks_over_earlier_ones(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "default": {"weights": "cxl"},
            "blocks": [
                {
                    "blocks": "1-0,7,x",
                    "weights": "CPU",
                },  # counts down; what is not there is left out
                {"blocks": "1", "weights": "cxl:1"},
            ],
            "layers": {"o_proj": {"weights": "npu"}, "lm_head": {"kv_loc": "npu"}},
        },
    )
    assert found["weights"] == {
        "default": "cxl:0",
        "blocks": {"0": "cpu", "1": "cxl:1"},
        "layers": {"o_proj": "device", "lm_head": "cxl:0"},  # the default's, as it says none
    }
    assert found["kv_cache"] == "device"
    assert found["weight_reads"] == "prefetched"
    assert found["memories"] == {
        "cpu": {"bandwidth_gbps": 256.0, "latency_ns": 0, "capacity_gib": 512.0},
        "cxl:0": {"bandwidth_gbps": 60.0, "latency_ns": 250, "capacity_gib": 1024.0},
        "cxl:1": {"bandwidth_gbps": 60.0, "latency_ns": 250, "capacity_gib": 1024.0},
    }


def test_a_kv_cache_elsewhere_is_simulated(tmp_path: Path) -> None:
    assert read(tmp_path, {"default": {"kv_loc": "cxl:1"}})["kv_cache"] == "cxl:1"
    ends = [
        simulate(clustered(tmp_path, {"default": {"kv_loc": where}})).summary["end_ns"]
        for where in ("npu", "cxl:1")
    ]
    assert ends[0] < ends[1]


def clustered(folder: Path, placement: dict[str, Any]) -> Point:
    path = cluster_file(folder, placement)
    return point_from_mapping(
        point_data(cluster={"llmservingsim": str(path)}), folder, "point.yaml"
    )


@pytest.mark.parametrize(
    ("placement", "changes", "message"),
    [
        ({"default": {"weights": "cxl:2"}}, {}, "weights: got 'cxl:2', expected npu or one of cpu"),
        ({"default": {"weights": "cxl:0"}}, {"cxl_mem": None}, "expected npu or one of cpu"),
        (
            {"default": {"kv_loc": "cpu"}},
            {"node": {"cpu_mem": {"mem_size": 9}}},
            "expected npu or one of cxl:0",
        ),
        ({"layers": {"lm_head": {"weights": "disk"}}}, {}, "got 'disk'"),
        ({"blocks": [{"blocks": "0", "kv_loc": "cpu"}]}, {}, "one place for all blocks"),
    ],
)
def test_places_that_are_not_there(
    tmp_path: Path, placement: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, placement, **changes)


@pytest.mark.parametrize(
    ("placement", "changes", "field"),
    [
        ({"default": "cpu"}, {}, "nodes[0].instances[0].placement.default"),
        ({"default": 1}, {}, "nodes[0].instances[0].placement.default"),
        ({"blocks": {"0-3": "cxl:0"}}, {}, "nodes[0].instances[0].placement.blocks"),
        ({"blocks": ["0-3"]}, {}, "nodes[0].instances[0].placement.blocks[0]"),
        ({"layers": ["lm_head"]}, {}, "nodes[0].instances[0].placement.layers"),
        ({"layers": {"lm_head": None}}, {}, "nodes[0].instances[0].placement.layers.lm_head"),
        ({}, {"nodes": []}, "nodes"),
        ({}, {"node": {"instances": [], "num_instances": 1}}, "nodes[0].instances"),
        ({}, {"link_bw": 0}, "link_bw"),
        ({}, {"cxl_mem": CXL | {"num_devices": 10**12}}, "cxl_mem.num_devices"),
        ({}, {"node": {"cpu_mem": CPU | {"pim_config": "DDR4"}}}, "nodes[0].cpu_mem.pim_config"),
    ],
)
def test_wrong_files_are_one_line(
    tmp_path: Path, placement: Any, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as told:
        read(tmp_path, placement, **changes)
    assert str(told.value).startswith(f"{tmp_path / 'cluster.json'}: {field}")


def test_errors_of_an_instance_name_its_file(tmp_path: Path) -> None:
    path = cluster_file(tmp_path, {})
    text = path.read_text().replace('"tp_size": 1', '"tp_size": 1, "block_size": "x"')
    path.write_text(text)
    point = point_from_mapping(point_data(cluster={"llmservingsim": str(path)}), tmp_path, "point")
    with pytest.raises(InputError) as told:
        prepare(point)
    assert str(told.value).startswith(f"{path}, nodes: instance 0: engine.block_size: got 'x'")


@pytest.mark.parametrize("roles", [("prefill", "prefill"), ("decode",)])
def test_who_computes_prompts_needs_who_decodes(tmp_path: Path, roles: tuple[str, ...]) -> None:
    path = cluster_file(tmp_path, {})
    (instance,) = json.loads(path.read_text())["nodes"][0]["instances"]
    nodes = {"instances": [instance | {"pd_type": role} for role in roles]}
    path = cluster_file(tmp_path, {}, node=nodes | {"num_instances": len(roles)})
    with pytest.raises(InputError, match=f"instances: got 'role {roles[0]}', expected a "):
        load_cluster(path, make_point().model, 2048)


def test_no_limit_is_the_most_there_can_be(tmp_path: Path) -> None:
    path = cluster_file(tmp_path, {})
    (instance,) = json.loads(path.read_text())["nodes"][0]["instances"]
    found = []
    for limits in ((0, 0), (0, None), (None, 0), (7, 64)):
        names = ("max_num_seqs", "max_num_batched_tokens")
        given = {n: limit for n, limit in zip(names, limits, strict=True) if limit is not None}
        path = cluster_file(tmp_path, {}, node={"instances": [instance | given]})
        (one,) = load_cluster(path, make_point().model, 96).instances
        found.append(tuple(one.engine.get(name) for name in names))
    longest = make_point().model.max_position_embeddings
    assert found == [(512, longest), (96, None), (None, longest), (7, 64)]
