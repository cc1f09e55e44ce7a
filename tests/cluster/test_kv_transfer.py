"""Prompts computed on one instance and decoded on another: what moves, when, and who waits for it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InputError
from simulator import simulate
from simulator.result import Result
from tests.simulator.point import POINT, make_point

NIXL, P2P = "NixlConnector", "P2pNcclConnector"
BASE, TOKEN = 1_000_000, 10_000  # ns of a step, and of each of its tokens
LATENCY = 5_000
BYTES_PER_NS = 2**30 / 1e9  # of 1 GiB/s
TOKEN_BYTES = 2 * 2 * 16 * 2 * 2  # keys and values, heads, dimension, layers, bytes of an element
LINK = {"bandwidth_gibps": 1e6, "latency_ns": 0.0}


def pair(
    connector: str = NIXL,
    first_token: str = "decode",
    *,
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
    transfer: dict[str, Any] | None = None,
    **changes: Any,
) -> Any:
    """A prefill and a decode instance; prompts of 32 tokens and 3 tokens of output, far apart."""
    plain = {
        "engine__async_scheduling": False,
        "engine__num_gpu_blocks_override": 40,
        "profile": {"linear": {"base_ns": BASE, "per_token_ns": TOKEN}},
        "check_invariants": True,
        "workload": workload(),
    }
    cluster = {
        "instances": [{"role": "prefill"} | (prefill or {}), {"role": "decode"} | (decode or {})],
        "kv_transfer": {
            "connector": connector,
            "bandwidth_gibps": 1.0,
            "latency_ns": float(LATENCY),
            "first_token": first_token,
        }
        | (transfer or {}),
    }
    return make_point(**plain | changes, cluster=cluster)


def workload(**changes: Any) -> dict[str, Any]:
    generate = {
        "num_requests": 1,
        "arrivals": {"rate": 1.0},
        "prompt_tokens": {"fixed": 32},
        "output_tokens": {"fixed": 3},
    }
    return {"generate": generate | changes}


AT_ONCE = {"process": "closed_loop", "concurrency": 2}


def column(result: Result, name: str) -> Any:
    return result.requests[name].to_numpy(zero_copy_only=False)


def after_arrival(result: Result, name: str) -> list[int]:
    found: list[int] = (column(result, name) - column(result, "arrival_ns")).astype(int).tolist()
    return found


def read_ns(tokens: int, shards: int = 1, token_bytes: int = TOKEN_BYTES) -> int:
    return LATENCY + int(tokens * token_bytes / shards / BYTES_PER_NS)


PROMPT = BASE + 32 * TOKEN
ONE = BASE + TOKEN


class TestReadWhenComputed:
    def test_a_lone_request(self) -> None:
        """The decode instance computes the prompt's last token again, and that is the first token."""
        result = simulate(pair())
        assert after_arrival(result, "prefill_end_ns") == [PROMPT]
        assert after_arrival(result, "kv_read_ns") == [PROMPT + read_ns(32)]
        assert after_arrival(result, "first_token_ns") == [PROMPT + read_ns(32) + ONE]
        assert after_arrival(result, "last_token_ns") == [PROMPT + read_ns(32) + 3 * ONE]
        assert column(result, "output_tokens").tolist() == [3]
        moved = result.summary["kv_transfer"]
        assert (moved["transfers"], moved["bytes"]) == (1, 32 * TOKEN_BYTES)

    def test_the_prefill_instance_gives_the_first_token(self) -> None:
        result = simulate(pair(first_token="prefill"))
        assert after_arrival(result, "first_token_ns") == [PROMPT]
        assert after_arrival(result, "last_token_ns") == [PROMPT + read_ns(32) + 2 * ONE]
        assert result.summary["generated_tokens"] == 3
        longest = result.summary["latency"]["itl_ms"]["p99"]
        assert longest == pytest.approx((read_ns(32) + ONE) / 1e6, rel=0.01)

    def test_who_is_done_with_one_token_goes_nowhere(self) -> None:
        point = pair(first_token="prefill", workload=workload(output_tokens={"fixed": 1}))
        result = simulate(point)
        assert column(result, "instance").tolist() == [0]
        assert result.summary["kv_transfer"]["transfers"] == 0
        again = simulate(pair(workload=workload(output_tokens={"fixed": 1})))
        assert column(again, "instance").tolist() == [1]

    def test_the_proxy_takes_its_time(self) -> None:
        later = simulate(pair(transfer={"proxy_ms": 2.0}))
        assert after_arrival(later, "kv_read_ns") == [PROMPT + 2_000_000 + read_ns(32)]

    def test_whole_blocks_move(self) -> None:
        result = simulate(pair(workload=workload(prompt_tokens={"fixed": 33})))
        assert result.summary["kv_transfer"]["bytes"] == 48 * TOKEN_BYTES

    def test_what_is_cached_already_is_not_read(self) -> None:
        """Two requests of one prefix of 32 tokens: the second reads the third block alone."""
        same = {"groups": 1, "tokens": 32, "share": 1.0}
        asks = workload(num_requests=2, prompt_tokens={"fixed": 8}, shared_prefix=same)
        moved = simulate(pair(workload=asks)).summary["kv_transfer"]
        assert moved["bytes"] == (48 + 16) * TOKEN_BYTES
        off = simulate(pair(workload=asks, engine__enable_prefix_caching=False))
        assert off.summary["kv_transfer"]["bytes"] == (48 + 48) * TOKEN_BYTES

    def test_bytes_follow_the_kv_cache(self) -> None:
        half = simulate(pair(engine__kv_cache_dtype="fp8"))
        assert half.summary["kv_transfer"]["bytes"] == 32 * TOKEN_BYTES // 2
        assert after_arrival(half, "kv_read_ns") == [
            PROMPT + read_ns(32, token_bytes=TOKEN_BYTES // 2)
        ]

    @pytest.mark.parametrize(("ranks", "shards"), [((2, 2), 2), ((1, 2), 1), ((2, 1), 1)])
    def test_ranks_have_links_of_their_own(self, ranks: tuple[int, int], shards: int) -> None:
        """A link for each rank's part; of an unequal pair the smaller number counts."""
        prefill, decode = ({"engine": {"tensor_parallel_size": n}} for n in ranks)
        point = pair(
            prefill=prefill, decode=decode, links={"tensor": LINK}, card__memory_bandwidth_gbps=1e3
        )
        result = simulate(point)
        assert result.summary["kv_transfer"]["bytes"] == 32 * TOKEN_BYTES
        read = column(result, "kv_read_ns") - column(result, "prefill_end_ns")
        assert read.tolist() == [read_ns(32, shards)]

    @pytest.mark.parametrize("latency", [LATENCY, 0])
    def test_what_is_all_cached_frees_the_prefill_instance(
        self, latency: int, tmp_path: Path
    ) -> None:
        """The same prompt of two blocks again and again, in a prefill pool that holds two of them."""
        row = {
            "input_tok_ids": list(range(32)),
            "output_toks": 20,
            "input_toks": 32,
            "output_tok_ids": [1] * 20,
        }
        rows = [json.dumps(row | {"arrival_time_ns": i * 10**9}) + "\n" for i in range(12)]
        (tmp_path / "same.jsonl").write_text("".join(rows))
        few = {"engine": {"num_gpu_blocks_override": 5}}
        point = pair(
            first_token="prefill",
            prefill=few,
            transfer={"latency_ns": float(latency)},
            workload={"jsonl": str(tmp_path / "same.jsonl")},
            engine__max_model_len=64,
        )
        result = simulate(point)
        assert result.summary["requests"]["finished"] == 12
        moved = result.summary["kv_transfer"]
        assert (moved["transfers"], moved["bytes"]) == (1, 32 * TOKEN_BYTES)

    def test_prompts_of_one_token_keep_their_block(self) -> None:
        """The token is computed again, in the block that was read."""
        asks = workload(num_requests=30, prompt_tokens={"fixed": 1}, arrivals={"rate": 20.0})
        result = simulate(pair(decode={"engine": {"num_gpu_blocks_override": 12}}, workload=asks))
        assert result.summary["requests"]["finished"] == 30
        assert result.summary["kv_transfer"]["transfers"] == 30
        assert not [note for note in result.summary["notes"] if "hang" in note]

    def test_a_link_carries_one_transfer_at_a_time(self) -> None:
        """Two prompts of one batch: the second is read when the first has been."""
        asks = workload(num_requests=2, arrivals=AT_ONCE)
        result = simulate(pair(workload=asks))
        both = BASE + 64 * TOKEN
        assert after_arrival(result, "kv_read_ns") == [both + read_ns(32), both + 2 * read_ns(32)]
        assert result.summary["kv_transfer"]["link_wait_ns"] == read_ns(32)

    def test_blocks_are_held_until_they_have_been_read(self) -> None:
        """A pool of two blocks: the second prompt is computed when the first has been read."""
        asks = workload(num_requests=2, arrivals=AT_ONCE)
        small = {"engine": {"num_gpu_blocks_override": 3}}
        result = simulate(pair(prefill=small, workload=asks, engine__max_model_len=48))
        started = after_arrival(result, "first_scheduled_ns")
        assert started == [0, PROMPT + read_ns(32)]

    def test_a_full_decode_instance_holds_back_the_prefill_instance(self) -> None:
        """Two prompts fit in either pool; the third is computed when the first one has been served."""
        asks = workload(num_requests=4, arrivals={"process": "closed_loop", "concurrency": 4})
        small = {"engine": {"num_gpu_blocks_override": 6}}
        result = simulate(
            pair(prefill=small, decode=small, workload=asks, engine__max_model_len=48)
        )
        ends = sorted(column(result, "last_token_ns").tolist())
        starts = sorted(column(result, "first_scheduled_ns").tolist())
        reads = sorted(column(result, "kv_read_ns").tolist())
        assert starts[2] >= reads[0] and reads[2] >= ends[0]
        assert result.summary["requests"]["finished"] == 4


class TestSentByLayer:
    def test_a_lone_request(self) -> None:
        """Half of the step a block: the first is sent while the second is computed."""
        result = simulate(pair(P2P))
        a_layer = read_ns(32, token_bytes=TOKEN_BYTES // 2)
        assert a_layer < PROMPT // 2
        assert after_arrival(result, "prefill_end_ns") == [PROMPT + a_layer]
        assert after_arrival(result, "first_token_ns") == [PROMPT + a_layer + ONE]
        assert after_arrival(result, "last_token_ns") == [PROMPT + a_layer + 3 * ONE]
        moved = result.summary["kv_transfer"]
        assert moved["bytes"] == 32 * TOKEN_BYTES
        assert moved["stalled_ns"] == a_layer

    @pytest.mark.parametrize(
        ("ranks", "links"), [((2, 2), 2), ((1, 2), 1), ((2, 1), 1), ((4, 2), 2)]
    )
    def test_ranks_send_over_links_of_their_own(self, ranks: tuple[int, int], links: int) -> None:
        prefill, decode = ({"engine": {"tensor_parallel_size": n}} for n in ranks)
        point = pair(
            P2P,
            prefill=prefill,
            decode=decode,
            links={"tensor": LINK},
            card__memory_bandwidth_gbps=1e3,
            transfer={"bandwidth_gibps": 0.001},
        )
        result = simulate(point)
        moved = result.summary["kv_transfer"]
        assert (moved["transfers"], moved["tokens"]) == (1, 31)  # the last is computed again
        assert moved["bytes"] == 32 * TOKEN_BYTES
        a_layer = LATENCY + int(32 * TOKEN_BYTES / 2 / links / BYTES_PER_NS * 1000)
        assert moved["link_ns"] == 2 * a_layer

    def test_a_slow_link_decides(self) -> None:
        """Everything after the first block waits for the link."""
        result = simulate(pair(P2P, transfer={"bandwidth_gibps": 0.001}))
        a_layer = LATENCY + int(32 * TOKEN_BYTES / 2 / BYTES_PER_NS * 1000)
        ends = column(result, "prefill_end_ns") - column(result, "arrival_ns")
        assert ends.tolist() == [PROMPT // 2 + 2 * a_layer]

    def test_the_prefill_instance_gives_the_first_token(self) -> None:
        result = simulate(pair(P2P, "prefill"))
        first, last = (after_arrival(result, n)[0] for n in ("first_token_ns", "last_token_ns"))
        assert last - first == 2 * ONE

    def test_tokens_of_a_prefix_hit_are_sent_too(self) -> None:
        same = {"groups": 1, "tokens": 32, "share": 1.0}
        asks = workload(num_requests=2, prompt_tokens={"fixed": 8}, shared_prefix=same)
        moved = simulate(pair(P2P, workload=asks)).summary["kv_transfer"]
        assert moved["bytes"] == 2 * 40 * TOKEN_BYTES


def test_prompts_and_tokens_count_once() -> None:
    for first_token in ("decode", "prefill"):
        result = simulate(pair(first_token=first_token, workload=workload(num_requests=5)))
        series = result.timeseries
        assert series["prompt_throughput"].to_numpy().sum() == 5 * 32
        assert series["generation_throughput"].to_numpy().sum() == 5 * 3
        assert [one["requests"] for one in result.summary["instances"]] == [5, 5]
        assert [one["role"] for one in result.summary["instances"]] == ["prefill", "decode"]


def test_who_fits_no_decode_instance_is_refused() -> None:
    asks = workload(num_requests=2, output_tokens={"fixed": 60})
    small = {"engine": {"num_gpu_blocks_override": 6}}
    result = simulate(pair(decode=small, workload=asks))
    assert result.summary["requests"]["refused"] == 2
    assert "needs 6 blocks" in str(column(result, "refused")[0])


def test_who_fits_no_decode_instance_stays_where_both_is_done() -> None:
    small = {"num_gpu_blocks_override": 6}
    cluster = {
        "instances": [
            {"role": "prefill"},
            {"role": "decode", "engine": small},
            {"role": "both"},
        ],
        "routing": {"policy": "round_robin"},
        "kv_transfer": {"bandwidth_gibps": 1.0},
    }
    asks = workload(num_requests=6, output_tokens={"uniform": [10, 90]})
    result = simulate(make_point(cluster=cluster, workload=asks, check_invariants=True))
    assert result.summary["requests"]["finished"] == 6
    owners, outputs = column(result, "instance"), column(result, "output_tokens")
    assert set(owners[outputs > 48]) == {2} and 1 in owners


@pytest.mark.parametrize(
    ("cluster", "field", "expected"),
    [
        ({"instances": [{"role": "prefill"}]}, "cluster.instances", "a decode instance as well"),
        ({"instances": [{"role": "decode"}, {}]}, "cluster.instances", "a prefill instance"),
        (
            {"instances": [{"role": "prefill"}, {"role": "decode"}]},
            "cluster.kv_transfer",
            "how prefill instances hand over",
        ),
        (
            {"instances": [{}], "kv_transfer": {"bandwidth_gibps": 1.0}},
            "cluster.kv_transfer",
            "only where there are some",
        ),
        (
            {
                "instances": [{"role": "prefill"}, {"role": "decode"}],
                "kv_transfer": {"bandwidth_gibps": -1.0},
            },
            "cluster.kv_transfer.bandwidth_gibps",
            "greater than or equal to",
        ),
        (
            {
                "instances": [
                    {"role": "prefill"},
                    {"role": "decode", "engine": {"kv_cache_dtype": "fp8"}},
                ],
                "kv_transfer": {"bandwidth_gibps": 1.0},
            },
            "cluster: instance 1: engine.kv_cache_dtype",
            "handed over as they are",
        ),
        (
            {
                "instances": [
                    {"role": "prefill"},
                    {"role": "decode", "count": 2, "data_parallel_group": "A"},
                ],
                "kv_transfer": {"bandwidth_gibps": 1.0},
            },
            "data_parallel_group",
            "do not hand over",
        ),
    ],
)
def test_wrong_pairs(cluster: dict[str, Any], field: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(make_point(cluster=cluster))
    assert caught.value.field == field
    assert expected in caught.value.expected


def test_tiers_and_stages_by_layer_are_refused() -> None:
    tier = {"capacity_gib": 1.0, "bandwidth_gbps": 10.0}
    with pytest.raises(InputError, match=r"prefix_storage.*has role prefill"):
        simulate(pair(prefix_storage="cpu", tiers={"cpu": tier}))
    with pytest.raises(InputError, match=r"pipeline_parallel_size.*P2pNcclConnector"):
        simulate(
            pair(
                P2P,
                prefill={"engine": {"pipeline_parallel_size": 2}},
                links={"tensor": LINK},
                card__memory_bandwidth_gbps=1e3,
            )
        )


@given(
    connector=st.sampled_from([NIXL, P2P]),
    first_token=st.sampled_from(["decode", "prefill"]),
    prefills=st.integers(1, 3),
    decodes=st.integers(1, 3),
    both=st.integers(0, 1),
    blocks=st.tuples(st.integers(13, 30), st.integers(16, 30)),
    stages=st.integers(1, 2),
    asynchronous=st.booleans(),
    gib=st.sampled_from([1e-3, 1e-2, 10.0]),
    policy=st.sampled_from(["round_robin", "least_loaded", "prefix_aware"]),
    limit=st.sampled_from([None, 2]),
    closed=st.booleans(),
    scheduling=st.sampled_from(["fcfs", "priority"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=30)
def test_everybody_is_served_once(
    connector: str,
    first_token: str,
    prefills: int,
    decodes: int,
    both: int,
    blocks: tuple[int, int],
    stages: int,
    asynchronous: bool,
    gib: float,
    policy: str,
    limit: int | None,
    closed: bool,
    scheduling: str,
    seed: int,
) -> None:
    """Whatever is scarce, every request is served to its end, in the same way each time."""
    generate = POINT["workload"]["generate"] | {"num_requests": 30, "seed": seed}
    if closed:
        generate |= {"arrivals": {"process": "closed_loop", "concurrency": 6}}
    own = [{"num_gpu_blocks_override": n} for n in blocks]
    instances: list[dict[str, Any]] = [
        {"role": "prefill", "count": prefills, "engine": own[0]},
        {"role": "decode", "count": decodes, "engine": own[1], "max_in_flight": limit},
    ]
    if connector == NIXL:
        own[1]["pipeline_parallel_size"] = stages
    if both:
        instances.append({})
    point = make_point(
        workload={"generate": generate},
        engine__async_scheduling=asynchronous,
        engine__policy=scheduling,
        links={"tensor": LINK},
        card__memory_bandwidth_gbps=1e3,
        check_invariants=True,
        cluster={
            "instances": instances,
            "routing": {"policy": policy},
            "kv_transfer": {
                "connector": connector,
                "bandwidth_gibps": gib,
                "first_token": first_token,
            },
        },
    )
    result = simulate(point, steps=True)
    assert result.summary["requests"]["finished"] == 30
    assert (column(result, "output_tokens") == column(result, "requested_output_tokens")).all()
    assert result.steps is not None
    steps = result.steps.to_pandas()
    decoding = ~steps.instance.isin(range(prefills))
    ended = Counter(r for some in steps[decoding].finished for r in some)
    apart = np.isin(column(result, "instance"), range(prefills))
    assert set(ended.values()) <= {1} and len(ended) == 30 - apart.sum()
    moved = ~np.isnan(column(result, "prefill_end_ns").astype(float))
    handed = column(result, "prefill_end_ns")[moved]
    assert (column(result, "last_token_ns")[moved] >= handed).all()
    assert simulate(point).requests.equals(result.requests)
