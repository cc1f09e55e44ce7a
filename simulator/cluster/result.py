"""What came out of a cluster: the tables and the summary of one instance, for all of them together.

A request's row is that of the instance that served it. Seconds are those of the whole cluster: what
instances run, wait for and generate is added up, the share of KV blocks is of all blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from simulator.cluster.instance import Instance
from simulator.metrics import latency_metrics
from simulator.placement.report import added
from simulator.result import Result, requests_table, steps_table, timeseries_table
from simulator.simulation import Prepared, PreparedCluster
from simulator.summary import summarize

ADDED = ("running", "waiting", "prompt_throughput", "generation_throughput")
TIER_STATE = ("capacity_chunks", "chunks", "evicted_chunks")  # of the tier itself
COUNTED = ("steps", "preemptions")
OF_PREFILL = ("queued_ns", "first_scheduled_ns", "hit_tokens_gpu")


def merged(
    prepared: Prepared,
    cluster: PreparedCluster,
    instances: Sequence[Instance],
    owner: NDArray[np.int64],
    prefilled_by: NDArray[np.int64],
    arrival_ns: NDArray[np.int64],
    refused: Mapping[int, str],
    *,
    steps: bool,
) -> Result:
    """`owner[r]`: who served request r, -1 if nobody did; `prefilled_by[r]`: who computed its prompt and
    handed it over; `arrival_ns[r]`: when it came."""
    workload = prepared.workload
    for instance in instances:  # who was never handed over still came, or never did
        instance.engine.kv.infos.arrival_ns[:] = arrival_ns
    tiers = list(prepared.point.chosen_tiers)
    own = [requests_table(one.engine, workload, dict(refused), tiers) for one in instances]
    requests = _own_rows(own, owner)
    if cluster.kv_transfer is not None:
        requests = _with_prefill(requests, _own_rows(own, prefilled_by), instances)
    series = [timeseries_table(one.engine) for one in instances]
    blocks = [int(one.engine.kv.pool[0].num_usable_blocks) for one in instances]
    parts = [
        summarize(part, one.engine, own_requests.filter(pa.array(owner == one.number)), {})
        for part, one, own_requests in zip(cluster.instances, instances, own, strict=True)
    ]
    table = None
    if steps:
        each = [steps_table(one.engine, workload) for one in instances]
        table = pa.concat_tables(
            [
                one.add_column(0, "instance", pa.array(np.full(len(one), number, np.int64)))
                for number, one in enumerate(each)
            ]
        )
    served = [int((owner == i).sum() + (prefilled_by == i).sum()) for i in range(len(instances))]
    summary = _summary(prepared, cluster, instances, parts, requests, refused, served)
    return Result(summary, requests, _added(_counted_once(series, cluster), blocks), table)


def _own_rows(tables: Sequence[pa.Table], owner: NDArray[np.int64]) -> pa.Table:
    """Each request's row from the table of its instance, and which one that is."""
    n = len(owner)
    rows = np.maximum(owner, 0) * n + np.arange(n)
    taken = pa.concat_tables(tables).combine_chunks().take(pa.array(rows))
    numbers = pa.array(owner, pa.int64(), mask=owner < 0)
    return taken.append_column("instance", numbers)


def _with_prefill(requests: pa.Table, before: pa.Table, instances: Sequence[Instance]) -> pa.Table:
    """Rows of decode instances, with what their prefill instances know of them."""
    handed = pc.is_valid(before["instance"])
    for name in OF_PREFILL:
        column = pc.if_else(handed, before[name], requests[name])
        requests = requests.set_column(requests.column_names.index(name), name, column)
    preemptions = pc.add(requests["preemptions"], pc.if_else(handed, before["preemptions"], 0))
    place = requests.column_names.index("preemptions")
    requests = requests.set_column(place, "preemptions", preemptions.cast(pa.int32()))
    transfers = instances[0].engine.storage.transfers
    requests = requests.append_column("prefill_instance", before["instance"])
    requests = requests.append_column("prefill_end_ns", before["last_token_ns"])
    read_ns = np.ascontiguousarray(transfers.load_end_ns)
    return requests.append_column("kv_read_ns", pa.array(read_ns, pa.int64(), mask=read_ns <= 0))


