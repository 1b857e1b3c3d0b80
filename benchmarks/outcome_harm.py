"""Does joining ever harm where targets are counts? Made tables of 1 to 8 rows a task, against alone.

A cell is a table and an epsilon; its loss is the mean Poisson deviance of fresh rows over that of the same
model alone, less 1: the geometric mean over draws. It fails if the lower end of a one-sided 95 % t interval
of the log, corrected for the number of cells, is above 1 %. Noise is seeded, relation replace, default delta.
Bounds are 0 to 2,000 for counts of about 3, or 90 ("far"), or a tenth ("rare").
"""

from __future__ import annotations

import math
import warnings
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks import Figures, Tables, Targets
from benchmarks.outcomes import poisson
from cloister.estimators import SharedPriorRegressor, SingleTaskRegressor
from harness.cells import Cells

NAME = "outcome-harm"

TASKS, FRESH, DRAWS, QUICK_DRAWS, LIMIT = 150, 4, 10, 2, 0.01
EPSILONS = (0.05, 0.2, 1.0)
#: Rows of a task, level of the logarithm of means, deviation of levels and of slopes between tasks, columns.
TABLES = {
    "one row": (1, 1.0, 0.7, 0.1, 3),
    "one row, far": (1, 4.5, 0.7, 0.1, 3),
    "two rows, rare": (2, -2.5, 0.7, 0.1, 3),
    "three rows": (3, 1.0, 0.7, 0.1, 3),
    "three rows, rare, wide": (3, -2.5, 0.7, 0.1, 20),
    "eight rows": (8, 1.0, 0.7, 0.1, 3),
    "eight rows, far": (8, 4.5, 0.7, 0.1, 3),
    "eight rows, rare": (8, -2.5, 0.7, 0.1, 3),
    "eight rows, unrelated": (8, 1.0, 2.0, 0.5, 3),
    "eight rows, wide": (8, 1.0, 0.7, 0.1, 20),
    "eight rows, alike": (8, 1.0, 0.0, 0.0, 3),
}


def measure(cell: tuple[str, int]) -> list[float]:
    """Draw one table once; return the log of the loss joined over that alone, by epsilon."""
    name, seed = cell
    rows, level, apart, own, columns = TABLES[name]
    rng = np.random.default_rng([seed, 7])
    common = 0.0 if name.endswith("unrelated") else 0.3 * rng.normal(size=columns)
    slopes = common + own * rng.normal(size=(TASKS, columns))
    levels = level + apart * rng.normal(size=TASKS)

    def draw(count: int) -> tuple[Any, Any, Any]:
        task = np.repeat(np.arange(TASKS), count)
        X = rng.uniform(-1, 1, (len(task), columns))
        mean = np.exp(np.minimum(levels[task] + (X * slopes[task]).sum(axis=1), 6.5))
        return X, rng.negative_binomial(3, 3 / (3 + mean)), task

    (X, y, task), (fresh, due, whose) = draw(rows), draw(FRESH)
    bounds: dict[Any, Any] = dict.fromkeys(range(columns), (-1, 1))
    bounds["y"] = {"kind": "count", "bounds": (0, 2000)}
    estimators = [SingleTaskRegressor(bounds=bounds)]
    estimators += [SharedPriorRegressor(bounds=bounds, epsilon=e, random_state=seed) for e in EPSILONS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone, *joined = (
            poisson(due, each.fit(X, y, tasks=task).predict(fresh, tasks=whose)) for each in estimators
        )
    return [math.log(loss / alone) for loss in joined]


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Tables]:
    """Measure all cells.

    Parameters
    ----------
    quick : bool
        Two draws of each.
    """
    draws = QUICK_DRAWS if quick else DRAWS
    found = cells.measured(measure, [(name, seed) for name in TABLES for seed in range(draws)])
    count = len(TABLES) * len(EPSILONS)
    certain = float(student.ppf(1 - 0.05 / count, draws - 1)) / math.sqrt(draws)
    failed, worst, rows = 0, -math.inf, [["table", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)]]
    for place, name in enumerate(TABLES):
        logs = list(zip(*found[place * draws : (place + 1) * draws], strict=True))
        shown = []
        for values in logs:
            mean, error = fmean(values), stdev(values)
            failed += mean - certain * error > math.log1p(LIMIT)
            worst = max(worst, math.expm1(mean))
            shown.append(f"{math.expm1(mean):+.1%} ± {error / math.sqrt(draws):.1%}")
        rows.append([name, *shown])
    figures = {"cells": float(count), "failed": float(failed), "worst": worst}
    return figures, {"failed": ("<=", 0.0)}, {NAME: rows}
