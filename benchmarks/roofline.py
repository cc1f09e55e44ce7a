"""Tables of a dense Llama modelled from a card's data sheet, in the layout of measured ones.

A layer takes as long as its arithmetic at a share of the tensor cores' peak, or as its bytes at the
memory's bandwidth, whichever is longer. Nothing is added for launching a kernel: time per step and
request is the point's `overhead`. Attention adds the arithmetic of prompts (half the square, causal)
to the keys and values that decodes read. These are models, not measurements; meta.yaml says so.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from profiles.model import ModelConfig

TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
CHUNKS = (0, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048)
PRIORS = (0, 512, 1024, 2048)
DECODES = (0, 1, 64, 128, 256, 384)
LENGTHS = (1, 512, 1024, 2048)


@dataclass(frozen=True)
class DataSheet:
    """`flops` of the tensor cores for 16-bit operands, dense; `bandwidth` in bytes a second."""

    card: str
    flops: float
    bandwidth: float


@dataclass(frozen=True)
class Roofline:
    """Times in us of one model's layers."""

    model: ModelConfig
    sheet: DataSheet
    compute_share: float  # of the peak that matrix products reach

    def dense(self, tokens: int) -> dict[str, float]:
        """By layer of the llama architecture; elementwise layers read and write their vectors."""
        m = self.model
        hidden, inner = m.hidden_size, m.intermediate_size
        q, kv = m.num_attention_heads * m.head_dim, m.num_key_value_heads * m.head_dim
        return {
            "embedding": self._moved(2 * tokens * hidden),
            "layernorm": self._moved(2 * tokens * hidden),
            "qkv_proj": self._product(tokens, hidden, q + 2 * kv),
            "rotary_emb": self._moved(2 * tokens * (q + kv)),
            "o_proj": self._product(tokens, q, hidden),
            "gate_up_proj": self._product(tokens, hidden, 2 * inner),
            "act_fn": self._moved(3 * tokens * inner),
            "down_proj": self._product(tokens, inner, hidden),
            "final_layernorm": self._moved(2 * tokens * hidden),
        }

    def per_sequence(self, sequences: int) -> dict[str, float]:
        vocabulary = self.model.vocab_size
        return {
            "lm_head": self._product(sequences, self.model.hidden_size, vocabulary),
            "sampler": self._moved(2 * sequences * vocabulary),
        }

    def attention(self, chunk: int, prior: int, decodes: int, length: int) -> float:
        m = self.model
        flops = 4 * m.num_attention_heads * m.head_dim * (chunk * prior + chunk * chunk / 2)
        read = decodes * length * m.num_key_value_heads * m.head_dim * 2
        return self._computed(flops) + self._moved(read)

    def _product(self, rows: int, k: int, n: int) -> float:
        return max(self._computed(2 * rows * k * n), self._moved(k * n + rows * (k + n)))

    def _computed(self, flops: float) -> float:
        return flops / (self.sheet.flops * self.compute_share) * 1e6

    def _moved(self, elements: float) -> float:
        bytes_per_element = self.model.bytes_per_element("auto")
        return elements * bytes_per_element / self.sheet.bandwidth * 1e6


def write_tables(folder: Path, roofline: Roofline, meta: dict[str, Any]) -> None:
    """meta.yaml and tp1/*.csv of the variant `folder`. Times in us with 4 digits (0.1 ns)."""
    part = folder / "tp1"
    part.mkdir(parents=True, exist_ok=True)
    shape = {"architecture": roofline.model.model_type, "hardware": roofline.sheet.card}
    named = {"model": roofline.model.name, "variant": folder.name}
    text = yaml.safe_dump({**shape, **named, **meta}, sort_keys=False, width=100)
    (folder / "meta.yaml").write_text(text, encoding="utf-8")
    for name, axis, times in (
        ("dense", "tokens", {t: roofline.dense(t) for t in TOKENS}),
        ("per_sequence", "sequences", {s: roofline.per_sequence(s) for s in TOKENS}),
    ):
        layers = next(iter(times.values()))
        rows = [(layer, key, f"{times[key][layer]:.4f}") for layer in layers for key in times]
        _write_csv(part / f"{name}.csv", f"layer,{axis},time_us", rows)
    grid = [
        (chunk, prior, decodes, length)
        for chunk, decodes in product(CHUNKS, DECODES)
        if chunk or decodes
        for prior in (PRIORS if chunk else (0,))
        for length in (LENGTHS if decodes else (0,))
    ]
    _write_csv(
        part / "attention.csv",
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us",
        [(*shape, f"{roofline.attention(*shape):.4f}") for shape in grid],
    )


def _write_csv(path: Path, header: str, rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header.split(","))
        writer.writerows(rows)
