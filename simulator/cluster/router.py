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
from simulator.core import state
from simulator.progress import SimulationError

Choose = Callable[[int, Sequence[Instance], int], int]
NS_PER_MS = 1_000_000


def router(config: RoutingConfig, source: str | Path) -> Choose:
    """The policy as a function. Raises InputError for a custom one that cannot be loaded."""
    if config.policy == "round_robin":
        return RoundRobin()
    if config.policy == "random":
        drawn = random.Random(config.seed)
        return lambda _, instances, __: drawn.randrange(len(instances))
    if config.policy == "least_loaded" and config.update_interval_ms:
        return ToldLeastLoaded(config.update_interval_ms * NS_PER_MS)
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


class ToldLeastLoaded:
    """vLLM's load balancer before data-parallel engines, which hears of them now and then.

    Its DPCoordinator publishes the engines' counts at most every `interval_ns`. Between two updates
    the front end knows of its own requests alone and counts each as waiting; an update replaces all
    it knew, a request that an engine has yet to take in included. Updates come while anything is in
    flight, the first an interval after the request that found all idle. vLLM sends the counts of the
    last step that all engines have reported; here they are those of the moment.
    """

    def __init__(self, interval_ns: int) -> None:
        self.next_update_ns = state.FOREVER
        self._interval_ns = interval_ns
        self._load: dict[int, int] = {}

    def update(self, instances: Sequence[Instance]) -> None:
        """Once `next_update_ns` has come."""
        self._load = {one.number: 4 * one.queued + one.running for one in instances}
        busy = any(one.in_flight for one in instances)
        self.next_update_ns = self.next_update_ns + self._interval_ns if busy else state.FOREVER

    def __call__(self, _: int, instances: Sequence[Instance], now_ns: int) -> int:
        if self.next_update_ns == state.FOREVER:
            self.next_update_ns = now_ns + self._interval_ns
        loads = [self._load.get(one.number, 0) for one in instances]
        place = loads.index(min(loads))
        self._load[instances[place].number] = loads[place] + 4
        return place


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
