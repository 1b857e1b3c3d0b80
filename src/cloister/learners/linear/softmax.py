r"""Bayesian logistic and multinomial regression, for a whole block of tasks at once.

Class 0 is the reference: with :math:`C` classes a task has :math:`q = C - 1` weight vectors :math:`v_c`, and

.. math:: p(y = c \mid x) \propto e^{s_c}, \qquad s_0 = 0, \quad s_c = o_c + x^\top v_c,

with a given offset :math:`o`. Two classes are plain logistic regression. The mode under the prior
:math:`v \sim N(0, t I)` minimises

.. math:: f(v) = -\sum_n a_n \log p(y_n \mid x_n) + \frac{|v|^2}{2t}

with :math:`a_n` the weight of row :math:`n`. A prior :math:`w \sim N(m, t L L^\top)` is the same problem
on the features :math:`x L` with offset :math:`x m`; then :math:`w = m + L v`.

Notes
-----
*Every step goes down.* Along a direction :math:`s`, the third derivative of :math:`f` is a sum of third
cumulants of the change in score, so it is at most :math:`\beta` times the second, where :math:`\beta` is
the largest spread over the classes of that change in any row. Hence, for the Newton direction with
decrement :math:`\lambda` and :math:`\varphi(\tau) = f(v + \tau s)`,

.. math:: \varphi'(\tau) \le -\lambda^2 + \lambda^2 (e^{\beta\tau} - 1) / \beta .

So the slope is still downhill at :math:`\tau = \log(1 + \beta) / \beta`, and, by integration, the full step
gains at least :math:`0.28 \lambda^2` if :math:`\beta \le 1`. That is where a step starts; a long one is then
doubled for as long as the slope at its end is downhill. No data can make it fail, separable or not, and
the last steps are full, so that convergence is quadratic.

*Rows never mix.* Every product is one small product per task, a task that has converged is frozen by a
mask, and one whose data cannot be used counts as a task without data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Array, Floats
from cloister.errors import InputError

__all__ = ["LaplaceFit", "laplace", "mode", "posterior", "probabilities"]


# Up to these, no square or product below can overflow. A task beyond the first two counts as without data.
_LARGEST_FEATURE = 1e100
_LARGEST_WEIGHT = 1e30
_LARGEST_VARIANCE = 1e20
_SHORT = 0.5  # a step that changes no score by more is taken as it is
_DOUBLINGS = 60
_ROUNDING = 1e-13  # of a pivot, relative to the diagonal it came from


@dataclass(frozen=True, eq=False, repr=False)
class _Rows:
    """The usable rows of a block, all others zeroed; the class axis comes before the row axis."""

    X: Floats  # (k, n, d)
    offset: Floats  # (k, q, n)
    target: NDArray[np.bool_]  # (k, q, n), one-hot without the reference class
    weight: Floats  # (k, n)


@dataclass(frozen=True, eq=False, repr=False)
class _Point:
    """Weights with the scores and the derivatives of minus the log-likelihood there."""

    v: Floats  # (k, q, d)
    scores: Floats  # (k, q, n)
    gradient: Floats  # (k, q, d)
    curvature: Floats  # (k, qd, qd)


@dataclass(frozen=True, eq=False)
class LaplaceFit:
    """Modes and Laplace evidence of every task under each prior variance.

    Private to the tasks, so its ``repr`` shows none of it. It keeps the data it was fitted to, for
    `posterior`; the covariances themselves would be L times as large.
    """

    variances: Floats  # (L,)
    mode: Floats = field(repr=False)  # (k, L, q, d)
    log_evidence: Floats = field(repr=False)  # (k, L)
    _rows: _Rows = field(repr=False)


def probabilities(scores: Floats) -> Floats:
    """Class probabilities (..., C) of the scores (..., q) of all classes but the reference, which has 0.

    Examples
    --------
    >>> probabilities(np.array([[0.0], [1000.0]]))
    array([[0.5, 0.5],
           [0. , 1. ]])
    """
    full = np.concatenate([np.zeros_like(scores[..., :1]), scores], axis=-1)
    mass = np.exp(full - full.max(axis=-1, keepdims=True))
    return np.asarray(mass / mass.sum(axis=-1, keepdims=True))


def laplace(
    X: Floats,
    offset: Floats | float,
    y: Array,
    weight: Floats,
    variances: Floats,
    *,
    classes: int,
    start: Floats | None = None,
    tol: float = 1e-10,
    max_iter: int = 50,
) -> LaplaceFit:
    r"""Fit every task under each of several prior variances, with the evidence for each.

    .. math:: \log p(y \mid v^*) - \frac{|v^*|^2}{2t} - \frac12 \log\det(I + t H),

    with :math:`v^*` the mode and :math:`H` the Hessian of minus the log-likelihood there.

    Parameters
    ----------
    X : ndarray of shape (k, n, d)
        Features. A task with data that are not finite, beyond 1e100 (weights: 1e30), or not a class
        counts as having no data.
    offset : ndarray of shape (k, n, q) or float
        Scores that the features do not explain.
    y : ndarray of shape (k, n)
        Class indexes from 0 to ``classes - 1``, of any dtype.
    weight : ndarray of shape (k, n)
        Weights of the rows; 0 marks padding.
    variances : ndarray of shape (L,)
        Prior variances in any order; each fit starts from the next smaller one.
    classes : int
        Number of classes, ``q + 1``.
    start : ndarray of shape (k, q, d), optional
        Where to start; tasks for which zero is better start there.
    tol : float
        A task is done within ``tol * (1 + |v|)`` of its mode, to first order.
    max_iter : int
        Most Newton steps for one variance.

    Examples
    --------
    A task whose rows say nothing keeps the prior, and no variance is better than another:

    >>> X = np.array([[[1.0], [-1.0]], [[0.0], [0.0]]])
    >>> y = np.array([[1, 0], [0, 1]])
    >>> fit = laplace(X, 0.0, y, np.ones((2, 2)), np.array([0.1, 1.0]), classes=2)
    >>> fit.mode[..., 0, 0].round(3)
    array([[0.095, 0.675],
           [0.   , 0.   ]])
    >>> fit.log_evidence.round(3)
    array([[-1.363, -1.236],
           [-1.386, -1.386]])
    """
    rows = _usable(X, offset, y, weight, classes)
    variances = _checked(variances)
    k, _, d = rows.X.shape
    modes = np.empty((k, len(variances), classes - 1, d))
    evidence = np.empty((k, len(variances)))
    point = _first(rows, start, variances.min())
    for i in np.argsort(variances, kind="stable"):
        t = variances[i]
        point = _newton(rows, t, point, tol, max_iter)
        diagonals = np.ascontiguousarray(np.diagonal(_cholesky(t * point.curvature)))  # added alike for any k
        evidence[:, i] = -_objective(rows, point.v, point.scores, t) - np.log(diagonals).sum(axis=-1)
        modes[:, i] = point.v
    return LaplaceFit(variances, modes, evidence, rows)


def mode(
    X: Floats,
    offset: Floats | float,
    y: Array,
    weight: Floats,
    variance: float,
    *,
    classes: int,
    start: Floats | None = None,
    tol: float = 1e-10,
    max_iter: int = 50,
) -> Floats:
    """Most probable weights (k, q, d) of every task under one prior variance; see `laplace`.

    Examples
    --------
    >>> X, y = np.array([[[1.0], [-1.0]]]), np.array([[1, 0]])
    >>> mode(X, 0.0, y, np.ones((1, 2)), 1.0, classes=2).round(3)
    array([[[0.675]]])
    """
    rows = _usable(X, offset, y, weight, classes)
    t = _checked(np.array([variance]))[0]
    return _newton(rows, t, _first(rows, start, t), tol, max_iter).v


def posterior(fit: LaplaceFit, average: Floats) -> tuple[Floats, Floats]:
    r"""Mean and covariance of the weights, averaged over the prior variances.

    .. math:: \bar v = \sum_l a_l v_l, \qquad
        \sum_l a_l \big[ (H_l + I/t_l)^{-1} + (v_l - \bar v)(v_l - \bar v)^\top \big]

    Parameters
    ----------
    fit : LaplaceFit
    average : ndarray of shape (k, L)
        How much each task trusts each variance; a row sums to 1.

    Returns
    -------
    mean : ndarray of shape (k, q, d)
    covariance : ndarray of shape (k, q * d, q * d)
        In the order of ``mean.reshape(k, -1)``.

    Examples
    --------
    >>> X, y = np.array([[[1.0], [-1.0]]]), np.array([[1, 0]])
    >>> fit = laplace(X, 0.0, y, np.ones((1, 2)), np.array([0.1, 1.0]), classes=2)
    >>> mean, covariance = posterior(fit, np.array([[0.0, 1.0]]))
    >>> covariance.round(3)
    array([[[0.691]]])
    """
    k, L, q, d = fit.mode.shape
    mean = (average[:, None, :] @ fit.mode.reshape(k, L, q * d))[:, 0]
    covariance = np.zeros((k, q * d, q * d))
    identity = np.repeat(np.eye(q * d)[:, :, None], k, axis=2)
    for i, t in enumerate(fit.variances):
        v = fit.mode[:, i]
        curvature = _derivatives(fit._rows, v, _scores(fit._rows, v)).curvature
        within = t * np.moveaxis(_solve(_cholesky(t * curvature), identity), -1, 0)
        apart = v.reshape(k, q * d) - mean
        covariance += average[:, i, None, None] * (within + apart[:, :, None] * apart[:, None, :])
    return mean.reshape(k, q, d), covariance


def _checked(variances: Floats) -> Floats:
    variances = np.array(variances, dtype=np.float64)
    if (
        variances.ndim != 1
        or not variances.size
        or not np.all((variances > 0) & (variances < _LARGEST_VARIANCE))
    ):
        raise InputError(f"variances must be numbers in (0, {_LARGEST_VARIANCE:g}). Got {variances!r}.")
    return variances


def _usable(X: Floats, offset: Floats | float, y: Array, weight: Floats, classes: int) -> _Rows:
    """Zero padding, and every row of a task with a value that is not finite, absurd or not a class."""
    if classes < 2:
        raise InputError(f"classes must be at least 2. Got {classes}.")
    k, n, _ = X.shape
    offset = np.broadcast_to(offset, (k, n, classes - 1))
    with np.errstate(invalid="ignore"):  # NaN fails every comparison
        sane = (np.abs(X) <= _LARGEST_FEATURE).all(axis=2) & (np.abs(offset) <= _LARGEST_FEATURE).all(axis=2)
        sane &= (y >= 0) & (y < classes) & (y == np.floor(y))
        weighted = (weight > 0) & (weight <= _LARGEST_WEIGHT)
        good = ((sane & weighted) | (weight == 0)).all(axis=1)
    keep = good[:, None] & weighted
    return _Rows(
        X=np.where(keep[:, :, None], X, 0.0),
        offset=np.where(keep[:, None, :], offset.swapaxes(1, 2), 0.0),
        target=keep[:, None, :] & (y[:, None, :] == np.arange(1, classes)[:, None]),
        weight=np.where(keep, weight, 0.0),
    )


def _scores(rows: _Rows, v: Floats) -> Floats:
    return np.asarray(rows.offset + v @ rows.X.swapaxes(1, 2))


def _exponentials(scores: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the largest score, and the exponentials of the scores and the reference's 0 less it."""
    top = np.maximum(scores.max(axis=1), 0.0)
    return top, np.exp(scores - top[:, None]), np.exp(-top)


