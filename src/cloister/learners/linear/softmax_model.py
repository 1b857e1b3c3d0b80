"""The softmax likelihood of a block of tasks: rows that can be used, scores, chances, slopes and curvature.

Notation is that of `cloister.learners.linear.softmax`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Array, Floats, Integers
from cloister.errors import InputError

__all__ = [
    "SoftmaxPoint",
    "SoftmaxRows",
    "chances",
    "curvature",
    "exponentials",
    "mixed",
    "mixed_twice",
    "objective",
    "point_at",
    "probabilities",
    "scores_at",
    "unmixed",
    "usable_rows",
]

# Up to these, no square or product of rows can overflow. A task beyond them counts as without data.
LARGEST_FEATURE, LARGEST_WEIGHT = 1e100, 1e30


@dataclass(frozen=True, eq=False, repr=False)
class SoftmaxRows:
    """The usable rows of a block, all others zeroed; the class axis comes before the row axis."""

    X: Floats  # (k, n, d)
    offset: Floats  # (k, q, n)
    target: NDArray[np.bool_]  # (k, q, n), one-hot without the reference class
    weight: Floats  # (k, n)

    def take(self, tasks: Integers) -> SoftmaxRows:
        return SoftmaxRows(self.X[tasks], self.offset[tasks], self.target[tasks], self.weight[tasks])


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
