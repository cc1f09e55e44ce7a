"""Compares the engine with recorded decisions of vLLM's own scheduler, step by step.

    python -m tests.oracle.check FOLDER...

A FOLDER holds one recorded scenario, or scenarios in folders below it. Prints a line a scenario and
mode; at the first difference prints both sides of that step and goes on to the next scenario. Exits
with 0 if everything is equal, 1 if something differs, 2 if there is nothing to compare.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from orchestrator.nightly.scenarios import compare, scenarios_below


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


if __name__ == "__main__":
    sys.exit(main())
