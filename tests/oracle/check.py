"""Compares the engine with recorded decisions of vLLM's own scheduler, step by step.

    python -m tests.oracle.check FOLDER...

A FOLDER holds one recorded scenario, or scenarios in folders below it. Prints a line a scenario and
mode; at the first difference prints both sides of that step and goes on to the next scenario. Exits
with 0 if everything is equal, 1 if something differs, 2 if there is nothing to compare.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.core.state import Engine
from tests.oracle.replay import Scenario, replay, scenarios, simulated

# Recorded but derived from other fields, or only there to help a reader.
NOT_COMPARED = {"kv_usage"}


@dataclass(frozen=True)
class Outcome:
    """How many lines were compared and the first that differs, if any."""

    lines: int
    difference: str | None


def compare(scenario: Scenario) -> Outcome:
    """Replay a scenario and compare every line of its recording."""
    engine, workload = replay(scenario)
    lines = 0
    ours_then_theirs = itertools.zip_longest(
        simulated(engine, workload, scenario.mode), scenario.recorded
    )
    for ours, theirs in ours_then_theirs:
        difference = line_difference(ours, theirs)
        if difference:
            return Outcome(lines, f"line {lines}: {difference}")
        lines += 1
    totals = scenario.config
    found = {
        "steps": int(engine.queues.counters[0].num_steps),
        "preemptions": int(engine.queues.counters[0].num_preemptions),
        "end_ns": int(engine.queues.counters[0].now_ns),
        **connector_totals(engine),
    }
    expected = {name: totals[name] for name in found if name in totals}
    wrong = {n: (found[n], expected[n]) for n in expected if found[n] != expected[n]}
    return Outcome(lines, f"totals (ours, recorded): {wrong}" if wrong else None)


def connector_totals(engine: Engine) -> dict[str, Any]:
    """What vLLM counts of a connector, and the chunks in the tier at the end."""
    connection = engine.storage.connection[0]
    names = ("queries", "hits", "preempted_queries", "preempted_hits")
    return {
        "connector_pc": [int(connection[name]) for name in names],
        "chunks": int(engine.storage.near.store[0].num_chunks),
    }


def line_difference(ours: dict[str, Any] | None, theirs: dict[str, Any] | None) -> str | None:
    """What differs between a simulated and a recorded line; order of requests included."""
    if ours is None or theirs is None:
        longer = "recording" if ours is None else "simulation"
        return f"the {longer} goes on: {ours or theirs}"
    for name, recorded in theirs.items():
        if name in NOT_COMPARED:
            continue
        if name not in ours:
            return f"field {name} is recorded but not simulated"
        mine = ours[name]
        same = mine == recorded
        if same and name == "sched":
            same = list(mine) == list(recorded)
        if not same:
            return f"step {theirs.get('step')}, {name}:\n  simulated {mine}\n  recorded  {recorded}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.check", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    found = [s for folder in arguments.folders for s in scenarios_below(folder)]
    if not found:
        names = ", ".join(map(str, arguments.folders))
        print(f"no recorded scenario in {names}", file=sys.stderr)
        return 2
    mismatches = steps = 0
    for scenario in found:
        outcome = compare(scenario)
        steps += outcome.lines
        label = f"{scenario.folder.name} {scenario.mode}"
        print(f"{label:32s} {outcome.lines:6d} lines  {'MISMATCH' if outcome.difference else 'ok'}")
        if outcome.difference:
            mismatches += 1
            print(outcome.difference)
    print(f"{len(found)} recordings, {steps} lines compared, {mismatches} mismatches")
    return 1 if mismatches else 0


def scenarios_below(folder: Path) -> list[Scenario]:
    own = scenarios(folder)
    if own:
        return own
    below = sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    return [s for child in below for s in scenarios(child)]


if __name__ == "__main__":
    sys.exit(main())