def _counted_once(series: Sequence[pa.Table], cluster: PreparedCluster) -> list[pa.Table]:
    """Prompts count where they are computed, tokens where the client gets them from."""
    made = []
    for table, role in zip(series, cluster.roles, strict=True):
        nothing = pa.array(np.zeros(len(table)))
        theirs = cluster.kv_transfer is not None and cluster.kv_transfer.first_token == "decode"
        empty = ["prompt_throughput"] if role == "decode" else []
        empty += ["generation_throughput"] if role == "prefill" and theirs else []
        names = table.column_names
        columns = [nothing if name in empty else table[name] for name in names]
        made.append(pa.table(columns, names=names))
    return made


def _added(series: Sequence[pa.Table], blocks: Sequence[int]) -> pa.Table:
    seconds = max(len(table) for table in series)
    total = {name: np.zeros(seconds) for name in (*ADDED, "kv_cache_usage")}
    for table, share in zip(series, np.array(blocks) / sum(blocks), strict=True):
        for name in ADDED:
            total[name][: len(table)] += table[name].to_numpy()
        total["kv_cache_usage"][: len(table)] += share * table["kv_cache_usage"].to_numpy()
    counts = ("running", "waiting")
    names = [name for name in series[0].column_names if name != "t_s"]
    columns = {n: total[n].astype(np.int64) if n in counts else total[n] for n in names}
    return pa.table({"t_s": np.arange(1, seconds + 1, dtype=np.int64), **columns})


def _summary(
    prepared: Prepared,
    cluster: PreparedCluster,
    instances: Sequence[Instance],
    parts: Sequence[dict[str, Any]],
    requests: pa.Table,
    refused: Mapping[int, str],
    served: Sequence[int],
) -> dict[str, Any]:
    first = parts[0]
    preemptions = requests["preemptions"].to_numpy()
    intervals = [
        one.engine.log.intervals[: one.engine.log.sizes[0].num_intervals] for one in instances
    ]
    ns = np.concatenate([np.ascontiguousarray(some.ns) for some in intervals])
    counts = np.concatenate([np.ascontiguousarray(some["count"]) for some in intervals])
    ids = prepared.workload.request_ids
    return {
        **first,
        "requests": {
            "finished": int(requests["finished"].to_numpy().sum()),
            "capped_at_max_model_len": int(requests["capped"].to_numpy().sum()),
            "preempted": int((preemptions > 0).sum()),
            "refused": len(refused),
            "refusals": {ids[r]: reason for r, reason in list(refused.items())[:20]},
            "most_preemptions_of_one": int(preemptions.max(initial=0)),
        },
        **{name: sum(part[name] for part in parts) for name in COUNTED},
        **_throughput(requests),
        "latency": latency_metrics(requests, ns, counts),
        "kv": {
            **_sums(parts, "kv", [n for n, v in first["kv"].items() if type(v) is int]),
            "capacity_inert": False,
        },
        "prefix_cache": _prefix_cache(
            [p for p, role in zip(parts, cluster.roles, strict=True) if role != "decode"]
        ),
        **_kv_transfer(cluster, instances),
        "prefix_storage": _storage(
            parts, [tier.shared for tier in cluster.instances[0].settings.tiers]
        ),
        **added(parts),
        "time_by_source": _weighted(parts, instances),
        "outside_measured_grid": _outside(parts),
        "notes": list(dict.fromkeys(note for part in parts for note in part["notes"])),
        "instances": [
            {
                "requests": served[number],
                **({"role": cluster.roles[number]} if cluster.kv_transfer else {}),
                "data_parallel_group": next(
                    (i for i, group in enumerate(cluster.groups) if number in group), None
                ),
                **{name: part[name] for name in ("card", "engine", "steps", "preemptions", "kv")},
                **{name: part[name] for name in ("placement",) if name in part},
            }
            for number, part in enumerate(parts)
        ],
    }


def _kv_transfer(cluster: PreparedCluster, instances: Sequence[Instance]) -> dict[str, Any]:
    """What went from prefill to decode instances; times summed over all of them, bytes of all ranks.

    A transfer is a request's. NixlConnector: what the decode instance has cached needs none;
    `waiting_ns` of requests from their blocks to the report of their read. P2pNcclConnector:
    `stalled_ns` of steps that ended when they had been sent.
    """
    transfer = cluster.kv_transfer
    if transfer is None:
        return {}
    sent = transfer.connector == "P2pNcclConnector"
    prefill = [one.engine.storage for one in instances if one.role == "prefill"]
    decode = [one.engine.storage for one in instances if one.role == "decode"]
    of_all = {
        "transfers": sum(int(one.use[0].loads) for one in decode),
        "tokens": sum(int(one.use[0].loaded_tokens) for one in decode),
    }
    if sent:
        of_all["bytes"] = sum(int(one.use[0].written_bytes) for one in prefill)
        of_all["link_ns"] = sum(int(one.use[0].store_ns) for one in prefill)
        of_all["stalled_ns"] = sum(int(one.connection[0].stalled_ns) for one in prefill)
    else:
        of_all["bytes"] = sum(int(one.use[0].loaded_bytes) for one in decode)
        of_all["link_ns"] = sum(int(one.use[0].load_ns) for one in decode)
        of_all["link_wait_ns"] = sum(int(one.use[0].link_wait_ns) for one in decode)
        of_all["waiting_ns"] = sum(int(one.connection[0].waiting_ns) for one in decode)
    return {
        "kv_transfer": {
            **transfer.model_dump(mode="json"),
            **of_all,
        }
    }


