"""What a finished board says beside its arrays: where rows are, how tasks are alike, what to start from.

All of it is public: a later plan may start from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats
from cloister.core.errors import PlanError


class ReadFrom(Enum):
    """How numbers that a plan starts from came here, and so who vouches for them."""

    NOWHERE = "typed in"  #: They may be anybody's data, whatever head stands beside them.
    FILE = "a plan file"  #: Its author vouches for them; nobody has compared them with the board.
    BOARD = "a board"  #: It was verified here.


#: What is said of a plan that is read from a file.
NOT_COMPARED = (
    "What it starts from is as the plan file says: nobody here has compared it with the earlier board. If "
    "somebody else has written that file, ask for that run's folder, and type cloister verify --earlier."
)


@dataclass(frozen=True)
class EarlierPrior:
    """The prior on an earlier board: `plan.prior_on(board)` verifies the board and reads it off.

    A plan that starts from it holds all of these numbers, so its fingerprint covers them.

    Parameters
    ----------
    mean : tuple of float
        Mean of the tasks' weights; all zeros if it was not heard.
    variance : float
        Variance of the noise in each number of the mean.
    covariance : tuple of float
        Covariance of the tasks' clipped weights, row by row; empty if there is none.
    covariance_noise : float
        Deviation of the noise in it.
    known : tuple of str
        Questions about the prior's scale that were answered: they are not asked again.
    answers : tuple of tuple of float
        What the board says to each.
    center, unit : float
        Where targets were found to be and how wide they spread, which all of this is relative to, in the
        codebook's half-widths.
    found : int
        Whether they were: 0 if not, 1 for the place, 2 for the spread as well.
    source : str
        The head of the earlier board, in hexadecimal digits: whoever has the board can compare. One that is
        typed in vouches for nothing: the guarantee is void unless `plan.prior_on` or a plan file says it.
    doubts : tuple of str
        Reasons why the earlier run's guarantee does not hold; that of a plan which starts from it does not
        hold either.
    features : tuple of pairs of float
        Center and unit of each column of features that was looked for, which weights are relative to; empty
        if none was.

    Privacy
    -------
    All of it follows from noisy releases that the earlier run's tasks have paid for: using it is free. It is
    only as private as that run was, which is why `plan.prior_on` verifies that the board follows from its
    plan's releases, and hands on what makes its guarantee void.

    Examples
    --------
    >>> import numpy as np
    >>> earlier = EarlierPrior(mean=(0.4, -0.2), variance=0.01)
    >>> earlier.combined_mean(np.array([0.5, -0.1]), variance=0.01)[0].round(3).tolist()  # no more than noise
    [0.45, -0.15]
    >>> earlier.combined_mean(np.array([0.9, 0.3]), variance=0.01)[0].round(3).tolist()  # tasks have moved
    [0.876, 0.276]
    """

    mean: tuple[float, ...]
    variance: float
    covariance: tuple[float, ...] = ()
    covariance_noise: float = math.inf
    known: tuple[str, ...] = ()
    answers: tuple[tuple[float, ...], ...] = ()
    center: float = 0.0
    unit: float = 1.0
    found: int = 0
    source: str = ""
    doubts: tuple[str, ...] = ()
    features: tuple[tuple[float, float], ...] = ()
    read_from: ReadFrom = field(default=ReadFrom.NOWHERE, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.covariance) not in (0, len(self.mean) ** 2):
            raise PlanError(
                f"The covariance of {len(self.mean)} weights must have {len(self.mean) ** 2} numbers. "
                f"Got {len(self.covariance)}. Read it off a board: plan.prior_on(board)."
            )
        if len(self.known) != len(self.answers):
            raise PlanError(
                f"Each known question must have an answer. Got {len(self.known)} and {len(self.answers)}."
            )
        places = ((self.center, self.unit), *self.features)
        numbers = (*self.mean, *self.covariance, *(number for place in places for number in place))
        if not all(map(math.isfinite, numbers)) or not all(len(p) == 2 and p[1] > 0 for p in places):
            raise PlanError(
                "Means, covariances, centers and units must be finite, and units positive. Read them off a "
                "board: plan.prior_on(board)."
            )
        if not self.variance >= 0 or not self.covariance_noise >= 0:
            raise PlanError(
                f"Noise must not be negative. Got variance {self.variance} and covariance noise "
                f"{self.covariance_noise}."
            )

    def mark_read(self, read_from: ReadFrom) -> EarlierPrior:
        """Return it, marked: for who has verified its board, or reads a plan file."""
        object.__setattr__(self, "read_from", read_from)
        return self

    @property
    def objections(self) -> tuple[str, ...]:
        """Why the guarantee of a plan that starts from it does not hold, if it does not."""
        earlier = tuple(f"it starts from an earlier run, and {why}" for why in self.doubts)
        if self.source and self.read_from is not ReadFrom.NOWHERE:
            return earlier
        return (*earlier, "what it starts from was not read off a verified board (use Plan.prior_on)")

    def describe(self) -> str:
        """Return what a guarantee says of it."""
        return (
            f"the run starts from the earlier board {self.source[:16]}, which is public: tasks that took "
            "part in it have paid for it on their ledger, and epsilon here is what this run adds"
        )

    @property
    def heard_nothing(self) -> bool:
        """Whether neither where targets are nor where weights are stood out from the noise."""
        return not (self.found or any(self.mean))

    @property
    def said(self) -> dict[str, Floats]:
        """The known answers, by question."""
        return {name: np.array(answer) for name, answer in zip(self.known, self.answers, strict=True)}

    def combined_mean(self, mean: Floats, variance: float) -> tuple[Floats, float]:
        """Weigh a later mean against this one by their noise and by how far tasks have moved meanwhile.

        As far as the squared distance of both is more than two deviations above what the noise of either
        explains, tasks have moved. Returns the combined mean and the variance of its noise.
        """
        old, size = np.array(self.mean), len(self.mean)
        noise = self.variance + variance
        moved = float((mean - old) @ (mean - old)) - (size + 2 * math.sqrt(2 * size)) * noise
        total = noise + max(0.0, moved / size)
        weight = 1 - variance / total if total > 0 else 1.0
        return old + weight * (mean - old), weight**2 * variance + (1 - weight) ** 2 * self.variance

    def combined_covariance(self, covariance: Floats, noise: float) -> tuple[Floats, float]:
        """Weigh a later covariance against this one by their noise; return it and the noise's deviation."""
        if not self.covariance or noise == 0:
            return covariance, noise
        if math.isinf(noise):
            share = 0.0
        else:
            share = self.covariance_noise**2 / (self.covariance_noise**2 + noise**2)
        old = np.reshape(self.covariance, covariance.shape)
        left = (1 - share) * self.covariance_noise
        return old + share * (covariance - old), math.hypot(share * noise if share else 0.0, left)


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

    None stands for what was not asked, or does not stand out from the noise.

    Attributes
    ----------
    mean : array of shape (size,), optional
        Estimate of the mean of the tasks' weights.
    significant : array of shape (size,)
        Which of these stand out from the noise, so that the shared prior has them.
    covariance : array of shape (size, size), optional
        Of the estimate's error: noise, which tasks there are, and what is not known of how rows answer.
    scatter : array of shape (size, size), optional
        Covariance of what single tasks would say of themselves, the noise of their own rows included; None
        where they do not say how they scatter.
    spread : array of shape (size, size), optional
        Covariance between tasks, as the shared prior has it, at most as wide as the scatter.
    residual : float, optional
        Noise variance of a usual task.
    explained : tuple of float, optional
        How far tasks' own rows speak for the shared priors rather than for their own, and its standard error.
    """

    mean: Floats | None
    significant: NDArray[np.bool_]
    covariance: Floats | None = None
    scatter: Floats | None = None
    spread: Floats | None = None
    residual: float | None = None
    explained: tuple[float, float] | None = None
