"""A night as Markdown for people, JUnit XML for CI, and JSON for everything else."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from orchestrator.nightly.baseline import Baseline
from orchestrator.nightly.detector import Finding, Judgement
from orchestrator.nightly.measure import Measured
from orchestrator.nightly.suite import Suite
from profiles.whole import write_whole

MEAN_ABS = "err_pct/mean_abs"
HEADLINES = {
    "fine": "fine",
    "regression": "REGRESSION",
    "not_comparable": "COULD NOT COMPARE",
}


def headline(judgement: Judgement, cases: list[Measured]) -> str:
    counts = Counter(case.status for case in cases)
    told = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
    return (
        f"{HEADLINES[judgement.verdict]}: {told or 'no case'}; predictions changed: "
        f"{judgement.answer('changed')}; accurate: {judgement.answer('accurate')}"
    )


def markdown(
    suite: Suite,
    cases: list[Measured],
    judgement: Judgement,
    baseline: Baseline | None,
    trend: str,
    bisected: list[str],
    versions: dict[str, str],
) -> str:
    accepted = f'"{baseline.reason}"' if baseline else "none"
    if baseline and baseline.commit:
        accepted += f" at {baseline.commit[:12]}"
    lines = [
        f"# {suite.name}: {headline(judgement, cases)}",
        "",
        ", ".join(f"{name} {value}" for name, value in versions.items())
        + f". Baseline: {accepted}. Last accepted night: {trend}.",
        "",
    ]
    if judgement.findings:
        lines += ["| case | question | finding |", "|---|---|---|"]
        lines += [
            f"| {f.case} | {QUESTIONS[f.question]} | {cell(f.text)} |" for f in judgement.findings
        ]
        lines.append("")
    if bisected:
        lines += ["**Where it came from**", "", *(f"- {line}" for line in bisected), ""]
    skipped = [case for case in cases if case.status == "skipped"]
    if skipped:
        lines += ["**Skipped**", ""]
        lines += [f"- {case.name}: {case.reason}" for case in skipped]
        lines.append("")
    lines += [
        "| group | case | state | mean absolute error | steps or lines |",
        "|---|---|---|---|---|",
    ]
    lines += [row(case, judgement) for case in cases if case.kind == "point"]
    lines += oracle_rows(cases)
    return "\n".join(lines).rstrip() + "\n"


QUESTIONS = {
    "changed": "did predictions change?",
    "accurate": "are they accurate?",
    "measured": "was it measured?",
}


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def row(case: Measured, judgement: Judgement) -> str:
    found = judgement.of(case.name)
    state = "ok" if case.status == "measured" and not found else case.status.replace("_", " ")
    if found and case.status == "measured":
        state = f"{len(found)} findings"
    if case.status == "failed" and not found:
        state = "failed, as accepted"
    error = case.errors.get(MEAN_ABS)
    shown = f"{error:.3f} %" if error is not None else ""
    steps = f"{case.predictions['steps']:.0f}" if "steps" in case.predictions else ""
    return f"| {case.group} | {case.name} | {state} | {shown} | {steps} |"


def oracle_rows(cases: list[Measured]) -> list[str]:
    """A line a group: there are many scenarios, and what is wrong stands above."""
    groups: dict[str, list[Measured]] = {}
    for case in cases:
        if case.kind == "oracle":
            groups.setdefault(case.group, []).append(case)
    lines = []
    for group, inside in groups.items():
        right = sum(c.status == "measured" and c.difference is None for c in inside)
        total = sum(c.predictions.get("lines", 0) for c in inside)
        lines.append(f"| {group} | {len(inside)} recordings | {right} equal | | {total:.0f} |")
    return lines


def junit(suite: Suite, cases: list[Measured], judgement: Judgement) -> bytes:
    """A test case for every case and one for the suite; regressions fail, the rest are errors."""
    root = ET.Element("testsuites", name=suite.name)
    shown = [(case.name, case.group, case.status) for case in cases]
    known = {case.name for case in cases}
    shown += [
        (name, "suite", "measured")
        for name in dict.fromkeys(f.case for f in judgement.findings)
        if name not in known
    ]
    groups: dict[str, ET.Element] = {}
    for name, group, status in shown:
        if group not in groups:
            groups[group] = ET.SubElement(root, "testsuite", name=group)
        element = ET.SubElement(groups[group], "testcase", classname=group, name=name)
        if status == "skipped":
            reason = next(case.reason for case in cases if case.name == name)
            ET.SubElement(element, "skipped", message=reason)
        for finding in judgement.of(name):
            kind = "failure" if finding.verdict == "regression" else "error"
            found = ET.SubElement(
                element, kind, message=printable(finding.text), type=finding.question
            )
            found.text = printable(finding.text)
    for suite_element in root:
        for attribute, tag in (
            ("failures", "failure"),
            ("errors", "error"),
            ("skipped", "skipped"),
        ):
            count = sum(case.find(tag) is not None for case in suite_element)
            suite_element.set(attribute, str(count))
        suite_element.set("tests", str(len(suite_element)))
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def printable(text: str) -> str:
    """XML holds no control characters."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def measured_json(cases: list[Measured]) -> list[dict[str, Any]]:
    return [
        {
            "name": case.name,
            "group": case.group,
            "kind": case.kind,
            "status": case.status,
            "reason": case.reason,
            "predictions": case.predictions,
            "errors": case.errors,
            "inputs": case.inputs,
            "difference": case.difference,
            "notes": case.notes,
        }
        for case in cases
    ]


def finding_json(finding: Finding) -> dict[str, str]:
    return {
        "case": finding.case,
        "question": finding.question,
        "text": finding.text,
        "verdict": finding.verdict,
    }


def write_json(path: Path, data: Any) -> Path:
    text = json.dumps(data, indent=1) + "\n"
    write_whole(path, partial(_text, text))
    return path


def write_text(path: Path, text: str) -> Path:
    write_whole(path, partial(_text, text))
    return path


def _text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")
