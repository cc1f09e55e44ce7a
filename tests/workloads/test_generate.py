import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from profiles.errors import InputError, parse_model
from simulator.prefix import block_hashes
from simulator.workloads import Workload
from simulator.workloads.generate import GenerateConfig, generate

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "num_requests": 2000,
    "seed": 7,
    "arrivals": {"process": "poisson", "rate": 10.0},
    "prompt_tokens": {"uniform": [10, 90]},
    "output_tokens": {"fixed": 20},
}
PREFIX: dict[str, Any] = {"shared_prefix": {"groups": 3, "tokens": 64, "share": 0.75}}
TURNS: dict[str, Any] = {
    "multi_turn": {"share": 0.5, "distance": 5, "max_prompt_tokens": 700},
}
SESSIONS: dict[str, Any] = {
    "sessions": {
        "calls": {"uniform": [1, 5]},
        "tool_ms": {"lognormal": {"median": 100, "sigma": 1, "max": 5000}},
    },
    "priorities": [0.5, 0.5],
}


def made(*parts: dict[str, Any], **changed: Any) -> Workload:
    merged: dict[str, Any] = {}
    for part in (SMALL, *parts, changed):
        merged |= part
    return generate(parse_model(GenerateConfig, merged, "test"))


def spans(workload: Workload) -> list[list[int]]:
    offsets = workload.token_offsets.tolist()
    return [workload.token_ids[a:b].tolist() for a, b in pairwise(offsets)]


@pytest.mark.parametrize("part", [{}, PREFIX, PREFIX | TURNS, PREFIX | SESSIONS])
def test_the_same_seed_gives_the_same_workload(part: dict[str, Any]) -> None:
    assert made(part).content_id == made(part).content_id
    assert made(part).content_id != made(part, seed=8).content_id


def full_content_ids() -> list[str]:
    return [made(PREFIX, TURNS).content_id, made(PREFIX, SESSIONS).content_id]


def test_another_process_generates_the_same() -> None:
    program = "from tests.workloads.test_generate import *; print(*full_content_ids())"
    environment = os.environ | {"PYTHONHASHSEED": "5", "SERVESWEEP_JIT": "0"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == full_content_ids()


def test_plain_requests() -> None:
    workload = made()
    assert len(workload) == 2000
    assert workload.token_ids.size == 0  # nobody shares anything, nothing is stored
    prompts = workload.num_prompt_tokens
    assert (prompts.min(), prompts.max()) == (10, 90)
    assert set(workload.num_output_tokens.tolist()) == {20}
    assert (np.diff(workload.arrival_ns) >= 0).all()
    assert not workload.priority.any()
    assert (workload.session_parent == -1).all()
    hashes = block_hashes(workload, 16)
    assert hashes.count == hashes.ids.size


def test_a_rate_only_stretches_time() -> None:
    slow, fast = made(PREFIX, TURNS), made(PREFIX, TURNS, arrivals={"rate": 40.0})
    np.testing.assert_allclose(slow.arrival_ns, fast.arrival_ns * 4, atol=4)
    assert slow.token_ids.tolist() == fast.token_ids.tolist()
    assert slow.num_prompt_tokens.tolist() == fast.num_prompt_tokens.tolist()


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        ({"process": "poisson", "rate": 25}, 1.0),
        ({"process": "gamma", "rate": 25, "cv": 2.5}, 2.5),
        ({"process": "gamma", "rate": 25, "cv": 0.3}, 0.3),
        ({"process": "constant", "rate": 25}, 0.0),
    ],
)
def test_arrivals(arrivals: dict[str, Any], cv: float) -> None:
    workload = made(num_requests=20_000, arrivals=arrivals)
    gaps = np.diff(workload.arrival_ns) / 1e9
    assert gaps.mean() == pytest.approx(1 / 25, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06, abs=1e-6)


def test_a_burst_comes_at_once() -> None:
    assert not made(arrivals={"process": "burst"}).arrival_ns.any()


def test_constant_arrivals_start_at_once() -> None:
    arrival_ns = made(arrivals={"process": "constant", "rate": 4.0}).arrival_ns
    assert arrival_ns[:3].tolist() == [0, 250_000_000, 500_000_000]


def test_lognormal_lengths() -> None:
    by_median = {"lognormal": {"median": 300, "sigma": 0.8, "min": 20, "max": 1500}}
    by_mean = {"lognormal": {"mean": 200, "sigma": 0.5, "max": 100_000}}
    workload = made(num_requests=20_000, prompt_tokens=by_median, output_tokens=by_mean)
    prompts, outputs = workload.num_prompt_tokens, workload.num_output_tokens
    assert np.median(prompts) == pytest.approx(300, rel=0.03)
    assert (prompts.min(), prompts.max()) == (20, 1500)
    assert outputs.mean() == pytest.approx(200, rel=0.03)
    assert np.log(outputs).std() == pytest.approx(0.5, rel=0.03)


