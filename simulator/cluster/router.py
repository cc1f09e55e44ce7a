"""Which instance takes a request when it arrives.

A custom policy is a function `choose(request, instances, now_ns) -> int`: `request` is its index in the
workload, `instances` those that can take one more (with `number`, `running`, `waiting`, `max_num_seqs`,
`cached_tokens(request)`), the result a position among them. It must depend on nothing else.
"""

from __future__ import annotations

import importlib
import operator
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from profiles.errors import InputError
from simulator.cluster.config import RoutingConfig
from simulator.cluster.instance import Instance
from simulator.progress import SimulationError

Choose = Callable[[int, Sequence[Instance], int], int]


def router(config: RoutingConfig, source: str | Path) -> Choose:
    """The policy as a function. Raises InputError for a custom one that cannot be loaded."""
    if config.policy == "round_robin":
        return RoundRobin()
    if config.policy == "random":
        drawn = random.Random(config.seed)
        return lambda _, instances, __: drawn.randrange(len(instances))
    if config.policy == "least_loaded":
        return LeastLoaded(config.by_capacity)
    if config.policy == "prefix_aware":
        return PrefixAware(config.slack)
    assert config.function is not None  # RoutingConfig demands it
    return _checked(load_function(config.function, source), config.function)


class InTurn:
    """Instances in order of their numbers, beginning after the last one chosen."""

    _last = -1

    def in_turn(self, instances: Sequence[Instance]) -> list[int]:
        behind = [i for i, one in enumerate(instances) if one.number > self._last]
        return behind + [i for i, one in enumerate(instances) if one.number <= self._last]

    def chosen(self, instances: Sequence[Instance], place: int) -> int:
        self._last = instances[place].number
        return place


class RoundRobin(InTurn):
    def __call__(self, _: int, instances: Sequence[Instance], __: int) -> int:
        return self.chosen(instances, self.in_turn(instances)[0])


class LeastLoaded(InTurn):
    def __init__(self, by_capacity: bool) -> None:
        self._by_capacity = by_capacity

    def __call__(self, _: int, instances: Sequence[Instance], __: int) -> int:
        def load(place: int) -> float:
            one = instances[place]
            score = 4 * one.waiting + one.running
            return score / one.max_num_seqs if self._by_capacity else score

        return self.chosen(instances, min(self.in_turn(instances), key=load))


class PrefixAware(InTurn):
    def __init__(self, slack: int) -> None:
        self._slack = slack

    def __call__(self, r: int, instances: Sequence[Instance], __: int) -> int:
        least = min(one.in_flight for one in instances)
        near = [
            place
            for place in self.in_turn(instances)
            if instances[place].in_flight <= least + self._slack
        ]

        def worth(place: int) -> tuple[int, int]:
            return -instances[place].cached_tokens(r), instances[place].in_flight

        return self.chosen(instances, min(near, key=worth))


def load_function(name: str, source: str | Path) -> Choose:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a user's module does when it is imported
        expected = f"a function that can be imported ({type(error).__name__}: {error})"
        raise InputError(source, "cluster.routing.function", name, expected) from None
    if not callable(found):
        raise InputError(source, "cluster.routing.function", name, "a function")
    choose: Choose = found
    return choose


def _checked(choose: Choose, name: str) -> Choose:
    def wrapped(r: int, instances: Sequence[Instance], now_ns: int) -> int:
        try:
            found = choose(r, instances, now_ns)
            place = -1 if isinstance(found, bool) else operator.index(found)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise SimulationError(f"routing function {name} failed: {why}") from error
        if not 0 <= place < len(instances):
            raise SimulationError(
                f"routing function {name} chose {found!r} of {len(instances)} instances"
            )
        return place

    return wrapped
