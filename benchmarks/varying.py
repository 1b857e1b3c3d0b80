"""What it brings to name the slopes that vary between tasks, and what it costs to name the wrong ones.

Made tasks of 15 rows and 20 slopes, of which the first two vary between tasks as random effects do, beside
the intercept; `wrong` names two others. Three real tables, where the intercept is named alone. The change of
the squared error on fresh rows (held out, of real tables) if slopes are named, in percent, with its standard
error over draws; negative is better. Relation replace, default delta, seeded noise.
"""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Any

import numpy as np

from benchmarks import Figures, Table, Targets
from cloister import datasets
from cloister.core.arrays import Array, Floats
from cloister.estimators import SharedPriorRegressor
from harness.cells import Cells

NAME = "varying"

EPSILONS = (0.5, 1.0, 2.0)
SLOPES, ROWS, FRESH, NOISE, APART, LEVELS = 20, 15, 5, 0.5, 0.5, 0.3
#: Made tasks, and what is named of them.
MADE = {
    "30 tasks": (30, (0, 1)),
    "100 tasks": (100, (0, 1)),
    "300 tasks": (300, (0, 1)),
    "100 tasks, named wrongly": (100, (2, 3)),
}
REAL = ("exam", "hsb82", "bdf")
DRAWS, QUICK_DRAWS, FIRST = 6, 2, 30
#: Rows of real tables that are held out.
TEST = 0.3

Rows = tuple[Any, Array, Array]


def made(tasks: int, seed: int) -> tuple[Rows, Rows, object]:
    """Draw rows to learn from, fresh ones, and bounds."""
    rng = np.random.default_rng([seed, tasks])
    slopes = np.tile(rng.normal(0, 0.5, SLOPES), (tasks, 1))
    slopes[:, :2] += APART * rng.normal(size=(tasks, 2))
    levels = LEVELS * rng.normal(size=tasks)

    def draw(count: int) -> Rows:
        task = np.repeat(np.arange(tasks), count)
        X = rng.uniform(-1, 1, (len(task), SLOPES))
        y = levels[task] + (X * slopes[task]).sum(axis=1) + NOISE * rng.normal(size=len(task))
        return X, np.clip(y, -8, 8), task

    return draw(ROWS), draw(FRESH), {**dict.fromkeys(range(SLOPES), (-1, 1)), "y": (-8, 8)}


def real(name: str, seed: int) -> tuple[Rows, Rows, object]:
    """Split the rows of a table; return both parts and its codebook."""
    data = datasets.load(name)
    held = np.random.default_rng(seed).random(len(data)) < TEST
    held_known = held & np.isin(data.task, data.task[~held])

    def part(rows: Array) -> Rows:
        return {name: column[rows] for name, column in data.X.items()}, data.y[rows], data.task[rows]

    return part(~held), part(held_known), data.codebook


def measure(cell: tuple[str, int]) -> list[float]:
    """Return the log of the error with slopes named over that without, at each epsilon."""
    name, seed = cell
    if name in MADE:
        tasks, named = MADE[name]
        train, test, bounds = made(tasks, seed)
        varying = ["intercept", *(f"x{j}" for j in named)]
    else:
        train, test, bounds = real(name, seed)
        varying = ["intercept"]
    (X, y, task), (fresh, due, whose) = train, test

    def error(epsilon: float, names: list[str] | None) -> float:
        model = SharedPriorRegressor(bounds=bounds, epsilon=epsilon, varying=names, random_state=seed)
        predicted: Floats = model.fit(X, y, tasks=task).predict(fresh, tasks=whose)
        return float(np.square(predicted - due).mean())

    return [math.log(error(epsilon, varying) / error(epsilon, None)) for epsilon in EPSILONS]


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Table]:
    """Measure made and real tables.

    Parameters
    ----------
    quick : bool
        Fewer draws.
    """
    seeds = range(FIRST, FIRST + (QUICK_DRAWS if quick else DRAWS))
    jobs = [(name, seed) for name in (*MADE, *REAL) for seed in seeds]
    found: dict[str, list[list[float]]] = {}
    for (name, _), logs in zip(jobs, cells.measured(measure, jobs), strict=True):
        found.setdefault(name, []).append(logs)
    figures: Figures = {}
    rows: Table = [["table", *(f"ε = {epsilon:g}" for epsilon in EPSILONS), "worst draw"]]
    for name, drawn in found.items():
        columns = [[100 * math.expm1(log) for log in logs] for logs in zip(*drawn, strict=True)]
        worst = max(map(max, columns))
        shown = [f"{fmean(one):+.1f} ± {stdev(one) / math.sqrt(len(one)):.1f}" for one in columns]
        rows.append([name, *shown, f"{worst:+.1f}"])
        figures[f"{name}, worst draw percent"] = worst
    return figures, {}, rows
