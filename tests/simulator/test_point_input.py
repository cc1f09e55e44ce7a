"""A wrong point gives one error that names file, field, value and expectation, before anything runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from profiles.errors import InputError
from simulator import Point, load_point
from simulator.simulation import prepare
from tests.profiles.bundles import write_variant
from tests.simulator.point import MODEL, NOTHING, point_data


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "store"))


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "point.yaml"
    path.write_text(yaml.safe_dump(point_data(**changes)))
    return path


def ready(path: Path) -> Point:
    """What happens before simulating."""
    point = load_point(path)
    prepare(point, path)
    return point


def error_of(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        ready(path)
    assert "\n" not in str(caught.value)
    return caught.value


def test_the_unchanged_point_is_fine(tmp_path: Path) -> None:
    assert ready(written(tmp_path)).engine.num_gpu_blocks_override == 60


LINEAR = {"base_ns": 1000}

# what differs, the field the error names, the value it shows, a part of what it expects
TIER = {"capacity_gib": 1.0, "bandwidth_gbps": 10.0}
TIERS = {"cpu": TIER, "cxl": TIER}
WRONG: list[tuple[dict[str, Any], str, Any, str]] = [
    ({"engine__gpu_memory_utilization": 90}, "engine.gpu_memory_utilization", 90, "less than"),
    ({"engine__gpu_memory_utilization": 0}, "engine.gpu_memory_utilization", 0, "greater than 0"),
    ({"engine__gpu_memory_utilization": -0.5}, "engine.gpu_memory_utilization", -0.5, "greater"),
    ({"engine__gpu_memory_utilization": math.inf}, "engine.gpu_memory_utilization", math.inf, "finite"),
    ({"engine__gpu_memory_utilization": "high"}, "engine.gpu_memory_utilization", "high", "number"),
    ({"engine__gpu_memory_utilization": "0.9"}, "engine.gpu_memory_utilization", "0.9", "number"),
    ({"engine__gpu_memory_utilization": True}, "engine.gpu_memory_utilization", True, "number"),
    ({"engine__num_gpu_blocks_override": 0}, "engine.num_gpu_blocks_override", 0, "at least|2"),
    ({"engine__num_gpu_blocks_override": 1}, "engine.num_gpu_blocks_override", 1, "2"),
    ({"engine__num_gpu_blocks_override": 60.5}, "engine.num_gpu_blocks_override", 60.5, "integer"),
    ({"engine__block_size": 0}, "engine.block_size", 0, "1"),
    ({"engine__block_size": -16}, "engine.block_size", -16, "1"),
    ({"engine__block_size": "16"}, "engine.block_size", "16", "integer"),
    ({"engine__block_size": 16.0}, "engine.block_size", 16.0, "integer"),
    ({"engine__block_size": True}, "engine.block_size", True, "integer"),
    ({"engine__block_size": None}, "engine.block_size", None, "integer"),
    ({"engine__max_num_seqs": 0}, "engine.max_num_seqs", 0, "1"),
    ({"engine__max_num_batched_tokens": 0}, "engine.max_num_batched_tokens", 0, "1"),
    (
        {"engine__max_num_batched_tokens": 7},
        "engine.max_num_batched_tokens",
        7,
        r"at least max_num_seqs \(8\)",
    ),
    ({"engine__max_model_len": 1}, "engine.max_model_len", 1, "2"),
    (
        {"engine__enable_chunked_prefill": False},
        "engine.max_num_batched_tokens",
        96,
        r"at least max_model_len \(512\), because chunked prefill is off",
    ),
    (
        {"engine__long_prefill_token_threshold": 513},
        "engine.long_prefill_token_threshold",
        513,
        r"at most max_model_len \(512\)",
    ),
    (
        {"engine__long_prefill_token_threshold": -1},
        "engine.long_prefill_token_threshold",
        -1,
        "0",
    ),
    ({"engine__enable_prefix_caching": "yes"}, "engine.enable_prefix_caching", "yes", "bool"),
    ({"engine__policy": "lifo"}, "engine.policy", "lifo", "fcfs"),
    ({"engine__tensor_parallel_size": 65}, "engine.tensor_parallel_size", 65, "64"),
    ({"engine__tensor_parallel_size": 3}, "engine.tensor_parallel_size", 3, "a divisor of the 4"),
    ({"profile": {"aiconfigurator": {}}}, "profile.aiconfigurator.system", None, "a value"),
    ({"engine__dtype": "int4"}, "engine.dtype", "int4", "bfloat16"),
    ({"engine__max_num_sequences": 4}, "engine.max_num_sequences", 4, "known fields: .*max_num_seqs"),
    ({"engine": 5}, "engine", 5, "dictionary"),
    ({"engine": []}, "engine", [], "dictionary"),
    ({"enigne": {}}, "enigne", {}, "known fields: .*engine"),
    ({"overheads": 1}, "overheads", 1, "known fields: .*overhead"),
    ({"overhead__host_ms": 1}, "overhead.host_ms", 1, "known fields: .*host_ms_per_step"),
    ({"overhead__host_ms_per_step": -0.1}, "overhead.host_ms_per_step", -0.1, "0"),
    ({"overhead__host_ms_per_request": -1}, "overhead.host_ms_per_request", -1, "0"),
    ({"overhead__host_ms_per_step": math.inf}, "overhead.host_ms_per_step", math.inf, "finite"),
    ({"overhead__host_ms_per_step": True}, "overhead.host_ms_per_step", True, "number"),
    ({"overhead__full_graph_ms": -math.inf}, "overhead.full_graph_ms", -math.inf, "finite"),
    ({"overhead__no_graph_ms": "4ms"}, "overhead.no_graph_ms", "4ms", "number"),
    ({"overhead__cudagraph_mode": "SOME"}, "overhead.cudagraph_mode", "SOME", "PIECEWISE"),
    (
        {"overhead__cudagraph_capture_sizes": [1, 0]},
        "overhead.cudagraph_capture_sizes[1]",
        0,
        "1",
    ),
    ({"overhead__from_recorded_run": True}, "recorded_run", None, "because of overhead"),
    ({"arrivals": "recorded"}, "recorded_run", None, "because of arrivals: recorded"),
    ({"arrivals": "yesterday"}, "arrivals", "yesterday", "workload"),
    (
        {"profile": {"linear": LINEAR, "bundles": "perf"}},
        "profile",
        ["bundles", "linear"],
        "exactly one",
    ),
    ({"profile": {}}, "profile", None, "exactly one of bundle, bundles, aiconf"),
    ({"profile__linear__base_ns": -5}, "profile.linear.base_ns", -5, "0"),
    ({"profile__linear__base_ns": 5.5}, "profile.linear.base_ns", 5.5, "integer"),
    ({"profile__linear__per_tokens_ns": 5}, "profile.linear.per_tokens_ns", 5, "per_token_ns"),
    ({"card__memory_gib": 0}, "card.memory_gib", 0, "above 0"),
    ({"card__memory_bytes": 2**30}, "card.memory_bytes", None, "exactly one"),
    ({"card__memory": 1}, "card.memory", 1, "known fields"),
    ({"model__hidden_size": 0}, "model.hidden_size", 0, "1"),
    ({"model__hidden_size": "64"}, "model.hidden_size", "64", "integer"),
    ({"model__num_key_value_heads": 3}, "model.num_key_value_heads", 3, "divisor"),
    ({"model__model_type": "gpt2"}, "model.model_type", "gpt2", "llama"),
    ({"model__layers": 4}, "model.layers", 4, "known fields: .*num_hidden_layers"),
    ({"workload__generate__num_requests": 0}, "workload.generate.num_requests", 0, "1"),
    ({"workload__generate__arrivals__rate": 0}, "workload.generate.arrivals.rate", 0, "0"),
    ({"workload__rate_scale": math.nan}, "workload.rate_scale", None, "finite"),
    ({"workload__limit": 0}, "workload.limit", 0, "1"),
    ({"workload__rate_scale": 0}, "workload.rate_scale", 0, "0"),
    ({"workload__jsonl": "a.jsonl"}, "workload", None, "exactly one of"),
    ({"workload": {}}, "workload", {}, "exactly one of"),
    ({"check_invariants": 1}, "check_invariants", 1, "bool"),
    ({"prefix_storage": "cpu"}, "prefix_storage", "cpu", "one of tiers"),
    ({"prefix_storage": "cpu+cxl", "tiers": {"cpu": TIER}},
     "prefix_storage", "cpu+cxl", "one of tiers: cpu"),
    ({"prefix_storage": "cxl+cpu", "tiers": TIERS}, "prefix_storage", "cxl+cpu", "cpu.cxl"),
    ({"prefix_storage": "cpu", "tiers": {"cpu": {**TIER, "chunk_tokens": 40}}},
     "tiers.cpu.chunk_tokens", 40, "a multiple of engine.block_size"),
    ({"prefix_storage": "cpu+cxl", "tiers": {**TIERS, "cxl": {**TIER, "chunk_tokens": 512}}},
     "tiers.cxl.chunk_tokens", 512, "as tiers.cpu.chunk_tokens .256., because both are used"),
    ({"prefix_storage": "cpu+cxl", "tiers": TIERS, "kv_connector": "OffloadingConnector"},
     "prefix_storage", "cpu+cxl", "one tier, because kv_connector"),
    ({"kv_connector": "NixlConnector"}, "kv_connector", "NixlConnector", "OffloadingConnector"),
    ({"prefix_storage": "cpu", "tiers": TIERS, "engine__enable_prefix_caching": False},
     "prefix_storage", "cpu", "none, because engine.enable_prefix_caching is off"),
    ({"tiers": {"cpu": {**TIER, "bandwidth_gbps": 0.0}}},
     "tiers.cpu.bandwidth_gbps", 0.0, "greater than 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "field", "value", "expected"), WRONG, ids=[f"{w[1]}={w[2]}" for w in WRONG]
)
def test_wrong_value(
    tmp_path: Path, changes: dict[str, Any], field: str, value: Any, expected: str
) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(InputError, match=expected):
        ready(path)
    error = error_of(path)
    assert error.source == str(path)
    assert error.field == field
    if value is not None:
        assert error.value == value
        assert type(error.value) is type(value)


def test_utilization_that_is_no_number(tmp_path: Path) -> None:
    error = error_of(written(tmp_path, engine__gpu_memory_utilization=math.nan))
    assert error.field == "engine.gpu_memory_utilization"
    assert math.isnan(error.value)


@pytest.mark.parametrize("field", ["model", "card", "workload", "profile"])
@pytest.mark.parametrize("way", [NOTHING, None])
def test_missing_section(tmp_path: Path, field: str, way: Any) -> None:
    error = error_of(written(tmp_path, **{field: way}))
    assert error.field == field
    assert "required" in error.expected


@pytest.mark.parametrize("field", sorted(set(MODEL) - {"head_dim"}))
def test_missing_model_field(tmp_path: Path, field: str) -> None:
    error = error_of(written(tmp_path, **{f"model__{field}": NOTHING}))
    assert error.field == f"model.{field}"
    assert "required" in error.expected


@pytest.mark.parametrize("field", ["engine", "overhead"])
def test_optional_section_left_empty(tmp_path: Path, field: str) -> None:
    """`engine:` with nothing below it is YAML's null: defaults."""
    path = written(tmp_path, **{field: None, "card__memory_gib": 8})
    assert load_point(path) == load_point(written(tmp_path, **{field: {}, "card__memory_gib": 8}))


