"""Logs grow by what a step may take, however many seats there are."""

from __future__ import annotations

import pytest

from simulator.progress import run_to_end
from tests.simulator.make import Ask, make_engine, make_settings, make_workload


@pytest.mark.parametrize("log_events", [False, True])
def test_a_burst_on_twenty_thousand_seats_ends(log_events: bool) -> None:
    asks = [Ask(2, output=3, name=f"r{i}") for i in range(9000)]
    workload = make_workload(*asks)
    settings = make_settings(
        num_gpu_blocks=10_000,
        max_num_seqs=20_000,
        max_num_batched_tokens=20_000,
        log_events=log_events,
    )
    engine, _ = make_engine(workload, settings)
    engine = run_to_end(engine, workload)
    assert engine.queues.counters[0].num_generated_tokens == 3 * 9000
    assert int(engine.log.intervals["count"].sum()) == 2 * 9000