def _chances(scores: Floats) -> tuple[Floats, Floats]:
    """Probabilities of being and of not being in each class but the reference.

    The second is summed from its terms rather than taken from 1, which keeps gradient and Hessian accurate
    where a class is all but certain.
    """
    _, mass, reference = _exponentials(scores)
    q = mass.shape[1]
    others = [sum((mass[:, b] for b in range(q) if b != a), start=reference) for a in range(q)]
    total = (reference + mass.sum(axis=1))[:, None]
    return mass / total, np.stack(others, axis=1) / total


def _objective(rows: _Rows, v: Floats, scores: Floats, variance: float) -> Floats:
    """Minus the log posterior, up to the constant of the prior."""
    top, mass, reference = _exponentials(scores)
    chosen = np.where(rows.target, scores, 0.0).sum(axis=1)
    log_likelihood = rows.weight * (chosen - top - np.log(reference + mass.sum(axis=1)))
    return np.asarray(np.square(v).sum(axis=(1, 2)) / (2 * variance) - log_likelihood.sum(axis=1))


def _derivatives(rows: _Rows, v: Floats, scores: Floats) -> _Point:
    """Gradient and Hessian of minus the log-likelihood."""
    k, q, d = v.shape
    chance, rest = _chances(scores)
    gradient = (rows.weight[:, None] * np.where(rows.target, -rest, chance)) @ rows.X
    curvature = np.empty((k, q, d, q, d))
    XT = rows.X.swapaxes(1, 2)
    for a in range(q):
        likely = rows.weight * chance[:, a]
        for b in range(a + 1):
            block = (XT * (likely * (rest[:, a] if a == b else -chance[:, b]))[:, None]) @ rows.X
            curvature[:, a, :, b] = block
            curvature[:, b, :, a] = block.swapaxes(1, 2)
    return _Point(v, scores, gradient, curvature.reshape(k, q * d, q * d))


