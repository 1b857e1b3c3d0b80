"""Predictions of counts: deviations, and intervals between whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray
from scipy.special import betainc

from cloister.core.arrays import Floats
from cloister.tables.targets import Count

#: Points at which the normal law of a score is integrated.
_POINTS = 15
#: Logarithms of means are not told apart beyond this.
_LARGEST = 100.0


@dataclass(frozen=True, eq=False, repr=False)
class CountPredictions:
    """Counts to come: negative binomial around a mean whose logarithm is normal.

    Attributes
    ----------
    target : Count
        Its public bounds.
    score, variance : arrays of shape (rows,)
        Mean and variance of the logarithm of the mean.
    spread : array of shape (rows,)
        What the variance has beyond Poisson, over the square of the mean.
    """

    target: Count
    score: Floats
    variance: Floats
    spread: Floats

    @property
    def deviations(self) -> Floats:
        """Standard deviation of each count: no more than public bounds allow."""
        score, variance = np.minimum(self.score, _LARGEST), np.minimum(self.variance, _LARGEST)
        mean, square = np.exp(score + variance / 2), np.exp(2 * score + 2 * variance)
        found = np.sqrt(mean + self.spread * square + np.maximum(square - np.square(mean), 0.0))
        return np.asarray(np.minimum(found, (self.target.high - self.target.low) / 2))

    def interval(self, unknown: NDArray[np.bool_], coverage: float) -> tuple[Floats, Floats]:
        """Return both ends, each the first whole number with its part of the probability at or below it.

        Examples
        --------
        >>> one = CountPredictions(Count("y", 0, 50), np.log([4.0, 4.0]), np.zeros(2), np.array([1e-6, 1.0]))
        >>> [end.tolist() for end in one.interval(np.array([False, False]), 0.9)]
        [[1.0, 0.0], [8.0, 13.0]]
        """
        low, high = (self._quantile(part) for part in ((1 - coverage) / 2, (1 + coverage) / 2))
        bounds = self.target.low, self.target.high
        return np.where(unknown, bounds[0], low), np.where(unknown, bounds[1], high)

    def _quantile(self, part: float) -> Floats:
        below = np.full(len(self.score), self.target.low - 1)  # the first number is above it
        reached = np.full(len(self.score), self.target.high)
        while (reached - below > 1).any():
            middle = np.floor((below + reached) / 2)
            enough = self._up_to(middle) >= part
            reached, below = np.where(enough, middle, reached), np.where(enough, below, middle)
        return reached

    def _up_to(self, count: Floats) -> Floats:
        """Return the probability of each count and all below."""
        points, weights = hermegauss(_POINTS)
        scores = self.score[:, None] + np.sqrt(self.variance)[:, None] * points
        r = 1 / self.spread[:, None]
        success = 1 / (1 + self.spread[:, None] * np.exp(np.minimum(scores, _LARGEST)))
        below = betainc(r, np.maximum(count, 0.0)[:, None] + 1, success)
        return np.where(count < 0, 0.0, np.asarray(below @ (weights / weights.sum())))
