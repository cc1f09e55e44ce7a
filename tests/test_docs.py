"""docs/point.md against the models: every field with its default, and examples that can be simulated."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from profiles.card import Card
from profiles.model import ModelConfig
from simulator import config as point
from simulator.cluster import config as cluster
from simulator.config import point_from_mapping
from simulator.network.links import Link, Links
from simulator.placement.config import Memory, Placement, Weights
from simulator.simulation import prepare
from simulator.workloads import WorkloadConfig, distributions, generate
from simulator.workloads import config as workload
from simulator.workloads.manifest import Manifest, ManifestRequest
from tests.profiles.bundles import REFERENCE

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "point.md").read_text()
POINTS = ROOT / "sweeps" / "points"

# By heading; the first table below it has a row for every field.
TABLES: dict[str, type[BaseModel]] = {
    "A point, section by section": point.Point,
    "model": ModelConfig,
    "card": Card,
    "engine": point.EngineConfig,
    "workload": WorkloadConfig,
    "csv": workload.CsvTrace,
    "mooncake": workload.MooncakeTrace,
    "vllm_bench": workload.BenchResult,
    "generate": generate.GenerateConfig,
    "arrivals": distributions.Arrivals,
    "lengths": distributions.Lengths,
    "shared_prefix": generate.SharedPrefix,
    "multi_turn": generate.MultiTurn,
    "sessions": generate.Sessions,
    "manifest": Manifest,
    "profile": point.ProfileConfig,
    "linear": point.LinearLaw,
    "overhead": point.Overhead,
    "links": Links,
    "link": Link,
    "expert_routing": point.ExpertRouting,
    "tiers": point.TierConfig,
    "placement": Placement,
    "cluster": cluster.ClusterConfig,
    "instances": cluster.InstanceConfig,
    "routing": cluster.RoutingConfig,
    "kv_transfer": cluster.KVTransferConfig,
}
# Told in a row of another one.
WITHIN: dict[str, tuple[type[BaseModel], ...]] = {
    "lengths": (distributions.LogNormal,),
    "manifest": (ManifestRequest,),
    "profile": (point.PackagedTables, point.DataSheet, point.TableScale),
    "placement": (Memory, Weights),
}


def section(heading: str) -> str:
    _, found, after = PAGE.partition(f"# {heading}\n")
    assert found, f"no heading {heading}"
    return re.split(r"^#", after, maxsplit=1, flags=re.MULTILINE)[0]


def rows(heading: str) -> dict[str, str]:
    """Field -> default, as the section's table has them."""
    found = re.findall(r"^\| (`.+?) \| (.+?) \|.*\|$", section(heading), re.MULTILINE)
    return {name: default for names, default in found for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("heading", TABLES)
def test_every_field_is_there_with_its_default(heading: str) -> None:
    model, told = TABLES[heading], rows(heading)
    assert told.keys() - {"memory_gib"} == set(model.model_fields)
    for name, field in model.model_fields.items():
        default = field.default
        if isinstance(default, bool | int | float | str):
            text = str(default).lower() if isinstance(default, bool) else str(default)
            assert told[name] == text, name
        elif field.is_required() and name != "head_dim":  # which follows from others
            assert told[name] == "-", name
        else:
            assert told[name] != "-" or name == "instances", name


@pytest.mark.parametrize("heading", WITHIN)
def test_fields_of_a_row_are_named(heading: str) -> None:
    for model in WITHIN[heading]:
        for name in model.model_fields:
            assert f"`{name}`" in section(heading), f"{model.__name__}.{name}"


def examples() -> list[dict[str, Any]]:
    blocks = re.findall(r"(?:^ {4}.*\n)+", PAGE, re.MULTILINE)
    return [yaml.safe_load(textwrap.dedent(block)) for block in blocks]


@pytest.mark.parametrize("example", examples(), ids="+".join)
def test_examples_are_points(example: dict[str, Any]) -> None:
    if "shared/" in str(example) and not REFERENCE.is_dir():
        pytest.skip("needs LLMServingSim's data in ../shared/reference/llmservingsim")
    quickstart = yaml.safe_load((POINTS / "quickstart.yaml").read_text())
    prepare(point_from_mapping(quickstart | example, POINTS, "docs/point.md"))


def test_the_readmes_point_is_a_file() -> None:
    (block,) = re.findall(r"^ {4}model:\n(?:^ {4}.*\n)+", (ROOT / "README.md").read_text(), re.M)
    file = (POINTS / "rtx4090.yaml").read_text().replace("../../../shared", "../shared")
    assert yaml.safe_load(textwrap.dedent(block)) == yaml.safe_load(file)
