r"""Learning the relationship of tasks (MTRL), and its version with noise (DP-MTRL), for comparison.

MTRL finds who resembles whom, as an m x m matrix, and is not private:

.. math::
    \min_{W, \Omega}\ \sum_i \frac{1}{2 n_i} |y_i - X_i w_i|^2 + \frac{\lambda_1}{2}\,|W|^2
        + \frac{\lambda_2}{2}\,\mathrm{tr}(W'\Omega^{-1}W), \qquad \Omega \succeq 0,\ \mathrm{tr}\,\Omega = m

with one task a row of W. The update of :math:`\Omega` needs :math:`WW'` between *tasks*, which is no sum of
messages: its sensitivity grows with the number of tasks. So it is a plain function, and no algorithm with a
plan and a guarantee.

References
----------
Y. Zhang and D.-Y. Yeung, "A convex formulation for learning task relationships in multi-task learning",
UAI 2010 (arXiv:1203.3536), equation (5) and section 3.1 (MTRL). S. K. Gupta, S. Rana and S. Venkatesh,
"Differentially private multi-task learning", PAISI 2016, Algorithm 1 (DP-MTRL), as described and amended in
arXiv:1809.06546, section 5.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.tasks import Tasks
from cloister.errors import InputError
from cloister.learners.linear.ridge import statistics

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
            back = stats.vectors.swapaxes(1, 2)
            gram[index] = (stats.vectors * stats.values[:, None, :]) @ back / count[:, None, None]
            cross[index] = (stats.vectors @ stats.along[..., None])[..., 0] / count[:, None]
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


@dataclass(frozen=True)
class Noisy:
    """What DP-MTRL comes to: the models before the last noise, and with it."""

    exact: Floats
    weights: Floats


def dp_mtrl(
    tasks: Tasks, penalty: Relationship, budgets: Sequence[float], seed: int = 0, *, quiet: bool = False
) -> Noisy:
    r"""Run DP-MTRL, which adds noise to every task's weights in every round.

    Each round solves for W, adds noise to every task's weights and learns the relationship from the noisy
    weights; the last noisy weights are the result. With rows of norm at most 1, one of them moves W by at
    most :math:`s_i = 2L_i / (n_i(\lambda_1 + \lambda_2/\lambda_{\max}(\Omega)))`. The paper's words ask for
    noise of density :math:`\propto e^{-\epsilon_t|b|/s_i}`. It prints a ratio of noise to signal that is a
    thousand times smaller than they give; the quiet reading comes near to it.

    Privacy
    -------
    **None that the library vouches for.** The published claim is :math:`\epsilon_t` a round for one row of
    one task; `round_budgets` and `instance_budget` turn it into a claim for a whole task. But the gradients
    :math:`L_i` and the sizes are read from the data and not paid for, and each task's noise covers the change
    of its own weights alone although one row moves the others' too. Both mean less noise than a proof
    would ask for: the comparison favours it. The quiet reading has no claim at all.

    Parameters
    ----------
    tasks, penalty
        As in `mtrl`; the rounds are those of `budgets`.
    budgets : sequence of float
        Epsilon for one row, round by round.
    seed : int
        Of the noise, which is for comparisons only.
    quiet : bool
        Whether penalties go with sums over rows while the scale of the noise is that for means (so that it is
        n_i times smaller), and every weight has a Laplace noise of that scale of its own.

    Examples
    --------
    >>> tasks = Tasks.from_list([[[1.0]], [[1.0]]], [[2.0], [4.0]])
    >>> penalty = Relationship(coupling=1.0)
    >>> low, high = (dp_mtrl(tasks, penalty, [budget]).weights for budget in (1e6, 1e-6))
    >>> low.round(3).tolist(), bool(np.abs(high).min() > 1e3)
    ([[1.0], [2.0]], True)
    """
    sums, rng = _Sums.of(tasks), np.random.default_rng(seed)
    omega = np.eye(len(tasks))
    exact = weights = np.zeros_like(sums.cross)
    for budget in budgets:
        exact = _solve(sums, omega, penalty)
        curvature = penalty.lam + penalty.coupling / float(np.linalg.eigvalsh(omega)[-1])
        scale = 2 * _gradients(tasks, exact) / (tasks.sizes * curvature) / budget
        if quiet:
            weights = exact + (scale / tasks.sizes)[:, None] * rng.laplace(size=exact.shape)
        else:
            weights = exact + laplace_ball(rng, scale, (len(exact), exact.shape[1]))
        omega = _relate(weights)
    return Noisy(exact, np.asarray(weights))


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
