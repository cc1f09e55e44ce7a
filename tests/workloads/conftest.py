from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or leaves binary copies outside its own folder."""
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "workloads"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """write('a.jsonl', 'line', 'line') -> the path of a file with these lines."""

    def write_lines(name: str, *lines: str) -> Path:
        path = tmp_path / name
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return write_lines
