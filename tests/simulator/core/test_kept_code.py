"""Where compiled code cannot be kept, every process compiles, and says so once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.core.jit import JIT

ROOT = Path(__file__).resolve().parents[3]
CODE = """
import logging
import numba.core.caching
logging.basicConfig(format="%(message)s")

def full(self, name, data):
    raise OSError(28, "No space left on device")

numba.core.caching.IndexDataCacheFile.save = full
from simulator.core import jit

@jit.entry
def one(x):
    return x + 1

@jit.entry
def two(x):
    return x + 2

print(one(1), two(1))
"""


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_a_full_disk_is_no_failure(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SERVESWEEP_CACHE_DIR": str(tmp_path)}
    script = tmp_path / "script.py"
    script.write_text(CODE)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "2 3"), done.stderr
    said = [line for line in done.stderr.splitlines() if "cannot be kept" in line]
    assert len(said) == 1 and "No space left on device" in said[0]
