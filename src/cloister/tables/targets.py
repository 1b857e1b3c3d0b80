"""Kinds of targets beside plain numbers and classes: ``kind`` under a codebook's ``[target]``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from cloister.core.arrays import Array, Floats
from cloister.tables.column_types import SPELLINGS, Categorical, Numeric
from cloister.tables.feature import Feature, require
from cloister.tables.reading import Reading, is_real
from cloister.tables.transforms import IDENTITY, Monotone, Transform

#: Encoded numbers beyond this, of which bounds are 1, are not told apart.
_FARTHEST = 50.0
#: Counts beyond this are no whole numbers in floating point.
_MOST = 1e15


@dataclass(frozen=True)
class Count(Numeric):
    """A whole number from 0 on, with a log link: the coefficients of its models are logarithms of ratios.

    Parameters
    ----------
    name : str
        The column.
    low, high : int
        The lowest and the highest count that are publicly possible; what lies beyond is clipped to them.
    exposure : str, optional
        The numeric column that says how much time, area or how many people a row has been counted over. It
        has bounds like a feature, and no coefficient: counts are proportional to it.

    Examples
    --------
    >>> Count("accidents", 0, 100).predicted(np.array([-9.0, 0.0, 9.0])).round(1)
    array([  0.,  10., 100.])
    """

    exposure: str | None = None

    keys: ClassVar[tuple[str, ...]] = ("bounds", "exposure")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = self.low == math.floor(self.low) and self.high == math.floor(self.high)
        require(
            whole and self.low >= 0 and self.high <= _MOST,
            f"bounds of the count {self.name!r} must be two whole numbers from 0 on. Got ({self.low:g}, "
            f"{self.high:g}). Write the lowest and the highest count that are publicly possible.",
        )
        require(
            self.exposure is None or (isinstance(self.exposure, str) and self.exposure != self.name),
            f"exposure of {self.name!r} must be the name of a numeric column. Got {self.exposure!r}.",
        )

    @classmethod
    def from_keys(cls, name: str, keys: Mapping[str, Any]) -> Self:
        low, high = _two(name, keys)
        return cls(name, low, high, exposure=keys.get("exposure"))

    def check_exposure(
        self, part: Feature | None, others: int, interactions: Sequence[Sequence[str]]
    ) -> None:
        """Refuse a codebook whose column of that name is no plain positive number, or all there is."""
        if self.exposure is None:
            return
        plain = isinstance(part, Numeric) and part.low > 0 and part.missing is None
        require(
            plain and part.transform == IDENTITY and others > 0,  # type: ignore[union-attr]
            f"the exposure {self.exposure!r} of {self.name!r} must be a column with bounds of positive "
            "numbers and nothing else, beside a feature. Write bounds = [1, 365], say, under [features."
            f"{self.exposure}].",
        )
        require(
            all(self.exposure not in pair for pair in interactions),
            f"the exposure {self.exposure!r} has no coefficient. Leave it out of interactions.",
        )

    def entry(self) -> dict[str, Any]:
        exposure = {} if self.exposure is None else {"exposure": self.exposure}
        return {"kind": "count"} | super().entry() | exposure

    @property
    def must(self) -> str:
        return "hold whole numbers from 0 on"

    def read(self, column: Array) -> Reading:
        found = super().read(column)
        with np.errstate(invalid="ignore"):
            none = (found.values < 0) | (found.values != np.floor(found.values))
        return replace(found, wrong=found.wrong | (none & ~found.missing))

    def fault(self, cell: Any) -> str:
        return "no count" if is_real(cell) else super().fault(cell)

    def affine(self) -> tuple[tuple[float, float], ...]:
        """Return the logarithm of a count in the middle of what is possible, and the unit of logarithms."""
        return ((0.5 * math.log1p(self.high), 1.0),)

    @property
    def effects(self) -> str | None:
        over = "" if self.exposure is None else f" for one unit of {self.exposure}"
        return (
            f"logarithms: of the mean of {self.name}{over} (intercept), and of the factors that it changes by"
        )

    @property
    def ratio(self) -> str | None:
        return "rate ratio"

    @property
    def biased(self) -> bool:
        return True

    def encoded(self, values: Floats) -> Array:
        return np.clip(values, self.low, self.high)

    def decoded(self, values: Floats) -> Array:
        return np.asarray(values)

    def predicted(self, scores: Floats) -> Array:
        center = self.affine()[0][0]
        return np.exp(np.clip(scores + center, math.log(max(self.low, 1e-300)), math.log(self.high)))


@dataclass(frozen=True)
class Ordered(Categorical):
    """Three classes or more in order, the lowest first: a cumulative logit with one slope for each column.

    Parameters
    ----------
    name : str
        The column.
    levels : sequence
        Every class that is publicly possible, in order.
    aliases, ignore_case : optional
        Other ways in which a class is written, as for `Categorical`.
    """

    keys: ClassVar[tuple[str, ...]] = ("classes", "levels", *SPELLINGS)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.levels) > 2 and not self.ordinal and self.missing is None,
            f"classes of {self.name!r} must be three or more, in order, and nothing else. Got "
            f"{list(self.levels)}. Of two classes one is all there is: leave kind out.",
        )

    @classmethod
    def from_keys(cls, name: str, keys: Mapping[str, Any]) -> Self:
        spelled = {key: keys[key] for key in SPELLINGS if key in keys}
        return cls(name, keys.get("classes", keys.get("levels", ())), **spelled)

    def entry(self) -> dict[str, Any]:
        return {"kind": "ordered"} | super().entry()

    @property
    def effects(self) -> str | None:
        return f"log-odds of a higher class of {self.name}"

    def weights(self, width: int) -> int:
        """Return how many weights a model of it has: one vector, and the steps from cut to cut."""
        return width + len(self.levels) - 2


_LOG = Monotone("log")


@dataclass(frozen=True)
class Positive(Numeric):
    """A number above 0 with a long tail, such as an amount or a time: linear in its logarithm.

    Parameters
    ----------
    name : str
        The column.
    low, high : float
        The lowest, above 0, and the highest value that are publicly possible; others are clipped to them.

    Notes
    -----
    What is predicted is the mean of a log-normal law where a model knows how sure it is, or else the median.
    A mean is never said to be above the median by more than a variance of logarithms of 1 makes it.

    Examples
    --------
    >>> Positive("cost", 1, 10_000).predicted(np.array([-9.0, 0.0, 9.0])).round(1)
    array([1.e+00, 1.e+02, 1.e+04])
    """

    transform: Transform = _LOG

    keys: ClassVar[tuple[str, ...]] = ("bounds",)

    @classmethod
    def from_keys(cls, name: str, keys: Mapping[str, Any]) -> Self:
        low, high = _two(name, keys)
        return cls(name, low, high)

    def entry(self) -> dict[str, Any]:
        return {"kind": "positive", "bounds": [self.low, self.high]}

    @property
    def must(self) -> str:
        return "hold numbers above 0"

    def read(self, column: Array) -> Reading:
        found = super().read(column)
        with np.errstate(invalid="ignore"):
            return replace(found, wrong=found.wrong | ((found.values <= 0) & ~found.missing))

    def fault(self, cell: Any) -> str:
        return "not above 0" if is_real(cell) else super().fault(cell)

    @property
    def effects(self) -> str | None:
        return f"logarithms: of {self.name} (intercept), and of the factors that it changes by"

    @property
    def ratio(self) -> str | None:
        return "ratio"

    def encoded(self, values: Floats) -> Array:
        ((center, half),) = self.affine()
        return np.clip((np.log(np.clip(values, self.low, self.high)) - center) / half, -1.0, 1.0)

    def decoded(self, values: Floats) -> Array:
        return np.exp(super().decoded(np.minimum(values, _FARTHEST)))


def log_middle(part: Numeric) -> float:
    """Return the logarithm of a number in the middle of positive bounds."""
    return 0.5 * (math.log(part.low) + math.log(part.high))


def _two(name: str, keys: Mapping[str, Any]) -> Sequence[float]:
    limits = keys.get("bounds")
    require(
        isinstance(limits, list | tuple) and len(limits) == 2,
        f"the target {name!r} must have bounds = [lowest possible, highest possible]. Got {limits!r}.",
    )
    return limits  # type: ignore[return-value]


#: What may stand as ``kind`` beside a target's limits.
KINDS: dict[str, type[Count | Ordered | Positive]] = {
    "count": Count,
    "ordered": Ordered,
    "positive": Positive,
}
