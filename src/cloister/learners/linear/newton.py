"""Newton's method for softmax regression on a block of tasks: every step of every task goes down.

Why that is so, and the notation, are in `cloister.learners.linear.softmax`. Here are the likelihood (rows
that can be used, scores, chances, slopes, curvature), the Cholesky factors of many small matrices I + A, none
of which can fail and spoil the others, and the steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotri, dpotrs

from cloister.core.arrays import Array, Floats, Integers
from cloister.core.errors import InputError

#: Up to so many rows, factors of all matrices at once are quicker than one for each.
FEW_WEIGHTS = 32
_ROUNDING = 1e-13  # of a pivot, relative to the diagonal it came from


def cholesky(A: Floats) -> Floats:
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


def solve(L: Floats, b: Floats) -> Floats:
    """Solve ``L L' x = b`` for factors (p, p, k) and right-hand sides (p, r, k)."""
    x = b.copy()
    for j in range(len(L)):
        x[j] /= L[j, j]
        x[j + 1 :] -= L[j + 1 :, j, None] * x[j]
    for j in reversed(range(len(L))):
        x[j] /= L[j, j]
        x[:j] -= L[j, :j, None] * x[j]  # a sum over tasks' numbers would add up otherwise for a task alone
    return x


def factors_of(A: Floats) -> Floats:
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
        return np.tril(cholesky(A[None])[..., 0])


def factor_diagonals(A: Floats, apart: bool = False) -> Floats:
    """Diagonals (k, p) of the Cholesky factors of ``I + A``."""
    together = A.shape[1] <= FEW_WEIGHTS and not apart
    factors = cholesky(A) if together else np.moveaxis(factors_of(A), 0, -1)
    return np.ascontiguousarray(np.diagonal(factors))  # added alike for any k


def inverses(A: Floats, apart: bool = False) -> Floats:
    """Inverses of ``I + A``."""
    k, p, _ = A.shape
    if p <= FEW_WEIGHTS and not apart:
        identity = np.repeat(np.eye(p)[:, :, None], k, axis=2)
        return np.moveaxis(solve(cholesky(A), identity), -1, 0)
    inverses = np.empty_like(A)
    for inverse, factor in zip(inverses, factors_of(A), strict=True):
        lower = dpotri(factor, lower=1)[0]
        inverse[:] = np.tril(lower) + np.tril(lower, -1).T
    return inverses


# Up to these, no square or product of rows can overflow. A task beyond them counts as without data.
LARGEST_FEATURE, LARGEST_WEIGHT = 1e100, 1e30


@dataclass(frozen=True, eq=False, repr=False)
class SoftmaxRows:
    """The usable rows of a block, all others zeroed; the class axis comes before the row axis.

    With `apart` every matrix is factored by itself: quicker for a few of them, with other last bits.
    """

    X: Floats  # (k, n, d)
    offset: Floats  # (k, q, n)
    target: NDArray[np.bool_]  # (k, q, n), one-hot without the reference class
    weight: Floats  # (k, n)
    apart: bool = False

    def take(self, tasks: Integers) -> SoftmaxRows:
        X, offset, target = self.X[tasks], self.offset[tasks], self.target[tasks]
        return SoftmaxRows(X, offset, target, self.weight[tasks], self.apart)


@dataclass(frozen=True, eq=False, repr=False)
class SoftmaxPoint:
    """Coordinates with the scores, and the chances and the gradient of minus the log-likelihood there."""

    v: Floats  # (k, q, d), the module's u
    scores: Floats  # (k, q, n)
    chance: Floats  # (k, q, n)
    rest: Floats  # (k, q, n)
    gradient: Floats  # (k, q, d)


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


def usable_rows(X: Floats, offset: Floats | float, y: Array, weight: Floats, classes: int) -> SoftmaxRows:
    """Zero padding, and every row of a task with a value that is not finite, absurd or not a class."""
    if classes < 2:
        raise InputError(f"classes must be at least 2. Got {classes}.")
    k, n, _ = X.shape
    offset = np.broadcast_to(offset, (k, n, classes - 1))
    with np.errstate(invalid="ignore"):  # NaN fails every comparison
        sane = (np.abs(X) <= LARGEST_FEATURE).all(axis=2) & (np.abs(offset) <= LARGEST_FEATURE).all(axis=2)
        sane &= (y >= 0) & (y < classes) & (y == np.floor(y))
        weighted = (weight > 0) & (weight <= LARGEST_WEIGHT)
        good = ((sane & weighted) | (weight == 0)).all(axis=1)
    keep = good[:, None] & weighted
    return SoftmaxRows(
        X=np.where(keep[:, :, None], X, 0.0),
        offset=np.where(keep[:, None, :], offset.swapaxes(1, 2), 0.0),
        target=keep[:, None, :] & (y[:, None, :] == np.arange(1, classes)[:, None]),
        weight=np.where(keep, weight, 0.0),
    )


