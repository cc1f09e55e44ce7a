"""The report of one sweep, and of two against each other, as one HTML file each."""

from __future__ import annotations

from pathlib import Path

from dashboards.comparison import Comparison
from dashboards.comparison_data import comparison_data
from dashboards.embed import write_page
from dashboards.report_data import report_data
from dashboards.sweep_data import SweepData

REPORT = "report.html"
SHARED = ("decode.js", "state.js", "look.js")
SCRIPTS = (*SHARED, "filters.js", "table.js", "heatmap.js", "charts.js", "details.js", "main.js")


def write_report(data: SweepData, path: Path) -> Path:
    """Write the page. Raises InputError if the plotting library is not installed."""
    title = f"{data.name} - servesweep"
    return write_page(path, "report.html", SCRIPTS, title, report_data(data))


def write_comparison(comparison: Comparison, path: Path) -> Path:
    """Write the page of two sweeps or folders. Raises InputError as `write_report`."""
    data = comparison_data(comparison)
    scripts = (*SHARED, "comparison.js")
    return write_page(path, "comparison.html", scripts, f"{data['name']} - servesweep", data)
