"""Averaging over candidate priors by a task's own evidence: what each task does at home, for free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloister.arrays import Floats

__all__ = [
    "Candidate",
    "every_class",
    "evidence_weights",
    "loose_intercept",
    "normal_on_grid",
    "own_candidates",
]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A public guess at the prior: mean, a factor L of its covariance LL' up to scale, and its weight.

    `shared` says whether the prior's scale follows what the tasks said about it, or is free (flat).
    """

    weight: float
    mean: Floats
    factor: Floats
    shared: bool


def evidence_weights(log_evidence: list[Floats], log_prior: list[Floats]) -> list[Floats]:
    """Turn each candidate's log evidence on its grid into posterior weights that sum to one per task."""
    scores = [evidence + prior for evidence, prior in zip(log_evidence, log_prior, strict=True)]
    axes = tuple(range(1, scores[0].ndim))
    top = np.max([score.max(axis=axes) for score in scores], axis=0)
    shape = (-1, *([1] * len(axes)))
    raw = [np.exp(score - top.reshape(shape)) for score in scores]
    total = sum(part.sum(axis=axes) for part in raw)
    return [part / np.reshape(total, shape) for part in raw]


def normal_on_grid(grid: Floats, center: float | Floats, sd: float) -> Floats:
    """Return log weights of a normal restricted to a grid (last axis), normalised on it."""
    score = -0.5 * ((grid - center) / sd) ** 2
    top = score.max(axis=-1, keepdims=True)
    normal: Floats = score - top - np.log(np.exp(score - top).sum(axis=-1, keepdims=True))
    return normal


def loose_intercept(dim: int, variance: float, intercept: bool) -> Floats:
    """Return the factor of I, with `variance` in place of 1 for the intercept if there is one."""
    diagonal = np.ones(dim)
    diagonal[0] = np.sqrt(variance) if intercept else 1.0
    return np.diag(diagonal)


def every_class(factor: Floats, size: int) -> Floats:
    """Repeat one class's factor along the diagonal, so that all classes are treated alike."""
    return np.asarray(np.kron(np.eye(size // len(factor)), factor), dtype=np.float64)


def own_candidates(size: int, dim: int, intercept: bool, weight: float) -> list[Candidate]:
    """Return the priors of a task on its own: zero mean, with and without a loose intercept.

    `size` is a multiple of `dim` when there are several classes; all are treated alike.
    """
    factors = [np.eye(size)] + ([every_class(loose_intercept(dim, 100.0, True), size)] if intercept else [])
    return [Candidate(weight / len(factors), np.zeros(size), factor, False) for factor in factors]
