"""What a step runs in each pipeline stage, and with replicas beside it: read from the tables alone.

What such a step took on the clock holds waiting for other batches or replicas as well, so its layers
are looked up again, as core/pipeline.py and core/lockstep.py do.
"""

from __future__ import annotations

from collections.abc import Sequence

from profiles.bundle import Bundle
from simulator.core import latency as core
from simulator.core.latency import Latency
from simulator.core.one_attention import one_attention_ns
from simulator.step_layers import (
    ATTENTION,
    MODE,
    WHOLE,
    LayerTime,
    StepLayers,
    StepSize,
    plain,
    taken_off,
)
from simulator.step_tables import new_outside

EXPERTS = "moe"


class StageLayers(StepLayers):
    """Steps of one profile over stages of `blocks` transformer blocks each."""

    def __init__(
        self,
        bundle: Bundle | None,
        latency: Latency,
        blocks: Sequence[int],
    ) -> None:
        super().__init__(bundle, latency, sum(blocks))
        self.blocks = tuple(blocks)

    @property
    def first_blocks(self) -> tuple[int, ...]:
        """The first block of every stage."""
        return tuple(sum(self.blocks[:stage]) for stage in range(len(self.blocks)))

    def parts(self, size: StepSize, expert_tokens: int, mode_ns: int) -> list[LayerTime]:
        """In the order they run, stage after stage; waiting is none of them.

        Dense layers run `size.num_tokens`, experts that replicas share `expert_tokens`; `mode_ns` is
        what the execution mode adds to the step.
        """
        found: list[LayerTime] = []
        for first, count in zip(self.first_blocks, self.blocks, strict=True):
            found += self._stage(size, first, count, expert_tokens, mode_ns)
        return found

    def _stage(
        self, size: StepSize, first: int, count: int, expert_tokens: int, mode: int
    ) -> list[LayerTime]:
        end = first + count
        own_mode = mode * count // self.num_layers
        if self.bundle is None:
            kv_tokens = size.kv_prefill + size.kv_decode + size.prefill_tokens + size.num_decodes
            whole = plain(core.linear_ns)(
                self.latency.params[0], size.num_tokens, size.num_requests, kv_tokens
            )
            ns = int(whole) * count // self.num_layers + own_mode
            return [LayerTime(WHOLE, first, max(1, ns))]
        attention = self._attention_ns(size)
        layers = []
        last_stage = end == self.num_layers
        past = False
        for name, block in self._order():
            past = past or block >= 0
            here = first <= block < end if block >= 0 else last_stage if past else first == 0
            if not here:
                continue
            ns = self._ns_of(name, size, attention, expert_tokens)
            if ns:
                layers.append(LayerTime(name, block, ns))
        if own_mode > 0:
            layers.append(LayerTime(MODE, end - 1, own_mode))
        return taken_off(layers, max(0, -own_mode))

    def _ns_of(self, name: str, size: StepSize, attention: int, expert_tokens: int) -> int:
        if name == ATTENTION:
            return attention
        if name == EXPERTS and len(self.latency.expert_ns) > 1:  # shared with other replicas
            return int(self.latency.expert_ns[expert_tokens])
        return self._ns(name, size)

    def _attention_ns(self, size: StepSize) -> int:
        """Of one block."""
        return int(
            one_attention_ns(
                self.latency,
                new_outside(self.latency),
                size.prefill_tokens,
                size.kv_prefill,
                size.num_decodes,
                size.kv_decode,
                size.kv_decode_max,
                size.kv_decode_min,
            )
        )
