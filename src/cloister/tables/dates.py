"""Columns of dates and times, between public bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, ClassVar, Self

import numpy as np

from cloister.core.arrays import Array, Floats
from cloister.tables.feature import Feature, require
from cloister.tables.reading import Reading, as_date, days_since_1970, read_dates

#: What a model may see of a date, and the names of its columns; the first of a cycle is the reference.
DATE_PARTS = {
    "days": ("days",),
    "weekday": ("Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    "month": ("Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
}
#: Ways to write dates that are looked for in cells that cannot be read.
_SPELLINGS = (
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d.%m.%Y",
    "%d-%m-%Y",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%d/%m/%y",
    "%m/%d/%y",
    "%d.%m.%y",
    "%d %b %Y",
    "%d %B %Y",
)


@dataclass(frozen=True)
class Date(Feature):
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
    >>> enrolled.block_names()[:3]
    ('enrolled[days]', 'enrolled[Tue]', 'enrolled[Wed]')
    >>> enrolled.block_columns(enrolled.read(np.array(["2020-01-07"])))
    array([[6., 1., 0., 0., 0., 0., 0.]])
    """

    name: str
    low: date
    high: date
    parts: Sequence[str] = ("days",)
    missing: date | None = None
    spelling: str | None = None

    options: ClassVar[tuple[str, ...]] = ("parts", "missing", "spelling")

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
        known = isinstance(self.parts, list | tuple) and all(part in [*DATE_PARTS] for part in self.parts)
        require(
            known and 0 < len(self.parts) == len({*map(str, self.parts)}),
            f"parts of {self.name!r} must be some of {', '.join(DATE_PARTS)}, each once. Got {self.parts!r}. "
            'Write parts = ["days", "weekday"], or leave it out.',
        )
        object.__setattr__(self, "parts", tuple(part for part in DATE_PARTS if part in self.parts))
        require(
            all(half > 0 for _, half in self.affine()),
            f"bounds of {self.name!r} must differ as numbers of days. Got ({self.low}, {self.high}). Write "
            "the first and the last that are publicly possible, further apart.",
        )

    @classmethod
    def takes(cls, limits: Sequence[Any]) -> bool:
        return all(isinstance(as_date(day), date) for day in limits)

    @classmethod
    def from_entry(cls, name: str, limits: Sequence[Any], options: Mapping[str, Any]) -> Self:
        missing = {"missing": as_date(options["missing"])} if "missing" in options else {}
        return cls(name, *map(as_date, limits), **{**options, **missing})

    def entry(self) -> dict[str, Any]:
        found: dict[str, Any] = {"bounds": [self.low, self.high]}
        found |= {} if tuple(self.parts) == ("days",) else {"parts": [*self.parts]}
        found |= {} if self.spelling is None else {"spelling": self.spelling}
        return found if self.missing is None else found | {"missing": self.missing}

    @property
    def must(self) -> str:
        how = "such as 2024-05-31" if self.spelling is None else f"spelt {self.spelling}"
        return f"hold dates {how}, without a time zone"

    @property
    def example(self) -> str:
        return f"missing = DATE, with a publicly known usual one ({self.low} to {self.high}) for DATE"

    @property
    def fill(self) -> float | None:
        return None if self.missing is None else days_since_1970(self.missing)

    @property
    def limits(self) -> tuple[float, float]:
        return days_since_1970(self.low), days_since_1970(self.high)

    @property
    def bounds(self) -> tuple[str, ...]:
        return str(self.low), str(self.high)

    @property
    def is_bounded(self) -> bool:
        return self.parts[0] == "days"

    @property
    def is_text(self) -> bool:
        return self.spelling is not None

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
        start, end = self.limits
        half = (end - start) / 2
        days = ((half, half),) if "days" in self.parts else ()
        return (*days, *((0.0, 1.0),) * (len(self.names()) - len(days)))

    def columns(self, values: Floats) -> Floats:
        start, end = self.limits
        days = np.floor(values).astype(np.int64)
        month = days.astype("M8[D]").astype("M8[M]").astype(np.int64) % 12
        found = {
            "days": np.clip(values, start, end)[:, None] - start,
            "weekday": (days[:, None] + 3) % 7 == np.arange(1, 7),  # 1970 began on a Thursday
            "month": month[:, None] == np.arange(1, 12),
        }
        return np.column_stack([found[part] for part in self.parts]).astype(np.float64)

    def admit(self, cells: Sequence[str]) -> list[str]:
        """Advise a way to write dates that all cells are written in, if there is one."""
        way = next((way for way in _SPELLINGS if all(_is_date(cell, way) for cell in cells)), _SPELLINGS[0])
        return [f'spelling = "{way}", the way its dates are written']


def _is_date(cell: str, spelling: str) -> bool:
    try:
        datetime.strptime(cell, spelling)
    except ValueError:
        return False
    return True
