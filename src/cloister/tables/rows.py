"""From a data file and a codebook to encoded rows; what does not fit is named by column and row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Array
from cloister.errors import InputError, PrivateDataError
from cloister.roster import Name, task_ids, task_name
from cloister.tables.codebook import Categorical, Codebook, Date, Feature
from cloister.tables.files import read_table

__all__ = [
    "Rows",
    "check_rows_left",
    "codebook_table",
    "own_rows",
    "read_rows",
    "rows_with_target",
    "task_column",
    "text_columns",
]


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


def read_rows(path: Path, codebook: Codebook, target: bool, skip: bool = False) -> Rows:
    """Read the columns that a codebook names, and encode them; other columns are carried along.

    Parameters
    ----------
    path : Path
        The data file. It may have the codebook's task column or not.
    codebook : Codebook
        The public schema.
    target : bool
        Whether the target is needed.
    skip : bool
        Whether to leave out rows whose target is missing. That is each task's own affair, unless none of its
        rows is left: who takes part is public.
    """
    table = codebook_table(path, codebook, target)
    return _encoded(path, codebook, table, target, rows_with_target(codebook, table) if skip else None)


def rows_with_target(codebook: Codebook, table: dict[str, Array]) -> NDArray[np.int64]:
    """Return which rows have a target, by position."""
    return np.flatnonzero(~codebook.target.read(table[codebook.target.name]).missing)


def _encoded(
    path: Path,
    codebook: Codebook,
    table: dict[str, Array],
    target: bool,
    kept: NDArray[np.int64] | None = None,
) -> Rows:
    def at(row: int) -> str:
        """Name a row as people count: that below the column names is row 1."""
        return f"Data row {(row if kept is None else int(kept[row])) + 1} of {path.name}"

    if kept is not None:
        table = {name: column[kept] for name, column in table.items()}
    ids = None if codebook.task is None else table.get(codebook.task)
    if ids is not None and codebook.task is not None:
        ids = _names(path, codebook.task, ids)
    y = codebook.encode_target(table[codebook.target.name], at) if target else None
    return Rows(table, ids, codebook.encode({name: table[name] for name in codebook.names}, at), y)


def codebook_table(path: Path, codebook: Codebook, target: bool) -> dict[str, Array]:
    """Read a file's columns as its codebook means them; refuse one that lacks a column."""
    table = read_table(path, text=text_columns(codebook, target))
    for part in _needed(codebook, target):
        if part.name not in table:
            raise _no_column(path, part.name)
    return table


def text_columns(codebook: Codebook, target: bool) -> list[str]:
    """Return the columns whose cells mean what is written, the task column among them."""
    task = [] if codebook.task is None else [codebook.task]
    return [*(part.name for part in _needed(codebook, target) if _is_text(part)), *task]


def _needed(codebook: Codebook, target: bool) -> list[Feature]:
    return [*codebook.features, *([codebook.target] if target else [])]


def _is_text(part: Feature) -> bool:
    """Say whether cells mean what is written: 007 is no 7, and 20240531 may be a date."""
    if isinstance(part, Categorical):
        return isinstance(part.levels[0], str)
    return isinstance(part, Date) and part.spelling is not None


def own_rows(path: Path, codebook: Codebook, task: str, skip: bool = False) -> Rows:
    """Read one task's rows, with their targets: all of them if the file has no task column.

    With `skip`, as in `read_rows`; a task must have a row that is left.
    """
    rows = (
        _from_folder(path, codebook, task, skip) if path.is_dir() else _from_file(path, codebook, task, skip)
    )
    if skip:
        check_rows_left(len(rows), task, codebook, path.name)
    return rows


def check_rows_left(rows: int, task: Name, codebook: Codebook, source: str) -> None:
    """Refuse, at home, a task of which no row has a target: who takes part is public."""
    if not rows:
        raise PrivateDataError(
            f"Task {task!r} must have a row whose {codebook.target.name!r} is not missing. It has none in "
            f"{source}. Fill in one of its targets."
        )


def _from_file(path: Path, codebook: Codebook, task: str, skip: bool) -> Rows:
    rows = read_rows(path, codebook, target=True, skip=skip)
    if rows.ids is None or codebook.task is None:
        return rows
    name = task_name(task)
    own = rows.ids == name
    if not own.any() and not (skip and name in task_column(path, codebook.task)):
        raise InputError(
            f"Column {codebook.task!r} of {path.name} has no rows of task {task!r}. "
            "Write the name as it is in the file, or leave the column out of a file of one task."
        )
    assert rows.y is not None
    return Rows({k: v[own] for k, v in rows.table.items()}, rows.ids[own], rows.X[own], rows.y[own])


def _from_folder(path: Path, codebook: Codebook, task: str, skip: bool) -> Rows:
    """Read one task's rows from a folder of Parquet files, which has a task column."""
    from cloister.tables.parquet_folder import ParquetFolder

    if codebook.task is None:
        raise InputError("The codebook must name the task column, to find a task's rows in a folder.")
    folder = ParquetFolder(path)
    folder.check_columns([part.name for part in _needed(codebook, target=True)])
    text = text_columns(codebook, target=True)
    table = folder.own_rows(str(task_name(task)), codebook.task, text)
    return _encoded(path, codebook, table, True, rows_with_target(codebook, table) if skip else None)


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


def _at(mask: NDArray[np.bool_]) -> str:
    """Name the first row of a mask as people count: the row below the column names is row 1."""
    others = int(mask.sum()) - 1
    row = f"Data row {int(np.argmax(mask)) + 1}"
    return row + (f" (the first of {others + 1})" if others else "")


def _no_column(path: Path, name: str, what: str = "column ") -> InputError:
    known = list(read_table(path))
    shown = ", ".join(known[:20]) + ", ..." * (len(known) > 20)
    return InputError(f"{path.name} has no {what}{name!r}. It has: {shown}. Check the spelling.")