def _first(rows: _Rows, start: Floats | None, variance: float) -> _Point:
    """Start each task at ``start`` where that beats zero, else at zero."""
    k, q, _ = rows.offset.shape
    v = np.zeros((k, q, rows.X.shape[2]))
    if start is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            proposed = _objective(rows, start, _scores(rows, start), variance)
        better = proposed < _objective(rows, v, rows.offset, variance)
        v = np.where(better[:, None, None], start, v)
    return _derivatives(rows, v, _scores(rows, v))


def _newton(rows: _Rows, variance: float, point: _Point, tol: float, max_iter: int) -> _Point:
    """Minimise the objective of each task from ``point``; a task that is done stays as it is."""
    k, p, _ = point.curvature.shape
    done = np.zeros(k, dtype=bool)
    for _ in range(max_iter):
        # Gradient and Hessian times the variance: the Hessian is then I + tH.
        total = variance * point.gradient + point.v
        right = -np.moveaxis(total.reshape(k, p, 1), 0, -1)
        step = np.moveaxis(_solve(_cholesky(variance * point.curvature), right), -1, 0).reshape(total.shape)
        change = step @ rows.X.swapaxes(1, 2)
        spread = np.maximum(change.max(axis=1), 0.0) - np.minimum(change.min(axis=1), 0.0)
        beta = np.where(done, 0.0, spread.max(axis=1, initial=0.0))
        length = _length(rows, variance, point, step, change, beta)[:, None, None]

        frozen = done[:, None, None]
        point = _derivatives(
            rows,
            np.where(frozen, point.v, point.v + length * step),
            np.where(frozen, point.scores, point.scores + length * change),
        )
        # A full step leaves at most about beta / 2 of the distance, in the norm of the Hessian.
        distance = np.sqrt(np.maximum(-(step * total).sum(axis=(1, 2)), 0.0))
        size = np.sqrt(np.square(point.v).sum(axis=(1, 2)))
        done |= (beta <= _SHORT) & (distance * np.minimum(beta, _SHORT) / 2 <= tol * (1 + size))
        if done.all():
            break
    return point


