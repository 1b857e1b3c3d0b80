r"""Models to compare with, fitted over all tasks at once: single-task, pooled, and by task relationships.

Single-task and pooled ridge models have penalties chosen by cross-validation. With `own=True` a task chooses
from its own rows: nothing leaves it, and epsilon is 0. A penalty common to all tasks, and the pooled model,
are chosen from everyone's data without noise: NOT PRIVATE.

Task-relationship learning finds who resembles whom, as an m x m matrix, and is not private either:

.. math::
    \min_{W, \Omega}\ \sum_i \frac{1}{2 n_i} |y_i - X_i w_i|^2 + \frac{\lambda_1}{2}\,|W|^2
        + \frac{\lambda_2}{2}\,\mathrm{tr}(W'\Omega^{-1}W), \qquad \Omega \succeq 0,\ \mathrm{tr}\,\Omega = m

with one task a row of W. The update of :math:`\Omega` needs :math:`WW'` between *tasks*, which is no sum of
messages: its sensitivity grows with the number of tasks. So it is a plain function too, and no algorithm with
a plan and a guarantee.

References
----------
Y. Zhang and D.-Y. Yeung, "A convex formulation for learning task relationships in multi-task learning",
UAI 2010 (arXiv:1203.3536), equation (5) and section 3.1 (MTRL). S. K. Gupta, S. Rana and S. Venkatesh,
"Differentially private multi-task learning", PAISI 2016, Algorithm 1 (DP-MTRL), as described and amended in
arXiv:1809.06546, section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cloister.core.arrays import Array, Floats
from cloister.core.errors import InputError
from cloister.core.tasks import Block, Tasks
from cloister.learners.linear.losses import Logistic
from cloister.learners.linear.ridge import ridge_fit, statistics, summary

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


#: Singular values that are added to those of W, as a share of the largest.
SMOOTHING = 0.01


@dataclass(frozen=True)
class Relationship:
    r"""Penalties of task-relationship learning.

    Parameters
    ----------
    lam : float
        :math:`\lambda_1`, the ridge.
    coupling : float
        :math:`\lambda_2`, the penalty between related tasks; more than 0.
    rounds : int
        How often `mtrl` solves for W; the relationship is learned in between.
    """

    lam: float = 0.0
    coupling: float = 0.01
    rounds: int = 20

    def __post_init__(self) -> None:
        if not (self.lam >= 0 and self.coupling > 0 and self.rounds >= 1):
            raise InputError(f"lam must be >= 0, coupling > 0 and rounds at least 1. Got {self}.")


@dataclass(frozen=True, eq=False, repr=False)
class _Sums:
    """X'X/n and X'y/n of every task."""

    gram: Floats
    cross: Floats

    @classmethod
    def of(cls, tasks: Tasks) -> _Sums:
        dim = tasks.X.shape[1]
        gram, cross = np.zeros((len(tasks), dim, dim)), np.zeros((len(tasks), dim))
        layout = tasks.layout()
        for index, block in zip(layout, tasks.blocks(layout), strict=True):
            stats = statistics(block.X, block.y, block.weight)
            count = np.maximum(stats.count, 1e-300)
            gram[index] = stats.gram / count[:, None, None]
            cross[index] = stats.cross / count[:, None]
        return cls(gram, cross)


def mtrl(tasks: Tasks, penalty: Relationship, relationship: Floats | None = None) -> tuple[Floats, Floats]:
    """Learn weights and the relationship of tasks by turns. NOT PRIVATE: everyone's data enter everywhere.

    Parameters
    ----------
    tasks : Tasks
        All data, in one place.
    penalty : Relationship
        Strengths and number of rounds.
    relationship : array of shape (tasks, tasks), optional
        Keep to this matrix instead of learning one; the identity is ridge regression, task by task.

    Returns
    -------
    weights, relationship : arrays of shapes (tasks, features) and (tasks, tasks)
        What was learned.

    Examples
    --------
    >>> tasks = Tasks.from_list([[[1.0]], [[1.0]]], [[2.0], [4.0]])
    >>> mtrl(tasks, Relationship(coupling=1.0), np.eye(2))[0].round(6).tolist()
    [[1.0], [2.0]]
    """
    sums = _Sums.of(tasks)
    omega = np.eye(len(tasks)) if relationship is None else np.asarray(relationship, dtype=np.float64)
    weights = _solve(sums, omega, penalty)
    if relationship is None:
        for _ in range(penalty.rounds - 1):
            omega = _relate(weights)
            weights = _solve(sums, omega, penalty)
        omega = _relate(weights)
    return weights, omega


def dp_mtrl(tasks: Tasks, penalty: Relationship, budgets: Sequence[float], seed: int = 0) -> Floats:
    r"""Return the weights of DP-MTRL, which adds noise to every task's weights in every round.

    Each round solves for W, adds to every task's weights noise of density
    :math:`\propto e^{-\epsilon_t|b|/s_i}` and learns the relationship from the noisy weights; the last noisy
    weights are the result. With rows of norm at most 1, one of them moves W by at most
    :math:`s_i = 2L_i / (n_i(\lambda_1 + \lambda_2/\lambda_{\max}(\Omega)))`.

    Privacy
    -------
    **None that the library vouches for.** The published claim is :math:`\epsilon_t` a round for one row of
    one task; `round_budgets` and `instance_budget` turn it into a claim for a whole task. But the gradients
    :math:`L_i` and the sizes are read from the data and not paid for, and each task's noise covers the change
    of its own weights alone although one row moves the others' too. Both mean less noise than a proof
    would ask for: the comparison favours it.

    Parameters
    ----------
    tasks, penalty
        As in `mtrl`; the rounds are those of `budgets`.
    budgets : sequence of float
        Epsilon for one row, round by round.
    seed : int
        Of the noise, which is for comparisons only.

    Examples
    --------
    >>> tasks = Tasks.from_list([[[1.0]], [[1.0]]], [[2.0], [4.0]])
    >>> penalty = Relationship(coupling=1.0)
    >>> quiet, loud = (dp_mtrl(tasks, penalty, [budget]) for budget in (1e6, 1e-6))
    >>> quiet.round(3).tolist(), bool(np.abs(loud).min() > 1e3)
    ([[1.0], [2.0]], True)
    """
    sums, rng = _Sums.of(tasks), np.random.default_rng(seed)
    omega, weights = np.eye(len(tasks)), np.zeros_like(sums.cross)
    for budget in budgets:
        exact = _solve(sums, omega, penalty)
        curvature = penalty.lam + penalty.coupling / float(np.linalg.eigvalsh(omega)[-1])
        sensitivity = 2 * _gradients(tasks, exact) / (tasks.sizes * curvature)
        weights = exact + laplace_ball(rng, sensitivity / budget, exact.shape)
        omega = _relate(weights)
    return np.asarray(weights)


def laplace_ball(rng: np.random.Generator, scale: Floats, shape: tuple[int, int]) -> Floats:
    """Draw rows with density proportional to exp(-|b| / scale): any direction, Gamma(dim) length."""
    direction = rng.standard_normal(shape)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return np.asarray(direction * (scale * rng.gamma(shape[1], size=shape[0]))[:, None])


def _gradients(tasks: Tasks, weights: Floats) -> Floats:
    """Return the largest gradient of each task's loss at its weights, over its rows."""
    owner = np.repeat(np.arange(len(tasks)), tasks.sizes)
    residual = np.abs(np.einsum("nd,nd->n", tasks.X, weights[owner]) - tasks.y)
    return np.asarray(np.maximum.reduceat(residual, tasks.offsets[:-1]))


