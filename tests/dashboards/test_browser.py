"""The report, the comparison and the trace in a real browser, opened as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dashboards.comparison import compare_folders
from dashboards.report import write_comparison, write_report
from dashboards.trace import Window, simulate_trace
from dashboards.trace_page import page_data, write_trace_page
from simulator import point_from_mapping
from tests.dashboards.browser import address_of, all_drawn, needs_browser, opened
from tests.dashboards.make import CARD, EVIL, EVILS, POOLS, make_sweep, read, with_failure
from tests.orchestrator.sweep_make import BLOCKS, TRUTH, base, run_sweep, write_sweep

pytestmark = needs_browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    session = make_sweep(folder)
    with_failure(session, 7)
    return write_report(read(session), folder / "report.html")


def rows(page: Any) -> list[str]:
    """Names of the points in the table, in their order."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('#table tr.row')].map((r) => DATA.points.name[r.dataset.row])"
    )
    return found


def blocks(page: Any) -> list[int]:
    found: list[int] = page.evaluate(
        "[...document.querySelectorAll('#table tr.row')].map((r) => BLOCKS[r.dataset.row])"
    )
    return found


def hash_of(page: Any) -> str:
    return str(page.evaluate("location.hash"))


def test_it_opens_draws_everything_and_hostile_names_are_text(report: Path) -> None:
    with opened(address_of(report)) as page:
        all_drawn(page)
        assert page.locator("#verdict").inner_text().startswith("Of 8 points the nearest")
        assert page.evaluate("window.hacked") is None
        assert EVIL in page.locator("#failure-table").inner_text()
        assert page.locator("#table tr.truth").inner_text().startswith("truth: card/model")
        texts = page.locator("fieldset .chips button").all_inner_texts()
        assert EVILS[0] in texts
        for chart in ("heat", "curve", "cdf", "time", "errors", "parallel", "share"):
            assert page.locator(f"#{chart}-chart .main-svg").count() > 0, chart
        legends = page.locator(".legendtext").all_text_contents()
        assert any(EVIL in legend for legend in legends), "shown as it is, not as markup"
        assert page.locator("main b, main i, main img").count() == 0


def test_sorting_filtering_choosing_and_the_address(report: Path) -> None:
    with opened(address_of(report)) as page:
        assert blocks(page)[0] == 40
        page.locator("thead button[data-sort='blocks']").click()
        assert blocks(page) == [b for b in POOLS for _ in EVILS]
        page.locator("thead button[data-sort='blocks']").click()
        assert blocks(page) == [b for b in reversed(POOLS) for _ in EVILS]
        page.locator(f"[data-axis='{BLOCKS}'] button", has_text="16").click()
        page.locator(f"[data-axis='{BLOCKS}'] button", has_text="24").click()
        assert blocks(page) == [24, 24, 16, 16]
        assert page.locator("#shown").inner_text() == "4 of 8 points"
        page.locator("#table tr.row").nth(3).click()
        page.locator("#curve-controls select").nth(1).select_option("tpot_ms/mean")
        chosen = page.evaluate("state.chosen")
        address = page.evaluate("location.href")
    with opened(address) as page:
        assert blocks(page) == [24, 24, 16, 16]
        assert page.evaluate("state.chosen") == chosen
        assert page.evaluate("state.curveY") == "tpot_ms/mean"
        assert page.locator("#table tr.chosen").count() == page.evaluate(
            "state.chosen.filter((row) => visible.includes(row)).length"
        )
        page.locator("#find").fill("no such point")
        assert rows(page) == []
        page.locator("#reset").click()
        assert len(rows(page)) == 8 and hash_of(page) == ""


def test_an_address_somebody_damaged_still_opens(report: Path) -> None:
    broken = "sort=%7Bbroken&chosen=[0,99,%22x%22]&heatX=%22nothing%22&only=7&rows=25"
    with opened(address_of(report, broken)) as page:
        all_drawn(page)
        assert page.evaluate("state.chosen") == [0]
        assert len(rows(page)) == 8
        page.evaluate("location.hash = 'status=%22error%22'")
        page.wait_for_function("visible.length === 1")
        assert page.locator("#table tr.row td.bad").inner_text() == "error"


INHERITED = ("constructor", "toString", "__proto__", "hasOwnProperty")