def test_shared_prefixes() -> None:
    workload = made(PREFIX)
    known = [tuple(span) for span in spans(workload)]
    groups = {span for span in known if span}
    assert len(groups) == 3 and {len(span) for span in groups} == {64}
    share = sum(map(bool, known)) / len(known)
    assert share == pytest.approx(0.75, abs=0.04)
    lengths = workload.num_prompt_tokens - [len(span) for span in known]
    assert (lengths.min(), lengths.max()) == (10, 90)
    hashes = block_hashes(workload, 16)
    shared = hashes.ids.size - hashes.count
    assert shared == sum(map(bool, known)) * 4 - 3 * 4


def previous_turns(workload: Workload) -> dict[int, int]:
    """Recover from the tokens alone which request continues which."""
    known = spans(workload)
    turns = {}
    ends = {
        tuple(known[r]): r for r in range(len(workload)) if len(known[r]) == num_tokens(workload, r)
    }
    for r, span in enumerate(known):
        for end in range(len(span), 0, -1):
            p = ends.get(tuple(span[:end]), r)
            if p < r:
                turns[r] = p
                break
    return turns


def num_tokens(workload: Workload, r: int) -> int:
    return int(workload.num_prompt_tokens[r] + workload.num_output_tokens[r])


def test_conversations_grow() -> None:
    workload = made(PREFIX, TURNS, num_requests=600)
    turns = previous_turns(workload)
    assert len(turns) / 600 == pytest.approx(0.45, abs=0.07)
    assert len(set(turns.values())) == len(turns)  # nobody is continued twice
    for r, p in turns.items():
        assert r - p >= 5
        new = int(workload.num_prompt_tokens[r]) - num_tokens(workload, p)
        assert 10 <= new <= 90
        assert workload.num_prompt_tokens[r] <= 700
    assert any(p in turns and turns[p] in turns for p in turns.values())
    assert (workload.session_parent == -1).all()
    assert (np.diff(workload.arrival_ns) >= 0).all()
    # The next turn finds every full block of the turn before it.
    hashes = block_hashes(workload, 16)
    for r, p in turns.items():
        full = num_tokens(workload, p) // 16
        a, b = hashes.offsets[p], hashes.offsets[r]
        assert hashes.ids[a : a + full].tolist() == hashes.ids[b : b + full].tolist()


def test_turns_beyond_the_limit_begin_anew() -> None:
    config = {"multi_turn": {"share": 1.0, "distance": 1, "max_prompt_tokens": 60}}
    workload = made(config, prompt_tokens={"fixed": 10}, output_tokens={"fixed": 20})
    assert workload.num_prompt_tokens[:5].tolist() == [10, 40, 10, 40, 10]


def test_sessions() -> None:
    workload = made(PREFIX, SESSIONS)
    parents = workload.session_parent
    later = np.flatnonzero(parents >= 0)
    assert (parents[later] == later - 1).all()
    first = np.flatnonzero(parents < 0)
    calls = np.diff([*first, len(workload)])
    assert set(calls.tolist()) == {1, 2, 3, 4, 5}
    assert (workload.arrival_ns[later] == workload.arrival_ns[later - 1]).all()
    assert (np.diff(workload.arrival_ns[first]) > 0).all()
    assert workload.arrival_ns[-1] / 1e9 == pytest.approx(len(first) / 10, rel=0.15)
    has_next = np.isin(np.arange(len(workload)), parents[later])
    assert (workload.tool_ns[has_next] >= 1_000_000).all()
    assert not workload.tool_ns[~has_next].any()
    grown = workload.num_prompt_tokens[later] - workload.num_prompt_tokens[later - 1] - 20
    assert (grown.min(), grown.max()) == (10, 90)
    assert set(workload.priority.tolist()) == {0, 1}
    assert (workload.priority[later] == workload.priority[later - 1]).all()
    known = spans(workload)
    for r in later.tolist():
        assert known[r][: num_tokens(workload, r - 1)] == known[r - 1]


def test_a_session_that_grows_too_long_ends() -> None:
    sessions = {"calls": {"fixed": 9}, "tool_ms": {"fixed": 1}, "max_prompt_tokens": 70}
    lengths = {"prompt_tokens": {"fixed": 10}, "output_tokens": {"fixed": 20}}
    workload = made(lengths, sessions=sessions, num_requests=5)
    assert workload.num_prompt_tokens.tolist() == [10, 40, 70, 10, 40]
    assert workload.session_parent.tolist() == [-1, 0, 1, -1, 3]


