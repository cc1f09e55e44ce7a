"""The duration of a batch, read straight from the CSV files with dictionaries and bisection.

Independent of the code under test: it shares no function and no data with it.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

BLOCK = (
    "layernorm",
    "qkv_proj",
    "rotary_emb",
    "o_proj",
    "layernorm",
    "gate_up_proj",
    "act_fn",
    "down_proj",
)
ONCE = ("embedding", "final_layernorm")
STABLE = ("layernorm", "final_layernorm", "sampler")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def ns(row: dict[str, str]) -> int:
    return max(1, round(float(row["time_us"]) * 1000))


def bracket(keys: list[int], query: int) -> tuple[int, int, float]:
    if len(keys) == 1 or query <= keys[0]:
        return keys[0], keys[0], 0.0
    at = bisect_right(keys, query)
    low, high = (keys[-2], keys[-1]) if at == len(keys) else (keys[at - 1], keys[at])
    return low, high, (query - low) / (high - low)


def between(keys: list[int], query: int, value: Any) -> float:
    low, high, t = bracket(keys, query)
    if low == high:
        return value(low)
    below = value(low)
    return below + t * (value(high) - below)


class NaiveLatency:
    """`num_layers` blocks of a llama bundle; a bucket without a fit has share `unfitted`."""

    def __init__(self, folder: Path, tp: int, num_layers: int, unfitted: str) -> None:
        self.num_layers = num_layers
        self.layers: dict[str, dict[int, int]] = defaultdict(dict)
        for name, key in (("dense", "tokens"), ("per_sequence", "sequences")):
            for degree in (tp, 1):
                for row in rows_of(folder / f"tp{degree}/{name}.csv"):
                    if degree == tp or row["layer"] in STABLE:
                        self.layers[row["layer"]][int(row[key])] = ns(row)
        self.slices: dict[tuple[int, int], dict[int, dict[int, int]]] = {}
        for row in rows_of(folder / f"tp{tp}/attention.csv"):
            pair = int(row["prefill_chunk"]), int(row["n_decode"])
            in_slice = self.slices.setdefault(pair, {})
            in_slice.setdefault(int(row["kv_prefill"]), {})[int(row["kv_decode"])] = ns(row)
        self.chunks = sorted({chunk for chunk, _ in self.slices})
        self.decodes = sorted({n_decode for _, n_decode in self.slices})
        self.outside: dict[str, dict[str, int]] = {}
        fit = yaml.safe_load((folder / "meta.yaml").read_text())["skew_fit"]
        self.axes, self.alpha, self.unfitted = None, {}, 0.0
        if fit["enabled"] and tp in fit["per_tp"]:
            self.axes = fit["bucket_axes"]
            for row in rows_of(folder / f"tp{tp}/skew_fit.csv"):
                self.alpha[tuple(list(row.values())[:5])] = float(row["alpha"])
            if unfitted == "pooled":
                self.unfitted = fit["per_tp"][tp]["alpha_default"]

    def step(self, batch: Sequence[int], dense_tokens: int | None = None) -> int:
        """`dense_tokens`: what the dense layers run, where they are padded."""
        tokens, seqs, *shape = map(int, batch)
        tokens = dense_tokens or tokens
        block = sum(self.layer(name, tokens) for name in BLOCK) + self.attention(shape)
        once = sum(self.layer(name, tokens) for name in ONCE)
        heads = self.layer("lm_head", seqs) + self.layer("sampler", seqs)
        return once + self.num_layers * block + heads

    def layer(self, name: str, query: int) -> int:
        table = self.layers[name]
        return max(1, int(between(sorted(table), query, table.__getitem__)))

    def attention(self, shape: Sequence[int]) -> int:
        chunk, kv_prefill, n_decode, kv_sum, kv_max, kv_min = shape
        mean = kv_sum // n_decode if n_decode else 0
        at_mean = self.grid(chunk, kv_prefill, n_decode, mean)
        if n_decode <= 1 or kv_max == mean or self.axes is None:
            return at_mean
        rate = min(1.0, max(0.0, (mean - kv_min) / (kv_max - kv_min)))
        labels = [
            self.label("n", n_decode),
            self.label("skew_rate", rate),
            self.label("kv_big", kv_max),
            self.label("kp", kv_prefill),
        ]
        alpha = self.alpha.get((str(chunk), *labels), self.unfitted)
        at_max = self.grid(chunk, kv_prefill, n_decode, kv_max)
        if at_max <= at_mean:
            return at_mean
        return max(1, round(at_mean + alpha * (at_max - at_mean)))

    def label(self, axis: str, value: float) -> str:
        bins, labels = self.axes[f"{axis}_bins"], self.axes[f"{axis}_labels"]
        for upper, label in zip(bins[1:], labels, strict=True):
            if value <= upper:
                return label
        return labels[-1]

    def grid(self, chunk: int, kv_prefill: int, n_decode: int, kv_decode: int) -> int:
        def corner(c: int, d: int) -> float:
            pair = min(self.slices, key=lambda p: ((p[0] - c) ** 2 + (p[1] - d) ** 2, p))
            rows = self.slices[pair]
            return between(sorted(rows), kv_prefill, lambda kp: row(rows[kp]))

        def row(times: dict[int, int]) -> float:
            return between(sorted(times), kv_decode, times.__getitem__)

        def at_chunk(c: int) -> float:
            return between(self.decodes, n_decode, lambda d: corner(c, d))

        return max(1, int(between(self.chunks, chunk, at_chunk)))


def random_batches(count: int, seed: int, *, tokens: int, seqs: int, kv: int) -> np.ndarray:
    """Batches of every kind within and beyond a grid that ends about at these numbers.

    Columns: tokens, sequences, prefill_chunk, kv_prefill, n_decode, kv_sum, kv_max, kv_min.
    """
    rng = np.random.default_rng(seed)

    def length(top: int) -> int:
        return int(2 ** rng.uniform(0, np.log2(top * 1.5)))

    batches = np.zeros((count, 8), np.int64)
    for batch in batches:
        kind = rng.integers(3)
        n_decode = 0 if kind == 0 else min(length(seqs), int(seqs * 1.2) - 1)
        chunk = 0 if kind == 1 else min(length(tokens), tokens - 1)
        if chunk and rng.random() < 0.5:
            chunk = min(2 ** int(np.log2(chunk)), tokens - 1)  # a fitted one, more often
        kv_prefill = length(kv) - 1 if chunk and rng.random() < 0.7 else 0
        top = length(kv)
        lengths = rng.integers(0, top + 1, n_decode) if n_decode else np.zeros(1, np.int64)
        if rng.random() < 0.2:
            lengths[:] = top if n_decode else 0
        batch[:5] = chunk + n_decode, n_decode + (chunk > 0), chunk, kv_prefill, n_decode
        batch[5:] = lengths.sum(), lengths.max(), lengths.min()
    return batches
