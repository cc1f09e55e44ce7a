"""Whether files have changed since they were read: a key for what is kept of them within a process."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[tuple[str, int, int, int], ...]


def stamp_of(path: Path | None) -> Stamp:
    """Name, inode, size and time of a file or of every file below a folder; what is missing has none."""
    if path is None:
        return ()
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stamps = []
    for file in files:
        try:
            found = file.stat()
        except OSError:
            continue
        stamps.append((str(file), found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(stamps)
