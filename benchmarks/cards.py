"""Composed cards against what vLLM did: TPOT of the results that aiconfigurator-core collects.

    python -m benchmarks.cards

`systems/silicon_sample.csv` of the package holds mean TPOT of closed loops (a number of requests in
flight, one prompt and output length) of real vLLM runs. Without a simulation the same follows from the
tables: a decode step at that many requests, halfway through their outputs, and the prompts that come in
between, batch / osl a step. Prints the median, least and largest estimate / measured for each system,
model, weight type and TP degree; rows whose shapes are not measured are left out.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from functools import cache

from benchmarks.models import MODELS
from profiles.aiconfigurator.compose import load_bundle
from profiles.aiconfigurator.shape import Shape
from profiles.aiconfigurator.source import Place, systems_folder
from profiles.bundle import Bundle
from profiles.errors import InputError
from profiles.lookup import attention_ns, layer_ns
from profiles.model import ModelConfig


def step_ns(bundle: Bundle, num_layers: int, chunk: int, n_decode: int, kv: int) -> float:
    """One prompt without a history, or decodes that hold `kv` tokens each."""
    block, once = bundle.architecture.block("dense"), bundle.architecture.once("dense")
    tokens, sequences = chunk + n_decode, n_decode + (chunk > 0)
    layers = sum(
        (num_layers * block.count(name) + once.count(name)) * layer_ns(table, tokens)
        for name, table in bundle.dense.items()
    )
    head = sum(layer_ns(table, sequences) for table in bundle.per_sequence.values())
    return layers + head + num_layers * attention_ns(bundle.attention, chunk, n_decode, 0, kv)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cards", description=__doc__)
    parser.parse_args()

    @cache
    def model_of(name: str) -> ModelConfig:
        return ModelConfig.model_validate(MODELS[name])

    @cache
    def bundle_of(system: str, name: str, tp: int, quantization: str | None) -> Bundle | None:
        try:
            shape = Shape.of(model_of(name), "bfloat16", "bfloat16", tp, Place(), quantization)
            return load_bundle(system, None, shape, Place())
        except InputError:
            return None

    ratios: dict[tuple[str, ...], list[float]] = defaultdict(list)
    with (systems_folder() / "silicon_sample.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            aggregated = (row["backend"], row["mode"]) == ("vllm", "agg")
            weights = row["gemm_quant_mode"]
            if not aggregated or row["model_path"] not in MODELS or weights not in ("", "fp8"):
                continue
            name, tp = row["model_path"], int(float(row["tp_size"]))
            bundle = bundle_of(row["system"], name, tp, weights or None)
            if bundle is None:
                continue
            batch, isl, osl = (int(float(row[key])) for key in ("batch_size", "isl", "osl"))
            layers = model_of(name).num_hidden_layers
            ns = step_ns(bundle, layers, 0, batch, isl + osl // 2)
            ns += batch / osl * step_ns(bundle, layers, isl, 0, 0)
            key = (row["system"], name, weights or "bfloat16", f"TP {tp}")
            ratios[key].append(ns / 1e6 / float(row["silicon_tpot_ms"]))
    for key, found in sorted(ratios.items()):
        middle, least, most = statistics.median(found), min(found), max(found)
        print(f"{' '.join(key):52s}{len(found):4d} rows {middle:6.2f}  ({least:.2f} to {most:.2f})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
