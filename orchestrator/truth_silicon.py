"""Truth that comes with the package aiconfigurator-core: measured TTFT and TPOT of real vLLM.

`systems/silicon_sample.csv` holds means over a closed loop: so many requests in flight (named in the
text of where a row comes from, not always in its column `batch_size`), all of one prompt and one output
length. Used are rows of vLLM, prefill and decode together, without pipeline or data parallelism, whose
text names the concurrency.

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
from typing import Literal

from orchestrator.truth_config import SiliconRow
from orchestrator.truth_data import Truth, content_id
from profiles.aiconfigurator.source import Place, load_card, systems_folder
from profiles.errors import InputError
from profiles.model import ModelConfig

CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")
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
        concurrency = CONCURRENCY.search(row["silicon_data_source"])
        alone = all(float(row[name] or 1) == 1 for name in ("pp_size", "attention_dp_size"))
        known = row["gemm_quant_mode"] in WEIGHTS
        if (row["backend"], row["mode"]) != ("vllm", "agg") or not (
            concurrency and alone and known
        ):
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
    """Raises InputError if nothing like that was measured."""
    found = [one for one in measured_rows() if one.row == wanted]
    if not found:
        raise _not_measured(wanted)
    one = found[0]
    return Truth(
        source=f"aiconfigurator-core: {wanted.model} on {wanted.system}",
        kind="aiconfigurator",
        content_id=content_id("aiconfigurator", repr(one)),
        num_requests=None,
        metrics={"ttft_ms": {"mean": one.ttft_ms}, "tpot_ms": {"mean": one.tpot_ms}},
        settings={"model": wanted.model, "tensor_parallel_size": wanted.tensor_parallel_size},
        single_tokens_in_tpot=False,
        notes=(f"vLLM {one.vllm_version}, means over a closed loop",),
    )


def _not_measured(wanted: SiliconRow) -> InputError:
    """Names the first field that no row has together with those before it."""
    rows = [one.row for one in measured_rows()]
    for field in SiliconRow.model_fields:
        value = getattr(wanted, field)
        left = [row for row in rows if getattr(row, field) == value]
        if not left:
            known = sorted({getattr(row, field) for row in rows}, key=lambda v: (str(type(v)), v))
            expected = f"one of {', '.join(map(str, known))}, as measured"
            return InputError("truth.aiconfigurator", field, value, expected)
        rows = left
    raise AssertionError("a row has all of it")
