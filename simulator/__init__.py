"""One point: configuration + workload + profile -> result.

    from simulator import load_point, simulate
    result = simulate(load_point("point.yaml"))
    result.write("out")

Names are imported when first used, so that reading a configuration does not wait for the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.config import Point, load_point, point_from_mapping
    from simulator.progress import SimulationError
    from simulator.result import Result
    from simulator.simulation import prepare, run, simulate

_HOME = {
    "Point": "config",
    "load_point": "config",
    "point_from_mapping": "config",
    "Result": "result",
    "SimulationError": "progress",
    "prepare": "simulation",
    "run": "simulation",
    "simulate": "simulation",
}

__all__ = [
    "Point",
    "Result",
    "SimulationError",
    "load_point",
    "point_from_mapping",
    "prepare",
    "run",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"simulator.{_HOME[name]}"), name)
