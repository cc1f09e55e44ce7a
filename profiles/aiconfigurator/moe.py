"""The routed experts of a block: measured over tokens with a stated routing, here for a uniform one.

`balanced` rows spread T x k choices as evenly as they go, so that T tokens wake min(E, T x k) of E
experts. Under uniform random routing T tokens wake E (1 - (1 - k/E)^T) in the mean. Up to the point
where balanced rows have woken all experts, the time is set by reading the experts awake: it is that of
the balanced batch that wakes as many. What more tokens than that cost is added as measured. Systems
without balanced rows (A100, B60) have `power_law_1.01` rows, which are taken as they are. The router is
a matrix product of its own.
"""

from __future__ import annotations

import numpy as np

from profiles.aiconfigurator.gemm import NS_PER_MS, GemmTables, whole_ns
from profiles.aiconfigurator.shape import Shape
from profiles.aiconfigurator.source import Columns, System, read_columns, values_of
from profiles.bundle import Floats, Ints, LayerTable
from profiles.errors import InputError
from profiles.provenance import DERIVED, MEASURED
from profiles.routing import FINE, Routing

BALANCED, SKEWED = "balanced", "power_law_1.01"
SHAPE = ("hidden_size", "inter_size", "topk", "num_experts")


def expert_table(system: System, shape: Shape, gemm: GemmTables) -> LayerTable:
    """Router and experts of one rank, by tokens. Raises InputError if the shape was not measured."""
    tokens, ns, distribution = _measured(system, shape)
    if distribution == BALANCED:
        keys = np.unique(np.concatenate([tokens, FINE]))
        full = shape.experts / shape.experts_per_token
        awake = Routing(shape.experts, shape.experts_per_token).awake(keys)
        alike = np.interp(awake / shape.experts_per_token, tokens, ns)
        more = np.interp(np.maximum(keys, full), tokens, ns) - np.interp(full, tokens, ns)
        found = alike + np.maximum(0.0, more)
        saturated = np.isin(keys, tokens) & (awake > 0.99 * shape.experts)
        source = np.where(saturated, MEASURED, DERIVED)
    else:
        keys, found, source = tokens, ns, np.full(len(tokens), DERIVED)
    router = gemm.layer(shape.experts, shape.hidden_size)
    found = found + np.interp(keys, router.keys, router.ns)
    return LayerTable(keys.astype(np.int64), whole_ns(found), source.astype(np.uint8))


def _measured(system: System, shape: Shape) -> tuple[Ints, Floats, str]:
    path = system.path("moe")
    names = (*SHAPE, "moe_tp_size", "distribution", "num_tokens", "latency")
    rows = read_columns(path, names, moe_dtype=shape.weight_dtype, moe_ep_size=1)
    if not len(rows):
        known = ", ".join(values_of(path, "moe_dtype"))
        expected = f"experts that {system.name} measured: {known}"
        raise system.place.error_at("engine.quantization", shape.weight_dtype, expected)
    wanted = (shape.hidden_size, shape.expert_size, shape.experts_per_token, shape.experts)
    same = np.logical_and.reduce([rows[n] == v for n, v in zip(SHAPE, wanted, strict=True)])
    if not same.any():
        raise _not_covered(system, shape, rows)
    rows = rows.where(same)
    ranks = rows["moe_tp_size"] == shape.tp
    if not ranks.any():
        known = ", ".join(map(str, sorted(set(rows["moe_tp_size"].tolist()))))
        expected = f"one of {known}, at which these experts are measured on {system.name}"
        raise system.place.error_at("engine.tensor_parallel_size", shape.tp, expected)
    rows = rows.where(ranks)
    there = set(rows["distribution"].tolist())
    distribution = BALANCED if BALANCED in there else SKEWED
    rows = rows.where(rows["distribution"] == distribution)
    tokens, index = np.unique(rows["num_tokens"], return_inverse=True)
    ns = np.bincount(index, rows["latency"]) / np.bincount(index) * NS_PER_MS
    return tokens.astype(np.int64), ns, distribution


def _not_covered(system: System, shape: Shape, rows: Columns) -> InputError:
    measured = sorted(set(zip(*(rows[n].tolist() for n in SHAPE), strict=True)))
    shown = ", ".join("/".join(map(str, row)) for row in measured)
    found = (
        f"experts of hidden size {shape.hidden_size}, {shape.expert_size} inside, "
        f"{shape.experts_per_token} of {shape.experts} per token"
    )
    expected = f"hidden/inside/per token/experts measured on {system.name}: {shown}"
    return system.place.error("system", found, expected)
