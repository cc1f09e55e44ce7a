"""Which commit or which input changed a prediction.

Inputs are told apart by content: another profile, workload or arrivals explain a change by
themselves. Where only the code differs, the case runs at commits between the baseline's and this one,
each checked out beside the project, until the first that predicts something else is found.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.nightly.baseline import FILE, Accepted, Baseline
from orchestrator.nightly.detector import Judgement
from orchestrator.nightly.measure import Measured
from orchestrator.nightly.suite import Suite

ROOT = Path(__file__).resolve().parents[2]
INPUTS = ("profile", "workload", "arrivals", "point")
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


def bisect(
    suite: Suite,
    path: Path,
    cases: list[Measured],
    baseline: Baseline | None,
    judgement: Judgement,
    tell: Callable[[str], None],
) -> list[str]:
    """A line for every case whose predictions changed, and for every scenario that differs."""
    found: list[str] = []
    accepted = baseline.cases if baseline else {}
    commit = baseline_commit(path.parent / suite.baseline, baseline)
    for case in cases:
        changed = any(f.question in ("changed", "accurate") for f in judgement.of(case.name))
        if not changed or case.status != "measured":
            continue
        before = accepted.get(case.name)
        if case.kind == "point" and before is not None and (inputs := named_inputs(case, before)):
            found.append(f"{case.name}: {inputs}")
            continue
        if case.kind == "point" and not any(
            f.question == "changed" for f in judgement.of(case.name)
        ):
            if before is not None and case.inputs["truth"] != before.inputs["truth"]:
                found.append(f"{case.name}: the truth is another one, predictions are as they were")
            continue
        if commit is None:
            found.append(f"{case.name}: the baseline names no commit to start from")
            continue
        tell(f"bisecting {case.name} from {commit[:12]}")
        found.append(f"{case.name}: {search_commits(suite, path, case, commit)}")
        if case.kind == "oracle":
            others = sum(c.kind == "oracle" and c.difference is not None for c in cases) - 1
            if others:
                found.append(f"{others} more recordings differ; {case.name} stands for them")
            break
    return found


def named_inputs(case: Measured, before: Accepted) -> str:
    """The inputs that are not what they were; empty if they are."""
    differs = [name for name in INPUTS if case.inputs.get(name) != before.inputs.get(name)]
    return ", ".join(
        f"the {name} is another one ({before.inputs.get(name, '')[:16] or 'none'} -> "
        f"{case.inputs.get(name, '')[:16]})"
        for name in differs
    )


def baseline_commit(folder: Path, baseline: Baseline | None) -> str | None:
    """The commit that brought the baseline; for one that is not committed, that of its writing."""
    if baseline is None:
        return None
    file = str((folder / FILE).absolute())
    try:
        if not git("status", "--porcelain", "--", file).strip():
            commit = git("log", "-1", "--format=%H", "--", file).strip()
            if commit:
                return commit
    except (OSError, subprocess.CalledProcessError):
        pass  # not in this repository
    return baseline.commit.removesuffix("-dirty") if baseline.commit else None


def search_commits(suite: Suite, path: Path, case: Measured, good: str) -> str:
    """The first commit after `good` with another result, in words."""
    try:
        between = git("rev-list", "--ancestry-path", "--reverse", f"{good}..HEAD").split()
    except subprocess.CalledProcessError as error:
        return f"git does not know the baseline's commit {good[:12]}: {error.stderr.strip()}"
    with tempfile.TemporaryDirectory(prefix="servesweep-bisect-") as folder:
        runs = Runs(Path(folder), suite, path, case)
        before = runs.at(good)
        if before is None:
            return f"it does not run at the baseline's commit {good[:12]}: {runs.problem}"
        head = runs.at("HEAD")
        if head == before:
            changed = git("diff", "--name-only", "HEAD").splitlines()
            if changed:
                return f"uncommitted changes: {', '.join(changed[:5])}"
            return "every commit predicts the same: the environment is another one"
        low, high = 0, len(between) - 1  # the first different one is within
        while low < high:
            middle = (low + high) // 2
            if runs.at(between[middle]) == before:
                low = middle + 1
            else:
                high = middle
        shown = git("log", "-1", "--format=%h %s", between[high]).strip()
        return f"commit {shown}"


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


class Runs:
    """Results of one case at commits, each computed once."""

    def __init__(self, folder: Path, suite: Suite, path: Path, case: Measured) -> None:
        self._folder, self._case = folder, case
        self._known: dict[str, str | None] = {}
        self.problem = ""
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
            shutil.rmtree(tree)
        return self._known[commit]

    def _run(self, tree: Path) -> str | None:
        if self._case.kind == "oracle":
            command = ["-m", "tests.oracle.check", self._target]
        else:
            command = ["-c", PREDICT, self._target]
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if self._case.kind == "oracle" and done.returncode in (0, 1):
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
