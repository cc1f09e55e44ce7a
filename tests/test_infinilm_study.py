"""The admission study: its modelled profile, what it predicts, and what it refuses to compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import infinilm, infinilm_fit
from benchmarks.infinilm import ADMISSIONS, PUBLISHED, SWEEP, metrics, serving_point
from benchmarks.manifests import FOLDER
from benchmarks.roofline import DataSheet, Roofline
from profiles.errors import InputError, read_yaml
from profiles.llmservingsim import load_bundle
from simulator import simulate


@pytest.fixture(scope="module")
def summaries() -> dict[str, dict[str, Any]]:
    return {admission: simulate(serving_point(admission)).summary for admission in ADMISSIONS}


class TestProfile:
    def test_it_says_that_it_is_modelled(self) -> None:
        said = read_yaml(infinilm_fit.profile_folder() / "meta.yaml")
        assert said["modelled"] == "from the card's data sheet, not measured"
        assert said["data_sheet"]["bandwidth_bytes_per_s"] == 1008e9
        assert said["data_sheet"]["tensor_flops"] == pytest.approx(147.09e12, rel=1e-4)

    def test_the_files_are_what_the_constants_give(self, tmp_path: Path) -> None:
        committed = infinilm_fit.profile_folder()
        constants = read_yaml(committed / "meta.yaml")["constants"]
        infinilm_fit.write_profile(tmp_path / "bf16", constants)
        names = ["meta.yaml", "tp1/attention.csv", "tp1/dense.csv", "tp1/per_sequence.csv"]
        for name in names:
            assert (tmp_path / "bf16" / name).read_bytes() == (committed / name).read_bytes(), name
        overhead = read_yaml(SWEEP)["base"]["overhead"]
        assert overhead == {name: constants[name] for name in infinilm_fit.CONSTANTS[1:]}

    def test_layers_take_their_arithmetic_or_their_bytes(self) -> None:
        """o_proj is 2048 x 2048: 8.39 MB of weights, 8.39 MFLOP a token."""
        model = infinilm_fit.model()
        roofline = Roofline(model, DataSheet("card", flops=100e12, bandwidth=1000e9), 0.5)
        one, many = roofline.dense(1)["o_proj"], roofline.dense(1000)["o_proj"]
        assert one == pytest.approx((2048 * 2048 + 2 * 2048) * 2 / 1000e9 * 1e6)
        assert many == pytest.approx(2 * 1000 * 2048 * 2048 / 50e12 * 1e6)
        # 8 decodes of 500 tokens read 4 KV heads of 64, keys and values, of 2 bytes.
        assert roofline.attention(0, 0, 8, 500) == pytest.approx(8 * 500 * 1024 / 1000e9 * 1e6)
        assert roofline.attention(100, 0, 0, 0) == pytest.approx(4 * 2048 * 5000 / 50e12 * 1e6)

    def test_it_loads_as_a_measured_one_does(self) -> None:
        bundle = load_bundle(infinilm_fit.profile_folder())
        assert (bundle.card, bundle.model) == ("RTX4090D", "TinyLlama-1.1B-Chat-v1.0")
        weights = sum(
            int(bundle.dense[layer].ns[0])
            for layer in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
        )
        # One token reads a block's 44.0 million weights.
        assert weights == pytest.approx(44.04e6 * 2 / 1008e9 * 1e9, rel=0.01)


class TestPredictions:
    def test_the_legacy_row_is_fitted(self, summaries: dict[str, dict[str, Any]]) -> None:
        assert metrics(summaries["legacy"]) == pytest.approx(PUBLISHED["legacy"], rel=1e-4)

    @pytest.mark.parametrize("admission", ADMISSIONS[1:])
    def test_the_exact_rows_go_where_the_published_ones_do(
        self, summaries: dict[str, dict[str, Any]], admission: str
    ) -> None:
        legacy, exact = metrics(summaries["legacy"]), metrics(summaries[admission])
        p50, p95, throughput = (b / a for a, b in zip(legacy, exact, strict=True))
        assert 0.1 < p50 < 0.3  # published: 0.20
        assert 1.05 < p95 < 1.3  # published: 1.30
        assert 0.92 < throughput < 0.995  # published: 0.93
        # What the documents say.
        assert exact == pytest.approx((1.13, 9.59, 2680.0), rel=0.01)

    def test_the_second_wave_comes_after_the_last_first_token(self) -> None:
        result = simulate(serving_point("incremental"))
        rows = result.requests.to_pylist()
        first, second = rows[:256], rows[256:]
        assert {row["arrival_ns"] for row in first} == {0}
        assert {row["arrival_ns"] for row in second} == {max(r["first_token_ns"] for r in first)}
        assert min(r["last_token_ns"] for r in first) > second[0]["arrival_ns"]


class TestComparing:
    @staticmethod
    def command(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
    ) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["infinilm", *map(str, arguments)])
        code = infinilm.main()
        said = capsys.readouterr()
        return code, said.out, said.err

    @pytest.fixture
    def run(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> Callable[..., tuple[int, str, str]]:
        return lambda *arguments: self.command(monkeypatch, capsys, *arguments)

    def test_runs_side_by_side(
        self, run: Callable[..., tuple[int, str, str]], tmp_path: Path
    ) -> None:
        code, out, _ = run("--out", tmp_path)
        assert code == 0
        assert "legacy        7.68 s" in out and "published   1.54 s (-79.9 %)" in out
        code, again, _ = run("--compare", *(tmp_path / name for name in ADMISSIONS))
        assert code == 0
        assert "differ" not in again
        assert "published" not in again

    def test_other_manifests_are_refused(
        self, run: Callable[..., tuple[int, str, str]], tmp_path: Path
    ) -> None:
        mixed = FOLDER / "mixed.json"
        simulate(serving_point("legacy")).write(tmp_path / "fixed")
        simulate(serving_point("exact-scan", mixed)).write(tmp_path / "mixed")
        code, out, error = run("--compare", tmp_path / "fixed", tmp_path / "mixed")
        assert (code, out) == (2, "")
        assert error == (
            f"{tmp_path}/mixed: workload.manifest: got "
            "'55ffdc74a5d3f30648dcf9ce5169ed18366b1ef70e1283bcd1b80c367020098f', expected "
            "28db79c9668e8bd499de3d73aef5798f56416dee9f29aede99897dc5bd5fb19a as in "
            f"{tmp_path}/fixed: runs of different manifests are not comparable\n"
        )

    def test_what_has_no_manifest_is_refused(
        self, run: Callable[..., tuple[int, str, str]], tmp_path: Path
    ) -> None:
        from tests.simulator.point import make_point

        simulate(make_point()).write(tmp_path / "other")
        code, _, error = run("--compare", tmp_path / "other")
        assert code == 2
        assert "workload.manifest: got nothing, expected a run of a manifest" in error
        code, _, error = run("--compare", tmp_path / "nothing")
        assert code == 2
        assert "summary.json: file: got nothing, expected an existing file" in error

    def test_other_differences_are_named(self, summaries: dict[str, dict[str, Any]]) -> None:
        legacy = summaries["legacy"]
        other = {**summaries["exact-scan"], "profile": {"content_id": "another"}}
        assert infinilm.other_differences({"a": legacy, "b": other}) == ["profile"]
        with pytest.raises(InputError, match=r"c: workload\.manifest: got nothing"):
            infinilm.check_same_manifest({"a": legacy, "c": {"workload": {}}})
