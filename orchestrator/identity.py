"""Ids by content: what is simulated and compared, wherever its files are and whatever they are called.

A run is everything the core sees, resolved: workload, arrivals, settings, tables, and the code. A point
is a run with what was asked for it and the truth it is compared with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from orchestrator.truth_data import Truth
from simulator.overhead import ResolvedOverhead
from simulator.simulation import Prepared
from simulator.summary import servesweep_version

# Fields of Prepared that follow from others, or say the same as another part of an id.
IMPLIED = ("point", "workload", "hashes", "capacity", "max_model_len", "notes")
# Fields of Point whose content is in an id already, and names that decide nothing by themselves.
FILES = ("workload", "recorded_run")
WITHIN: dict[str, set[str]] = {"model": {"name"}, "profile": {"bundle", "bundles"}}

SCALARS = (type(None), bool, int, float, str)


@dataclass(frozen=True)
class Ids:
    """of a point, of its run, and of the run without its number of blocks."""

    point: str
    run: str
    pool: str


class Identifier:
    """Makes ids; what points have in common is read once and held once."""

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}
        self._overheads: dict[ResolvedOverhead, ResolvedOverhead] = {}
        self._known: dict[int, tuple[Any, str]] = {}

    def ids(self, prepared: Prepared, truth: Truth | None) -> Ids:
        settings, point = prepared.settings, prepared.point
        resolved = [
            f"{field.name} {self._text(getattr(prepared, field.name))}"
            for field in fields(prepared)
            if field.name not in IMPLIED
        ]
        asked = [
            f"{name} {self._text(getattr(point, name), WITHIN.get(name))}"
            for name in type(point).model_fields
            if name not in FILES
        ]
        pool = _short(
            "pool",
            code_stamp(),
            prepared.workload.content_id,
            repr(replace(settings, num_gpu_blocks=0)),
            f"check_invariants {point.check_invariants}",  # asked for, so it runs
            *resolved,
        )
        run = _short("run", pool, str(settings.num_gpu_blocks))
        whole = _short("point", run, truth.content_id if truth else "", *asked)
        return Ids(whole, run, pool)

    def shared(self, prepared: Prepared) -> Prepared:
        """The same, made of parts that other points hold already, where they are equal."""
        block_size = prepared.point.engine.block_size
        held: dict[str, Any] = {
            "workload": self._hold(prepared.workload),
            "arrival_ns": self._hold(prepared.arrival_ns),
            "latency": self._hold(prepared.latency),
            "sources": self._hold(prepared.sources),
            "overhead": self._overheads.setdefault(prepared.overhead, prepared.overhead),
            "hashes": self._held.setdefault(
                f"hashes {prepared.workload.content_id} {block_size}", prepared.hashes
            ),
        }
        changed = {n: part for n, part in held.items() if part is not getattr(prepared, n)}
        return replace(prepared, **changed) if changed else prepared

    def _hold(self, part: Any) -> Any:
        if id(part) in self._known:
            return part
        text = digest(part)
        held = self._held.setdefault(text, part)
        self._known[id(held)] = (held, text)
        return held

    def _text(self, part: Any, without: set[str] | None = None) -> str:
        """What a part says; read once of a part that points share."""
        if type(part) in SCALARS:
            return repr(part)
        known = self._known.get(id(part))
        if known is None:
            text = (
                part.model_dump_json(exclude=without)
                if isinstance(part, BaseModel)
                else digest(part)
            )
            known = self._known[id(part)] = (part, text)
        return known[1]


def digest(value: Any) -> str:
    """sha256 over a value's content. Raises TypeError for what has no content of its own."""
    found = hashlib.sha256()
    _feed(found, value)
    return found.hexdigest()


def _feed(into: Any, value: Any) -> None:
    content_id = getattr(value, "content_id", None)
    if isinstance(content_id, str):
        into.update(f"content {content_id};".encode())
    elif isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        into.update(f"array {array.dtype.descr} {array.shape};".encode())
        into.update(array.tobytes())
    elif type(value) in SCALARS:
        text = repr(value).encode()
        into.update(f"{type(value).__name__} {len(text)};".encode() + text)
    elif isinstance(value, BaseModel):
        _feed(into, value.model_dump(mode="json"))
    elif is_dataclass(value) and not isinstance(value, type):
        _feed(into, {field.name: getattr(value, field.name) for field in fields(value)})
    elif isinstance(value, Mapping):
        into.update(f"mapping {len(value)};".encode())
        for key in sorted(value):
            _feed(into, key)
            _feed(into, value[key])
    elif isinstance(value, tuple | list) and all(type(item) in SCALARS for item in value):
        text = repr(tuple(value)).encode()
        into.update(f"values {len(text)};".encode() + text)
    elif isinstance(value, tuple | list):
        into.update(f"sequence {len(value)};".encode())
        for item in value:
            _feed(into, item)
    else:
        raise TypeError(f"no content id for {type(value).__name__}")


def _short(*parts: str) -> str:
    text = "\0".join(parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@cache
def code_stamp() -> str:
    """The version, and a digest of every source that a result depends on."""
    root = Path(__file__).resolve().parent.parent
    found = hashlib.sha256()
    for pattern in (
        "simulator/**/*.py",
        "profiles/**/*.py",
        "profiles/architectures/*.yaml",
        *JUDGING,
    ):
        for path in sorted(root.glob(pattern)):
            content = path.read_bytes()
            found.update(f"{path.relative_to(root).as_posix()} {len(content)};".encode() + content)
    return f"{servesweep_version()} {found.hexdigest()}"


JUDGING = ("orchestrator/compare.py", "orchestrator/truth*.py", "orchestrator/outcome.py")
