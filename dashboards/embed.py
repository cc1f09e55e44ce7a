"""One HTML file that needs nothing else: template, styles, scripts, plotting library and data.

Data goes into a JSON script block in which `<`, `>` and `&` are escaped, so that no text from a sweep
can end the block or become markup; the page shows texts as text nodes only.
"""

from __future__ import annotations

import base64
import html
import importlib.util
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from profiles.errors import MISSING, InputError
from profiles.whole import write_whole

ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def packed(values: ArrayLike, kind: str) -> dict[str, str]:
    """An array for the page: little-endian bytes in base64; `kind` is f8, f4, i4 or u2."""
    array = np.ascontiguousarray(values, dtype=f"<{kind}")
    return {"kind": kind, "base64": base64.b64encode(array.tobytes()).decode("ascii")}


def safe_json(data: Any) -> str:
    """JSON that may stand inside a script element; what is not finite must be packed or None."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escaped in ESCAPES.items():
        text = text.replace(character, escaped)
    # Half of a surrogate pair is no text that a file can hold.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def write_page(path: Path, template: str, scripts: Sequence[str], title: str, data: Any) -> Path:
    """Write the page; equal data give equal bytes. Raises InputError without plotly."""
    text = page(template, scripts, title, data)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))
    return path


def page(template: str, scripts: Sequence[str], title: str, data: Any) -> str:
    parts = {
        "title": html.escape(title.encode("utf-8", "backslashreplace").decode("utf-8")),
        "style": _own("page.css"),
        "plotly": plotly_script(),
        "script": "\n".join(_own(name) for name in scripts),
        "data": safe_json(data),
    }
    text = _own(template)
    # One pass: what is put in may look like a place for something else.
    pieces = text.split("{{")
    made = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        made += [parts[name], rest]
    return "".join(made)


def plotly_script() -> str:
    """plotly.js as PyPI's plotly ships it, found without importing that package."""
    found = importlib.util.find_spec("plotly")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path.read_text(encoding="utf-8").replace("</script", "<\\/script")
    raise InputError("report", "plotly", MISSING, "the package plotly to be installed")


def _own(name: str) -> str:
    return (files("dashboards") / "page" / name).read_text(encoding="utf-8")
