"""Does joining harm with the papers' estimators, as they are by default? Some tables of `harm`, by estimator.

A cell is a table, a codebook (tight, or the widest), an epsilon and an estimator; its loss is that of `harm`:
squared error or log-loss on fresh rows over that of scikit-learn on each task's own rows, the geometric mean
over draws. Tables have up to 150 tasks. Seeds begin at 100: whatever was tuned was tuned on lower ones, and
of the tables *clusters*, *noise-free off*, *five unrelated* and *separable* were not looked at before.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from statistics import fmean, median

import numpy as np

from benchmarks import Figures, Targets
from benchmarks import Table as Printed
from benchmarks.harm import alone_predictions, loss
from benchmarks.harm_tables import TABLES, TIGHT, Loose, Table, draw
from cloister import estimators
from harness.cells import Cells

NAME = "family-harm"

FAMILY = ("LowRank", "GroupSparse", "Decomposed", "MeanRegularized", "Meta")
NAMES = (
    "exams few",
    "alike off",
    "unrelated off",
    "clusters",
    "noise-free off",
    "five unrelated",
    "slopes off",
    "own slopes",
    "separable",
    "three off",
)
EPSILONS = (0.05, 0.2, 1.0, 8.0)
MOST_TASKS, SCORED = 150, 50
SEEDS = range(100, 104)
#: A cell may be worse than alone by this much.
LIMIT = 0.01
SHOWN = 12

Key = tuple[str, Loose, float, str]


def measure(job: tuple[str, int, tuple[float, ...]]) -> list[tuple[int, float, str, float]]:
    """Draw one table once; return codebooks, epsilons, estimators, and logs of their loss over that alone."""
    name, seed, epsilons = job
    table = next(one for one in TABLES if one.name == name)
    table = replace(table, tasks=min(table.tasks, MOST_TASKS))
    train, test = draw(table, seed, SCORED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = loss(table, test, alone_predictions(table, train, test))
        return [
            (place, epsilon, kind, math.log(ours(table, loose, epsilon, kind, seed) / alone))
            for place, loose in enumerate(codebooks(table))
            for epsilon in epsilons
            for kind in FAMILY
        ]


def codebooks(table: Table) -> tuple[Loose, Loose]:
    return TIGHT, table.codebooks[-1]


def ours(table: Table, loose: Loose, epsilon: float, kind: str, seed: int) -> float:
    """Fit an estimator at its defaults in a codebook; return its loss."""
    train, test = draw(table, seed, SCORED)
    estimator = getattr(estimators, kind + ("Classifier" if table.classes else "Regressor"))(
        bounds=table.codebook(loose), epsilon=epsilon, random_state=seed
    )
    fitted = estimator.fit(train.X, train.y.astype(int) if table.classes else train.y, tasks=train.task)
    predict = fitted.predict_proba if table.classes else fitted.predict
    return loss(table, test, np.asarray(predict(test.X, tasks=test.task)))


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, dict[str, Printed]]:
    """Measure the grid.

    Parameters
    ----------
    quick : bool
        Three tables, one draw, epsilon 1.
    """
    names, seeds = (NAMES[:1] + NAMES[5:7], SEEDS[:1]) if quick else (NAMES, SEEDS)
    jobs = [(name, seed, (1.0,) if quick else EPSILONS) for name in reversed(names) for seed in seeds]
    found: dict[Key, list[float]] = {}
    tables = {table.name: table for table in TABLES}
    for (name, *_), values in zip(jobs, cells.measured(measure, jobs), strict=True):
        for place, epsilon, kind, ratio in values:
            found.setdefault((name, codebooks(tables[name])[place], epsilon, kind), []).append(ratio)
    means = {key: math.expm1(fmean(ratios)) for key, ratios in found.items()}
    figures: Figures = {"cells": len(means), "above_limit": sum(mean > LIMIT for mean in means.values())}
    for kind in FAMILY:
        own = [mean for key, mean in means.items() if key[3] == kind]
        figures[f"{kind}_worst_loss_percent"] = 100 * max(own)
        figures[f"{kind}_median_gain_percent"] = -100 * median(own)
    targets: Targets = {f"{kind}_worst_loss_percent": ("<=", 100 * LIMIT) for kind in FAMILY}
    return figures, targets, {"family-harm": by_epsilon(means), "family-harm-worst": worst(means)}


def by_epsilon(means: dict[Key, float]) -> Printed:
    """Return the worst and the median cell of each estimator at each epsilon, in percent of loss."""
    epsilons = sorted({key[2] for key in means})
    rows: Printed = [["estimator", *(f"ε = {epsilon:g}: worst, median" for epsilon in epsilons)]]
    for kind in FAMILY:
        columns = [
            [100 * mean for key, mean in means.items() if key[2:] == (epsilon, kind)] for epsilon in epsilons
        ]
        rows.append([kind, *(f"{max(one):+.1f}, {median(one):+.1f}" for one in columns)])
    return rows


def worst(means: dict[Key, float]) -> Printed:
    """Return the worst cells, with their data."""
    rows: Printed = [["table", "bounds of target, features", "epsilon", "estimator", "loss %"]]
    for name, loose, epsilon, kind in sorted(means, key=lambda key: -means[key])[:SHOWN]:
        mean = means[name, loose, epsilon, kind]
        rows.append([name, loose.label, f"{epsilon:g}", kind, f"{100 * mean:+.1f}"])
    return rows
