r"""The kinds of columns that a codebook knows: numbers, categories and dates, each with public limits.

A column becomes a block of encoded columns whose squared norm is at most `block_bound`, a public number, for
every cell there can be; some cell attains it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from cloister.core.arrays import Array, Floats
from cloister.core.errors import InputError
from cloister.tables.reading import Reading, days_since_1970, read_dates, read_levels, read_numbers
from cloister.tables.transforms import IDENTITY, Transform


@dataclass(frozen=True)
class Numeric:
    """A number between public bounds; what lies beyond is clipped to them.

    Parameters
    ----------
    name : str
        The column.
    low, high : float
        The lowest and the highest value that are publicly possible.
    transform : Transform
        Its public shape in a model: `Monotone`, `Cuts` or `Spline`; by default itself.
    missing : float, optional
        A public value that stands for missing ones, which then have an indicator column too. By default
        missing values are refused.

    Examples
    --------
    >>> from cloister.tables.transforms import Monotone
    >>> block_names(Numeric("income", 1000, 1e6, Monotone("log"), missing=30_000))
    ('log(income)', 'income[missing]')
    """

    name: str
    low: float
    high: float
    transform: Transform = IDENTITY
    missing: float | None = None

    must: ClassVar[str] = "hold finite numbers, as the codebook says"

    def __post_init__(self) -> None:
        require(
            is_real(self.low) and is_real(self.high) and 0 < (self.high - self.low) / 2 < math.inf,
            f"bounds of {self.name!r} must be two finite numbers, low < high. Got ({self.low!r}, "
            f"{self.high!r}). Write the lowest and the highest value that are publicly possible.",
        )
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))
        self.transform.check(self.name, self.low, self.high)
        require(
            self.transform.affine(self.low, self.high)[1] > 0,
            f"bounds of {self.name!r} must differ after the transform. Got ({self.low!r}, {self.high!r}). "
            "Leave the transform out.",
        )
        if self.missing is not None:
            require(
                is_real(self.missing) and self.low <= self.missing <= self.high,
                f"missing of {self.name!r} must be a number within its bounds, {self.low:g} to "
                f"{self.high:g}. Got {self.missing!r}. Write a public value to stand for missing ones.",
            )
            object.__setattr__(self, "missing", float(self.missing))

    @property
    def example(self) -> str:
        return f"missing = {(self.low + self.high) / 2:g}"

    @property
    def fill(self) -> float | None:
        return self.missing

    @property
    def indicator(self) -> bool:
        return self.missing is not None

    @property
    def most(self) -> float:
        return 1.0

    def read(self, column: Array) -> Reading:
        return read_numbers(column)

    def names(self) -> tuple[str, ...]:
        return self.transform.names(self.name, self.low, self.high)

    def affine(self) -> tuple[tuple[float, float], ...]:
        return (self.transform.affine(self.low, self.high),) * len(self.names())

    def columns(self, values: Floats) -> Floats:
        return self.transform.columns(np.clip(values, self.low, self.high), self.low, self.high)


@dataclass(frozen=True)
class Categorical:
    """One of a public list of levels; the first is the reference and has no column of its own.

    Parameters
    ----------
    name : str
        The column.
    levels : sequence
        Every level that is publicly possible: all text, all numbers, or False and True.
    ordinal : bool
        Whether the levels are in order and their rank, 0, 1, ..., is the one column.
    missing : str or number, optional
        The level that a missing cell counts as: one of the list, or another that then has a column of its
        own. By default missing cells are refused.

    Examples
    --------
    >>> block_names(Categorical("sex", ["F", "M"], missing="unknown"))
    ('sex[M]', 'sex[unknown]')
    >>> block_names(Categorical("size", ["S", "M", "L"], ordinal=True))
    ('size',)
    """

    name: str
    levels: Sequence[Any]
    ordinal: bool = False
    missing: Any = None

    example: ClassVar[str] = 'missing = "unknown"'
    most: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        given = self.levels if isinstance(self.levels, list | tuple) else ()
        alike = all(isinstance(v, str) for v in given) or all(isinstance(v, Real) for v in given)
        require(
            alike and len(given) == len(set(given)) > 1,
            f"levels of {self.name!r} must be a list of two or more different values, all text or all "
            f"numbers. Got {self.levels!r}. List every level that is publicly possible.",
        )
        object.__setattr__(self, "levels", tuple(map(_as_python, given)))
        object.__setattr__(self, "missing", _as_python(self.missing))
        require(
            self.missing is None or (isinstance(self.missing, str | Real) and self.missing == self.missing),
            f"missing of {self.name!r} must be a level, listed or not. Got {self.missing!r}. Write the name "
            'of the level that missing cells count as, such as "unknown".',
        )
        require(
            isinstance(self.ordinal, bool) and not (self.ordinal and len(given) == 2),
            f"ordinal of {self.name!r} must be true or false, and is for three levels or more. Got "
            f"{self.ordinal!r}. Leave it out.",
        )

    @property
    def must(self) -> str:
        shown = ", ".join(map(repr, self.levels[:_SHOWN_LEVELS])) + ", ..." * (
            len(self.levels) > _SHOWN_LEVELS
        )
        return f"hold levels that the codebook lists ({shown})"

    @cached_property
    def _positions(self) -> dict[Any, int]:
        levels = self.levels if self.missing is None else (*self.levels, self.missing)
        return {level: i for i, level in reversed([*enumerate(levels)])}

    @property
    def _own_missing(self) -> bool:
        """Whether missing cells have a level that is not in the list."""
        return self.missing is not None and self.missing not in self.levels

    @property
    def fill(self) -> float | None:
        return None if self.missing is None else float(self._positions[self.missing])

    @property
    def indicator(self) -> bool:
        return False

    def read(self, column: Array) -> Reading:
        return read_levels(column, self._positions)

    def names(self) -> tuple[str, ...]:
        own = (f"{self.name}[{self.missing}]",) if self._own_missing else ()
        shown = (self.name,) if self.ordinal else tuple(f"{self.name}[{level}]" for level in self.levels[1:])
        return (*shown, *own)

    def affine(self) -> tuple[tuple[float, float], ...]:
        middle = (len(self.levels) - 1) / 2
        ranks = ((middle, middle), (0.0, 1.0)) if self.ordinal else ()
        return (ranks or ((0.0, 1.0),) * len(self.levels))[: len(self.names())]

    def columns(self, values: Floats) -> Floats:
        if not self.ordinal:
            return np.asarray(values[:, None] == np.arange(1, len(self.names()) + 1), dtype=np.float64)
        other = values >= len(self.levels)  # in the middle of the ranks, and marked
        ranks = np.where(other, (len(self.levels) - 1) / 2, values)
        return np.column_stack([ranks, other])[:, : len(self.names())]


@dataclass(frozen=True)
class Date:
    """A date, or a time without a zone, between public bounds; what lies beyond is clipped to them.

    Parameters
    ----------
    name : str
        The column.
    low, high : date or datetime
        The first and the last that are publicly possible. With dates, the time of the day does not count.
    parts : sequence of {"days", "weekday", "month"}
        What a model sees: days since ``low``, an indicator for each weekday but Monday, for each month but
        January.
    missing : date or datetime, optional
        A public value that stands for missing ones, which then have an indicator column too.
    spelling : str, optional
        How text has dates, in the codes of `strptime`: "%d.%m.%Y". As ISO 8601 has them they are read too.

    Examples
    --------
    >>> enrolled = Date("enrolled", date(2020, 1, 1), date(2020, 12, 31), parts=("days", "weekday"))
    >>> block_names(enrolled)[:3]
    ('enrolled[days]', 'enrolled[Tue]', 'enrolled[Wed]')
    >>> block_columns(enrolled, enrolled.read(np.array(["2020-01-07"])))
    array([[6., 1., 0., 0., 0., 0., 0.]])
    """

    name: str
    low: date
    high: date
    parts: Sequence[str] = ("days",)
    missing: date | None = None
    spelling: str | None = None

    def __post_init__(self) -> None:
        given = (self.low, self.high, *(() if self.missing is None else (self.missing,)))
        one_kind = len({isinstance(day, datetime) for day in given}) == 1
        plain = all(isinstance(day, date) and getattr(day, "tzinfo", None) is None for day in given)
        require(
            one_kind and plain and self.low < self.high,
            f"bounds of {self.name!r} must be two dates, the first before the second, or two times without a "
            f"zone. Got ({self.low}, {self.high}). Write the first and the last that are publicly possible.",
        )
        require(
            self.missing is None or self.low <= self.missing <= self.high,
            f"missing of {self.name!r} must be a date within its bounds, {self.low} to {self.high}. Got "
            f"{self.missing}. Write a public value that is to stand for missing ones.",
        )
        known = isinstance(self.parts, list | tuple) and all(part in DATE_PARTS for part in self.parts)
        require(
            known and 0 < len(self.parts) == len(set(self.parts)),
            f"parts of {self.name!r} must be some of {', '.join(DATE_PARTS)}, each once. Got {self.parts!r}. "
            'Write parts = ["days", "weekday"], or leave it out.',
        )
        object.__setattr__(self, "parts", tuple(part for part in DATE_PARTS if part in self.parts))
        require(
            all(half > 0 for _, half in self.affine()),
            f"bounds of {self.name!r} must differ as numbers of days. Got ({self.low}, {self.high}). Write "
            "the first and the last that are publicly possible, further apart.",
        )

    @property
    def must(self) -> str:
        how = "such as 2024-05-31" if self.spelling is None else f"spelt {self.spelling}"
        return f"hold dates {how}, without a time zone"

    @property
    def example(self) -> str:
        return f"missing = {self.low + (self.high - self.low) / 2}"

    @property
    def fill(self) -> float | None:
        return None if self.missing is None else days_since_1970(self.missing)

    @property
    def indicator(self) -> bool:
        return self.missing is not None

    @property
    def most(self) -> float:
        """One for each part; a day beyond the bounds attains it, a Tuesday in February, say."""
        return float(len(self.parts))

    def read(self, column: Array) -> Reading:
        found = read_dates(column, self.spelling)
        if isinstance(self.low, datetime):
            return found
        return Reading(np.floor(found.values), found.missing, found.wrong)

    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}[{label}]" for part in self.parts for label in DATE_PARTS[part])

    def affine(self) -> tuple[tuple[float, float], ...]:
        half = (days_since_1970(self.high) - days_since_1970(self.low)) / 2
        days = ((half, half),) if "days" in self.parts else ()
        return (*days, *((0.0, 1.0),) * (len(self.names()) - len(days)))

    def columns(self, values: Floats) -> Floats:
        start, end = days_since_1970(self.low), days_since_1970(self.high)
        days = np.floor(values).astype(np.int64)
        month = days.astype("M8[D]").astype("M8[M]").astype(np.int64) % 12
        found = {
            "days": np.clip(values, start, end)[:, None] - start,
            "weekday": (days[:, None] + 3) % 7 == np.arange(1, 7),  # 1970 began on a Thursday
            "month": month[:, None] == np.arange(1, 12),
        }
        return np.column_stack([found[part] for part in self.parts]).astype(np.float64)


#: What a model may see of a date, and the names of its columns; the first of a cycle is the reference.
DATE_PARTS = {
    "days": ("days",),
    "weekday": ("Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    "month": ("Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
}
_SHOWN_LEVELS = 10

Classes = Categorical  # the same promise, made about a target
Feature = Numeric | Categorical | Date
Target = Numeric | Classes


def block_names(part: Feature) -> tuple[str, ...]:
    """Return the names of a feature's columns; the last says whether it is missing, if that is counted."""
    return (*part.names(), f"{part.name}[missing]") if part.indicator else part.names()


def block_affine(part: Feature) -> tuple[tuple[float, float], ...]:
    """Return what is taken off each of a feature's columns, and what it is then divided by."""
    return (*part.affine(), (0.0, 1.0)) if part.indicator else part.affine()


def block_columns(part: Feature, reading: Reading) -> Floats:
    """Return a feature's columns in units that a user can read; its public value stands for missing ones."""
    values = reading.values if part.fill is None else np.where(reading.missing, part.fill, reading.values)
    columns = part.columns(values)
    return np.column_stack([columns, reading.missing]) if part.indicator else columns


def block_bound(part: Feature) -> float:
    """Return the largest squared norm that a feature's encoded columns can have.

    A missing value has its indicator, 1, beside the encoded columns of what stands for it.

    Examples
    --------
    >>> block_bound(Numeric("age", 0, 100)), block_bound(Numeric("age", 0, 100, missing=75))
    (1.0, 1.25)
    """
    if not part.indicator or part.fill is None:
        return part.most
    center, half = np.array(part.affine()).T
    filled = (part.columns(np.array([part.fill]))[0] - center) / half
    return max(part.most, 1 + float(filled @ filled))


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InputError(sentence)


def _as_python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)
