"""Reads LLMServingSim 2.0's cluster files in place.

What a file says of an instance becomes overrides of the point: card, parallel degrees, limits, links.
What it does not say is the point's. Read as LLMServingSim simulates it: link_bw in 2^30 bytes a second,
no all-reduce after the embedding, requests to the instance with the least load for its seats. Weights
and KV cache outside the device are in llmservingsim_placement.py.

Not simulated, and refused: processing in memory, sub-batch interleaving. Power is not simulated and left
out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from profiles.errors import InputError, parse_model
from profiles.foreign import Foreign, json_object, read_file
from profiles.model import ModelConfig
from simulator.cluster.config import ClusterConfig
from simulator.cluster.llmservingsim_placement import HostMemory, PlacementFile, placement_of

Positive = Annotated[int, Field(strict=True, ge=1)]
Number = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MOST_SEQS = 4096  # for no limit: more than any pool here holds at once

# Their name -> ours, where an instance may say it.
ENGINE_FIELDS = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "block_size": "block_size",
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "enable_prefix_caching": "enable_prefix_caching",
    "reserve_full_isl": "scheduler_reserve_full_isl",
}
REFUSED = ("enable_attn_offloading", "enable_sub_batch_interleaving", "enable_local_offloading")


class Memory(Foreign):
    mem_size: Number
    mem_bw: Number
    mem_util: Annotated[float, Field(gt=0, le=1)] | None = None


class InstanceFile(Foreign):
    model_name: str
    hardware: str
    npu_mem: Memory
    num_npus: Positive | None = None
    tp_size: Positive | None = None
    pp_size: Positive = 1
    ep_size: Positive | None = None
    dp_group: str | None = None
    pd_type: Literal["prefill", "decode"] | None = None
    placement: PlacementFile | None = None

    @property
    def tensor_parallel(self) -> int:
        return self.tp_size or max(1, (self.num_npus or 1) // self.pp_size)


class NodeFile(Foreign):
    num_instances: Positive
    cpu_mem: HostMemory | None = None
    instances: Annotated[tuple[InstanceFile, ...], Field(min_length=1)]


class ClusterFile(Foreign):
    num_nodes: Positive
    link_bw: Number | tuple[Number, ...]
    link_latency: NotNegative | tuple[NotNegative, ...]
    cxl_mem: HostMemory | None = None
    nodes: Annotated[tuple[NodeFile, ...], Field(min_length=1)]


def load_cluster(path: Path, model: ModelConfig, budget: int) -> ClusterConfig:
    """The cluster of a file, for a point with that model and token budget. Raises InputError."""
    data = json_object(read_file(path), path)
    file = parse_model(ClusterFile, data, path)
    raw = [one for node in data["nodes"] for one in node["instances"]]
    found = [one for node in file.nodes for one in node.instances]
    node_of = [node for node in file.nodes for _ in node.instances]
    # All nodes' memory has the first one's bandwidth and latency.
    timing = file.nodes[0].cpu_mem
    _check(path, file, raw, found, model.name)
    group_sizes = {one.dp_group: sum(o.dp_group == one.dp_group for o in found) for one in found}
    instances = []
    for place, (one, fields) in enumerate(zip(found, raw, strict=True)):
        where = f"nodes: instance {place}"
        instances.append(
            {
                "card": {
                    "name": one.hardware,
                    "memory_gib": one.npu_mem.mem_size,
                    "memory_bandwidth_gbps": one.npu_mem.mem_bw,
                },
                "engine": _engine(one, fields, model, budget),
                "links": _links(path, where, file, one, group_sizes, found),
                "placement": placement_of(
                    path,
                    where,
                    one.placement or PlacementFile(),
                    model,
                    timing and timing.of(node_of[place].cpu_mem),
                    file.cxl_mem,
                ),
                "data_parallel_group": one.dp_group,
                "role": one.pd_type or "both",
            }
        )
    cluster = {
        "instances": tuple(instances),
        "routing": {"by_capacity": True},
        "kv_transfer": _kv_transfer(path, file, found),
    }
    return parse_model(ClusterConfig, cluster, path)


def _kv_transfer(path: Path, file: ClusterFile, found: list[InstanceFile]) -> dict[str, Any] | None:
    """Layer by layer over the link between instances, their network's last; the prefill instance's
    token is the first one."""
    if not any(one.pd_type for one in found):
        return None
    return {
        "connector": "P2pNcclConnector",
        "bandwidth_gibps": _at(path, "link_bw", file.link_bw, 1, 2),
        "latency_ns": _at(path, "link_latency", file.link_latency, 1, 2),
        "first_token": "prefill",
    }


def _check(
    path: Path,
    file: ClusterFile,
    raw: list[dict[str, Any]],
    found: list[InstanceFile],
    model_name: str,
) -> None:
    if len(file.nodes) != file.num_nodes:
        raise InputError(path, "num_nodes", file.num_nodes, f"{len(file.nodes)}, as nodes has")
    for place, node in enumerate(file.nodes):
        if node.cpu_mem is not None and node.cpu_mem.pim_config is not None:
            field, value = f"nodes[{place}].cpu_mem.pim_config", node.cpu_mem.pim_config
            raise InputError(path, field, value, "none: processing in memory is not simulated")
        if len(node.instances) != node.num_instances:
            expected = f"{len(node.instances)}, as instances has"
            raise InputError(path, f"nodes[{place}].num_instances", node.num_instances, expected)
    for place, (one, fields) in enumerate(zip(found, raw, strict=True)):
        where = f"nodes: instance {place}"
        if one.model_name != model_name:
            raise InputError(
                path, f"{where}: model_name", one.model_name, f"{model_name}, the point's"
            )
        degree = one.tensor_parallel * one.pp_size
        if one.num_npus is not None and one.num_npus != degree:
            raise InputError(
                path, f"{where}: num_npus", one.num_npus, f"{degree}, tp_size x pp_size"
            )
        for field in REFUSED:
            if fields.get(field):
                raise InputError(path, f"{where}: {field}", True, "false: it is not simulated")


def _engine(
    one: InstanceFile, fields: dict[str, Any], model: ModelConfig, budget: int
) -> dict[str, Any]:
    """What the file says of an instance's engine. Theirs says 0 for no limit."""
    engine = {ours: fields[theirs] for theirs, ours in ENGINE_FIELDS.items() if theirs in fields}
    tokens, seqs = "max_num_batched_tokens", "max_num_seqs"
    if _is_zero(engine.get(tokens)):
        engine[tokens] = model.max_position_embeddings
    if _is_zero(engine.get(seqs)):
        engine[seqs] = min(MOST_SEQS, engine.get(tokens, budget))
    engine["tensor_parallel_size"] = one.tensor_parallel
    engine["pipeline_parallel_size"] = one.pp_size
    if one.ep_size is not None and one.ep_size > 1:
        engine["enable_expert_parallel"] = True
    if one.npu_mem.mem_util is not None:
        engine["gpu_memory_utilization"] = one.npu_mem.mem_util
    return engine


