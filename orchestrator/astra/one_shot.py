"""Upstream ASTRA-Sim: one process a workload, its results kept by content.

The key covers the program, the configurations and every trace, so a result is never another
workload's.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
from pathlib import Path

import orjson
import platformdirs

from orchestrator.astra import PATIENCE_S
from orchestrator.astra.program import AstraError, Program, unfinished
from profiles.errors import InputError
from simulator.network.chakra import encoded
from simulator.network.config import NetworkConfig
from simulator.network.files import MEMORY_FILE, file_texts, write_files
from simulator.network.trace import MemoryAccess, Trace, check_trace

FINISHED = re.compile(r"sys\[(\d+)\] finished, (\d+) cycles")
PREFIX = "step"

_log = logging.getLogger("servesweep")


class OneShot:
    """Runs traces over one network with upstream's binary.

    Compute nodes run to the nanosecond (`exact_ns` of `chakra.encoded`).
    """

    def __init__(
        self,
        program: Path,
        network: NetworkConfig,
        *,
        patience_s: float = PATIENCE_S,
        cache: Path | None = None,
    ) -> None:
        self.program, self.network, self.patience_s = program, network, patience_s
        self.cache = cache_folder() if cache is None else cache
        self.program_id = hashlib.sha256(program.read_bytes()).hexdigest()

    def run(self, trace: Trace) -> tuple[int, ...]:
        """When each rank has ended, ns. Raises InputError for a trace that cannot run, AstraError."""
        check_trace(trace, self.network)
        for node in (node for nodes in trace.ranks for node in nodes):
            if isinstance(node, MemoryAccess):
                expected = "no access to memory beside the ranks: upstream gets none"
                raise InputError("trace", node.name, node.place, expected)
        dimensions = len(self.network.dimensions)
        files = [
            encoded(nodes, "upstream", rank=rank, num_dimensions=dimensions, exact_ns=True)
            for rank, nodes in enumerate(trace.ranks)
        ]
        kept = self.cache / f"{self.key(files)}.json"
        if kept.is_file():
            found = self.read(kept, len(files))
            if found is not None:
                return found
        with tempfile.TemporaryDirectory(prefix="servesweep-astra-") as name:
            ends = self.run_in(Path(name), files)
        self.keep(kept, ends)
        return ends

    def key(self, files: list[bytes]) -> str:
        digest = hashlib.sha256(self.program_id.encode())
        for text in file_texts(self.network, "upstream", exact_ns=True).values():
            digest.update(hashlib.sha256(text.encode()).digest())
        for file in files:
            digest.update(hashlib.sha256(file).digest())
        return digest.hexdigest()[:40]

    def run_in(self, folder: Path, files: list[bytes]) -> tuple[int, ...]:
        write_files(folder, self.network, "upstream", exact_ns=True)
        for rank, file in enumerate(files):
            (folder / f"{PREFIX}.{rank}.et").write_bytes(file)
        command = [
            str(self.program),
            f"--workload-configuration={folder / PREFIX}",
            f"--system-configuration={folder / 'system.json'}",
            f"--network-configuration={folder / 'network.yml'}",
            f"--remote-memory-configuration={folder / MEMORY_FILE['upstream']}",
        ]
        program = Program(command, folder, self.patience_s)
        try:
            return self.ends(program, len(files))
        finally:
            program.close()

    def ends(self, program: Program, ranks: int) -> tuple[int, ...]:
        found: dict[int, int] = {}
        while (line := program.line(unfinished(found, ranks))) is not None:
            said = FINISHED.search(line)
            if said is None:
                continue
            rank, ns = int(said[1]), int(said[2])
            if rank >= ranks or rank in found:
                program.close()
                what = "twice" if rank in found else f"of {ranks}"
                raise AstraError(f"{program.name} ended rank {rank} {what}: {line.strip()}")
            found[rank] = ns
            program.progress()
        ending = program.ending()
        if len(found) < ranks:
            left = unfinished(found, ranks)
            raise AstraError(f"{program.name} {ending} before {left} did. {program.last_words()}")
        if ending != "ended with status 0":
            # Seen after the last result, while it cleans up: the results are whole.
            _log.warning("%s %s after every rank had ended", program.name, ending)
        return tuple(found[rank] for rank in range(ranks))

    @staticmethod
    def read(path: Path, ranks: int) -> tuple[int, ...] | None:
        """What was kept; None where it is damaged."""
        try:
            found = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return None
        whole = isinstance(found, list) and len(found) == ranks
        return tuple(found) if whole and all(type(ns) is int for ns in found) else None

    def keep(self, path: Path, ends: tuple[int, ...]) -> None:
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(orjson.dumps(list(ends)))
            unfinished.replace(path)
        except OSError as error:
            _log.warning("results of ASTRA-Sim cannot be kept in %s (%s)", path.parent, error)


def cache_folder() -> Path:
    """SERVESWEEP_CACHE_DIR, else the user's cache directory."""
    configured = os.environ.get("SERVESWEEP_CACHE_DIR")
    return Path(configured or platformdirs.user_cache_dir("servesweep")) / "astra"
