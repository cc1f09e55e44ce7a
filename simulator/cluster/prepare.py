"""Instances of a cluster as prepared points: the point's sections with what each has of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from profiles.errors import InputError, parse_model
from simulator.cluster.config import ClusterConfig, InstanceConfig
from simulator.cluster.kv_transfer import (
    check_kv_transfer,
    kv_transfer_settings,
    over_links_of_both,
)
from simulator.cluster.llmservingsim import load_cluster
from simulator.cluster.router import router
from simulator.config import Point
from simulator.simulation import Prepared, PreparedCluster, prepare_instance

ALIKE = ("card", "profile", "overhead", "links", "placement")


def prepare_cluster(point: Point, source: str | Path) -> Prepared:
    """Every instance read, checked and resolved. Raises InputError."""
    config = cluster_of(point)
    router(config.routing, source)
    configs = [(i, one) for i, one in enumerate(config.instances) for _ in range(one.count)]
    groups: dict[str, list[int]] = {}
    for number, (_, one) in enumerate(configs):
        if one.data_parallel_group is not None:
            groups.setdefault(one.data_parallel_group, []).append(number)
    points = [instance_point(point, one, i, source) for i, one in configs]
    _check_engines(point, points, source)
    for name, members in groups.items():
        _check_group(name, members, points, source)
    size_of = {number: len(members) for members in groups.values() for number in members}
    prepared: dict[tuple[int, int], Prepared] = {}
    instances = []
    for number, (i, _) in enumerate(configs):
        key = i, size_of.get(number, 1)
        if key not in prepared:
            where = instance_source(point, i, source)
            prepared[key] = prepare_instance(points[number], where, key[1])
        instances.append(prepared[key])
    _check_tiers(point, instances, groups, source)
    parts = [
        None
        if one.role == "both"
        else kv_transfer_settings(config, i, part, instance_source(point, i, source))
        for (i, one), part in zip(configs, instances, strict=True)
    ]
    check_kv_transfer([one for _, one in configs], instances, source)
    cluster = PreparedCluster(
        tuple(instances),
        tuple(tuple(members) for members in groups.values() if len(members) > 1),
        tuple(one.max_in_flight for _, one in configs),
        config.routing,
        tuple(one.role for _, one in configs),
        tuple(over_links_of_both(parts)),
        config.kv_transfer,
    )
    return replace(instances[0], point=point, cluster=cluster)


def cluster_of(point: Point) -> ClusterConfig:
    """The point's cluster, read from its file where it names one."""
    assert point.cluster is not None
    if point.cluster.llmservingsim is None:
        return point.cluster
    file, budget = point.cluster.llmservingsim, point.engine.max_num_batched_tokens
    read = load_cluster(file, point.model, budget)
    given = point.cluster.model_fields_set & {"routing", "kv_transfer"}
    return read.model_copy(update={field: getattr(point.cluster, field) for field in given})


def instance_source(point: Point, place: int, source: str | Path) -> str:
    """How errors name an instance: by the file that says it."""
    if point.cluster is not None and point.cluster.llmservingsim is not None:
        return f"{point.cluster.llmservingsim}, nodes: instance {place}"
    return f"{source}, cluster.instances[{place}]"


def instance_point(point: Point, config: InstanceConfig, place: int, source: str | Path) -> Point:
    """The point of one instance. Raises InputError naming the instance's field."""
    fields: dict[str, Any] = {
        name: getattr(point, name) for name in type(point).model_fields if name != "cluster"
    }
    for name, given in config.overrides().items():
        own = getattr(point, name)
        whole = own is None or name in ("card", "profile", "links", "placement")
        fields[name] = given if whole else own.model_dump(exclude_unset=True) | given
    where = instance_source(point, place, source)
    made = parse_model(Point, {name: v for name, v in fields.items() if v is not None}, where)
    made.engine.check_against(made.model, where)
    if made.engine.block_size != point.engine.block_size:
        expected = f"the point's ({point.engine.block_size}), as prefixes are known by blocks"
        raise InputError(where, "engine.block_size", made.engine.block_size, expected)
    return made


def _check_tiers(
    point: Point, instances: list[Prepared], groups: dict[str, list[int]], source: str | Path
) -> None:
    """Tiers that instances share are alike to all; loads beside steps know no common step."""
    together = [name for name, members in groups.items() if len(members) > 1]
    if together and point.prefix_storage != "none" and point.kv_connector == "OffloadingConnector":
        expected = f"LMCacheConnectorV1, because data_parallel_group {together[0]} steps together"
        raise InputError(source, "kv_connector", point.kv_connector, expected)
    first = instances[0].settings.tiers
    for number, one in enumerate(instances):
        for tier, other in zip(first, one.settings.tiers, strict=True):
            if tier.shared and tier != other:
                expected = (
                    f"false, because a token of instance {number} takes {other.bytes_per_token} "
                    f"bytes and one of instance 0 {tier.bytes_per_token}"
                )
                raise InputError(source, f"tiers.{tier.name}.shared", True, expected)


def _check_group(name: str, members: list[int], points: list[Point], source: str | Path) -> None:
    """They form and pad their batches as one, so what decides on a batch has to be alike."""
    first = points[members[0]]
    for number in members:
        where, point = f"cluster: instance {number}", points[number]
        alike = f"as the others of data_parallel_group {name}"
        for field in ALIKE:
            if getattr(point, field) != getattr(first, field):
                raise InputError(source, f"{where}: {field}", getattr(point, field), alike)
        for field in type(point.engine).model_fields:
            ours, theirs = getattr(point.engine, field), getattr(first.engine, field)
            if ours != theirs:
                raise InputError(source, f"{where}: engine.{field}", ours, f"{theirs}, {alike}")
    if len(members) > 1 and first.engine.is_infinilm:
        expected = f"vllm, because data_parallel_group {name} steps together"
        raise InputError(source, "engine.engine", first.engine.engine, expected)
    if len(members) > 1 and first.model.is_moe and not first.engine.enable_expert_parallel:
        expected = f"true: replicas of data_parallel_group {name} share their experts"
        raise InputError(source, "engine.enable_expert_parallel", False, expected)


def _check_engines(point: Point, points: list[Point], source: str | Path) -> None:
    kinds = {one.engine.engine for one in points}
    if len(kinds) > 1:
        raise InputError(source, "cluster: engine.engine", sorted(kinds), "one for all instances")
    if point.workload.manifest is not None:
        expected = "another workload: waves are of one instance"
        raise InputError(source, "workload.manifest", str(point.workload.manifest), expected)
