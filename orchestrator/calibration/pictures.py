"""The objective over each parameter, and over pairs of them."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np

from orchestrator.calibration.evaluate import Candidates
from orchestrator.calibration.search import as_array, scores
from orchestrator.calibration.study import Study
from orchestrator.calibration.uncertainty import Fit

MOST_PAIRS = 6
SHOWN_TIMES = 3.0  # up to this many times the best objective


def draw_fit(study: Study, tried: Candidates, found: Fit, folder: Path) -> list[Path]:
    """Returns the files written."""
    from orchestrator import plots

    values, cells = scores(study, tried), as_array(tried.cells)
    names = list(study.parameters)
    written = [
        plots.profile(
            folder / "objective.png",
            {name: (cells[:, i], values) for i, name in enumerate(names)},
            {name: (found.cell[i], found.low[i], found.high[i]) for i, name in enumerate(names)},
            "objective (%)",
        )
    ]
    # Where one candidate is far better than all others, the better half shows around what.
    half = float(np.quantile(values[np.isfinite(values)], 0.5))
    close = values <= max(values.min() * SHOWN_TIMES, half)
    for i, j in list(combinations(range(len(names)), 2))[:MOST_PAIRS]:
        if np.ptp(cells[close, i]) > 0 and np.ptp(cells[close, j]) > 0:
            path = folder / f"objective_{names[i]}_{names[j]}.png"
            written.append(
                plots.scatter(
                    path,
                    (cells[close, i], cells[close, j], values[close]),
                    (float(found.cell[i]), float(found.cell[j])),
                    (names[i], names[j], "objective (%)"),
                )
            )
    return written
