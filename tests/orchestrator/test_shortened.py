"""Texts cut short still differ."""

from __future__ import annotations

import pytest

from orchestrator.shortened import told_apart

POISSON = "{'process': 'poisson', 'rate': "


@pytest.mark.parametrize(
    ("texts", "limit", "short"),
    [
        (["a", "b", "a"], 8, ["a", "b", "a"]),
        (["short", "rather long"], 8, ["short", "rather …"]),
        ([f"{POISSON}1000.0}}", f"{POISSON}2000.0}}"], 8, ["…1000.0}", "…2000.0}"]),
        ([f"{POISSON}1000.0}}", f"{POISSON}1500.0}}"], 8, ["…1000.0}", "…1500.0}"]),
        ([f"{POISSON}1000}}", f"{POISSON}2000}}", "{'rate': 4}"], 9,
         ["1: {'pro…", "2: {'pro…", "3: {'rat…"]),
        ([], 8, []),
    ],
)  # fmt: skip
def test_told_apart(texts: list[str], limit: int, short: list[str]) -> None:
    assert told_apart(texts, limit) == short
