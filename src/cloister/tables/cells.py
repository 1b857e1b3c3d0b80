"""What every kind of file shares: names of columns, and cells as one writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from cloister.arrays import Array
from cloister.errors import InputError

__all__ = ["cell_text", "check_names", "check_rows", "number_text", "text_column"]


def number_text(value: float) -> str:
    """Return a number as a cell has it: whole ones without ``.0``, NaN as an empty cell.

    Examples
    --------
    >>> number_text(7.0), number_text(0.1), number_text(math.nan)
    ('7', '0.1', '')
    """
    if math.isnan(value):
        return ""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def cell_text(value: Any) -> str:
    """Return any cell as text; dates as ISO 8601 has them."""
    if value is None:
        return ""
    if isinstance(value, float):
        return number_text(value)
    return value.isoformat() if isinstance(value, date) else str(value)


def text_column(file: Path, cells: list[str]) -> Array:
    """Return cells as text; arrays of it drop NUL at the end, and two names would become one."""
    if any("\0" in cell for cell in cells):
        raise InputError(f"{file.name} must be text. Got the character NUL in a cell. Export the file again.")
    return np.array(cells, dtype=np.str_)


def check_names(file: Path, names: Sequence[str]) -> None:
    """Refuse columns without a name, and two of one name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if "" in names:
        raise InputError(
            f"Every column of {file.name} must have a name. Column {names.index('') + 1} has none. "
            "Name it, or leave it out (pandas: to_csv(..., index=False))."
        )
    if twice:
        raise InputError(
            f"Column names in {file.name} must differ. Got {twice[0]!r} more than once. Rename one."
        )


def check_rows(file: Path, rows: int) -> None:
    if not rows:
        raise InputError(f"{file.name} has column names but no rows. Check that the export is complete.")
