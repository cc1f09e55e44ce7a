"""What is asked of the engine: readers, generator and the arrays they end in."""

from simulator.workloads.workload import Workload

__all__ = ["Workload"]
