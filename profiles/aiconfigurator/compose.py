"""From the package's tables to one bundle, kept in the store under the content of what was read."""

from __future__ import annotations

import hashlib
from dataclasses import astuple
from pathlib import Path

from profiles import store
from profiles.aiconfigurator.attention import decode_table, prefill_table
from profiles.aiconfigurator.collectives import all_reduce_table, collective_paths
from profiles.aiconfigurator.elementwise import elementwise_tables, sampler_table
from profiles.aiconfigurator.gemm import GemmTables
from profiles.aiconfigurator.grid import attention_grid
from profiles.aiconfigurator.moe import expert_table
from profiles.aiconfigurator.shape import Shape
from profiles.aiconfigurator.source import (
    NEEDED,
    Place,
    System,
    digest,
    find_system,
    package_version,
    systems_folder,
)
from profiles.architecture import ALL_REDUCE, architecture_path, load_architecture
from profiles.bundle import Bundle, LayerTable

# Raised whenever the rules of this folder give another bundle from the same files.
RECIPE = 2


def load_bundle(system: str, version: str | None, shape: Shape, place: Place) -> Bundle:
    """The bundle of `shape` on a system of the package. Raises InputError.

    `version` is a vLLM version, None for the newest that was measured.
    """
    found = find_system(system, version, place)
    key = _key(found, shape)
    source = systems_folder(place) / "data" / found.name
    bundle = store.read(key, source)
    if bundle is None:
        bundle = compose(found, shape, key, source)
        store.write(key, bundle)
    return bundle


def check_covered(system: System, shape: Shape) -> None:
    """Whether `compose` would find every table. Raises InputError."""
    gemm = GemmTables(system)
    if shape.weight_dtype != "bfloat16":
        GemmTables(system, shape.weight_dtype)
    prefill_table(system, shape)
    decode_table(system, shape)
    if shape.experts:
        expert_table(system, shape, gemm)
    if shape.tp > 1:
        all_reduce_table(system, shape.hidden_size, shape.tp)


def compose(system: System, shape: Shape, content_id: str, source: Path) -> Bundle:
    architecture = load_architecture(shape.model_type, system.place.source)
    gemm = GemmTables(system)
    inner = gemm if shape.weight_dtype == "bfloat16" else GemmTables(system, shape.weight_dtype)
    known = {**elementwise_tables(system, shape), **_products(inner, shape)}
    sequences = {
        "lm_head": gemm.layer(shape.vocab_size, shape.hidden_size),
        "sampler": sampler_table(system, shape),
    }
    if shape.experts:
        architecture = architecture.with_experts_by_tokens()
        known["moe"] = expert_table(system, shape, gemm)
    if shape.tp > 1:
        architecture = architecture.with_all_reduce()
        known[ALL_REDUCE] = all_reduce_table(system, shape.hidden_size, shape.tp)
    weights = "bf16" if shape.weight_dtype == "bfloat16" else shape.weight_dtype
    kv = "" if shape.kv_cache_dtype == "bfloat16" else f"-kv{shape.kv_cache_dtype}"
    return Bundle(
        source=source,
        content_id=content_id,
        card=system.name,
        model=shape.model_type,
        variant=f"{weights}{kv}",
        tp=shape.tp,
        architecture=architecture,
        dense={layer: known[layer] for layer in architecture.layers("dense")},
        per_sequence={layer: sequences[layer] for layer in architecture.layers("per_sequence")},
        attention=attention_grid(system, shape),
        moe=None,
        skew=None,
    )


def _products(gemm: GemmTables, shape: Shape) -> dict[str, LayerTable]:
    hidden = shape.hidden_size
    products = {
        "qkv_proj": gemm.layer(shape.qkv_size, hidden),
        "o_proj": gemm.layer(hidden, shape.q_size),
    }
    if not shape.experts:
        products["gate_up_proj"] = gemm.layer(2 * shape.intermediate_size, hidden)
        products["down_proj"] = gemm.layer(hidden, shape.intermediate_size)
    return products


def _key(system: System, shape: Shape) -> str:
    """sha256 over the tables that are read, the data sheet, the package, this recipe and the shape."""
    root = systems_folder(system.place)
    paths = [*(system.path(operation) for operation in NEEDED), root / f"{system.name}.yaml"]
    paths += collective_paths(system) if shape.tp > 1 else []
    paths += [system.path("moe")] if shape.experts else []
    paths += [Path(__file__).parent / "devices.yaml", architecture_path(shape.model_type)]
    total = hashlib.sha256(f"{RECIPE} {package_version()} {system.name} {astuple(shape)}".encode())
    for path in paths:
        total.update(f"\0{path.name} {digest(path)}".encode())
    return total.hexdigest()
