"""Pictures of a sweep, as PNG: latency distributions, load over time, error over two axes.

Plain arrays in, the written file out. Truth is thick and black and drawn first, so that a point
which follows it exactly still shows on top. Colours are Okabe and Ito's, told apart with any
kind of colour blindness; line styles differ too.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestrator.shortened import told_apart
from profiles.whole import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRUTH = "truth"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
STYLES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))
MOST_LINES = len(COLOURS) * len(STYLES)
CELLS_WITH_NUMBERS = 20  # along an axis
DPI = 120
LABEL = 40  # characters of a value along an axis
Curves = Mapping[str, ArrayLike]
TimedCurves = Mapping[str, tuple[ArrayLike, ArrayLike]]


def latency_cdfs(
    path: Path, truth: Curves | None, points: Mapping[str, Curves], title: str = ""
) -> Path:
    """One panel a metric (`{"TTFT (ms)": values of every request}`), one line a point.

    The metrics are those of the truth, else those of the first point. The axis ends at the 99.5th
    percentile of the largest, so that one outlier does not hide the rest; it is logarithmic when
    the values span more than two decades.
    """
    metrics = _panels(truth, points)
    figure, axes = _figure(len(metrics), title)
    for metric, axis in zip(metrics, axes, strict=True):
        ends = []
        for name, curves, style in _lines(truth, points):
            values = np.sort(_finite(curves.get(metric, ())))
            if len(values) == 0:
                continue
            share = np.arange(1, len(values) + 1) / len(values)
            axis.step(values, share, where="post", label=plain(name), **style)
            ends.append((values[0], np.quantile(values, 0.5), np.quantile(values, 0.995)))
        if ends:
            low, middle, high = (
                max(e[i] for e in ends) if i else min(e[0] for e in ends) for i in (0, 1, 2)
            )
            _cdf_axis(axis, low, middle, high)
        axis.set(xlabel=metric, ylim=(0, 1.02))
    axes[0].set_ylabel("share of requests")
    return _write(figure, axes, path)


def over_time(
    path: Path, truth: TimedCurves | None, points: Mapping[str, TimedCurves], title: str = ""
) -> Path:
    """One panel a quantity (`{"running": (seconds, values)}`), one line a point."""
    quantities = _panels(truth, points)
    figure, axes = _figure(len(quantities), title, wide=True)
    for quantity, axis in zip(quantities, axes, strict=True):
        for name, curves, style in _lines(truth, points):
            if quantity in curves:
                seconds, values = curves[quantity]
                axis.plot(np.asarray(seconds), np.asarray(values), label=plain(name), **style)
        axis.set(ylabel=quantity, ylim=(0, None), xlim=(0, None))
    axes[-1].set_xlabel("time (s)")
    return _write(figure, axes, path)


def error_heatmap(
    path: Path,
    x: Sequence[Any],
    y: Sequence[Any],
    error_pct: ArrayLike,
    x_name: str,
    y_name: str,
    error_name: str = "mean absolute error (%)",
    several: Literal["least", "mean"] = "least",
    title: str = "",
) -> Path:
    """One entry of x, y and error a point; a point without a finite error failed.

    Points that share a cell (other axes differ) show the one nearest to zero or their mean, which
    the picture says. Signed errors get two colours around zero, others one. A cross is a cell
    whose points all failed, an empty cell has none. The best cell is framed.
    """
    columns, rows = _axis_values(x), _axis_values(y)
    errors = np.asarray(error_pct, np.float64)
    cells = np.full((len(rows), len(columns)), np.nan)
    failed, shared = np.zeros(cells.shape, bool), False
    members: dict[tuple[int, int], list[float]] = {}
    for i, j, error in zip(map(rows.index, y), map(columns.index, x), errors, strict=True):
        members.setdefault((i, j), []).append(float(error))
    for at, values in members.items():
        finite = [value for value in values if math.isfinite(value)]
        shared = shared or len(values) > 1
        failed[at] = not finite
        if finite:
            cells[at] = min(finite, key=abs) if several == "least" else float(np.mean(finite))

    figure, (axis,) = _figure(1, title, size=_heat_size(len(columns), len(rows)))
    _draw_cells(figure, axis, cells, error_name)
    for i, j in np.argwhere(failed):
        axis.plot(j, i, "x", color="0.35", markersize=7)
    axis.set(xlabel=plain(x_name), ylabel=plain(y_name))
    axis.set_xticks(*_ticks(columns), rotation=0 if len(columns) <= 8 else 60)
    axis.set_yticks(*_ticks(rows))
    if shared:
        what = "best" if several == "least" else "mean"
        axis.set_title(f"{what} of the points of each cell", fontsize=9, color="0.35")
    return _write(figure, (), path)


def _draw_cells(figure: Figure, axis: Axes, cells: NDArray[np.float64], name: str) -> None:
    """Pale is near zero in both maps."""
    most = float(np.nanmax(np.abs(cells), initial=0.0)) or 1.0
    signed = bool(np.nanmin(cells, initial=0.0) < 0)
    limits = (-most, most) if signed else (0.0, most)
    colours = "PuOr_r" if signed else "cividis_r"
    image = axis.imshow(
        cells, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto", origin="lower"
    )
    figure.colorbar(image, ax=axis, label=name)
    axis.set_facecolor("0.93")
    axis.grid(False)
    rows, columns = cells.shape
    brightness = np.asarray(image.cmap(image.norm(cells)))[..., :3] @ np.array(
        [0.299, 0.587, 0.114]
    )
    if max(rows, columns) <= CELLS_WITH_NUMBERS:
        for (i, j), value in np.ndenumerate(cells):
            if math.isfinite(value):
                rounded = round(value, 1) + 0.0  # no minus before a zero
                text = f"{rounded:.1f}" if abs(rounded) < 100 else f"{rounded:.0f}"
                colour = "white" if brightness[i, j] < 0.5 else "black"
                axis.text(j, i, text, ha="center", va="center", fontsize=8, color=colour)
    if np.isfinite(cells).any():
        i, j = np.unravel_index(np.nanargmin(np.abs(cells)), cells.shape)
        frame: dict[str, Any] = {"fill": False, "linewidth": 2.5, "edgecolor": "black"}
        from matplotlib.patches import Rectangle

        axis.add_patch(Rectangle((float(j) - 0.5, float(i) - 0.5), 1, 1, clip_on=False, **frame))


def _cdf_axis(axis: Axes, low: float, middle: float, high: float) -> None:
    if low > 0 and high > 100 * low and middle > 3 * low:
        axis.set_xscale("log")
        axis.set_xlim(low, high * 1.05)
    else:
        axis.set_xlim(min(low, 0.0), high * 1.02 or 1.0)


def _panels(truth: Mapping[str, Any] | None, points: Mapping[str, Mapping[str, Any]]) -> list[str]:
    panels = list(truth or next(iter(points.values()), {}))
    if not panels:
        raise ValueError("nothing to draw: neither truth nor points hold a curve")
    if len(points) > MOST_LINES:
        raise ValueError(f"{len(points)} points to draw, expected at most {MOST_LINES}")
    return panels


def _lines(truth: Any, points: Mapping[str, Any]) -> list[tuple[str, Any, dict[str, Any]]]:
    """Name, curves and looks, truth first."""
    looks = itertools.product(STYLES, COLOURS)
    lines = [
        (name, curves, {"color": colour, "linestyle": style, "linewidth": 1.6})
        for (name, curves), (style, colour) in zip(points.items(), looks, strict=False)
    ]
    if truth is None:
        return lines
    return [(TRUTH, truth, {"color": "black", "linewidth": 3.2, "alpha": 0.75}), *lines]


def _figure(
    panels: int, title: str, wide: bool = False, size: tuple[float, float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Without pyplot, whose state is the process's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shape = (panels, 1) if wide else (1, panels)
    size = size or ((9.0, 2.1 * panels + 1.0) if wide else (3.6 * panels + 0.6, 4.2))
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(*shape, squeeze=False, sharex=wide, sharey=not wide).ravel().tolist()
    for axis in axes:
        axis.grid(True, color="0.9", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title, fontsize=12)
    return figure, axes


def _write(figure: Figure, with_legend: Sequence[Axes], path: Path) -> Path:
    """The same picture is the same bytes."""
    if with_legend:
        named: dict[str, Any] = {}
        for axis in with_legend:
            handles, labels = axis.get_legend_handles_labels()
            named = dict(zip(labels, handles, strict=True)) | named
        columns = max(1, min(len(named), int(figure.get_figwidth() // 2.4)))
        figure.legend(
            list(named.values()),
            list(named),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
        )
    return save(figure, path)


def save(figure: Figure, path: Path) -> Path:
    """As PNG, whole, without a word of what matplotlib lacks for it: a name may hold any character."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_whole(path, partial(figure.savefig, format="png", metadata={"Software": None}))
    return path