def _relate(weights: Floats) -> Floats:
    """Return the best relationship for given weights: (WW' + smoothing)^(1/2), scaled to trace m.

    Without smoothing W could never leave the span of its first solution, d directions among m tasks.
    """
    left, values, _ = np.linalg.svd(weights, full_matrices=False)
    floor = SMOOTHING * float(values[0])
    if floor == 0:
        return np.eye(len(weights))
    omega = floor * np.eye(len(weights)) + (left * (np.hypot(values, floor) - floor)) @ left.T
    return np.asarray(omega * (len(weights) / np.trace(omega)))


def _solve(sums: _Sums, omega: Floats, penalty: Relationship) -> Floats:
    """Solve for W given the relationship, by conjugate gradients in V with W = Omega^(1/2) V.

    No inverse of the relationship is needed, which may be singular.
    """
    from scipy.sparse.linalg import LinearOperator, cg

    values, vectors = np.linalg.eigh(omega)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    shape = sums.cross.shape

    def apply(flat: Floats) -> Floats:
        spread = root @ flat.reshape(shape)
        pulled = (sums.gram @ spread[..., None])[..., 0] + penalty.lam * spread
        return np.asarray(root @ pulled + penalty.coupling * flat.reshape(shape)).ravel()

    size = sums.cross.size
    flat, _ = cg(LinearOperator((size, size), apply), (root @ sums.cross).ravel(), rtol=1e-9, maxiter=2000)
    return np.asarray(root @ flat.reshape(shape))
