"""A cluster as a point says it: instances, and the router before them.

cluster:
  instances:
    - {count: 2, engine: {max_num_seqs: 64}}     # sections as in a point, laid over the point's own
    - {count: 1, card: {name: L40S, memory_gib: 45}, profile: {aiconfigurator: {system: l40s}}}
  routing: {policy: least_loaded}

or, with prompts computed apart:

  instances: [{role: prefill, count: 2}, {role: decode}]
  kv_transfer: {connector: NixlConnector, bandwidth_gibps: 25.0, latency_ns: 5000.0}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from profiles.errors import FieldError
from simulator.network.config import GibPerSecond, Nanoseconds

MAX_INSTANCES = 1024

Count = Annotated[int, Field(strict=True, ge=1, le=MAX_INSTANCES)]
Policy = Literal["round_robin", "least_loaded", "random", "prefix_aware", "custom"]
# What an instance may have of its own: wholes, but for engine and overhead, which lie over the point's.
OVERRIDES = ("card", "engine", "profile", "overhead", "links", "placement")


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InstanceConfig(Frozen):
    """`count` equal instances."""

    count: Count = 1
    card: dict[str, Any] | None = None
    engine: dict[str, Any] = {}
    profile: dict[str, Any] = {}
    overhead: dict[str, Any] = {}
    links: dict[str, Any] = {}
    placement: dict[str, Any] = {}
    role: Literal["both", "prefill", "decode"] = "both"
    """Prefill instances compute prompts and hand the KV cache to decode instances, see kv_transfer."""
    data_parallel_group: Annotated[str, Field(min_length=1)] | None = None
    """Instances of one group form batches together and pad them to the largest."""
    max_in_flight: Count | None = None
    """Requests the router gives the instance at most at a time; others wait at the router."""

    def overrides(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in OVERRIDES}
        return {name: value for name, value in given.items() if value}


class RoutingConfig(Frozen):
    """Who takes a request when it arrives.

    round_robin: one after the other. random: every one as likely, by `seed`. least_loaded: the smallest
    4 x waiting + running, as vLLM's load balancer has it; with `by_capacity` divided by max_num_seqs,
    as LLMServingSim has it; with `update_interval_ms` by what the router was told last, see there.
    Among equals the next after the last one chosen. prefix_aware: the most
    tokens on the device, among instances whose load is at most `slack` requests above the smallest.
    custom: a Python function `module:name`, see router.py.
    """

    policy: Policy = "least_loaded"
    seed: Annotated[int, Field(strict=True, ge=0)] = 0
    by_capacity: Annotated[bool, Field(strict=True)] = False
    update_interval_ms: Annotated[int, Field(strict=True, ge=0, le=10**6)] = 0
    """least_loaded: counts reach the router so often, and what it has given out since then counts as
    waiting; among equals the first. vLLM's DPCoordinator tells its front end every 100 ms. 0: the
    router always knows."""
    slack: Annotated[int, Field(strict=True, ge=0)] = 8
    function: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")] | None = None

    @model_validator(mode="after")
    def _function_is_named(self) -> Self:
        if (self.policy == "custom") != (self.function is not None):
            expected = "module:name, with policy custom and only then"
            raise FieldError("function", self.function, expected)
        if self.update_interval_ms and (self.policy != "least_loaded" or self.by_capacity):
            expected = "0, or policy least_loaded without by_capacity"
            raise FieldError("update_interval_ms", self.update_interval_ms, expected)
        return self


class KVTransferConfig(Frozen):
    """How a KV cache gets from a prefill to a decode instance, by vLLM's names.

    NixlConnector: read when the prompt has been computed; until then the prefill instance holds the
    blocks, and the request waits on the decode instance with blocks of its own.
    P2pNcclConnector: sent layer by layer while the prompt is computed; a prefill instance's step ends
    when everything has been sent.

    Every rank has a link: 2^30 bytes a second and ns a transfer, one transfer at a time and direction.
    """

    connector: Literal["NixlConnector", "P2pNcclConnector"] = "NixlConnector"
    bandwidth_gibps: GibPerSecond
    latency_ns: Nanoseconds = 0.0
    first_token: Literal["decode", "prefill"] = "decode"
    """Whose first token the client gets. decode: as from vLLM, whose decode instance computes the
    prompt's last token again; TTFT has the transfer in it. prefill: the prefill instance's, and the
    decode instance goes on from there."""
    proxy_ms: Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)] = 0.0
    """From the prefill instance's answer to the request's arrival at the decode instance."""


class ClusterConfig(Frozen):
    """Instances given here, or LLMServingSim's cluster file; then routing is theirs unless given."""

    instances: tuple[InstanceConfig, ...] = ()
    llmservingsim: Path | None = None
    routing: RoutingConfig = RoutingConfig()
    """Prefill and decode instances are chosen each by a router of its own."""
    kv_transfer: KVTransferConfig | None = None
    """Between prefill and decode instances."""

    @model_validator(mode="after")
    def _some_instances(self) -> Self:
        if bool(self.instances) == (self.llmservingsim is not None):
            given = "both" if self.instances else None
            raise FieldError("instances", given, "either instances or llmservingsim, a file")
        roles = {instance.role for instance in self.instances}
        apart = roles - {"both"}
        if len(apart) == 1:
            missing = "decode" if "prefill" in apart else "prefill"
            expected = f"a {missing} instance as well"
            raise FieldError("instances", f"role {apart.pop()}", expected)
        if bool(apart) != (self.kv_transfer is not None) and self.llmservingsim is None:
            expected = "how prefill instances hand over, and only where there are some"
            transfer = self.kv_transfer
            raise FieldError("kv_transfer", transfer and transfer.connector, expected)
        count = sum(instance.count for instance in self.instances)
        if count > MAX_INSTANCES:
            raise FieldError("instances", count, f"at most {MAX_INSTANCES} instances")
        return self
