"""What the points of a sweep have in common, held once: workloads, hashes, step tables, truths.

A point to run is then a small job that names them by content. In Ray they lie in the object store,
once for the cluster, and each worker process takes each of them out once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from orchestrator.expand import SweepPoint
from orchestrator.truth_data import Truth
from simulator.core.latency import Latency
from simulator.simulation import Prepared, PreparedCluster
from simulator.step_tables import frozen

HEAVY = ("workload", "arrival_ns", "hashes", "latency", "sources", "cluster")


@dataclass(frozen=True)
class Sibling:
    """A point that differs from a job's in its capacity alone: what its result says of that."""

    point_id: str
    num_gpu_blocks: int
    usable_blocks: int


@dataclass(frozen=True, eq=False)
class Job:
    """One point to run: everything small, and the keys of everything large."""

    point_id: str
    small: dict[str, Any]
    large: dict[str, str]
    truth: str | None
    siblings: tuple[Sibling, ...] = ()

    def prepared(self, fetch: Callable[[str], Any]) -> Prepared:
        return Prepared(**self.small, **{name: fetch(key) for name, key in self.large.items()})

    def truth_of(self, fetch: Callable[[str], Any]) -> Truth | None:
        truth: Truth | None = fetch(self.truth) if self.truth else None
        return truth


class Shared:
    """Holds the large parts of points, each once."""

    def __init__(self, points: Sequence[SweepPoint] = ()) -> None:
        self.parts: dict[str, Any] = {}
        self._key_of: dict[int, str] = {}
        for point in points:
            self._large(point)

    def job(self, point: SweepPoint, siblings: Sequence[SweepPoint] = ()) -> Job:
        large, truth = self._large(point)
        small = {
            f.name: getattr(point.prepared, f.name) for f in fields(Prepared) if f.name not in HEAVY
        }
        return Job(point.point_id, small, large, truth, tuple(map(_sibling, siblings)))

    def _large(self, point: SweepPoint) -> tuple[dict[str, str], str | None]:
        parts = {name: getattr(point.prepared, name) for name in HEAVY}
        large = {name: self._keep(name, part) for name, part in parts.items() if part is not None}
        return large, self._keep("truth", point.truth) if point.truth else None

    def _keep(self, kind: str, part: Any) -> str:
        # The same object is the same content: points share what they have in common.
        key = self._key_of.get(id(part))
        if key is None:
            key = f"{kind}-{len(self.parts)}"
            self._key_of[id(part)] = key
            self.parts[key] = part
        return key


def _sibling(point: SweepPoint) -> Sibling:
    blocks = point.prepared.capacity.num_gpu_blocks
    return Sibling(point.point_id, blocks, point.usable_blocks)


def usable(part: Any) -> Any:
    """A part as it came from another process, as the core takes it.

    Arrays may have become writable on the way, which to numba is another type.
    """
    if isinstance(part, Latency):
        return frozen(part)
    if isinstance(part, PreparedCluster):
        known: dict[int, Latency] = {}
        return replace(
            part,
            instances=tuple(
                replace(one, latency=known.setdefault(id(one.latency), frozen(one.latency)))
                for one in part.instances
            ),
        )
    return part