@pytest.mark.parametrize("name", INHERITED)
def test_an_address_with_names_that_every_object_has(report: Path, name: str) -> None:
    texts = (
        "heatValue",
        "heatX",
        "heatY",
        "curveX",
        "curveY",
        "curveBy",
        "parallel",
        "errors",
        "sort",
    )
    parts = [f"{key}=%22{name}%22" for key in texts]
    objects = f"{{%22{name}%22:[0],%22card%22:{{%22length%22:1}}}}"
    parts += [f"{key}={objects}" for key in ("only", "range", "held")]
    parts += [f"columns=[%22{name}%22]", "rows=-3", "direction=7", "most=%22x%22", "chosen=[0,0]"]
    with opened(address_of(report, "&".join(parts))) as page:
        all_drawn(page)
        assert len(rows(page)) == 8 and page.evaluate("state.chosen") == [0]
        assert name not in page.locator("#table thead").inner_text()
        assert page.evaluate("state.heatValue") == "err_pct/mean_abs"


def test_a_sweep_of_failures_alone(tmp_path: Path) -> None:
    axes = {BLOCKS: [10, 20], "engine.max_num_seqs": [4, 8]}
    session, _ = run_sweep(write_sweep(tmp_path, axes=axes, truth=TRUTH), tmp_path / "out")
    for row in range(4):
        with_failure(session, row)
    path = write_report(read(session), tmp_path / "report.html")
    with opened(address_of(path)) as page:
        all_drawn(page)
        for chart in ("curve", "parallel"):
            said = page.locator(f"#{chart}-chart").inner_text()
            assert said == "No point that is shown has this metric."
        assert page.locator("#failure-table tbody tr").count() == 4


def test_a_chart_that_fails_does_not_stop_the_others(report: Path) -> None:
    with opened(address_of(report), strict=False) as page:
        page.evaluate(
            "charts.get('heat-chart').draw = () => { throw new Error('no luck'); }; redraw()"
        )
        all_drawn(page)
        assert page.locator("#heat-chart").inner_text() == "This chart cannot be drawn."
        assert page.locator("#share-chart .main-svg").count() > 0


