"""Which commit or which input changed a prediction.

Inputs are told apart by content: another profile, workload or arrivals explain a change by
themselves. Where only the code differs, the case runs at commits between the baseline's and this one,
each checked out beside the project, until the first that predicts something else is found. What is
told is what was run, no more; whatever goes wrong on the way is a line as well.
"""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.nightly.at_commits import ROOT, Runs, git
from orchestrator.nightly.baseline import FILE, Accepted, Baseline
from orchestrator.nightly.detector import Judgement, Question
from orchestrator.nightly.measure import Measured
from orchestrator.nightly.suite import Suite
from profiles.errors import InputError

INPUTS = ("profile", "workload", "arrivals", "point")
SHOWN = 5  # changed files


@dataclass(frozen=True)
class Bisection:
    """Of one night."""

    suite: Suite
    path: Path
    baseline: Baseline | None
    judgement: Judgement
    tell: Callable[[str], None]

    def origins(self, cases: list[Measured]) -> list[str]:
        """A line for every point whose predictions changed or that failed, and for the first
        scenario that differs."""
        found: list[str] = []
        for case in cases:
            questions = {f.question for f in self.judgement.of(case.name)}
            if not questions & {"changed", "accurate"} or case.status not in ("measured", "failed"):
                continue
            origin = self._origin(case, questions)
            if origin is None:
                continue
            found.append(f"{case.name}: {origin}")
            if case.kind == "oracle":
                others = sum(c.kind == "oracle" and differs(c) for c in cases) - 1
                if others:
                    found.append(f"{others} more recordings differ; {case.name} stands for them")
                break
        return found

    def _origin(self, case: Measured, questions: set[Question]) -> str | None:
        """In words; None where nothing but the judgement's bands is to be told."""
        before = self.baseline.cases.get(case.name) if self.baseline else None
        if case.kind == "point":
            # A case that failed before its inputs were read has none.
            if before and case.inputs and (inputs := named_inputs(case, before)):
                return inputs
            if "changed" not in questions:
                if before is not None and case.inputs.get("truth") != before.inputs.get("truth"):
                    return "the truth is another one, predictions are as they were"
                return None
            if before is None:
                return None  # new, and compared with nothing
        try:
            commit = baseline_commit(self.path.parent / self.suite.baseline, self.baseline)
            if commit is None:
                return "the baseline names no commit to start from"
            self.tell(f"bisecting {case.name} from {commit[:12]}")
            return search_commits(self.suite, self.path, case, commit)
        except subprocess.CalledProcessError as error:
            said = str(error.stderr or error).strip().splitlines()
            return f"not searched, git says: {said[0] if said else error}"
        except (OSError, InputError, tarfile.TarError) as error:
            return f"not searched: {type(error).__name__}: {error}"


def differs(case: Measured) -> bool:
    return case.status == "failed" or case.difference is not None


def named_inputs(case: Measured, before: Accepted) -> str:
    """The inputs that are not what they were; empty if they are."""
    names = [name for name in INPUTS if case.inputs.get(name) != before.inputs.get(name)]
    return ", ".join(
        f"the {name} is another one ({before.inputs.get(name, '')[:16] or 'none'} -> "
        f"{case.inputs.get(name, '')[:16]})"
        for name in names
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
    """The first commit after `good` with another result, in words. Raises what git and files do."""
    if not known(good):
        return f"git does not know the baseline's commit {good[:12]}"
    if not is_ancestor(good):
        return (
            f"the baseline's commit {good[:12]} is not an ancestor of HEAD: no commits lead from "
            "one to the other"
        )
    between = git("rev-list", "--ancestry-path", "--reverse", f"{good}..HEAD").split()
    with tempfile.TemporaryDirectory(prefix="servesweep-bisect-") as folder:
        runs = Runs(Path(folder), suite, path, case)
        before = runs.at(good)
        if before is None:
            return f"it does not run at the baseline's commit {good[:12]}: {runs.problem}"

        def is_bad(commit: str) -> bool:
            # Of a case that fails, another prediction on the way is not what is looked for.
            result = runs.at(commit)
            return result is None if case.status == "failed" else result != before

        if not between or not is_bad(between[-1]):
            return unexplained(runs, before, good)
        low, high = 0, len(between) - 1  # the first bad one is within
        while low < high:
            middle = (low + high) // 2
            if is_bad(between[middle]):
                high = middle
            else:
                low = middle + 1
        shown = git("log", "-1", "--format=%h %s", between[high]).strip()
        fails = runs.at(between[high]) is None
        return f"commit {shown}" + (f"; there it fails: {runs.problem}" if fails else "")


def unexplained(runs: Runs, before: str, good: str) -> str:
    """No commit did it: the files as they are may."""
    if runs.here() != before:
        changed = git("diff", "--name-only", "HEAD").splitlines()
        shown = ", ".join(changed[:SHOWN]) or "none that git follows"
        more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        return f"uncommitted changes: {shown}{more}"
    return (
        f"run by itself, the code as it is predicts what that of the baseline's commit {good[:12]} "
        "does: no change of it explains what was found (the baseline may have been edited, or come "
        "from another environment)"
    )


def known(commit: str) -> bool:
    return git_answers("rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}")


def is_ancestor(commit: str) -> bool:
    return git_answers("merge-base", "--is-ancestor", commit, "HEAD")


def git_answers(*arguments: str) -> bool:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    return done.returncode == 0
