"""Files appear whole or not at all, and nothing but a file is ever replaced by one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from profiles.errors import InputError
from profiles.whole import check_file, write_whole


def test_a_new_file_and_one_in_the_place_of_another(tmp_path: Path) -> None:
    for content in ("one", "two"):
        write_whole(tmp_path / "file", lambda path, content=content: path.write_text(content))
        assert (tmp_path / "file").read_text() == content
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    link.symlink_to("folder/target")
    check_file(link)
    write_whole(link, lambda path: path.write_text("new"))
    assert link.is_symlink() and target.read_text() == "new" and not target.is_symlink()


@pytest.mark.parametrize("linked", [True, False])
def test_what_is_no_file_is_refused_and_stays(tmp_path: Path, linked: bool) -> None:
    pipe = path = tmp_path / "pipe"
    os.mkfifo(pipe)
    if linked:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    for refused in (check_file, lambda path: write_whole(path, lambda p: p.write_text("x"))):
        with pytest.raises(InputError, match="got 'a pipe', expected a regular file"):
            refused(path)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and path.is_symlink() == linked
    with pytest.raises(InputError, match="got 'a folder'"):
        write_whole(tmp_path, lambda p: p.write_text("x"))


def test_an_error_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "none" / "file"
    with pytest.raises(FileNotFoundError) as error:
        write_whole(path, lambda p: p.write_text("x"))
    assert error.value.filename == str(path)
    (tmp_path / "file").write_text("a file")
    with pytest.raises(NotADirectoryError):
        check_file(tmp_path / "file" / "inside")
    check_file(tmp_path / "new" / "deep" / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="loop"):
        write_whole(loop, lambda p: p.write_text("x"))
    assert loop.is_symlink()
