"""The report as a file: complete, safe against what a sweep says, the same bytes for the same sweep."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dashboards import embed, report_data
from dashboards.embed import page, safe_json
from dashboards.report import SCRIPTS, write_report
from profiles.errors import InputError
from tests.dashboards.make import EVIL, EVILS, POOLS, make_sweep, read, with_failure
from tests.orchestrator.sweep_make import BLOCKS


class Page(HTMLParser):
    """Texts of elements, and every address that the page names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.opened: list[str] = []
        self.addresses: list[str] = []
        self.title = ""
        self.data = ""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        given = dict(attrs)
        self.addresses += [v for k, v in given.items() if k in ("src", "href") and v]
        self._inside = "data" if given.get("id") == "data" else tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data
        elif self._inside == "title":
            self.title += data
        elif self._inside == "script":
            self.scripts.append(data)


def written(tmp_path: Path, **fields: Any) -> tuple[Page, Any]:
    data = read(make_sweep(tmp_path, **fields))
    found = Page(write_report(data, tmp_path / "report.html").read_text(encoding="utf-8"))
    return found, json.loads(found.data)


def unpack(packed: dict[str, str]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(packed["base64"]), f"<{packed['kind']}")


def test_the_page_is_whole_and_asks_for_nothing_outside(tmp_path: Path) -> None:
    found, _ = written(tmp_path)
    assert found.title == "small - servesweep"
    assert found.addresses == ["data:,", "#points"] or found.addresses == ["#points", "data:,"]
    assert found.opened.count("script") == 3, "the data, plotly and the page's own"
    assert not {"img", "iframe", "b", "i"} & set(found.opened), "nothing of a name is markup"
    assert "default-src 'none'" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_data_are_complete(tmp_path: Path) -> None:
    session = make_sweep(tmp_path)
    with_failure(session, 7)
    sweep = read(session)
    data = report_data.report_data(sweep)
    assert data["points"]["count"] == 8
    assert [axis["name"] for axis in data["axes"]] == ["card", BLOCKS]
    assert data["axes"][0]["values"] == list(EVILS)
    assert unpack(data["axes"][1]["codes"]).tolist() == [0, 1, 2, 3] * 2
    assert unpack(data["points"]["blocks"]).tolist() == POOLS * 2
    assert unpack(data["points"]["equals"]).tolist() == [-1] * 4 + [0, 1, 2, -1]
    assert set(data["metrics"]) == set(sweep.metrics)
    for name, packed in data["metrics"].items():
        np.testing.assert_array_equal(unpack(packed), sweep.metrics[name])
    assert data["points"]["reason"] == {"7": EVIL} and data["failed"] == [7]
    (truth,) = data["truths"].values()
    assert truth["requests"]["id"][0] == f"{EVIL} 0"
    assert len(unpack(truth["cdf"]["ttft_ms"])) == 30


def test_request_by_request_a_point_is_beside_its_truth(tmp_path: Path) -> None:
    sweep = read(make_sweep(tmp_path))
    data = report_data.report_data(sweep)
    row = POOLS.index(24)
    (truth,) = data["truths"].values()
    ours, theirs = data["details"][str(row)]["requests"], truth["requests"]
    # The truth is this very point, its start the moment the engine queued a request.
    np.testing.assert_allclose(unpack(ours["tpot_ms"]), unpack(theirs["tpot_ms"]), atol=1e-3)
    assert (unpack(ours["ttft_ms"]) >= unpack(theirs["ttft_ms"]) - 1e-3).all()
    series = data["details"][str(row)]["series"]
    np.testing.assert_allclose(unpack(series["running"]), unpack(truth["series"]["running"]))


def test_the_same_sweep_is_the_same_bytes(tmp_path: Path) -> None:
    session = make_sweep(tmp_path)
    first = write_report(read(session), tmp_path / "a.html").read_bytes()
    assert write_report(read(session), tmp_path / "b.html").read_bytes() == first


def test_details_that_do_not_fit_are_left_out_best_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_data, "DETAIL_BYTES", 1)
    sweep = read(make_sweep(tmp_path, execution={"keep_requests": "all"}))
    data = report_data.report_data(sweep)
    assert list(data["details"]) == [str(sweep.ranked[0][0])]
    assert data["details_left_out"] == 3


def test_long_tables_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_data, "MAX_CURVE", 5)
    monkeypatch.setattr(report_data, "MAX_REQUESTS", 4)
    monkeypatch.setattr(report_data, "MAX_SECONDS", 2)
    sweep = read(make_sweep(tmp_path))
    data = report_data.report_data(sweep)
    (truth,) = data["truths"].values()
    assert truth["requests"]["id"] == [f"{EVIL} {r}" for r in (0, 9, 19, 29)]
    assert truth["requests"]["of"] == 30
    curve = unpack(truth["cdf"]["latency_ms"])
    (measured,) = (one.requests for one in sweep.truths.values())
    assert measured is not None
    assert len(curve) == 5 and curve[-1] == np.float32(measured.latency_ms.max())
    assert len(unpack(truth["series"]["t_s"])) <= 2 and truth["series"]["every"] > 1


def test_no_text_ends_the_data_or_the_page(tmp_path: Path) -> None:
    texts = [EVIL, "<!--", "]]>", "{{plotly}}", "\u2028", "\ud800 half", 'a "quote" \\']
    text = safe_json(texts)
    assert "<" not in text and ">" not in text and "\u2028" not in text
    assert json.loads(text)[:5] == texts[:5]
    whole = page("report.html", SCRIPTS, f"{EVIL} {{{{data}}}}", texts)
    found = Page(whole)
    assert found.title == f"{EVIL} {{{{data}}}}"
    assert json.loads(found.data)[3] == "{{plotly}}"


def test_without_plotly_it_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="the package plotly to be installed"):
        embed.plotly_script()
