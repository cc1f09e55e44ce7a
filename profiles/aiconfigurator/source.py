"""Where the package's data are, and which systems and versions it has.

`systems/data/<system>/<family>/vllm/<version>/<operation>_perf.parquet`, a data sheet of every system in
`systems/<system>.yaml`. A table that a version did not measure anew is the one of the version before.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profiles.card import Card
from profiles.errors import MISSING, InputError, parse_model, read_yaml
from profiles.foreign import Foreign

DISTRIBUTION = "aiconfigurator-core"
FIELD = "profile.aiconfigurator"

# operation -> the family that holds it
FAMILIES = {
    "gemm": "gemm",
    "context_attention": "attention",
    "generation_attention": "attention",
    "moe": "moe",
    "custom_allreduce": "comm",
}
NEEDED = ("gemm", "context_attention", "generation_attention")


@dataclass(frozen=True)
class Place:
    """Who asked for the data: named in errors."""

    source: str | Path = DISTRIBUTION
    field: str = FIELD

    def error(self, field: str, value: Any, expected: str) -> InputError:
        """`field` below the profile's own; empty for the profile itself."""
        return self.error_at(f"{self.field}.{field}".strip("."), value, expected)

    def error_at(self, field: str, value: Any, expected: str) -> InputError:
        """About another part of the point."""
        return InputError(self.source, field, value, expected)


class Gpu(Foreign):
    """The part of a data sheet that is used: bytes, bytes a second, FLOP a second."""

    mem_bw: float
    mem_capacity: int
    bfloat16_tc_flops: float
    sm_version: int | None = None


class Sheet(Foreign):
    gpu: Gpu


class Device(Foreign):
    """What `devices.yaml` adds to a data sheet: sizes that the package does not give."""

    l2_bytes: int
    num_sms: int | None = None


def systems_folder(place: Place = Place()) -> Path:
    spec = importlib.util.find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None:
        expected = f"the package {DISTRIBUTION}, which holds the tables: pip install {DISTRIBUTION}"
        raise place.error("", MISSING, expected)
    return Path(spec.origin).parent / "systems"


def package_version() -> str:
    return installed_version(DISTRIBUTION)


def known_systems(place: Place = Place()) -> list[str]:
    """The systems with vLLM tables of GEMMs and attention."""
    data = systems_folder(place) / "data"
    names = (path.name for path in data.iterdir() if path.is_dir())
    return sorted(name for name in names if versions_of(name, place))


def versions_of(system: str, place: Place = Place()) -> list[str]:
    """vLLM versions, oldest first, for which every needed table is measured at or before."""
    data = systems_folder(place) / "data"
    measured = {operation: _measured(data, system, operation) for operation in NEEDED}
    every = sorted({v for found in measured.values() for v in found}, key=version_key)
    return [
        v
        for v in every
        if all(any(version_key(m) <= version_key(v) for m in found) for found in measured.values())
    ]


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


# What the package holds does not change while a process runs.
@cache
def _measured(data: Path, system: str, operation: str) -> tuple[str, ...]:
    folder = data / system / FAMILIES[operation] / "vllm"
    return tuple(path.parent.name for path in folder.glob(f"*/{operation}_perf.parquet"))


@cache
def _sheet(path: Path) -> Sheet:
    return parse_model(Sheet, read_yaml(path), path)


@cache
def _devices() -> dict[str, Device]:
    path = Path(__file__).parent / "devices.yaml"
    return {name: parse_model(Device, data, path) for name, data in read_yaml(path).items()}


@dataclass(frozen=True)
class System:
    """One card of the package at one vLLM version."""

    name: str
    version: str
    gpu: Gpu
    device: Device
    place: Place

    @property
    def bandwidth(self) -> float:
        """Bytes a ns."""
        return self.gpu.mem_bw / 1e9

    @property
    def card(self) -> Card:
        return Card(
            name=self.name,
            memory_bytes=self.gpu.mem_capacity,
            memory_bandwidth_gbps=self.gpu.mem_bw / 1e9,
            bfloat16_tflops=self.gpu.bfloat16_tc_flops / 1e12,
        )

    def path(self, operation: str) -> Path:
        """The newest table of `operation` that is not newer than the version."""
        data = systems_folder(self.place) / "data"
        versions = [
            v
            for v in _measured(data, self.name, operation)
            if version_key(v) <= version_key(self.version)
        ]
        if not versions:
            expected = f"a system with measured {operation}; {self.name} has none by {self.version}"
            raise self.place.error("system", self.name, expected)
        newest = max(versions, key=version_key)
        return (
            data / self.name / FAMILIES[operation] / "vllm" / newest / f"{operation}_perf.parquet"
        )

    def nccl_paths(self) -> list[Path]:
        """Tables of NCCL collectives, newest first."""
        folder = systems_folder(self.place) / "data" / self.name / "comm"
        found = [*folder.glob("nccl/*/nccl_perf.parquet"), *folder.glob("oneccl/*/*_perf.parquet")]
        return sorted(found, key=lambda path: version_key(path.parent.name), reverse=True)


def find_system(name: str, version: str | None, place: Place = Place()) -> System:
    """The system at `version`, None for the newest measured. Raises InputError."""
    folder = systems_folder(place)
    if name not in known_systems(place):
        raise place.error("system", name, f"one of {', '.join(known_systems(place))}")
    versions = versions_of(name, place)
    if version is not None and version not in versions:
        raise place.error("version", version, f"one of {', '.join(versions)}, or null")
    sheet = _sheet(folder / f"{name}.yaml")
    if name not in _devices():
        known = ", ".join(_devices())
        raise place.error("system", name, f"a system whose cache size is known: one of {known}")
    return System(name, version or versions[-1], sheet.gpu, _devices()[name], place)


def load_card(name: str, place: Place = Place()) -> Card:
    """The data sheet of a system as a card."""
    return find_system(name, None, place).card


@cache
def digest(path: Path) -> str:
    """sha256 of a file of the package, which does not change while a process runs."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Columns:
    """Columns of a table, as arrays of equal length."""

    def __init__(self, columns: dict[str, npt.NDArray[Any]]) -> None:
        self._columns = columns

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._columns[name]

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def where(self, keep: npt.NDArray[np.bool_]) -> Columns:
        return Columns({name: column[keep] for name, column in self._columns.items()})


def read_columns(path: Path, names: tuple[str, ...], **equal: Any) -> Columns:
    """The named columns of the rows whose columns equal `equal`; a column that a table lacks is 0.

    Only `window_size` may be missing: older tables were measured without windows.
    """
    file = pq.ParquetFile(io.BytesIO(path.read_bytes()))
    there = set(file.schema_arrow.names)
    equal = {name: value for name, value in equal.items() if name in there or name != "window_size"}
    table = file.read(columns=[*dict.fromkeys((*names, *equal))])
    for name, value in equal.items():
        table = table.filter(pc.equal(table[name], value))
    return Columns({name: table[name].to_numpy() for name in names})


def values_of(path: Path, column: str) -> list[Any]:
    """The distinct values of one column, for errors that say what there is."""
    found = pq.read_table(io.BytesIO(path.read_bytes()), columns=[column])[column]
    values: list[Any] = sorted(pc.unique(found).to_pylist())
    return values
