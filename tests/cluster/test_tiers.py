"""Storage tiers in a cluster: one for each instance, or one for all."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.errors import InputError
from simulator import simulate
from tests.simulator.point import POINT, make_point

TURNS = {
    **POINT["workload"]["generate"],
    "num_requests": 80,
    "arrivals": {"rate": 4.0},
    "prompt_tokens": {"uniform": [5, 60]},
    "multi_turn": {"share": 0.8, "distance": 8, "max_prompt_tokens": 300},
}
CONNECTORS = ("LMCacheConnectorV1", "OffloadingConnector")


def point(connector: str = CONNECTORS[0], *, shared: bool, **more: Any) -> Any:
    """Two instances that take turns: most conversations go on where they have not been."""
    tier = {"capacity_gib": 1.0, "bandwidth_gbps": 0.5, "chunk_tokens": 16, "shared": shared}
    return make_point(
        **{
            "cluster": {"instances": [{"count": 2}], "routing": {"policy": "round_robin"}},
            "engine__num_gpu_blocks_override": 40,
            "workload__generate": TURNS,
            "prefix_storage": "cpu",
            "tiers": {"cpu": tier},
            "kv_connector": connector,
            "check_invariants": True,
        }
        | more
    )


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_shared_tier_knows_what_every_instance_computed(connector: str) -> None:
    own, shared = (simulate(point(connector, shared=which)) for which in (False, True))
    counts = [run.summary["prefix_storage"]["tiers"]["cpu"] for run in (own, shared)]
    assert shared.summary["requests"]["finished"] == own.summary["requests"]["finished"] == 80
    assert counts[1]["hit_tokens"] > counts[0]["hit_tokens"]
    # What two keep apart is there twice.
    assert counts[1]["chunks"] < counts[0]["chunks"]
    assert counts[1]["stored_chunks"] < counts[0]["stored_chunks"]
    rows = shared.requests
    assert sum(rows["hit_tokens_cpu"].to_pylist()) == counts[1]["hit_tokens"]
    again = simulate(point(connector, shared=True))
    assert again.requests.equals(rows) and again.summary == shared.summary


def test_instances_wait_for_the_link_they_share() -> None:
    slow = {"capacity_gib": 1.0, "bandwidth_gbps": 0.0003, "chunk_tokens": 16}
    waits = [
        simulate(point(shared=which, tiers={"cpu": {**slow, "shared": which}})).summary[
            "prefix_storage"
        ]["tiers"]["cpu"]["link_wait_ns"]
        for which in (False, True)
    ]
    assert waits[0] == 0 < waits[1]


def test_shared_tiers_are_of_one_kind() -> None:
    instances = [{"count": 1}, {"count": 1, "engine": {"kv_cache_dtype": "fp8"}}]
    mixed = point(shared=True, cluster={"instances": instances})
    with pytest.raises(InputError, match=r"tiers\.cpu\.shared.*takes 128 bytes.*256") as raised:
        simulate(mixed)
    assert raised.value.field == "tiers.cpu.shared"
    assert simulate(point(shared=False, cluster={"instances": instances}))


def test_replicas_that_step_together_load_before_the_step() -> None:
    group = {"count": 2, "data_parallel_group": "a"}
    assert simulate(point(shared=True, cluster={"instances": [group]}))
    with pytest.raises(InputError) as raised:
        simulate(point(CONNECTORS[1], shared=True, cluster={"instances": [group]}))
    assert raised.value.field == "kv_connector"
