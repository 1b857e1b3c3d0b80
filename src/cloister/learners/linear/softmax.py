r"""Bayesian logistic and multinomial regression, for a whole block of tasks at once.

Class 0 is the reference: with :math:`C` classes a task has :math:`q = C - 1` weight vectors :math:`v_c`, and

.. math:: p(y = c \mid x) \propto e^{s_c}, \qquad s_0 = 0, \quad s_c = o_c + x^\top v_c,

with a given offset :math:`o`. Two classes are plain logistic regression. The prior treats all classes alike,
the reference included: :math:`v \sim N(0, t K \otimes I)` with :math:`K = (I + 11^\top)/2` is what the
differences from class 0 have if all C classes have weights of their own, of variance :math:`t/2`. With
:math:`AA^\top = K` the mode is :math:`v = (A \otimes I) u` for the :math:`u` that minimises

.. math:: f(u) = -\sum_n a_n \log p(y_n \mid x_n) + \frac{|u|^2}{2t}

with :math:`a_n` the weight of row :math:`n`. A prior :math:`w \sim N(m, t K \otimes L L^\top)` is the same
problem on the features :math:`x L` with offset :math:`x m`; then :math:`w = m + (I \otimes L) v`.

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
the last steps are full, so that convergence is fast.

*Few weights* are solved for by Cholesky factors, all tasks at once. *More than* 32 are solved for by
conjugate gradients on the Newton equations, with the preconditioner

.. math:: I + t\, A^\top\! \bar S A \otimes \sum_n a_n x_n x_n^\top, \qquad
    \bar S = \sum_n a_n (\mathrm{diag}\, p_n - p_n p_n^\top) / \sum_n a_n,

whose inverse is cheap in the eigenvectors of its two factors. Conjugate gradients from zero stop at a step
:math:`s` whose residual is orthogonal to it, so that :math:`-s^\top \nabla f = s^\top \nabla^2\! f\, s =
\lambda^2` and all of the above holds for a step that is not quite Newton's. A task that they do not
serve (absurd numbers) is solved for by its own Cholesky factor. Then features are first turned to their
principal axes, of which a task has no more than rows; across these the prior stays as it is.

*Rows never mix.* Every product is one small product per task, a task that has converged is frozen by a
mask, and one whose data cannot be used counts as a task without data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotri

from cloister.arrays import Array, Floats, Integers
from cloister.errors import InputError

__all__ = ["NEGLIGIBLE", "LaplaceFit", "laplace", "mode", "posterior", "probabilities"]


# Up to these, no square or product below can overflow. A task beyond the first two counts as without data.
_LARGEST_FEATURE = 1e100
_LARGEST_WEIGHT = 1e30
_LARGEST_VARIANCE = 1e20
_SHORT = 0.5  # a step that changes no score by more is taken as it is
_DOUBLINGS = 60
_ROUNDING = 1e-13  # of a pivot, relative to the diagonal it came from
_FEW_WEIGHTS = 32  # up to so many, a factor of all tasks at once is quicker than one for each
_FORCING = 1e-2  # which share of the gradient conjugate gradients may leave
_MOST_CONJUGATE = 60
#: A prior of less weight than that is left out of a posterior.
NEGLIGIBLE = 1e-10


@dataclass(frozen=True, eq=False, repr=False)
class _Rows:
    """The usable rows of a block, all others zeroed; the class axis comes before the row axis."""

    X: Floats  # (k, n, d)
    offset: Floats  # (k, q, n)
    target: NDArray[np.bool_]  # (k, q, n), one-hot without the reference class
    weight: Floats  # (k, n)

    def take(self, tasks: Integers) -> _Rows:
        return _Rows(self.X[tasks], self.offset[tasks], self.target[tasks], self.weight[tasks])


@dataclass(frozen=True, eq=False, repr=False)
class _Axes:
    """Principal axes of every task's features: of what is orthogonal to them its rows say nothing."""

    vectors: Floats  # (k, d, r)
    squares: Floats  # (k, r), eigenvalues of X'AX

    def turn(self, v: Floats) -> Floats:
        return np.asarray(v @ self.vectors)

    def back(self, v: Floats) -> Floats:
        return np.asarray(v @ self.vectors.swapaxes(1, 2))