@pytest.mark.parametrize("width", [390, 1300])
def test_long_names_do_not_make_it_wider(tmp_path: Path, width: int) -> None:
    names = ["W" * 3000, "Y" * 3000]
    cards = {name: {"card": CARD | {"name": name}} for name in names}
    session = make_sweep(tmp_path, cards=cards, axes={"card": names, BLOCKS: [10, 20]})
    with_failure(session, 3, reason=names[0])
    data = read(session)
    noted = replace(data, name=names[1], texts={**data.texts, "notes": [names[0]] * len(data)})
    pages = [
        write_report(noted, tmp_path / "report.html"),
        write_comparison(
            compare_folders(session.store.folder, session.store.folder), tmp_path / "two.html"
        ),
    ]
    for path in pages:
        with opened(address_of(path), viewport={"width": width, "height": 900}) as page:
            all_drawn(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_keyboard_reaches_everything(report: Path) -> None:
    with opened(address_of(report)) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "points"
        button = page.locator("thead button[data-sort='err_pct/mean_abs']")
        button.focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        assert page.evaluate("[state.sort, state.direction]") == ["err_pct/mean_abs", -1]
        assert page.evaluate("document.activeElement.dataset.sort") == "err_pct/mean_abs"
        page.locator("#table tr.row input").first.focus()
        before = page.evaluate("state.chosen.length")
        page.keyboard.press("Space")
        assert abs(page.evaluate("state.chosen.length") - before) == 1
        all_drawn(page)
        page.locator("#heat-chart").focus()
        for key in ("ArrowRight", "ArrowRight", "ArrowUp", "Enter"):
            page.keyboard.press(key)
        row = page.evaluate("grid.rows[1][1]")
        assert page.evaluate("state.chosen").count(row) == 1
        assert page.locator("#heat-said").inner_text().endswith("chosen")


def test_dark_and_light(report: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with opened(address_of(report), color_scheme="dark") as page:
        assert page.evaluate(background) == "rgb(20, 23, 26)"
        all_drawn(page)
        page.locator("#theme").click()
        assert page.evaluate(background) == "rgb(255, 255, 255)"
        assert "theme=%22light%22" in hash_of(page)
    with opened(address_of(report)) as page:
        assert page.evaluate(background) == "rgb(255, 255, 255)"


def test_it_prints_in_light_with_every_chart(report: Path) -> None:
    with opened(address_of(report), color_scheme="dark") as page:
        pdf = page.pdf(prefer_css_page_size=True)
        assert pdf[:5] == b"%PDF-" and len(pdf) > 50_000
        assert page.evaluate("[...charts.keys()].every((id) => byId(id).dataset.drawn)")


def test_it_works_inside_a_frame_that_allows_scripts_alone(report: Path, tmp_path: Path) -> None:
    """As MLflow shows artifacts: without an address or storage of its own."""
    frame = tmp_path / "frame.html"
    frame.write_text(f'<iframe sandbox="allow-scripts" src="{report.as_uri()}"></iframe>')
    with opened(address_of(frame)) as page:
        inside = page.frames[1]
        inside.locator("thead button[data-sort='blocks']").click()
        assert inside.evaluate("state.sort") == "blocks"


def test_two_sweeps_against_each_other(tmp_path: Path) -> None:
    a, b = make_sweep(tmp_path / "a"), make_sweep(tmp_path / "b")
    with_failure(b, 0)
    path = write_comparison(
        compare_folders(a.store.folder, b.store.folder), tmp_path / "comparison.html"
    )
    with opened(address_of(path)) as page:
        all_drawn(page)
        assert "7 are the same, 1 fail now" in page.locator("#verdict").inner_text()
        assert page.locator("#table tbody tr").count() == 8
        page.locator("#against-controls select").nth(1).select_option("fails now")
        assert page.locator("#table tbody tr").count() == 1
        assert EVIL in page.locator("#table tbody tr").inner_text()
        assert page.evaluate("window.hacked") is None
        address = page.evaluate("location.href")
    with opened(address) as page:
        assert page.locator("#table tbody tr").count() == 1


def test_two_sweeps_of_different_measures(tmp_path: Path) -> None:
    folders = []
    for name, fields in (("a", {"truth": TRUTH}), ("b", {})):
        path = write_sweep(
            tmp_path / name, axes={BLOCKS: [10 * len(name), 20 + len(fields)]}, **fields
        )
        folders.append(run_sweep(path, tmp_path / name / "out")[0].store.folder)
    path = write_comparison(compare_folders(*folders), tmp_path / "comparison.html")
    with opened(
        address_of(path, "metric=%22constructor%22&direction=7&sort=%22toString%22")
    ) as page:
        all_drawn(page)
        assert page.evaluate("state.metric") == "latency_ms/mean"
        heads = page.locator("#only-table th").all_inner_texts()
        assert heads[3:] == ["mean absolute difference (%)", "mean latency (ms)"]
        cells = page.locator("#only-table tbody tr").first.locator("td").all_inner_texts()
        assert cells[0] == "A" and float(cells[3]) > 0 and cells[4] == ""
        assert "do not compare" in page.locator("#verdict").inner_text()


def test_a_trace_step_by_step(tmp_path: Path) -> None:
    engine = {"num_gpu_blocks_override": 12, "max_num_batched_tokens": 64}
    point = point_from_mapping(base(engine=engine), tmp_path, "test")
    trace = simulate_trace(point, "test")
    path = write_trace_page(page_data(trace, Window(), "test"), tmp_path / "trace.html")
    step = int(trace.preempted_step[0])
    with opened(address_of(path)) as page:
        all_drawn(page)
        page.get_by_text("Next preemption").click()
        assert page.locator("#step-number").input_value() == str(step)
        said = page.locator("#step-said").inner_text()
        victim = trace.request_ids[int(trace.preempted_request[0])]
        assert said.startswith(f"Step {step} at") and f"preempted: {victim}" in said
        assert page.locator("#step-table tbody tr").count() == int((trace.entry_step == step).sum())
        page.locator("#step-number").focus()
        page.keyboard.press("ArrowUp")
        assert page.evaluate("STEP[state.step]") == step + 1
        assert hash_of(page) == f"#step={step + 1}"
        assert page.locator("#wait-table tbody tr").count() > 0
        for typed, shown in (("2.5", 2), ("-7", 0), ("1e300", len(trace.steps["step"]) - 1)):
            page.locator("#step-number").fill(typed)
            assert page.evaluate("STEP[state.step]") == shown
            assert page.locator("#step-said").inner_text().startswith(f"Step {shown} at")


def test_a_thousand_points_are_a_small_file_that_answers(tmp_path: Path) -> None:
    axes = {
        "engine.num_gpu_blocks_override": [10 + i for i in range(50)],
        "engine.max_num_seqs": [2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
        "engine.scheduler_reserve_full_isl": [True, False],
    }
    sweep = write_sweep(tmp_path, axes=axes, execution={"keep_requests": "all"}, truth=TRUTH)
    session, _ = run_sweep(sweep, tmp_path / "out")
    path = write_report(read(session), tmp_path / "report.html")
    assert path.stat().st_size < 15_000_000
    with opened(address_of(path)) as page:
        all_drawn(page)
        assert page.locator("#shown").inner_text() == "1000 of 1000 points"
        page.locator("[data-axis='engine.max_num_seqs'] button", has_text="10").click()
        assert page.locator("#shown").inner_text() == "100 of 1000 points"
        page.locator("#table-controls select").first.select_option("all rows")
        assert len(rows(page)) == 100
