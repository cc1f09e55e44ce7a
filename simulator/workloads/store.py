"""Binary copies of workload files that were read before, keyed by the bytes of the file.

A copy that can't be read is ignored and written again; a folder that can't be written costs only
time. Nothing in a copy is executed (no pickle).
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import platformdirs

from profiles.errors import MISSING, InputError
from simulator.workloads.workload import Workload

VERSION = 1  # of the readers and of the copy: raise it when a file would be read differently
KEPT_COPIES = 64

# No file says more than these; what has no array in a copy is left as it is without one.
_OTHERS = ("request_ids", "chunk_size", "source", "max_tokens", "wave", "manifest_id")
_ARRAYS = [f.name for f in fields(Workload) if f.name not in _OTHERS]
_log = logging.getLogger("servesweep")


def store_root() -> Path:
    """Where copies are kept (SERVESWEEP_CACHE_DIR, else the user's cache directory)."""
    configured = os.environ.get("SERVESWEEP_CACHE_DIR")
    return Path(configured or platformdirs.user_cache_dir("servesweep")) / "workloads"


def cached(path: Path, kind: str, read: Callable[[Path], Workload]) -> Workload:
    """`read(path)`, or the copy of what it returned for the same bytes.

    `kind` says how the bytes are read: reader and options.
    """
    copy = store_root() / f"{_digest(path, kind)}.npz"
    found = _load(copy, path)
    if found is None:
        found = read(path)
        _save(copy, found)
    return found


def _digest(path: Path, kind: str) -> str:
    # The ending decides whether the file is unpacked.
    digest = hashlib.sha256(f"{VERSION}\0{kind}\0{path.suffix}\0".encode())
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except FileNotFoundError:
        raise InputError(path, "file", MISSING, "an existing file") from None
    except OSError as error:
        raise InputError(path, "file", error.strerror, "a readable file") from None
    return digest.hexdigest()


def _load(copy: Path, source: Path) -> Workload | None:
    if not copy.exists():
        return None
    try:
        with np.load(copy, allow_pickle=False) as stored:
            arrays: dict[str, Any] = {name: stored[name] for name in _ARRAYS}
            ids = orjson.loads(stored["request_ids"].tobytes())
            chunk_size = int(stored["chunk_size"])
        return Workload(request_ids=ids, chunk_size=chunk_size, source=str(source), **arrays)
    except Exception as error:  # whatever is wrong with a copy, the file itself is still there
        _log.warning("%s is damaged (%s): reading %s again", copy, error, source)
        return None


def _save(copy: Path, workload: Workload) -> None:
    arrays = {name: getattr(workload, name) for name in _ARRAYS}
    arrays["request_ids"] = np.frombuffer(orjson.dumps(workload.request_ids), np.uint8)
    arrays["chunk_size"] = np.int64(workload.chunk_size)
    temporary = None
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=copy.parent, suffix=".part", delete=False) as file:
            temporary = Path(file.name)
            np.savez(file, **arrays)
        temporary.replace(copy)
        _drop_oldest(copy.parent)
    except OSError as error:
        _log.warning("no copy of %s kept in %s: %s", workload.source, copy.parent, error)
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _drop_oldest(folder: Path) -> None:
    by_age = sorted(folder.glob("*.npz"), key=lambda p: p.stat().st_mtime, reverse=True)
    for old in by_age[KEPT_COPIES:]:
        old.unlink(missing_ok=True)