def _axis_values(values: Sequence[Any]) -> list[Any]:
    """Each once; numbers in order, anything else as it comes."""
    distinct = list(dict.fromkeys(values))
    numbers = all(isinstance(v, (int, float, np.number)) for v in distinct)
    return sorted(distinct) if numbers else distinct


def _ticks(values: Sequence[Any]) -> tuple[list[int], list[str]]:
    every = -(-len(values) // 30)
    at = list(range(0, len(values), every))
    texts = [f"{v:.6g}" if isinstance(v, (float, np.floating)) else str(v) for v in values]
    names = told_apart(texts, LABEL)
    return at, [plain(names[i]) for i in at]


def plain(text: str) -> str:
    """What matplotlib shows as it is: a dollar begins a formula, a name that begins with _ is hidden."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _heat_size(columns: int, rows: int) -> tuple[float, float]:
    return min(max(0.62 * columns + 2.4, 5.0), 16.0), min(max(0.42 * rows + 1.6, 3.2), 12.0)


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    return array[np.isfinite(array)]


def profile(
    path: Path,
    values: Mapping[str, tuple[ArrayLike, ArrayLike]],
    answers: Mapping[str, tuple[float, float, float]],
    y_name: str,
) -> Path:
    """One panel a parameter: the objective of every candidate, the answer and its interval."""
    figure, axes = _figure(len(values), "")
    for axis, (name, (x, y)) in zip(axes, values.items(), strict=True):
        at, low, high = answers[name]
        seen = np.asarray(y, np.float64)
        axis.axvspan(low, high, color="0.9", zorder=0)
        axis.axvline(at, color="black", linewidth=1.2)
        axis.plot(np.asarray(x), seen, ".", color=COLOURS[0], markersize=3)
        least = float(seen[np.isfinite(seen)].min())
        axis.set(xlabel=name, ylim=(0, max(4 * least, 1e-6)))
    axes[0].set_ylabel(y_name)
    return _write(figure, (), path)


def scatter(
    path: Path,
    points: tuple[ArrayLike, ArrayLike, ArrayLike],
    answer: tuple[float, float],
    names: tuple[str, str, str],
) -> Path:
    """Candidates over two parameters, coloured by the objective; the answer is a cross."""
    x, y, value = (np.asarray(one, np.float64) for one in points)
    figure, (axis,) = _figure(1, "", size=(6.0, 4.4))
    order = np.argsort(-value)
    shown = axis.scatter(x[order], y[order], c=value[order], s=14, cmap="cividis_r")
    figure.colorbar(shown, ax=axis, label=names[2])
    axis.plot(*answer, "x", color="black", markersize=11, markeredgewidth=2.5)
    axis.set(xlabel=names[0], ylabel=names[1])
    return _write(figure, (), path)