@dataclass(frozen=True, eq=False, repr=False)
class _Point:
    """Coordinates with the scores, and the chances and the gradient of minus the log-likelihood there."""

    v: Floats  # (k, q, d), the module's u
    scores: Floats  # (k, q, n)
    chance: Floats  # (k, q, n)
    rest: Floats  # (k, q, n)
    gradient: Floats  # (k, q, d)


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
    _axes: _Axes | None = field(repr=False)


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

    .. math:: \log p(y \mid u^*) - \frac{|u^*|^2}{2t} - \frac12 \log\det(I + t H),

    with :math:`u^*` the mode and :math:`H` the Hessian of minus the log-likelihood there.

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
    start = None if start is None else _unmixed(start)
    rows, axes, start = _prepared(_usable(X, offset, y, weight, classes), start)
    variances = _checked(variances)
    k, _, d = X.shape
    modes = np.empty((k, len(variances), classes - 1, d))
    evidence = np.empty((k, len(variances)))
    point = _first(rows, start, variances.min())
    for i in np.argsort(variances, kind="stable"):
        t = variances[i]
        point = _newton(rows, axes, t, point, tol, max_iter)
        diagonals = _diagonals(t * _curvature(rows, point))
        evidence[:, i] = -_objective(rows, point.v, point.scores, t) - np.log(diagonals).sum(axis=-1)
        modes[:, i] = _mixed(point.v if axes is None else axes.back(point.v))
    return LaplaceFit(variances, modes, evidence, rows, axes)


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
    start = None if start is None else _unmixed(start)
    rows, axes, start = _prepared(_usable(X, offset, y, weight, classes), start)
    t = _checked(np.array([variance]))[0]
    v = _newton(rows, axes, t, _first(rows, start, t), tol, max_iter).v
    return _mixed(v if axes is None else axes.back(v))


def posterior(fit: LaplaceFit, average: Floats) -> tuple[Floats, Floats]:
    r"""Mean and covariance of the weights, averaged over the prior variances.

    .. math:: \bar v = \sum_l a_l v_l, \qquad
        \sum_l a_l \big[ (H_l + K^{-1} \otimes I/t_l)^{-1} + (v_l - \bar v)(v_l - \bar v)^\top \big]

    Parameters
    ----------
    fit : LaplaceFit
    average : ndarray of shape (k, L)
        How much each task trusts each variance; a row sums to 1. What is below 1e-10 is left out.

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
    for i, t in enumerate(fit.variances):
        used = np.flatnonzero(average[:, i] > NEGLIGIBLE)
        if not len(used):
            continue
        apart = fit.mode[used, i].reshape(len(used), q * d) - mean[used]
        inside = _within(fit, i, t, used) + apart[:, :, None] * apart[:, None, :]
        covariance[used] += average[used, i, None, None] * inside
    return mean.reshape(k, q, d), covariance


def _within(fit: LaplaceFit, i: int, t: float, tasks: Integers) -> Floats:
    """Return some tasks' covariances under one prior variance, of weights v."""
    rows, v = fit._rows.take(tasks), _unmixed(fit.mode[tasks, i])
    if fit._axes is None:
        return t * _mixed_twice(_inverses(t * _curvature(rows, _at(rows, v, _scores(rows, v)))), v.shape[1])
    axes = _Axes(fit._axes.vectors[tasks], fit._axes.squares[tasks])
    v = axes.turn(v)
    less = _inverses(t * _curvature(rows, _at(rows, v, _scores(rows, v))))
    less -= np.eye(
        less.shape[1]
    )  # what the rows say, along their axes; across them the prior is left as it is
    (k, q, r), d = v.shape, axes.vectors.shape[1]
    V = axes.vectors[:, None]
    there = V @ less.reshape(k, q, r, q * r)  # from (a, i), (b, j) to (a, x), (b, j)
    both = there.reshape(k, q * d, q, r).swapaxes(1, 2) @ V.swapaxes(2, 3)
    return t * _mixed_twice(np.eye(q * d) + both.swapaxes(1, 2).reshape(k, q * d, q * d), q)


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


def _mixed(v: Floats, axis: int = 1) -> Floats:
    """Multiply by A along the classes: weights, from coordinates in which the prior is isotropic."""
    q = v.shape[axis]
    if q == 1:
        return v
    return np.asarray((v + (math.sqrt(q + 1) - 1) / q * v.sum(axis=axis, keepdims=True)) / math.sqrt(2))


def _unmixed(v: Floats) -> Floats:
    """Return the coordinates of weights, the inverse of `_mixed`."""
    q = v.shape[1]
    if q == 1:
        return v
    return np.asarray((v - (1 - 1 / math.sqrt(q + 1)) / q * v.sum(axis=1, keepdims=True)) * math.sqrt(2))


def _mixed_twice(matrix: Floats, q: int) -> Floats:
    """Multiply matrices (k, qd, qd) by A along the classes, from both sides."""
    if q == 1:
        return matrix
    (k, size, _), d = matrix.shape, matrix.shape[1] // q
    return _mixed(_mixed(matrix.reshape(k, q, d, q, d)), axis=3).reshape(k, size, size)


