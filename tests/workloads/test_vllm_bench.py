"""Requests of a result of `vllm bench serve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import InputError
from simulator.workloads import WorkloadConfig, load_workload
from simulator.workloads.vllm_bench import read_vllm_bench
from tests.orchestrator.truth_make import LEFT_OUT, write_bench


def bench(tmp_path: Path, **changes: Any) -> Path:
    return write_bench(tmp_path / "bench.json", changes)


def test_requests_that_did_not_fail(tmp_path: Path) -> None:
    """The last of five failed; the first was sent 1000 s after the clock's beginning."""
    workload = read_vllm_bench(bench(tmp_path), drop_failed=True)
    data = json.loads((tmp_path / "bench.json").read_text())
    assert workload.num_prompt_tokens.tolist() == data["input_lens"][:4]
    assert workload.num_output_tokens.tolist() == data["output_lens"][:4]
    first = min(data["start_times"][:4])
    sent = [round((start - first) * 1e9) for start in data["start_times"][:4]]
    assert workload.arrival_ns.tolist() == pytest.approx(sent, abs=1)
    assert workload.request_ids == ["0", "1", "2", "3"]
    assert workload.token_ids.size == 0


def test_a_request_is_known_by_its_place(tmp_path: Path) -> None:
    errors = ["", "gone", "", "", "gone"]
    path = bench(tmp_path, errors=errors)
    config = WorkloadConfig.model_validate({"vllm_bench": {"path": path, "drop_failed": True}})
    assert load_workload(config, tmp_path).request_ids == ["0", "2", "3"]


def test_a_request_that_failed_is_told(tmp_path: Path) -> None:
    config = WorkloadConfig.model_validate({"vllm_bench": str(bench(tmp_path))})
    with pytest.raises(InputError, match=r"errors\[4\]: got 'Internal .*drop_failed: true leaves"):
        load_workload(config, tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"input_lens": LEFT_OUT}, "input_lens: got nothing, expected a list with an entry per"),
        ({"start_times": LEFT_OUT}, "start_times: got nothing, expected a list .* --save-detailed"),
        ({"start_times": [1.0]}, "start_times: got '1 entries', expected 5, as input_lens"),
        (
            {"start_times": [1.0, 2.0, "x", 4.0, 5.0]},
            r"start_times\[2\]: got 'x', expected seconds",
        ),
        ({"input_lens": [1, 0, 1, 1, 1]}, r"input_lens\[1\]: got 0, expected a number of tokens"),
        ({"input_lens": [1, True, 1, 1, 1]}, r"input_lens\[1\]: got True"),
        ({"output_lens": "many"}, "output_lens: got 'many', expected a list"),
    ],
)
def test_wrong_files(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=f"bench.json: {expected}"):
        read_vllm_bench(bench(tmp_path, **changes), drop_failed=True)
