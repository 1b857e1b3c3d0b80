"""What a task says of a model of its own, and how the public model follows from the noisy mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from cloister.errors import PlanError

if TYPE_CHECKING:
    from cloister.board.billboard import Billboard

__all__ = ["Increment", "Offset", "Position"]

Array = Any  # of NumPy, or of torch on another device


@dataclass(frozen=True)
class Offset:
    """Say how far the model is from the public one: noise does not add up over rounds."""

    keeps: ClassVar[tuple[str, ...]] = ()  # what the board remembers of the start

    def message(self, new: Array, old: Array, board: Billboard) -> Array:
        return new - board["mean"]

    def step(self, noisy: Array, board: Billboard) -> Array:
        return noisy


@dataclass(frozen=True)
class Increment:
    """Say how far the model moved in this round.

    The public model is the start plus the mean over *all* tasks of all they have said, so a noisy sum is
    divided by the number of tasks and not by the number that take part in a round.

    Parameters
    ----------
    share : float
        The probability that a task takes part in a round, as in the plan's sampling: 1 for `Everyone`.
    """

    share: float
    keeps: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise PlanError(f"share must be the sampling's probability, in (0, 1]. Got {self.share}.")

    def message(self, new: Array, old: Array, board: Billboard) -> Array:
        return new - old

    def step(self, noisy: Array, board: Billboard) -> Array:
        """Divide by all tasks."""
        return self.share * noisy


@dataclass(frozen=True)
class Position:
    """Say where the model is, measured from the public start; the public model forgets its past."""

    keeps: ClassVar[tuple[str, ...]] = ("start",)

    def message(self, new: Array, old: Array, board: Billboard) -> Array:
        return new - board["start"]

    def step(self, noisy: Array, board: Billboard) -> Array:
        """Return the way from the last public model to the new one."""
        return board["start"] + noisy - board["mean"]