def test_too_little_memory_for_the_weights(tmp_path: Path) -> None:
    changes = {
        "engine__num_gpu_blocks_override": NOTHING,
        "card__memory_gib": NOTHING,
        "card__memory_bytes": 400_000,
        "engine__gpu_memory_utilization": 0.3,
    }
    error = error_of(written(tmp_path, **changes))
    assert error.field == "engine.gpu_memory_utilization"
    assert error.value == 0.3
    assert error.expected.startswith("more than 0.")
    # The number it names is enough, and a little less is not.
    needed = float(error.expected.split()[2].rstrip(":"))
    ready(written(tmp_path, **{**changes, "engine__gpu_memory_utilization": needed + 1e-4}))
    error_of(written(tmp_path, **{**changes, "engine__gpu_memory_utilization": needed - 1e-3}))


def test_a_card_that_is_too_small_anyway(tmp_path: Path) -> None:
    changes = {
        "engine__num_gpu_blocks_override": NOTHING,
        "card__memory_gib": NOTHING,
        "card__memory_bytes": 1000,
    }
    assert "a larger card" in error_of(written(tmp_path, **changes)).expected


FROM_FILE = {"hf_config": "config.json"}


def through(folder: Path, field: str, file: str) -> str:
    """A file, and the field of the point that names it."""
    return f"{folder / 'point.yaml'}, {field}: {folder / file}"


