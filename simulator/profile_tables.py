"""Which measured tables a point names, loaded and complete for its number of ranks."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.architecture import ALL_REDUCE
from profiles.bundle import Bundle
from profiles.card import Card
from profiles.errors import InputError
from profiles.llmservingsim import load_bundle
from profiles.routing import Routing
from profiles.stamp import Stamp, stamp_of
from simulator.config import PackagedTables, Point
from simulator.network_tables import with_all_reduce

if TYPE_CHECKING:
    from profiles.aiconfigurator.shape import Shape
    from profiles.aiconfigurator.source import Place

VARIANTS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "fp8": "fp8"}


def load_tables(point: Point, source: str | Path) -> Bundle:
    """The tables of one rank. Raises InputError; a linear law has none."""
    profile, ranks = point.profile, point.engine.tensor_parallel_size
    if point.engine.enable_expert_parallel and point.model.is_moe:
        _check_experts_are_whole(point, source)
    if profile.aiconfigurator is not None:
        return _packaged(point, profile.aiconfigurator, source)
    if profile.datasheet is not None:
        nearest = _packaged(point, profile.datasheet.packaged, source)
        return _scaled(nearest, point.card, profile.datasheet.packaged, _shape(point, source))
    folder = bundle_folder(point)
    bundle = _bundle(folder, ranks, stamp_of(folder))
    if ranks > 1 and bundle.moe is not None and not point.engine.enable_expert_parallel:
        expected = (
            f"1, or enable_expert_parallel: moe.csv of {bundle.source} holds whole experts, measured "
            "on one rank"
        )
        raise InputError(source, "engine.tensor_parallel_size", ranks, expected)
    if ranks == 1 or ALL_REDUCE in bundle.dense:
        return bundle
    if profile.all_reduce is None and point.links is not None:
        return with_all_reduce(bundle, point, source)
    if profile.all_reduce is None:
        expected = (
            f"1, or links or profile.all_reduce: tp{ranks} of {bundle.source} has no layer "
            f"{ALL_REDUCE} in dense.csv, and ranks add up their "
            "results after the embedding and twice in every block"
        )
        raise InputError(source, "engine.tensor_parallel_size", ranks, expected)
    return _with_all_reduce(bundle, profile.all_reduce, point.model.hidden_size, source)


def _check_experts_are_whole(point: Point, source: str | Path) -> None:
    if point.profile.bundle is None and point.profile.bundles is None:
        expected = "false, or profile.bundle(s) with whole experts in moe.csv"
        raise InputError(source, "engine.enable_expert_parallel", True, expected)


def bundle_folder(point: Point) -> Path:
    """The folder of the point's measured tables."""
    profile = point.profile
    if profile.bundle is not None:
        return profile.bundle
    assert profile.bundles is not None
    return profile.bundles / point.card.name / point.model.name / variant_of(point)


def variant_of(point: Point) -> str:
    """The name of what weights and KV cache are stored in: bf16, fp8, bf16-kvfp8, ..."""
    dtype, kv_dtype = element_types(point)
    variant = point.engine.quantization or VARIANTS[dtype]
    return variant if kv_dtype == dtype else f"{variant}-kv{VARIANTS[kv_dtype]}"


def element_types(point: Point) -> tuple[str, str]:
    """What weights and KV cache are stored in, resolved."""
    engine = point.engine
    dtype = point.model.torch_dtype if engine.dtype == "auto" else engine.dtype
    return dtype, dtype if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype


def routing_of(point: Point, source: str | Path, replicas: int = 1) -> Routing | None:
    """How tokens choose experts, and over how many ranks those are spread. Raises InputError."""
    model, engine = point.model, point.engine
    if not model.is_moe:
        return None
    ranks = engine.tensor_parallel_size * replicas if engine.enable_expert_parallel else 1
    if model.experts % ranks:
        expected = f"false, or ranks that divide the {model.experts} experts, not {ranks}"
        raise InputError(source, "engine.enable_expert_parallel", True, expected)
    chosen = point.expert_routing
    return Routing(model.experts, model.experts_per_token, ranks, **dict(chosen))


def modelled_note(point: Point) -> list[str]:
    """What a result says of a card whose times were not measured."""
    sheet = point.profile.datasheet
    if sheet is None:
        return []
    return [
        f"the card {point.card.name} is modelled: times of {sheet.nearest}, scaled by the ratio of both "
        "cards' data sheets"
    ]


def card_note(point: Point, source: str | Path) -> list[str]:
    """What a result says of tables that are another card's: a folder's by its name, a package's system
    by one that holds the card's name or is held by it (RTXPRO6000, rtx_pro_6000_server)."""
    profile, card = point.profile, point.card.name
    if profile.bundle is not None:
        tables = load_tables(point, source).card
        same = tables == card
    elif profile.aiconfigurator is not None:
        tables = profile.aiconfigurator.system
        ours, theirs = (re.sub(r"[^a-z0-9]", "", name.lower()) for name in (card, tables))
        same = ours in theirs or theirs in ours
    else:  # follows the card, or has no tables
        return []
    return [] if same else [f"the tables are of {tables}, the card is {card}"]


def _packaged(point: Point, tables: PackagedTables, source: str | Path) -> Bundle:
    from profiles.aiconfigurator.source import Place

    return _composed(tables.system, tables.version, _shape(point, source), Place(source))


def _shape(point: Point, source: str | Path) -> Shape:
    from profiles.aiconfigurator.shape import Shape
    from profiles.aiconfigurator.source import Place

    dtype, kv_dtype = element_types(point)
    engine = point.engine
    return Shape.of(
        point.model,
        dtype,
        kv_dtype,
        engine.tensor_parallel_size,
        Place(source),
        quantization=engine.quantization,
    )


# Points of a sweep share tables; a bundle is its own key, so that what is made of it is shared too.
@lru_cache(maxsize=16)
def _bundle(folder: Path, ranks: int, _: Stamp) -> Bundle:
    return load_bundle(folder, ranks)


@lru_cache(maxsize=16)
def _composed(system: str, version: str | None, shape: Shape, place: Place) -> Bundle:
    from profiles.aiconfigurator.compose import load_bundle as compose_bundle

    return compose_bundle(system, version, shape, place)


@lru_cache(maxsize=16)
def _scaled(nearest: Bundle, card: Card, tables: PackagedTables, shape: Shape) -> Bundle:
    from profiles.aiconfigurator.source import find_system
    from profiles.datasheet import scaled

    return scaled(nearest, find_system(tables.system, tables.version).card, card, shape)


@lru_cache(maxsize=16)
def _with_all_reduce(
    bundle: Bundle, tables: PackagedTables, hidden_size: int, source: str | Path
) -> Bundle:
    from profiles.aiconfigurator.collectives import all_reduce_table
    from profiles.aiconfigurator.source import Place, find_system

    system = find_system(tables.system, tables.version, Place(source, "profile.all_reduce"))
    table = all_reduce_table(system, hidden_size, bundle.tp)
    total = hashlib.sha256(bundle.content_id.encode() + table.keys.tobytes() + table.ns.tobytes())
    return replace(
        bundle,
        content_id=total.hexdigest(),
        architecture=bundle.architecture.with_all_reduce(),
        dense={**bundle.dense, ALL_REDUCE: table},
    )
