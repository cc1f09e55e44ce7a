"""Which candidates to try. Both ways are repeatable, so that a stopped study goes on where it was:
the same questions in the same order, answered from the journal."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from orchestrator.calibration.evaluate import Candidates, Evaluator
from orchestrator.calibration.objective import objective
from orchestrator.calibration.study import Cell, Parameter, Study
from orchestrator.calibration.surface import near_best
from profiles.bundle import Floats
from profiles.errors import InputError

MAX_GRID = 20_000
FEWEST = 4  # candidates a parameter, from which the next ones are drawn
SETTLING = 5  # rounds after a sampler, for each of the study's
ENOUGH = 4  # rounds in a row that bring nothing
WIDER = 2.5  # the covariance of what is drawn, times that of what it is drawn from
MATTERS = 0.01  # a share of the objective that is an improvement
Tell = Callable[[str], None]


def search(study: Study, evaluator: Evaluator, tell: Tell) -> Candidates:
    """Every candidate that was tried, with its requests. Raises InputError if none finished."""
    tried = Candidates(study.training)
    asked = grid_search if study.method == "grid" else optuna_search
    asked(study, evaluator, tried, tell)
    return tried


def scores(study: Study, tried: Candidates) -> Floats:
    values = objective(study.objective, tried.values())
    if not np.isfinite(values).any():
        expected = "candidates that serve every request of the training runs"
        raise InputError(study.name, "parameters", f"{len(values)} candidates, none did", expected)
    return values


def as_array(cells: list[Cell]) -> Floats:
    return np.array(cells, np.float64).reshape(len(cells), -1)


def ask(study: Study, evaluator: Evaluator, tried: Candidates, cells: list[Cell]) -> bool:
    """Run those that are new; whether there were any."""
    known = set(tried.cells)
    new = [cell for cell in dict.fromkeys(cells) if cell not in known]
    if new:
        tried.add(evaluator.run(new, study.training, "train"))
    return bool(new)


def grid_search(study: Study, evaluator: Evaluator, tried: Candidates, tell: Tell) -> None:
    """A grid over the ranges, then over what is near the best, until differences do not matter."""
    parameters = list(study.parameters.values())
    size = int(np.prod([p.points for p in parameters]))
    if size > MAX_GRID:
        raise InputError(study.name, "parameters", f"a grid of {size}", f"at most {MAX_GRID}")
    boxes = [(float(p.range[0]), float(p.range[1])) for p in parameters]
    for number in range(study.search.rounds):
        if not ask(study, evaluator, tried, grid(parameters, boxes)):
            break
        values = scores(study, tried)
        best = tried.cells[int(values.argmin())]
        tell(
            f"round {number + 1}: {len(tried.cells)} candidates, best {values.min():.3f} % at "
            f"{shown(study, best)}"
        )
        if all(spacing(p, box) <= p.step for p, box in zip(parameters, boxes, strict=True)):
            break
        boxes = closer(study, parameters, boxes, as_array(tried.cells), values)


def grid(parameters: list[Parameter], boxes: list[tuple[float, float]]) -> list[Cell]:
    columns = [
        list(dict.fromkeys(p.snapped(v) for v in np.linspace(*box, p.points)))
        for p, box in zip(parameters, boxes, strict=True)
    ]
    return list(itertools.product(*columns))


def spacing(parameter: Parameter, box: tuple[float, float]) -> float:
    return (box[1] - box[0]) / (parameter.points - 1)


def closer(
    study: Study,
    parameters: list[Parameter],
    boxes: list[tuple[float, float]],
    cells: Floats,
    values: Floats,
) -> list[tuple[float, float]]:
    """Around what is near the best, a cell of the grid wider; never wider than before."""
    close = cells[near_best(values, study.search.near)]
    found = []
    for i, (parameter, box) in enumerate(zip(parameters, boxes, strict=True)):
        margin = spacing(parameter, box)
        found.append(
            (max(box[0], close[:, i].min() - margin), min(box[1], close[:, i].max() + margin))
        )
    return found


def optuna_search(study: Study, evaluator: Evaluator, tried: Candidates, tell: Tell) -> None:
    """Batches from Optuna's tree-structured Parzen estimator over all parameters together."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(
        seed=study.search.seed,
        multivariate=True,
        constant_liar=True,
        n_startup_trials=min(study.search.trials // 4, 20 * len(study.parameters)),
    )
    asking = optuna.create_study(sampler=sampler)
    asked = 0
    while asked < study.search.trials:
        batch = min(study.search.batch, study.search.trials - asked)
        trials = [asking.ask() for _ in range(batch)]
        cells = [
            tuple(
                p.snapped(trial.suggest_float(name, *map(float, p.range)))
                for name, p in study.parameters.items()
            )
            for trial in trials
        ]
        ask(study, evaluator, tried, cells)
        values = objective(study.objective, tried.values())
        at = {cell: i for i, cell in enumerate(tried.cells)}
        for trial, cell in zip(trials, cells, strict=True):
            value = float(values[at[cell]])
            if np.isfinite(value):
                asking.tell(trial, value)
            else:
                asking.tell(trial, state=optuna.trial.TrialState.FAIL)
        asked += batch
    settle(study, evaluator, tried, tell)


def settle(study: Study, evaluator: Evaluator, tried: Candidates, tell: Tell) -> None:
    """Rounds of candidates like the best ones, until several of them bring nothing."""
    idle = 0
    values = scores(study, tried)
    for number in range(SETTLING * study.search.rounds):
        close = near_best(values, study.search.near)
        close[np.argsort(values)[: FEWEST * (len(study.parameters) + 1)]] = True
        random = np.random.default_rng((study.search.seed, number))
        count = max(study.search.trials // 8, len(study.parameters))
        drawn = spread_over(study, as_array(tried.cells)[close], count, random)
        before = float(values.min())
        new = ask(study, evaluator, tried, drawn)
        values = scores(study, tried)
        idle = 0 if values.min() < (1 - MATTERS) * before else idle + 1
        if not new or idle == ENOUGH:
            break
    best = tried.cells[int(values.argmin())]
    tell(f"{len(tried.cells)} candidates, best {values.min():.3f} % at {shown(study, best)}")
    if not idle:
        tell("the search has not settled: more trials or rounds may find a better fit")


def spread_over(study: Study, close: Floats, count: int, random: np.random.Generator) -> list[Cell]:
    """Candidates like those near the best, a little wider: what a sampler that hurries to the best
    leaves out, and what the surface and the intervals are made of."""
    parameters = list(study.parameters.values())
    steps = np.diag([p.step**2 for p in parameters])
    spread = np.atleast_2d(np.cov(close, rowvar=False)) if len(close) > 1 else 0 * steps
    drawn = random.multivariate_normal(close.mean(axis=0), WIDER * spread + steps, size=count)
    return [tuple(p.snapped(v) for p, v in zip(parameters, row, strict=True)) for row in drawn]


def shown(study: Study, cell: Cell) -> str:
    return ", ".join(
        f"{name} {value:.6g}" for name, value in zip(study.parameters, cell, strict=True)
    )
