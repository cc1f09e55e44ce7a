"""Matrix products of a layer: measured over (m, n, k), m tokens, n outputs, k inputs of a rank.

Between measured n and k a time is interpolated linearly on both axes. Leaving out every measured n in
turn, linear, logarithmic and roofline-relative interpolation differ by less than half a per cent in
their mean error (5.6 to 7.6 % over n, 3.3 to 3.7 % over k on NVIDIA cards), and linear has the
smallest bias. Beyond the largest n or k a time grows in proportion: kernels of that size have reached
their rate.
"""

from __future__ import annotations

import numpy as np

from profiles.aiconfigurator.source import System, read_columns, values_of
from profiles.bundle import Floats, Ints, LayerTable
from profiles.provenance import DERIVED, INTERPOLATED, MEASURED, all_of

NS_PER_MS = 1e6


class GemmTables:
    """All measured products of one type: `ns[m, n, k]`, NaN where none was measured."""

    def __init__(self, system: System, dtype: str = "bfloat16") -> None:
        path = system.path("gemm")
        rows = read_columns(path, ("m", "n", "k", "latency"), gemm_dtype=dtype)
        if not len(rows):
            known = ", ".join(values_of(path, "gemm_dtype"))
            expected = f"products that {system.name} measured: {known}"
            raise system.place.error_at("engine.quantization", dtype, expected)
        self.m, at_m = np.unique(rows["m"], return_inverse=True)
        self.n, at_n = np.unique(rows["n"], return_inverse=True)
        self.k, at_k = np.unique(rows["k"], return_inverse=True)
        shape = (len(self.m), len(self.n), len(self.k))
        flat = np.ravel_multi_index((at_m, at_n, at_k), shape)
        count = np.bincount(flat, minlength=np.prod(shape))
        total = np.bincount(flat, rows["latency"] * NS_PER_MS, minlength=np.prod(shape))
        with np.errstate(invalid="ignore"):
            self.ns = (total / count).reshape(shape)  # 0 / 0: nothing was measured

    def layer(self, n: int, k: int) -> LayerTable:
        """The product of an (n, k) weight over tokens, where all its neighbours were measured."""
        n_parts, n_code = weights(self.n, n)
        k_parts, k_code = weights(self.k, k)
        ns = np.zeros(len(self.m))
        for i, n_share in n_parts:
            for j, k_share in k_parts:
                ns += n_share * k_share * self.ns[:, i, j]
        there = np.isfinite(ns)
        keys: Ints = self.m[there].astype(np.int64)
        code = max(n_code, k_code)
        return LayerTable(keys, whole_ns(ns[there]), all_of(code, keys))


def weights(samples: Ints, query: int) -> tuple[list[tuple[int, float]], int]:
    """Samples and their shares for `query`, and where such a value comes from."""
    at = int(np.searchsorted(samples, query))
    if at == len(samples):
        return [(at - 1, query / float(samples[-1]))], DERIVED
    if samples[at] == query:
        return [(at, 1.0)], MEASURED
    if at == 0:
        return [(0, 1.0)], DERIVED
    share = (query - samples[at - 1]) / (samples[at] - samples[at - 1])
    return [(at - 1, 1.0 - share), (at, share)], INTERPOLATED


def whole_ns(ns: Floats) -> Ints:
    return np.maximum(1, np.round(ns)).astype(np.int64)
