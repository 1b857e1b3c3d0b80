"""A record as unit, for two classes: what institutions keep of joining, and whether it ever harms.

Alone is our own single-task classifier or scikit-learn's LogisticRegressionCV, in the grid whichever is the
better on average. Generated institutions are scored by how much longer their chances describe fresh rows than
the true ones (in nats a row), real tables by the mean over institutions of log-losses. The grid has 58 kinds,
of which one fails as in `record-harm`. All was fixed before anything was tried on it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from benchmarks import Figures, Tables, Targets, record_harm
from benchmarks import Table as Printed
from benchmarks.harm import alone_classes
from benchmarks.record_sources import CLASS_SOURCES, Floats, Index, loaded, split
from benchmarks.record_tables import CLASS_GRID, Classes, Drawn, Institutions, alike, draw_classes
from benchmarks.records import DELTA, EPSILONS, PART, QUICK_SEEDS, SEEDS, grouped, mean_error, tables_there
from cloister import Unit
from cloister.estimators import SharedPriorClassifier, SingleTaskClassifier
from harness.cells import Cells

NAME = "record-classes"

#: Generated institutions beside those of numbers.
MADE = {
    "10 x 1000 x 20": Classes(Institutions("goal", alike(0.05), 10, (1000, 1000), 20)),
    "30 x 200 x 20": Classes(Institutions("goal", alike(0.05), 30, (200, 200), 20)),
    "10 x 30-3000 x 20, smaller half": Classes(Institutions("goal", alike(0.05), 10, (30, 3000), 20)),
}


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Tables]:
    """Measure goals, tables and the grid; `quick` takes two seeds and every eighth cell of it."""
    seeds, step = (QUICK_SEEDS, 8) if quick else (SEEDS, 1)
    goals = [(name, seed) for name in MADE for seed in seeds]
    tables = [(name, seed) for name in (CLASS_SOURCES if tables_there() else ()) for seed in seeds]
    grid = [(i, seed) for seed in seeds for i in range(0, len(CLASS_GRID), step)]
    made = grouped([name for name, _ in goals], cells.measured(measure_goal, goals))
    real = grouped([name for name, _ in tables], cells.measured(measure_table, tables))
    drawn = grouped([i for i, _ in grid], cells.measured(measure, grid))
    figures, _, shown = record_harm.summarised(drawn, CLASS_GRID)
    shown |= {"goals": _shown(made, "single"), "tables": _shown(real, "alone", "by task")}
    return figures, {"grid failed": ("<=", 0)}, shown


def measure(job: tuple[int, int]) -> dict[str, float]:
    """Draw a cell of the grid once."""
    return drawn_once(CLASS_GRID[job[0]], job[1], record_harm.EPSILONS)


def measure_goal(job: tuple[str, int]) -> dict[str, float]:
    """Draw the institutions of a goal once; return their excess."""
    given = MADE[job[0]]
    return drawn_once(given, job[1], EPSILONS, given.scores.rows[0] < given.scores.rows[1])


def measure_table(job: tuple[str, int]) -> dict[str, float]:
    """Split a table once; return log-losses."""
    return table_once(*job, EPSILONS)


def fitted(
    bounds: object, epsilon: float, X: object, y: Floats, task: Index, seed: int
) -> SharedPriorClassifier:
    """Fit with records as unit."""
    unit = Unit.record(rows=len(y))
    model = SharedPriorClassifier(bounds=bounds, epsilon=epsilon, delta=DELTA, unit=unit, random_state=seed)
    return model.fit(X, y, tasks=task)


def by_task(values: Floats, task: Index) -> Floats:
    return np.array([values[task == one].mean() for one in np.unique(task)])


def excess(drawn: Drawn, told: Floats, smaller: bool = False) -> float:
    """Return the mean over institutions of the divergence of what was told from the chances."""
    p, q = drawn.expected, np.clip(told, 1e-12, 1 - 1e-12)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(p > 0, p * np.log(p / q), 0.0) + np.where(
            p < 1, (1 - p) * np.log((1 - p) / (1 - q)), 0.0
        )
    means, sizes = by_task(each, drawn.fresh_task), np.bincount(drawn.task)
    return float(means[np.argsort(sizes)[: len(sizes) // 2]].mean() if smaller else means.mean())


def drawn_once(
    given: Classes, seed: int, epsilons: Sequence[float], smaller: bool = False
) -> dict[str, float]:
    """Draw institutions once; return their excess alone, by scikit-learn, and joined at each epsilon."""
    drawn, found = draw_classes(given, seed), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        single = SingleTaskClassifier(bounds=drawn.bounds).fit(drawn.X, drawn.y, tasks=drawn.task)
        found["single"] = excess(drawn, _chance(single, drawn.fresh, drawn.fresh_task), smaller)
        logistic = np.empty(len(drawn.fresh))
        for one in np.unique(drawn.task):
            own, at = drawn.task == one, drawn.fresh_task == one
            logistic[at] = alone_classes(drawn.X[own], drawn.y[own].astype(np.intp), drawn.fresh[at], 2)[:, 1]
        found["ridge"] = excess(drawn, logistic, smaller)
        for epsilon in epsilons:
            model = fitted(drawn.bounds, epsilon, drawn.X, drawn.y, drawn.task, seed)
            found[f"{epsilon:g}"] = excess(drawn, _chance(model, drawn.fresh, drawn.fresh_task), smaller)
            if epsilon == 1.0:
                mu = float(model.guarantee_.mu or math.inf)
                found["Q"] = len(drawn.y) * mu / (given.scores.features + 1)
    return found


def table_once(name: str, seed: int, epsilons: Sequence[float]) -> dict[str, float]:
    """Split a table once; return log-losses alone, joined by records, and joined by institutions."""
    rows, bounds = loaded(name), CLASS_SOURCES[name].columns
    train, test = split(rows, PART, seed)
    second = list(bounds.values())[-1][1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = {"alone": SingleTaskClassifier(bounds=bounds).fit(train.X, train.y, tasks=train.task)}
        models["by task"] = SharedPriorClassifier(bounds=bounds, epsilon=1.0, random_state=seed).fit(
            train.X, train.y, tasks=train.task
        )
        models |= {f"{e:g}": fitted(bounds, e, train.X, train.y, train.task, seed) for e in epsilons}
        told = {way: _chance(model, test.X, test.task, second) for way, model in models.items()}
    losses = {
        way: -np.log(np.clip(np.where(test.y == second, q, 1 - q), 1e-12, None)) for way, q in told.items()
    }
    return {way: fmean(by_task(each, test.task)) for way, each in losses.items()}


def _chance(
    model: SharedPriorClassifier | SingleTaskClassifier, X: object, task: Index, second: object = 1
) -> Floats:
    at = int(np.flatnonzero(model.classes_ == second)[0])
    return np.asarray(model.predict_proba(X, tasks=task)[:, at])


def _shown(found: dict[str, list[dict[str, float]]], alone: str, *others: str) -> Printed:
    """Return log-losses by institutions or table, and the gain at epsilon 1."""
    ways = [alone, *others, *(f"{e:g}" for e in EPSILONS)]
    rows: Printed = [["institutions", "alone", *ways[1:], "1 less alone"]]
    for name, outcomes in found.items():
        less, error = mean_error([one["1"] - one[alone] for one in outcomes])
        means = [f"{fmean(one[way] for one in outcomes):.4f}" for way in ways]
        rows.append([name, *means, f"{less:.4f} ± {error:.4f}"])
    return rows
