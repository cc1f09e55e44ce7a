"""Files that others write: what is needed must be there, the rest is ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from profiles.errors import MISSING, InputError


class Foreign(BaseModel):
    """A part of such a file."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


def read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(path, "file", MISSING, "an existing file") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL or a lone surrogate
        raise InputError(path, "file", str(error), "a readable file") from None


def json_object(content: bytes, source: str | Path) -> dict[str, Any]:
    """A JSON object; `source` names it in errors."""
    try:
        data = json.loads(content)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InputError(source, where, error.msg, "valid JSON") from None
    except RecursionError:
        raise InputError(source, "file", "objects in objects", "JSON of few levels") from None
    except UnicodeDecodeError as error:
        raise InputError(source, "file", str(error), "a readable UTF-8 file") from None
    if not isinstance(data, dict):
        raise InputError(source, "file", data, "an object of fields and values")
    return data
