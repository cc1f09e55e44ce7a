"""Planted faults: each is caught with the right exit code, and named.

The project is copied, broken, and run as a command.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests.orchestrator.nightly_make import Project, copied_project


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """An unbroken copy with a baseline."""
    project = copied_project(tmp_path_factory.mktemp("project") / "whole")
    first = project.night()
    assert first.returncode == 2, first.stderr
    assert project.findings("burst") == ["no baseline: --accept makes it one"]
    done = project.night("--accept", "the first one")
    assert done.returncode == 0, done.stderr
    again = project.night()
    assert again.returncode == 0, again.stdout + again.stderr
    assert "fine: 7 measured; predictions changed: no; accurate: yes" in again.stdout
    return project


def hit_cap(project: Project) -> None:
    """A prompt that is cached to its last token computes nothing."""
    project.change(
        "simulator/core/kv_cache_manager.py",
        "(request.num_tokens - 1) // kv.pool[0].block_size",
        "request.num_tokens // kv.pool[0].block_size",
    )


def log_space(project: Project) -> None:
    project.change(
        "simulator/attention_tables.py",
        "t = (queries - below) / (samples[lo + 1] - below)",
        "t = (np.log(queries + 1) - np.log(below + 1))"
        " / (np.log(samples[lo + 1] + 1) - np.log(below + 1))",
    )


def null_block(project: Project) -> None:
    project.change("simulator/config.py", "null_block: Flag = True", "null_block: Flag = False")


def wrong_percentile(project: Project) -> None:
    project.change(
        "simulator/metrics.py",
        "np.percentile(values, PERCENTILES)",
        'np.percentile(values, PERCENTILES, method="lower")',
    )


def renamed_field(project: Project) -> None:
    project.change("sweeps/nightly/truth/burst.yaml", "value_ms:", "value:")


def missing_profile(project: Project) -> None:
    shutil.rmtree(project.root / "sweeps/nightly/tables/bf16")


def empty_suite(project: Project) -> None:
    project.suite.write_text(yaml.safe_dump({"name": "small", "baseline": "baseline"}))


def another_profile(project: Project) -> None:
    path = project.root / "sweeps/nightly/tables/bf16/tp1/attention.csv"
    lines = path.read_text().splitlines()
    *axes, us = lines[-1].split(",")
    path.write_text("\n".join([*lines[:-1], ",".join([*axes, str(float(us) + 50)])]) + "\n")


def lost_recordings(project: Project) -> None:
    shutil.rmtree(project.root / "tests/oracle/recordings/exact-pool")


FAULTS: list[tuple[Callable[[Project], None], int, str, str]] = [
    (hit_cap, 1, "decisions/aligned-prompts-sync", "not what vLLM decided: "),
    (log_space, 1, "tables", "another version of the code); first at step 0: end_ns "),
    (null_block, 1, "turns", "another version of the code); first at step 0: free_after_schedule "),
    (
        wrong_percentile,
        1,
        "burst",
        "every step is as it was: what changed is how results are summed",
    ),
    (renamed_field, 2, "burst", "truth/burst.yaml: values[0].value_ms: got nothing"),
    (missing_profile, 2, "tables", "tables/bf16"),
    (another_profile, 1, "tables", "predictions changed (another profile); first at step "),
    (lost_recordings, 2, "decisions/exact-pool-sync", "in the baseline, not in the suite any more"),
]


@pytest.mark.parametrize(
    ("fault", "code", "case", "text"),
    FAULTS,
    ids=[f"{f.__name__}-{t[:9]}" for f, _, _, t in FAULTS],
)
def test_fault(
    accepted: Project,
    tmp_path: Path,
    fault: Callable[[Project], None],
    code: int,
    case: str,
    text: str,
) -> None:
    project = accepted.copy(tmp_path / "copy")
    fault(project)
    done = project.night()
    assert done.returncode == code, done.stdout + done.stderr
    assert any(text in finding for finding in project.findings(case)), project.findings(case)
    assert done.stderr.count("Traceback") == 0
    assert case in (project.root / "out/small/report.md").read_text()
    xml = ET.parse(project.root / "out/small/junit.xml")
    element = xml.find(f".//testcase[@name='{case}']/{'failure' if code == 1 else 'error'}")
    assert element is not None


def test_an_empty_suite(accepted: Project, tmp_path: Path) -> None:
    project = accepted.copy(tmp_path / "copy")
    empty_suite(project)
    done = project.night()
    assert done.returncode == 2
    assert "cases under oracle or points: an empty suite measures nothing" in done.stderr


def test_all_skipped_is_nothing_measured(accepted: Project, tmp_path: Path) -> None:
    project = accepted.copy(tmp_path / "copy")
    suite = yaml.safe_load(project.suite.read_text())
    suite["oracle"] = {}
    for case in suite["points"].values():
        case["needs"] = "nowhere"
    project.suite.write_text(yaml.safe_dump(suite))
    shutil.rmtree(project.baseline)
    done = project.night()
    assert done.returncode == 2
    assert project.findings("small") == ["nothing was measured: 3 cases, none of them ran"]
    assert "- burst: needs nowhere, which is not there" in done.stdout
    assert project.night("--accept", "because").returncode == 2


def git(project: Project, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(
        command, cwd=project.root, check=True, capture_output=True, text=True
    ).stdout.strip()


def versioned(accepted: Project, to: Path) -> Project:
    """Under version control, with its baseline committed."""
    project = accepted.copy(to)
    (project.root / ".gitignore").write_text("out\n__pycache__\n")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "The baseline")
    return project


def test_bisection_names_the_commit(accepted: Project, tmp_path: Path) -> None:
    project = versioned(accepted, tmp_path / "copy")
    project.change("simulator/summary.py", "SHOWN_REFUSALS = 20", "SHOWN_REFUSALS = 21")
    git(project, "commit", "-qam", "Another number of refusals")
    log_space(project)
    git(project, "commit", "-qam", "Interpolate in log space")
    project.change("simulator/summary.py", "SHOWN_REFUSALS = 21", "SHOWN_REFUSALS = 22")
    git(project, "commit", "-qam", "One more")
    done = project.night("--bisect")
    assert done.returncode == 1
    (origin,) = project.judgement()["origins"]
    named = git(project, "log", "-1", "--format=%h", "HEAD~1")
    assert origin == f"tables: commit {named} Interpolate in log space"
    assert f"- {origin}" in done.stdout


def test_bisection_names_the_input_and_uncommitted_changes(
    accepted: Project, tmp_path: Path
) -> None:
    project = accepted.copy(tmp_path / "copy")
    another_profile(project)
    project.night("--bisect")
    (origin,) = project.judgement()["origins"]
    assert origin.startswith("tables: the profile is another one (")
    other = versioned(accepted, tmp_path / "other")
    log_space(other)
    other.night("--bisect")
    assert other.judgement()["origins"] == [
        "tables: uncommitted changes: simulator/attention_tables.py"
    ]


def test_bisection_from_another_branch(accepted: Project, tmp_path: Path) -> None:
    """A history that was rewritten: no commits lead here from the baseline's, which is told."""
    project = versioned(accepted, tmp_path / "copy")
    git(project, "branch", "whole")
    git(project, "checkout", "-q", "--orphan", "other")
    project.change("simulator/summary.py", "SHOWN_REFUSALS = 20", "SHOWN_REFUSALS = 21")
    git(project, "commit", "-qam", "The same in another history")
    base = git(project, "rev-parse", "whole")
    log_space(project)
    baseline = project.baseline / "baseline.json"
    data = json.loads(baseline.read_text())
    baseline.write_text(json.dumps(data | {"commit": base}))
    done = project.night("--bisect")
    assert (done.returncode, done.stderr.count("Traceback")) == (1, 0)
    assert project.judgement()["origins"] == [
        f"tables: the baseline's commit {base[:12]} is not an ancestor of HEAD: no commits lead from "
        "one to the other"
    ]


