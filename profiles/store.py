"""Loaded bundles in binary form, found by the content of the files they came from.

One file per bundle in `SERVESWEEP_CACHE_DIR`, else in the user's cache folder: a checksum, a line
of JSON that says which arrays follow, and the arrays as they are in memory. A file that is not
whole is ignored and written anew; a folder that cannot be written is no error, only slower.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from profiles.architecture import Architecture
from profiles.bundle import AttentionGrid, Bundle, LayerTable, MoeTable, SkewFit

# Raised whenever the form of the file or the meaning of a bundle's fields changes.
FORMAT_VERSION = 2
ALIGNMENT = 8  # every array starts at a multiple, after the header

_log = logging.getLogger("servesweep")


def folder() -> Path:
    configured = os.environ.get("SERVESWEEP_CACHE_DIR")
    return Path(configured or platformdirs.user_cache_dir("servesweep")) / "bundles"


def path_of(key: str) -> Path:
    return folder() / f"{key[:40]}-{FORMAT_VERSION}-{sys.byteorder}.bundle"


def write(key: str, bundle: Bundle) -> None:
    """Keep `bundle`; other processes see the whole file or none."""
    content = encode(key, bundle)
    path = path_of(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        _log.debug("the loaded bundle cannot be kept in %s: %s", path.parent, error)


def read(key: str, source: Path) -> Bundle | None:
    """The bundle kept under `key`, or None; `source` is where its files lie now."""
    try:
        content = path_of(key).read_bytes()
    except OSError:
        return None
    try:
        return decode(key, content, source)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        _log.debug("ignoring %s: %s", path_of(key), error)
        return None


def encode(key: str, bundle: Bundle) -> bytes:
    """The header line and the arrays."""
    arrays: list[np.ndarray[Any, Any]] = []
    layout: list[tuple[str, int]] = []

    def pack(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(np.ascontiguousarray(value))
            layout.append((value.dtype.char, len(value)))
            return len(arrays) - 1
        if dataclasses.is_dataclass(value):
            return {f.name: pack(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, dict):
            return {name: pack(part) for name, part in value.items()}
        if isinstance(value, Architecture):
            return value.model_dump(mode="json")
        return value

    fields = {f.name: getattr(bundle, f.name) for f in dataclasses.fields(bundle)}
    del fields["source"]
    described = pack(fields)
    body = b"".join(array.tobytes() + bytes(-array.nbytes % ALIGNMENT) for array in arrays)
    header = {"key": key, "arrays": layout, "bundle": described}
    rest = json.dumps(header).encode() + b"\n" + body
    return b"%08x\n" % zlib.crc32(rest) + rest


def decode(key: str, content: bytes, source: Path) -> Bundle:
    """The bundle in `content`, its arrays read-only views; ValueError where it is not whole."""
    whole = memoryview(content)
    if int(content[:8], 16) != zlib.crc32(whole[9:]):
        raise ValueError("not the file that was written")
    end = content.index(b"\n", 9)
    header = json.loads(content[9:end])
    if header["key"] != key:
        raise ValueError("kept for other files")
    body = whole[end + 1 :]
    arrays = []
    at = 0
    for kind, length in header["arrays"]:
        dtype = {"l": np.int64, "q": np.int64, "d": np.float64, "B": np.uint8}[kind]
        arrays.append(np.frombuffer(body, dtype, length, at))
        size = length * np.dtype(dtype).itemsize
        at += size + -size % ALIGNMENT
    fields = header["bundle"]

    def unpack(kind: Any, value: dict[str, Any] | None) -> Any:
        if value is None:
            return None
        parts = {k: v if isinstance(v, float) else arrays[v] for k, v in value.items()}
        return kind(**parts)

    def layers(value: dict[str, Any]) -> dict[str, LayerTable]:
        return {layer: unpack(LayerTable, part) for layer, part in value.items()}

    return Bundle(
        source=source,
        **{name: fields[name] for name in ("content_id", "card", "model", "variant", "tp")},
        architecture=Architecture.model_validate(fields["architecture"]),
        dense=layers(fields["dense"]),
        per_sequence=layers(fields["per_sequence"]),
        attention=unpack(AttentionGrid, fields["attention"]),
        moe=unpack(MoeTable, fields["moe"]),
        skew=unpack(SkewFit, fields["skew"]),
    )
