"""Views of sweeps for MLflow's pages, as its own "saved views" hold them.

A view is a tag of the experiment: a name, and the state of the page (which runs, columns and charts) as
deflated JSON. MLflow 3.17 lists such views above its runs and opens one by its key in the address; older
pages open it too but list none. The state's fields are those of MLflow's page, which are not documented:
a page that does not know one leaves it out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from orchestrator.ranking import LATENCY, MEAN_ABS

VIEW_TAG = "mlflow.sharedViewState."
MAX_TAG = 5000  # characters MLflow takes
BEST = 5
SERIES = ("running", "waiting", "kv_cache_usage", "prompt_throughput", "generation_throughput")
BARS = (
    *(MEAN_ABS, "ttft_ms/mean", "ttft_ms/p99", "tpot_ms/mean", "latency_ms/mean"),
    *("throughput/output_tokens_per_s", "kv/blocks", "kv/preemptions"),
)
AS_IT_WAS = {"xAxisKey": "step", "lineSmoothness": 0, "useGlobalLineSmoothing": False}
COLUMNS = (*BARS, "prefix_cache/hit_rate")


@dataclass(frozen=True)
class Run:
    """A run as MLflow tells it."""

    run_id: str
    name: str
    start_ms: int
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepRuns:
    """A sweep in MLflow: its own run, its truths, its points (best first), and how many there are."""

    experiment_id: str
    sweep: Run
    truths: Sequence[Run]
    points: Sequence[Run]

    @property
    def sweep_id(self) -> str:
        return self.sweep.tags.get("servesweep.sweep_id", "")

    @property
    def measure(self) -> str:
        """The metric that ranks its points."""
        return MEAN_ABS if any(MEAN_ABS in point.metrics for point in self.points) else LATENCY

    @property
    def shown(self) -> list[Run]:
        """The truth and the best points; of those with series, where some have them.

        Series are kept of points with different results, so that they are not all the same line.
        """
        kept = [run for run in self.points if any(f"series/{s}" in run.metrics for s in SERIES)]
        return [*self.truths, *(kept or self.points)[:BEST]]

    @property
    def axes(self) -> list[str]:
        """The parameters that the sweep varies, as its run says."""
        return [axis for axis in self.sweep.params.get("axes", "").split(", ") if axis]


@dataclass(frozen=True)
class View:
    """`key` names it in an address; `value` is the tag."""

    key: str
    name: str
    value: str
    experiment_id: str

    @property
    def tag(self) -> str:
        return f"{VIEW_TAG}{self.key}"

    @property
    def page(self) -> str:
        """Where MLflow shows it, from its address on."""
        page = f"/#/experiments/{self.experiment_id}/runs?compareRunsMode=CHART"
        return f"{page}&viewStateShareKey={self.key}"


def views(runs: SweepRuns) -> list[View]:
    """The truth and the best points over time; all points along their axes."""
    name, measure = runs.sweep.name, runs.measure
    some = ", ".join(f"'{run.run_id}'" for run in runs.shown)
    has_series = [s for s in SERIES if any(f"series/{s}" in run.metrics for run in runs.shown)]
    over_time = _Charts("over time")
    for series in has_series:
        over_time.add("LINE", f"series/{series}", runsCountToCompare=len(runs.shown), **AS_IT_WAS)
    numbers = _Charts("numbers")
    for metric in BARS:
        if any(metric in run.metrics for run in runs.shown):
            numbers.add("BAR", metric, runsCountToCompare=len(runs.shown))
    along = _Charts("along the axes")
    axes = runs.axes
    varied = [axis for axis in axes if len({p.params.get(axis) for p in runs.points}) > 1]
    along.add("PARALLEL", "", selectedParams=varied, selectedMetrics=[measure], showAllRuns=True)
    x = "kv/blocks"
    for metric in (measure, "ttft_ms/mean", "tpot_ms/mean"):
        if any(metric in point.metrics for point in runs.points):
            ends = {
                "xaxis": {"key": x, "type": "METRIC"},
                "yaxis": {"key": metric, "type": "METRIC"},
            }
            along.add("SCATTER", "", runsCountToCompare=100, **ends)
    columns = [f"params.`{axis}`" for axis in varied] + [f"metrics.`{name}`" for name in COLUMNS]
    by_measure = {
        "orderByKey": f"metrics.`{measure}`",
        "orderByAsc": True,
        "selectedColumns": columns,
    }
    common = {"runsHiddenMode": "SHOW_ALL", "isAccordionReordered": True, "hideEmptyCharts": True}
    of_sweep = f"tags.`servesweep.sweep_id` = '{runs.sweep_id}'"
    states = {
        "best": (
            f"{name}: truth and best points",
            {"searchFilter": f"attributes.run_id IN ({some})"}
            | by_measure
            | common
            | _charts(over_time, numbers),
        ),
        "points": (
            f"{name}: all points",
            {"searchFilter": f"{of_sweep} AND tags.`servesweep.role` != 'sweep'"}
            | by_measure
            | common
            | _charts(along, numbers),
        ),
    }
    return [
        _view(runs, key, title, state) for key, (title, state) in states.items() if len(runs.shown)
    ]


def _view(runs: SweepRuns, key: str, title: str, state: Mapping[str, Any]) -> View:
    """As large as a tag may be at most: without what is nicest to have, if it must be."""
    saved: dict[str, Any] = {"name": title[:200]}
    saved |= {"createdAt": runs.sweep.start_ms, "updatedAt": runs.sweep.start_ms}
    value = ""
    for without in ((), ("compareRunCharts", "compareRunSections"), ("selectedColumns",)):
        state = {name: part for name, part in state.items() if name not in without}
        text = json.dumps(state, separators=(",", ":"), sort_keys=True)
        packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")
        value = json.dumps(saved | {"state": f"deflate;{packed}"}, separators=(",", ":"))
        if len(value) <= MAX_TAG:
            break
    return View(f"servesweep-{runs.sweep_id}-{key}", title, value, runs.experiment_id)


class _Charts:
    """A section of charts."""

    def __init__(self, name: str) -> None:
        self.section = {
            "uuid": _uuid(name),
            "name": name,
            "display": True,
            "isReordered": True,
            "deleted": False,
            "isGenerated": False,
        }
        self.charts: list[dict[str, Any]] = []

    def add(self, kind: str, metric: str, **more: Any) -> None:
        chart: dict[str, Any] = {
            "type": kind,
            "uuid": _uuid(f"{self.section['name']} {len(self.charts)}"),
            "metricSectionId": self.section["uuid"],
            "deleted": False,
            "isGenerated": False,
        }
        if metric:
            chart |= {"metricKey": metric, "selectedMetricKeys": [metric], "displayName": metric}
        self.charts.append(chart | more)


def _charts(*sections: _Charts) -> dict[str, Any]:
    return {
        "compareRunSections": [section.section for section in sections],
        "compareRunCharts": [chart for section in sections for chart in section.charts],
    }


def _uuid(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def compare_page(runs: SweepRuns) -> str:
    """MLflow's page that compares the truth and the best points."""
    ids = [run.run_id for run in runs.shown]
    return f"/#/compare-runs?runs={_json(ids)}&experiments={_json([runs.experiment_id])}"


def series_page(runs: SweepRuns, series: str) -> str | None:
    """A series of the truth and the best points over each other; None if none of them has it."""
    metric = f"series/{series}"
    some = [run.run_id for run in runs.shown if metric in run.metrics]
    if not some:
        return None
    return (
        f"/#/metric?runs={_json(some)}&metric={_json(metric)}&experiments={_json([runs.experiment_id])}"
        f"&plot_metric_keys={_json([metric])}&plot_layout={_json({'autosize': True})}&x_axis=step"
        "&y_axis_scale=linear&line_smoothness=0&show_point=false&deselected_curves=[]"
        "&last_linear_y_axis_range=[]"
    )


def _json(value: Any) -> str:
    return quote(json.dumps(value, separators=(",", ":")), safe="")
