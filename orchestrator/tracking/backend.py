"""What the writer asks of a place for runs."""

from __future__ import annotations

import getpass
import importlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from orchestrator.tracking.entry import PARENT, Entry


class Refused(Exception):
    """What MLflow will not take however often it is asked."""


class Unreachable(Exception):
    """What may work later: no answer, a busy database, a server in trouble."""


class LayoutUnknown(Exception):
    """The database is not laid out as this version of servesweep knows it."""


class Backend(Protocol):
    """Every method may raise Refused or Unreachable, and be called again after either."""

    experiment_id: str
    batch: int

    def open(self, experiment: str, sweep: Entry) -> None:
        """Makes sure of the experiment and of the parent run, which is running from then on."""

    def write(self, entries: Sequence[Entry]) -> list[bool]:
        """All of them or, if it raises, none; False for one that was already there."""

    def attach(self, file: Path, folder: str | None) -> None:
        """One file into a folder of the parent's artifacts."""

    def finish(self, tags: Mapping[str, str]) -> None:
        """Ends the parent run."""

    def alive(self) -> bool:
        """Whether the place answers at all."""

    def close(self) -> None: ...


def import_mlflow() -> Any:
    """Takes seconds."""
    try:
        return importlib.import_module("mlflow")
    except ImportError as error:
        raise Refused(f"MLflow cannot be imported: {error}") from error


def system_tags(parent: str | None) -> dict[str, str]:
    """Tags that MLflow's pages read; not part of what makes a run complete."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    tags = {
        "mlflow.user": user,
        "mlflow.source.name": "servesweep",
        "mlflow.source.type": "LOCAL",
    }
    return tags | ({PARENT: parent} if parent else {})


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def as_ours(error: Any) -> Refused | Unreachable:
    """An MlflowException as one of the two: only answers about the request itself are final."""
    final = {
        "BAD_REQUEST",
        "CUSTOMER_UNAUTHORIZED",
        "ENDPOINT_NOT_FOUND",
        "INVALID_PARAMETER_VALUE",
        "INVALID_STATE",
        "PERMISSION_DENIED",
        "RESOURCE_ALREADY_EXISTS",
        "RESOURCE_DOES_NOT_EXIST",
        "UNAUTHENTICATED",
    }
    text = " ".join(str(error).split())[:500]
    outdated = "out-of-date database schema" in text
    if outdated or isinstance(error, ImportError) or getattr(error, "error_code", None) in final:
        return Refused(text)
    return Unreachable(text)
