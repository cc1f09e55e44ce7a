"""Weights and KV cache outside the device: times and blocks computed by hand.

Every layer takes 10 us and attention 20 us, so a step of the two blocks takes 240 us. Memories move a
byte a ns after 100 ns, unless a test says otherwise.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from profiles.card import Card
from profiles.errors import InputError
from profiles.layer_weights import layer_weight_bytes
from profiles.model import ModelConfig, Shard
from simulator import point_from_mapping, simulate
from simulator.capacity import Capacity, resolve_capacity
from simulator.config import EngineConfig, Point
from simulator.parallel import shards
from simulator.placement.config import DEVICE, Placement
from simulator.placement.weights import LayerWeights, placed_stages
from simulator.simulation import point_bundle, prepare
from simulator.step_layers import StepLayers, StepSize
from tests.profiles.bundles import DENSE, PER_SEQUENCE, write_csv, write_variant
from tests.profiles.models import LLAMA_8B, MIXTRAL, QWEN_30B
from tests.simulator.point import make_point, point_data

STEP_NS = 240_000
BLOCK = ("layernorm", "qkv_proj", "rotary_emb", "attention", "o_proj", "layernorm")
BLOCK += ("gate_up_proj", "act_fn", "down_proj")
LM_HEAD, O_PROJ, DOWN_PROJ, WHOLE_BLOCK = 100 * 64 * 2, 64 * 64 * 2, 128 * 64 * 2, 73_984
KV_TOKEN = 2 * 2 * 16 * 2  # of one block
SLOW = {"bandwidth_gbps": 0.1, "latency_ns": 100, "capacity_gib": 1.0}
MEMORY = {"bandwidth_gbps": 1.0, "latency_ns": 100, "capacity_gib": 1.0}
ONE_REQUEST = {
    "num_requests": 1,
    "arrivals": {"rate": 50.0},
    "prompt_tokens": {"uniform": [8, 8]},
    "output_tokens": {"uniform": [3, 3]},
}


def flat_variant(root: Path) -> Path:
    """Tables in which a layer takes 10 us and attention 20, on one rank or two."""
    folder = write_variant(root, tps=(1, 2))
    for ranks in (1, 2):
        part = folder / f"tp{ranks}"
        dense = (*DENSE, "all_reduce") if ranks == 2 else DENSE
        rows = [(layer, tokens, 10) for layer in dense for tokens in (1, 96)]
        write_csv(part / "dense.csv", "layer,tokens,time_us", rows)
        rows = [(layer, sequences, 10) for layer in PER_SEQUENCE for sequences in (1, 8)]
        write_csv(part / "per_sequence.csv", "layer,sequences,time_us", rows)
        shapes = [(0, 0, 1, 1), (0, 0, 8, 512), (64, 0, 0, 0), (64, 512, 0, 0)]
        header = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
        write_csv(part / "attention.csv", header, [(*shape, 20) for shape in shapes])
        (part / "skew_fit.csv").unlink()
    meta = yaml.safe_load((folder / "meta.yaml").read_text())
    del meta["skew_fit"]
    (folder / "meta.yaml").write_text(yaml.safe_dump(meta))
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(flat_variant(tmp_path_factory.mktemp("flat")))


def placed(tables: str, placement: Any, **changes: Any) -> Point:
    """One request of 8 tokens and 3 more: a step with the prompt, two with one token."""
    return make_point(
        **{
            "profile": {"bundle": tables},
            "engine__async_scheduling": False,
            "workload__generate": ONE_REQUEST,
            "placement": placement,
            **changes,
        }
    )


def durations(point: Point) -> list[int]:
    table = simulate(point, steps=True).steps
    assert table is not None
    rows = table.to_pylist()
    return [row["end_ns"] - row["start_ns"] for row in rows if row["num_tokens"]]


def section(memory: dict[str, Any] = MEMORY, **fields: Any) -> dict[str, Any]:
    return {"memories": {"cpu": memory, "cxl:0": MEMORY}, **fields}


def test_everything_on_the_device(tables: str) -> None:
    assert durations(placed(tables, None)) == [STEP_NS] * 3
    given = simulate(placed(tables, section()))
    assert durations(placed(tables, section())) == [STEP_NS] * 3
    assert given.summary == simulate(placed(tables, None)).summary
    assert "placement" not in given.summary


@pytest.mark.parametrize(
    ("weights", "longer"),
    [
        ({"layers": {"lm_head": "cpu"}}, 100 + LM_HEAD),
        ({"layers": {"o_proj": "cxl:0"}}, 2 * (100 + O_PROJ)),
        ({"blocks": {"1": "cpu"}}, 6 * 100 + WHOLE_BLOCK),
        ({"blocks": {"0-1": "cpu"}, "layers": {"down_proj": DEVICE}}, None),
        ("cpu", 15 * 100 + 2 * (WHOLE_BLOCK + LM_HEAD) + 128),
    ],
)
def test_serial_reads_make_a_step_longer_by_what_they_take(
    tables: str, weights: Any, longer: int | None
) -> None:
    if longer is None:  # a name wins over a block
        longer = 2 * (5 * 100 + WHOLE_BLOCK - DOWN_PROJ)
    assert durations(placed(tables, section(weights=weights))) == [STEP_NS + longer] * 3


def test_a_kernel_streams_its_weights(tables: str) -> None:
    """It takes the longer of its own 10 us and the read; an embedding reads rows of 128 bytes."""

    def steps(layer: str, memory: dict[str, Any] = MEMORY) -> list[int]:
        weights = {"layers": {layer: "cpu"}}
        return durations(placed(tables, section(memory, weights=weights, weight_reads="streamed")))

    assert steps("lm_head") == [STEP_NS + 100 + LM_HEAD - 10_000] * 3
    assert steps("o_proj") == [STEP_NS] * 3
    assert steps("embedding") == [STEP_NS] * 3
    prompt = 100 + 8 * 128 * 10 - 10_000
    assert steps("embedding", SLOW) == [STEP_NS + prompt, STEP_NS, STEP_NS]


@pytest.mark.parametrize(
    ("weights", "memory", "longer"),
    [
        ({"layers": {"lm_head": "cpu"}}, MEMORY, 0),  # there long before its turn
        ({"layers": {"embedding": "cpu"}}, MEMORY, 100 + LM_HEAD),  # the first to run
        ({"blocks": {"1": "cpu"}, "layers": {"down_proj": DEVICE}}, MEMORY, 0),
        # Down projections have their turn after 100 and 200 us; reads take 163,940 ns each.
        ({"layers": {"down_proj": "cpu"}}, SLOW, 2 * 163_940 + 10_000 + 30_000 - STEP_NS),
    ],
)
def test_reads_ahead_hide_behind_earlier_layers(
    tables: str, weights: Any, memory: dict[str, Any], longer: int
) -> None:
    placement = section(memory, weights=weights, weight_reads="prefetched")
    assert durations(placed(tables, placement)) == [STEP_NS + longer] * 3


def naive_ns(placement: dict[str, Any]) -> int:
    """A step with prefetched weights, layer by layer."""
    config = Placement.model_validate(placement)
    model = make_point().model
    (layers,) = placed_stages(model, "auto", None, config, [Shard()], "test")
    left = list(layers)
    free = dict.fromkeys(config.memories, 0)
    now = 0
    order = [(-1, "embedding"), *((i, name) for i in range(2) for name in BLOCK)]
    for block, name in [*order, *((2, name) for name in ("final_layernorm", "lm_head", "sampler"))]:
        if left and (left[0].block, left[0].layer) == (block, name):
            own = left.pop(0)
            if own.place != DEVICE:
                memory = config.memories[own.place]
                free[own.place] += memory.latency_ns + int(own.num_bytes / memory.bandwidth_gbps)
                now = max(now, free[own.place])
        now += 20_000 if name == "attention" else 10_000
    return now


@pytest.mark.parametrize("seed", range(6))
def test_reads_ahead_as_a_plain_loop_has_them(tables: str, seed: int) -> None:
    rng = random.Random(seed)
    names = ("embedding", *BLOCK[:2], *BLOCK[4:7], "down_proj", "final_layernorm", "lm_head")
    memories = {
        name: {
            "bandwidth_gbps": rng.choice([0.1, 0.4, 1.0, 3.0]),
            "latency_ns": rng.choice([0, 100, 5000]),
            "capacity_gib": 1.0,
        }
        for name in ("cpu", "cxl:0", "cxl:1")
    }
    places = (DEVICE, *memories)
    weights = {
        "default": rng.choice(places),
        "blocks": {"1": rng.choice(places)},
        "layers": {name: rng.choice(places) for name in rng.sample(names, 3)},
    }
    placement = {"memories": memories, "weights": weights, "weight_reads": "prefetched"}
    assert durations(placed(tables, placement)) == [naive_ns(placement)] * 3


@pytest.mark.parametrize(
    ("step", "ns"),
    [
        # Block 1 is asked for when block 0 has run, and when the step starts.
        (1, 2 * (74_584 + 100_000) + 30_000),
        (2, 74_584 + 2 * 100_000 + 30_000),
    ],
)
def test_a_block_is_read_into_the_buffer_of_one_that_has_run(
    tables: str, step: int, ns: int
) -> None:
    read = {"weight_reads": "prefetched", "offload_prefetch_step": step}
    point = placed(tables, section(weights={"blocks": {"0-1": "cpu"}}, **read))
    assert durations(point) == [ns] * 3
    whole = prepare(placed(tables, None)).capacity.weight_bytes
    assert prepare(point).capacity.weight_bytes == whole - (2 - step) * WHOLE_BLOCK


def test_a_kv_cache_elsewhere_takes_the_longer_of_attention_and_transfer(tables: str) -> None:
    memory = {**MEMORY, "bandwidth_gbps": 0.01}
    changes: dict[str, Any] = {"engine__num_gpu_blocks_override": 60}
    point = placed(tables, section(memory, kv_cache="cpu"), **changes)
    transfers = [100 + tokens * KV_TOKEN * 100 for tokens in (8, 9, 10)]
    assert durations(point) == [STEP_NS + 2 * (ns - 20_000) for ns in transfers]
    assert durations(placed(tables, section(kv_cache="cpu"), **changes)) == [STEP_NS] * 3
    said = simulate(point).summary["placement"]
    assert said["kv_moved_bytes"] == 2 * KV_TOKEN * (8 + 9 + 10)
    assert said["kv_wait_ms"] == pytest.approx(2 * sum(ns - 20_000 for ns in transfers) / 1e6)


def test_kv_transfers_come_before_reads_ahead(tables: str) -> None:
    """Both from one memory: two transfers of 8 tokens, 20,580 ns each, then a read of 256,100 ns."""
    fields = {"weights": {"layers": {"lm_head": "cpu"}}, "weight_reads": "prefetched"}
    slow = section({**MEMORY, "bandwidth_gbps": 0.05}, kv_cache="cpu", **fields)
    assert durations(placed(tables, slow))[0] == 2 * 20_580 + 256_100 + 2 * 10_000


def test_weights_elsewhere_leave_room_for_blocks() -> None:
    def capacity(**placement: Any) -> Capacity:
        memory = {"bandwidth_gbps": 64.0, "capacity_gib": 512.0}
        given = Placement.model_validate({"memories": {"cpu": memory}, **placement})
        card = Card.model_validate({"name": "card", "memory_gib": 24})
        return resolve_capacity(LLAMA_8B, card, EngineConfig(), "point", None, given)

    block = 2 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096)
    all_on_device, four = capacity(), capacity(weights={"blocks": {"0-2,5": "cpu"}})
    assert four.kv_bytes - all_on_device.kv_bytes == 4 * block
    assert four.num_gpu_blocks == four.kv_bytes // four.block_bytes
    none = capacity(weights="cpu")
    assert none.weight_bytes == 0 and none.kv_bytes == int(24 * 2**30 * 0.9)
    kv = capacity(kv_cache="cpu")
    assert kv.num_gpu_blocks == 512 * 2**30 // kv.block_bytes
    both = capacity(kv_cache="cpu", weights={"layers": {"lm_head": "cpu"}})
    assert both.num_gpu_blocks == (512 * 2**30 - 2 * 128256 * 4096) // kv.block_bytes


def test_vllms_offload_goes_from_the_first_block_on() -> None:
    """1 GiB: two blocks, and of the third what comes before a GiB has moved."""
    given = Placement.model_validate(
        {
            "memories": {"cpu": {"bandwidth_gbps": 64.0, "capacity_gib": 512.0}},
            "cpu_offload_gb": 1.0,
        }
    )
    (layers,) = placed_stages(LLAMA_8B, "auto", None, given, [Shard()], "test")
    moved = [(one.block, one.layer) for one in layers if one.place == "cpu"]
    of_block = ["layernorm", "qkv_proj", "o_proj", "layernorm", "gate_up_proj", "down_proj"]
    assert moved == [
        *((i, layer) for i in (0, 1) for layer in of_block),
        *((2, layer) for layer in ("qkv_proj", "o_proj", "gate_up_proj")),
    ]


@pytest.mark.parametrize(("link", "ns"), [("shared", LM_HEAD), ("per_rank", LM_HEAD // 2)])
def test_two_ranks_read_their_shares(tables: str, link: str, ns: int) -> None:
    placement = section({**MEMORY, "link": link}, weights={"layers": {"lm_head": "cpu"}})
    two: dict[str, Any] = {"engine__tensor_parallel_size": 2}
    alone = durations(placed(tables, None, **two))
    assert alone == [STEP_NS + 5 * 10_000] * 3
    point = placed(tables, placement, **two)
    assert durations(point) == [alone[0] + 100 + ns] * 3
    said = simulate(point).summary["placement"]
    assert said["weight_bytes"] == {"cpu": LM_HEAD}
    assert said["weight_read_bytes"] == 3 * LM_HEAD


def two_stages(tables: str, placement: Any) -> list[int]:
    link = {"bandwidth_gibps": 16.0, "latency_ns": 20000.0}
    links = {"tensor": link, "pipeline": link, "local_mem_gbps": 1000.0}
    return durations(placed(tables, placement, engine__pipeline_parallel_size=2, links=links))


def test_a_stage_reads_its_own_layers(tables: str) -> None:
    whole = two_stages(tables, None)
    head = section(weights={"layers": {"lm_head": "cpu"}})
    assert two_stages(tables, head) == [ns + 100 + LM_HEAD for ns in whole]
    head = section(weights={"layers": {"lm_head": "cpu"}}, weight_reads="streamed")
    assert two_stages(tables, head) == [ns + 100 + LM_HEAD - 10_000 for ns in whole]
    # The second stage begins to read when it starts: block 1's down projection has its turn at 90 us.
    others = {name: DEVICE for name in BLOCK if name not in (*NO_WEIGHTS, "down_proj")}
    weights = {"blocks": {"1": "cpu"}, "layers": others}
    late = section(SLOW, weights=weights, weight_reads="prefetched")
    assert two_stages(tables, late) == [ns + 163_940 - 90_000 for ns in whole]
    kv = section({**MEMORY, "bandwidth_gbps": 0.01}, kv_cache="cpu")
    transfers = [100 + tokens * KV_TOKEN * 100 for tokens in (8, 9, 10)]
    assert two_stages(tables, kv) == [
        ns + 2 * (more - 20_000) for ns, more in zip(whole, transfers, strict=True)
    ]


NO_WEIGHTS = ("rotary_emb", "attention", "act_fn")


def test_a_law_reads_serially() -> None:
    law = {"linear": {"base_ns": 1_000_000}}
    point = {"profile": law, "workload__generate": ONE_REQUEST, "engine__async_scheduling": False}
    weights = {"layers": {"o_proj": "cpu"}}
    assert durations(make_point(**point, placement=section(weights=weights)))[
        0
    ] == 1_000_000 + 2 * (100 + O_PROJ)
    kv = make_point(**point, placement=section(kv_cache="cpu"))
    assert durations(kv)[0] == 1_000_000 + 2 * (100 + 8 * KV_TOKEN)
    with pytest.raises(InputError, match=r"placement.weight_reads: got 'streamed'"):
        make_point(**point, placement=section(weights=weights, weight_reads="streamed"))


def test_what_a_result_says(tables: str) -> None:
    result = simulate(placed(tables, section(weights={"layers": {"lm_head": "cpu"}})))
    assert result.summary["placement"] == {
        "weight_reads": "serial",
        "weight_bytes": {"cpu": LM_HEAD},
        "kv_cache": "device",
        "weight_read_bytes": 3 * LM_HEAD,
        "kv_moved_bytes": 0,
        "weight_wait_ms": 3 * (100 + LM_HEAD) / 1e6,
        "kv_wait_ms": 0.0,
    }
    shares = result.summary["time_by_source"]
    assert shares["assumed"] == pytest.approx((100 + LM_HEAD) / (STEP_NS + 100 + LM_HEAD))
    assert shares["measured"] == pytest.approx(STEP_NS / (STEP_NS + 100 + LM_HEAD))
    assert any("weights outside the device" in note for note in result.summary["notes"])
    ahead = section(weights={"layers": {"embedding": "cpu"}}, weight_reads="prefetched")
    summary = simulate(placed(tables, ahead)).summary
    assert summary["placement"]["weight_wait_ms"] == pytest.approx(3 * (100 + LM_HEAD) / 1e6)
    assert summary["time_by_source"]["assumed"] == shares["assumed"]


@pytest.mark.parametrize("reads", ["serial", "streamed", "prefetched"])
def test_layers_add_up_to_every_step(tables: str, reads: str) -> None:
    placement = section(weights={"layers": {"lm_head": "cpu"}}, weight_reads=reads)
    point = placed(tables, placement)
    layers = StepLayers(point_bundle(point), prepare(point).latency, 2)
    table = simulate(point, steps=True).steps
    assert table is not None
    for row in table.to_pylist():
        if row["num_tokens"]:
            size = StepSize.of(row)
            parts = layers.split(size)
            assert sum(part.ns for part in parts) == size.device_ns
            assert (parts[0].layer == "weight_reads") == (reads != "prefetched")


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"weights": "cpu"}, r"placement\.weights: got 'cpu', expected one of device"),
        (section(weights="cxl:1"), r"placement\.weights: got 'cxl:1'"),
        (section(kv_cache="cxl"), r"placement\.kv_cache: got 'cxl'"),
        (section(weights={"layers": {"act_fn": "cpu"}}), r"layers: got 'act_fn'"),
        (
            section(weights={"blocks": {"1-2": "cpu"}}),
            r"blocks: got '1-2', expected blocks below 2",
        ),
        (section(weights={"blocks": {"0-1": "cpu", "1": "cpu"}}), r"block 1 once"),
        (section(weights={"blocks": {"all": "cpu"}}), r"numbers and ranges"),
        (section(offload_prefetch_step=2), r"offload_prefetch_step: got 2"),
        ({"memories": {"cxl": MEMORY}, "cpu_offload_gb": 1.0}, r"memories"),
        (section(cpu_offload_gb=1.0, weights="cpu"), r"nothing beside cpu_offload_gb"),
        ({"memories": {"device": MEMORY}}, r"another name"),
        (
            section({**MEMORY, "capacity_gib": 0.0001}, weights="cpu"),
            r"placement\.memories\.cpu\.capacity_gib: got 0.0001, expected at least 0.00",
        ),
        (
            section({**MEMORY, "capacity_gib": 0.0001}, kv_cache="cpu"),
            r"placement\.memories\.cpu\.capacity_gib: got 0.0001, expected at least 0.0002: 60 KV",
        ),
    ],
)
def test_wrong_placements(tables: str, placement: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(placed(tables, placement))


def test_a_tied_head_is_where_the_embedding_is(tables: str) -> None:
    tied = {"model__tie_word_embeddings": True}
    apart = section(weights={"layers": {"lm_head": "cpu"}})
    with pytest.raises(InputError, match="as the embedding that it is tied to"):
        prepare(placed(tables, apart, **tied))
    together = section(weights={"layers": {"lm_head": "cpu", "embedding": "cpu"}})
    point = placed(tables, together, **tied)
    said = simulate(point).summary["placement"]
    assert said["weight_bytes"] == {"cpu": LM_HEAD}
    assert said["weight_read_bytes"] == 3 * 2 * LM_HEAD


@pytest.mark.parametrize("model", [LLAMA_8B, MIXTRAL, QWEN_30B])
@pytest.mark.parametrize("quantization", [None, "fp8"])
@pytest.mark.parametrize("engine", [{}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 4}])
def test_layers_add_up_to_the_weights(
    model: ModelConfig, quantization: Any, engine: dict[str, Any]
) -> None:
    config = EngineConfig(quantization=quantization, **engine)
    stages = shards(model, config)
    held = placed_stages(model, "auto", quantization, Placement(), stages, "test")
    for shard, layers in zip(stages, held, strict=True):
        whole = model.weight_bytes("auto", shard, quantization)
        assert sum(one.held_bytes for one in layers) == whole


def test_biases_and_experts_add_up_too() -> None:
    biased = LLAMA_8B.model_copy(
        update={"attention_bias": True, "mlp_bias": True, "lm_head_bias": True}
    )
    sparse = QWEN_30B.model_copy(update={"mlp_only_layers": (0, 3), "decoder_sparse_step": 2})
    for model, shard in ((biased, Shard(2)), (sparse, Shard(2, 4)), (sparse, Shard())):
        (layers,) = placed_stages(model, "auto", None, Placement(), [shard], "test")
        assert sum(one.num_bytes for one in layers) == model.weight_bytes("auto", shard)
    assert layer_weight_bytes(biased, "act_fn", 0, Shard()) == 0


def test_a_cluster_says_what_its_instances_moved(tables: str) -> None:
    data = point_data(
        profile={"bundle": tables},
        engine__async_scheduling=False,
        cluster={
            "instances": [
                {"count": 1},
                {"count": 1, "placement": section(weights={"layers": {"lm_head": "cpu"}})},
            ]
        },
    )
    summary = simulate(point_from_mapping(data, Path(), "point")).summary
    first, second = summary["instances"]
    assert "placement" not in first
    steps = second["steps"]
    assert second["placement"]["weight_read_bytes"] == steps * LM_HEAD
    assert summary["placement"]["weight_read_bytes"] == steps * LM_HEAD


def test_layers_of(tables: str) -> None:
    """The order of a stage's weights is the order in which they run."""
    (layers,) = placed_stages(make_point().model, "auto", None, Placement(), [Shard()], "test")
    assert layers[0] == LayerWeights(-1, "embedding", LM_HEAD, LM_HEAD)
    assert [one.layer for one in layers[1:7]] == [n for n in BLOCK if n not in NO_WEIGHTS]
    assert layers[-1] == LayerWeights(2, "lm_head", LM_HEAD, LM_HEAD)
