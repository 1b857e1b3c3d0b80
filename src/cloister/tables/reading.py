"""From the cells of a column, as files and frames hold them, to numbers, levels or dates.

One public rule for every route, so that a table means the same as CSV, Parquet, Excel, data frame or array.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import repeat
from numbers import Real
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from cloister.core import arrays
from cloister.core.arrays import Array, Floats
from cloister.core.roster import is_missing

Mask = NDArray[np.bool_]
T = TypeVar("T")
#: What can be said of a column without a value of it.
Kind = Literal["numeric", "text", "boolean", "date"]

#: Words that say that a cell is missing, unless they are listed levels; capitals do not count.
_MISSING_WORDS = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none"})
_BOOLEAN_WORDS = {"true": True, "t": True, "yes": True, "y": True, "1": True} | {
    "false": False,
    "f": False,
    "no": False,
    "n": False,
    "0": False,
}
_MISSING, _WRONG = -1, -2
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, eq=False, repr=False)
class Reading:
    """A column's values, and which cells are missing or are not what the codebook says of the column.

    `values` are numbers as they are (not clipped), positions of levels, or days since 1970; those of cells
    that are missing or wrong mean nothing.
    """

    values: Floats
    missing: Mask
    wrong: Mask


def is_number(cell: str) -> bool:
    """Say whether a cell is a number as spreadsheets write them.

    Examples
    --------
    >>> [is_number(cell) for cell in ("3", "-1e3", "nan", "1_000", "F", "")]
    [True, True, True, False, False, False]
    """
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def says_missing(value: object) -> bool:
    """Say whether a cell is empty, or says NA, N/A, #N/A, NaN, null or None.

    Examples
    --------
    >>> [says_missing(cell) for cell in (None, float("nan"), " ", "NA", 0, "no")]
    [True, True, True, True, False, False]
    """
    if isinstance(value, str):
        return value.strip().lower() in _MISSING_WORDS
    return is_missing(value)


def kind_of(column: Array) -> Kind:
    """Say what a column of a file holds, by all its cells that are not missing.

    Examples
    --------
    >>> [kind_of(np.array(cells)) for cells in ([1.5], ["yes", "NA"], ["2024-05-31"], ["x"])]
    ['numeric', 'boolean', 'date', 'text']
    """
    if column.dtype.kind in "fM":
        return "numeric" if column.dtype.kind == "f" else "date"
    known = {cell for cell in column.tolist() if not says_missing(cell)}
    if known and all(str(cell).strip().lower() in ("true", "false", "yes", "no") for cell in known):
        return "boolean"
    return "date" if known and not any(np.isinf(_days(cell, None)) for cell in known) else "text"


def read_numbers(column: Array) -> Reading:
    """Read finite numbers; text that is written as a number is one."""
    if column.dtype.kind in "biuf":
        values = column.astype(np.float64)
    else:
        values = np.fromiter(map(_number, column.tolist()), np.float64, count=len(column))
    missing = np.isnan(values)
    return Reading(values, missing, np.isinf(values))


def _number(cell: Any) -> float:
    """Return a number, NaN for a missing cell, or infinity for what is no number."""
    if isinstance(cell, Real | Decimal) or (isinstance(cell, str) and is_number(cell)):
        try:
            return float(cell)
        except (OverflowError, ValueError):  # beyond all floats, or a NaN of decimals that signals
            return np.inf
    return np.nan if says_missing(cell) else np.inf


def emptied(column: Array, words: frozenset[str]) -> Array:
    """Return a column in which cells that are one of these words are empty; capitals do not count.

    Examples
    --------
    >>> emptied(np.array(["?", "7", "Unknown"]), frozenset({"?", "unknown"})).tolist()
    ['', '7', '']
    """
    if not words or column.dtype.kind not in "OUS":
        return column
    says = [isinstance(cell, str) and cell.strip().casefold() in words for cell in column.tolist()]
    return np.where(says, "", column) if any(says) else column


def read_levels(column: Array, positions: Mapping[Any, int], ignore_case: bool = False) -> Reading:
    """Read the position of each cell among listed levels.

    A cell is the level that is written like it: white space around text does not count, 1, 1.0 and "1" are
    the same level, and where levels are booleans, so are true, yes, t, y and 1, and false, no, f, n and 0.
    """
    cells = column.tolist()
    try:
        found = np.fromiter(map(positions.get, cells, repeat(_WRONG)), np.int64, count=len(cells))
    except TypeError:  # a cell that cannot be looked up, such as a list
        found = np.full(len(cells), _WRONG)
    if column.dtype.kind == "f":
        found[np.isnan(column)] = _MISSING
    odd = np.flatnonzero(found == _WRONG)
    if len(odd):
        look_up = _cached(_level_of(positions, ignore_case))
        found[odd] = [look_up(cells[i]) for i in odd]
    return Reading(found.astype(np.float64), found == _MISSING, found == _WRONG)


def _level_of(positions: Mapping[Any, int], ignore_case: bool) -> Callable[[Any], int]:
    boolean = sum(isinstance(level, bool) for level in positions) == 2
    fold = str.casefold if ignore_case else str
    text = {
        fold(_plain(level) if isinstance(level, str) else _written(level)): i
        for level, i in positions.items()
    }

    def look_up(cell: Any) -> int:
        written = _written(cell)
        truth = _BOOLEAN_WORDS.get(written.lower()) if boolean else None
        if truth is not None:
            return positions[truth]
        return text.get(fold(written), _MISSING if says_missing(cell) else _WRONG)

    return look_up


def _written(cell: Any) -> str:
    """Return a cell as one writes it: whole numbers without a point."""
    if isinstance(cell, str):
        cell = _plain(cell)
        if not is_number(cell) or cell.isdigit():
            return str(cell)
        cell = float(cell)
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text.strip())


def read_dates(column: Array, spelling: str | None) -> Reading:
    """Read days since 1970, with fractions, from dates, times, or text as `spelling` or ISO 8601 has them."""
    if column.dtype.kind == "M":
        days = column.astype("M8[us]").astype(np.int64) / 86_400e6
        days[np.isnat(column)] = np.nan
    else:
        look_up = _cached(lambda cell: _days(cell, spelling))
        days = np.fromiter(map(look_up, column.tolist()), np.float64, count=len(column))
    return Reading(days, np.isnan(days), np.isinf(days))


def is_real(value: object) -> bool:
    return arrays.is_real(value) and not isinstance(value, bool | np.bool_)


def as_date(value: Any) -> Any:
    """Return text, or a time of pandas, that is a date or a time as that; leave anything else as it is."""
    text = value.isoformat() if isinstance(value, datetime) else value
    try:
        return (date if len(text) == 10 else datetime).fromisoformat(text)
    except (TypeError, ValueError):
        return value


def days_since_1970(day: date) -> float:
    """Return the days between the start of 1970 and a date or a time without a zone.

    Examples
    --------
    >>> days_since_1970(date(1970, 1, 3)), days_since_1970(datetime(1970, 1, 1, 12))
    (2.0, 0.5)
    """
    time = day if isinstance(day, datetime) else datetime(day.year, day.month, day.day)
    return (time - _EPOCH).total_seconds() / 86_400


def _days(cell: Any, spelling: str | None) -> float:
    if says_missing(cell):
        return np.nan
    try:
        if isinstance(cell, str):
            cell = _date_of(cell.strip(), spelling)
        return days_since_1970(cell) if isinstance(cell, date) else np.inf
    except (TypeError, ValueError, OverflowError):  # no date, or one with a time zone
        return np.inf


def _date_of(text: str, spelling: str | None) -> datetime:
    if spelling is not None:
        with suppress(ValueError):
            return datetime.strptime(text, spelling)
    return datetime.fromisoformat(text)


def _cached(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Remember what a function returned: columns repeat few different cells."""
    known: dict[tuple[type, Any], T] = {}

    def look_up(cell: Any) -> T:
        key = type(cell), cell
        try:
            if key not in known:
                known[key] = function(cell)
            return known[key]
        except TypeError:  # it cannot be looked up, or will not say whether it equals another
            return function(cell)

    return look_up
