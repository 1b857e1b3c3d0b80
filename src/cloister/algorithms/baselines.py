"""Models to compare with, fitted over all tasks at once: single-task and pooled.

Single-task and pooled ridge models have penalties chosen by cross-validation. With `own=True` a task chooses
from its own rows: nothing leaves it, and epsilon is 0. A penalty common to all tasks, and the pooled model,
are chosen from everyone's data without noise: NOT PRIVATE.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from cloister.core.arrays import Array, Floats
from cloister.core.tasks import Block, Tasks
from cloister.learners.linear.losses import Logistic
from cloister.learners.linear.ridge import ridge_fit, summary

#: Penalties for ridge, on sums of squares, and for lasso, on half their mean.
RIDGE_PENALTIES = np.geomspace(1e-4, 1e2, 19)
LASSO_PENALTIES = np.geomspace(1e-5, 1e-1, 17)
LOGISTIC_PENALTIES = np.geomspace(1e-4, 1e-1, 13)
#: Accelerated proximal steps for each l1 penalty, from the solution of the one before.
LOGISTIC_STEPS = 300
FOLDS = 5

#: Fits a block with row weights for all penalties: (tasks, penalties, features).
Path = Callable[[Block, Floats], Floats]
#: From scores and targets to each row's error.
Error = Callable[[Floats, Array], Floats]


def _squared(scores: Floats, y: Array) -> Floats:
    return np.square(scores - y)


def _log_loss(scores: Floats, y: Array) -> Floats:
    return np.asarray(np.logaddexp(0.0, scores) - y * scores)


def ridge(tasks: Tasks, own: bool = False, lambdas: ArrayLike = RIDGE_PENALTIES) -> Floats:
    r"""Fit :math:`|y - Xw|^2 + \lambda|w|^2` to every task, with one lambda for all or each its own.

    Parameters
    ----------
    tasks : Tasks
        Training data.
    own : bool
        Whether each task chooses lambda by its own cross-validation (nothing leaves it), or all share the
        one that is best over all tasks together (NOT PRIVATE).
    lambdas : array
        What to choose from.

    Returns
    -------
    array of shape (tasks, features)
        Weights.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 2))
    >>> ridge(Tasks.from_arrays(X, X @ [1.0, -1.0], np.arange(40) % 2)).round(2).tolist()
    [[1.0, -1.0], [1.0, -1.0]]
    """
    return _choose(tasks, _ridge_path(lambdas), own)


def lasso(tasks: Tasks, own: bool = False, lambdas: ArrayLike = LASSO_PENALTIES) -> Floats:
    r"""Fit :math:`\frac{1}{2n}|y - Xw|^2 + \lambda|w|_1` to every task; parameters as for `ridge`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 3))
    >>> lasso(Tasks.from_arrays(X, X[:, 0], np.arange(60) % 2), lambdas=[1e-3, 0.1]).round(2)[:, 0].tolist()
    [1.0, 1.0]
    """
    return _choose(tasks, _lasso_path(lambdas), own)


def l1_logistic(tasks: Tasks, own: bool = False, lambdas: ArrayLike = LOGISTIC_PENALTIES) -> Floats:
    r"""Fit :math:`\frac1n \sum_j \log(1 + e^{s_j}) - y_j s_j + \lambda|w|_1` with scores :math:`s = Xw`.

    Lasso's counterpart for targets 0 and 1; parameters as for `ridge`, choices by held-out log-loss.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> tasks = Tasks.from_arrays(X, X[:, 0] > 0, np.arange(200) % 2)
    >>> (l1_logistic(tasks, lambdas=[0.1]) != 0).tolist()  # noise is left out
    [[True, False, False], [True, False, False]]
    """
    Logistic(tasks.X.shape[1]).rows.check_labels(tasks.X, tasks.y)
    return _choose(tasks, _logistic_path(lambdas), own, _log_loss)


def pooled_ridge(tasks: Tasks, lambdas: ArrayLike = RIDGE_PENALTIES) -> Floats:
    """Fit one ridge to all rows of all tasks, lambda by cross-validation, and give it to each. NOT PRIVATE.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 1))
    >>> pooled_ridge(Tasks.from_arrays(X, X[:, 0], np.arange(60) % 2)).round(2).tolist()
    [[1.0], [1.0]]
    """
    together = Tasks(np.zeros(1), tasks.X, tasks.y, tasks.weight, np.array([0, len(tasks.y)]))
    return np.repeat(ridge(together, lambdas=lambdas), len(tasks), axis=0)


def _choose(tasks: Tasks, path: Path, own: bool, error_of: Error = _squared) -> Floats:
    """Fit every penalty, score it on held-out rows, and take the best for all or for each task."""
    layout = tasks.layout()
    blocks = list(tasks.blocks(layout))
    errors = [_held_out(block, path, error_of) for block in blocks]
    shared = int(np.argmin(sum(error.sum(axis=0) for error in errors)))
    weights = np.empty((len(tasks), tasks.X.shape[1]))
    for index, block, error in zip(layout, blocks, errors, strict=True):
        best = error.argmin(axis=1) if own else np.full(len(block), shared)
        weights[index] = path(block, block.weight)[np.arange(len(block)), best]
    return weights


def _held_out(block: Block, path: Path, error_of: Error) -> Floats:
    """Return errors on held-out rows, summed over folds: (tasks, penalties)."""
    draws = np.where(block.weight > 0, block.uniforms(0), np.inf)
    fold = np.argsort(np.argsort(draws, axis=1), axis=1) % FOLDS
    total: Floats = np.zeros(())
    for k in range(FOLDS):
        fitted = path(block, np.where(fold == k, 0.0, block.weight))
        errors = error_of(fitted @ block.X.swapaxes(1, 2), block.y[:, None, :])
        total = total + (np.where(fold == k, block.weight, 0.0)[:, None, :] * errors).sum(axis=2)
    return total


def _ridge_path(lambdas: ArrayLike) -> Path:
    def path(block: Block, weight: Floats) -> Floats:
        stats, dim = summary(block.X, block.y, weight), block.X.shape[2]
        return ridge_fit(stats, np.zeros(dim), np.eye(dim), np.asarray(lambdas), np.ones(1)).solutions

    return path


def _lasso_path(lambdas: ArrayLike) -> Path:
    from sklearn.linear_model import lasso_path

    order = np.argsort(-np.asarray(lambdas))

    def path(block: Block, weight: Floats) -> Floats:
        fitted = np.zeros((len(block), len(order), block.X.shape[2]))
        for i, root in enumerate(np.sqrt(weight)):
            rows = root > 0
            if rows.any():
                scale = root[rows] / np.sqrt(np.mean(root[rows] ** 2))
                X, y = block.X[i, rows] * scale[:, None], block.y[i, rows] * scale
                _, found, _ = lasso_path(X, y, alphas=np.asarray(lambdas)[order], max_iter=20_000)
                fitted[i, order] = found.T
        return fitted

    return path


def _logistic_path(lambdas: ArrayLike) -> Path:
    """Fit the strongest penalty first, by FISTA at each task's own pace; the next starts where it ended."""
    order = np.argsort(-np.asarray(lambdas))

    def path(block: Block, weight: Floats) -> Floats:
        loss = Logistic(block.X.shape[2])
        rate = (1 / np.maximum(loss.smoothness(block.X, weight), 1e-12))[:, None]
        fitted = np.zeros((len(block), len(order), loss.size))
        weights = np.zeros((len(block), loss.size))
        for at in order:
            previous = weights
            for step in range(LOGISTIC_STEPS):
                ahead = weights + step / (step + 3) * (weights - previous)
                moved = ahead - rate * loss.gradient(ahead, block.X, block.y, weight)
                shrunk = np.maximum(0.0, np.abs(moved) - rate * np.asarray(lambdas)[at])
                previous, weights = weights, np.sign(moved) * shrunk
            fitted[:, at] = weights
        return fitted

    return path
