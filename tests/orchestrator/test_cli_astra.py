"""`servesweep astra export` and `astra check`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from orchestrator.cli import main
from simulator.network.chakra import decoded
from tests.network.make import dimension
from tests.orchestrator.astra_fakes import BINARY, DIALECT, program
from tests.profiles.bundles import write_two_ranks, write_variant
from tests.simulator.point import point_data

ROOT = Path(__file__).resolve().parents[2]
NETWORK: dict[str, Any] = {
    "dimensions": [dimension(2), dimension(3, "Switch")],
    "local_mem_gbps": 1000.0,
    "remote_memory": {"bandwidth_gbps": 100.0, "latency_ns": 50},
}


def servesweep(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def point(tmp_path: Path) -> Path:
    bundle = write_variant(tmp_path, seed=5)
    path = tmp_path / "point.yaml"
    data = point_data(profile={"bundle": str(bundle)}, workload__generate__num_requests=6)
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "network.yaml"
    path.write_text(yaml.safe_dump(NETWORK))
    return path


def manifest(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "manifest.json").read_text())
    return found


def test_a_step_of_one_rank_takes_what_was_simulated(point: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = servesweep("astra", "export", point, "--step", "0", "--step", "9", "--out", out)
    assert result.exit_code == 0, result.output
    assert f"wrote 2 steps of 1 rank to {out}" in result.output
    steps = manifest(out)["steps"]
    assert [step["step"] for step in steps] == [0, 9]
    for step in steps:
        assert step["expected_ns"] == dict.fromkeys(
            ("upstream", "llmservingsim"), step["device_ns"]
        )
        fork = out / "llmservingsim" / step["folder"]
        _, *nodes = decoded((fork / "step.0.et").read_bytes())
        assert sum(node.duration_micros for node in nodes) == step["device_ns"]
        rows = [line.split() for line in (fork / "trace.txt").read_text().splitlines()[3:]]
        assert sum(int(row[1]) for row in rows) == step["device_ns"]
        assert len(rows) == len(nodes)
    assert sorted(path.name for path in (out / "upstream").iterdir()) == [
        "network.yml",
        "remote_memory.json",
        "step_000000",
        "step_000009",
        "system.json",
    ]


def test_a_whole_run_over_a_network(point: Path, network: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = servesweep("astra", "export", point, "--all", "--out", out, "--network", network)
    assert result.exit_code == 0, result.output
    found = manifest(out)
    assert found["ranks"] == 6
    assert len(found["steps"]) > 20
    for step in found["steps"]:
        for dialect in ("upstream", "llmservingsim"):
            files = sorted((out / dialect / step["folder"]).glob("step.*.et"))
            assert [file.name for file in files] == [f"step.{rank}.et" for rank in range(6)]
            assert len({file.read_bytes() for file in files}) == 1
        # Two blocks of two all-reduces; the host reads and writes in the fork's form alone.
        modelled = step["expected_ns"]
        assert step["device_ns"] + 4 * 500 < modelled["upstream"] < modelled["llmservingsim"]
    again = tmp_path / "again"
    servesweep("astra", "export", point, "--all", "--out", again, "--network", network)
    written = sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
    assert all((out / path).read_bytes() == (again / path).read_bytes() for path in written)


def test_an_export_takes_the_place_of_an_earlier_one(
    point: Path, network: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    export = ("astra", "export", point, "--out", out)
    assert servesweep(*export, "--step", "0", "--step", "3", "--network", network).exit_code == 0
    (out / "mine.txt").write_text("mine")
    before = sorted(path for path in out.rglob("*") if path.is_file())
    assert servesweep(*export, "--step", "100000").exit_code == 2
    assert sorted(path for path in out.rglob("*") if path.is_file()) == before
    assert servesweep(*export, "--step", "1", "--dialect", "upstream").exit_code == 0
    assert [path.name for path in out.rglob("step*.et")] == ["step.0.et"]
    assert [step["step"] for step in manifest(out)["steps"]] == [1]
    assert (out / "mine.txt").read_text() == "mine"
    assert not list(out.glob(".*"))


def test_what_is_no_earlier_export_is_left_alone(point: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export = ("astra", "export", point, "--out", out)
    assert servesweep(*export, "--step", "0").exit_code == 0
    (out / "upstream/step_000002").write_text("mine")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    result = servesweep(*export, "--step", "1")
    assert result.exit_code == 2
    assert "step_000002: file: got 'no folder', expected a folder of an earlier" in result.output
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_only_the_dialect_that_is_asked(point: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--step", "1", "--dialect", "upstream", "--out", out)
    assert servesweep("astra", "export", point, *arguments).exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "upstream"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "command line: --step: got None, expected --step N, or --all"),
        (("--all", "--step", "1"), "got '--all and --step'"),
        (("--step", "100000"), "--step: got 100000, expected a step of the run, 0 to"),
        (("--step", "-1"), "--step: got -1"),
        (("--step", "0", "--step", "100000"), "--step: got 100000"),
    ],
)
def test_steps_that_cannot_be_written(
    point: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    result = servesweep("astra", "export", point, *arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert says in result.output
    assert len(result.output.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_wrong_network_is_told_before_anything_runs(point: Path, tmp_path: Path) -> None:
    path = tmp_path / "network.yaml"
    path.write_text(yaml.safe_dump({**NETWORK, "dimensions": [dimension(3)]}))
    arguments = ("--step", "0", "--out", tmp_path / "out", "--network", path)
    result = servesweep("astra", "export", point, *arguments)
    assert result.exit_code == 2
    said = f"{path}: dimensions[0].ranks: got 3, expected a divisor of the model's num_att"
    assert said in result.output
    path.write_text(yaml.safe_dump({**NETWORK, "links": 3}))
    result = servesweep("astra", "export", point, *arguments)
    assert result.output.startswith(f"servesweep: {path}: links: got 3, expected no such field")


def test_ranks_are_those_of_the_point(tmp_path: Path) -> None:
    path, links, out = (tmp_path / name for name in ("point.yaml", "network.yaml", "out"))
    bundle = write_two_ranks(tmp_path)
    data = point_data(profile={"bundle": str(bundle)}, engine__tensor_parallel_size=2)
    path.write_text(yaml.safe_dump(data))
    links.write_text(yaml.safe_dump({**NETWORK, "dimensions": [dimension(4)]}))
    arguments = ("astra", "export", path, "--step", "0", "--network", links, "--out", out)
    result = servesweep(*arguments)
    assert result.exit_code == 2
    assert "dimensions[0].ranks: got 4, expected engine.tensor_parallel_size (2)" in result.output
    links.write_text(yaml.safe_dump({**NETWORK, "dimensions": [dimension(2)]}))
    assert servesweep(*arguments).exit_code == 0
    text = (out / "llmservingsim/step_000000/trace.txt").read_text()
    assert text.count("ALLREDUCE") == 1 + 2 * 2
    assert "all_reduce" not in text


def stages_and_replicas(tmp_path: Path, backend: str = "allgather_reducescatter") -> Path:
    """Two replicas of two stages that share four experts and run the same batches."""
    bundle = write_variant(tmp_path, seed=5, architecture="mixtral")
    (bundle / "tp1/moe.csv").write_text("tokens,activated_experts,time_us\n1,2,3.5\n64,4,9.5\n")
    data = point_data(
        profile={"bundle": str(bundle)},
        engine__pipeline_parallel_size=2,
        engine__enable_expert_parallel=True,
        engine__all2all_backend=backend,
        workload={
            "generate": {
                "num_requests": 6,
                "arrivals": {"process": "closed_loop", "concurrency": 6},
                "prompt_tokens": {"fixed": 40},
                "output_tokens": {"fixed": 4},
            }
        },
        links={
            "local_mem_gbps": 1000.0,
            "tensor": {"bandwidth_gibps": 16.0, "latency_ns": 500.0},
            "pipeline": {"bandwidth_gibps": 8.0, "latency_ns": 700.0},
            "data": {"bandwidth_gibps": 4.0, "latency_ns": 900.0},
        },
        cluster={"instances": [{"count": 2, "data_parallel_group": "A"}]},
    )
    data["model"] |= {"model_type": "mixtral", "num_experts": 4, "num_experts_per_tok": 2}
    path = tmp_path / "point.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def test_stages_and_replicas_take_what_was_simulated(tmp_path: Path) -> None:
    path, out = stages_and_replicas(tmp_path), tmp_path / "out"
    result = servesweep("astra", "export", path, "--all", "--out", out)
    assert result.exit_code == 0, result.output
    found = manifest(out)
    assert (found["ranks"], found["dimensions"]) == (4, {"tensor": None, "pipeline": 0, "data": 1})
    # The first step waits for none before it.
    first = found["steps"][0]
    assert first["expected_ns"] == dict.fromkeys(("upstream", "llmservingsim"), first["device_ns"])
    folder = out / "upstream" / first["folder"]
    for rank in range(4):
        _, *nodes = decoded((folder / f"step.{rank}.et").read_bytes())
        own = [node.name for node in nodes]
        assert any("recv" in name for name in own) == (rank in (1, 3))
        assert any("send" in name for name in own) == (rank in (0, 2))
        assert sum("all_gather" in name for name in own) == 1
    texts = sorted(file.name for file in (out / "llmservingsim" / first["folder"]).glob("*.txt"))
    assert texts == ["trace.0.txt", "trace.1.txt"]


def test_tokens_sent_to_experts_take_what_was_simulated(tmp_path: Path) -> None:
    path, out = stages_and_replicas(tmp_path, "deepep_low_latency"), tmp_path / "out"
    assert servesweep("astra", "export", path, "--step", "0", "--out", out).exit_code == 0
    (step,) = manifest(out)["steps"]
    assert step["expected_ns"]["upstream"] == step["device_ns"]
    text = (out / "llmservingsim/step_000000/trace.0.txt").read_text()
    assert text.count("ALLTOALL") == 4
    assert "ALLGATHER" not in text


def test_instances_without_steps_in_common(tmp_path: Path) -> None:
    path = stages_and_replicas(tmp_path)
    data = yaml.safe_load(path.read_text())
    data["engine"]["enable_expert_parallel"] = False
    data["cluster"] = {"instances": [{"count": 2}]}
    path.write_text(yaml.safe_dump(data))
    result = servesweep("astra", "export", path, "--step", "0", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "cluster.instances: got 2, expected one, or replicas of one data_paral" in result.output
    assert not (tmp_path / "out").exists()


def answers(tmp_path: Path, *cycles: int) -> Path:
    """A program that says one of these a run, in turn."""
    return program(
        tmp_path,
        f"answers = {list(cycles)}\n"
        f"path = {str(tmp_path / 'asked')!r}\n"
        "asked = os.path.getsize(path) if os.path.exists(path) else 0\n"
        "open(path, 'a').write('x')\n"
        "say(f'sys[0] finished, {answers[asked]} cycles, exposed')\n",
    )


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRA_SIM_DIALECT", raising=False)  # the programs here answer as upstream's
    monkeypatch.setattr("orchestrator.astra.one_shot.cache_folder", lambda: tmp_path / "cache")


@pytest.mark.usefixtures("no_cache")
def test_check_prints_both_and_their_difference(point: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    servesweep("astra", "export", point, "--step", "0", "--step", "9", "--out", out)
    first, second = (step["device_ns"] for step in manifest(out)["steps"])
    same = answers(tmp_path, first, second)
    arguments = ("astra", "check", point, "--step", "0", "--step", "9", "--binary")
    result = servesweep(*arguments, same)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[1].split() == ["0", *[str(first)] * 3, "+0", "+0"]
    assert "2 steps are equal; ranks: 1" in result.output
    (tmp_path / "asked").unlink()
    result = servesweep(*arguments, answers(tmp_path, first, second - 3))
    assert result.exit_code == 1
    assert result.output.splitlines()[2].split()[3:] == [str(second - 3), "-3", "-3"]
    assert "1 of 2 steps differ" in result.output


@pytest.mark.usefixtures("no_cache")
def test_check_tells_a_crash_in_one_line(point: Path, tmp_path: Path) -> None:
    arguments = ("astra", "check", point, "--step", "0", "--binary")
    result = servesweep(*arguments, program(tmp_path, "say('oh no'); sys.exit(4)"))
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == (
        "servesweep: fake_astra ended with status 4 before rank 0 did. It printed: oh no"
    )


def test_check_needs_a_program(point: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRA_SIM_BIN", raising=False)
    result = servesweep("astra", "check", point, "--step", "0")
    assert result.exit_code == 2
    assert "environment: ASTRA_SIM_BIN: got nothing" in result.output


@pytest.mark.skipif(BINARY is None, reason="needs ASTRA_SIM_BIN")
def test_check_with_the_real_program(point: Path, network: Path) -> None:
    steps = ("--step", "0", "--step", "5", "--step", "20")
    for ranks, links in ((1, ()), (6, ("--network", network))):
        result = servesweep("astra", "check", point, *steps, "--dialect", DIALECT, *links)
        assert result.exit_code == 0, result.output
        assert f"3 steps are equal; ranks: {ranks}" in result.output


@pytest.mark.skipif(BINARY is None, reason="needs ASTRA_SIM_BIN")
@pytest.mark.parametrize("backend", ["allgather_reducescatter", "deepep_low_latency"])
def test_check_of_stages_and_replicas_with_the_real_program(tmp_path: Path, backend: str) -> None:
    path = stages_and_replicas(tmp_path, backend)
    result = servesweep("astra", "check", path, "--step", "0", "--dialect", DIALECT)
    assert result.exit_code == 0, result.output
    assert "1 steps are equal; ranks: 4" in result.output


def test_commands_import_what_they_need_when_they_run() -> None:
    code = "import sys, orchestrator.cli; print([m for m in sys.modules if m.split('.')[0] in "
    heavy = "('numpy', 'numba', 'google', 'pydantic', 'pyarrow')])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code + heavy]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"
