"""`placement` of LLMServingSim's cluster files: where an instance's weights and KV cache are.

A rule says `weights`, `kv_loc` and `kv_evict_loc`: npu, cpu or cxl:N. Later rules for a block win over
earlier ones, blocks over the default, a named layer over both, in every block; what a layer's rule
leaves out is the default's. Read as LLMServingSim simulates it: all weights of a step are asked for when
it starts, one memory serves them one after the other in the order of layers, and a layer waits for its
own (`weight_reads: prefetched`); the host's memory of all nodes is as fast as the first one's.

Differences, with reasons:
- It keeps room for all weights on the NPU and does not check the other memories. Here that room is for
  KV blocks, and a memory has to hold what is there.
- It reads `kv_loc` and charges nothing for it. Here a KV cache elsewhere is read and written there, and
  all blocks have it in one place.
- Its tensor-parallel ranks queue for a memory, all of one rank's weights before the next one's. Here the
  ranks' parts of a layer follow each other, as ranks run a layer together.
- Instances that share a memory do not slow each other down here.
- `kv_evict_loc` is where prefixes go that the device evicts. It only matters with a storage tier, and
  `prefix_storage` of the point says where that is; so it is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from profiles.errors import InputError
from profiles.foreign import Foreign
from profiles.model import ModelConfig
from simulator.placement.config import DEVICE

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class HostMemory(Foreign):
    """Sizes in GiB, of one device; bandwidth in 10^9 bytes a second, latency in ns.

    A file may leave out what it does not use.
    """

    mem_size: Positive | None = None
    mem_bw: Positive | None = None
    mem_latency: Annotated[int, Field(ge=0)] | None = None
    num_devices: Annotated[int, Field(strict=True, ge=1, le=1024)] = 1
    pim_config: str | None = None

    def of(self, other: HostMemory | None) -> HostMemory:
        """As large as the other."""
        return self if other is None else self.model_copy(update={"mem_size": other.mem_size})

    def named(self, *names: str) -> dict[str, dict[str, Any]]:
        """Memories of a point, as many as names; none if the file does not say all of it."""
        if self.mem_size is None or self.mem_bw is None or self.mem_latency is None:
            return {}
        fields = {
            "bandwidth_gbps": float(self.mem_bw),
            "latency_ns": self.mem_latency,
            "capacity_gib": float(self.mem_size),
        }
        return dict.fromkeys(names, fields)


class Rule(Foreign):
    """Where something is: npu, cpu or cxl:N."""

    weights: str | None = None
    kv_loc: str | None = None
    kv_evict_loc: str | None = None


class BlockRule(Rule):
    blocks: str | int = ""


class PlacementFile(Foreign):
    default: Rule | None = None
    blocks: tuple[BlockRule, ...] | None = None
    layers: dict[str, Rule] | None = None


def placement_of(
    path: Path,
    where: str,
    given: PlacementFile,
    model: ModelConfig,
    cpu: HostMemory | None,
    cxl: HostMemory | None,
) -> dict[str, Any]:
    """A point's section; empty if everything is on the device. Raises InputError."""
    memories = cpu.named("cpu") if cpu else {}
    if cxl:
        memories |= cxl.named(*(f"cxl:{number}" for number in range(cxl.num_devices)))

    def place(rule: Rule, kind: str, default: str) -> str:
        said = getattr(rule, kind)
        if said is None:
            return default
        found = _place(said)
        if found != DEVICE and found not in memories:
            expected = f"npu or one of {', '.join(memories) or 'cpu_mem, cxl_mem: none there'}"
            raise InputError(path, f"{where}: placement: {kind}", said, expected)
        return found

    default = given.default or Rule()
    weights, kv = place(default, "weights", DEVICE), place(default, "kv_loc", DEVICE)
    by_block = dict.fromkeys(range(model.num_hidden_layers), weights)
    kv_by_block = dict.fromkeys(range(model.num_hidden_layers), kv)
    for rule in given.blocks or ():
        for block in _blocks(str(rule.blocks), model.num_hidden_layers):
            by_block[block] = place(rule, "weights", by_block[block])
            kv_by_block[block] = place(rule, "kv_loc", kv_by_block[block])
    layers = {
        name: place(rule, "weights", weights)
        for name, rule in (given.layers or {}).items()
        if rule.model_fields_set
    }
    caches = sorted(set(kv_by_block.values()))
    if len(caches) > 1:
        expected = f"one place for all blocks, not {' and '.join(caches)}"
        raise InputError(path, f"{where}: placement: kv_loc", caches, expected)
    if {weights, *by_block.values(), *layers.values(), *caches} == {DEVICE}:
        return {}
    return {
        "memories": memories,
        "weights": {
            "default": weights,
            "blocks": {str(block): found for block, found in by_block.items() if found != weights},
            "layers": layers,
        },
        "kv_cache": caches[0],
        "weight_reads": "prefetched",
    }


def _place(location: str) -> str:
    """npu, cpu and cxl with or without a number; a node's cpu is its own, whatever the number."""
    name, _, number = location.lower().partition(":")
    if name.startswith("npu"):
        return DEVICE
    return "cpu" if name.startswith("cpu") else f"{name}:{number or 0}"


def _blocks(text: str, count: int) -> list[int]:
    """The blocks of "0-3,8" that the model has; a range may count down, what is no number is nothing."""
    found: set[int] = set()
    for part in text.split(","):
        ends = part.split("-", 1)
        if all(end.strip().isdigit() for end in ends):
            first, last = sorted((int(ends[0]), int(ends[-1])))
            found.update(range(first, min(last, count - 1) + 1))
    return sorted(found)
