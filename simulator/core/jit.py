"""How the core is compiled: numba, cached on disk by the content of the core's sources.

The core is plain Python over numpy record arrays. `compiled` marks the functions that numba
compiles; `entry` marks the few that Python calls, whose machine code is kept on disk. With
SERVESWEEP_JIT=0 both return the function as it is, and the same lines run uncompiled.

Why not numba's own cache: it notices a change of the file that holds the entry only, not of the
files it calls into, and would go on running stale code. Here every file of the core is part of
the key, so a changed rule is a new key, and checkouts with the same content share one.

Why `_nrt=False`: numba otherwise counts references to every array it touches, which costs the
core about half of its time. The core allocates nothing, so there is nothing to count.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

JIT = os.environ.get("SERVESWEEP_JIT", "1") != "0"
KEPT_VERSIONS = 8

_log = logging.getLogger("servesweep")
_not_kept: set[Path] = set()  # folders that were complained about


@cache
def core_stamp() -> str:
    """A digest of every source file of the core."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


def cache_root() -> Path:
    """Where compiled code is kept (SERVESWEEP_CACHE_DIR, else the user's cache directory)."""
    # Imported here: uncompiled, the core needs numpy and nothing else.
    import platformdirs

    configured = os.environ.get("SERVESWEEP_CACHE_DIR")
    return Path(configured or platformdirs.user_cache_dir("servesweep")) / "compiled"


def compiled(function: F) -> F:
    """Compile `function` into whatever compiled code calls it; Python cannot call it then."""
    return _called_by_compiled(function, forceinline=True)


def compiled_apart(function: F) -> F:
    """As `compiled`, but called rather than copied into every caller: for what most runs never need.

    What the core inlines shares its registers and cache lines; a call costs a few ns.
    """
    return _called_by_compiled(function, forceinline=False)


def _called_by_compiled(function: F, *, forceinline: bool) -> F:
    if not JIT:
        return function
    import numba

    options = {
        "_nrt": False,
        "forceinline": forceinline,
        "error_model": "numpy",
        # Only compiled code calls it: the wrappers would double the time of the first compile.
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }
    return numba.njit(**options)(function)


def entry(function: F) -> F:
    """Compile `function` for calls from Python and keep the machine code on disk."""
    if not JIT:
        return function
    import numba

    dispatcher = numba.njit(_nrt=False, error_model="numpy")(function)
    disk = _content_cache(function)
    if disk is not None:
        dispatcher._cache = disk
    return dispatcher


def is_kept(name: str) -> bool:
    """Whether the machine code of the entry of that name is on disk, or none is needed."""
    if not JIT:
        return True
    return any((cache_root() / core_stamp()).glob(f"*.{name}-{name}.*.nbi"))


def _content_cache(function: Callable[..., Any]) -> Any:
    """A numba cache for `function` keyed by `core_stamp`; None where no folder is writable."""
    from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

    folder = cache_root() / core_stamp()

    class Locator(_CacheLocator):
        _py_file = function.__code__.co_filename

        def get_cache_path(self) -> str:
            return str(folder)

        def get_source_stamp(self) -> str:
            return core_stamp()

        def get_disambiguator(self) -> str:
            return function.__name__

        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Any:
            return cls()

    class Impl(CompileResultCacheImpl):
        _locator_classes = [Locator]  # noqa: RUF012

    class ContentCache(FunctionCache):
        _impl_class = Impl

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            found = super().load_overload(sig, target_context)
            if found is None:
                _log.warning(
                    "compiling %s for the first time in this version "
                    "(some 10-40 s, once on this machine; kept in %s)",
                    function.__name__,
                    folder,
                )
            return found

        def save_overload(self, sig: Any, data: Any) -> None:
            try:
                super().save_overload(sig, data)
            except OSError as error:
                _cannot_keep(folder, error)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        _drop_old_versions(folder)
    except OSError as error:
        _cannot_keep(folder, error)
        return None
    return ContentCache(function)


def _cannot_keep(folder: Path, error: OSError) -> None:
    if folder not in _not_kept:
        _not_kept.add(folder)
        reason = error.strerror or error
        _log.warning(
            "compiled code cannot be kept in %s (%s): every process compiles", folder, reason
        )


def _drop_old_versions(current: Path) -> None:
    others = sorted(
        (p for p in current.parent.iterdir() if p.is_dir() and p != current),
        key=lambda p: p.stat().st_mtime,
        reverse=True,
    )
    for old in others[KEPT_VERSIONS - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