def _scores(rows: _Rows, v: Floats) -> Floats:
    return np.asarray(rows.offset + _mixed(v) @ rows.X.swapaxes(1, 2))


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


def _at(rows: _Rows, v: Floats, scores: Floats) -> _Point:
    """Chances and gradient of minus the log-likelihood."""
    chance, rest = _chances(scores)
    gradient = _mixed((rows.weight[:, None] * np.where(rows.target, -rest, chance)) @ rows.X)
    return _Point(v, scores, chance, rest, gradient)


def _curvature(rows: _Rows, point: _Point) -> Floats:
    """Hessians (k, qd, qd) of minus the log-likelihood."""
    k, q, d = point.v.shape
    curvature = np.empty((k, q, d, q, d))
    XT = rows.X.swapaxes(1, 2)
    for a in range(q):
        likely = rows.weight * point.chance[:, a]
        for b in range(a + 1):
            row_weight = likely * (point.rest[:, a] if a == b else -point.chance[:, b])
            block = (XT * row_weight[:, None]) @ rows.X
            curvature[:, a, :, b] = block
            curvature[:, b, :, a] = block.swapaxes(1, 2)
    return _mixed_twice(curvature.reshape(k, q * d, q * d), q)


def _prepared(rows: _Rows, start: Floats | None) -> tuple[_Rows, _Axes | None, Floats | None]:
    """Turn features, and where to start, to principal axes if there are many weights."""
    (_, q, n), d = rows.offset.shape, rows.X.shape[2]
    if q * d <= _FEW_WEIGHTS or not rows.X.size:
        return rows, None, start
    X, basis = rows.X, None
    if n < d:  # fewer axes than features, without the loss of accuracy that squares would bring
        basis = np.linalg.qr(X.swapaxes(1, 2))[0]
        X = X @ basis
    size = np.maximum(np.abs(X).reshape(len(X), -1).max(axis=1), 1e-300)[:, None, None]
    small = X / size
    squares, vectors = np.linalg.eigh((small * rows.weight[:, :, None]).swapaxes(1, 2) @ small)
    axes = _Axes(vectors if basis is None else basis @ vectors, np.maximum(squares, 0.0) * size[:, 0] ** 2)
    turned = _Rows(axes.turn(rows.X), rows.offset, rows.target, rows.weight)
    if start is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            start = axes.turn(start)
    return turned, axes, start


def _first(rows: _Rows, start: Floats | None, variance: float) -> _Point:
    """Start each task at ``start`` where that beats zero, else at zero."""
    k, q, _ = rows.offset.shape
    v = np.zeros((k, q, rows.X.shape[2]))
    if start is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            proposed = _objective(rows, start, _scores(rows, start), variance)
        better = proposed < _objective(rows, v, rows.offset, variance)
        v = np.where(better[:, None, None], start, v)
    return _at(rows, v, _scores(rows, v))


def _newton(
    rows: _Rows, axes: _Axes | None, variance: float, point: _Point, tol: float, max_iter: int
) -> _Point:
    """Minimise the objective of each task from ``point``; a task that is done stays as it is."""
    done = np.zeros(len(point.v), dtype=bool)
    for _ in range(max_iter):
        # Gradient and Hessian times the variance: the Hessian is then I + tH.
        total = variance * point.gradient + point.v
        if axes is None:
            step, left = _exact_step(rows, variance, point, total), np.zeros(len(done))
        else:
            close = tol / 4 * (1 + np.sqrt(_dot(point.v, point.v)))
            step, left = _short_step(rows, axes, variance, point, total, np.where(done, np.inf, close))
        change = _mixed(step) @ rows.X.swapaxes(1, 2)
        spread = np.maximum(change.max(axis=1), 0.0) - np.minimum(change.min(axis=1), 0.0)
        beta = np.where(done, 0.0, spread.max(axis=1, initial=0.0))
        length = _length(rows, variance, point, step, change, beta)[:, None, None]

        frozen = done[:, None, None]
        point = _at(
            rows,
            np.where(frozen, point.v, point.v + length * step),
            np.where(frozen, point.scores, point.scores + length * change),
        )
        # A full step leaves at most about beta / 2 of the distance, in the norm of the Hessian, which is at
        # least I; what is left of the gradient counts for no more than its length.
        distance = np.sqrt(np.maximum(-(step * total).sum(axis=(1, 2)), 0.0))
        size = np.sqrt(np.square(point.v).sum(axis=(1, 2)))
        done |= (beta <= _SHORT) & (distance * np.minimum(beta, _SHORT) / 2 + left <= tol * (1 + size))
        if done.all():
            break
    return point


def _dot(a: Floats, b: Floats) -> Floats:
    """Return each task's inner product, added up alike for any number of tasks."""
    return np.asarray((a * b).reshape(len(a), -1).sum(axis=1))


