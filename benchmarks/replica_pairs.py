"""Which requests of a recorded run of two replicas were served by the same one, where its times tell.

All that a replica puts out in one step carries one time, and so does all that it schedules in one. Two
replicas that step together do both within a millisecond of each other, each at its own time. So equal
times are of one replica, times that differ by less than a step are of two, and more follows from both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from profiles.bundle import Floats
from profiles.recorded import RecordedRun

ONE_STEP_S = 1.5e-3  # between the replicas' times of one step; far below the shortest step


class Sides:
    """Requests on one of two sides: groups whose members know of each other (union-find by parity)."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))
        self._other = [False] * count  # on the other side than the parent

    def find(self, r: int) -> tuple[int, bool]:
        """The group, and whether `r` is on the other side than the request it is named after."""
        other = False
        while self._parent[r] != r:
            other ^= self._other[r]
            r = self._parent[r]
        return r, other

    def join(self, a: int, b: int, apart: bool) -> None:
        """Raises ValueError if that contradicts what is known."""
        (group_a, other_a), (group_b, other_b) = self.find(a), self.find(b)
        if group_a != group_b:
            self._parent[group_a] = group_b
            self._other[group_a] = other_a ^ other_b ^ apart
        elif (other_a ^ other_b) != apart:
            raise ValueError(f"requests {a} and {b} are on one side and on two")


def neighbours(run: RecordedRun) -> Iterator[tuple[int, bool]]:
    """Every request whose next one is known to have gone to the same replica (False) or not (True).

    Raises ValueError if the times contradict each other: then there are not two that step together.
    """
    every = np.arange(len(run))
    sides = Sides(len(run))
    outputs = (np.concatenate([run.first_token_s, run.last_token_s]), np.tile(every, 2))
    for times, requests in (outputs, (run.scheduled_s, every)):
        for a, b, apart in _in_one_step(times, requests.tolist()):
            sides.join(a, b, apart)
    for a, b in itertools.pairwise(every.tolist()):
        (group_a, other_a), (group_b, other_b) = sides.find(a), sides.find(b)
        if group_a == group_b:
            yield a, other_a ^ other_b


def _in_one_step(times: Floats, requests: list[int]) -> Iterator[tuple[int, int, bool]]:
    order = np.argsort(times, kind="stable").tolist()
    for place, i in enumerate(order):
        for j in order[place + 1 :]:
            if times[j] - times[i] > ONE_STEP_S:
                break
            if requests[i] != requests[j]:
                yield requests[i], requests[j], bool(times[j] != times[i])
