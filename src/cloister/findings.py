"""What a board says beside its arrays: where rows are, what the population is like, what to start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Floats

if TYPE_CHECKING:
    from cloister.earlier import EarlierPrior

__all__ = ["ColumnLocation", "Findings", "Location", "Population"]


class Findings:
    """What an algorithm can tell from a board alone, hence for free; an algorithm that can tell more says so.

    `Algorithm.findings` returns one. Nothing is computed before it is asked for.
    """

    @property
    def location(self) -> Location | None:
        """Where targets are; None if nobody looked."""
        return None

    @property
    def population(self) -> Population | None:
        """The population that tasks come from, of a finished board; None if it says nothing of it."""
        return None

    @property
    def prior(self) -> EarlierPrior | None:
        """What a later plan can start from, of a finished board; None if there is nothing."""
        return None


@dataclass(frozen=True)
class ColumnLocation:
    """Where a board says that a column of features is, in encoded units: [-1, 1] are its bounds. Public.

    Attributes
    ----------
    column : int
        Its position in encoded rows, in which the intercept is column 0.
    center, unit : float
        Most of it is within a unit of the center.
    """

    column: int
    center: float
    unit: float


@dataclass(frozen=True)
class Location:
    """Where a board says that targets are, in encoded units: [-1, 1] are their bounds. Public.

    Attributes
    ----------
    center, unit : float
        Most targets are within a unit of the center.
    found : bool
        Whether the search found them; if not, these are the middle and half of the bounds.
    rounds : int
        Rounds of the search for them: none if an earlier board said it.
    columns : tuple of ColumnLocation
        The columns of features that were found in a part of their bounds.
    """

    center: float
    unit: float
    found: bool
    rounds: int
    columns: tuple[ColumnLocation, ...] = ()


@dataclass(frozen=True, eq=False)
class Population:
    """The population as a board tells it: weights on encoded columns. Public.

    None stands for what was not asked, or does not stand out of the noise.

    Attributes
    ----------
    mean : array of shape (size,), optional
        Estimate of the mean of the tasks' weights.
    significant : array of shape (size,)
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
    significant: NDArray[np.bool_]
    covariance: Floats | None = None
    scatter: Floats | None = None
    spread: Floats | None = None
    residual: float | None = None
    explained: float | None = None
