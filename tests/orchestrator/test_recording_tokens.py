"""Token ids handed to vLLM: blocks are equal exactly where the simulator's are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.recording.inside.files import Requests
from orchestrator.recording.tokens import with_tokens
from simulator.prefix import block_hashes
from simulator.workloads import Workload, WorkloadConfig, load_workload
from tests.simulator.make import Ask, make_workload

BLOCK = 16


def tokens(workload: Workload, vocab_size: int) -> Requests:
    return with_tokens(workload, workload.arrival_ns, vocab_size)


def blocks(requests: Requests) -> list[list[tuple[int, ...]]]:
    """Of each request every full block with all before it, as vLLM hashes it."""
    found = []
    for r in range(len(requests)):
        start, end = requests.token_offsets[r : r + 2]
        mine = requests.token_ids[start:end].tolist()
        found.append([tuple(mine[: i + BLOCK]) for i in range(0, len(mine) - BLOCK + 1, BLOCK)])
    return found


@pytest.mark.parametrize(
    "generate",
    [
        {"shared_prefix": {"groups": 2, "tokens": 40}},
        {"multi_turn": {"share": 0.6, "distance": 2}},
        {"sessions": {"calls": {"fixed": 3}, "tool_ms": {"fixed": 5}}},
    ],
)
@pytest.mark.parametrize("vocab_size", [32_000, 900])  # ids below it, and ids that do not fit
def test_blocks_are_equal_where_the_simulators_are(
    generate: dict[str, Any], vocab_size: int
) -> None:
    config = {"num_requests": 40, "arrivals": {"rate": 9.0}, **generate}
    config |= {"prompt_tokens": {"uniform": [5, 90]}, "output_tokens": {"uniform": [1, 40]}}
    workload = load_workload(WorkloadConfig(generate=config), Path())
    requests = tokens(workload, vocab_size)
    assert requests.token_ids.min() >= 0 and requests.token_ids.max() < vocab_size
    hashes = block_hashes(workload, BLOCK)
    theirs: dict[tuple[int, ...], int] = {}
    for r, of_request in enumerate(blocks(requests)):
        ids = hashes.ids[hashes.offsets[r] : hashes.offsets[r + 1]].tolist()
        assert len(ids) == len(of_request)
        for number, block in zip(ids, of_request, strict=True):
            assert theirs.setdefault(block, number) == number
    assert len(theirs) == hashes.count
    assert hashes.count < len(hashes.ids)  # some are shared


def test_known_tokens_are_kept_as_they_are() -> None:
    workload = make_workload(Ask(5, 3, tokens=(7, 8, 9)), Ask(2, 1, tokens=(7, 8, 5)))
    requests = tokens(workload, 100)
    assert requests.prompt(0)[:3] == [7, 8, 9]
    assert requests.prompt(1) == [7, 8]
    assert requests.token(1, 2) == 5  # the first output token
    assert np.array_equal(requests.token_ids, tokens(workload, 100).token_ids)


def test_a_files_round_trip(tmp_path: Path) -> None:
    requests = tokens(make_workload(Ask(5, 3), Ask(4, 2, arrival=9, priority=2)), 50)
    requests.save(tmp_path / "w.npz")
    loaded = Requests.load(tmp_path / "w.npz")
    assert loaded.prompt(1) == requests.prompt(1)
    assert loaded.arrival_ns.tolist() == [0, 9] and loaded.priority.tolist() == [0, 2]
