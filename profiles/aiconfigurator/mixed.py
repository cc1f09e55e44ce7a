"""Attention of a batch that has prompts with a history, or prompts and decodes together.

The package measures neither. What is added depends on how the kernel runs such a batch.

FlashAttention-2 (Ampere, Ada, RTX Blackwell) runs the whole batch in one launch of thread blocks, one
for every head and 64 query tokens, `num_sms` at a time, and each walks over all keys of its request.
So a history of h tokens costs h x (time of a key) in every wave of blocks, and a decode in such a
batch is a block of one token: it loses the split over keys and the sharing of KV heads that make pure
decode fast. Whether the waves of prompts and decodes follow each other or share the card depends on
their order; the mean of both bounds is taken. Constants were set on LLMServingSim's RTX PRO 6000 table
of Llama-3.1-8B at TP 1. Estimate / measured over all mixed rows, with the same table's prefill and
decode, median and mean absolute error (prefill + decode in brackets): RTX PRO 6000 1.00, 10.3 % (0.83,
29.2 %); held out: the same at TP 2 1.03, 12.1 % (0.89, 31.6 %), Qwen3-30B-A3B 1.02, 9.7 % (0.67, 39.2
%), RTX 4090 0.94, 12.0 % (0.71, 33.3 %). A prompt with a history: mean absolute error 2.6 to 4.7 %,
against 35 to 50 % for the share of the causal area.

FlashInfer's and TensorRT-LLM's kernels run prompts and decodes in separate launches: the sum is exact.
FlashAttention-3 (Hopper), Triton and Intel's kernel run one launch, but split keys and share KV heads
within it; the sum is assumed. With these a history costs the larger of reading it and computing with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiles.aiconfigurator.attention import Decode, Prefill
from profiles.aiconfigurator.shape import Shape
from profiles.aiconfigurator.source import System
from profiles.bundle import Floats, Ints
from profiles.provenance import ASSUMED, DERIVED

TILE = 64  # query tokens of a FlashAttention-2 thread block over a paged cache
PACKED_TILE = 128  # query tokens x heads of a KV head, of kernels that share KV heads
PAGED = 1.1  # time of a key over a paged cache / in a prompt without one
BLOCK_START_NS = 3000.0
EMPTY_BLOCK_NS = (
    330.0  # of a block that finds nothing to do: decodes get as many as the longest prompt
)
REREAD = 1.5  # how soon blocks of one KV head no longer meet in the cache


@dataclass(frozen=True)
class Mixing:
    """How the kernels of a card treat such batches."""

    one_launch: bool  # FlashAttention-2
    source: int  # of the rows with prompts and decodes


def mixing_of(system: System, prefill: Prefill, decode: Decode) -> Mixing:
    kernels = {prefill.kernel, decode.kernel}
    ampere_or_ada = (system.gpu.sm_version or 90) < 90
    if kernels <= {"vllm_flash_attn_fa2"} or (kernels == {"vllm_flash_attn"} and ampere_or_ada):
        return Mixing(True, DERIVED)
    if all(kernel.startswith("vllm_flashinfer") for kernel in kernels):
        return Mixing(False, DERIVED)
    return Mixing(False, ASSUMED)


class Batches:
    """Times of batches on one rank of `system`."""

    def __init__(self, system: System, shape: Shape, prefill: Prefill, decode: Decode) -> None:
        self.system, self.shape = system, shape
        self.prefill, self.decode = prefill, decode
        self.mixing = mixing_of(system, prefill, decode)
        if self.mixing.one_launch and system.device.num_sms is None:
            expected = f"a system whose number of SMs is known; {system.name} runs FlashAttention-2"
            raise system.place.error("system", system.name, expected)

    def prefill_ns(self, chunk: Ints, history: Ints) -> Floats:
        """ns of a chunk of a prompt after `history` tokens; arrays that broadcast."""
        fresh = self.prefill.at(chunk)
        if self.mixing.one_launch:
            return fresh + history * self._key_ns() * np.ceil(self._waves(chunk))
        group = self.shape.num_heads // self.shape.num_kv_heads
        rows = np.ceil(chunk * group / PACKED_TILE) * PACKED_TILE / group
        computed = self.prefill.ns_per_pair() * rows * history
        one = self.decode.ns[0] - self.decode.ns[0, 0]
        read = np.interp(history, self.decode.kv, one)
        ns: Floats = fresh + np.maximum(computed, read)
        return ns

    def mixed_ns(
        self, chunk: Ints, history: Ints, n_decode: Ints, kv: Ints, alone: Floats
    ) -> Floats:
        """ns of a chunk with decodes; `alone` is what the decodes take by themselves."""
        prompt = self.prefill_ns(chunk, history)
        if not self.mixing.one_launch:
            return prompt + alone
        blocks = n_decode * self.shape.num_heads / self._sms()
        per_wave = kv * self._key_ns() + BLOCK_START_NS
        read = self._read_ns(n_decode, kv)
        in_waves = np.maximum(np.ceil(blocks) * per_wave, read)
        shared = np.maximum(blocks * per_wave, read)
        waves = self._waves(chunk)
        packed = prompt * waves / np.ceil(waves)
        after_each_other = prompt + in_waves
        together = np.maximum(np.maximum(prompt, in_waves), packed + shared)
        empty = EMPTY_BLOCK_NS * blocks * np.ceil(chunk / TILE)
        ns: Floats = 0.5 * (after_each_other + together) + empty
        return ns

    def _sms(self) -> int:
        assert self.system.device.num_sms is not None  # checked at the start
        return self.system.device.num_sms

    def _waves(self, chunk: Ints) -> Floats:
        waves: Floats = self.shape.num_heads * np.ceil(chunk / TILE) / self._sms()
        return waves

    def _key_ns(self) -> float:
        """ns that one block needs for one key, its head and 64 query tokens."""
        per_block = self.prefill.ns_per_pair() * TILE * self._sms() / self.shape.num_heads
        return PAGED * per_block

    def _read_ns(self, n_decode: Ints, kv: Ints) -> Floats:
        """Reading the KV cache; once per head, not per KV head, where it does not stay in the cache."""
        group = self.shape.num_heads // self.shape.num_kv_heads
        element = 1 if self.shape.kv_cache_dtype == "fp8" else 2
        of_one_head = 2.0 * n_decode * kv * self.shape.head_dim * element
        apart = np.minimum(1.0, REREAD * n_decode / self._sms()) * group
        times = np.where(of_one_head > self.system.device.l2_bytes, np.maximum(1.0, apart), 1.0)
        ns: Floats = times * of_one_head * self.shape.num_kv_heads / self.system.bandwidth
        return ns
