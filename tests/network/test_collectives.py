"""What collectives cost: as recorded, over several dimensions, and what must hold for all."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from profiles.errors import InputError
from simulator.network.config import (
    KINDS,
    MAX_BYTES,
    CollectiveKind,
    Implementation,
    NetworkConfig,
    Topology,
)
from simulator.network.cost import collective_ns, collective_table, phases, send_ns
from tests.network.make import dimension, make_network, measured_network, recorded_network, rows

KIND_OF: dict[str, CollectiveKind] = {kind.upper(): kind for kind in KINDS}


@pytest.mark.parametrize(("name", "count"), [("collectives", 1080), ("collectives_upstream", 324)])
def test_every_recorded_row_to_the_nanosecond(name: str, count: int) -> None:
    recorded = rows(f"{name}.csv")
    assert len(recorded) == count
    different = []
    for row in recorded:
        kind = KIND_OF[row["collective"]]
        found = collective_ns(recorded_network(row, kind), kind, int(row["size_bytes"]))
        if found != int(row["measured_ns"]):
            different.append((row, found))
    assert not different


@pytest.mark.parametrize("row", rows("dimensions.csv"), ids=lambda row: row["measured_ns"])
def test_several_dimensions_and_many_ranks_as_measured(row: dict[str, str]) -> None:
    network, kind = measured_network(row), KIND_OF[row["collective"].upper()]
    involved = tuple(int(dim) for dim in row["dims"].split("|"))
    found = collective_ns(network, kind, int(row["num_bytes"]), involved)
    assert found == int(row["measured_ns"])


def test_two_dimensions_scatter_inwards_and_gather_outwards() -> None:
    """RS over dimension 0, all-reduce of a share over dimension 1, AG over dimension 0."""
    inner, outer = dimension(4), dimension(2, "Switch", bandwidth_gibps=16.0)
    both, size = make_network(inner, outer), 1 << 20
    first, second = make_network(inner), make_network(outer)
    scatter = collective_ns(first, "reduce_scatter", size)
    reduce = collective_ns(second, "all_reduce", size // 4)
    gather = collective_ns(first, "all_gather", size // 4)
    assert collective_ns(both, "all_reduce", size) == scatter + reduce + gather
    assert phases(both, "all_reduce", (0, 1)) == [
        ("reduce_scatter", 0),
        ("all_reduce", 1),
        ("all_gather", 0),
    ]


def test_baseline_reduces_whole_in_one_dimension_after_the_other() -> None:
    both = make_network(4, 2, collective_optimization="baseline")
    alone = [collective_ns(make_network(n), "all_reduce", 1 << 20) for n in (4, 2)]
    assert collective_ns(both, "all_reduce", 1 << 20) == sum(alone)


def test_a_gather_starts_in_the_outermost_dimension() -> None:
    both, size = make_network(4, 2), 5000
    outer = collective_ns(make_network(2), "all_gather", size)
    inner = collective_ns(make_network(4), "all_gather", 2 * size)
    assert collective_ns(both, "all_gather", size) == outer + inner


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_dimensions_involved_count(kind: CollectiveKind) -> None:
    both, alone = make_network(4, 2), make_network(4)
    assert collective_ns(both, kind, 1 << 20, (0,)) == collective_ns(alone, kind, 1 << 20)
    assert collective_ns(both, kind, 1 << 20, (1, 0)) == collective_ns(both, kind, 1 << 20)


def test_a_small_buffer_is_padded_to_a_byte_for_each_rank() -> None:
    network = make_network(4, 2)
    assert collective_ns(network, "all_reduce", 1) == collective_ns(network, "all_reduce", 8)
    assert collective_ns(network, "all_reduce", 8) < collective_ns(network, "all_reduce", 8000)


def test_messages() -> None:
    network = make_network(dimension(6), dimension(3, "FullyConnected", latency_ns=20000.0))
    # 2^20 bytes at 50 GiB/s are 19531.25 ns; ranks 0 and 4 of a ring of six are two hops apart.
    assert send_ns(network, 0, 1, 1 << 20) == 500 + 19531
    assert send_ns(network, 0, 4, 1 << 20) == 1000 + 19531
    assert send_ns(network, 0, 6, 1 << 20) == 20000 + 19531
    assert send_ns(network, 0, 7, 1 << 20) == 500 + 19531


def test_a_table_holds_the_cost_of_every_number_of_tokens() -> None:
    network = make_network(8, all_reduce="halvingDoubling")
    table = collective_table(network, "all_reduce", 4096 * 2, 2048)
    assert table.dtype == np.int64
    assert table.shape == (2049,)
    assert not table.flags.writeable
    for tokens in (0, 1, 7, 300, 2048):
        assert table[tokens] == collective_ns(network, "all_reduce", tokens * 8192)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda n: collective_ns(n, "broadcast", 1), "got 'broadcast', expected one of all_reduce"),
        (lambda n: collective_ns(n, "all_reduce", -1), "num_bytes: got -1, expected 0 to"),
        (lambda n: collective_ns(n, "all_reduce", MAX_BYTES + 1), "expected 0 to 1099511627776"),
        (lambda n: collective_ns(n, "all_reduce", np.array([1.5])), "whole numbers of bytes"),
        (lambda n: collective_ns(n, "all_reduce", 1, (2,)), "dims: got [2]"),
        (lambda n: collective_ns(n, "all_reduce", 1, (0, 0)), "each once"),
        (lambda n: collective_ns(n, "all_reduce", 1, ()), "dims: got []"),
        (
            lambda n: send_ns(n, 0, 4, 1),
            "destination: got 4, expected a rank of the network, 0 to 3",
        ),
        (lambda n: send_ns(n, 1, 1, 1), "to another rank"),
        (lambda n: send_ns(n, 0, 1, 0), "at least a byte"),
        (lambda n: collective_table(n, "all_reduce", 0, 8), "at least a byte a token"),
    ],
)
def test_what_cannot_be_asked(call: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        call(make_network(4))
    assert says in str(caught.value)


def test_trees_reduce_over_inner_dimensions_only_in_the_baseline() -> None:
    changes: dict[str, Any] = {"all_reduce": ["doubleBinaryTree", "ring"]}
    with pytest.raises(InputError, match=r"all_reduce\[0\].*collective_optimization: baseline"):
        collective_ns(make_network(4, 2, **changes), "all_reduce", 4096)
    assert collective_ns(make_network(4, 2, **changes), "all_reduce", 4096, (0,)) > 0
    baseline = make_network(4, 2, **changes, collective_optimization="baseline")
    assert collective_ns(baseline, "all_reduce", 4096) > 0


RANKS = st.one_of(st.integers(1, 12), st.sampled_from([16, 31, 64, 256]))


@st.composite
def networks(draw: st.DrawFn) -> NetworkConfig:
    """Any network that is a network: up to three dimensions, up to 1024 ranks."""
    ranks = draw(st.lists(RANKS, min_size=1, max_size=3).filter(lambda r: np.prod(r) <= 1024))
    dims = [
        {
            "topology": draw(st.sampled_from(get_args(Topology))),
            "ranks": n,
            "bandwidth_gibps": draw(st.floats(1e-3, 1e4)),
            "latency_ns": draw(st.floats(0, 1e9)),
        }
        for n in ranks
    ]
    data: dict[str, Any] = {
        "dimensions": dims,
        "local_mem_gbps": draw(st.floats(1, 1e5)),
        "endpoint_delay_ns": draw(st.integers(0, 1000)),
        "collective_optimization": draw(st.sampled_from(["localBWAware", "baseline"])),
    }
    for kind in KINDS:
        names: list[Implementation] = ["ring", "direct"]
        if kind != "all_to_all" and all(n & (n - 1) == 0 for n in ranks):
            names.append("halvingDoubling")
        data[kind] = draw(st.sampled_from(names))
    return NetworkConfig.model_validate(data)


@given(
    network=networks(),
    kind=st.sampled_from(KINDS),
    sizes=st.lists(st.integers(0, MAX_BYTES), min_size=2, max_size=8),
)
@examples(max_examples=300)
def test_never_negative_and_never_less_for_more(
    network: NetworkConfig, kind: CollectiveKind, sizes: list[int]
) -> None:
    ns = collective_ns(network, kind, np.array(sorted(sizes)))
    assert (ns >= 0).all()
    assert (np.diff(ns) >= 0).all()
    assert ns.tolist() == [collective_ns(network, kind, size) for size in sorted(sizes)]
    if network.ranks == 1:
        assert not ns.any()
    elif max(sizes):
        assert ns[-1] >= min(d.latency_ns for d in network.dimensions if d.ranks > 1) // 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7, 64, 1000, 1024])
@pytest.mark.parametrize("topology", get_args(Topology))
@pytest.mark.parametrize("implementation", ["ring", "direct"])
def test_up_to_1024_ranks(ranks: int, topology: str, implementation: str) -> None:
    network = make_network(dimension(ranks, topology), **dict.fromkeys(KINDS, implementation))
    for kind in KINDS:
        small, large = (collective_ns(network, kind, size) for size in (1 << 20, 1 << 30))
        assert small == large == 0 if ranks == 1 else 500 < small < large
