"""Small programs that behave as ASTRA-Sim does, well or badly, and where the real ones are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from simulator.network.dialect import Dialect

BINARY = os.environ.get("ASTRA_SIM_BIN")
DIALECT = os.environ.get("ASTRA_SIM_DIALECT", "upstream")


def needs_program(dialect: Dialect) -> pytest.MarkDecorator:
    there = BINARY is not None and dialect == DIALECT
    reason = f"needs ASTRA_SIM_BIN and ASTRA_SIM_DIALECT={dialect}"
    return pytest.mark.skipif(not there, reason=reason)


def program(folder: Path, body: str) -> Path:
    """An executable that runs `body`; `options` are its arguments by name."""
    path = folder / "fake_astra"
    path.write_text(
        f"#!{sys.executable}\n"
        "import glob, os, signal, sys, time\n"
        "options = dict(a.lstrip('-').split('=', 1) for a in sys.argv[1:])\n"
        "prefix = options['workload-configuration']\n"
        "ranks = len(glob.glob(prefix + '.*.et'))\n"
        "def say(text): print(text, flush=True)\n" + body
    )
    path.chmod(0o755)
    return path


# Upstream: every rank ends at 1000 ns more than the one before it.
GOOD = """
with open(os.path.join(os.path.dirname(prefix), '..', 'runs'), 'a') as file:
    file.write('run')
for rank in range(ranks):
    say(f'[12:00] [workload] [info] sys[{rank}] finished, {1000 * (rank + 1)} cycles, exposed ...')
"""

# The fork: a clock, every rank's work takes as many ns as its trace has bytes, and 1 ms goes by
# whenever nobody has anything to do.
FORK = """
def work(prefix, rank): return os.path.getsize(f'{prefix}.{rank}.et')
clock = 0
due = {rank: work(prefix, rank) for rank in range(ranks)}
done = {rank: 0 for rank in range(ranks)}
while True:
    later = [ns for ns in due.values() if ns > clock]
    clock = min(later) if later else clock + 1_000_000
    for rank in range(ranks):
        say(f'Checking End NPU {rank} ...')
        if due[rank] > clock:
            continue
        say(f'[workload] [info] sys[{rank}] iteration {done[rank]} finished, {clock} cycles, exp')
        say('[workload] [info] Waiting')
        line = sys.stdin.readline().strip()
        if line == 'exit':
            say('Checking Non-Exited Systems ...')
            sys.exit(0)
        if line != 'pass':
            due[rank] = clock + work(line, rank)
            done[rank] += 1
"""
