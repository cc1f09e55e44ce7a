"""The engine makes vLLM's decisions in every recorded step; and the check notices if not."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nightly.scenarios import MODES, Scenario
from tests.oracle.check import compare, main, scenarios_below
from tests.oracle.scenarios import SCENARIOS

RECORDINGS = Path(__file__).parent / "recordings"
REFERENCE = Path(__file__).parents[3] / "shared/reference/vllm-oracle"
Lines = list[dict[str, Any]]


def name_of(scenario: Scenario) -> str:
    return f"{scenario.folder.name}-{scenario.mode}"


@pytest.mark.parametrize("scenario", scenarios_below(RECORDINGS), ids=name_of)
def test_equals_vllm(scenario: Scenario) -> None:
    outcome = compare(scenario)
    assert outcome.difference is None
    assert outcome.lines > 0


@pytest.mark.skipif(
    not REFERENCE.is_dir(), reason="needs ../shared/reference/vllm-oracle beside the project"
)
@pytest.mark.parametrize("scenario", scenarios_below(REFERENCE), ids=name_of)
def test_equals_vllm_in_the_reference_recordings(scenario: Scenario) -> None:
    outcome = compare(scenario)
    assert outcome.difference is None
    assert outcome.lines > 0


def test_every_scenario_is_recorded_in_both_modes() -> None:
    recorded = {(s.folder.name, s.mode) for s in scenarios_below(RECORDINGS)}
    assert recorded == {(s.name, mode) for s in SCENARIOS for mode in MODES}


def another_number(lines: Lines) -> None:
    lines[40]["free_after_schedule"] += 1


def another_order(lines: Lines) -> None:
    """Equal as a mapping, but another batch."""
    line = next(line for line in lines if len(line["sched"]) > 1)
    line["sched"] = dict(reversed(line["sched"].items()))


def another_request(lines: Lines) -> None:
    line = next(line for line in lines if line["preempted"])
    line["preempted"] = ["req-0"]


def a_line_less(lines: Lines) -> None:
    lines.pop()


def a_line_more(lines: Lines) -> None:
    lines.append(lines[-1])


def a_field_nobody_simulates(lines: Lines) -> None:
    lines[3]["mood"] = 1


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """check(folder, ...) -> the exit code of the program."""

    def run(*folders: Path) -> int:
        monkeypatch.setattr(sys, "argv", ["check", *map(str, folders)])
        return main()

    return run


@pytest.mark.parametrize(
    "change",
    [
        another_number,
        another_order,
        another_request,
        a_line_less,
        a_line_more,
        a_field_nobody_simulates,
    ],
)
def test_a_changed_recording_is_a_mismatch(
    change: Callable[[Lines], None],
    tmp_path: Path,
    check: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "exact-pool"
    shutil.copytree(RECORDINGS / "exact-pool", folder)
    path = folder / MODES["sync"][1]
    with gzip.open(path, "rt") as file:
        lines = [json.loads(line) for line in file]
    change(lines)
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    assert check(tmp_path) == 1
    printed = capsys.readouterr().out
    assert "exact-pool sync" in printed
    assert "2 recordings" in printed
    assert "1 mismatches" in printed


def test_a_changed_total_is_a_mismatch(tmp_path: Path, check: Callable[..., int]) -> None:
    folder = tmp_path / "exact-pool"
    shutil.copytree(RECORDINGS / "exact-pool", folder)
    path = folder / MODES["async"][0]
    config = json.loads(path.read_text())
    config["preemptions"] += 1
    path.write_text(json.dumps(config))
    assert check(folder) == 1


def test_an_unchanged_copy_is_none(tmp_path: Path, check: Callable[..., int]) -> None:
    shutil.copytree(RECORDINGS / "exact-pool", tmp_path / "exact-pool")
    assert check(tmp_path) == 0


def test_nothing_to_compare(
    tmp_path: Path, check: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, tmp_path / "absent") == 2
    assert str(tmp_path) in capsys.readouterr().err
