"""A real browser for tests: headless Chromium, which must not complain or ask for anything outside."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
PATIENCE_MS = 300_000  # of a busy machine
needs_browser = [
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="playwright is not installed"
    ),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


@contextmanager
def opened(
    address: str, allowed: str = "file://", strict: bool = True, **options: Any
) -> Iterator[Any]:
    """The page at an address. At the end there was no request but to `allowed`, and no error:
    unless `strict` is off, for pages of others."""
    from playwright.sync_api import sync_playwright

    errors: list[str] = []
    outside: list[str] = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=list(ARGUMENTS), timeout=PATIENCE_MS
        )
        try:
            viewport = {"width": 1300, "height": 900}
            page = chromium.new_page(**{"viewport": viewport, "color_scheme": "light"} | options)
            page.set_default_timeout(PATIENCE_MS)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
            inside = (allowed, "data:", "blob:", "about:")
            page.on(
                "request",
                lambda r: None if r.url.startswith(inside) else outside.append(r.url),
            )
            page.goto(address)
            yield page
        finally:
            chromium.close()
    assert errors == [] or not strict, errors
    assert outside == []


def all_drawn(page: Any) -> None:
    """Draw every chart, also those far down."""
    page.evaluate("drawDue(true)")
    page.wait_for_function(
        "[...charts].every(([id, c]) => !c.due || byId(id).closest('section').hidden)"
    )


def address_of(path: Path, fragment: str = "") -> str:
    return path.absolute().as_uri() + (f"#{fragment}" if fragment else "")