def _is_zero(value: Any) -> bool:
    return type(value) is int and value == 0


def _links(
    path: Path,
    where: str,
    file: ClusterFile,
    one: InstanceFile,
    group_sizes: dict[str | None, int],
    found: list[InstanceFile],
) -> dict[str, Any]:
    """Their dimensions: tensor, pipeline (with a group only where it is there), replicas."""
    grouped = one.dp_group is not None and group_sizes[one.dp_group] > 1
    dims = ["tensor"]
    if one.pp_size > 1:
        dims.append("pipeline")
    if grouped:
        dims.append("data")
    elif one.pp_size == 1 and len(found) > 1:
        dims.append("instances")
    links: dict[str, Any] = {"embedding_all_reduce": False}
    for place, dim in enumerate(dims):
        bandwidth = _at(path, "link_bw", file.link_bw, place, len(dims))
        if dim == "data":
            # Their replicas exchange the tokens of one of them, where vLLM's exchange those of all.
            bandwidth *= group_sizes[one.dp_group]
        link = {
            "bandwidth_gibps": bandwidth,
            "latency_ns": _at(path, "link_latency", file.link_latency, place, len(dims)),
        }
        if dim != "instances":
            links[dim] = link
    return links


def _at(path: Path, field: str, given: float | tuple[float, ...], place: int, count: int) -> float:
    if not isinstance(given, tuple):
        return float(given)
    if len(given) != count:
        raise InputError(path, field, list(given), f"a number, or {count}, one a dimension")
    return float(given[place])
