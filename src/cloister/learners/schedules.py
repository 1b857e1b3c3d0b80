"""How a step size changes from round to round, or from step to step: public, and known beforehand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cloister.arrays import is_real
from cloister.errors import InputError

__all__ = ["Cosine", "Schedule", "WarmUp"]


@runtime_checkable
class Schedule(Protocol):
    """What a step size is multiplied by, as a function of a number that everybody knows."""

    def factor(self, at: int) -> float:
        """Return the factor of round, or step, number `at`, from 0."""


@dataclass(frozen=True)
class WarmUp:
    """Rise linearly to the full step size, and stay there.

    Parameters
    ----------
    length : int
        How many rounds, or steps, it takes; the last of them has the full size.

    Examples
    --------
    >>> [WarmUp(4).factor(at) for at in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    length: int

    def __post_init__(self) -> None:
        _check_length(self.length)

    def factor(self, at: int) -> float:
        return min(1.0, (at + 1) / self.length)


@dataclass(frozen=True)
class Cosine:
    """Fall from the full step size along half a cosine, and stay where that ends.

    Parameters
    ----------
    length : int
        How many rounds, or steps, it takes, the rise included.
    warm_up : int
        So many of them rise linearly first.
    floor : float
        What is left at the end, as a share of the full size.

    Examples
    --------
    >>> [round(Cosine(4).factor(at), 3) for at in range(6)]
    [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    >>> [round(Cosine(6, warm_up=2, floor=0.5).factor(at), 3) for at in range(8)]
    [0.5, 1.0, 1.0, 0.927, 0.75, 0.573, 0.5, 0.5]
    """

    length: int
    warm_up: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_length(self.length)
        numbers = is_real(self.warm_up) and is_real(self.floor)
        if not (numbers and 0 <= self.warm_up < self.length and 0 <= self.floor <= 1):
            raise InputError(
                "warm_up must be less than length, and floor a share in [0, 1]. "
                f"Got {self.warm_up} of {self.length}, and {self.floor}."
            )

    def factor(self, at: int) -> float:
        if at < self.warm_up:
            return (at + 1) / self.warm_up
        gone = min(1.0, (at - self.warm_up) / (self.length - self.warm_up))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * gone)) / 2


def _check_length(length: int) -> None:
    if not (is_real(length) and length >= 1):
        raise InputError(
            f"length must be a number, at least 1, the rounds or steps that it takes. Got {length!r}."
        )
