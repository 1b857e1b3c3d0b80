"""Does joining ever harm? 53 kinds of generated tables against scikit-learn on each task's own rows.

Alone is StandardScaler with RidgeCV, or with LogisticRegressionCV scored by log-loss, which knows no bounds.
A cell is a table, a codebook and an epsilon; its loss is the mean over tasks of our squared error or
log-loss over alone's, less 1, on fresh rows of the same tasks: the geometric mean over draws, which one draw
cannot spoil. It fails if the lower end of a one-sided 95 % t interval of the log, corrected for the number of
cells, is above 1 %. Grid, laws and seeds were fixed before anything was tuned on them. Noise is seeded,
relation replace, default delta.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from statistics import fmean, median, stdev

import numpy as np
from scipy.special import logsumexp
from scipy.stats import t as student
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, RidgeCV
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import Figures, Targets
from benchmarks import Table as Printed
from benchmarks.harm_tables import TABLES, Floats, Index, Loose, Rows, Table, draw
from cloister.estimators import (
    SharedPriorClassifier,
    SharedPriorRegressor,
    SingleTaskClassifier,
    SingleTaskRegressor,
)
from harness.cells import Cells

NAME = "harm"

EPSILONS = (0.05, 0.2, 1.0, 4.0, math.inf)
#: The single-task estimator stands in the grid under this epsilon: it tells nothing.
SINGLE = 0.0
#: Tasks whose loss is measured, of numbers and of classes: cross-validated logistic regression is slow.
SCORED = {False: 150, True: 50}
QUICK = ("sensors", "costs", "counts", "unrelated", "noise-free", "own places", "alike", "rare", "separable")
#: A cell may be worse than alone by this much.
LIMIT = 0.01
SHOWN = 40


@dataclass(frozen=True)
class Outcome:
    """One draw of one table: the loss alone, and ours by codebook and epsilon."""

    alone: float
    ours: dict[tuple[Loose, float], float]


@dataclass(frozen=True)
class Cell:
    """One table in one codebook at one epsilon, over all draws."""

    table: Table
    loose: Loose
    epsilon: float
    alone: float
    single: float
    ours: float
    relative: float
    bound: float


def draws(table: Table) -> int:
    """Return how often a table is drawn: fewer where it takes long."""
    return 10 if table.classes or table.tasks >= 1000 else 20


def measure(job: tuple[int, int, tuple[float, ...]]) -> dict[str, object]:
    """Draw one table once; fit it alone, by us alone, and jointly in each codebook at each epsilon."""
    index, seed, epsilons = job
    table = TABLES[index]
    train, test = draw(table, seed, SCORED[bool(table.classes)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = loss(table, test, alone_predictions(table, train, test))
        ours = [
            (place, epsilon, loss(table, test, our_predictions(table, loose, epsilon, seed, train, test)))
            for place, loose in enumerate(table.codebooks)
            for epsilon in (SINGLE, *epsilons)
        ]
    return {"alone": alone, "ours": ours}


def loss(table: Table, test: Rows, predicted: Floats) -> float:
    """Return squared error or log-loss; every scored task has as many rows."""
    if not table.classes:
        return float(np.square(test.y - predicted).mean())
    likelihood = predicted[np.arange(len(test.y)), test.y.astype(np.intp)]
    return float(-np.log(likelihood.clip(np.finfo(np.float64).eps)).mean())


def our_predictions(table: Table, loose: Loose, epsilon: float, seed: int, train: Rows, test: Rows) -> Floats:
    """Fit an estimator at its defaults, in a codebook; return numbers, or probabilities of classes."""
    book = table.codebook(loose)
    estimator: RegressorMixin | ClassifierMixin
    if table.classes:
        estimator = (
            SharedPriorClassifier(bounds=book, epsilon=epsilon, random_state=seed)
            if epsilon
            else SingleTaskClassifier(bounds=book)
        )
        fitted = estimator.fit(train.X, train.y.astype(int), tasks=train.task)
        return np.asarray(fitted.predict_proba(test.X, tasks=test.task))
    estimator = (
        SharedPriorRegressor(bounds=book, epsilon=epsilon, random_state=seed)
        if epsilon
        else SingleTaskRegressor(bounds=book)
    )
    return np.asarray(estimator.fit(train.X, train.y, tasks=train.task).predict(test.X, tasks=test.task))


def alone_predictions(table: Table, train: Rows, test: Rows) -> Floats:
    """Fit scikit-learn to each scored task's rows; return numbers, or probabilities of classes."""
    if not table.classes:
        return alone_numbers(train.X, train.y, train.task, test.X, test.task)
    out = np.empty((len(test.y), table.classes))
    for k in np.unique(test.task):
        at, asked = train.task == k, test.task == k
        out[asked] = alone_classes(train.X[at], train.y[at].astype(np.intp), test.X[asked], table.classes)
    return out


def alone_numbers(X: Floats, y: Floats, task: Index, asked: Floats, asked_task: Index) -> Floats:
    """Return ridge predictions of every task that is asked about; its mean, with under four rows."""
    out = np.empty(len(asked))
    for k in np.unique(asked_task):
        own, at = task == k, asked_task == k
        ridge = make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(-3, 3, 13)))
        out[at] = ridge.fit(X[own], y[own]).predict(asked[at]) if own.sum() >= 4 else y[own].mean()
    return out


