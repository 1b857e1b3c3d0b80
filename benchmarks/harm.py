"""Does joining ever harm? 87 kinds of generated tables against scikit-learn on each task's own rows.

Alone is StandardScaler with RidgeCV, or with LogisticRegressionCV scored by log-loss, which knows no bounds.
A cell is a table, a codebook and an epsilon; its loss is the mean over tasks of our squared error or
log-loss over alone's, less 1, on fresh rows of the same tasks: the geometric mean over draws, which one draw
cannot spoil. It fails if the lower end of a one-sided 95 % t interval of the log, corrected for the number of
cells, is above 1 %. It fails as well if tasks of about as many rows, taken together, lose more than 5 % in
that sense: a mean over all tasks does not show who pays for it. Grid, laws and seeds were fixed before
anything was tuned on them. Noise is seeded, relation replace, default delta.
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
from benchmarks.harm_tables import SMALL, TABLES, Floats, Index, Loose, Rows, Table, draw
from cloister.estimators import (
    SharedPriorClassifier,
    SharedPriorRegressor,
    SingleTaskClassifier,
    SingleTaskRegressor,
)
from harness.cells import Cells

NAME = "harm"

EPSILONS = (0.05, 0.2, 1.0, 4.0, math.inf)
#: Of tables in which tasks have few rows, where it is in between that some is heard, and not enough.
SMALL_EPSILONS = (0.05, 0.1, 0.2, 0.5, 1.0, 4.0, math.inf)
#: The single-task estimator stands in the grid under this epsilon: it tells nothing.
SINGLE = 0.0
#: Tasks whose loss is measured, of numbers and of classes: cross-validated logistic regression is slow.
SCORED = {False: 150, True: 50}
QUICK = ("sensors", "costs", "counts", "unrelated", "alike", "rare", "separable", "one row", "part visits")
#: A cell may be worse than alone by this much, and its tasks of about as many rows by this much.
LIMIT, SIZE_LIMIT = 0.01, 0.05
#: Tasks from so many rows on, up to the next number, are looked at together.
SIZES = (1, 2, 3, 4, 5, 8, 16)
#: An error below this part of that of all tasks is none.
NONE = 1e-9
SHOWN = 40

#: A loss of all tasks, then of those of each of `SIZES`; None where there is no such task.
Losses = list[float | None]


@dataclass(frozen=True)
class Outcome:
    """One draw of one table: the losses alone, and ours by codebook and epsilon."""

    alone: Losses
    ours: dict[tuple[Loose, float], Losses]


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
    #: By the number of rows: loss, and its lower end.
    sizes: dict[int, tuple[float, float]]

    @property
    def failed(self) -> bool:
        return self.bound > LIMIT or any(bound > SIZE_LIMIT for _, bound in self.sizes.values())

    @property
    def worst_size(self) -> tuple[int, float]:
        """The number of rows whose tasks lose most, and how much that is."""
        size = max(self.sizes, key=lambda size: self.sizes[size][0])
        return size, self.sizes[size][0]


def epsilons(index: int) -> tuple[float, ...]:
    return SMALL_EPSILONS if TABLES[index] in SMALL else EPSILONS


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
        alone = losses(table, train, test, alone_predictions(table, train, test))
        ours = [
            (
                place,
                epsilon,
                losses(table, train, test, our_predictions(table, loose, epsilon, seed, train, test)),
            )
            for place, loose in enumerate(table.codebooks)
            for epsilon in (SINGLE, *epsilons)
        ]
    return {"alone": alone, "ours": ours}


def losses(table: Table, train: Rows, test: Rows, predicted: Floats) -> Losses:
    """Return the loss of all tasks, then of those of each size; every scored task has as many fresh rows."""
    each = row_losses(table, test, predicted)
    sizes = np.searchsorted(SIZES, np.bincount(train.task)[test.task], side="right") - 1
    parts = [each[sizes == i] for i in range(len(SIZES))]
    return [float(each.mean()), *(float(part.mean()) if len(part) else None for part in parts)]


def row_losses(table: Table, test: Rows, predicted: Floats) -> Floats:
    """Return squared errors or log-losses."""
    if not table.classes:
        return np.square(test.y - predicted)
    likelihood = predicted[np.arange(len(test.y)), test.y.astype(np.intp)]
    return np.asarray(-np.log(likelihood.clip(np.finfo(np.float64).eps)))


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
    seeds = {i: range(draws(TABLES[i]) // (2 if quick else 1)) for i in chosen}
    # Slow tables first, so that no process is left with one of them at the end.
    jobs = [(i, seed, (0.2, 1.0) if quick else epsilons(i)) for i in reversed(chosen) for seed in seeds[i]]
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
    for i, key in keys:
        outcomes = found[i]
        ratios = [log_ratios(o.ours[key], o.alone) for o in outcomes]
        by_size = {size: [r[1 + j] for r in ratios] for j, size in enumerate(SIZES)}
        drawn = {size: [r for r in by_size[size] if r is not None] for size in SIZES}
        tests = len(keys) * len(SIZES)
        relative, bound = compared([r[0] for r in ratios if r[0] is not None], len(keys))
        cells.append(
            Cell(
                TABLES[i],
                *key,
                alone=fmean(o.alone[0] or 0.0 for o in outcomes),
                single=fmean(o.ours[key[0], SINGLE][0] or 0.0 for o in outcomes),
                ours=fmean(o.ours[key][0] or 0.0 for o in outcomes),
                relative=relative,
                bound=bound,
                sizes={size: compared(each, tests) for size, each in drawn.items() if len(each) > 1},
            )
        )
    return sorted(cells, key=lambda cell: (not cell.failed, -cell.relative))


def log_ratios(ours: Losses, alone: Losses) -> Losses:
    """Return logs of losses over those alone, of all tasks and by size."""
    least = NONE * (alone[0] or 1.0)
    return [
        None if one is None or other is None else math.log(max(one, least) / max(other, least))
        for one, other in zip(ours, alone, strict=True)
    ]


def compared(ratios: list[float], tests: int) -> tuple[float, float]:
    """Return the mean loss, and the lower end of an interval that is one of so many."""
    error = stdev(ratios) / math.sqrt(len(ratios))
    quantile = float(student.ppf(1 - 0.05 / tests, len(ratios) - 1))
    return math.expm1(fmean(ratios)), math.expm1(fmean(ratios) - quantile * error)


def figures(cells: list[Cell]) -> Figures:
    """Count failures; a mean above the limit that may be luck is counted apart, and is no failure."""
    out: Figures = {}
    for name, part in (
        ("shared", [cell for cell in cells if cell.epsilon != SINGLE]),
        ("single", [cell for cell in cells if cell.epsilon == SINGLE]),
    ):
        out[f"{name}_cells"] = len(part)
        out[f"{name}_failed"] = sum(cell.failed for cell in part)
        out[f"{name}_mean_above_limit"] = sum(cell.relative > LIMIT for cell in part)
        out[f"{name}_worst_loss_percent"] = 100 * max(cell.relative for cell in part)
        out[f"{name}_worst_loss_of_a_size_percent"] = 100 * max(cell.worst_size[1] for cell in part)
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
    shown: Printed = [[*head, "alone", "single", "ours", "loss %", "at least %", "worst size, loss %"]]
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
                f"{cell.worst_size[0]}: {100 * cell.worst_size[1]:.1f}",
            ]
        )
    return shown
