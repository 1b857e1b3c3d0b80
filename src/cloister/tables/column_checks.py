"""What of a column does not fit its codebook: refused, or counted for one's own eyes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cloister.core.arrays import Array
from cloister.core.errors import PrivateDataError
from cloister.core.spelling import counted
from cloister.tables.feature import Feature
from cloister.tables.reading import Mask, Reading

#: Names a row by its position, for the sentence of an error: "Data row 7".
At = Callable[[int], str]

_SHOWN = 10
#: What to do about rows without a target.
_WITHOUT = (
    "Leave such rows out, which teach nothing: add --skip-missing-targets to the command; or pass in "
    "Python df.dropna(subset=[{!r}]) of a frame, or X[keep], y[keep] and tasks[keep] of arrays, keep = ~{}(y)"
)


@dataclass(frozen=True)
class ColumnCheck:
    """How many of a column's cells are clipped, missing, or not what the codebook says. Private, all of it.

    Parameters
    ----------
    name : str
        The column.
    rows : int
        Its cells.
    missing : int
        Cells that are empty; a public value stands for them if ``filled``, else they are refused.
    filled : bool
        Whether the codebook says what stands for missing ones.
    below, above : int
        Cells beyond the bounds, which are clipped.
    wrong : int
        Cells that are not of the kind that the codebook says, or no listed level: refused.
    examples : tuple of (str, int)
        What stands in wrong cells, and how often: the most frequent ones.
    faults : tuple of (str, int)
        What is wrong with wrong cells, and with how many: "unreadable", "out of range", "not listed".
    bounds : tuple of str
        The bounds as the codebook has them; empty for a category.
    """

    name: str
    rows: int
    missing: int
    filled: bool
    below: int
    above: int
    wrong: int
    examples: tuple[tuple[str, int], ...]
    faults: tuple[tuple[str, int], ...]
    bounds: tuple[str, ...]

    @property
    def clipped(self) -> int:
        return self.below + self.above

    @property
    def refused(self) -> int:
        """How many cells would make `fit` refuse the table."""
        return self.wrong + (0 if self.filled else self.missing)

    def __str__(self) -> str:
        said = [f"{self.name}: {counted(self.rows, 'row')}"]
        if self.clipped:
            low, high = self.bounds
            said.append(f"{self.clipped} clipped ({self.below} below {low}, {self.above} above {high})")
        if self.missing:
            said.append(f"{self.missing} missing ({'filled in' if self.filled else 'refused'})")
        if self.wrong:
            shown = ", ".join(f"{cell} ({count})" for cell, count in self.examples)
            faults = ", ".join(f"{count} {fault}" for fault, count in self.faults)
            said.append(f"{faults} (refused): {shown}")
        return ", ".join(said) + (", all as the codebook says" if len(said) == 1 else "")


def accepted(part: Feature, column: Array, at: At | None, goal: bool = False) -> Reading:
    """Read a column; refuse cells that are not what the codebook says, or are missing without a stand-in."""
    found = part.read(column)
    if found.wrong.any():
        raise PrivateDataError(
            f"Column {part.name!r} must {part.must}. {_who(found.wrong, at, 'does not', 'do not')}. Mend the "
            "cells, or what the codebook says if that is publicly wrong. Codebook.check, or `cloister "
            "codebook DATA --check CODEBOOK`, shows them to you."
        )
    if found.missing.any() and part.fill is None:
        stand_in = f"Write what stands for missing ones under it in the codebook, {part.example}, or drop"
        missing = "np.isnan" if column.dtype.kind == "f" else "pd.isna"
        remedy = _WITHOUT.format(part.name, missing) if goal else f"{stand_in} such rows by a public rule"
        raise PrivateDataError(
            f"Column {part.name!r} must have a value in every row. "
            f"{_who(found.missing, at, 'has a missing value', 'have none')}. {remedy}."
        )
    return found


def _who(mask: Mask, at: At | None, does: str, do: str) -> str:
    count = _count(mask)
    if at is None:
        return f"{count} row{'s' * (count > 1)} {do if count > 1 else does}"
    return f"{at(int(mask.argmax()))} {does}" + (f" (the first of {count} rows)" if count > 1 else "")


def check_column(part: Feature, column: Array) -> ColumnCheck:
    """Count the cells of a column that do not fit what a codebook says of it."""
    found = part.read(column)
    good = ~(found.missing | found.wrong)
    low, high = part.limits or (-np.inf, np.inf)
    cells = column.tolist()
    wrong = [cells[row] for row in np.flatnonzero(found.wrong)]
    return ColumnCheck(
        part.name,
        rows=len(column),
        missing=_count(found.missing),
        filled=part.fill is not None,
        below=_count(good & (found.values < low)),
        above=_count(good & (found.values > high)),
        wrong=len(wrong),
        examples=tuple(Counter(map(repr, wrong)).most_common(_SHOWN)),
        faults=tuple(Counter(map(part.fault, wrong)).most_common()),
        bounds=part.bounds,
    )


def _count(mask: Mask) -> int:
    return int(np.count_nonzero(mask))
