r"""Modes and Laplace evidence under any likelihood of a score, for a whole block of tasks at once.

A task has coordinates :math:`u \sim N(0, t I)` and minus a log-likelihood :math:`f(u)`. Fitted is the
minimum of :math:`f(u) + |u|^2 / 2t`, by Newton's method. Steps are downhill by design. The curvature is
never negative. A step whose whole length would change a score by :math:`\beta` changes none by more than
:math:`\log(1 + \beta)`, which is still downhill if the third derivative of the likelihood in the score is no
larger than the second (see `cloister.learners.linear.softmax`). And it is halved for as long as the objective
is not lower. Rows never mix, and a task that has converged is left alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats, Integers
from cloister.learners.linear.newton import factor_diagonals, factors_of, inverses
from cloister.learners.linear.softmax import NEGLIGIBLE

#: What a step must bring at least, of what a straight line would; and how often it is halved.
_SUFFICIENT, _HALVINGS = 1e-4, 40
#: Rounding of an objective, relative to it.
_ROUNDING = 1e-13


@dataclass(frozen=True, eq=False, repr=False)
class Slope:
    """Minus the log-likelihood of every task at a point, with gradient and curvature."""

    value: Floats  # (k,)
    gradient: Floats  # (k, p)
    curvature: Floats  # (k, p, p)


class Likelihood(ABC):
    """The rows of a block of tasks as a function of coordinates u, (k, p)."""

    #: A task is done when a step is no longer than this, relative to its coordinates.
    tolerance: ClassVar[float] = 1e-9

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Tasks and coordinates."""

    @abstractmethod
    def take(self, tasks: Integers) -> Self:
        """Return some of the tasks."""

    @abstractmethod
    def value(self, u: Floats) -> Floats:
        """Return minus the log-likelihood, (k,)."""

    @abstractmethod
    def slope(self, u: Floats) -> Slope:
        """Return value, gradient and curvature."""

    @abstractmethod
    def reach(self, step: Floats) -> Floats:
        """Return by how much a step changes any row's score at most, (k,)."""


@dataclass(frozen=True, eq=False, repr=False)
class ModesByVariance:
    """Modes and Laplace evidence of every task under each prior variance. Private to the tasks."""

    variances: Floats  # (L,)
    mode: Floats  # (k, L, p)
    log_evidence: Floats  # (k, L)
    _rows: Likelihood = field(repr=False)

    def posterior(self, average: Floats) -> tuple[Floats, Floats]:
        r"""Return mean and covariance of the coordinates, averaged over the variances.

        .. math:: \bar u = \sum_l a_l u_l, \qquad
            \sum_l a_l \left[ (H_l + I/t_l)^{-1} + (u_l - \bar u)(u_l - \bar u)^\top \right]
        """
        mean = (average[:, None, :] @ self.mode)[:, 0]
        covariance = np.zeros((*mean.shape, mean.shape[1]))
        for i, t in enumerate(self.variances):
            used = np.flatnonzero(average[:, i] > NEGLIGIBLE)
            if not len(used):
                continue
            at = self.mode[used, i]
            away = at - mean[used]
            inside = t * inverses(t * self._rows.take(used).slope(at).curvature)
            covariance[used] += average[used, i, None, None] * (inside + away[:, :, None] * away[:, None, :])
        return mean, covariance


def modes_by_variance(rows: Likelihood, variances: Floats) -> ModesByVariance:
    r"""Fit every task under each of several prior variances, with the evidence for each.

    .. math:: -f(u^*) - \frac{|u^*|^2}{2t} - \frac12 \log\det(I + t H)
    """
    (k, p), point = rows.shape, np.zeros(rows.shape)
    modes, evidence = np.empty((k, len(variances), p)), np.empty((k, len(variances)))
    for i in np.argsort(variances, kind="stable"):
        t = float(variances[i])
        point = find_mode(rows, t, point)
        there = rows.slope(point)
        diagonals = factor_diagonals(t * there.curvature)
        evidence[:, i] = -there.value - np.square(point).sum(axis=1) / (2 * t) - np.log(diagonals).sum(axis=1)
        modes[:, i] = point
    return ModesByVariance(variances, modes, evidence, rows)


def find_mode(rows: Likelihood, variance: float, start: Floats | None = None, max_iter: int = 60) -> Floats:
    """Return the most probable coordinates of every task under one prior variance."""
    found = np.zeros(rows.shape) if start is None else start.copy()
    left, here = np.arange(len(found)), rows
    for _ in range(max_iter):
        moved, done = _step(here, variance, found[left])
        found[left] = moved
        if done.all():
            break
        if done.any():
            left, here = left[~done], here.take(np.flatnonzero(~done))
    return found


def _step(rows: Likelihood, t: float, u: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Return each task's next point, and whether it is as good as the mode."""
    there = rows.slope(u)
    total = u / t + there.gradient
    lower = factors_of(t * there.curvature)
    half = np.linalg.solve(lower, total[:, :, None])
    step = -t * np.linalg.solve(lower.swapaxes(1, 2), half)[:, :, 0]
    done = np.sqrt(np.square(step).sum(axis=1)) <= rows.tolerance * (1 + np.sqrt(np.square(u).sum(axis=1)))
    beta = rows.reach(step)
    length = np.where(beta > 1, np.log1p(beta) / np.maximum(beta, 1.0), 1.0)
    before = there.value + np.square(u).sum(axis=1) / (2 * t)
    downhill, slack = (total * step).sum(axis=1), _ROUNDING * (1 + np.abs(before))
    for _ in range(_HALVINGS):
        trial = u + length[:, None] * step
        after = rows.value(trial) + np.square(trial).sum(axis=1) / (2 * t)
        short = ~(after <= before + _SUFFICIENT * length * downhill + slack)
        if not short.any():
            break
        length = np.where(short, length / 2, length)
    return u + length[:, None] * step, np.asarray(done)