class TestFiles:
    def test_missing(self, tmp_path: Path) -> None:
        error = error_of(tmp_path / "absent.yaml")
        assert error.source == str(tmp_path / "absent.yaml")
        assert error.expected == "an existing file"

    def test_a_folder(self, tmp_path: Path) -> None:
        assert error_of(tmp_path).source == str(tmp_path)

    @pytest.mark.parametrize(
        ("text", "field", "expected"),
        [
            ("model: {name: x\nengine: [", "line", "valid YAML"),
            ("a: b: c", "line 1", "valid YAML"),
            ("", "file", "a mapping"),
            ("# nothing but a comment\n", "file", "a mapping"),
            ("- a\n- b\n", "file", "a mapping"),
            ("just text", "file", "a mapping"),
            ("!!python/object:os.system {}", "line 1", "valid YAML"),
        ],
    )
    def test_not_a_mapping(self, tmp_path: Path, text: str, field: str, expected: str) -> None:
        path = tmp_path / "point.yaml"
        path.write_text(text)
        error = error_of(path)
        assert error.source == str(path)
        assert error.field.startswith(field)
        assert expected in error.expected

    def test_not_text(self, tmp_path: Path) -> None:
        path = tmp_path / "point.yaml"
        path.write_bytes(b"\xff\xfe\x00model")
        assert error_of(path).source == str(path)

    def test_missing_workload(self, tmp_path: Path) -> None:
        error = error_of(written(tmp_path, workload={"jsonl": "requests.jsonl"}))
        assert error.source == through(tmp_path, "workload", "requests.jsonl")
        assert "an existing file" in error.expected

    def test_wrong_line_in_the_workload(self, tmp_path: Path) -> None:
        (tmp_path / "requests.jsonl").write_text(
            '{"input_toks": 3, "output_toks": 2, "arrival_time_ns": 0}\n'
            '{"input_toks": 3, "output_tokens": 2, "arrival_time_ns": 0}\n'
        )
        error = error_of(written(tmp_path, workload={"jsonl": "requests.jsonl"}))
        assert error.source == through(tmp_path, "workload", "requests.jsonl")
        assert error.field == "line 2: output_tokens"

    @pytest.mark.parametrize("section", ["bundle", "bundles"])
    def test_missing_bundle(self, tmp_path: Path, section: str) -> None:
        error = error_of(written(tmp_path, profile={section: "perf"}))
        assert error.source.startswith(through(tmp_path, "profile", "perf"))
        assert "a measured variant" in error.expected

    def test_bundle_of_another_architecture(self, tmp_path: Path) -> None:
        folder = write_variant(tmp_path, architecture="qwen3")
        error = error_of(written(tmp_path, profile={"bundle": str(folder)}))
        assert error.field in ("profile", "layer", "layers") or "qk_norm" in str(error)

    def test_relative_paths_start_at_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "points"
        folder.mkdir()
        (folder / "requests.jsonl").write_text(
            '{"input_toks": 3, "output_toks": 2, "arrival_time_ns": 0}\n'
        )
        variant = write_variant(tmp_path)
        (folder / "model.json").write_text(json.dumps(MODEL))
        path = written(
            folder,
            workload={"jsonl": "requests.jsonl"},
            profile={"bundle": "../" + str(variant.relative_to(tmp_path))},
            model={"hf_config": "model.json", "name": "test/model"},
        )
        monkeypatch.chdir(tmp_path)
        assert ready(path).model.name == "test/model"
        assert ready(Path("points/point.yaml")).model.name == "test/model"

    def test_bundles_are_found_by_card_model_and_variant(self, tmp_path: Path) -> None:
        write_variant(tmp_path)
        ready(written(tmp_path, profile={"bundles": "perf"}))
        error = error_of(written(tmp_path, profile={"bundles": "perf"}, card__name="OtherCard"))
        assert "OtherCard" in error.source

    def test_a_sweep(self, tmp_path: Path) -> None:
        path = tmp_path / "sweep.yaml"
        path.write_text("name: x\nbase: {model: {}}\naxes: {}\n")
        assert "`servesweep run` takes it" in str(error_of(path))


