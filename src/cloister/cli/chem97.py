"""The demonstration: real schools learn alone, pooled, together without privacy, and together with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cloister.algorithms.baselines import pooled_ridge
from cloister.app.run_findings import RunFindings
from cloister.core.arrays import Floats
from cloister.core.errors import InputError
from cloister.core.tasks import Tasks
from cloister.datasets import Dataset, load
from cloister.engines.run import run
from cloister.estimators.baselines import SingleTaskRegressor
from cloister.estimators.prior import SharedPriorRegressor
from cloister.plan.plan import Plan
from cloister.report.comparison import MethodComparison, MethodScores
from cloister.tables.codebook import Codebook

Progress = Callable[[int, int], None]

#: The smallest ones show where noise begins to hurt.
EPSILONS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_TEST = 0.3


def chem97(schools: int | None = None) -> Dataset:
    """Load Chem97, or the pupils of some of its schools, chosen at random (always the same ones)."""
    data = load("chem97")
    if schools is None:
        return data
    names = np.unique(data.task)
    if not 2 <= schools <= len(names):
        raise InputError(f"schools must be between 2 and {len(names)}. Got {schools}.")
    kept = np.isin(data.task, np.random.default_rng(0).choice(names, schools, replace=False))
    columns = {name: column[kept] for name, column in data.X.items()}
    return Dataset(data.name, columns, data.y[kept], data.task[kept], data.codebook, data.description)


@dataclass
class _Scores:
    """One method's scores so far: over re-splits, and for each task."""

    name: str
    kind: str
    epsilon: float
    errors: list[float] = field(default_factory=list)
    by_task: list[Floats] = field(default_factory=list)
    location: str = ""

    def method(self, alone: _Scores) -> MethodScores:
        gains = _tested(self.rmse() - alone.rmse()) < 0
        return MethodScores(self.name, self.kind, self.epsilon, tuple(self.errors), float(gains.mean()))

    def plan(self, codebook: Codebook, n_tasks: int) -> Plan:
        alone = self.kind == "single"
        kind = SingleTaskRegressor() if alone else SharedPriorRegressor(epsilon=self.epsilon)
        return kind.plan(n_tasks, codebook)

    def fit(self, codebook: Codebook, train: Tasks) -> Floats:
        if self.kind == "pooled":
            return pooled_ridge(train)
        plan = self.plan(codebook, len(train))
        finished = run(plan, train)
        self.location = RunFindings(plan, finished.board, codebook).location or ""
        return np.asarray(finished.private.models["coef"])

    def score(self, weights: Floats, train: Tasks, test: Tasks) -> None:
        """Take note of squared errors on the test rows; a task without any has no error (NaN)."""
        at = np.searchsorted(train.ids, np.repeat(test.ids, test.sizes))
        squares = (np.einsum("nd,nd->n", test.X, weights[at]) - test.y) ** 2
        count = np.bincount(at, minlength=len(train))
        total = np.bincount(at, squares, minlength=len(train))
        self.errors.append(float(squares.mean() / test.y.var()))
        self.by_task.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))

    def rmse(self) -> Floats:
        """Return each task's root mean squared error over all re-splits."""
        errors = np.stack(self.by_task)
        tested = np.isfinite(errors)
        mean = np.where(tested, errors, 0.0).sum(axis=0) / np.maximum(tested.sum(axis=0), 1)
        return np.where(tested.any(axis=0), np.sqrt(mean), np.nan)


def _tested(values: Floats) -> Floats:
    return values[np.isfinite(values)]


def compare(
    data: Dataset,
    splits: int = 5,
    epsilons: Sequence[float] = EPSILONS,
    progress: Progress | None = None,
) -> MethodComparison:
    """Compare methods on random splits of every school's pupils.

    Parameters
    ----------
    data : Dataset
        With a numeric target.
    splits : int
        How often the rows are split anew. Splits are seeded; noise comes from the operating system, so that
        the guarantee holds, and numbers vary slightly from run to run.
    epsilons : sequence of float
        Budgets of the private runs; 1 must be among them.
    progress : callable, optional
        Called with (fits done, fits in all).
    """
    if 1 not in epsilons or splits < 1:
        raise InputError(f"epsilons must hold 1, and splits be at least 1. Got {list(epsilons)}, {splits}.")
    book = data.codebook
    tasks = Tasks.from_arrays(book.encode(data.X), book.encode_target(data.y), data.task)
    alone = _Scores("single-task", "single", 0.0)
    pool = _Scores("pooled", "pooled", math.inf)
    shared = _Scores("shared prior, not private", "shared", math.inf)
    private = [_Scores("shared prior, private", "private", float(e)) for e in epsilons]
    contest = [alone, pool, shared, *private]
    for seed in range(splits):
        train, test = tasks.split(_TEST, seed)
        for number, scores in enumerate(contest, start=seed * len(contest) + 1):
            scores.score(scores.fit(book, train), train, test)
            if progress is not None:
                progress(number, splits * len(contest))
    chosen = private[list(epsilons).index(1)]
    plan = chosen.plan(book, len(tasks))
    return MethodComparison(
        methods=tuple(scores.method(alone) for scores in contest),
        changes=_tested(chosen.rmse() - alone.rmse()) * book.target_scale,
        n_tasks=len(tasks),
        n_rows=len(data),
        test=_TEST,
        plan=plan,
        description=data.description,
        location=chosen.location,
    )
