"""Does joining ever harm counts, ordered classes or skewed positive numbers? Made tables, against alone.

A cell is a made table of tasks of 1 to 8 rows, a kind of target and an epsilon. Its loss on fresh rows (mean
Poisson or gamma deviance, log-loss of ordered classes) over that of the same model alone, less 1, is averaged
over draws as a geometric mean. It fails if the lower end of a one-sided 95 % t interval of the log, corrected
for the number of cells, is above 1 %. Noise is seeded, relation replace, default delta. Bounds are wide: of
counts 0 to 2,000 for counts of about 3, or 90 ("far"), or a tenth ("rare"), of positive numbers 0.001 to
10,000. Of four ordered classes nearly all rows are in the last ("far") or in the first ("rare").
"""

from __future__ import annotations

import math
import warnings
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks import Figures, Tables, Targets
from benchmarks.outcomes import CLASSES, LOSSES, NUMBERS, log_loss
from cloister.core.arrays import Array, Floats
from harness.cells import Cells

NAME = "outcome-harm"

TASKS, FRESH, DRAWS, QUICK_DRAWS, LIMIT = 150, 4, 10, 2, 0.01
EPSILONS = (0.05, 0.2, 1.0)
#: What targets are, and their public limits.
KINDS: dict[str, dict[str, Any]] = {
    "count": {"kind": "count", "bounds": (0, 2000)},
    "ordered": {"kind": "ordered", "classes": [0, 1, 2, 3]},
    "positive": {"kind": "positive", "bounds": (0.001, 10_000)},
}
#: Between ordered classes, less than the level of means; shape of the gamma distribution of positive numbers.
CUTS, SHAPE = np.array([0.0, 1.0, 2.5]), 1.5
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


def targets(kind: str, scores: Floats, rng: np.random.Generator) -> Array:
    """Draw a target for each logarithm of a mean; ordered classes have it for a score."""
    mean = np.exp(np.minimum(scores, 6.5))
    if kind == "count":
        return rng.negative_binomial(3, 3 / (3 + mean))
    if kind == "positive":
        return np.clip(rng.gamma(SHAPE, mean / SHAPE), 0.001, 10_000)
    return (scores[:, None] + rng.logistic(size=(len(scores), 1)) > CUTS).sum(axis=1)


def measure(cell: tuple[str, str, int]) -> list[float]:
    """Draw one table once; return the log of the loss joined over that alone, by epsilon."""
    kind, name, seed = cell
    rows, level, apart, own, columns = TABLES[name]
    rng = np.random.default_rng([seed, 7])
    common = 0.0 if name.endswith("unrelated") else 0.3 * rng.normal(size=columns)
    slopes = common + own * rng.normal(size=(TASKS, columns))
    levels = level + apart * rng.normal(size=TASKS)

    def draw(count: int) -> tuple[Any, Any, Any]:
        task = np.repeat(np.arange(TASKS), count)
        X = rng.uniform(-1, 1, (len(task), columns))
        return X, targets(kind, levels[task] + (X * slopes[task]).sum(axis=1), rng), task

    (X, y, task), (fresh, due, whose) = draw(rows), draw(FRESH)
    bounds: dict[Any, Any] = dict.fromkeys(range(columns), (-1, 1)) | {"y": KINDS[kind]}
    single, _, shared = CLASSES if kind == "ordered" else NUMBERS
    estimators = [single(bounds=bounds)]
    estimators += [shared(bounds=bounds, epsilon=e, random_state=seed) for e in EPSILONS]
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in estimators:
            fitted = each.fit(X, y, tasks=task)
            if kind == "ordered":
                losses.append(log_loss(due, fitted.predict_proba(fresh, tasks=whose)))
            else:
                losses.append(LOSSES[kind](due, fitted.predict(fresh, tasks=whose)))
    alone, *joined = losses
    return [math.log(loss / alone) for loss in joined]


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Tables]:
    """Measure all cells.

    Parameters
    ----------
    quick : bool
        Two draws of each.
    """
    draws = QUICK_DRAWS if quick else DRAWS
    places = [(kind, name) for kind in KINDS for name in TABLES]
    found = cells.measured(measure, [(*place, seed) for place in places for seed in range(draws)])
    count = len(places) * len(EPSILONS)
    certain = float(student.ppf(1 - 0.05 / count, draws - 1)) / math.sqrt(draws)
    head = ["targets", "table", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)]
    failed, rows = 0, []
    for i, (kind, name) in enumerate(places):
        logs = list(zip(*found[i * draws : (i + 1) * draws], strict=True))
        shown, most = [], -math.inf
        for values in logs:
            mean, error = fmean(values), stdev(values)
            failed += mean - certain * error > math.log1p(LIMIT)
            most = max(most, math.expm1(mean))
            shown.append(f"{math.expm1(mean):+.1%} ± {error / math.sqrt(draws):.1%}")
        rows.append((most, [kind, name, *shown]))
    rows.sort(key=lambda row: -row[0])  # the worst first
    figures = {"cells": float(count), "failed": float(failed), "worst": rows[0][0]}
    return figures, {"failed": ("<=", 0.0)}, {NAME: [head, *(row for _, row in rows)]}
