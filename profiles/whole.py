"""Files that appear whole or not at all: written beside their place, then put there.

A link is followed, its target written. What is there and is no regular file (a pipe, a device, a folder)
is refused: putting a file in its place would destroy it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from profiles.errors import InputError

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """`write` gets the place of the unfinished file. Raises InputError, or OSError that names `path`."""
    place = _place(path)
    unfinished = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        write(unfinished)
        unfinished.replace(place)
    except OSError as error:
        if error.filename not in (None, str(unfinished)):  # pyarrow's errors name no file
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
    finally:
        unfinished.unlink(missing_ok=True)


def check_file(path: Path) -> None:
    """Whether a file can be written there, before what takes long. Raises InputError or OSError."""
    place = _place(path)
    folder = next(folder for folder in place.parents if folder.exists())
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def _place(path: Path) -> Path:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode):
        what = KINDS.get(stat.S_IFMT(mode), "no file")
        raise InputError(path, "file", what, "a regular file, or a name that is free")
    return path.resolve()
