"""From a data file and a codebook to encoded rows; what does not fit is named by column and row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Array
from cloister.errors import InputError, PrivateDataError
from cloister.roster import task_ids, task_name
from cloister.tables.codebook import Categorical, Codebook, Numeric
from cloister.tables.files import is_number, read_table

__all__ = ["Rows", "own_rows", "read_rows", "task_column"]

_SHOWN_LEVELS = 10


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """A file's columns as they are, each row's task if the file says it, and encoded rows and targets."""

    table: dict[str, Array]
    ids: Array | None
    X: NDArray[np.float64]
    y: Array | None

    def __len__(self) -> int:
        return len(self.X)


def task_column(path: Path, column: str, what: str = "task column ") -> Array:
    """Return each row's task (or group) as text, by the name that counts; no other column is looked at."""
    found = read_table(path, text=[column], only=[column])
    if column not in found:
        raise _no_column(path, column, what)
    return _names(path, column, found[column])


def read_rows(path: Path, codebook: Codebook, target: bool) -> Rows:
    """Read the columns that a codebook names, and encode them; other columns are carried along.

    Parameters
    ----------
    path : Path
        The data file. It may have the codebook's task column or not.
    codebook : Codebook
        The public schema.
    target : bool
        Whether the target is needed.
    """
    needed = [*codebook.features, *([codebook.target] if target else [])]
    text = [part.name for part in needed if isinstance(part, Categorical) and isinstance(part.levels[0], str)]
    table = read_table(path, text=[*text, *([] if codebook.task is None else [codebook.task])])
    for part in needed:
        if part.name not in table:
            raise _no_column(path, part.name)
        _check_column(path, part, table[part.name])
    ids = None if codebook.task is None else table.get(codebook.task)
    if ids is not None and codebook.task is not None:
        ids = _names(path, codebook.task, ids)
    y = codebook.encode_target(table[codebook.target.name]) if target else None
    return Rows(table, ids, codebook.encode({name: table[name] for name in codebook.names}), y)


def own_rows(path: Path, codebook: Codebook, task: str) -> Rows:
    """Read one task's rows, with their targets: all of them if the file has no task column."""
    rows = read_rows(path, codebook, target=True)
    if rows.ids is None:
        return rows
    own = rows.ids == task_name(task)
    if not own.any():
        raise InputError(
            f"Column {codebook.task!r} of {path.name} has no rows of task {task!r}. "
            "Write the name as it is in the file, or leave the column out of a file of one task."
        )
    assert rows.y is not None
    return Rows({k: v[own] for k, v in rows.table.items()}, rows.ids[own], rows.X[own], rows.y[own])


def _names(path: Path, column: str, ids: Array) -> Array:
    empty = ids == ""
    if empty.any():
        raise InputError(
            f"Task column {column!r} of {path.name} must have an entry in every row. {_at(empty)} has none. "
            "Drop those rows, or name their task."
        )
    try:
        return task_ids(ids)
    except InputError as error:
        raise InputError(f"Task column {column!r} of {path.name}: {error}") from None


def _check_column(path: Path, part: Numeric | Categorical, column: Array) -> None:
    if isinstance(part, Numeric):
        _check_numbers(path, part.name, column)
        return
    if not isinstance(part.levels[0], str) and column.dtype.kind != "f":
        _check_numbers(path, part.name, column)
    known = set(part.levels)
    strange = np.array([value not in known for value in column.tolist()])
    if strange.any():
        levels = ", ".join(map(repr, part.levels[:_SHOWN_LEVELS])) + ", ..." * (
            len(part.levels) > _SHOWN_LEVELS
        )
        raise PrivateDataError(
            f"Column {part.name!r} of {path.name} must hold levels that the codebook lists ({levels}). "
            f"{_at(strange)} does not. Mend it, or list the level if it is publicly possible."
        )


def _check_numbers(path: Path, name: str, column: Array) -> None:
    if column.dtype.kind != "f":
        text = np.array([cell != "" and not is_number(cell) for cell in column.tolist()])
        found = f"{_at(text)} holds text" if text.any() else "It is empty throughout"
        raise InputError(
            f"Column {name!r} of {path.name} must hold numbers, as the codebook says. {found}. "
            "Mend it, or give the column levels in the codebook."
        )
    missing = ~np.isfinite(column)
    if missing.any():
        raise PrivateDataError(
            f"Column {name!r} of {path.name} must have a number in every row. {_at(missing)} is empty or "
            "not finite. Fill or drop such rows by a public rule; cloister does not do it behind your back."
        )


def _at(mask: NDArray[np.bool_]) -> str:
    """Name the first row of a mask as people count: the row below the column names is row 1."""
    others = int(mask.sum()) - 1
    row = f"Data row {int(np.argmax(mask)) + 1}"
    return row + (f" (the first of {others + 1})" if others else "")


def _no_column(path: Path, name: str, what: str = "column ") -> InputError:
    known = list(read_table(path))
    shown = ", ".join(known[:20]) + ", ..." * (len(known) > 20)
    return InputError(f"{path.name} has no {what}{name!r}. It has: {shown}. Check the spelling.")
