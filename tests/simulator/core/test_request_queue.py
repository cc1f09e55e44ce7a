"""Who waits, in which order; the heap against a sorted list."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.core import request_queue
from simulator.core.state import FCFS, PRIORITY
from tests.simulator.core.calls import callable_from_python
from tests.simulator.make import Ask, make_engine, make_settings, make_workload

POLICIES = {"fcfs": FCFS, "priority": PRIORITY}


class Queue:
    """The waiting queue of one engine; requests by name."""

    def __init__(self, asks: Sequence[Ask], policy: str) -> None:
        self.workload = make_workload(*asks)
        engine, _ = make_engine(self.workload, make_settings(policy=policy))
        self.queues, self.infos = engine.queues, engine.kv.infos
        self.policy = POLICIES[policy]

    def add(self, *names: str) -> None:
        for name in names:
            call = callable_from_python(request_queue.add_request)
            call(self.queues, self.infos, self.policy, self.workload.request_ids.index(name))

    def prepend(self, *names: str) -> None:
        for name in names:
            call = callable_from_python(request_queue.prepend_request)
            call(self.queues, self.infos, self.policy, self.workload.request_ids.index(name))

    def remove(self, name: str) -> None:
        call = callable_from_python(request_queue.remove_preempted_request)
        call(self.queues, self.infos, self.policy, self.workload.request_ids.index(name))

    def pop(self) -> str:
        r = callable_from_python(request_queue.peek_request)(self.queues)
        callable_from_python(request_queue.pop_request)(self.queues, self.infos)
        return self.workload.request_ids[r]

    def __len__(self) -> int:
        return int(callable_from_python(request_queue.num_waiting)(self.queues))

    def drain(self) -> str:
        return "".join(self.pop() for _ in range(len(self)))


def test_fcfs_is_the_order_of_arrival() -> None:
    queue = Queue([Ask(1)] * 3, "fcfs")
    queue.add("b", "a", "c")
    assert len(queue) == 3
    assert queue.drain() == "bac"
    assert len(queue) == 0


def test_fcfs_preempted_come_first_the_last_one_at_the_head() -> None:
    queue = Queue([Ask(1)] * 5, "fcfs")
    queue.add("d", "e")
    queue.prepend("c", "b", "a")
    assert len(queue) == 5
    assert queue.drain() == "abcde"


@pytest.mark.parametrize(("gone", "left"), [("a", "bcd"), ("b", "acd"), ("c", "abd")])
def test_fcfs_a_preempted_request_that_finished_leaves(gone: str, left: str) -> None:
    queue = Queue([Ask(1)] * 4, "fcfs")
    queue.add("d")
    queue.prepend("c", "b", "a")
    queue.remove(gone)
    assert queue.drain() == left


def test_priority_then_arrival_then_id_as_text() -> None:
    asks = [
        Ask(1, name="req-2", arrival=5),
        Ask(1, name="req-10", arrival=5),
        Ask(1, name="late", arrival=9, priority=-1),
        Ask(1, name="early", arrival=4),
        Ask(1, name="patient", arrival=0, priority=3),
    ]
    queue = Queue(asks, "priority")
    queue.add(*(ask.name for ask in asks if ask.name))
    assert [queue.pop() for _ in asks] == ["late", "early", "req-10", "req-2", "patient"]


def test_ids_are_ordered_by_code_point() -> None:
    names = ["b", "B", "a1", "a", "é", "Z"]
    queue = Queue([Ask(1, name=name) for name in names], "priority")
    queue.add(*names)
    assert [queue.pop() for _ in names] == ["B", "Z", "a", "a1", "b", "é"]


def test_priority_preemption_gives_no_advantage() -> None:
    queue = Queue([Ask(1, arrival=t) for t in range(4)], "priority")
    queue.add("a", "c", "d")
    queue.prepend("b")
    assert queue.drain() == "abcd"


def test_priority_a_preempted_request_that_finished_leaves() -> None:
    queue = Queue([Ask(1, arrival=t) for t in (3, 1, 4, 2, 0)], "priority")
    queue.add("c", "a", "b", "e")
    queue.prepend("d")
    queue.remove("d")
    assert queue.drain() == "ebac"


NAMES = [f"r{r}" for r in range(20)]


@settings(max_examples=200)
@given(
    keys=st.lists(
        st.tuples(st.integers(-2, 2), st.integers(0, 3)), min_size=len(NAMES), max_size=len(NAMES)
    ),
    actions=st.lists(st.tuples(st.sampled_from(["add", "pop", "remove"]), st.integers(0, 19))),
)
def test_priority_queue_is_a_sorted_list(
    keys: list[tuple[int, int]], actions: list[tuple[str, int]]
) -> None:
    asks = [
        Ask(1, name=name, priority=p, arrival=t) for name, (p, t) in zip(NAMES, keys, strict=True)
    ]
    queue = Queue(asks, "priority")
    waiting: list[str] = []
    order = {name: (*key, name) for name, key in zip(NAMES, keys, strict=True)}
    for action, r in actions:
        name = NAMES[r]
        if action == "add" and name not in waiting:
            queue.add(name)
            waiting = sorted([*waiting, name], key=order.__getitem__)
        elif action == "pop" and waiting:
            assert queue.pop() == waiting.pop(0)
        elif action == "remove" and name in waiting:
            queue.remove(name)
            waiting.remove(name)
        assert len(queue) == len(waiting)
    assert [queue.pop() for _ in range(len(queue))] == waiting
