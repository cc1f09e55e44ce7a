"""Truth that comes with the package aiconfigurator-core: measured TTFT and TPOT of real vLLM.

`systems/silicon_sample.csv` holds means over a closed loop: so many requests in flight (named in the
text of where a row comes from, not always in its column `batch_size`), all of one prompt and one output
length. Used are rows of vLLM, prefill and decode together, without pipeline or data parallelism, whose
text names the concurrency, and experts, where there are any, cut over the same ranks as all else.

Left out are rows that cannot be such a loop (`can_be_a_loop`). From its first token to its last, and
before that to its first, a client waits while every other client's prompt is computed once and every one
of its own tokens reads the KV cache of all. At the data sheet's peak for the matrices of the prompts and
its bandwidth for the KV cache that has a least time; a row that was faster had fewer in flight.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Literal

from orchestrator.truth_config import SiliconRow
from orchestrator.truth_data import Truth, content_id
from profiles.aiconfigurator.source import Place, load_card, systems_folder
from profiles.errors import InputError
from profiles.model import ModelConfig

CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")
ALONE = ("pp_size", "attention_dp_size", "moe_ep_size")
WEIGHTS: dict[str, Literal["fp8"] | None] = {
    "": None,
    "fp8": "fp8",
}  # gemm_quant_mode -> engine.quantization


@dataclass(frozen=True)
class Measured:
    """One row; times are means in ms."""

    row: SiliconRow
    vllm_version: str
    ttft_ms: float
    tpot_ms: float


@cache
def measured_rows() -> tuple[Measured, ...]:
    """Every row that can be used, in the file's order. Raises InputError without the package."""
    path = systems_folder(Place("aiconfigurator-core")) / "silicon_sample.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(_rows(csv.DictReader(file)))


def _rows(rows: csv.DictReader[str]) -> Iterator[Measured]:
    for row in rows:
        if (row["backend"], row["mode"]) != ("vllm", "agg"):
            continue
        concurrency = CONCURRENCY.search(row["silicon_data_source"])
        alone = all(float(row[name] or 0) in (0, 1) for name in ALONE)
        # Models without experts say nothing here, 0 or 1.
        with_the_rest = float(row["moe_tp_size"] or 0) in (0, 1, float(row["tp_size"]))
        known = row["gemm_quant_mode"] in WEIGHTS
        if not (concurrency and alone and with_the_rest and known):
            continue
        yield Measured(
            SiliconRow(
                system=row["system"],
                model=row["model_path"],
                tensor_parallel_size=int(float(row["tp_size"])),
                quantization=WEIGHTS[row["gemm_quant_mode"]],
                isl=int(float(row["isl"])),
                osl=int(float(row["osl"])),
                concurrency=int(concurrency.group(1)),
            ),
            row["backend_version"] or "not stated",
            float(row["silicon_ttft_ms"]),
            float(row["silicon_tpot_ms"]),
        )


def can_be_a_loop(one: Measured, model: ModelConfig) -> bool:
    """Whether so many requests can have been in flight, by the card's data sheet."""
    row, ranks = one.row, one.row.tensor_parallel_size
    card = load_card(row.system, Place("aiconfigurator-core"))
    assert card.memory_bandwidth_gbps is not None and card.bfloat16_tflops is not None
    tflops = card.bfloat16_tflops * (2 if row.quantization else 1)  # tensor cores: half the bytes
    flop = 2 * model.num_parameters * row.concurrency * row.isl / ranks
    held = row.concurrency * (row.isl + row.osl // 2)
    kv_bytes = held * model.kv_bytes_per_token("auto", ranks) * (row.osl - 1)
    least_ms = flop / tflops / 1e9 + kv_bytes / card.memory_bandwidth_gbps / 1e6
    return one.ttft_ms + (row.osl - 1) * one.tpot_ms >= least_ms


def silicon_truth(wanted: SiliconRow) -> Truth:
    """Repeated measurements by their mean. Raises InputError if nothing like that was measured."""
    asked = wanted.model_copy(update={"vllm_version": None})
    found = [one for one in measured_rows() if one.row == asked]
    if not found:
        raise _not_measured(asked)
    versions = sorted({one.vllm_version for one in found})
    version = wanted.vllm_version or versions[0]
    if version not in versions or (wanted.vllm_version is None and len(versions) > 1):
        expected = f"one of {', '.join(versions)}, as measured"
        raise InputError("truth.aiconfigurator", "vllm_version", wanted.vllm_version, expected)
    # Some measurements are in the file twice.
    runs = list(dict.fromkeys(one for one in found if one.vllm_version == version))
    of_runs = f", mean of {len(runs)} measurements" if len(runs) > 1 else ""
    return Truth(
        source=f"aiconfigurator-core: {wanted.model} on {wanted.system}",
        kind="aiconfigurator",
        content_id=content_id("aiconfigurator", *map(repr, runs)),
        num_requests=None,
        metrics={
            "ttft_ms": {"mean": fmean(one.ttft_ms for one in runs)},
            "tpot_ms": {"mean": fmean(one.tpot_ms for one in runs)},
        },
        settings={"model": wanted.model, "tensor_parallel_size": wanted.tensor_parallel_size},
        single_tokens_in_tpot=False,
        notes=(f"vLLM {version}, means over a closed loop{of_runs}",),
    )


def _not_measured(wanted: SiliconRow) -> InputError:
    """Names the first field that no row has together with those before it."""
    rows = [one.row for one in measured_rows()]
    for field in (name for name in SiliconRow.model_fields if name != "vllm_version"):
        value = getattr(wanted, field)
        left = [row for row in rows if getattr(row, field) == value]
        if not left:
            known = sorted({getattr(row, field) for row in rows}, key=lambda v: (str(type(v)), v))
            expected = f"one of {', '.join(map(str, known))}, as measured"
            return InputError("truth.aiconfigurator", field, value, expected)
        rows = left
    raise AssertionError("a row has all of it")
