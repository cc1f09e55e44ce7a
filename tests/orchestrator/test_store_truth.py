"""A truth in a sweep's folder comes back as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orchestrator.compare import compare
from orchestrator.store_truth import read_truth, truth_key, truth_label, write_truth
from orchestrator.truth import Truth, TruthConfig, load_truth
from profiles.errors import InputError
from tests.orchestrator.sweep_make import TRUTH
from tests.orchestrator.truth_make import make_result, write_bench, write_recorded


def recorded(tmp_path: Path) -> Truth:
    folder = tmp_path / "card" / "model" / "vllm"
    folder.mkdir(parents=True)
    return load_truth(TruthConfig(recorded=write_recorded(folder)), tmp_path)


def bench(tmp_path: Path) -> Truth:
    return load_truth(TruthConfig(vllm_bench=write_bench(tmp_path / "bench.json")), tmp_path)


def percentiles(tmp_path: Path) -> Truth:
    return load_truth(TruthConfig.model_validate(TRUTH), tmp_path)


@pytest.mark.parametrize("make", [recorded, bench, percentiles])
def test_what_is_read_compares_as_what_was_written(tmp_path: Path, make: object) -> None:
    truth: Truth = make(tmp_path)  # type: ignore[operator]
    write_truth(tmp_path / "sweep", truth)
    again = read_truth(tmp_path / "sweep", truth_key(truth))
    assert again is not None
    assert compare(make_result(), again) == compare(make_result(), truth)
    assert (again.source, again.kind, again.start) == (truth.source, truth.kind, truth.start)
    assert again.series.keys() == truth.series.keys()
    for name, values in truth.series.items():
        np.testing.assert_array_equal(again.series[name], values)


def test_equal_truths_are_equal_bytes(tmp_path: Path) -> None:
    truth = recorded(tmp_path)
    files = ("truth.json", "requests.parquet", "series.parquet")
    contents = []
    for name in "ab":
        write_truth(tmp_path / name, truth)
        own = tmp_path / name / "truth" / truth_key(truth)
        assert sorted(path.name for path in own.iterdir()) == sorted(files)
        contents.append([(own / file).read_bytes() for file in files])
    assert contents[0] == contents[1]


def test_none_or_a_damaged_one_is_one_clear_error(tmp_path: Path) -> None:
    truth = recorded(tmp_path)
    with pytest.raises(
        InputError, match=r"nothing/truth\.json: file: got nothing, expected a file"
    ):
        read_truth(tmp_path, "nothing")
    write_truth(tmp_path, truth)
    path = tmp_path / "truth" / truth_key(truth) / "requests.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"requests\.parquet: file: .* a readable Parquet file"):
        read_truth(tmp_path, truth_key(truth))


def test_labels_are_short(tmp_path: Path) -> None:
    assert truth_label(recorded(tmp_path)) == "card/model"
    assert truth_label(bench(tmp_path)) == "bench.json"
