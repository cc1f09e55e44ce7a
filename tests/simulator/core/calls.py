"""Calls into the core from Python, one rule at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from simulator.core.jit import JIT


@cache
def callable_from_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the core for tests.

    Compiled functions of the core have no entry for Python; this compiles a small one around it.
    With SERVESWEEP_JIT=0 it is the function itself.
    """
    if not JIT:
        return function
    from numba import njit

    @njit(_nrt=False, error_model="numpy")  # type: ignore[untyped-decorator]
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call  # type: ignore[no-any-return]
