"""What a finished board says of the population that its tasks come from: public numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Floats

__all__ = ["Population"]


@dataclass(frozen=True, eq=False)
class Population:
    """The population as `Algorithm.population` reads it off a board: weights on encoded columns. Public.

    None stands for what was not asked, or not heard above the noise.

    Attributes
    ----------
    mean : array of shape (size,), optional
        Estimate of the mean of the tasks' weights.
    heard : array of shape (size,)
        Which of these stand out of the noise, so that the shared prior has them.
    covariance : array of shape (size, size), optional
        Of the estimate's error: noise, which tasks there are, and what is not known of how rows answer.
    scatter : array of shape (size, size), optional
        Covariance of what single tasks would say of themselves, the noise of their own rows included; None
        where they do not say how they scatter.
    spread : array of shape (size, size), optional
        Covariance between tasks, as the shared prior has it, at most as wide as the scatter.
    residual : float, optional
        Noise variance of a usual task.
    explained : float, optional
        The share of tasks whose rows the shared priors explain better than their own would.
    """

    mean: Floats | None
    heard: NDArray[np.bool_]
    covariance: Floats | None = None
    scatter: Floats | None = None
    spread: Floats | None = None
    residual: float | None = None
    explained: float | None = None

    def scaled(self, unit: float, mean: Floats | None) -> Population:
        """Return the same with targets measured in units so many times smaller, around another mean."""
        square = unit**2
        return Population(
            mean,
            self.heard,
            None if self.covariance is None else square * self.covariance,
            None if self.scatter is None else square * self.scatter,
            None if self.spread is None else square * self.spread,
            None if self.residual is None else square * self.residual,
            self.explained,
        )

    def turned(self, way: Floats) -> Population:
        """Return the same for other columns, on which weights are a linear function of these."""
        covariance, scatter, spread = (
            None if one is None else way @ one @ way.T for one in (self.covariance, self.scatter, self.spread)
        )
        mean = None if self.mean is None else way @ self.mean
        return Population(mean, self.heard, covariance, scatter, spread, self.residual, self.explained)
