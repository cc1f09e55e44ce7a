"""A cluster as a point says it: instances, and the router before them.

cluster:
  instances:
    - {count: 2, engine: {max_num_seqs: 64}}     # sections as in a point, laid over the point's own
    - {count: 1, card: {name: L40S, memory_gib: 45}, profile: {aiconfigurator: {system: l40s}}}
  routing: {policy: least_loaded}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from profiles.errors import FieldError

MAX_INSTANCES = 1024

Count = Annotated[int, Field(strict=True, ge=1, le=MAX_INSTANCES)]
Policy = Literal["round_robin", "least_loaded", "random", "prefix_aware", "custom"]
# What an instance may have of its own; a card is a whole, the others are laid over the point's.
OVERRIDES = ("card", "engine", "profile", "overhead", "links")


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
    role: Literal["both", "prefill", "decode"] = "both"
    """Prefill instances compute prompts and hand the KV cache to decode instances."""
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


class ClusterConfig(Frozen):
    """Instances given here, or LLMServingSim's cluster file; then routing is theirs unless given."""

    instances: tuple[InstanceConfig, ...] = ()
    llmservingsim: Path | None = None
    routing: RoutingConfig = RoutingConfig()

    @model_validator(mode="after")
    def _some_instances(self) -> Self:
        if bool(self.instances) == (self.llmservingsim is not None):
            given = "both" if self.instances else None
            raise FieldError("instances", given, "either instances or llmservingsim, a file")
        count = sum(instance.count for instance in self.instances)
        if count > MAX_INSTANCES:
            raise FieldError("instances", count, f"at most {MAX_INSTANCES} instances")
        return self
