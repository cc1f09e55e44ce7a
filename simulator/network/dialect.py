"""The two ASTRA-Sims there are; neither reads the other's files.

`upstream` is astra-sim/astra-sim, a process a workload. `llmservingsim` is the fork that
LLMServingSim runs, one process for workload after workload.
"""

from __future__ import annotations

from typing import Literal

Dialect = Literal["upstream", "llmservingsim"]
DIALECTS: tuple[Dialect, ...] = ("upstream", "llmservingsim")
