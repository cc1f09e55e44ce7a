"""Instances behind a router: who serves whom, and that nothing is lost, doubled or late."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.manifests import FOLDER
from profiles.errors import InputError
from simulator import simulate
from simulator.progress import SimulationError
from simulator.result import Result
from tests.simulator.point import POINT, make_point

LINK = {"bandwidth_gibps": 16.0, "latency_ns": 20000.0}
CLOSED = {
    **POINT["workload"]["generate"],
    "arrivals": {"process": "closed_loop", "concurrency": 6},
}


def cluster(*instances: dict[str, Any], routing: dict[str, Any] | None = None, **more: Any) -> Any:
    config: dict[str, Any] = {"instances": list(instances)}
    if routing is not None:
        config["routing"] = routing
    return make_point(cluster=config, **more)


def column(result: Result, name: str) -> Any:
    return result.requests[name].to_numpy(zero_copy_only=False)


def test_one_instance_is_what_it_is_alone() -> None:
    alone, routed = simulate(make_point()), simulate(cluster({"count": 1}))
    names = list(alone.requests.column_names)
    assert routed.requests.select(names).equals(alone.requests)
    assert routed.timeseries.equals(alone.timeseries)
    assert routed.summary["latency"] == alone.summary["latency"]
    assert set(column(routed, "instance")) == {0}


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "random", "prefix_aware"])
@pytest.mark.parametrize("workload", [POINT["workload"]["generate"], CLOSED])
def test_everybody_is_served_once(policy: str, workload: dict[str, Any]) -> None:
    point = cluster(
        {"count": 2},
        {"count": 1, "engine": {"max_num_seqs": 2}},
        routing={"policy": policy},
        workload={"generate": workload},
        check_invariants=True,
    )
    result = simulate(point, steps=True)
    assert result.summary["requests"]["finished"] == 60
    assert result.steps is not None
    finished = Counter(r for step in result.steps["finished"].to_pylist() for r in step)
    assert set(finished.values()) == {1} and len(finished) == 60
    owners = dict(zip(column(result, "request_id"), column(result, "instance"), strict=True))
    for number, requests in zip(
        result.steps["instance"].to_pylist(), result.steps["requests"].to_pylist(), strict=True
    ):
        assert all(owners[r] == number for r in requests)
    assert sum(part["requests"] for part in result.summary["instances"]) == 60
    assert simulate(point, steps=True).requests.equals(result.requests)


def test_round_robin_takes_turns() -> None:
    result = simulate(cluster({"count": 3}, routing={"policy": "round_robin"}))
    by_arrival = np.argsort(column(result, "arrival_ns"), kind="stable")
    assert column(result, "instance")[by_arrival].tolist() == [i % 3 for i in range(60)]


def test_least_loaded_prefers_the_faster() -> None:
    slow = {"linear": {"base_ns": 70_000_000, "per_token_ns": 150_000}}
    point = cluster({"count": 1}, {"count": 1, "profile": slow})
    counts = [part["requests"] for part in simulate(point).summary["instances"]]
    assert counts[0] > 1.5 * counts[1] > 0


def test_prefixes_stay_together() -> None:
    """Two groups of prefixes and two instances: aware of them, the router finds more of them."""
    hits = {
        policy: simulate(cluster({"count": 2}, routing={"policy": policy})).summary["prefix_cache"]
        for policy in ("round_robin", "prefix_aware")
    }
    assert hits["prefix_aware"]["hit_tokens"] > hits["round_robin"]["hit_tokens"]


def test_the_next_call_comes_when_the_last_has_ended_wherever_it_ran() -> None:
    result = simulate(
        cluster({"count": 2}, routing={"policy": "round_robin"}, workload={"generate": CLOSED})
    )
    arrival, last = column(result, "arrival_ns"), column(result, "last_token_ns")
    assert (arrival[:6] == 0).all()
    assert (arrival[6:] == last[:-6]).all()
    owner = column(result, "instance")
    assert (owner[6:] != owner[:-6]).any()


def test_limits_hold_requests_at_the_router() -> None:
    limited = cluster({"count": 2, "max_in_flight": 1}, workload={"generate": CLOSED})
    result = simulate(limited)
    spans = sorted(
        zip(
            column(result, "queued_ns"),
            column(result, "last_token_ns"),
            column(result, "instance"),
            strict=True,
        )
    )
    for number in (0, 1):
        own = [span for span in spans if span[2] == number]
        assert len(own) > 10
        assert all(end <= start for (_, end, _), (start, _, _) in pairwise(own))
    assert result.summary["requests"]["finished"] == 60


def test_a_group_steps_together() -> None:
    point = cluster({"count": 2, "data_parallel_group": "A"}, check_invariants=True)
    result = simulate(point, steps=True)
    assert result.steps is not None
    steps = result.steps.to_pandas()
    ends = [steps[steps.instance == number].end_ns.tolist() for number in (0, 1)]
    assert ends[0] == ends[1]
    tokens = [steps[steps.instance == number].num_tokens.to_numpy() for number in (0, 1)]
    assert ((tokens[0] == 0) != (tokens[1] == 0)).any(), "one runs along without work"
    assert result.summary["requests"]["finished"] == 60


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"instances": []}, "cluster.instances", "either instances or llmservingsim"),
        ({"instances": [{"count": 0}]}, "cluster.instances[0].count", "greater than"),
        ({"instances": [{"count": 2000}]}, "cluster.instances[0].count", "1024"),
        (
            {"instances": [{}], "routing": {"policy": "random", "update_interval_ms": 100}},
            "cluster.routing.update_interval_ms",
            "policy least_loaded",
        ),
        (
            {"instances": [{}], "routing": {"policy": "custom"}},
            "cluster.routing.function",
            "module:name",
        ),
        (
            {"instances": [{}], "routing": {"policy": "custom", "function": "no.where:at_all"}},
            "cluster.routing.function",
            "can be imported",
        ),
        ({"instances": [{"engine": {"max_num_seq": 3}}]}, "engine.max_num_seq", "no such field"),
        ({"instances": [{"engine": {"block_size": 8}}]}, "engine.block_size", "the point's"),
        (
            {
                "instances": [
                    {"data_parallel_group": "A"},
                    {"data_parallel_group": "A", "engine": {"max_num_batched_tokens": 128}},
                ]
            },
            "cluster: instance 1: engine.max_num_batched_tokens",
            "data_parallel_group A",
        ),
        (
            {
                "instances": [
                    {"data_parallel_group": "A"},
                    {"data_parallel_group": "A", "engine": {"async_scheduling": False}},
                ]
            },
            "cluster: instance 1: engine.async_scheduling",
            "data_parallel_group A",
        ),
        (
            {
                "instances": [
                    {"data_parallel_group": "A"},
                    {"data_parallel_group": "A", "profile": {"linear": {"base_ns": 5}}},
                ]
            },
            "cluster: instance 1: profile",
            "data_parallel_group A",
        ),
        (
            {"instances": [{}], "routing": {"policy": "custom", "function": f"{__name__}_:one"}},
            "cluster.routing.function",
            "can be imported",
        ),
    ],
)
def test_wrong_clusters(changes: dict[str, Any], field: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(make_point(cluster=changes))
    assert caught.value.field == field
    assert expected in caught.value.expected


def first(_: int, instances: Any, __: int) -> int:
    return 0


def nowhere(_: int, instances: Any, __: int) -> int:
    return len(instances)


def failing(_: int, instances: Any, __: int) -> int:
    return int(instances[0].no_such_thing)


def numpy_index(_: int, instances: Any, __: int) -> Any:
    return np.int64(len(instances) - 1)


def test_a_router_of_ones_own() -> None:
    named = {"policy": "custom", "function": f"{__name__}:first"}
    result = simulate(cluster({"count": 3}, routing=named))
    assert set(column(result, "instance")) == {0}
    wrong = {"policy": "custom", "function": f"{__name__}:nowhere"}
    with pytest.raises(SimulationError, match="chose 3 of 3 instances"):
        simulate(cluster({"count": 3}, routing=wrong))
    last = {"policy": "custom", "function": f"{__name__}:numpy_index"}
    result = simulate(cluster({"count": 3}, routing=last))
    assert set(column(result, "instance")) == {2}
    raising = {"policy": "custom", "function": f"{__name__}:failing"}
    with pytest.raises(SimulationError, match="failing failed: AttributeError"):
        simulate(cluster({"count": 3}, routing=raising))


@given(
    tensor=st.sampled_from([1, 2, 4]),
    stages=st.integers(1, 8),
    replicas=st.integers(1, 8),
    layers=st.integers(1, 9),
    policy=st.sampled_from(["round_robin", "least_loaded"]),
    asynchronous=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=25)
def test_nothing_hangs(
    tensor: int,
    stages: int,
    replicas: int,
    layers: int,
    policy: str,
    asynchronous: bool,
    seed: int,
) -> None:
    """Whatever the degrees, all requests are served, or the point is refused with a reason."""
    changes: dict[str, Any] = {
        "model__num_hidden_layers": layers,
        "engine__tensor_parallel_size": tensor,
        "engine__pipeline_parallel_size": stages,
        "engine__async_scheduling": asynchronous,
        "card__memory_bandwidth_gbps": 100.0,
        "links": {"tensor": LINK},
        "workload__generate__num_requests": 20,
        "workload__generate__seed": seed,
        "check_invariants": True,
        "cluster": {
            "instances": [{"count": replicas, "data_parallel_group": "A"}, {"count": 1}],
            "routing": {"policy": policy},
        },
    }
    try:
        point = make_point(**changes)
    except InputError as error:
        assert stages > layers or tensor > 2
        assert "tensor_parallel_size" in str(error) or "pipeline_parallel_size" in str(error)
        return
    result = simulate(point)
    assert result.summary["requests"]["finished"] == 20


def test_stages_overlap_batches() -> None:
    """Two stages: a lone request takes as long as before, many are served nearly twice as fast."""
    linear = {"linear": {"base_ns": 1000, "per_token_ns": 1_000_000}}
    links = {"tensor": {"bandwidth_gibps": 1e6, "latency_ns": 0.0}}

    def run(stages: int, concurrency: int) -> float:
        workload = {
            "generate": {
                "num_requests": 8 * concurrency,
                "arrivals": {"process": "closed_loop", "concurrency": concurrency},
                "prompt_tokens": {"fixed": 8},
                "output_tokens": {"fixed": 20},
            }
        }
        point = make_point(
            engine__pipeline_parallel_size=stages,
            engine__async_scheduling=False,
            engine__max_num_seqs=4,
            engine__max_num_batched_tokens=16,
            card__memory_bandwidth_gbps=100.0,
            profile=linear,
            links=links,
            workload=workload,
        )
        result = simulate(point)
        assert result.summary["requests"]["finished"] == 8 * concurrency
        return float(result.summary["makespan_ms"])

    assert run(2, 1) == pytest.approx(run(1, 1), rel=1e-3)
    assert run(2, 4) < 0.7 * run(1, 4)


def test_stages_are_cut_as_vllm_cuts_them() -> None:
    from simulator.parallel import stage_layers

    sizes = {n: [end - start for start, end in stage_layers(n, 4)] for n in (8, 9, 10, 11)}
    assert sizes == {8: [2, 2, 2, 2], 9: [2, 2, 3, 2], 10: [2, 3, 3, 2], 11: [3, 3, 3, 2]}


def test_the_fullest_stage_decides_on_blocks(tmp_path: Path) -> None:
    """Weights of the embedding on the first, of the head on the last, the middle has room."""
    from simulator.simulation import prepare

    changes: dict[str, Any] = {
        "model__num_hidden_layers": 6,
        "model__vocab_size": 100_000,
        "engine__num_gpu_blocks_override": None,
        "card__memory_gib": 0.05,
        "card__memory_bandwidth_gbps": 100.0,
        "links": {"tensor": LINK},
    }
    one, three = (
        prepare(make_point(**changes, engine__pipeline_parallel_size=n)).capacity for n in (1, 3)
    )
    assert three.block_bytes * 3 == one.block_bytes
    assert three.num_gpu_blocks > one.num_gpu_blocks
    embedding = 100_000 * 64 * 2
    assert embedding < three.weight_bytes < one.weight_bytes - embedding


def test_who_fits_in_one_instance_only_goes_there() -> None:
    """Refused is who can run nowhere; the calls after it in its session never come."""
    small = {"count": 2, "engine": {"num_gpu_blocks_override": 6}}
    result = simulate(cluster(small, {"count": 1}, check_invariants=True))
    lengths = column(result, "prompt_tokens") + column(result, "requested_output_tokens")
    owner = column(result, "instance")
    assert result.summary["requests"]["refused"] == 0
    assert (owner[lengths > 6 * 16] == 2).all() and (owner < 2).any()
    larger = {"count": 2, "engine": {"num_gpu_blocks_override": 12}}
    both = simulate(cluster(larger, workload={"generate": CLOSED}, check_invariants=True))
    refused = np.array([why is not None for why in both.requests["refused"].to_pylist()])
    assert 0 < both.summary["requests"]["finished"] == (~refused).sum()
    assert np.isnan(column(both, "instance").astype(float)[refused]).all()


INFINILM = {"engine__engine": "infinilm", "engine__admission": "legacy"}
NO_ADMISSION: dict[str, Any] = {"admission": None}
MANIFEST = {"workload": {"manifest": str(FOLDER / "fixed.json")}, "engine__block_size": 256}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (
            INFINILM | {"engine__pipeline_parallel_size": 2} | {"links": {"tensor": LINK}},
            "engine.pipeline_parallel_size",
        ),
        (
            INFINILM | {"cluster": {"instances": [{"count": 2, "data_parallel_group": "A"}]}},
            "engine.engine",
        ),
        (
            INFINILM
            | {"cluster": {"instances": [{}, {"engine": {"engine": "vllm", **NO_ADMISSION}}]}},
            "cluster: engine.engine",
        ),
        (MANIFEST | {"cluster": {"instances": [{"count": 2}]}}, "workload.manifest"),
        ({"links": {"tensor": LINK, "endpoint_delay_ns": -1}}, "links.endpoint_delay_ns"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(make_point(**changes))
    assert caught.value.field == field
