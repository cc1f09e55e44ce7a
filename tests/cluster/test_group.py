"""What data-parallel replicas agree on before a step, and what they exchange in it, by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InputError
from simulator import simulate
from simulator.cluster.group import run_tokens, share_of
from simulator.config import point_from_mapping
from simulator.network_tables import expert_exchange
from tests.profiles.bundles import needs_package, write_variant
from tests.simulator.point import make_point, point_data

GROUP: dict[str, Any] = {"instances": [{"count": 2, "data_parallel_group": "A"}]}
# One byte a ns and 1,000 ns a hop.
LINKS = {"tensor": {"bandwidth_gibps": 1e9 / 2**30, "latency_ns": 1000.0}, "endpoint_delay_ns": 0}


@pytest.mark.parametrize(
    ("tokens", "share"),
    [
        ([24, 24], 24),
        ([1385, 128], 1385),  # both ways at once: the larger decides
        (
            [10, 20, 30],
            25,
        ),  # the link to the replica of 10 carries 20 and 30, in two hops of a ring
        ([3, 3, 4], 4),
        ([5], 5),
    ],
)
def test_unequal_shares(tokens: list[int], share: int) -> None:
    assert share_of(tokens) == share


def tables(padded: list[int], largest_graph: int) -> Any:
    params = [SimpleNamespace(max_capture_size=largest_graph)]
    return SimpleNamespace(padded_tokens=np.array(padded, np.int32), params=params)


@pytest.mark.parametrize(
    ("tokens", "run"),
    [
        ([3, 5], [8, 8]),  # graphs of 4 and 8: all as the largest
        ([0, 3], [4, 4]),  # without work one token runs along
        ([3, 9], [4, 9]),  # no graph of 9: each as it would alone
        ([0, 9], [1, 9]),
    ],
)
def test_padding(tokens: list[int], run: list[int]) -> None:
    sizes_1_2_4_8 = [0, 1, 2, 4, 4, 8, 8, 8, 8, 9]
    assert run_tokens(tables(sizes_1_2_4_8, 8), tokens) == run


def test_a_law_pads_to_the_largest() -> None:
    assert run_tokens(tables([0], 8), [3, 5]) == [5, 5]
    assert run_tokens(tables([0], 8), [3, 9]) == [3, 9]


@pytest.mark.parametrize(("prompt", "mode_ms"), [(8, 20), (12, 40)])
def test_replicas_run_in_one_mode(prompt: int, mode_ms: int) -> None:
    """One request on one replica: the other runs along in the mode that its prompt needs.

    Graphs of up to 8 tokens: a prompt of 8 runs piecewise, one of 12 without; then both decode.
    """
    modes = {"full_graph_ms": 10.0, "piecewise_ms": 20.0, "no_graph_ms": 40.0}
    point = make_point(
        engine__async_scheduling=False,
        profile={"linear": {"base_ns": 1_000_000}},
        overhead={"cudagraph_capture_sizes": [1, 2, 4, 8], **modes},
        workload={
            "generate": {
                "num_requests": 1,
                "arrivals": {"process": "closed_loop", "concurrency": 1},
                "prompt_tokens": {"fixed": prompt},
                "output_tokens": {"fixed": 3},
            }
        },
        cluster=GROUP,
    )
    steps = simulate(point, steps=True).steps
    assert steps is not None
    table = steps.to_pandas()
    for number in (0, 1):
        own = table[table.instance == number]
        ms = ((own.end_ns - own.start_ns) / 1e6).tolist()
        assert ms == [1 + mode_ms, 11, 11]


def experts_point(folder: Path, **changes: Any) -> Any:
    """Two replicas of a model of 64 x 2 bytes a hidden state with 4 experts, in bfloat16."""
    variant = write_variant(folder, architecture="mixtral")
    (variant / "tp1/moe.csv").write_text("tokens,activated_experts,time_us\n1,2,3.5\n64,4,9.5\n")
    profile = {"bundle": str(variant), **changes.pop("profile", {})}
    data = point_data(
        profile=profile, engine__enable_expert_parallel=True, cluster=GROUP, **changes
    )
    data["model"] |= {
        "model_type": "mixtral",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "hidden_size": 64,
        "torch_dtype": "bfloat16",
    }
    data["card"]["memory_bandwidth_gbps"] = 1000.0
    return point_from_mapping(data, Path(), "point")


def test_exchange_over_links(tmp_path: Path) -> None:
    """10 tokens each, of 128 bytes and 8 of router logits: 1,360 bytes come and 1,280 go, each after
    1,000 ns; adding up 1,280 bytes is three times 1 ns."""
    ns = expert_exchange(experts_point(tmp_path, links=LINKS), 2, "point")
    assert ns[0] == 0
    assert ns[10] == (1000 + 1360) + (1000 + 1280 + 3 * 1)


def test_exchange_of_parts(tmp_path: Path) -> None:
    """Two replicas of two ranks, 5 of 10 tokens each: 680 bytes come to each of 4 ranks, first from
    the other replica, then twice as many from the other rank; 2,560 go, first among a replica's ranks.
    Then a replica's ranks gather 640 bytes each.
    """
    point = experts_point(tmp_path, links=LINKS, engine__tensor_parallel_size=2)
    qwen = point.model.model_copy(update={"model_type": "qwen3_moe"})
    ns = expert_exchange(point.model_copy(update={"model": qwen}), 2, "point")
    gathered = (1000 + 680) + (1000 + 2 * 680)
    scattered = (1000 + 1280 + 3 * 1) + (1000 + 640 + 3 * 1)
    assert ns[10] == pytest.approx(gathered + scattered + (1000 + 640), abs=4)


@pytest.mark.parametrize("backend", ["deepep_high_throughput", "deepep_low_latency", "nixl_ep"])
def test_exchange_by_expert(tmp_path: Path, backend: str) -> None:
    """10 tokens go to 2 experts each: half of 2,560 bytes to the other replica, and as many back."""
    point = experts_point(tmp_path, links=LINKS, engine__all2all_backend=backend)
    assert expert_exchange(point, 2, "point")[10] == 2 * (1000 + 1280)


def test_other_exchanges_were_not_measured(tmp_path: Path) -> None:
    measured = {"expert_exchange": {"system": "rtx_pro_6000_server"}}
    point = experts_point(tmp_path, profile=measured, engine__all2all_backend="mori")
    with pytest.raises(InputError, match="all2all_backend: got 'mori', expected allgather_red"):
        expert_exchange(point, 2, "point")


@needs_package
def test_exchange_as_measured(tmp_path: Path) -> None:
    """NCCL between two RTX PRO 6000: 256 elements and fewer take 5.88 us to gather, 5.29 to scatter.

    Of 10 tokens each, 2,720 bytes are gathered: between 2,048 (6.08 us) and 4,096 (6.20 us); and 2,560
    scattered: between 5.66 and 5.95 us.
    """
    measured = {"expert_exchange": {"system": "rtx_pro_6000_server"}}
    point = experts_point(tmp_path, profile=measured)
    ns = expert_exchange(point, 2, "point")
    assert (ns[0], ns[1]) == (0, 5880 + 5290)
    gather = 6080 + (2720 - 2048) / 2048 * (6200 - 6080)
    scatter = 5660 + (2560 - 2048) / 2048 * (5950 - 5660)
    assert ns[10] == round(gather) + round(scatter)
    with pytest.raises(
        InputError, match=r"expert_exchange.system: got 'rtx_pro_6000_server', .* 2,"
    ):
        expert_exchange(point, 3, "point")


def test_exchange_needs_something(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="links: got None, expected the links between replicas"):
        simulate(experts_point(tmp_path))


def test_a_step_of_experts(tmp_path: Path) -> None:
    """Two blocks; a link 500 ns slower makes each of two exchanges a block so much longer."""
    slower = LINKS | {"tensor": LINKS["tensor"] | {"latency_ns": 1500.0}}  # type: ignore[dict-item]
    ends = []
    for links in (LINKS, slower):
        steps = simulate(experts_point(tmp_path, links=links), steps=True).steps
        assert steps is not None
        first = steps.to_pandas().iloc[0]
        ends.append(first.end_ns - first.start_ns)
    assert ends[1] - ends[0] == 2 * 2 * 500


@pytest.mark.parametrize("stages", [1, 2])
def test_weights_read_in_no_time_change_nothing(tmp_path: Path, stages: int) -> None:
    """Nor do they hide the experts that replicas share, in one stage or in two."""
    memory = {"bandwidth_gbps": 1e6, "capacity_gib": 1.0}
    placement = {"memories": {"cpu": memory}, "weights": "cpu"}
    given: dict[str, Any] = {"links": LINKS, "engine__pipeline_parallel_size": stages}
    ends = [
        simulate(experts_point(tmp_path, **given, **more)).summary["end_ns"]
        for more in ({}, {"placement": placement})
    ]
    assert ends[1] == pytest.approx(ends[0], rel=1e-3)


@pytest.fixture(scope="module")
def expert_tables(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_variant(
        tmp_path_factory.mktemp("experts"), tps=(1, 2, 4, 8), architecture="mixtral"
    )
    rows = "tokens,activated_experts,time_us\n1,1,3.5\n64,4,9.5\n"
    for ranks in (1, 2, 4, 8):
        (folder / f"tp{ranks}/moe.csv").write_text(rows)
    return str(folder)


@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    stages=st.integers(1, 8),
    replicas=st.integers(1, 8),
    layers=st.integers(1, 9),
    experts=st.sampled_from([9, 64, 6720]),
    backend=st.sampled_from(["allgather_reducescatter", "deepep_low_latency"]),
    asynchronous=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=25)
def test_shared_experts_never_hang(
    expert_tables: str,
    tensor: int,
    stages: int,
    replicas: int,
    layers: int,
    experts: int,
    backend: str,
    asynchronous: bool,
    seed: int,
) -> None:
    """Few requests for many replicas, odd numbers of layers: served, or refused with a reason."""
    data = point_data(
        profile={"bundle": expert_tables},
        engine__tensor_parallel_size=tensor,
        engine__pipeline_parallel_size=stages,
        engine__enable_expert_parallel=True,
        engine__all2all_backend=backend,
        engine__async_scheduling=asynchronous,
        card__memory_bandwidth_gbps=100.0,
        links=LINKS,
        workload__generate__num_requests=9,
        workload__generate__seed=seed,
        check_invariants=True,
        cluster={"instances": [{"count": replicas, "data_parallel_group": "A"}]},
    )
    data["model"] |= {
        "model_type": "mixtral",
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "num_experts": experts,
        "num_experts_per_tok": 2,
    }
    try:
        result = simulate(point_from_mapping(data, Path(), "point"))
    except InputError as error:
        assert stages > layers or experts % (tensor * replicas), error
        return
    assert result.summary["requests"]["finished"] == 9


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_stages_of_a_group_overlap_batches(stages: int) -> None:
    """Replicas with the same work take as long as instances that do not wait for each other."""

    def end_ns(**group: str) -> int:
        point = make_point(
            engine__pipeline_parallel_size=stages,
            engine__async_scheduling=False,
            model__num_hidden_layers=6,
            card__memory_bandwidth_gbps=100.0,
            links={"tensor": {"bandwidth_gibps": 1000.0}},
            profile={"linear": {"base_ns": 1_000_000, "per_token_ns": 10_000}},
            overhead={"cudagraph_capture_sizes": [1, 2, 4, 8], "full_graph_ms": 0.6},
            workload={
                "generate": {
                    "num_requests": 32,
                    "arrivals": {"process": "closed_loop", "concurrency": 32},
                    "prompt_tokens": {"fixed": 32},
                    "output_tokens": {"fixed": 20},
                }
            },
            cluster={
                "instances": [{"count": 2, **group}],
                "routing": {"policy": "round_robin"},
            },
        )
        end: int = simulate(point).summary["end_ns"]
        return end

    assert end_ns(data_parallel_group="A") == end_ns()
