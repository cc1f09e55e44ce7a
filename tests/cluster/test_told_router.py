"""A router that is told of its instances now and then, as vLLM's front end of a data-parallel group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from simulator import simulate
from simulator.cluster.router import ToldLeastLoaded
from simulator.core import state
from tests.simulator.point import make_point


@dataclass
class Seen:
    """Of an instance what the router looks at."""

    number: int
    queued: int = 0
    running: int = 0
    in_flight: int = 0


def test_what_it_was_told_and_what_it_gave_out() -> None:
    router, a, b = ToldLeastLoaded(100), Seen(0), Seen(1)
    both: Any = [a, b]
    assert router.next_update_ns == state.FOREVER
    # Nothing known: the first of equals, then who was given least; one given counts 4.
    assert [router(0, both, 7), router(1, both, 8), router(2, both, 9)] == [0, 1, 0]
    assert router.next_update_ns == 107
    a.running, a.in_flight, b.queued, b.in_flight = 2, 2, 1, 1
    assert router(3, both, 106) == 1  # 8 and 4: it has not heard
    router.update(both)  # 2 and 4
    assert [router(4, both, 108), router(5, both, 109)] == [0, 1]  # 2, 4 then 6, 4 then 6, 8
    assert (router(6, both, 110), router.next_update_ns) == (0, 207)
    a.in_flight = b.in_flight = 0
    router.update(both)
    assert router.next_update_ns == state.FOREVER


@pytest.mark.parametrize("grouped", [False, True])
def test_never_told_it_takes_turns(grouped: bool) -> None:
    """Every 1,000 s it would hear that the second instance is twenty times slower."""
    group = {"data_parallel_group": "A"} if grouped else {}
    slow = {} if grouped else {"profile": {"linear": {"base_ns": 140_000_000}}}
    cluster = {
        "instances": [group, {**group, **slow}],
        "routing": {"policy": "least_loaded", "update_interval_ms": 1_000_000},
    }
    point = make_point(cluster=cluster, check_invariants=True)
    table = simulate(point).requests.to_pandas().sort_values("arrival_ns", kind="stable")
    assert table.instance.tolist() == [i % 2 for i in range(60)]
    cluster["routing"]["update_interval_ms"] = 100  # type: ignore[index]
    told = simulate(make_point(cluster=cluster, check_invariants=True))
    assert told.summary["requests"]["finished"] == 60
    assert grouped or told.summary["instances"][1]["requests"] < 30