def mixed(v: Floats, axis: int = 1) -> Floats:
    """Multiply by A along the classes: weights, from coordinates in which the prior is isotropic."""
    q = v.shape[axis]
    if q == 1:
        return v
    return np.asarray((v + (math.sqrt(q + 1) - 1) / q * v.sum(axis=axis, keepdims=True)) / math.sqrt(2))


def unmixed(v: Floats) -> Floats:
    """Return the coordinates of weights, the inverse of `mixed`."""
    q = v.shape[1]
    if q == 1:
        return v
    return np.asarray((v - (1 - 1 / math.sqrt(q + 1)) / q * v.sum(axis=1, keepdims=True)) * math.sqrt(2))


def mixed_twice(matrix: Floats, q: int) -> Floats:
    """Multiply matrices (k, qd, qd) by A along the classes, from both sides."""
    if q == 1:
        return matrix
    (k, size, _), d = matrix.shape, matrix.shape[1] // q
    return mixed(mixed(matrix.reshape(k, q, d, q, d)), axis=3).reshape(k, size, size)


def scores_at(rows: SoftmaxRows, v: Floats) -> Floats:
    return np.asarray(rows.offset + mixed(v) @ rows.X.swapaxes(1, 2))


def exponentials(scores: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the largest score, and the exponentials of the scores and the reference's 0 less it."""
    top = np.maximum(scores.max(axis=1), 0.0)
    return top, np.exp(scores - top[:, None]), np.exp(-top)


def chances(scores: Floats) -> tuple[Floats, Floats]:
    """Probabilities of being and of not being in each class but the reference.

    The second is summed from its terms rather than taken from 1, which keeps gradient and Hessian accurate
    where a class is all but certain.
    """
    _, mass, reference = exponentials(scores)
    q = mass.shape[1]
    others = [sum((mass[:, b] for b in range(q) if b != a), start=reference) for a in range(q)]
    total = (reference + mass.sum(axis=1))[:, None]
    return mass / total, np.stack(others, axis=1) / total


def objective(rows: SoftmaxRows, v: Floats, scores: Floats, variance: float) -> Floats:
    """Minus the log posterior, up to the constant of the prior."""
    top, mass, reference = exponentials(scores)
    chosen = np.where(rows.target, scores, 0.0).sum(axis=1)
    log_likelihood = rows.weight * (chosen - top - np.log(reference + mass.sum(axis=1)))
    return np.asarray(np.square(v).sum(axis=(1, 2)) / (2 * variance) - log_likelihood.sum(axis=1))


def point_at(rows: SoftmaxRows, v: Floats, scores: Floats) -> SoftmaxPoint:
    """Chances and gradient of minus the log-likelihood."""
    chance, rest = chances(scores)
    gradient = mixed((rows.weight[:, None] * np.where(rows.target, -rest, chance)) @ rows.X)
    return SoftmaxPoint(v, scores, chance, rest, gradient)


def curvature(rows: SoftmaxRows, point: SoftmaxPoint) -> Floats:
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
    return mixed_twice(curvature.reshape(k, q * d, q * d), q)


_SHORT = 0.5  # a step that changes no score by more is taken as it is
_DOUBLINGS = 60
_FORCING = 1e-2  # which share of the gradient conjugate gradients may leave
_MOST_CONJUGATE = 60


@dataclass(frozen=True, eq=False, repr=False)
class PrincipalAxes:
    """Principal axes of every task's features: of what is orthogonal to them its rows say nothing."""

    vectors: Floats  # (k, d, r)
    squares: Floats  # (k, r), eigenvalues of X'AX

    def turn(self, v: Floats) -> Floats:
        return np.asarray(v @ self.vectors)

    def back(self, v: Floats) -> Floats:
        return np.asarray(v @ self.vectors.swapaxes(1, 2))


def prepared(
    rows: SoftmaxRows, start: Floats | None
) -> tuple[SoftmaxRows, PrincipalAxes | None, Floats | None]:
    """Turn features, and where to start, to principal axes if there are many weights."""
    (_, q, n), d = rows.offset.shape, rows.X.shape[2]
    if q * d <= FEW_WEIGHTS or not rows.X.size:
        return rows, None, start
    X, basis = rows.X, None
    if n < d:  # fewer axes than features, without the loss of accuracy that squares would bring
        basis = np.linalg.qr(X.swapaxes(1, 2))[0]
        X = X @ basis
    size = np.maximum(np.abs(X).reshape(len(X), -1).max(axis=1), 1e-300)[:, None, None]
    small = X / size
    squares, vectors = np.linalg.eigh((small * rows.weight[:, :, None]).swapaxes(1, 2) @ small)
    axes = PrincipalAxes(
        vectors if basis is None else basis @ vectors, np.maximum(squares, 0.0) * size[:, 0] ** 2
    )
    turned = replace(rows, X=axes.turn(rows.X))
    if start is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            start = axes.turn(start)
    return turned, axes, start


def first_point(rows: SoftmaxRows, start: Floats | None, variance: float) -> SoftmaxPoint:
    """Start each task at ``start`` where that beats zero, else at zero."""
    k, q, _ = rows.offset.shape
    v = np.zeros((k, q, rows.X.shape[2]))
    if start is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            proposed = objective(rows, start, scores_at(rows, start), variance)
        better = proposed < objective(rows, v, rows.offset, variance)
        v = np.where(better[:, None, None], start, v)
    return point_at(rows, v, scores_at(rows, v))


def newton(
    rows: SoftmaxRows,
    axes: PrincipalAxes | None,
    variance: float,
    point: SoftmaxPoint,
    tol: float,
    max_iter: int,
) -> SoftmaxPoint:
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
        change = mixed(step) @ rows.X.swapaxes(1, 2)
        spread = np.maximum(change.max(axis=1), 0.0) - np.minimum(change.min(axis=1), 0.0)
        beta = np.where(done, 0.0, spread.max(axis=1, initial=0.0))
        length = _length(rows, variance, point, step, change, beta)[:, None, None]

        frozen = done[:, None, None]
        point = point_at(
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


def _exact_step(rows: SoftmaxRows, variance: float, point: SoftmaxPoint, total: Floats) -> Floats:
    """Return Newton's step of every task."""
    k, q, d = total.shape
    matrices = variance * curvature(rows, point)
    if rows.apart:
        each = zip(factors_of(matrices), -total.reshape(k, q * d), strict=True)
        return np.array([dpotrs(factor, right, lower=1)[0] for factor, right in each]).reshape(total.shape)
    right = -np.moveaxis(total.reshape(k, q * d, 1), 0, -1)
    factors = cholesky(matrices)
    return np.moveaxis(solve(factors, right), -1, 0).reshape(total.shape)


def _short_step(
    rows: SoftmaxRows, axes: PrincipalAxes, variance: float, point: SoftmaxPoint, total: Floats, close: Floats
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
        values, vectors = np.linalg.eigh(mixed_twice(spread, q))
        kept = 1 + variance * np.maximum(values, 0.0)[:, :, None] * axes.squares[:, None]

        def preconditioned(r: Floats) -> Floats:
            return np.asarray(vectors @ ((vectors.swapaxes(1, 2) @ r) / kept))

        def hessian_times(s: Floats) -> Floats:
            change = mixed(s) @ XT
            likely = chance * change
            others = likely.sum(axis=1, keepdims=True) - likely
            return np.asarray(s + variance * mixed((weighted * (point.rest * change - others)) @ rows.X))

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
        rough = SoftmaxPoint(
            *(part[failed] for part in (point.v, point.scores, chance, point.rest, point.gradient))
        )
        step[failed] = _exact_step(rows.take(failed), variance, rough, total[failed])
        left[failed] = 0.0
    return step, left


def _length(
    rows: SoftmaxRows, t: float, point: SoftmaxPoint, step: Floats, change: Floats, beta: Floats
) -> Floats:
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
        chance, rest = chances(point.scores + trial[:, None, None] * change)
        slope = (weighted * np.where(rows.target, -rest, chance)).sum(axis=(1, 2)) + ridge + trial * stiffness
        growing &= slope <= 0
        length = np.where(growing, trial, length)
    return length
