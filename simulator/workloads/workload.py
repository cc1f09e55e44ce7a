"""What is asked of the engine: requests as arrays, in file order.

Tokens are known for a leading part of each request only, its span in `token_ids`; everything after
the span is unique to the request. So a request that shares nothing stores nothing, and one that
shares a system prompt stores the system prompt. A preempted request can still hit its own blocks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from profiles.errors import InputError

MAX_INT32 = int(np.iinfo(np.int32).max)
MAX_NS = 1 << 60  # 36 years: simulated time can go on from there without an overflow


@dataclass(frozen=True, eq=False, kw_only=True)
class Workload:
    """`n` requests. All arrays are C-contiguous and read-only."""

    request_ids: list[str]
    arrival_ns: npt.NDArray[np.int64]  # of a later call of a session: when the session arrives
    num_prompt_tokens: npt.NDArray[np.int32]
    num_output_tokens: npt.NDArray[np.int32]
    priority: npt.NDArray[np.int32]
    session_parent: npt.NDArray[np.int32]  # the call that must end first, -1: none
    tool_ns: npt.NDArray[np.int64]  # from the end of this call to the release of the next
    token_offsets: npt.NDArray[np.int64]  # n + 1; token_ids[token_offsets[r]:token_offsets[r + 1]]
    token_ids: npt.NDArray[np.int32]
    chunk_size: int  # tokens that one entry of token_ids stands for
    source: str  # for messages; not part of the content
    # The most output tokens each request may ask for; None: as many as it gets.
    max_tokens: npt.NDArray[np.int32] | None = None
    # A request of wave k arrives arrival_ns after all of the waves before it have their first token
    # (waves.py); never decreasing. None: arrival_ns says when it arrives.
    wave: npt.NDArray[np.int32] | None = None
    manifest_id: str | None = None  # content of the manifest it comes from (manifest.py)

    def __post_init__(self) -> None:
        for name, dtype in self._arrays.items():
            object.__setattr__(self, name, self._frozen(name, dtype))
        self._check_sizes()
        self._check_values()
        self._check_sessions()
        self._check_spans()

    def __len__(self) -> int:
        return len(self.request_ids)

    @property
    def _arrays(self) -> dict[str, type[np.integer[Any]]]:
        given = {name for name in _OPTIONAL if getattr(self, name) is not None}
        return _ARRAYS | {name: np.int32 for name in _OPTIONAL if name in given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Unpickled arrays are writable again, and to numba that is another type: freeze them.
        for name in (*_ARRAYS, *_OPTIONAL):
            if state[name] is not None:
                state[name].flags.writeable = False
        self.__dict__.update(state)

    @cached_property
    def content_id(self) -> str:
        """sha256 over ids and arrays: the same for every file and generator with this content."""
        digest = hashlib.sha256(b"servesweep workload 1\0")
        ids = "\0".join(self.request_ids).encode("utf-8", "surrogatepass")
        digest.update(f"{len(self)} {self.chunk_size} {len(ids)}\0".encode() + ids)
        if self.manifest_id is not None:
            digest.update(f"\0manifest {self.manifest_id}\0".encode())
        for name in self._arrays:
            array = getattr(self, name)
            digest.update(f"\0{name} {array.dtype.str} {array.size}\0".encode())
            digest.update(array.data)
        return digest.hexdigest()

    @property
    def num_tokens(self) -> npt.NDArray[np.int64]:
        """Prompt and output tokens of each request."""
        return self.num_prompt_tokens.astype(np.int64) + self.num_output_tokens

    @property
    def num_known_tokens(self) -> npt.NDArray[np.int64]:
        """Leading tokens of each request that its span identifies.

        The last entry of a trace with chunks stands for what the prompt has of it.
        """
        covered = np.diff(self.token_offsets) * self.chunk_size
        return covered if self.chunk_size == 1 else np.minimum(covered, self.num_prompt_tokens)

    def first(self, limit: int) -> Workload:
        """The first `limit` requests in file order; a session may lose its last calls."""
        if limit >= len(self):
            return self
        per_request = {name: getattr(self, name)[:limit] for name in self._per_request}
        return replace(
            self,
            request_ids=self.request_ids[:limit],
            token_offsets=self.token_offsets[: limit + 1],
            token_ids=self.token_ids[: self.token_offsets[limit]],
            **per_request,
        )

    def at_rate(self, rate_scale: float) -> Workload:
        """Arrivals `rate_scale` times as fast; what tools take stays."""
        if rate_scale == 1:
            return self
        arrival_ns = np.rint(self.arrival_ns / rate_scale)
        if arrival_ns.max() > MAX_NS:
            expected = "a rate at which everything arrives within 36 years"
            raise InputError(self.source, "rate_scale", rate_scale, expected)
        return replace(self, arrival_ns=arrival_ns.astype(np.int64))

    def with_max_tokens(self, max_tokens: int) -> Workload:
        """Every request asks for at most `max_tokens`. Raises InputError if one gets more."""
        longest = int(self.num_output_tokens.max())
        if max_tokens < longest:
            expected = f"at least {longest}, the longest output"
            raise InputError(self.source, "max_tokens", max_tokens, expected)
        return replace(self, max_tokens=np.full(len(self), max_tokens, np.int32))

    @property
    def _per_request(self) -> list[str]:
        return [*_PER_REQUEST, *(n for n in _OPTIONAL if getattr(self, n) is not None)]

    def _frozen(self, name: str, dtype: type[np.integer[Any]]) -> npt.NDArray[Any]:
        given = np.asarray(getattr(self, name))
        if given.ndim != 1:
            raise InputError(self.source, name, f"{given.ndim} dimensions", "one dimension")
        if given.dtype != dtype and given.size:
            limits = np.iinfo(dtype)
            if given.dtype.kind not in "iu":
                raise InputError(self.source, name, given.dtype.name, f"{limits.dtype} values")
            for value in (int(given.min()), int(given.max())):
                if not limits.min <= value <= limits.max:
                    raise InputError(self.source, name, value, f"{limits.dtype} values")
        array = np.ascontiguousarray(given, dtype=dtype).view()
        array.flags.writeable = False
        return array

    def _check_sizes(self) -> None:
        n = len(self.request_ids)
        if n == 0:
            raise InputError(self.source, "requests", 0, "at least one request")
        for name in self._per_request:
            if getattr(self, name).size != n:
                got = f"{getattr(self, name).size} values"
                raise InputError(self.source, name, got, f"one for each of {n} requests")
        if self.token_offsets.size != n + 1:
            got = f"{self.token_offsets.size} values"
            raise InputError(self.source, "token_offsets", got, f"{n + 1} values")
        if self.chunk_size < 1:
            raise InputError(self.source, "chunk_size", self.chunk_size, "at least 1")

    def _check_values(self) -> None:
        for name, least in _LEAST.items():
            array = getattr(self, name)
            if array.size and array.min() < least:
                at = int(np.argmax(array < least))
                raise InputError(self.source, f"{name}[{at}]", int(array[at]), f"at least {least}")
        if self.max_tokens is not None and (self.max_tokens < self.num_output_tokens).any():
            at = int(np.argmax(self.max_tokens < self.num_output_tokens))
            expected = f"at least the {self.num_output_tokens[at]} output tokens"
            raise InputError(self.source, f"max_tokens[{at}]", int(self.max_tokens[at]), expected)
        if self.wave is not None and (np.diff(self.wave, prepend=0) < 0).any():
            at = int(np.argmax(np.diff(self.wave, prepend=0) < 0))
            expected = "at least the wave of the request before it"
            raise InputError(self.source, f"wave[{at}]", int(self.wave[at]), expected)
        for name in ("arrival_ns", "tool_ns"):
            array = getattr(self, name)
            if array.max() > MAX_NS:
                at = int(array.argmax())
                raise InputError(self.source, f"{name}[{at}]", int(array[at]), f"at most {MAX_NS}")
        if self.num_tokens.max() > MAX_INT32:
            at = int(self.num_tokens.argmax())
            total = int(self.num_tokens[at])
            raise InputError(self.source, f"num_tokens[{at}]", total, f"at most {MAX_INT32}")
        if len(set(self.request_ids)) != len(self):
            seen: set[str] = set()
            for at, request_id in enumerate(self.request_ids):
                if request_id in seen:
                    field = f"request_ids[{at}]"
                    raise InputError(self.source, field, request_id, "an id of its own")
                seen.add(request_id)

    def _check_sessions(self) -> None:
        parents = self.session_parent
        if parents.max() < 0:
            return
        late = parents >= np.arange(len(self))
        if late.any():
            at = int(late.argmax())
            parent, expected = int(parents[at]), "an earlier request or -1"
            raise InputError(self.source, f"session_parent[{at}]", parent, expected)
        children = np.bincount(parents[parents >= 0], minlength=len(self))
        if children.max() > 1:
            at = int(children.argmax())
            got = f"{children[at]} next calls"
            raise InputError(self.source, f"request {self.request_ids[at]!r}", got, "at most one")

    def _check_spans(self) -> None:
        offsets, spans = self.token_offsets, np.diff(self.token_offsets)
        if offsets[0] != 0 or offsets[-1] != self.token_ids.size or spans.min() < 0:
            got = f"from {offsets[0]} to {offsets[-1]}, smallest step {spans.min()}"
            expected = f"never decreasing from 0 to {self.token_ids.size}, the size of token_ids"
            raise InputError(self.source, "token_offsets", got, expected)
        known = self.num_tokens if self.chunk_size == 1 else self.num_prompt_tokens
        longest = -(-known.astype(np.int64) // self.chunk_size)
        if (spans > longest).any():
            at = int(np.argmax(spans > longest))
            expected = f"at most {longest[at]} entries of {self.chunk_size} tokens"
            raise InputError(self.source, f"token_ids of [{at}]", int(spans[at]), expected)


_PER_REQUEST = (
    "arrival_ns",
    "num_prompt_tokens",
    "num_output_tokens",
    "priority",
    "session_parent",
    "tool_ns",
)
_OPTIONAL = ("max_tokens", "wave")
_ARRAYS: dict[str, type[np.integer[Any]]] = {
    "arrival_ns": np.int64,
    "num_prompt_tokens": np.int32,
    "num_output_tokens": np.int32,
    "priority": np.int32,
    "session_parent": np.int32,
    "tool_ns": np.int64,
    "token_offsets": np.int64,
    "token_ids": np.int32,
}
_LEAST = {
    "arrival_ns": 0,
    "num_prompt_tokens": 1,
    "num_output_tokens": 1,
    "session_parent": -1,
    "tool_ns": 0,
    "token_ids": 0,
}