def alone_classes(X: Floats, y: Index, asked: Floats, classes: int) -> Floats:
    """Return probabilities of classes: a class that the task has not seen gets half a row's share."""
    seen, sizes = np.unique(y, return_counts=True)
    shares = (np.bincount(y, minlength=classes) + 0.5) / (len(y) + 0.5 * classes)
    out = np.tile(shares, (len(asked), 1))
    if len(seen) > 1 and len(y) >= 4:
        folds = StratifiedKFold(max(2, min(5, sizes.min())), shuffle=True, random_state=0)
        logistic = (
            LogisticRegression()
            if sizes.min() < 2
            else LogisticRegressionCV(
                cv=folds,
                scoring=log_likelihood,
                max_iter=1000,
                l1_ratios=(0.0,),
                use_legacy_attributes=False,
            )
        )
        fitted = make_pipeline(StandardScaler(), logistic).fit(X, y)
        out[:, seen] = fitted.predict_proba(asked) * shares[seen].sum()
    return out


def log_likelihood(fitted: LogisticRegression, X: Floats, y: Index) -> float:
    """Return minus the log-loss: scikit-learn's own scorer takes two thirds of the time of the fits."""
    score = X @ np.atleast_2d(fitted.coef_).T + fitted.intercept_
    score = np.hstack([np.zeros_like(score), score]) if score.shape[1] == 1 else score
    own = score[np.arange(len(y)), np.searchsorted(fitted.classes_, y)]
    return float(np.mean(own - logsumexp(score, axis=1)))


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Printed]:
    """Measure the grid.

    Parameters
    ----------
    quick : bool
        Nine of the tables, fewer draws, epsilon .2 and 1.
    """
    chosen = [i for i, table in enumerate(TABLES) if not quick or table.name in QUICK]
    epsilons = (0.2, 1.0) if quick else EPSILONS
    seeds = {i: range(draws(TABLES[i]) // (2 if quick else 1)) for i in chosen}
    # Slow tables first, so that no process is left with one of them at the end.
    jobs = [(i, seed, epsilons) for i in reversed(chosen) for seed in seeds[i]]
    found: dict[int, list[Outcome]] = {i: [] for i in chosen}
    for (i, *_), value in zip(jobs, cells.measured(measure, jobs), strict=True):
        ours = {(TABLES[i].codebooks[place], epsilon): loss for place, epsilon, loss in value["ours"]}
        found[i].append(Outcome(value["alone"], ours))
    grid = summarise(found)
    return figures(grid), goals(), rows(grid)


def summarise(found: dict[int, list[Outcome]]) -> list[Cell]:
    """Return all cells, those that fail first, then by loss; each draw is compared with itself."""
    keys = [(i, key) for i, outcomes in found.items() for key in outcomes[0].ours]
    cells = []
    for i, (loose, epsilon) in keys:
        outcomes = found[i]
        ratio = [math.log(o.ours[loose, epsilon] / o.alone) for o in outcomes]
        error = stdev(ratio) / math.sqrt(len(ratio))
        quantile = float(student.ppf(1 - 0.05 / len(keys), len(ratio) - 1))
        cells.append(
            Cell(
                TABLES[i],
                loose,
                epsilon,
                alone=fmean(o.alone for o in outcomes),
                single=fmean(o.ours[loose, SINGLE] for o in outcomes),
                ours=fmean(o.ours[loose, epsilon] for o in outcomes),
                relative=math.expm1(fmean(ratio)),
                bound=math.expm1(fmean(ratio) - quantile * error),
            )
        )
    return sorted(cells, key=lambda cell: (cell.bound <= LIMIT, -cell.relative))


def figures(cells: list[Cell]) -> Figures:
    """Count failures; a mean above the limit that may be luck is counted apart, and is no failure."""
    out: Figures = {}
    for name, part in (
        ("shared", [cell for cell in cells if cell.epsilon != SINGLE]),
        ("single", [cell for cell in cells if cell.epsilon == SINGLE]),
    ):
        out[f"{name}_cells"] = len(part)
        out[f"{name}_failed"] = sum(cell.bound > LIMIT for cell in part)
        out[f"{name}_mean_above_limit"] = sum(cell.relative > LIMIT for cell in part)
        out[f"{name}_worst_loss_percent"] = 100 * max(cell.relative for cell in part)
        out[f"{name}_median_gain_percent"] = -100 * median(cell.relative for cell in part)
    for epsilon in sorted({cell.epsilon for cell in cells} - {SINGLE}):
        gains = [-100 * cell.relative for cell in cells if cell.epsilon == epsilon]
        out[f"median_gain_percent_eps{epsilon:g}"] = median(gains)
    return out


def goals() -> Targets:
    """No cell fails."""
    return {"shared_failed": ("<=", 0.0), "single_failed": ("<=", 0.0)}


def rows(cells: list[Cell]) -> Printed:
    """Return the worst cells, with their data."""
    head = ["table", "tasks", "rows", "features", "bounds of target, features", "epsilon"]
    shown: Printed = [[*head, "alone", "single", "ours", "loss %", "at least %"]]
    for cell in cells[:SHOWN]:
        table = cell.table
        shown.append(
            [
                table.name,
                f"{table.tasks:,}",
                f"{table.rows[0]}-{table.rows[1]}",
                str(table.features),
                cell.loose.label,
                "single" if cell.epsilon == SINGLE else f"{cell.epsilon:g}",
                f"{cell.alone:.4g}",
                f"{cell.single:.4g}",
                f"{cell.ours:.4g}",
                f"{100 * cell.relative:.1f}",
                f"{100 * cell.bound:.1f}",
            ]
        )
    return shown
