from __future__ import annotations

import numpy as np
import pytest

from profiles.bundle import MoeTable
from profiles.routing import Routing, experts_by_tokens


def test_experts_awake_in_the_mean() -> None:
    routing = Routing(experts=4, per_token=2)
    assert routing.awake(np.array([0, 1, 2, 4])).tolist() == [0, 2, 3, 3.75]
    assert routing.awake(np.array([10_000]))[0] == 4
    # All 16 pairs of choices of one expert among 4: 4 wake one expert, 12 wake two.
    assert Routing(4, 1).awake(np.array([2]))[0] == pytest.approx((4 * 1 + 12 * 2) / 16)


def test_block_at_the_experts_awake() -> None:
    table = MoeTable(
        activated_experts=np.array([2, 2, 4]),
        tokens=np.array([1, 4, 4]),
        ns=np.array([3500, 10_000, 18_000]),
        source=np.zeros(3, np.uint8),
    )
    found = experts_by_tokens(table, Routing(4, 2))
    assert found.keys.tolist() == [1, 2, 3, 4]
    # 4 tokens at 3.75 experts: 10,000 + 0.875 x 8,000.
    assert found.ns.tolist()[::3] == [3500, 17_000]


def test_few_tokens_that_wake_many_experts() -> None:
    """Two tokens wake four experts: nobody measured that, and it takes what four experts take."""
    table = MoeTable(
        activated_experts=np.array([2, 2, 4]),
        tokens=np.array([1, 4, 4]),
        ns=np.array([3500, 10_000, 18_000]),
        source=np.zeros(3, np.uint8),
    )
    found = experts_by_tokens(table, Routing(4, 2, policy="balanced"))
    # One token wakes two experts, two wake all.
    assert found.ns.tolist() == [3500, 18_000, 18_000, 18_000]
