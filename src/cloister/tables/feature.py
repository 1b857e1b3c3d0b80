"""What is asked of a type of column: `Feature`, and nothing that asks which of its types it is.

A column becomes a block of encoded columns whose squared norm is at most `block_bound`, a public number, for
every cell there can be; some cell attains it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from cloister.core.arrays import Array, Floats
from cloister.core.errors import InputError
from cloister.tables.reading import Reading

if TYPE_CHECKING:
    from cloister.tables.stock_blocks import StockBlock


class Feature(ABC):
    """A column between public limits.

    A type of column is a frozen dataclass with a `name` and with `missing`, a public value that stands for
    missing cells, or None. What has no body here every type says for itself. `read` is from cells to numbers;
    `columns` from numbers to columns in units that a user can read; `affine` from these to encoded ones.
    """

    name: str
    missing: Any

    #: The key of its limits in a codebook file, beside the other keys that it may have.
    key: ClassVar[str] = "bounds"
    options: ClassVar[tuple[str, ...]] = ("missing",)

    @classmethod
    @abstractmethod
    def takes(cls, limits: Sequence[Any]) -> bool:
        """Say whether limits under its key are of this type."""

    @classmethod
    @abstractmethod
    def from_entry(cls, name: str, limits: Sequence[Any], options: Mapping[str, Any]) -> Self:
        """Return the column of limits and options as a codebook file has them."""

    @abstractmethod
    def entry(self) -> dict[str, Any]:
        """Return the keys of a codebook file, limits first, without those that have their defaults."""

    @property
    @abstractmethod
    def must(self) -> str:
        """What its cells must do, for a sentence."""

    @property
    @abstractmethod
    def example(self) -> str:
        """What a user may write in a codebook for missing cells."""

    @property
    @abstractmethod
    def fill(self) -> float | None:
        """What stands for missing cells, as `read` has values; None if they are refused."""

    @property
    def indicator(self) -> bool:
        """Whether missing cells have a column of their own beside what stands for them."""
        return self.missing is not None

    @property
    def most(self) -> float:
        """The largest squared norm that its encoded columns can have."""
        return 1.0

    @property
    def limits(self) -> tuple[float, float] | None:
        """Lowest and highest value, as `read` has them, to which others are clipped."""
        return None

    @property
    def bounds(self) -> tuple[str, ...]:
        """The limits as people write them; empty without limits."""
        return ()

    @property
    def is_bounded(self) -> bool:
        """Whether its first column is a number between its limits."""
        return False

    @property
    def is_text(self) -> bool:
        """Whether cells mean what is written: 007 is no 7, and 20240531 may be a date."""
        return False

    @abstractmethod
    def read(self, column: Array) -> Reading:
        """Read cells, which may be anything."""

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Return the names of its columns."""

    @abstractmethod
    def affine(self) -> tuple[tuple[float, float], ...]:
        """Return what is taken off each of its columns, and what it is then divided by, to be encoded."""

    @abstractmethod
    def columns(self, values: Floats) -> Floats:
        """Return its columns of values, clipped to its limits."""

    def fault(self, cell: Any) -> str:
        """Return in a word or two what is wrong with a cell that `read` calls wrong."""
        return "unreadable"

    def mend(self, cells: Sequence[str]) -> list[str]:
        """Advise what to write in place of wrong cells."""
        return []

    def admit(self, cells: Sequence[str]) -> list[str]:
        """Advise what to write in a codebook, so that cells that are wrong now can be read."""
        return []

    def stock_block(self) -> StockBlock | None:
        """Return the same columns by transformers of scikit-learn's own; None if it has none."""
        return None

    def block_names(self) -> tuple[str, ...]:
        """Return the names of all columns; the last says whether it is missing, if that is counted."""
        return (*self.names(), f"{self.name}[missing]") if self.indicator else self.names()

    def block_affine(self) -> tuple[tuple[float, float], ...]:
        return (*self.affine(), (0.0, 1.0)) if self.indicator else self.affine()

    def block_columns(self, reading: Reading) -> Floats:
        """Return all columns in units that a user can read; its public value stands for missing ones."""
        fill = self.fill
        values = reading.values if fill is None else np.where(reading.missing, fill, reading.values)
        columns = self.columns(values)
        return np.column_stack([columns, reading.missing]) if self.indicator else columns

    def block_bound(self) -> float:
        """Return the largest squared norm that all encoded columns can have.

        A missing value has its indicator, 1, beside the encoded columns of what stands for it.

        Examples
        --------
        >>> from cloister.tables.column_types import Numeric
        >>> Numeric("age", 0, 100).block_bound(), Numeric("age", 0, 100, missing=75).block_bound()
        (1.0, 1.25)
        """
        if not self.indicator or self.fill is None:
            return self.most
        center, half = np.array(self.affine()).T
        filled = (self.columns(np.array([self.fill]))[0] - center) / half
        return max(self.most, 1 + float(filled @ filled))


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InputError(sentence)