def test_bisection_names_the_commit_that_made_a_case_fail(
    accepted: Project, tmp_path: Path
) -> None:
    """Another prediction on the way is not what it looks for."""
    project = versioned(accepted, tmp_path / "copy")
    log_space(project)
    git(project, "commit", "-qam", "Interpolate in log space")
    crash = 'raise ValueError("no such table")'
    project.change("simulator/attention_tables.py", "return lo, t", crash)
    git(project, "commit", "-qam", "Break it")
    done = project.night("--bisect")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.count("Traceback") == 0
    assert project.findings("tables")[0] == (
        "failed, and succeeded before: ValueError: no such table"
    )
    assert "predictions changed: yes; accurate: no" in done.stdout
    assert "| clocks | tables | failed |  |  |" in done.stdout
    named = git(project, "log", "-1", "--format=%h")
    (origin,) = project.judgement()["origins"]
    assert origin.startswith(f"tables: commit {named} Break it; there it fails: ")
    assert "no such table" in origin


def test_bisection_of_an_edited_baseline_claims_what_it_checked(
    accepted: Project, tmp_path: Path
) -> None:
    project = versioned(accepted, tmp_path / "copy")
    baseline = project.baseline / "baseline.json"
    data = json.loads(baseline.read_text())
    data["cases"]["tables"]["predictions"]["end_ns"] = 1.0
    baseline.write_text(json.dumps(data))
    git(project, "commit", "-qam", "Edit what was accepted")
    assert project.night("--bisect").returncode == 1
    (origin,) = project.judgement()["origins"]
    assert origin.startswith("tables: run by itself, the code as it is predicts what that of the")
    assert "the baseline may have been edited" in origin


def test_accepting_records_the_reason(accepted: Project, tmp_path: Path) -> None:
    project = accepted.copy(tmp_path / "copy")
    another_profile(project)
    assert project.night("--accept", " ").returncode == 2
    done = project.night("--accept", "the card was measured again")
    assert done.returncode == 0
    assert "accepted as the new baseline; changed: tables" in done.stdout
    assert project.night().returncode == 0
    assert '"the card was measured again"' in (project.root / "out/small/report.md").read_text()
