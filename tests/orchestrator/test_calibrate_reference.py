"""The studies of sweeps/calibration on recorded vLLM runs (reference data)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from orchestrator.calibration.judge import Judged
from orchestrator.calibration.session import Calibrated
from simulator.core.jit import JIT
from tests.orchestrator.calibration_make import run_study
from tests.profiles.bundles import ROOT, needs_reference

pytestmark = [
    needs_reference,
    pytest.mark.skipif(not JIT, reason="takes an hour uncompiled"),
]

STUDIES = ROOT / "sweeps/calibration"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibrations")


@cache
def study(name: str, out: Path) -> Calibrated:
    return run_study(STUDIES / f"{name}.yaml", out)[0]


def judged(done: Calibrated, run: str, side: str) -> Judged:
    (found,) = [one for one in done.judged if (one.run, one.side) == (run, side)]
    return found


def test_block_count_from_latencies_alone(out: Path) -> None:
    """The recording says 2588; half of its requests say it too, with nothing else calibrated."""
    done = study("rtx4090_blocks", out)
    assert done.card.parameters["num_gpu_blocks"].value == pytest.approx(2588, rel=0.01)
    held_out = judged(done, "RTX4090", "test")
    assert held_out.num_requests == 150
    assert held_out.after["statistics"] < 1.0
    assert held_out.before["statistics"] > 10


def test_mode_times_move_to_another_card(out: Path) -> None:
    done = study("rtx4090_modes", out)
    assert judged(done, "RTX4090", "train").after["statistics"] <= 0.3
    other = judged(done, "RTXPRO6000", "test")
    assert other.before["statistics"] == pytest.approx(1.97, abs=0.02)
    assert other.after["statistics"] <= 1.1
    assert other.after["requests"] < other.before["requests"]
    # The two times trade against each other on one run, which the study says.
    assert any("determined together only" in warning for warning in done.card.warnings)


def test_residuals_of_half_the_requests_serve_the_other_half(out: Path) -> None:
    done = study("rtxpro6000_residuals", out)
    held_out = judged(done, "RTXPRO6000", "test")
    assert held_out.num_requests == 150
    assert held_out.before["statistics"] > 1.9
    assert held_out.after["statistics"] <= 0.5
    assert held_out.after["requests"] <= 0.5