def _sums(parts: Sequence[dict[str, Any]], section: str, names: Sequence[str]) -> dict[str, int]:
    return {name: sum(part[section][name] for part in parts) for name in names}


def _throughput(requests: pa.Table) -> dict[str, Any]:
    """From the first arrival to the last token, of all instances."""
    table = {
        name: requests[name].to_numpy(zero_copy_only=False)
        for name in ("arrival_ns", "last_token_ns", "output_tokens", "prompt_tokens", "finished")
    }
    ran = ~np.isnan(table["last_token_ns"].astype(np.float64))
    if not ran.any():
        return {"end_ns": None, "makespan_ms": None, "generated_tokens": 0}
    end_ns = int(table["last_token_ns"][ran].max())
    makespan_ns = end_ns - int(table["arrival_ns"][ran].min())
    generated, prompts = (int(table[n][ran].sum()) for n in ("output_tokens", "prompt_tokens"))
    seconds = makespan_ns / 1e9
    return {
        "end_ns": end_ns,
        "makespan_ms": makespan_ns / 1e6,
        "generated_tokens": generated,
        "throughput": {
            "requests_per_s": float(table["finished"].sum() / seconds),
            "output_tokens_per_s": generated / seconds,
            "total_tokens_per_s": (generated + prompts) / seconds,
        },
    }


def _prefix_cache(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = ("hit_tokens", "looked_up_tokens", "hit_tokens_all_admissions")
    sums = _sums(parts, "prefix_cache", names)
    looked_up = sums["looked_up_tokens"]
    vllm = [part["prefix_cache"]["vllm"] for part in parts]
    return {
        "hit_rate": sums["hit_tokens"] / looked_up if looked_up else 0.0,
        **sums,
        "vllm": {name: sum(counts[name] for counts in vllm) for name in vllm[0]},
    }


def _storage(parts: Sequence[dict[str, Any]], shared: Sequence[bool]) -> dict[str, Any]:
    """Sums over the instances; what a tier holds is there once if they share it."""
    every = [part["prefix_storage"] for part in parts]
    first = every[0]
    if not first["tiers"]:
        return dict(first)
    tiers = {
        name: {
            field: value
            if one and field in TIER_STATE
            else sum(part["tiers"][name][field] for part in every)
            for field, value in counts.items()
        }
        for (name, counts), one in zip(first["tiers"].items(), shared, strict=True)
    }
    return {
        **first,
        "tiers": tiers,
        **{n: sum(part[n] for part in every) for n in ("stalled_ns", "waiting_ns", "given_back")},
        "vllm": {n: sum(part["vllm"][n] for part in every) for n in first["vllm"]},
    }


def _weighted(parts: Sequence[dict[str, Any]], instances: Sequence[Instance]) -> dict[str, float]:
    """Shares of device time, each instance's by how long its device ran."""
    ran = []
    for one in instances:
        steps = one.engine.log.steps[: one.engine.queues.counters[0].num_steps]
        ran.append(int((steps.end_ns - steps.start_ns).sum()))
    whole = sum(ran) or 1
    names = parts[0]["time_by_source"]
    return {
        name: sum(p["time_by_source"][name] * ns for p, ns in zip(parts, ran, strict=True)) / whole
        for name in names
    }


def _outside(parts: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for part in parts:
        for axis, seen in part["outside_measured_grid"].items():
            known = total.setdefault(axis, {})
            for name, value in seen.items():
                before = known.get(name)
                if before is None:
                    known[name] = value
                elif name in ("below", "above"):
                    known[name] = before + value
                else:
                    known[name] = (min if name in ("lowest", "last_sample") else max)(before, value)
    return total
