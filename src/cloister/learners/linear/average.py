"""Averaging over candidate priors by a task's own evidence: what each task does at home, for free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloister.core.arrays import Floats, States


@dataclass(frozen=True, eq=False)
class Candidate:
    """A public guess at the prior: mean, a factor L of its covariance LL' up to scale, and its weight.

    What the weights of all candidates leave of 1 is the weight of the task's own prior, in its own units.
    `shared` says whether the prior's scale follows what the tasks said about it, or is free (flat). With
    `own_units`, LL' is the covariance of how a task's weights in its own units differ from the mean's. How
    much of the mean was `heard` is the part of its square that is not noise; 0 if nobody knows its units.
    One that is `tested` must foresee rows that are left out, as well as the own prior does: evidence is kind
    to a narrow prior at a wrong place. With an `own_level` it is of slopes alone, around the task's level.
    """

    weight: float
    mean: Floats
    factor: Floats
    shared: bool
    own_units: bool = False
    heard: float = 1.0
    tested: bool = False
    own_level: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """What one kind of prior makes of every task's rows, and how well it foresaw their targets.

    Attributes
    ----------
    log_evidence : array of shape (tasks,)
        Log marginal likelihood of the targets, times the prior weight; in units that all kinds share.
    coef, covariance : arrays of shapes (tasks, size) and (tasks, size, size)
        Mean and covariance of the weights, in public units.
    noise : array of shape (tasks,), optional
        Expected noise variance, for regression.
    """

    log_evidence: Floats
    coef: Floats
    covariance: Floats
    noise: Floats | None = None


def mixture(parts: list[Posterior]) -> States:
    """Average posteriors by their evidence: the first two moments of the mixture."""
    weights = chances(parts)
    coef = np.zeros_like(parts[0].coef)
    for chance, part in zip(weights.T, parts, strict=True):
        coef += chance[:, None] * part.coef
    covariance = np.zeros_like(parts[0].covariance)
    for chance, part in zip(weights.T, parts, strict=True):
        away = part.coef - coef
        covariance += chance[:, None, None] * (part.covariance + away[:, :, None] * away[:, None, :])
    models = {"coef": coef, "covariance": covariance}
    noise = [part.noise for part in parts if part.noise is not None]
    return models | ({"noise": (weights * np.stack(noise, axis=1)).sum(axis=1)} if noise else {})


def chances(parts: list[Posterior]) -> Floats:
    """Return the share of each kind of prior in every task, (tasks, kinds), by its evidence."""
    return weighed(np.stack([part.log_evidence for part in parts], axis=1))[1]


def log_sum(scores: Floats) -> Floats:
    """Return log sum exp over all axes but the first."""
    flat = scores.reshape(len(scores), -1)
    top = flat.max(axis=1)
    return np.asarray(top + np.log(np.exp(flat - top[:, None]).sum(axis=1)))


def weighed(scores: Floats) -> tuple[Floats, Floats]:
    """Return log sum exp of each task's scores (all axes but the first), and their shares of that sum."""
    axes = tuple(range(1, scores.ndim))
    top = scores.max(axis=axes, keepdims=True)
    shares = np.exp(scores - top)
    total = shares.sum(axis=axes, keepdims=True)
    shares /= total
    return (top + np.log(total)).reshape(len(scores)), shares


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
