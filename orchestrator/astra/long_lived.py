"""LLMServingSim's fork of ASTRA-Sim: one process that runs workload after workload.

A rank that has ended its workload is announced with the clock, then the process waits for a line: a
new workload, `pass` or `exit`. After `pass` it goes on to the next event, or by 1 ms where there is
none, and asks again. Every rank is registered as one that asks, so all ends are seen and all ranks
get the next workload at the same clock, which is the workload's start.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from types import TracebackType

from orchestrator.astra import PATIENCE_S
from orchestrator.astra.program import AstraError, Program, unfinished
from simulator.network.chakra import encoded
from simulator.network.config import NetworkConfig
from simulator.network.files import MEMORY_FILE, write_files
from simulator.network.trace import Trace, check_trace

FINISHED = re.compile(r"sys\[(\d+)\] iteration (\d+) finished, (\d+) cycles")
WAITING = "Waiting"


class LongLived:
    """Runs traces over one network, one after the other, in one process. A context manager."""

    def __init__(
        self, program: Path, network: NetworkConfig, *, patience_s: float = PATIENCE_S
    ) -> None:
        self.binary, self.network, self.patience_s = program, network, patience_s
        self.folder = tempfile.TemporaryDirectory(prefix="servesweep-astra-")
        self.process: Program | None = None
        self.workloads = 0
        self.asking: tuple[int, int] | None = None  # who waits for a line, and the clock

    def __enter__(self) -> LongLived:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, trace: Trace) -> tuple[int, ...]:
        """When each rank has ended, ns after the start of this trace.

        Raises InputError for a trace that cannot run, AstraError; the process is gone after that.
        """
        check_trace(trace, self.network)
        prefix = self.write(trace)
        try:
            start_ns = self.start(prefix) if self.process is None else self.feed(prefix)
            ends = self.ends()
        except BaseException:
            self.close()
            raise
        for rank in range(self.network.ranks):
            Path(f"{prefix}.{rank}.et").unlink()
        self.workloads += 1
        return tuple(ns - start_ns for ns in ends)

    def write(self, trace: Trace) -> Path:
        prefix = Path(self.folder.name) / f"step{self.workloads}"
        dimensions = len(self.network.dimensions)
        for rank, nodes in enumerate(trace.ranks):
            file = encoded(nodes, "llmservingsim", rank=rank, num_dimensions=dimensions)
            Path(f"{prefix}.{rank}.et").write_bytes(file)
        return prefix

    def start(self, prefix: Path) -> int:
        """Its first workload comes with the command line and starts at 0."""
        folder = Path(self.folder.name)
        write_files(folder, self.network, "llmservingsim")
        command = [
            str(self.binary),
            f"--workload-configuration={prefix}",
            f"--system-configuration={folder / 'system.json'}",
            f"--network-configuration={folder / 'network.yml'}",
            f"--memory-configuration={folder / MEMORY_FILE['llmservingsim']}",
            "--end-npu-ids=" + ",".join(map(str, range(self.network.ranks))),
        ]
        self.process = Program(command, folder, self.patience_s)
        return 0

    def feed(self, prefix: Path) -> int:
        """Give all ranks their workload in one round, from rank 0 on. Returns the clock then."""
        process, ended = self.running(), self.workloads - 1
        process.progress()
        assert self.asking is not None
        rank, start_ns = self.asking
        while rank != 0:
            process.say("pass")
            rank, start_ns = self.next_asking("the round of all ranks", ended)
        for expected in range(self.network.ranks):
            if expected:
                rank, ns = self.next_asking(f"rank {expected}, which asks for work,", ended)
                if (rank, ns) != (expected, start_ns):
                    asks = f"rank {rank} asks for work at {ns} ns"
                    due = f"rank {expected} at {start_ns} ns was due"
                    raise AstraError(
                        f"{process.name} does not start all ranks together: {asks}, {due}"
                    )
            process.say(str(prefix))
        self.asking = None
        process.progress()
        return start_ns

    def ends(self) -> list[int]:
        """The clock when each rank was first seen to have ended this workload."""
        process, ranks = self.running(), self.network.ranks
        found: dict[int, int] = {}
        while True:
            rank, ns = self.next_asking(unfinished(found, ranks), self.workloads)
            if rank not in found:
                found[rank] = ns
                process.progress()
            if len(found) == ranks:
                self.asking = rank, ns
                return [found[rank] for rank in range(ranks)]
            process.say("pass")

    def next_asking(self, waiting_for: str, workload: int) -> tuple[int, int]:
        """The next rank that waits for a line, having ended `workload`, with the clock."""
        process, said = self.running(), None
        while (line := process.line(waiting_for)) is not None:
            if (found := FINISHED.search(line)) is not None:
                said = found
            elif WAITING in line:
                if said is None or int(said[1]) >= self.network.ranks:
                    raise AstraError(f"{process.name} waits for no rank. {process.last_words()}")
                if int(said[2]) != workload:
                    what = f"workload {said[2]} of rank {said[1]} where {workload} was due"
                    raise AstraError(f"{process.name} ended {what}")
                return int(said[1]), int(said[3])
        raise AstraError(
            f"{process.name} {process.ending()} before {waiting_for} came to an end. "
            f"{process.last_words()}"
        )

    def running(self) -> Program:
        assert self.process is not None
        return self.process

    def close(self) -> None:
        """Tell it to exit, and end it if it does not."""
        process, self.process = self.process, None
        if process is not None:
            if self.asking is not None:
                with suppress(AstraError, TimeoutExpired):
                    process.say("exit")
                    process.process.wait(timeout=5)
            process.close()
        self.asking = None
        self.folder.cleanup()
