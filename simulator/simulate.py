"""One point from configuration to result."""

from __future__ import annotations

from simulator.build import grow_log
from simulator.core import state
from simulator.core.engine import advance
from simulator.core.state import Engine


class SimulationError(RuntimeError):
    """The engine makes no progress; says who waits for what."""


def run_to_end(engine: Engine) -> Engine:
    """Advance until all work is done. Raises SimulationError when it never will be."""
    while True:
        reason = advance(engine, state.FOREVER, state.FOREVER // 2)
        if reason == state.DONE:
            return engine
        if reason == state.LOG_FULL:
            engine = grow_log(engine)
            continue
        raise SimulationError(str(reason))
