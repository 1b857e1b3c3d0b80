"""What bounds of features that are too wide cost: one table in four codebooks, by estimator.

300 tasks of 8 rows with three features in 0 to 10, levels and slopes around common ones, epsilon 1; squared
error on fresh rows over that of `SingleTaskRegressor`. Everything at its defaults, seeded noise.
"""

from __future__ import annotations

import warnings
from statistics import fmean

import numpy as np

from benchmarks import Figures, Table, Targets
from benchmarks.harm_tables import TABLES, draw
from cloister.estimators import (
    DecomposedRegressor,
    GroupSparseRegressor,
    LowRankRegressor,
    MeanRegularizedRegressor,
    MetaRegressor,
    SharedPriorRegressor,
    SingleTaskRegressor,
)
from harness.cells import Cells

NAME = "feature-bounds"

ESTIMATORS = {
    "SharedPrior": SharedPriorRegressor,
    "LowRank": LowRankRegressor,
    "GroupSparse": GroupSparseRegressor,
    "Decomposed": DecomposedRegressor,
    "MeanRegularized": MeanRegularizedRegressor,
    "Meta": MetaRegressor,
}
WIDTHS = (10, 30, 100, 1000)
#: Squared error over that alone which any of them may have, in any codebook.
LIMIT = 1.01


def measure(job: tuple[int, int]) -> dict[str, float]:
    """Return each estimator's squared error over that alone, with features in bounds from 0 to a width."""
    width, seed = job
    (table,) = (one for one in TABLES if one.name == "exams")
    train, test = draw(table, seed, table.tasks)
    book: dict[int | str, object] = {**dict.fromkeys(range(table.features), (0, width)), "y": table.target}

    def error(estimator: SharedPriorRegressor | SingleTaskRegressor) -> float:
        estimator.fit(train.X, train.y, tasks=train.task)
        return float(np.square(test.y - estimator.predict(test.X, tasks=test.task)).mean())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = error(SingleTaskRegressor(bounds=book))
        return {
            name: error(kind(bounds=book, epsilon=1.0, random_state=seed)) / alone
            for name, kind in ESTIMATORS.items()
        }


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Table]:
    """Measure every codebook.

    Parameters
    ----------
    quick : bool
        One draw instead of four.
    """
    jobs = [(width, seed) for width in WIDTHS for seed in range(1 if quick else 4)]
    found: dict[int, list[dict[str, float]]] = {width: [] for width in WIDTHS}
    for (width, _), errors in zip(jobs, cells.measured(measure, jobs), strict=True):
        found[width].append(errors)
    figures: Figures = {}
    rows = [["bounds of the features", *ESTIMATORS]]
    for width, draws in found.items():
        values = {name: [one[name] for one in draws] for name in ESTIMATORS}
        figures |= {f"{name}_{width}": fmean(ratios) for name, ratios in values.items()}
        shown = [f"{min(ratios):.2f}-{max(ratios):.2f}" for ratios in values.values()]
        rows.append([f"0 to {width}", *shown])
    targets: Targets = {f"{name}_{width}": ("<=", LIMIT) for width in WIDTHS for name in ESTIMATORS}
    return figures, targets, rows
