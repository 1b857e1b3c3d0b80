r"""Public shapes that a number may have in a model: a logarithm, a root, steps, or a smooth curve.

Each turns a number between public bounds into columns whose encoded block :math:`z` has
:math:`\|z\|_2 \le 1`, attained: monotone ones map the bounds to -1 and 1, steps have one indicator at most
that is 1, and B-splines are not negative and sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from cloister.arrays import Floats
from cloister.errors import InputError

__all__ = ["IDENTITY", "TRANSFORM_WORDS", "Cuts", "Monotone", "Spline", "Transform"]


class Transform(Protocol):
    """How a number between ``low`` and ``high`` becomes columns, in units that a user can read."""

    def check(self, name: str, low: float, high: float) -> None:
        """Refuse bounds that it is not for."""

    def names(self, name: str, low: float, high: float) -> tuple[str, ...]:
        """Return the names of its columns."""

    def affine(self, low: float, high: float) -> tuple[float, float]:
        """Return what is taken off each column, and what it is then divided by, to be encoded."""

    def columns(self, values: Floats, low: float, high: float) -> Floats:
        """Return its columns of values within the bounds."""


@dataclass(frozen=True)
class Monotone:
    """A function of a number, one column: "log", "log1p", "sqrt", or the number itself.

    Examples
    --------
    >>> Monotone("log").names("income", 1, 1000), Monotone("sqrt").affine(0, 100)
    (('log(income)',), (5.0, 5.0))
    """

    word: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.word, str) or self.word not in _FUNCTIONS:
            raise InputError(
                f"A transform must be one of {', '.join(TRANSFORM_WORDS)}. Got {self.word!r}. Choose one, or "
                "give cuts or knots."
            )

    def check(self, name: str, low: float, high: float) -> None:
        with np.errstate(divide="ignore", invalid="ignore"):
            finite = np.isfinite(_FUNCTIONS[self.word](low))
        if not finite:
            raise InputError(
                f"{self.word} of {name!r} must be a finite number at its lower bound. Got bounds from "
                f"{low:g}. Raise the bound if that is publicly so, or use another transform."
            )

    def names(self, name: str, low: float, high: float) -> tuple[str, ...]:
        return (f"{self.word}({name})" if self.word else name,)

    def affine(self, low: float, high: float) -> tuple[float, float]:
        start, end = float(_FUNCTIONS[self.word](low)), float(_FUNCTIONS[self.word](high))
        half = (end - start) / 2
        return start + half, half

    def columns(self, values: Floats, low: float, high: float) -> Floats:
        return np.asarray(_FUNCTIONS[self.word](values))[:, None]


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "": np.positive,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
}
TRANSFORM_WORDS = tuple(word for word in _FUNCTIONS if word)
IDENTITY = Monotone()


@dataclass(frozen=True)
class Cuts:
    """Steps between public cut points: an indicator for each interval but the first.

    Examples
    --------
    >>> Cuts((18, 65)).names("age", 0, 120)
    ('age[18,65)', 'age[65,120]')
    >>> Cuts((18, 65)).columns(np.array([17.0, 18.0, 90.0]), 0, 120)
    array([[0., 0.],
           [1., 0.],
           [0., 1.]])
    """

    points: Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", tuple(map(float, self.points)))

    def check(self, name: str, low: float, high: float) -> None:
        _check_inside("cuts", name, self.points, low, high)

    def names(self, name: str, low: float, high: float) -> tuple[str, ...]:
        between = (f"{name}[{start:g},{end:g})" for start, end in pairwise(self.points))
        return (*between, f"{name}[{self.points[-1]:g},{high:g}]")

    def affine(self, low: float, high: float) -> tuple[float, float]:
        return 0.0, 1.0

    def columns(self, values: Floats, low: float, high: float) -> Floats:
        interval = np.searchsorted(self.points, values, side="right")
        return np.asarray(interval[:, None] == np.arange(1, len(self.points) + 1), dtype=np.float64)


@dataclass(frozen=True)
class Spline:
    """A smooth curve: cubic B-splines with public knots, and the bounds as the outer ones.

    The functions are not negative and sum to 1, so that their squares sum to at most 1; at the upper bound
    the last is 1. The first is left out, because the intercept stands for the sum of all.

    Examples
    --------
    >>> Spline((40, 80)).columns(np.array([0.0, 40.0, 120.0]), 0, 120).round(3)
    array([[0.   , 0.   , 0.   , 0.   , 0.   ],
           [0.25 , 0.583, 0.167, 0.   , 0.   ],
           [0.   , 0.   , 0.   , 0.   , 1.   ]])
    """

    knots: Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "knots", tuple(map(float, self.knots)))

    def check(self, name: str, low: float, high: float) -> None:
        _check_inside("knots", name, self.knots, low, high)

    def names(self, name: str, low: float, high: float) -> tuple[str, ...]:
        return tuple(f"{name}[spline {i}]" for i in range(1, len(self.knots) + _DEGREE + 1))

    def affine(self, low: float, high: float) -> tuple[float, float]:
        return 0.0, 1.0

    def columns(self, values: Floats, low: float, high: float) -> Floats:
        """Return de Boor's recursion from steps to cubic functions, without the first."""
        at = np.array([low] * (_DEGREE + 1) + list(self.knots) + [high] * (_DEGREE + 1))
        inside = np.clip(np.searchsorted(at, values, side="right") - 1, _DEGREE, len(at) - _DEGREE - 2)
        basis = np.asarray(inside[:, None] == np.arange(len(at) - 1), dtype=np.float64)
        x = values[:, None]
        for degree in range(1, _DEGREE + 1):
            left, right = at[:-degree], at[degree:]
            width = np.where(right > left, right - left, 1.0)  # a function on an empty interval is zero
            up, down = (x - left) / width, (right - x) / width
            basis = up[:, :-1] * basis[:, :-1] + down[:, 1:] * basis[:, 1:]
        return np.clip(basis[:, 1:], 0.0, 1.0)


_DEGREE = 3


def _check_inside(word: str, name: str, points: Sequence[float], low: float, high: float) -> None:
    inner = [low, *points, high]
    if (
        not points
        or not all(math.isfinite(point) for point in points)
        or any(start >= end for start, end in pairwise(inner))
    ):
        raise InputError(
            f"{word} of {name!r} must be numbers between its bounds {low:g} and {high:g}, increasing. Got "
            f"{list(points)}. Write points that are publicly meaningful, such as {word} = "
            f"[{(low + high) / 2:g}]."
        )
