"""What runs, what follows from it, what is done; and that what follows really is equal."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from orchestrator.expand import SweepPoint
from orchestrator.plan import Plan
from orchestrator.shared import Shared
from orchestrator.worker import Limits, run_jobs
from tests.orchestrator.sweep_make import (
    BLOCKS,
    TRUTH,
    UTILIZATION,
    base,
    points_of,
    rows,
    run_sweep,
    write_sweep,
)
from tests.orchestrator.truth_make import write_recorded

ISL = "engine.scheduler_reserve_full_isl"


def done(point: SweepPoint, **more: Any) -> dict[str, Any]:
    return {"point_id": point.point_id, "status": "finished", "metrics": {}, "wall_s": 1.0} | more


def failed(point: SweepPoint) -> dict[str, Any]:
    return {"point_id": point.point_id, "status": "timeout", "reason": "slow", "wall_s": 1.0}


def names(points: list[SweepPoint]) -> list[Any]:
    return [next(iter(point.axes.values())) for point in points]


def equals(plan: Plan) -> list[Any]:
    return [None if other is None else names([other])[0] for _, _, other in plan.rows()]


def test_points_with_the_same_blocks_run_once(tmp_path: Path) -> None:
    plan = Plan(points_of(write_sweep(tmp_path, axes={UTILIZATION: [0.5, 0.5001, 0.6, 0.5]})))
    assert names(plan.to_run()) == [0.6, 0.5], "the largest pool first"
    assert equals(plan) == [None, 0.5, None, 0.5]
    assert plan.counts() == {"points": 4, "runs": 2, "equal": 2, "finished": 0, "failed": 0}


def test_the_largest_of_each_family_first(tmp_path: Path) -> None:
    points = points_of(write_sweep(tmp_path, axes={BLOCKS: [20, 40, 30], ISL: [True, False]}))
    plan = Plan(points)
    assert [p.index for p in plan.to_run()] == [2, 3, 0, 1, 4, 5]
    assert [[s.index for s in plan.siblings(p)] for p in plan.to_run()[:3]] == [[4, 0], [5, 1], []]


def test_resumed_from_what_was_done(tmp_path: Path) -> None:
    points = points_of(write_sweep(tmp_path, axes={BLOCKS: [20, 40, 30]}))
    outcomes = {
        points[0].point_id: done(points[0]),
        points[2].point_id: failed(points[2]),
        "0123456789abcdef": {"point_id": "0123456789abcdef", "status": "finished"},
    }
    plan = Plan(points, outcomes)
    assert plan.resumed == 1
    assert names(plan.to_run()) == [40, 30], "failed ones run again"
    assert plan.failed_before[points[2].point_id]["reason"] == "slow"


def test_an_equal_point_that_is_done_counts(tmp_path: Path) -> None:
    """A grid that was put in another order finds what ran for the same blocks."""
    first = points_of(write_sweep(tmp_path, axes={UTILIZATION: [0.5, 0.5001]}))
    turned = points_of(write_sweep(tmp_path, axes={UTILIZATION: [0.5001, 0.5]}))
    plan = Plan(turned, {first[0].point_id: done(first[0])})
    assert plan.to_run() == []
    assert equals(plan) == [None, 0.5001]


def test_which_points_are_equal_does_not_depend_on_the_order(tmp_path: Path) -> None:
    """Outcomes come in any order, some twice, some proven by another; the rows are the same."""
    points = points_of(write_sweep(tmp_path, axes={BLOCKS: [60, 20, 80, 40, 30, 100]}))
    enough = {60: 35, 80: 35, 40: 35, 100: 35}
    outcomes = []
    for point, blocks in zip(points, names(points), strict=True):
        more = {"enough_blocks": enough[blocks]} if blocks in enough else {}
        outcomes.append(done(point, **more))
    drawn = random.Random(1)
    for _ in range(20):
        plan = Plan(points)
        drawn.shuffle(outcomes)
        for outcome in [*outcomes, outcomes[0]]:
            plan.record(outcome)
        assert equals(plan) == [100, None, 100, 100, None, None]


def test_a_proof_outweighs_a_failure_and_nothing_undoes_it(tmp_path: Path) -> None:
    points = points_of(write_sweep(tmp_path, axes={BLOCKS: [20, 40]}))
    for order in ([failed, done], [done, failed]):
        plan = Plan(points)
        news = [plan.record(make(points[0])) for make in order]
        assert news == [True, False]
        assert plan.failed == 0
        assert plan.counts()["finished"] == 1


def test_failures_are_counted(tmp_path: Path) -> None:
    points = points_of(write_sweep(tmp_path, axes={BLOCKS: [20, 40]}))
    plan = Plan(points)
    plan.record(failed(points[0]))
    plan.record(failed(points[0]))
    assert plan.failed == plan.counts()["failed"] == 1
    assert not plan.still_needed(points[0])
    assert plan.still_needed(points[1])


SLOW = {"linear": {"base_ns": 50_000_000}}  # so that the time series has some seconds
TIERS = {"cpu": {"capacity_gib": 0.0001, "bandwidth_gbps": 1.0, "chunk_tokens": 16}}


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"engine": {"async_scheduling": False, "max_num_seqs": 8, "max_num_batched_tokens": 64}},
        {"engine": {"policy": "priority", "max_num_seqs": 3, "max_num_batched_tokens": 64}},
        {"engine": {"enable_prefix_caching": False, "max_num_batched_tokens": 256}},
        {"engine": {"null_block": False, "max_model_len": 70, "max_num_batched_tokens": 256}},
        {"prefix_storage": "cpu", "tiers": TIERS},
        {"prefix_storage": "cpu", "tiers": TIERS, "kv_connector": "OffloadingConnector"},
    ],
)
def test_points_that_are_proven_equal_are_equal(tmp_path: Path, sections: dict[str, Any]) -> None:
    """Every point by itself against what the run of the largest pool says of it, to the last digit."""
    path = write_sweep(
        tmp_path,
        base=base(profile=SLOW, **sections),
        axes={BLOCKS: [12, 25, 50, 75, 100, 110, 120, 130, 150, 200, 400], ISL: [True, False]},
        truth={"recorded": str(write_recorded(tmp_path))},
    )
    points = points_of(path)
    plan, shared = Plan(points), Shared(points)

    def run(point: SweepPoint, siblings: list[SweepPoint]) -> list[dict[str, Any]]:
        job = shared.job(point, siblings)
        return run_jobs([job], shared.parts.__getitem__, Limits(60), False)

    alone = {point.point_id: run(point, [])[0] for point in points}
    proven: dict[str, dict[str, Any]] = {}
    for point in plan.to_run()[:2]:
        for outcome in run(point, plan.siblings(point))[1:]:
            proven[outcome["point_id"]] = outcome
    inert = {i for i, o in alone.items() if o.get("enough_blocks") is not None}
    largest = {point.point_id for point in plan.to_run()[:2]}
    assert set(proven) == inert - largest
    assert len(proven) >= 4
    assert len(inert) < len(points), "and some that are not"
    for point_id, outcome in proven.items():
        for field in ("status", "metrics", "notes", "enough_blocks"):
            assert outcome[field] == alone[point_id][field], field
    shares = {o["metrics"]["series/kv_cache_usage/mean_abs"] for o in proven.values()}
    assert len(shares) == len(proven) / 2, "the share of the pool in use is each one's own"


def test_proven_points_have_their_own_numbers(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [20, 100, 200, 300]}, truth=TRUTH)
    session, watch = run_sweep(path, tmp_path / "out")
    found = rows(session)
    assert [row["kv/blocks"] for row in found] == [20, 100, 200, 300]
    assert [row["blocks/simulated"] for row in found] == [20, 100, 200, 300]
    largest = session.plan.points[3].point_id
    assert [row["equals"] for row in found][2:] == [largest, None]
    assert len(watch.outcomes) == 4
    ran = [outcome["point_id"] for outcome in watch.outcomes if "proven_by" not in outcome]
    assert len(ran) < 4
    assert session.verdict().startswith("4 points: ")
