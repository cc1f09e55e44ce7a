"""A KV cache manager over a tiny pool, one rule at a time.

Ids of blocks start at 0: the core has no record for vLLM's null block, so block i here is block
i + 1 in vLLM's tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.core import kv_cache_manager as rules
from simulator.core.state import NONE
from simulator.invariants import free_queue
from tests.simulator.core.calls import callable_from_python
from tests.simulator.make import Ask, make_engine, make_settings, make_workload


class Manager:
    """Requests of known prompts, and what the pool makes of them.

    A request is its index among `prompts`; after each prompt 100 more tokens may come.
    """

    def __init__(self, *prompts: Sequence[int], max_model_len: int = 1000, **changes: Any) -> None:
        workload = make_workload(*(Ask(len(p), 100, tokens=p) for p in prompts))
        settings = make_settings(max_model_len=max_model_len, **changes)
        engine, _ = make_engine(workload, settings)
        # Room for requests that the engine would refuse, because they outgrow the pool.
        room = max(len(p) for p in prompts) + 100
        table = np.zeros(len(prompts) * room, np.int32)
        engine.kv.requests.block_table_start = np.arange(len(prompts)) * room
        self.engine = engine._replace(kv=engine.kv._replace(block_table=table))
        self.max_model_len = max_model_len
        self.kv = self.engine.kv
        self.pool = self.kv.pool[0]

    @property
    def free_queue(self) -> list[int]:
        """Free blocks in eviction order."""
        return free_queue(self.engine)

    def blocks(self, r: int) -> list[int]:
        """The blocks that request `r` holds."""
        return self._table(r, int(self.kv.requests[r].num_blocks))

    def index(self) -> dict[int, list[int]]:
        """The blocks that hold each content, the first indexed first."""
        found = {}
        for block_hash, holders in enumerate(self.kv.cached_blocks):
            b, blocks = int(holders.first), []
            while b != NONE:
                blocks.append(b)
                b = int(self.kv.blocks[b].next_same_hash)
            if blocks:
                found[block_hash] = blocks
        return found

    def hash_of(self, r: int, i: int) -> int:
        """What stands for the content of request r's i-th block."""
        return int(self.kv.block_hashes[self.kv.requests[r].block_hashes_start + i])

    def hit(self, r: int) -> list[int]:
        """The blocks that a waiting request would find."""
        count = callable_from_python(rules.find_longest_cache_hit)(self.kv, self.kv.requests[r])
        return self._table(r, count)

    def admit(
        self, r: int, num_tokens: int | None = None, *, reserve_full_isl: bool = False
    ) -> list[int] | None:
        """Admit a waiting request with `num_tokens` after its hit, or all; None if it does not fit.

        Returns its blocks.
        """
        request = self.kv.requests[r]
        num_hit = len(self.hit(r))
        num_hit_tokens = num_hit * int(self.pool.block_size)
        if num_tokens is None:
            num_tokens = int(request.num_tokens) - num_hit_tokens
        if not callable_from_python(rules.can_admit)(
            self.kv, request, num_hit, num_tokens, int(reserve_full_isl), self.max_model_len
        ):
            return None
        callable_from_python(rules.allocate_slots_for_admission)(
            self.kv, request, num_hit, num_tokens
        )
        request.num_computed_tokens = num_hit_tokens + num_tokens
        return self.blocks(r)

    def compute(self, r: int, num_tokens: int) -> int | None:
        """Slots for the next tokens of a running request; the number of new blocks, or None."""
        request = self.kv.requests[r]
        count = callable_from_python(rules.allocate_slots)(self.kv, request, num_tokens)
        if count == NONE:
            return None
        request.num_computed_tokens += num_tokens
        return int(count)

    def decode(self, r: int, count: int = 1) -> None:
        """Request `r` gets tokens, each computed in the step after it was sampled."""
        for _ in range(count):
            self.kv.requests[r].num_tokens += 1
            assert self.compute(r, 1) is not None

    def free(self, r: int) -> None:
        callable_from_python(rules.free)(self.kv, self.kv.requests[r])
        self.kv.requests[r].num_computed_tokens = 0

    def contents(self) -> list[bytes]:
        """Everything a refused allocation must leave alone."""
        pool = self.pool.copy()
        pool.failed_allocations = 0
        kv = self.kv
        parts = (kv.requests, kv.blocks, kv.cached_blocks, kv.block_table, pool)
        return [part.tobytes() for part in parts]

    def _table(self, r: int, count: int) -> list[int]:
        start = int(self.kv.requests[r].block_table_start)
        return [int(b) for b in self.kv.block_table[start : start + count]]
