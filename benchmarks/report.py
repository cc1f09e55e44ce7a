"""How large the report of a thousand points is, and how quickly a browser answers.

    python -m benchmarks.report [--points 1000] [--keep best|all] [--reference FOLDER]

A sweep of the RTX 4090 replay over four axes, its report, and headless Chromium (packages `chromium` and
playwright). The last line is JSON: report_mib, write_s, ready_ms (from opening the file to a page that
answers), filter_ms and sort_ms (medians of the script's time, with the charts in view redrawn at once;
parallel coordinates follow when the reader pauses: parallel_ms).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.cases import REFERENCE
from benchmarks.sweep import Watch, sweep_file

TIMES = """async ([code, count]) => {
  const act = new Function(code);
  const times = [];
  for (let i = 0; i < count; i += 1) {
    const start = performance.now();
    act();
    times.push(performance.now() - start);
    await new Promise((done) => setTimeout(done, 100));
  }
  return times.sort((a, b) => a - b)[Math.floor(count / 2)];
}"""


def wide_sweep(points: int, keep: str, reference: Path) -> dict[str, Any]:
    """As `sweep_file`, over four axes, so that every chart has something to show."""
    sweep = sweep_file(points, reference)
    sweep["axes"] = {
        "engine.gpu_memory_utilization": {"linspace": [0.80, 0.95, max(2, points // 8)]},
        "engine.scheduler_reserve_full_isl": [True, False],
        "engine.max_num_batched_tokens": [2048, 1024],
        "engine.async_scheduling": [True, False],
    }
    return sweep | {"execution": {"keep_requests": keep}}


def in_browser(page_file: Path) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(300_000)
        page.goto(page_file.absolute().as_uri())
        ready = page.evaluate("performance.getEntriesByName('servesweep-ready')[0].startTime")
        page.evaluate("for (const id of charts.keys()) inView.add(id); drawDue(true)")
        found = {"ready_ms": ready}
        for name, code, count in (
            ("filter_ms", "document.querySelector('.chips button').click()", 9),
            ("sort_ms", "document.querySelector('thead button[data-sort=blocks]').click()", 9),
            ("parallel_ms", "drawParallel(byId('parallel-chart'))", 3),
        ):
            found[name] = page.evaluate(TIMES, [code, count])
        browser.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--keep", choices=("best", "all"), default="best")
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    arguments = parser.parse_args()
    from dashboards.report import write_report
    from dashboards.sweep_data import read_sweep
    from orchestrator.session import Session

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "sweep.yaml"
        sweep = wide_sweep(arguments.points, arguments.keep, arguments.reference)
        path.write_text(yaml.safe_dump(sweep))
        session = Session.open(path, Path(scratch) / "out")
        session.run(Watch(), address=None, serial=True, track=False)
        start = time.perf_counter()
        page = write_report(read_sweep(session.store.folder), Path(scratch) / "report.html")
        found: dict[str, Any] = {
            "points": len(session.plan.points),
            "report_mib": round(page.stat().st_size / 2**20, 2),
            "write_s": round(time.perf_counter() - start, 2),
        }
        found |= {name: round(value) for name, value in in_browser(page).items()}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