def test_priorities() -> None:
    counts = np.bincount(made(priorities=[6, 0, 2]).priority)
    assert counts[1] == 0
    assert counts[0] / 2000 == pytest.approx(0.75, abs=0.04)


def test_vocabulary() -> None:
    assert made(PREFIX, TURNS, vocab_size=11).token_ids.max() == 10


def test_one_request() -> None:
    for part in ({}, PREFIX, TURNS, SESSIONS):
        assert len(made(part, num_requests=1)) == 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_requests": 0}, "num_requests: got 0, expected greater than or equal"),
    ({"num_requests": True}, "num_requests: got True, expected a valid integer"),
    ({"num_requests": "9"}, "num_requests: got '9', expected a valid integer"),
    ({"seed": -1}, "seed: got -1, expected"),
    ({"seeds": 1}, "seeds: got 1, expected no such field; known fields: arrivals, multi_turn, num"),
    ({"arrivals": {"rate": 0}}, "arrivals.rate: got 0, expected greater than 0"),
    ({"arrivals": {"rate": float("nan")}}, "arrivals.rate: got nan, expected a f"),
    ({"arrivals": {"rate": 1e-15}}, "generate.arrivals.rate: got 1e-15, expected a rate at which"),
    ({"arrivals": {}}, "arrivals: got {}, expected a rate, in requests"),
    ({"arrivals": {"process": "burst", "rate": 2}}, "arrivals: got .*, expected no rate, because"),
    (
        {"arrivals": {"rate": 2, "cv": 2}},
        "arrivals: got .*, expected a cv for a gamma process, and",
    ),
    ({"arrivals": {"rate": 2, "process": "gamma"}}, "arrivals: got .*, expected a cv for a gamma"),
    ({"arrivals": {"rate": 2, "process": "uniform"}}, "arrivals.process: got 'uniform', expected"),
    ({"prompt_tokens": {}}, "prompt_tokens: got {}, expected exactly one of fixed, uniform and"),
    ({"prompt_tokens": {"fixed": 1, "uniform": [1, 2]}}, "prompt_tokens: got .* exactly one of"),
    ({"prompt_tokens": {"fixed": 0}}, "prompt_tokens.fixed: got 0, expected"),
    ({"prompt_tokens": {"uniform": [3, 2]}}, r"prompt_tokens: got .*, expected uniform: \[small"),
    ({"prompt_tokens": {"uniform": [3]}}, r"prompt_tokens.uniform\[1\]: got nothing, expected"),
    (
        {"output_tokens": {"lognormal": {"sigma": 1, "max": 9}}},
        "output_tokens.lognormal: got .*, expected exactly one of median and mean",
    ),
    (
        {"output_tokens": {"lognormal": {"sigma": 1, "mean": 3, "min": 10, "max": 9}}},
        "output_tokens.lognormal: got .*, expected min not above max",
    ),
    (
        {"output_tokens": {"lognormal": {"mean": 3, "max": 9}}},
        "output_tokens.lognormal.sigma: got nothing, expected a value, it is required",
    ),
    ({"shared_prefix": {"groups": 2, "tokens": 8, "share": 1.5}}, "shared_prefix.share: got 1.5"),
    ({"multi_turn": {"share": 0.5, "distance": 0}}, "multi_turn.distance: got 0, expected"),
    (SESSIONS | TURNS, "GenerateConfig: got .*, expected at most one of multi_turn and sessions"),
    ({"priorities": []}, "GenerateConfig: got .*, expected priorities: weights that add up"),
    ({"priorities": [1, -1]}, r"priorities\[1\]: got -1, expected"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_configurations(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        made(**change)


def test_clients_in_a_closed_loop() -> None:
    """Each client's next request comes when its last has ended."""
    workload = generate(
        GenerateConfig.model_validate(
            {"num_requests": 7, "arrivals": {"process": "closed_loop", "concurrency": 3}}
        )
    )
    assert workload.session_parent.tolist() == [-1, -1, -1, 0, 1, 2, 3]
    assert workload.arrival_ns.tolist() == [0] * 7
    assert workload.tool_ns.tolist() == [0] * 7


@pytest.mark.parametrize(
    "changes",
    [
        {"arrivals": {"process": "closed_loop"}},
        {"arrivals": {"process": "closed_loop", "concurrency": 2, "rate": 1.0}},
        {"arrivals": {"process": "poisson", "rate": 1.0, "concurrency": 2}},
        {
            "arrivals": {"process": "closed_loop", "concurrency": 2},
            "multi_turn": {"share": 0.5},
        },
    ],
)
def test_closed_loops_that_make_no_sense(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GenerateConfig.model_validate({"num_requests": 7, **changes})
