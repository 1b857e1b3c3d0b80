"""The types of columns that a codebook knows: numbers and categories, with public limits, and dates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from cloister.core.arrays import Array, Floats
from cloister.tables.dates import Date
from cloister.tables.feature import Feature, require
from cloister.tables.reading import Reading, is_number, is_real, read_levels, read_numbers
from cloister.tables.transforms import IDENTITY, Transform, transform_of

if TYPE_CHECKING:
    from cloister.tables.stock_blocks import StockBlock


@dataclass(frozen=True)
class Numeric(Feature):
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
    >>> Numeric("income", 1000, 1e6, Monotone("log"), missing=30_000).block_names()
    ('log(income)', 'income[missing]')
    """

    name: str
    low: float
    high: float
    transform: Transform = IDENTITY
    missing: float | None = None

    options: ClassVar[tuple[str, ...]] = ("transform", "cuts", "knots", "missing")

    def __post_init__(self) -> None:
        low: object = self.low  # of a file: anything
        quoted = isinstance(low, str) and low[:1].isdigit()
        require(
            is_real(self.low) and is_real(self.high) and 0 < (self.high - self.low) / 2 < math.inf,
            f"bounds of {self.name!r} must be two finite numbers, low < high. Got ({self.low!r}, "
            f"{self.high!r}). Write the lowest and the highest value that are publicly possible"
            f"{', dates without quotes: 2024-01-31' if quoted else ''}.",
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

    @classmethod
    def takes(cls, limits: Sequence[Any]) -> bool:
        return all(map(is_real, limits))

    @classmethod
    def from_entry(cls, name: str, limits: Sequence[Any], options: Mapping[str, Any]) -> Self:
        low, high = limits
        return cls(name, low, high, transform_of(name, options), options.get("missing"))

    def entry(self) -> dict[str, Any]:
        missing = {} if self.missing is None else {"missing": self.missing}
        return {"bounds": [self.low, self.high]} | self.transform.entry() | missing

    @property
    def must(self) -> str:
        return "hold finite numbers, as the codebook says"

    @property
    def example(self) -> str:
        return f"missing = VALUE, with a publicly known usual one ({self.low:g} to {self.high:g}) for VALUE"

    @property
    def fill(self) -> float | None:
        return self.missing

    @property
    def limits(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def bounds(self) -> tuple[str, ...]:
        return f"{self.low:g}", f"{self.high:g}"

    @property
    def is_bounded(self) -> bool:
        return self.transform.is_monotone

    def read(self, column: Array) -> Reading:
        return read_numbers(column)

    def names(self) -> tuple[str, ...]:
        return self.transform.names(self.name, self.low, self.high)

    def affine(self) -> tuple[tuple[float, float], ...]:
        return (self.transform.affine(self.low, self.high),) * len(self.names())

    def columns(self, values: Floats) -> Floats:
        return self.transform.columns(np.clip(values, self.low, self.high), self.low, self.high)

    @property
    def effects(self) -> str | None:
        """What coefficients are, unless they are in the target's units."""
        return None

    @property
    def ratio(self) -> str | None:
        """What the exponential of a coefficient is; None if it is nothing."""
        return None

    @property
    def biased(self) -> bool:
        """Whether coefficients of few rows are biased."""
        return False

    def weights(self, width: int) -> int:
        """Return how many weights a model of it has, for encoded rows of such a width."""
        return width

    def encoded(self, values: Floats) -> Array:
        """Return values of a target as models take them: clipped, and mapped to [-1, 1]."""
        ((center, half),) = self.affine()
        return np.clip((np.clip(values, self.low, self.high) - center) / half, -1.0, 1.0)

    def decoded(self, values: Floats) -> Array:
        """Return the inverse of `encoded`, not clipped."""
        ((center, half),) = self.affine()
        return np.asarray(center + half * values)

    def predicted(self, scores: Floats) -> Array:
        """Return what a model's scores predict, within the bounds."""
        return np.clip(self.decoded(scores), self.low, self.high)

    def fault(self, cell: Any) -> str:
        number = is_real(cell) or (isinstance(cell, str | Decimal) and is_number(str(cell)))
        return "out of range" if number else "unreadable"

    def mend(self, cells: Sequence[str]) -> list[str]:
        """Advise about cells that people read as no number, or as one."""
        advice = []
        if any(set(cell) <= set("-–—") for cell in cells):
            advice.append("leave a cell empty where there is no number, instead of a dash")
        marked = (cell for cell in cells if re.fullmatch(r"[+-]?\d{1,3}([,.' ]\d{3})+([.,]\d+)?", cell))
        if (cell := next(marked, None)) is not None:
            example = "1234.5 instead of 1.234,5" if re.search(r"\..*,", cell) else "1234 instead of 1,234"
            advice.append(f"write {example}: without marks between thousands")
        if any(map(is_number, cells)):
            advice.append("write a finite number, or leave a cell empty where there is none")
        return advice or ["write a number in every cell, or leave it empty where there is none"]

    def stock_block(self) -> StockBlock:
        block = self.transform.stock_block(self.low, self.high)
        return block if self.missing is None else block.or_missing(self.missing)


#: Options by which one level is written in several ways; a target's classes have them too.
SPELLINGS = ("aliases", "ignore_case")


@dataclass(frozen=True)
class Categorical(Feature):
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
    aliases : mapping of str to level
        Other ways in which a level is written.
    ignore_case : bool
        Whether capitals do not count.

    Examples
    --------
    >>> Categorical("sex", ["F", "M"], missing="unknown").block_names()
    ('sex[M]', 'sex[unknown]')
    >>> smokes = Categorical("smokes", [False, True], aliases={"nein": False, "ja": True}, ignore_case=True)
    >>> smokes.read(np.array(["Ja", "no"])).values
    array([1., 0.])
    >>> Categorical("size", ["S", "M", "L"], ordinal=True).block_names()
    ('size',)
    """

    name: str
    levels: Sequence[Any]
    ordinal: bool = False
    missing: Any = None
    aliases: Any = ()
    ignore_case: bool = False

    key: ClassVar[str] = "levels"
    options: ClassVar[tuple[str, ...]] = ("ordinal", "missing", *SPELLINGS)

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
        self._check_spellings()

    def _check_spellings(self) -> None:
        """Refuse aliases that mean no level, or two things at once."""
        given = dict(self.aliases) if isinstance(self.aliases, Mapping | tuple) else {None: self.aliases}
        object.__setattr__(self, "aliases", tuple((name, _as_python(level)) for name, level in given.items()))
        listed = [*self.levels, *([self.missing] if self._own_missing else [])]
        meant = all(isinstance(name, str) and level in listed for name, level in self.aliases)
        require(
            meant and not any(name in listed for name, _ in self.aliases),
            f"aliases of {self.name!r} must be other words for listed levels. Got {given!r}. Write "
            'aliases = { male = "M" }, say, with "M" among the levels.',
        )
        written = [str(name).strip() for name in (*listed, *(name for name, _ in self.aliases))]
        require(
            isinstance(self.ignore_case, bool)
            and (not self.ignore_case or len({*map(str.casefold, written)}) == len(written)),
            f"levels and aliases of {self.name!r} must differ in more than capitals, if ignore_case is true. "
            f"Got {written}. Leave it out, or write one of them.",
        )

    @classmethod
    def takes(cls, limits: Sequence[Any]) -> bool:
        return True

    @classmethod
    def from_entry(cls, name: str, limits: Sequence[Any], options: Mapping[str, Any]) -> Self:
        return cls(name, limits, **options)

    def entry(self) -> dict[str, Any]:
        missing = {} if self.missing is None else {"missing": self.missing}
        spellings: dict[str, Any] = {"aliases": dict(self.aliases)} if self.aliases else {}
        spellings |= {"ignore_case": True} if self.ignore_case else {}
        return {"levels": [*self.levels]} | ({"ordinal": True} if self.ordinal else {}) | missing | spellings

    @property
    def must(self) -> str:
        shown = ", ".join(map(repr, self.levels[:_SHOWN_LEVELS])) + ", ..." * (
            len(self.levels) > _SHOWN_LEVELS
        )
        return f"hold levels that the codebook lists ({shown})"

    @property
    def example(self) -> str:
        return 'missing = "unknown"'

    @cached_property
    def _positions(self) -> dict[Any, int]:
        levels = self.levels if self.missing is None else (*self.levels, self.missing)
        found = {level: i for i, level in reversed([*enumerate(levels)])}
        return found | {name: found[level] for name, level in self.aliases}

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

    @property
    def is_text(self) -> bool:
        return isinstance(self.levels[0], str)

    def read(self, column: Array) -> Reading:
        return read_levels(column, self._positions, self.ignore_case)

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

    @property
    def effects(self) -> str | None:
        """What coefficients are."""
        return f"log-odds against {self.name} = {self.levels[0]}"

    @property
    def ratio(self) -> str | None:
        """What the exponential of a coefficient is."""
        return "odds ratio"

    @property
    def biased(self) -> bool:
        """Whether coefficients of few rows are biased."""
        return True

    def weights(self, width: int) -> int:
        """Return how many weights a model of it has: a vector for each class but the first."""
        return (len(self.levels) - 1) * width

    def encoded(self, values: Floats) -> Array:
        """Return positions of a target's classes as models take them."""
        return values.astype(np.int64)

    def decoded(self, values: ArrayLike) -> Array:
        """Return the classes at these positions."""
        return np.asarray(self.levels)[np.asarray(values, dtype=np.int64)]

    predicted = decoded

    def fault(self, cell: Any) -> str:
        return "not listed"

    def admit(self, cells: Sequence[str]) -> list[str]:
        """Advise how to take other spellings of levels, and words for an empty cell."""
        known = {str(word).casefold() for word in (*self.levels, *dict(self.aliases))}
        same = [cell for cell in cells if cell.casefold() in known and not self.ignore_case]
        others = [cell for cell in cells if cell not in same]
        found = ["ignore_case = true"] if same else []
        if others:
            entry = ", ".join(f'"{word}" = LEVEL' for word in dict.fromkeys(others))
            alias = f"{entry} among its aliases" if self.aliases else f"aliases = {{ {entry} }}"
            found.append(
                f"{alias}, with the level that it means for LEVEL; or, if it says that nothing is known, "
                f'empty = ["{others[0]}"] at the top of the file'
            )
        return found

    def stock_block(self) -> StockBlock:
        from cloister.tables.stock_blocks import levels_block

        levels = [*self.levels, *([self.missing] if self._own_missing else [])]
        center, half = np.array(self.affine()).T
        coded = (self.columns(np.arange(float(len(levels)))) - center) / half
        return levels_block(levels, coded, self.missing, self.levels)


#: How many levels a refusal shows.
_SHOWN_LEVELS = 10

Classes = Categorical  # the same promise, made about a target
Target = Numeric | Classes
#: All types. Limits are of the first that takes them.
TYPES: tuple[type[Feature], ...] = (Categorical, Date, Numeric)


def _as_python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
