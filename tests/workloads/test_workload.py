import pickle
from typing import Any

import numpy as np
import pytest

from profiles.errors import InputError
from simulator.workloads import Workload
from tests.workloads.make import make_workload

ARRAYS = {
    "arrival_ns": np.int64,
    "num_prompt_tokens": np.int32,
    "num_output_tokens": np.int32,
    "priority": np.int32,
    "session_parent": np.int32,
    "tool_ns": np.int64,
    "token_offsets": np.int64,
    "token_ids": np.int32,
}


def assert_canonical(workload: Workload) -> None:
    for name, dtype in ARRAYS.items():
        array = getattr(workload, name)
        assert array.dtype == dtype, name
        assert array.flags.c_contiguous and not array.flags.writeable, name


def test_arrays_get_their_type_and_cannot_be_written() -> None:
    workload = make_workload([(1, 2), (3, 4)], arrival_ns=[5, 6], tool_ns=np.zeros(4, int)[::2])
    assert_canonical(workload)
    with pytest.raises(ValueError, match="read-only"):
        workload.arrival_ns[0] = 1


def test_a_copy_through_pickle_is_the_same_to_compiled_code() -> None:
    workload = make_workload([(1, 2), (3, 4)])
    copy = pickle.loads(pickle.dumps(workload))
    assert_canonical(copy)
    assert copy.content_id == workload.content_id


def test_content_id_is_of_content_only() -> None:
    base = make_workload([(1, 2), (3, 4)])
    assert len(base.content_id) == 64
    assert make_workload([(1, 2), (3, 4)], source="other").content_id == base.content_id
    others: list[dict[str, Any]] = [
        {"request_ids": ["0", "x"]},
        {"arrival_ns": [0, 2]},
        {"priority": [0, 1]},
        {"session_parent": [-1, 0]},
        {"tool_ns": [1, 0]},
        {"token_ids": [1, 2, 3, 5]},
        {"token_offsets": [0, 2, 3], "token_ids": [1, 2, 3]},
        {"num_output_tokens": [1, 2]},
    ]
    ids = {make_workload([(1, 2), (3, 4)], **change).content_id for change in others}
    assert len(ids | {base.content_id}) == len(others) + 1


def test_first_requests() -> None:
    workload = make_workload([(1, 2), (3, 4, 5), (6, 7)])
    first = workload.first(2)
    assert first.request_ids == ["0", "1"]
    assert first.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert first.token_offsets.tolist() == [0, 2, 5]
    assert first.content_id == make_workload([(1, 2), (3, 4, 5)]).content_id
    assert workload.first(3) is workload


def test_rate_scale_stretches_arrivals_but_not_tools() -> None:
    workload = make_workload([(1, 2)] * 3, arrival_ns=[0, 10, 25], tool_ns=[7, 7, 7])
    faster = workload.at_rate(2.0)
    assert faster.arrival_ns.tolist() == [0, 5, 12]
    assert faster.tool_ns.tolist() == [7, 7, 7]
    assert faster.content_id != workload.content_id


def test_known_tokens() -> None:
    assert make_workload([(1, 2, 3), ()]).num_known_tokens.tolist() == [3, 0]
    chunks = make_workload([(1, 2)], chunk_size=8, num_prompt_tokens=[11])
    assert chunks.num_known_tokens.tolist() == [11]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_prompt_tokens": [2, 0]}, r"num_prompt_tokens\[1\]: got 0, expected at least 1"),
        ({"num_output_tokens": [0, 2]}, r"num_output_tokens\[0\]: got 0, expected at least 1"),
        ({"arrival_ns": [3, -4]}, r"arrival_ns\[1\]: got -4, expected at least 0"),
        (
            {"arrival_ns": [0, 1 << 61]},
            r"arrival_ns\[1\]: got 2305843009213693952, expected at mos",
        ),
        ({"tool_ns": [1 << 61, 0]}, r"tool_ns\[0\]: got 2305843009213693952, expected at most"),
        ({"tool_ns": [0, -1]}, r"tool_ns\[1\]: got -1, expected at least 0"),
        ({"token_ids": [1, 2, 3, -9]}, r"token_ids\[3\]: got -9, expected at least 0"),
        ({"token_ids": [1, 2, 3, 1 << 31]}, r"token_ids: got 2147483648, expected int32"),
        ({"arrival_ns": [0.5, 1.5]}, "arrival_ns: got 'float64', expected int64"),
        ({"arrival_ns": [True, False]}, "arrival_ns: got 'bool', expected int64"),
        ({"arrival_ns": [[1, 2]]}, "arrival_ns: got '2 dimensions', expected one dimension"),
        ({"arrival_ns": [1]}, "arrival_ns: got '1 values', expected one for each of 2"),
        ({"token_offsets": [0, 4]}, "token_offsets: got '2 values', expected 3"),
        ({"token_offsets": [0, 3, 3]}, "token_offsets: got 'from 0 to 3"),
        ({"token_offsets": [0, 5, 4]}, "token_offsets: got .*smallest step -1"),
        ({"token_offsets": [0, 1, 4]}, r"token_ids of \[1\]: got 3, expected at most 2"),
        ({"request_ids": ["a", "a"]}, r"request_ids\[1\]: got 'a', expected an id of its own"),
        ({"request_ids": [], "arrival_ns": []}, "requests: got 0, expected at least one"),
        ({"session_parent": [1, -1]}, r"session_parent\[0\]: got 1, expected an earlier"),
        ({"session_parent": [-1, 1]}, r"session_parent\[1\]: got 1, expected an earlier"),
        ({"session_parent": [-1, -2]}, r"session_parent\[1\]: got -2, expected at least -1"),
        ({"chunk_size": 0}, "chunk_size: got 0, expected at least 1"),
        (
            {"num_prompt_tokens": [2, 2**31 - 1], "num_output_tokens": [1, 1]},
            r"num_tokens\[1\]: got 2147483648, expected at most 2147483647",
        ),
    ],
)
def test_wrong_arrays(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^made: {message}"):
        make_workload([(1, 2), (3, 4)], **change)


def test_a_call_has_one_next_call() -> None:
    with pytest.raises(InputError, match="request '0': got '2 next calls', expected at most one"):
        make_workload([(1, 2)] * 3, session_parent=[-1, 0, 0])


def test_a_chunk_beyond_the_prompt() -> None:
    message = r"token_ids of \[0\]: got 3, expected at most 2 entries of 8 tokens"
    with pytest.raises(InputError, match=message):
        make_workload([(1, 2, 3)], chunk_size=8, num_prompt_tokens=[16], num_output_tokens=[99])
