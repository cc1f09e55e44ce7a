"""servesweep profiles: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli import main
from tests.profiles.bundles import needs_package, write_variant
from tests.profiles.models import LLAMA_8B

pytestmark = needs_package


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "store"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "Llama-8B.json"
    path.write_text(json.dumps(LLAMA_8B.model_dump(mode="json", exclude={"name"})))
    return str(path)


def profiles(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["profiles", *arguments])
    assert result.exit_code == code, result.output
    return result


def test_list(tmp_path: Path) -> None:
    write_variant(tmp_path, tps=(1, 2))
    lines = profiles("list", "--bundles", str(tmp_path / "perf")).output.splitlines()
    assert any(re.match(r"h100_sxm +80 +3350 +989 +0\.24\.0", line) for line in lines)
    assert any(line.startswith("TestCard/test/model/bf16  TP 1, 2") for line in lines)


def test_show_and_draw(tmp_path: Path, model: str) -> None:
    picture = tmp_path / "curves.png"
    said = profiles("show", "h100_sxm", "--model", model, "--plot", str(picture)).output
    assert "h100_sxm Llama-8B bf16 TP 1" in said
    assert re.search(r"^o_proj +\d", said, re.M)
    assert re.search(r"^layernorm +[\d.]+a", said, re.M)
    assert re.search(r"^gate_up_proj +[\d.]+i", said, re.M)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_check(tmp_path: Path, model: str) -> None:
    said = profiles("check", "h100_sxm", "--model", model).output
    means = dict(re.findall(r"^(?:gemm|\w+_attention) +(\w+) +\d+ +([\d.]+)", said, re.M))
    assert set(means) == {"m", "n", "k", "isl", "batch_size", "step"}
    assert all(0 < float(mean) < 8 for mean in means.values())
    folder = write_variant(tmp_path)
    assert "complete and well-formed" in profiles("check", str(folder)).output
    (folder / "tp1/dense.csv").write_text("layer,tokens,time_us\nembedding,1,-2\n")
    refused = profiles("check", str(folder), code=2)
    assert "line 2, time_us: got -2.0, expected a finite time above 0" in refused.output


def test_import_and_compare(tmp_path: Path, model: str) -> None:
    out = tmp_path / "perf"
    arguments = ("import", "l40s", "--model", model, "--name", "meta-llama/Llama-3.1-8B")
    profiles(*arguments, "--tp", "2", "--out", str(out))
    folder = out / "l40s/meta-llama/Llama-3.1-8B/bf16"
    assert (folder / "tp2/attention.csv").read_text().startswith("prefill_chunk,kv_prefill,")
    assert "all_reduce,1," in (folder / "tp2/dense.csv").read_text()
    said = profiles("compare", "l40s", str(folder), "--tp", "2", "--model", model).output
    rows = re.findall(r"^(\w.*?) {2,}(\d+) +([\d.]+) +([\d.]+) +([\d.]+)$", said, re.M)
    assert {name for name, *_ in rows} >= {"all_reduce", "down_proj", "prefill with decodes"}
    assert all(numbers == ["1.00"] * 3 for _, _, *numbers in rows)
    assert "a folder that exists" in profiles(*arguments, "--out", str(out), code=2).output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "h100_sxm"), "profiles: --model: got nothing"),
        (("show", "h100"), "profiles: PROFILE: got 'h100', expected the folder of a variant, or"),
        (("show", "b60", "--version", "1"), "profiles: version: got '1', expected one of 0.20.0"),
        (("show", "h100_sxm", "--tp", "3"), "engine.tensor_parallel_size: got 3, expected a div"),
    ],
)
def test_wrong_input(arguments: tuple[str, ...], said: str, model: str) -> None:
    given = arguments if arguments[1:] == ("h100_sxm",) else (*arguments, "--model", model)
    assert said in profiles(*given, code=2).output
