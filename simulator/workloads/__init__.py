"""What is asked of the engine: readers, a generator and the arrays they end in."""

from simulator.workloads.config import WorkloadConfig, load_workload
from simulator.workloads.workload import Workload

__all__ = ["Workload", "WorkloadConfig", "load_workload"]
