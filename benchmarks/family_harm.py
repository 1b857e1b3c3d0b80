"""Does joining harm with the papers' estimators, as they are by default? Some tables of `harm`, by estimator.

A cell is a table, a codebook (tight, or the widest), an epsilon and an estimator; its loss is that of `harm`:
squared error or log-loss on fresh rows over that of scikit-learn on each task's own rows, the geometric mean
over draws. A cell is also above its limit if tasks of about as many rows, taken together, lose more than 5 %;
where few tasks are scored, the single-task estimator may be, with which nobody joins:
`above_limit_by_joining` does not count what that loses as well.
Tables have up to 150 tasks. Seeds begin at 100: whatever was tuned was tuned on lower ones, and
of the tables *clusters*, *noise-free off*, *five unrelated* and *separable* were not looked at before.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from itertools import product
from statistics import fmean, median

import numpy as np

from benchmarks import Figures, Targets
from benchmarks import Table as Printed
from benchmarks.harm import SINGLE, SIZE_LIMIT, Losses, alone_predictions, log_ratios, losses
from benchmarks.harm_tables import TABLES, TIGHT, Loose, Table, draw
from cloister import estimators
from harness.cells import Cells

NAME = "family-harm"

FAMILY = ("LowRank", "GroupSparse", "Decomposed", "MeanRegularized", "Meta")
#: What a task does alone; it stands in the grid under the epsilon of `harm` for it.
ALONE = "SingleTask"
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
    "one row",
    "two rows",
    "small rents",
    "small visits",
    "part visits",
    "small unrelated",
    "part exact",
    "small slopes",
    "part rare",
    "small rare",
    "small six",
)
EPSILONS = (0.05, 0.2, 1.0, 8.0)
MOST_TASKS, SCORED = 150, 50
SEEDS = range(100, 104)
#: A cell may be worse than alone by this much.
LIMIT = 0.01
SHOWN = 12

Key = tuple[str, Loose, float, str]


def measure(job: tuple[str, int, tuple[float, ...]]) -> list[tuple[int, float, str, Losses]]:
    """Draw one table once; return codebooks, epsilons, estimators, and logs of losses over those alone."""
    name, seed, epsilons = job
    table = next(one for one in TABLES if one.name == name)
    table = replace(table, tasks=min(table.tasks, MOST_TASKS))
    train, test = draw(table, seed, SCORED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = losses(table, train, test, alone_predictions(table, train, test))
        return [
            (place, epsilon, kind, log_ratios(ours(table, loose, epsilon, kind, seed), alone))
            for place, loose in enumerate(codebooks(table))
            for epsilon, kind in ((SINGLE, ALONE), *product(epsilons, FAMILY))
        ]


def codebooks(table: Table) -> tuple[Loose, Loose]:
    return TIGHT, table.codebooks[-1]


def ours(table: Table, loose: Loose, epsilon: float, kind: str, seed: int) -> Losses:
    """Fit an estimator at its defaults in a codebook; return its losses, of all tasks and by size."""
    train, test = draw(table, seed, SCORED)
    noisy = {} if kind == ALONE else {"epsilon": epsilon, "random_state": seed}
    kinds = getattr(estimators, kind + ("Classifier" if table.classes else "Regressor"))
    estimator = kinds(bounds=table.codebook(loose), **noisy)
    fitted = estimator.fit(train.X, train.y.astype(int) if table.classes else train.y, tasks=train.task)
    predict = fitted.predict_proba if table.classes else fitted.predict
    return losses(table, train, test, np.asarray(predict(test.X, tasks=test.task)))


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, dict[str, Printed]]:
    """Measure the grid.

    Parameters
    ----------
    quick : bool
        Three tables, one draw, epsilon 1.
    """
    names, seeds = (NAMES[:1] + NAMES[5:7], SEEDS[:1]) if quick else (NAMES, SEEDS)
    jobs = [(name, seed, (1.0,) if quick else EPSILONS) for name in reversed(names) for seed in seeds]
    found: dict[Key, list[Losses]] = {}
    tables = {table.name: table for table in TABLES}
    for (name, *_), values in zip(jobs, cells.measured(measure, jobs), strict=True):
        for place, epsilon, kind, ratios in values:
            found.setdefault((name, codebooks(tables[name])[place], epsilon, kind), []).append(ratios)
    losses_of = {
        key: [mean_loss(list(part)) for part in zip(*drawn, strict=True)] for key, drawn in found.items()
    }
    joint = {key: each for key, each in losses_of.items() if key[3] != ALONE}
    beside = {key: losses_of[*key[:2], SINGLE, ALONE] for key in joint}
    means = {key: each[0] for key, each in joint.items()}
    of_sizes = {key: max(each[1:]) for key, each in joint.items()}
    figures: Figures = {
        "cells": len(joint),
        "above_limit": sum(above(each, [0.0] * len(each)) for each in joint.values()),
        "above_limit_by_joining": sum(above(each, beside[key]) for key, each in joint.items()),
    }
    for kind in FAMILY:
        own = [mean for key, mean in means.items() if key[3] == kind]
        figures[f"{kind}_worst_loss_percent"] = 100 * max(own)
        sizes = [mean for key, mean in of_sizes.items() if key[3] == kind]
        figures[f"{kind}_worst_loss_of_a_size_percent"] = 100 * max(sizes)
        figures[f"{kind}_median_gain_percent"] = -100 * median(own)
    targets: Targets = {"above_limit_by_joining": ("<=", 0.0)}
    targets |= {f"{kind}_worst_loss_percent": ("<=", 100 * LIMIT) for kind in FAMILY}
    targets |= {f"{kind}_worst_loss_of_a_size_percent": ("<=", 100 * SIZE_LIMIT) for kind in FAMILY}
    return figures, targets, {"family-harm": by_epsilon(means), "family-harm-worst": worst(means, of_sizes)}


def above(losses: list[float], single: list[float]) -> bool:
    """Say whether a loss, of all tasks or of a size, is above its limit, and as far above another's."""
    limits = [LIMIT, *[SIZE_LIMIT] * (len(losses) - 1)]
    return any(
        one > limit and (1 + one) / (1 + other) - 1 > limit
        for one, other, limit in zip(losses, single, limits, strict=True)
    )


def mean_loss(ratios: Losses) -> float:
    """Return the geometric mean over draws, less 1; -1 where no draw has such tasks."""
    drawn = [ratio for ratio in ratios if ratio is not None]
    return math.expm1(fmean(drawn)) if drawn else -1.0


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


def worst(means: dict[Key, float], of_sizes: dict[Key, float]) -> Printed:
    """Return the worst cells, with their data."""
    head = ["table", "bounds of target, features", "epsilon", "estimator", "loss %", "of a size, loss %"]
    rows: Printed = [head]
    for name, loose, epsilon, kind in sorted(means, key=lambda key: -means[key])[:SHOWN]:
        mean = means[name, loose, epsilon, kind]
        rows.append([name, loose.label, f"{epsilon:g}", kind, f"{100 * mean:+.1f}"])
        rows[-1].append(f"{100 * of_sizes[name, loose, epsilon, kind]:+.1f}")
    return rows
