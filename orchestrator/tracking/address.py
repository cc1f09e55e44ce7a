"""Where runs go: the tracking address, and how a person opens it."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import quote, urlsplit

from profiles.errors import InputError

DATABASE = "mlflow.db"
SQLITE = "sqlite:///"
SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks", "uc")
PASSWORD = re.compile(r"(?<=://)[^/\s]*@")
NOT_IN_SQLITE_PATHS = re.compile(r"[?\x00-\x1f]")


def mlflow_installed() -> bool:
    """Looks for MLflow without importing it, which takes seconds."""
    return importlib.util.find_spec("mlflow") is not None


def sqlite_address(folder: Path) -> str:
    """The embedded database of a folder of sweeps."""
    return f"{SQLITE}{(folder / DATABASE).absolute()}"


def tracking_address(given: str | None, folder: Path) -> str:
    """The address given, else MLFLOW_TRACKING_URI, else the database in `folder`."""
    source, address = "tracking", given
    if address is None:
        source, address = "MLFLOW_TRACKING_URI", os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if address is None or not address:
        source, address = "tracking", sqlite_address(folder)
    if address.startswith("sqlite:"):
        path = address.removeprefix(SQLITE)
        if path == address or path in {"", ":memory:"} or NOT_IN_SQLITE_PATHS.search(path):
            raise InputError(source, "uri", address, "sqlite:///path/to/mlflow.db without a '?'")
        return f"{SQLITE}{Path(path).absolute()}"
    if "://" not in address and not address.startswith("databricks"):
        expected = "sqlite:///path/to/mlflow.db or the address of a tracking server"
        raise InputError(source, "uri", address, f"{expected}; MLflow gave up its file store")
    scheme = address.partition("://")[0].partition("+")[0].partition(":")[0]
    if scheme not in SCHEMES and not address.startswith("file:") and scheme not in _plugins():
        expected = f"an address that MLflow knows: {', '.join(SCHEMES)}"
        raise InputError(source, "uri", address, expected)
    if address.startswith(("http://", "https://")) and not _is_server(address):
        raise InputError(source, "uri", shown(address), "http://host:port, of a tracking server")
    if address.startswith("file:"):
        expected = "sqlite:///path/to/mlflow.db; MLflow gave up its file store"
        raise InputError(source, "uri", address, expected)
    return address


def _is_server(address: str) -> bool:
    """Whether an address can be one: a host, and a port that is a number."""
    if any(character.isspace() or not character.isprintable() for character in address):
        return False
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _plugins() -> set[str]:
    """Kinds of addresses that installed plugins of MLflow take."""
    return {entry.name for entry in entry_points(group="mlflow.tracking_store")}


def database_path(address: str) -> Path | None:
    """The file behind an address of the embedded database."""
    return Path(address.removeprefix(SQLITE)) if address.startswith(SQLITE) else None


def shown(text: str) -> str:
    """Text without the passwords of addresses in it."""
    return PASSWORD.sub("***@", text)


def ui_hint(address: str, experiment_id: str, sweep_id: str, order_by: str) -> str:
    """How to look at the sweep: its runs by a metric, which also keeps them out of the parent's fold."""
    search = quote(f"tags.`servesweep.sweep_id` = '{sweep_id}'", safe="")
    order = quote(f"metrics.`{order_by}`", safe="")
    page = f"/#/experiments/{experiment_id}/runs?searchFilter={search}&orderByKey={order}"
    page += "&orderByAsc=true"
    if database_path(address) is not None:
        command = f"mlflow ui --backend-store-uri {shlex.quote(address)}"
        return f"{command}, then http://127.0.0.1:5000{page}"
    if address.startswith(("http://", "https://")):
        return shown(address).rstrip("/") + page
    return f"mlflow ui --backend-store-uri {shlex.quote(shown(address))}"
