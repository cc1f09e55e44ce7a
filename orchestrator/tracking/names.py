"""Names and text as every MLflow server takes them.

MLflow's names hold alphanumerics, underscores, dashes, periods, spaces, slashes and colons, and
must not change when read as a path. Any other character becomes `_x` + its hexadecimal code + `_`
(`%` -> `_x25_`), so that equal names stay equal and different ones different, in every run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

MAX_NAME = 250
MAX_TAG = 5000
MAX_PARAM = 1000
MAX_RUN_NAME = 250
_DOTS = re.compile(r"^\.\.|^\.$")
_OTHER = re.compile(r"[^A-Za-z0-9_\-. :]")


def clean_name(name: str) -> str:
    cleaned = "/".join(_clean_segment(segment) for segment in name.split("/"))
    if len(cleaned) > MAX_NAME:
        cleaned = f"{cleaned[: MAX_NAME - 9]}_{_digest(name)}"
    return cleaned


def unique_names(names: Iterable[str]) -> dict[str, str]:
    """Given name -> cleaned name, no two alike."""
    cleaned: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(set(names), key=lambda name: (clean_name(name) != name, name)):
        chosen = clean_name(name)
        if chosen in taken:
            chosen = f"{chosen[: MAX_NAME - 9]}_{_digest(name)}"
        taken.add(chosen)
        cleaned[name] = chosen
    return cleaned


def clean_text(text: str, limit: int) -> str:
    """Text that any database stores; too long ones end in their digest."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
    if len(text) <= limit:
        return text
    return f"{text[: limit - 13]}... {_digest(text)}"


def _clean_segment(segment: str) -> str:
    """Empty, `.` and leading `..` would be read as a path."""
    return _OTHER.sub(_code, _DOTS.sub(_code, segment)) or "_x_"


def _code(match: re.Match[str]) -> str:
    return "".join(f"_x{ord(character):x}_" for character in match.group())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
