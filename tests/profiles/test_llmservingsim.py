"""Reading measured variants: what is read, and what each mistake is answered with."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from profiles.errors import InputError
from profiles.llmservingsim import load_bundle
from tests.profiles.bundles import (
    BUCKETS,
    DENSE,
    PER_SEQUENCE,
    REFERENCE,
    needs_reference,
    write_csv,
    write_variant,
)


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "store"))


@pytest.fixture
def variant(tmp_path: Path) -> Path:
    return write_variant(tmp_path)


def test_reads_a_variant(variant: Path) -> None:
    bundle = load_bundle(variant)
    assert (bundle.card, bundle.model, bundle.variant) == ("TestCard", "test/model", "bf16")
    assert bundle.tp == 1
    assert tuple(bundle.dense) == DENSE
    assert tuple(bundle.per_sequence) == PER_SEQUENCE
    assert bundle.architecture.block("dense").count("layernorm") == 2
    assert bundle.moe is None
    assert bundle.skew is not None
    assert bundle.skew.pooled_alpha == 0.0625
    assert bundle.skew.kv_prefill_edges.tolist() == BUCKETS["kp_bins"][1:]


def test_times_are_whole_ns_of_at_least_1(variant: Path) -> None:
    rows = [(layer, 1, us) for layer, us in zip(DENSE, (0.0001, 1.2344, 1.2346), strict=False)]
    rows += [(layer, 1, 7) for layer in DENSE[3:]]
    write_csv(variant / "tp1/dense.csv", "layer,tokens,time_us", rows)
    dense = load_bundle(variant).dense
    assert [int(dense[layer].ns[0]) for layer in DENSE[:4]] == [1, 1234, 1235, 7000]


def test_order_of_rows_and_columns_does_not_matter(variant: Path) -> None:
    before = load_bundle(variant)
    for name in ("dense", "per_sequence", "attention", "skew_fit"):
        path = variant / f"tp1/{name}.csv"
        header, *rows = path.read_text().splitlines()
        random.Random(1).shuffle(rows)
        turned = [",".join(reversed(line.split(","))) for line in (header, *rows)]
        path.write_text("\n".join(turned) + "\n")
    after = load_bundle(variant)
    assert after.content_id != before.content_id
    assert all(np.array_equal(after.dense[k].ns, before.dense[k].ns) for k in DENSE)
    assert np.array_equal(after.attention.ns, before.attention.ns)
    assert np.array_equal(after.skew.alpha, before.skew.alpha)


def test_layers_that_tp_does_not_change_come_from_tp1(tmp_path: Path) -> None:
    variant = write_variant(tmp_path, tps=(1, 2))
    one, two = load_bundle(variant, 1), load_bundle(variant, 2)
    stable = {"layernorm", "final_layernorm"}
    same = {k for k in DENSE if np.array_equal(one.dense[k].ns, two.dense[k].ns)}
    assert same == stable
    assert np.array_equal(one.per_sequence["sampler"].ns, two.per_sequence["sampler"].ns)
    assert not np.array_equal(one.per_sequence["lm_head"].ns, two.per_sequence["lm_head"].ns)
    assert not np.array_equal(one.attention.ns, two.attention.ns)
    assert two.skew is None, "meta.yaml fits tp1 only"


def test_content_id_follows_the_files_that_are_used(tmp_path: Path) -> None:
    variant = write_variant(tmp_path, skew_fit={"enabled": False})
    before = load_bundle(variant).content_id
    assert load_bundle(variant).content_id == before
    (variant / "tp1/skew_fit.csv").write_text("not even a table")
    assert load_bundle(variant).content_id == before
    text = (variant / "tp1/dense.csv").read_text()
    (variant / "tp1/dense.csv").write_text(text.replace("act_fn,1,", "act_fn,1,9"))
    assert load_bundle(variant).content_id != before


def edit(name: str, change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    """Change the lines of one file."""

    def apply(variant: Path) -> None:
        path = variant / name
        path.write_text("".join(change(path.read_text().splitlines(keepends=True))))

    return apply


def line(number: int, text: str) -> Callable[[list[str]], list[str]]:
    return lambda lines: [*lines[: number - 1], text + "\n", *lines[number:]]


DENSE_CSV, ATTENTION_CSV, SKEW_CSV = "tp1/dense.csv", "tp1/attention.csv", "tp1/skew_fit.csv"
WRONG: list[tuple[str, Callable[[Path], None], str]] = [
    ("no file", lambda v: (v / DENSE_CSV).unlink(), "dense.csv: file: got nothing"),
    ("no column", edit(DENSE_CSV, line(1, "layer,tokens,ms")), "dense.csv: line 1: .*time_us"),
    (
        "a column too many",
        edit(DENSE_CSV, lambda lines: [text.strip() + ",1\n" for text in lines]),
        "dense.csv: line 1: got '1', expected no columns but layer,tokens,time_us",
    ),
    ("empty", edit(DENSE_CSV, lambda _: []), "dense.csv: file: got nothing"),
    ("header only", edit(DENSE_CSV, lambda lines: lines[:1]), "dense.csv: .*at least one row"),
    (
        "half a row",
        edit(DENSE_CSV, lambda lines: [*lines[:-1], "down_pro"]),
        "dense.csv: line 46, row: got 'down_pro', expected 3 values",
    ),
    (
        "half a number",
        edit(DENSE_CSV, lambda lines: [*lines[:-1], lines[-1].strip()[:-2]]),
        "dense.csv: line 46, row: .*cut short",
    ),
    ("blank line", edit(DENSE_CSV, line(3, "")), "line 3, row: got '', expected 3 values"),
    ("not a number", edit(DENSE_CSV, line(3, "act_fn,1,fast")), "line 3, time_us: got 'fast'"),
    ("nan", edit(DENSE_CSV, line(4, "act_fn,1,nan")), "line 4, time_us: got nan"),
    ("infinite", edit(ATTENTION_CSV, line(5, "0,0,1,16,inf")), "line 5, time_us: got inf"),
    ("zero", edit(DENSE_CSV, line(4, "act_fn,1,0")), "line 4, time_us: got 0.0, .*above 0"),
    ("negative", edit(DENSE_CSV, line(4, "act_fn,1,-2")), "line 4, time_us: got -2.0"),
    ("tokens 0", edit(DENSE_CSV, line(2, "act_fn,0,2")), "line 2, tokens: got 0, .*at least 1"),
    ("tokens 1.5", edit(DENSE_CSV, line(2, "act_fn,1.5,2")), "line 2, tokens: got '1.5'"),
    ("tokens 1_0", edit(DENSE_CSV, line(2, "act_fn,1_0,2")), "line 2, tokens: got '1_0'"),
    ("tokens huge", edit(DENSE_CSV, line(2, f"act_fn,{10**30},2")), "dense.csv: tokens"),
    ("negative kv", edit(ATTENTION_CSV, line(6, "0,0,1,-16,3")), "line 6, kv_decode: got -16"),
    (
        "a key twice",
        edit(DENSE_CSV, line(4, "embedding,1,5")),
        "line 4, key: got 'layer=embedding, tokens=1', .*line 2 has it",
    ),
    (
        "an attention point twice",
        edit(ATTENTION_CSV, lambda lines: [*lines, lines[4]]),
        "attention.csv: line .*, key: .*line 5 has it",
    ),
    (
        "no such layer",
        edit(DENSE_CSV, lambda lines: [x.replace("o_proj", "out_proj") for x in lines]),
        "dense.csv: layer: .*expected layer o_proj",
    ),
    (
        "unknown bucket",
        edit(SKEW_CSV, line(3, "0,n<=3,low,short,none,0.5,4")),
        "skew_fit.csv: line 3, n_label: got 'n<=3', expected one of n<=2",
    ),
    (
        "infinite share",
        edit(SKEW_CSV, line(3, "0,n<=2,low,short,none,inf,4")),
        "skew_fit.csv: line 3, alpha: got inf",
    ),
    (
        "unknown architecture",
        edit("meta.yaml", lambda lines: [x.replace("llama", "gpt") for x in lines]),
        "meta.yaml: architecture: got 'gpt', expected one of llama, mixtral",
    ),
    (
        "meta without hardware",
        edit("meta.yaml", lambda lines: [x for x in lines if "hardware" not in x]),
        "meta.yaml: hardware: got nothing",
    ),
    ("meta is a list", edit("meta.yaml", lambda _: ["- 1\n"]), "meta.yaml: file: got"),
    (
        "edges out of order",
        edit("meta.yaml", lambda lines: [x.replace("- 64\n", "- -64\n") for x in lines]),
        "meta.yaml: skew_fit.bucket_axes.kv_big_bins: .*increasing",
    ),
    (
        "an edge too few",
        edit("meta.yaml", lambda lines: [x.replace("    - 100\n", "") for x in lines]),
        "meta.yaml: skew_fit.bucket_axes.kp_bins: .*4 edges",
    ),
]


@pytest.mark.parametrize(
    ("change", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_wrong_files(variant: Path, change: Callable[[Path], None], message: str) -> None:
    change(variant)
    with pytest.raises(InputError, match=message):
        load_bundle(variant)


def test_missing_variant_lists_what_is_there(variant: Path) -> None:
    with pytest.raises(InputError, match=r"below .*model there are: bf16"):
        load_bundle(variant.parent / "bf16-kvfp8")
    with pytest.raises(InputError, match=r"there are: TestCard/test/model/bf16"):
        load_bundle(variant.parents[3] / "H100/test/model/bf16")


def test_missing_tp_lists_what_is_there(tmp_path: Path) -> None:
    variant = write_variant(tmp_path, tps=(1, 2))
    with pytest.raises(InputError, match=r"tp: got 4, expected one of 1, 2"):
        load_bundle(variant, 4)


def test_expert_table_comes_from_tp1(tmp_path: Path) -> None:
    variant = write_variant(tmp_path, tps=(1, 2), architecture="mixtral")
    with pytest.raises(InputError, match=r"tp1/moe.csv: file: got nothing"):
        load_bundle(variant, 2)
    rows = [(4, 8, 5.5), (4, 2, 4.5), (1, 2, 3.5)]
    write_csv(variant / "tp1/moe.csv", "tokens,activated_experts,time_us", rows)
    moe = load_bundle(variant, 2).moe
    assert moe.activated_experts.tolist() == [2, 2, 8]
    assert moe.tokens.tolist() == [1, 4, 4]
    assert moe.ns.tolist() == [3500, 4500, 5500]


@needs_reference
@pytest.mark.parametrize(
    ("path", "tp", "points", "skew"),
    [
        ("RTX4090/meta-llama/Llama-3.1-8B/bf16", 1, 8643, False),
        ("RTXPRO6000/meta-llama/Llama-3.1-8B/bf16", 1, 19364, True),
        ("RTXPRO6000/meta-llama/Llama-3.1-8B/bf16", 2, 19364, True),
        ("RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507/bf16", 2, 19364, True),
    ],
)
def test_reads_measured_cards(path: str, tp: int, points: int, skew: bool) -> None:
    bundle = load_bundle(REFERENCE / "perf" / path, tp)
    assert len(bundle.attention.ns) == points
    assert (bundle.skew is not None) == skew
    assert (bundle.moe is not None) == ("Qwen" in path)
    assert all(len(table.keys) == 152 for table in bundle.dense.values())


@needs_reference
def test_missing_card_lists_the_measured_ones() -> None:
    with pytest.raises(InputError, match=r"RTXPRO6000/meta-llama/Llama-3.1-8B/bf16"):
        load_bundle(REFERENCE / "perf/H100/meta-llama/Llama-3.1-8B/bf16")
