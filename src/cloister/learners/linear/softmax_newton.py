"""Newton's method for softmax regression on a block of tasks: every step of every task goes down.

Why that is so, and the notation, are in `cloister.learners.linear.softmax`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloister.arrays import Floats
from cloister.learners.linear import cholesky
from cloister.learners.linear.softmax_model import (
    SoftmaxPoint,
    SoftmaxRows,
    chances,
    curvature,
    mixed,
    mixed_twice,
    objective,
    point_at,
    scores_at,
)

__all__ = ["PrincipalAxes", "first_point", "newton", "prepared"]

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
    if q * d <= cholesky.FEW_WEIGHTS or not rows.X.size:
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
    turned = SoftmaxRows(axes.turn(rows.X), rows.offset, rows.target, rows.weight)
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
    right = -np.moveaxis(total.reshape(k, q * d, 1), 0, -1)
    factors = cholesky.cholesky(variance * curvature(rows, point))
    return np.moveaxis(cholesky.solve(factors, right), -1, 0).reshape(total.shape)


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
