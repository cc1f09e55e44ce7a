"""Measured variants for tests: a small one that is written here, and where the real ones are."""

from __future__ import annotations

import csv
import importlib.util
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT.parent / "shared/reference/llmservingsim"
needs_reference = pytest.mark.skipif(
    not REFERENCE.is_dir(), reason="needs ../shared/reference/llmservingsim beside the project"
)
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None,
    reason="needs the package aiconfigurator-core",
)

DENSE = (
    "embedding",
    "layernorm",
    "qkv_proj",
    "rotary_emb",
    "o_proj",
    "gate_up_proj",
    "act_fn",
    "down_proj",
    "final_layernorm",
)
PER_SEQUENCE = ("lm_head", "sampler")
TOKENS = (1, 4, 16, 64, 96)
SEQUENCES = (1, 2, 8, 12)
CHUNKS = (0, 16, 40, 64)
DECODES = (0, 1, 4, 16)
KV = (16, 64, 256, 1000)
MISSING_SLICES = {(0, 0), (64, 16), (40, 4)}

BUCKETS = {
    "pc": "exact",
    "n_bins": [0, 2, 8, 1000000],
    "n_labels": ["n<=2", "n<=8", "n>8"],
    "skew_rate_bins": [-0.01, 0.25, 0.6, 1.01],
    "skew_rate_labels": ["low", "middle", "high"],
    "kv_big_bins": [0, 64, 1000000000],
    "kv_big_labels": ["short", "long"],
    "kp_bins": [-1, 0, 100, 1000000000],
    "kp_labels": ["none", "some", "much"],
}


def meta(**changes: Any) -> dict[str, Any]:
    """A meta.yaml with a skew fit for tp1."""
    fit = {"enabled": True, "bucket_axes": BUCKETS, "per_tp": {1: {"alpha_default": 0.0625}}}
    return {
        "architecture": "llama",
        "hardware": "TestCard",
        "model": "test/model",
        "variant": "bf16",
        "skew_fit": fit,
        **changes,
    }


def layer_rows(
    layers: Iterable[str], keys: Sequence[int], rng: random.Random
) -> list[tuple[Any, ...]]:
    return [(layer, key, round(rng.uniform(1, 900), 4)) for layer in layers for key in keys]


def attention_rows(rng: random.Random) -> list[tuple[Any, ...]]:
    """A ragged grid: slices are missing, rows start and end where they like."""
    rows = []
    for chunk in CHUNKS:
        for n_decode in DECODES:
            if (chunk, n_decode) in MISSING_SLICES:
                continue
            for kv_prefill in (0, *KV[: rng.randint(1, 4)]) if chunk else (0,):
                first = rng.randint(0, 1)
                lengths = KV[first : rng.randint(first + 1, 4)] if n_decode else (0,)
                for kv_decode in lengths:
                    us = round(rng.uniform(5, 9) + chunk * n_decode * kv_decode / 999, 4)
                    rows.append((chunk, kv_prefill, n_decode, kv_decode, us))
    return rows


def skew_rows(rng: random.Random) -> list[tuple[Any, ...]]:
    """Most buckets of chunks 0, 16 and 64 with shares of either sign, some left out."""
    return [
        (chunk, n, rate, kv, kp, round(rng.uniform(-2, 3), 4), 4)
        for chunk in (0, 16, 64)
        for n in BUCKETS["n_labels"]
        for rate in BUCKETS["skew_rate_labels"]
        for kv in BUCKETS["kv_big_labels"]
        for kp in BUCKETS["kp_labels"]
        if rng.random() < 0.7
    ]


def write_csv(path: Path, header: str, rows: Iterable[Iterable[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        writer.writerows(rows)


def write_variant(root: Path, seed: int = 0, tps: Sequence[int] = (1,), **changes: Any) -> Path:
    """A complete variant of a dense model below `root`; returns its folder."""
    folder = root / "perf/TestCard/test/model/bf16"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.yaml").write_text(yaml.safe_dump(meta(**changes)))
    for tp in tps:
        rng = random.Random(f"{seed} {tp}")
        part = folder / f"tp{tp}"
        write_csv(part / "dense.csv", "layer,tokens,time_us", layer_rows(DENSE, TOKENS, rng))
        rows = layer_rows(PER_SEQUENCE, SEQUENCES, rng)
        write_csv(part / "per_sequence.csv", "layer,sequences,time_us", rows)
        header = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
        write_csv(part / "attention.csv", header, attention_rows(rng))
        header = "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples"
        write_csv(part / "skew_fit.csv", header, skew_rows(rng))
    return folder


def write_two_ranks(root: Path) -> Path:
    """A variant measured on one and on two ranks, with the all-reduce of two; returns its folder."""
    folder = write_variant(root, seed=5, tps=(1, 2))
    with (folder / "tp2/dense.csv").open("a", newline="") as file:
        csv.writer(file).writerows(("all_reduce", tokens, 10 + tokens) for tokens in TOKENS)
    return folder