def _length(rows: _Rows, t: float, point: _Point, step: Floats, change: Floats, beta: Floats) -> Floats:
    """How far each task goes along its step: a length that is safe, doubled while that leads downhill."""
    length = np.where(beta > 1, np.log1p(beta) / np.maximum(beta, 1.0), 1.0)
    weighted = rows.weight[:, None] * change
    ridge = (point.v * step).sum(axis=(1, 2)) / t
    stiffness = np.square(step).sum(axis=(1, 2)) / t
    growing = beta > _SHORT
    for _ in range(_DOUBLINGS):
        if not growing.any():
            break
        trial = 2 * length
        chance, rest = _chances(point.scores + trial[:, None, None] * change)
        slope = (weighted * np.where(rows.target, -rest, chance)).sum(axis=(1, 2)) + ridge + trial * stiffness
        growing &= slope <= 0
        length = np.where(growing, trial, length)
    return length


def _cholesky(A: Floats) -> Floats:
    """Lower Cholesky factors of ``I + A`` for positive semi-definite matrices.

    In exact arithmetic every squared pivot is at least 1, since ``I + A`` and all its Schur complements are
    at least ``I``. Where rounding, which is relative to the diagonal, says otherwise, a floor puts it right:
    no matrix can fail, and so none can fail the others. Takes (k, p, p), returns (p, p, k); what is above
    the diagonal is meaningless.
    """
    L = np.array(np.moveaxis(A, 0, -1), order="C")
    least = 1.0 + _ROUNDING * np.diagonal(L).T
    for j in range(len(L)):
        L[j, j] = np.sqrt(np.maximum(L[j, j] + 1.0, least[j]))
        L[j + 1 :, j] /= L[j, j]
        L[j + 1 :, j + 1 :] -= L[j + 1 :, None, j] * L[None, j + 1 :, j]
    return L


def _solve(L: Floats, b: Floats) -> Floats:
    """Solve ``L L' x = b`` for factors (p, p, k) and right-hand sides (p, r, k)."""
    x = b.copy()
    for j in range(len(L)):
        x[j] /= L[j, j]
        x[j + 1 :] -= L[j + 1 :, j, None] * x[j]
    for j in reversed(range(len(L))):
        x[j] /= L[j, j]
        x[:j] -= L[j, :j, None] * x[j]  # a sum over tasks' numbers would add up otherwise for a task alone
    return x