class TestModelFile:
    def test_missing(self, tmp_path: Path) -> None:
        for model, field in (("config.json", "model"), (FROM_FILE, "model.hf_config")):
            error = error_of(written(tmp_path, model=model))
            assert error.source == through(tmp_path, field, "config.json")

    def test_field_missing(self, tmp_path: Path) -> None:
        data = {**MODEL}
        del data["num_hidden_layers"]
        (tmp_path / "config.json").write_text(json.dumps(data))
        error = error_of(written(tmp_path, model=FROM_FILE))
        assert error.source == through(tmp_path, "model.hf_config", "config.json")
        assert error.field == "num_hidden_layers"

    def test_not_json(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{")
        error = error_of(written(tmp_path, model=FROM_FILE))
        assert error.source.startswith(through(tmp_path, "model.hf_config", "config.json"))

    def test_more_beside_it(self, tmp_path: Path) -> None:
        path = written(tmp_path, model={"hf_config": "config.json", "hidden_size": 5})
        error = error_of(path)
        assert (error.source, error.field, error.value) == (str(path), "model.hidden_size", 5)

    @pytest.mark.parametrize("value", [5, None, ["config.json"]])
    def test_no_path(self, tmp_path: Path, value: Any) -> None:
        error = error_of(written(tmp_path, model={"hf_config": value}))
        assert error.field == "model.hf_config"

    @pytest.mark.parametrize("value", [5, [], True])
    def test_no_model(self, tmp_path: Path, value: Any) -> None:
        assert error_of(written(tmp_path, model=value)).field == "model"


class TestRecordedRun:
    def test_missing(self, tmp_path: Path) -> None:
        error = error_of(written(tmp_path, arrivals="recorded", recorded_run="run"))
        assert error.source == through(tmp_path, "recorded_run", "run/meta.json")

    @pytest.mark.parametrize("value", [5, ["run"], True])
    def test_no_path(self, tmp_path: Path, value: Any) -> None:
        error = error_of(written(tmp_path, arrivals="recorded", recorded_run=value))
        assert error.field == "recorded_run"


def test_errors_come_before_simulating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("simulated all the same")

    monkeypatch.setattr("simulator.progress.advance", never)
    monkeypatch.setattr("simulator.simulation.build_engine", never)
    error_of(written(tmp_path, engine__block_size=0))
    error_of(written(tmp_path, workload={"jsonl": "absent.jsonl"}))


def test_a_file_that_was_edited_is_read_again(tmp_path: Path) -> None:
    line = '{"input_toks": 3, "output_toks": 2, "arrival_time_ns": 0}\n'
    path = written(tmp_path, workload={"jsonl": "requests.jsonl"})
    for count in (4, 2):
        (tmp_path / "requests.jsonl").write_text(line * count)
        assert len(prepare(load_point(path)).workload) == count


def test_a_number_beyond_all_bounds(tmp_path: Path) -> None:
    path = tmp_path / "point.yaml"
    path.write_text("engine: {block_size: 0x1" + "0" * 5000 + "}\n")
    error = error_of(path)
    assert (error.source, error.field) == (str(path), "line 1")
    assert "20001 bits" in str(error)
