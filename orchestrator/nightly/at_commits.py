"""What one case gives at commits of this project, each checked out beside it."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from orchestrator.nightly.measure import Measured
from orchestrator.nightly.suite import Suite

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 900
# Runs at any commit: it asks for nothing but a point's result.
PREDICT = """
import json, sys
from pathlib import Path
from simulator import point_from_mapping, simulate
data = json.loads(Path(sys.argv[1]).read_text())
summary = simulate(point_from_mapping(data, Path("/"), "point")).summary
keep = ("steps", "end_ns", "preemptions", "latency", "kv", "prefix_cache")
print("RESULT " + json.dumps({name: summary[name] for name in keep}, sort_keys=True))
"""


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


class Runs:
    """Results of one case at commits, each computed once."""

    def __init__(self, folder: Path, suite: Suite, path: Path, case: Measured) -> None:
        self._folder, self._case = folder, case
        self._known: dict[str, str | None] = {}
        self._problems: dict[str, str] = {}
        self.problem = ""
        """Why the last one that was asked for has no result."""
        if case.kind == "oracle":
            scenario = case.name.partition("/")[2].rpartition("-")[0]
            group = suite.oracle[case.group]
            self._target = str((path.parent / group / scenario).resolve())
        else:
            self._target = str(folder / "point.json")
            Path(self._target).write_text(json.dumps(mapping_of(suite, path, case.name)))

    def at(self, commit: str) -> str | None:
        """What the case gives there; None if it does not run."""
        if commit not in self._known:
            tree = checked_out(self._folder, commit)
            self._known[commit] = self._run(tree)
            self._problems[commit] = self.problem
            shutil.rmtree(tree)
        self.problem = self._problems[commit]
        return self._known[commit]

    def here(self) -> str | None:
        """What it gives with the files as they are, committed or not."""
        return self._run(ROOT)

    def _run(self, tree: Path) -> str | None:
        if self._case.kind == "oracle":
            command = ["-m", "tests.oracle.check", self._target]
        else:
            command = ["-c", PREDICT, self._target]
        self.problem = ""
        try:
            done = subprocess.run(
                [sys.executable, *command],
                cwd=tree,
                env={**os.environ, "PYTHONPATH": str(tree)},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.problem = f"no result after {TIMEOUT_S} s"
            return None
        if (
            self._case.kind == "oracle"
            and done.returncode in (0, 1)
            and "Traceback" not in done.stderr
        ):
            return done.stdout
        results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if done.returncode or not results:
            self.problem = (done.stderr.strip().splitlines() or ["no result"])[-1]
            return None
        return results[0]


def checked_out(folder: Path, commit: str) -> Path:
    """The files of a commit, beside the project; the repository stays as it is."""
    tree = folder / git("rev-parse", commit).strip()
    archive = subprocess.run(
        ["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(tree, filter="data")
    return tree


def mapping_of(suite: Suite, path: Path, name: str) -> dict[str, Any]:
    """The case's point as plain data with absolute paths."""
    from profiles.errors import read_yaml
    from simulator.config import with_absolute_paths

    given = suite.points[name].point
    if isinstance(given, Path):
        file = path.parent / given
        return with_absolute_paths(read_yaml(file), file.parent.absolute())
    return with_absolute_paths(given, path.parent.absolute())
