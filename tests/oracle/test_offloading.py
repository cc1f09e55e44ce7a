"""The engine makes the decisions of vLLM with its OffloadingConnector in every recorded step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from orchestrator.nightly.scenarios import MODES, Scenario
from tests.oracle.check import compare, scenarios_below
from tests.oracle.offloading_scenarios import OFFLOADING_SCENARIOS
from tests.oracle.test_recordings import name_of
from tests.oracle.test_stride import final_state

RECORDINGS = scenarios_below(Path(__file__).parent / "offloading_recordings")


@pytest.mark.parametrize("scenario", RECORDINGS, ids=name_of)
def test_equals_vllm(scenario: Scenario) -> None:
    outcome = compare(scenario)
    assert outcome.difference is None
    assert outcome.lines > 0


@pytest.mark.parametrize("scenario", RECORDINGS, ids=name_of)
def test_stride_changes_nothing(scenario: Scenario) -> None:
    assert final_state(scenario, stride=True) == final_state(scenario, stride=False)


def test_every_scenario_is_recorded_in_both_modes_and_loads() -> None:
    recorded = {(s.folder.name, s.mode) for s in RECORDINGS}
    assert recorded == {(s.name, mode) for s in OFFLOADING_SCENARIOS for mode in MODES}
    for scenario in RECORDINGS:
        assert any(line.get("loads") for line in scenario.recorded), name_of(scenario)


def test_without_the_tier_they_differ() -> None:
    """The tier decides: the same scenario without it is another run."""
    scenario = next(s for s in RECORDINGS if s.folder.name == "turns" and s.mode == "sync")

    @dataclasses.dataclass(frozen=True)
    class WithoutTier(Scenario):
        @property
        def config(self) -> dict[str, object]:
            return {k: v for k, v in super().config.items() if k != "offloading"}

    assert compare(WithoutTier(scenario.folder, scenario.mode)).difference is not None