def _exact_step(rows: _Rows, variance: float, point: _Point, total: Floats) -> Floats:
    """Return Newton's step of every task."""
    k, q, d = total.shape
    right = -np.moveaxis(total.reshape(k, q * d, 1), 0, -1)
    factors = _cholesky(variance * _curvature(rows, point))
    return np.moveaxis(_solve(factors, right), -1, 0).reshape(total.shape)


def _short_step(
    rows: _Rows, axes: _Axes, variance: float, point: _Point, total: Floats, close: Floats
) -> tuple[Floats, Floats]:
    """Return Newton's step by conjugate gradients, and the length of what it leaves of the gradient.

    A task is done when that is `close` to zero, or a small share of the gradient.
    """
    q = total.shape[1]
    XT, chance = rows.X.swapaxes(1, 2), point.chance
    with np.errstate(all="ignore"):  # numbers that overflow fail their own task, solved for exactly then
        mass = np.maximum(rows.weight.sum(axis=1), 1e-300)[:, None, None]
        weighted = rows.weight[:, None] * chance
        spread = -(weighted / mass) @ chance.swapaxes(1, 2)
        spread[:, np.arange(q), np.arange(q)] = ((weighted / mass) * point.rest).sum(axis=2)
        spread = np.where(np.isfinite(spread).all(axis=(1, 2), keepdims=True), spread, 0.0)
        values, vectors = np.linalg.eigh(_mixed_twice(spread, q))
        kept = 1 + variance * np.maximum(values, 0.0)[:, :, None] * axes.squares[:, None]

        def preconditioned(r: Floats) -> Floats:
            return np.asarray(vectors @ ((vectors.swapaxes(1, 2) @ r) / kept))

        def hessian_times(s: Floats) -> Floats:
            change = _mixed(s) @ XT
            likely = chance * change
            others = likely.sum(axis=1, keepdims=True) - likely
            return np.asarray(s + variance * _mixed((weighted * (point.rest * change - others)) @ rows.X))

        step, residual = np.zeros_like(total), -total
        squared = _dot(residual, residual)
        goal = np.maximum(close, _FORCING * np.sqrt(squared)) ** 2
        direction = conditioned = preconditioned(residual)
        product = _dot(residual, conditioned)
        for _ in range(_MOST_CONJUGATE):
            going = squared > goal
            if not going.any():
                break
            image = hessian_times(direction)
            length = np.where(going, product / _dot(direction, image), 0.0)[:, None, None]
            step = np.where(going[:, None, None], step + length * direction, step)
            residual = np.where(going[:, None, None], residual - length * image, residual)
            squared = _dot(residual, residual)
            conditioned = preconditioned(residual)
            before, product = product, _dot(residual, conditioned)
            ratio = np.where(going, product / before, 0.0)[:, None, None]
            direction = conditioned + ratio * direction
        failed = np.flatnonzero(~(squared <= goal))
        left = np.sqrt(squared)
    if len(failed):
        rough = _Point(
            *(part[failed] for part in (point.v, point.scores, chance, point.rest, point.gradient))
        )
        step[failed] = _exact_step(rows.take(failed), variance, rough, total[failed])
        left[failed] = 0.0
    return step, left


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


def _factors(A: Floats) -> Floats:
    """Lower Cholesky factors (k, p, p) of ``I + A``, by LAPACK; a matrix that it refuses has its floors."""
    whole = A + np.eye(A.shape[1])
    try:
        return np.asarray(np.linalg.cholesky(whole), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.stack([_factor(one, raised) for one, raised in zip(A, whole, strict=True)])


def _factor(A: Floats, whole: Floats) -> Floats:
    try:
        return np.asarray(np.linalg.cholesky(whole), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.tril(_cholesky(A[None])[..., 0])


def _diagonals(A: Floats) -> Floats:
    """Diagonals (k, p) of the Cholesky factors of ``I + A``."""
    factors = _cholesky(A) if A.shape[1] <= _FEW_WEIGHTS else np.moveaxis(_factors(A), 0, -1)
    return np.ascontiguousarray(np.diagonal(factors))  # added alike for any k


def _inverses(A: Floats) -> Floats:
    """Inverses of ``I + A``."""
    k, p, _ = A.shape
    if p <= _FEW_WEIGHTS:
        identity = np.repeat(np.eye(p)[:, :, None], k, axis=2)
        return np.moveaxis(_solve(_cholesky(A), identity), -1, 0)
    inverses = np.empty_like(A)
    for inverse, factor in zip(inverses, _factors(A), strict=True):
        lower = dpotri(factor, lower=1)[0]
        inverse[:] = np.tril(lower) + np.tril(lower, -1).T
    return inverses
