"""A small suite of the committed one's cases, in a copy of the project that tests may break."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.profiles.bundles import ROOT

SUITE = ROOT / "sweeps/nightly/suite.yaml"
CASES = ("tables", "burst", "turns")
SCENARIOS = ("aligned-prompts", "exact-pool")
ROOMS = ("orchestrator", "simulator", "profiles", "tests/oracle/recordings/burst",
         "tests/oracle/recordings/turns", *(f"tests/oracle/recordings/{s}" for s in SCENARIOS),
         "sweeps/nightly/tables", "sweeps/nightly/truth")  # fmt: skip


@dataclass(frozen=True)
class Project:
    """A copy with its own suite; run uncompiled, so that a change of the core is a change."""

    root: Path

    @property
    def suite(self) -> Path:
        return self.root / "sweeps/nightly/suite.yaml"

    @property
    def baseline(self) -> Path:
        return self.root / "sweeps/nightly/baseline"

    def night(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "orchestrator.cli", "nightly", str(self.suite), "--serial"]
        if "--track" in options:
            options = tuple(option for option in options if option != "--track")
        else:
            command.append("--no-track")
        return subprocess.run(
            [*command, "--out", str(self.root / "out"), *options],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root), "SERVESWEEP_JIT": "0"},
            capture_output=True,
            text=True,
            check=False,
        )

    def judgement(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "out/small/judgement.json").read_text())
        return found

    def findings(self, case: str) -> list[str]:
        return [f["text"] for f in self.judgement()["findings"] if f["case"] == case]

    def change(self, file: str, before: str, after: str) -> None:
        path = self.root / file
        text = path.read_text()
        assert text.count(before) >= 1, (file, before)
        path.write_text(text.replace(before, after))

    def copy(self, to: Path) -> Project:
        shutil.copytree(self.root, to, symlinks=True)
        return Project(to)


def small_suite() -> dict[str, Any]:
    suite: dict[str, Any] = yaml.safe_load(SUITE.read_text())
    points = {name: suite["points"][name] for name in CASES}
    return {
        "name": "small",
        "baseline": "baseline",
        "oracle": {"decisions": "../../tests/oracle/recordings"},
        "points": points,
    }


def copied_project(to: Path) -> Project:
    ignore = shutil.ignore_patterns("__pycache__", "*.nbc", "*.nbi")
    for room in ROOMS:
        shutil.copytree(ROOT / room, to / room, ignore=ignore)
    for scenario in ("burst", "turns"):  # points; as decisions they would only take time
        for steps in (to / "tests/oracle/recordings" / scenario).glob("*steps*"):
            steps.unlink()
    project = Project(to)
    project.suite.write_text(yaml.safe_dump(small_suite()))
    return project
