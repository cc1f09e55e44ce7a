"""Chosen steps through both backends: in process, and ASTRA-Sim itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.astra.long_lived import LongLived
from orchestrator.astra.one_shot import OneShot
from orchestrator.astra.steps import PointSteps
from simulator.network.config import NetworkConfig
from simulator.network.dialect import Dialect
from simulator.network.trace import Trace


@dataclass(frozen=True)
class Compared:
    """One step: ns of every rank in process and as ASTRA-Sim said."""

    step: int
    device_ns: int
    expected_ns: tuple[int, ...]
    found_ns: tuple[int, ...]

    @property
    def difference_ns(self) -> int:
        """ASTRA-Sim's less ours, of the rank that ends last: the step's."""
        return max(self.found_ns) - max(self.expected_ns)

    @property
    def rank_difference_ns(self) -> int:
        """The same of the rank where it is largest."""
        pairs = zip(self.expected_ns, self.found_ns, strict=True)
        return max((found - expected for expected, found in pairs), key=abs)


@contextmanager
def backend(
    dialect: Dialect, program: Path, network: NetworkConfig, patience_s: float
) -> Iterator[Callable[[Trace], tuple[int, ...]]]:
    """What runs a trace and says when each rank has ended, ns."""
    if dialect == "upstream":
        yield OneShot(program, network, patience_s=patience_s).run
        return
    with LongLived(program, network, patience_s=patience_s) as process:
        yield process.run


def check(
    point: PointSteps,
    numbers: Sequence[int],
    dialect: Dialect,
    program: Path,
    patience_s: float,
) -> Iterator[Compared]:
    """Each step as it is done. Raises InputError, AstraError."""
    with backend(dialect, program, point.network, patience_s) as run:
        for number in numbers:
            step = point.step(number, dialect)
            found = run(step.trace)
            yield Compared(number, step.size.device_ns, step.expected_ns, found)
