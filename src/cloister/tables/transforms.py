r"""Public shapes that a number may have in a model: a logarithm, a root, steps, or a line that bends.

Each turns a number between public bounds into columns whose encoded block :math:`z` has
:math:`\|z\|_2 \le 1`, attained: monotone ones map the bounds to -1 and 1, steps have one indicator at most
that is 1, and B-splines are not negative and sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.errors import InputError
from cloister.tables.feature import require
from cloister.tables.reading import is_real

if TYPE_CHECKING:
    from cloister.tables.stock_blocks import StockBlock


class Transform(Protocol):
    """How a number between ``low`` and ``high`` becomes columns, in units that a user can read."""

    #: Whether it is one column, a number between bounds of its own.
    is_monotone: ClassVar[bool]

    def entry(self) -> dict[str, Any]:
        """Return its key in a codebook file, `transform_of` the other way; none if that is the default."""

    def check(self, name: str, low: float, high: float) -> None:
        """Refuse bounds that it is not for."""

    def names(self, name: str, low: float, high: float) -> tuple[str, ...]:
        """Return the names of its columns."""

    def affine(self, low: float, high: float) -> tuple[float, float]:
        """Return what is taken off each column, and what it is then divided by, to be encoded."""

    def columns(self, values: Floats, low: float, high: float) -> Floats:
        """Return its columns of values within the bounds."""

    def stock_block(self, low: float, high: float) -> StockBlock:
        """Return the same columns by transformers of scikit-learn's own."""


@dataclass(frozen=True)
class Monotone:
    """A function of a number, one column: "log", "log1p", "sqrt", or the number itself.

    Examples
    --------
    >>> Monotone("log").names("income", 1, 1000), Monotone("sqrt").affine(0, 100)
    (('log(income)',), (5.0, 5.0))
    """

    word: str = ""

    is_monotone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.word, str) or self.word not in _FUNCTIONS:
            raise InputError(
                f"A transform must be one of {', '.join(TRANSFORM_WORDS)}. Got {self.word!r}. Choose one, or "
                "give cuts or knots."
            )

    def entry(self) -> dict[str, Any]:
        return {"transform": self.word} if self.word else {}

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

    def stock_block(self, low: float, high: float) -> StockBlock:
        from cloister.tables.stock_blocks import function_block

        return function_block(_FUNCTIONS[self.word], low, high)


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
    """Steps between public cut points: an indicator for each interval but the middle one, the reference.

    Examples
    --------
    >>> Cuts((18, 65)).names("age", 0, 120)
    ('age[0,18)', 'age[65,120]')
    >>> Cuts((18, 65)).columns(np.array([17.0, 18.0, 90.0]), 0, 120)
    array([[1., 0.],
           [0., 0.],
           [0., 1.]])
    """

    points: Sequence[float]

    is_monotone: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", tuple(map(float, self.points)))

    @property
    def reference(self) -> int:
        """Which interval has no column."""
        return len(self.points) // 2

    def entry(self) -> dict[str, Any]:
        return {"cuts": [*self.points]}

    def check(self, name: str, low: float, high: float) -> None:
        _check_inside("cuts", name, self.points, low, high)

    def names(self, name: str, low: float, high: float) -> tuple[str, ...]:
        every = [f"{name}[{start:g},{end:g})" for start, end in pairwise((low, *self.points))]
        every.append(f"{name}[{self.points[-1]:g},{high:g}]")
        return (*every[: self.reference], *every[self.reference + 1 :])

    def affine(self, low: float, high: float) -> tuple[float, float]:
        return 0.0, 1.0

    def columns(self, values: Floats, low: float, high: float) -> Floats:
        interval = np.searchsorted(self.points, values, side="right")
        others = np.delete(np.arange(len(self.points) + 1), self.reference)
        return np.asarray(interval[:, None] == others, dtype=np.float64)

    def stock_block(self, low: float, high: float) -> StockBlock:
        from cloister.tables.stock_blocks import cuts_block

        return cuts_block(self.points, self.reference, low, high)


@dataclass(frozen=True)
class Spline:
    """A line that bends at public knots: linear B-splines, with the bounds as the outer knots.

    Column :math:`j` is 1 at knot :math:`j`, 0 at all others, and linear between. All of them sum to 1, so
    that their squares sum to at most 1; at a bound one of them is 1. That of the middle knot is left out,
    because the intercept stands for the sum of all: a coefficient says how much higher the line is at its
    knot than at the middle one.

    Smooth curves are not offered: beyond a knot they begin with numbers that are almost zero, and a task that
    has no others would say from these how steep the curve is.

    Examples
    --------
    >>> Spline((40, 80)).names("age", 0, 120)
    ('age[at 0]', 'age[at 40]', 'age[at 120]')
    >>> Spline((40, 80)).columns(np.array([0.0, 20.0, 80.0, 90.0]), 0, 120)
    array([[1.  , 0.  , 0.  ],
           [0.5 , 0.5 , 0.  ],
           [0.  , 0.  , 0.  ],
           [0.  , 0.  , 0.25]])
    """

    knots: Sequence[float]

    is_monotone: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "knots", tuple(map(float, self.knots)))

    @property
    def reference(self) -> int:
        """Which of all knots, bounds included, has no column."""
        return 1 + len(self.knots) // 2

    def entry(self) -> dict[str, Any]:
        return {"knots": [*self.knots]}

    def check(self, name: str, low: float, high: float) -> None:
        _check_inside("knots", name, self.knots, low, high)
        gaps = [float(end - start) for start, end in pairwise((low, *self.knots, high))]
        if not math.isfinite(1 / min(gaps)):
            raise InputError(
                f"knots of {name!r} must be so far apart, and from its bounds {low:g} and {high:g}, that the "
                f"slope of a line between them is finite. Got {list(self.knots)}. Write the column, its "
                "bounds and its knots in a smaller unit."
            )

    def names(self, name: str, low: float, high: float) -> tuple[str, ...]:
        every = [f"{name}[at {knot:g}]" for knot in (low, *self.knots, high)]
        return (*every[: self.reference], *every[self.reference + 1 :])

    def affine(self, low: float, high: float) -> tuple[float, float]:
        return 0.0, 1.0

    def columns(self, values: Floats, low: float, high: float) -> Floats:
        at = [low, *self.knots, high]
        peaks = np.delete(np.eye(len(at)), self.reference, axis=0)
        return np.column_stack([np.interp(values, at, peak) for peak in peaks])

    def stock_block(self, low: float, high: float) -> StockBlock:
        from cloister.tables.stock_blocks import spline_block

        return spline_block(self.knots, self.reference, low, high)


def transform_of(name: str, options: Mapping[str, Any]) -> Transform:
    """Return the transform that the keys of a column in a codebook file say."""
    shapes = [key for key in ("transform", "cuts", "knots") if key in options]
    require(
        len(shapes) < 2,
        f"{name!r} must have one of transform, cuts and knots. Got {' and '.join(shapes)}. Keep one.",
    )
    if not shapes:
        return IDENTITY
    value = options[shapes[0]]
    if shapes[0] == "transform":
        require(bool(value), f"transform of {name!r} must be a word. Got {value!r}. Leave it out.")
        return Monotone(value)
    require(
        isinstance(value, list | tuple) and all(map(is_real, value)),
        f"{shapes[0]} of {name!r} must be a list of numbers. Got {value!r}. Write {shapes[0]} = [18, 65].",
    )
    return Cuts(value) if shapes[0] == "cuts" else Spline(value)


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
