"""Scores of predictions, task by task.

They are for those who hold the rows. A score is computed from private data: one task's belongs to that task,
and an average over tasks that leaves them is a release, to be bounded, made noisy and charged
(`cloister.tune` does so) or typed out as not private.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.arrays import Array, Floats, Integers
from cloister.core.errors import InputError
from cloister.core.roster import task_ids
from cloister.core.spelling import counted

__all__ = ["Share", "Spread", "average_auc", "nmse", "per_task", "score_tasks", "spread"]

Metric = Callable[[NDArray[Any], NDArray[Any]], float]


@dataclass(frozen=True)
class Share:
    """The share of targets that are found: of one task's rows, or of many tasks' at once, each its own.

    Attributes
    ----------
    found : callable
        From targets (n, ...) and outputs (n, ...) to which targets are found, and which of them count.

    Examples
    --------
    >>> score = Share(lambda y, outputs: (y == outputs, y >= 0))
    >>> score(np.array([1, 0, -1]), np.array([1, 1, -1]))
    0.5
    """

    found: Callable[[Array, Array], tuple[Array, Array]]

    def __call__(self, y: Array, outputs: Array) -> float:
        return float(self.of_tasks(y[None], outputs[None], np.ones((1, len(y)), dtype=bool))[0])

    def of_tasks(self, y: Array, outputs: Array, real: Array) -> Floats:
        """Return the share of each of k tasks, from arrays (k, n, ...); NaN where no target counts.

        `real` (k, n) is false for rows that fill a task up.
        """
        parts = self.found(*(array.reshape(-1, *array.shape[2:]) for array in (y, outputs)))
        found, counts = (part.reshape(*real.shape, -1) for part in parts)
        counts = counts & real[..., None]
        with np.errstate(invalid="ignore"):
            return np.asarray((found & counts).sum(axis=(1, 2)) / counts.sum(axis=(1, 2)))


def score_tasks(score: Metric, y: Array, outputs: Array, sizes: Integers) -> Floats:
    """Return the score of each of k tasks, from arrays (k, n, ...) whose first so many rows are its own."""
    if isinstance(score, Share):
        return score.of_tasks(y, outputs, np.arange(y.shape[1]) < sizes[:, None])
    rows = zip(y, outputs, sizes.tolist(), strict=True)
    return np.array([float(score(own[:size], told[:size])) for own, told, size in rows])


def nmse(y: ArrayLike, prediction: ArrayLike, tasks: ArrayLike | None = None) -> float:
    r"""Return the mean squared error over the variance of the targets: 0 is perfect, 1 is their mean.

    .. math:: \frac{\sum_i (y_i - \hat y_i)^2}{\sum_i (y_i - \bar y)^2}

    With `tasks` it is the average over tasks of each one's own, by its own mean; tasks whose targets do not
    vary are left out.

    Privacy
    -------
    A score averaged over tasks that leaves them is a release: it needs a bound, noise and a charge.

    Examples
    --------
    >>> nmse([0.0, 1.0, 2.0], [0.0, 1.0, 1.0])
    0.5
    >>> nmse([0.0, 1.0, 5.0, 7.0], [0.5, 0.5, 5.0, 7.0], tasks=["a", "a", "b", "b"])
    0.5
    """
    if tasks is None:
        return _nmse(*_paired(y, prediction))
    scores = per_task(_nmse, y, prediction, tasks)[1]
    return _average(scores, "targets that vary")


def average_auc(y: ArrayLike, score: ArrayLike, tasks: ArrayLike) -> float:
    """Return the area under the ROC curve, averaged over the tasks that have rows of both classes.

    Privacy
    -------
    A score averaged over tasks that leaves them is a release: it needs a bound, noise and a charge. That a
    task has both classes is private too.

    Examples
    --------
    >>> average_auc([0, 1, 0, 1, 1], [0.1, 0.9, 0.7, 0.3, 0.5], tasks=["a", "a", "b", "b", "c"])
    0.5
    """
    scores = per_task(_auc, y, score, tasks)[1]
    return _average(scores, "rows of both classes")


def per_task(
    metric: Metric, y: ArrayLike, prediction: ArrayLike, tasks: ArrayLike
) -> tuple[NDArray[Any], Floats]:
    """Return the tasks' ids, sorted, and the metric of each one's own rows.

    Parameters
    ----------
    metric : callable
        Takes targets and predictions, returns a number; e.g. one of scikit-learn's.
    y, prediction : array-like of shape (n_samples,) or (n_samples, ...)
        Targets, and what was predicted for them.
    tasks : array-like of shape (n_samples,)
        One task id a row.

    Privacy
    -------
    Each score belongs to its task alone. Averaged over tasks and told outside of them it is a release.

    Examples
    --------
    >>> from sklearn.metrics import accuracy_score
    >>> ids, scores = per_task(accuracy_score, [0, 1, 1], [0, 1, 0], ["b", "a", "b"])
    >>> ids.tolist(), scores.tolist()
    (['a', 'b'], [1.0, 0.5])
    """
    truth, guess = _paired(y, prediction)
    names = task_ids(tasks)
    if len(names) != len(truth):
        raise InputError(
            f"tasks must name one task a row: y has {counted(len(truth), 'row')}, tasks {len(names)}."
        )
    ids, inverse = np.unique(names, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(inverse, minlength=len(ids)))[:-1])
    return ids, np.array([float(metric(truth[rows], guess[rows])) for rows in groups])


@dataclass(frozen=True, repr=False)
class Spread:
    """How a score varies over tasks; made by `spread`.

    Attributes
    ----------
    n_tasks : int
        Tasks that have a score.
    mean, deviation : float
        Mean over tasks, and standard deviation (of these tasks, not of a population).
    worst_decile : float
        Mean over the tenth of the tasks, rounded up, with the lowest scores.
    low, median, high : float
        The 10, 50 and 90 % quantiles over tasks.
    """

    n_tasks: int
    mean: float
    deviation: float
    worst_decile: float
    low: float
    median: float
    high: float

    def __repr__(self) -> str:
        return (
            f"private diagnostics: not private, keep at home\n{self.n_tasks} tasks: mean {self.mean:.4g}, "
            f"worst decile {self.worst_decile:.4g}, quantiles 10/50/90 % {self.low:.4g} / {self.median:.4g} "
            f"/ {self.high:.4g}, standard deviation {self.deviation:.4g}"
        )


def spread(values: ArrayLike) -> Spread:
    """Summarise a score over tasks: how good on average, and how good for those it serves worst.

    Parameters
    ----------
    values : array-like of shape (n_tasks,)
        One score a task, e.g. of `per_task`; more is better, so pass a loss with a minus. Undefined scores
        (NaN) are left out.

    Privacy
    -------
    All of it is computed from private scores, without noise. One task can move each of these numbers; they
    are for those who hold the rows of every task, and never for the billboard.

    Examples
    --------
    >>> spread([0.5, 0.9, 0.8, 1.0, 0.7])
    private diagnostics: not private, keep at home
    5 tasks: mean 0.78, worst decile 0.5, quantiles 10/50/90 % 0.58 / 0.8 / 0.96, standard deviation 0.172
    """
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or np.isinf(scores).any():
        raise InputError("values must be one finite score a task, or NaN where there is none.")
    mean, known = _average(scores, "a score"), np.sort(scores[~np.isnan(scores)])
    low, median, high = np.quantile(known, [0.1, 0.5, 0.9]).tolist()
    worst = known[: -(-len(known) // 10)].mean()
    return Spread(len(known), mean, float(known.std()), float(worst), low, median, high)


def _paired(y: ArrayLike, prediction: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    truth, guess = np.asarray(y), np.asarray(prediction)
    if truth.ndim == 0 or guess.ndim == 0 or len(truth) != len(guess) or not len(truth):
        raise InputError(
            "Targets and predictions must have one entry a row, and at least one row. "
            f"Got shapes {truth.shape} and {guess.shape}."
        )
    return truth, guess


def _nmse(y: NDArray[Any], prediction: NDArray[Any]) -> float:
    spread = float(np.square(y - y.mean()).sum())
    return float(np.square(y - prediction).sum()) / spread if spread > 0 else np.nan


def _auc(y: NDArray[Any], score: NDArray[Any]) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(y, score)) if len(np.unique(y)) == 2 else np.nan


def _average(scores: Floats, what: str) -> float:
    known = scores[~np.isnan(scores)]
    if not len(known):
        raise InputError(f"There is nothing to average: no task has {what}.")
    return float(known.mean())
