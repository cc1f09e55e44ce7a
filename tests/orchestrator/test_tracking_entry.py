"""Names, text, values that are not finite, and the digest."""

from __future__ import annotations

import json
import math
import posixpath
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.tracking.address import shown
from orchestrator.tracking.entry import lacks_series_only, make_entry, satisfied
from orchestrator.tracking.names import clean_name, clean_text, unique_names
from orchestrator.tracking.spool import Spool, SpoolReader, read_point
from orchestrator.tracking.writer import artifact_folders
from tests.orchestrator.tracking_runs import make_point


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("err_pct/ttft_ms/p99", "err_pct/ttft_ms/p99"),
        ("kv cache: used-1.5", "kv cache: used-1.5"),
        ("p99@load", "p99_x40_load"),
        ("hit%", "hit_x25_"),
        ("axes[0]+1", "axes_x5b_0_x5d__x2b_1"),
        ("µs", "_xb5_s"),
        ("line\n", "line_xa_"),
        ("", "_x_"),
        ("/a//b/", "_x_/a/_x_/b/_x_"),
        ("../a/.", "_x2e__x2e_/a/_x2e_"),
    ],
)
def test_clean_name(name: str, cleaned: str) -> None:
    assert clean_name(name) == cleaned


@given(st.lists(st.text(max_size=300), max_size=20))
def test_any_name_is_taken_by_mlflow(names: list[str]) -> None:
    cleaned = unique_names(names)
    assert set(cleaned) == set(names) and len(set(cleaned.values())) == len(cleaned)
    for name in cleaned.values():
        assert re.fullmatch(r"[/\w.\- :]{1,250}", name, re.ASCII)
        assert posixpath.normpath(name) == name and not name.startswith(("/", ".."))


def test_clean_names_keep_theirs_whatever_else_there_is() -> None:
    names = ["p_x25_", "p%"]
    assert unique_names(names)["p_x25_"] == "p_x25_"
    assert unique_names(names)["p%"].startswith("p_x25__")
    assert unique_names(reversed(names)) == unique_names(names)


def test_clean_text() -> None:
    assert clean_text("a\0b\ud800", 99) == "a\\x00b\\ud800"
    cut = clean_text("x" * 100, 50)
    assert len(cut) == 49 and cut.startswith("x" * 37 + "... ")
    assert cut != clean_text("x" * 99, 50)


def test_what_is_not_finite_is_left_out_and_told() -> None:
    metrics = {"good": 1.0, "tpot@p99": math.inf, "worst": -math.inf, "none": math.nan}
    series = {"series/running": [(2, math.nan), (1, 1.0)], "series/empty": [(1, math.inf)]}
    entry = make_entry(make_point(1, metrics=metrics, series=series), "s", "point")
    assert entry.metrics == {"good": 1.0} and entry.series == {"series/running": [(1, 1.0)]}
    assert entry.tags["servesweep.not_finite"] == (
        "none=nan, tpot_x40_p99=inf, worst=-inf,"
        " series/empty: 1 of 1 seconds, series/running: 1 of 2 seconds"
    )


def test_series_are_in_order_and_each_second_once() -> None:
    series = {"series/running": [(3, 1.0), (1, 5.0), (3, 2.0)]}
    entry = make_entry(make_point(1, metrics={}, series=series), "s", "point")
    assert entry.rows(1000) == [
        ("series/running", 5.0, 2000, 1),
        ("series/running", 2.0, 4000, 3),
    ]


def test_own_tags_win_and_long_parameters_are_told() -> None:
    point = make_point(1, tags={"servesweep.role": "king"}, params={"long": "x" * 9999})
    entry = make_entry(point, "s", "point")
    assert entry.tags["servesweep.role"] == "point"
    assert entry.tags["servesweep.shortened"] == "long" and len(entry.params["long"]) < 1001


def test_digest_tells_content_not_times() -> None:
    entry, plain = (
        make_entry(point, "s", "point") for point in (make_point(1), make_point(1, series={}))
    )
    later = make_entry(make_point(1, started_ms=None), "s", "point")
    other = make_entry(make_point(1, metrics={"ttft_ms/p99": 1.0}), "s", "point")
    assert entry.complete == later.complete != other.complete
    assert satisfied(entry, entry.complete) and not satisfied(other, entry.complete)
    assert satisfied(plain, entry.complete) and not satisfied(entry, plain.complete)
    assert lacks_series_only(entry, plain.complete) and not lacks_series_only(plain, "")


def test_spool_gives_back_what_it_got_once_it_is_whole(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    reader = SpoolReader(tmp_path)
    assert reader.read() is None
    metrics = {"n": np.float64(1.5), "i": np.int64(3), "inf": math.inf}
    spool.append("point", point=make_point(1, name="\ud800", metrics=metrics))
    record = reader.read()
    assert record is not None and record["kind"] == "point"
    point = read_point(record["point"])
    assert point.metrics == {"n": 1.5, "i": 3, "inf": math.inf} and point.name == "\ud800"
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"kind": "fin')
        file.flush()
        assert reader.read() is None
        file.write('ish"}\n')
    assert reader.read() == {"kind": "finish"}
    spool.close()


def test_points_that_are_no_plain_data_are_refused_at_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(TypeError, match="object"):
        spool.append("point", point=make_point(1, params={"a": object()}))
    assert (tmp_path / "records.jsonl").read_bytes() == b""
    spool.close()


def test_files_of_one_name_go_into_folders() -> None:
    files = [Path("a/x.png"), Path("b/x.png"), Path("b/y.png"), Path("b/y.png")]
    assert artifact_folders(files) == [(files[0], "a"), (files[1], "b"), (files[2], None)]


def test_passwords_are_not_shown() -> None:
    assert shown("at http://a:b@c@host/x: no") == "at http://***@host/x: no"
    assert json.dumps(shown("sqlite:////tmp/a@b.db")) == '"sqlite:////tmp/a@b.db"'
