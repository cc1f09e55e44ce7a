"""The one place where measured and accepted become findings and a verdict.

Two questions are kept apart. Did predictions change? They are deterministic: equal or not. Are they
accurate? Within bands, no case from success to failure, not worse than the last accepted night.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from orchestrator.nightly.baseline import Accepted, Baseline
from orchestrator.nightly.measure import BATCH, Measured
from orchestrator.nightly.suite import Group, Suite

Question = Literal["changed", "accurate", "measured"]
Verdict = Literal["fine", "regression", "not_comparable"]
EXIT_CODES: dict[Verdict, int] = {"fine": 0, "regression": 1, "not_comparable": 2}
MOST_METRICS = 5


@dataclass(frozen=True)
class Finding:
    """Something that keeps the night from being fine. `case` may be a group."""

    case: str
    question: Question
    text: str
    verdict: Verdict = "regression"


@dataclass(frozen=True)
class Judgement:
    findings: list[Finding]
    verdict: Verdict
    measured: int

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def of(self, case: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.case == case]

    def answer(self, question: Question) -> str:
        """For tags and headlines."""
        found = [f for f in self.findings if f.question == question]
        certain = [f for f in found if f.verdict == "regression"]
        if not self.measured or (found and not certain):
            return "not compared"
        bad, good = {"changed": ("yes", "no"), "accurate": ("no", "yes")}.get(
            question, ("no", "yes")
        )
        return bad if certain else good


def judge(
    suite: Suite,
    cases: list[Measured],
    baseline: Baseline | None,
    last: dict[str, dict[str, float]] | None,
) -> Judgement:
    """`last`: case -> errors of the last accepted night, if there is one."""
    accepted = baseline.cases if baseline else {}
    findings: list[Finding] = []
    for case in cases:
        findings += case_findings(suite, case, accepted.get(case.name))
        if case.status == "measured" and last is not None:
            findings += trend_findings(suite, case, last.get(case.name, {}))
    for name, group in suite.groups.items():
        inside = [case for case in cases if case.group == name and case.status == "measured"]
        findings += group_findings(name, group, inside)
    findings += missing_findings(cases, accepted)
    measured = sum(case.status in ("measured", "failed") for case in cases)
    if not measured:
        text = f"nothing was measured: {len(cases)} cases, none of them ran"
        findings.insert(0, Finding(suite.name, "measured", text, "not_comparable"))
    return Judgement(findings, verdict_of(findings, measured), measured)


def verdict_of(findings: list[Finding], measured: int) -> Verdict:
    """A regression outweighs what could not be compared; nothing measured outweighs all."""
    if not measured:
        return "not_comparable"
    verdicts = {finding.verdict for finding in findings}
    for verdict in ("regression", "not_comparable"):
        if verdict in verdicts:
            return verdict
    return "fine"


def case_findings(suite: Suite, case: Measured, accepted: Accepted | None) -> list[Finding]:
    if case.status == "skipped":
        return []
    if case.status == "wrong_input":
        return [Finding(case.name, "measured", case.reason, "not_comparable")]
    if case.status == "failed":
        return failed_findings(suite, case, accepted)
    if case.kind == "oracle":
        if case.difference is None:
            return []
        text = f"not what vLLM decided: {case.difference}"
        return [Finding(case.name, "accurate", text)]
    return [*changed_findings(case, accepted), *band_findings(suite, case)]


def failed_findings(suite: Suite, case: Measured, accepted: Accepted | None) -> list[Finding]:
    """A failure that was accepted is what was expected; its bands are still not measured."""
    if accepted is not None and accepted.status == "failed":
        return band_findings(suite, case) if case.kind == "point" else []
    if accepted is None:
        text = f"failed, and was not accepted before: {case.reason}"
        return [Finding(case.name, "accurate", text)]
    return [
        Finding(case.name, "accurate", f"failed, and succeeded before: {case.reason}"),
        Finding(case.name, "changed", "it failed: of what was predicted before, nothing is"),
    ]


def changed_findings(case: Measured, accepted: Accepted | None) -> list[Finding]:
    if accepted is None:
        text = "no baseline: --accept makes it one"
        return [Finding(case.name, "changed", text, "not_comparable")]
    if accepted.status == "failed":
        text = "succeeded, and failed when it was accepted: --accept makes it the baseline"
        return [Finding(case.name, "changed", text, "not_comparable")]
    # A number that is new was never accepted; one that is gone is a change.
    differs = sorted(
        name for name, value in accepted.predictions.items() if case.predictions.get(name) != value
    )
    step = None
    if case.steps is not None and accepted.steps is not None:
        step = first_difference(case.steps, accepted.steps)
    if not differs and step is None:
        return []
    why = changed_inputs(case.inputs, accepted.inputs)
    where = step or "every step is as it was: what changed is how results are summed up"
    metrics = ", ".join(
        f"{name} {accepted.predictions.get(name)} -> {case.predictions.get(name)}"
        for name in differs[:MOST_METRICS]
    )
    more = f" and {len(differs) - MOST_METRICS} more" if len(differs) > MOST_METRICS else ""
    text = f"predictions changed ({why}); {where}; {metrics or 'no metric'}{more}"
    return [Finding(case.name, "changed", text)]


def changed_inputs(now: dict[str, str], before: dict[str, str]) -> str:
    """Which inputs differ, in words."""
    named = [name for name in now if name != "truth" and now[name] != before.get(name)]
    data = [name for name in named if name != "version"]
    if data:
        return f"another {' and '.join(data)}"
    return "another version of the code" if named else "same inputs and same code"


def first_difference(now: pa.Table, before: pa.Table) -> str | None:
    """The first step that differs, with every number that does."""
    common = min(len(now), len(before))
    names = [name for name in before.column_names if name in now.column_names]
    first = common
    for name in names:
        ours, theirs = (table[name].to_numpy()[:common] for table in (now, before))
        apart = np.flatnonzero(ours != theirs)
        if len(apart):
            first = min(first, int(apart[0]))
    if first == common:
        if len(now) == len(before):
            return None
        return f"{len(before)} steps before, {len(now)} now; the first {common} are equal"
    changes = []
    for name in names:
        ours, theirs = now[name][first].as_py(), before[name][first].as_py()
        if ours != theirs:
            changes.append("another batch" if name == BATCH else f"{name} {theirs} -> {ours}")
    return f"first at step {first}: {', '.join(changes)}"


def band_findings(suite: Suite, case: Measured) -> list[Finding]:
    found = []
    for metric, most in suite.points[case.name].bands.items():
        value = case.value(metric)
        if value is None:
            text = f"{metric} was not measured; its band is {most:g}"
            found.append(Finding(case.name, "accurate", text, "not_comparable"))
        elif not abs(value) <= most:
            text = f"{metric} is {value:.4g}, outside its band of {most:g}"
            found.append(Finding(case.name, "accurate", text))
    return found


def group_findings(name: str, group: Group, cases: list[Measured]) -> list[Finding]:
    """`cases`: those of the group that were measured. A metric that one of them does not have can be
    held against nothing, neither over the group nor as a trend."""
    found = []
    for metric in dict.fromkeys((*group.bands, *group.worse)):
        without = [case.name for case in cases if case.value(metric) is None]
        if without:
            text = f"{metric} was not measured of {', '.join(without)}; the group {name} has it"
            found.append(Finding(name, "accurate", text, "not_comparable"))
            continue
        values = [abs(case.value(metric) or 0.0) for case in cases]
        if metric not in group.bands or not values:
            continue
        mean, most = float(np.mean(values)), group.bands[metric]
        if not mean <= most:
            text = f"{metric} is {mean:.4g} over {len(values)} cases, its band is {most:g}"
            found.append(Finding(name, "accurate", text))
    return found


def trend_findings(suite: Suite, case: Measured, last: dict[str, float]) -> list[Finding]:
    group = suite.groups.get(case.group)
    found = []
    for metric, most in (group.worse if group else {}).items():
        value, before = case.value(metric), last.get(metric)
        if value is None or before is None:
            continue  # group_findings tells the first; the second is the first night that has it
        if not abs(value) - abs(before) <= most:
            text = (
                f"{metric} is {value:.4g}, {before:.4g} in the last accepted "
                f"night: worse by more than {most:g}"
            )
            found.append(Finding(case.name, "accurate", text))
    return found


def missing_findings(cases: list[Measured], accepted: dict[str, Accepted]) -> list[Finding]:
    """Cases of the baseline that the suite no longer has: less is measured than was."""
    known = {case.name for case in cases}
    return [
        Finding(name, "measured", "in the baseline, not in the suite any more", "not_comparable")
        for name in sorted(accepted.keys() - known)
    ]
