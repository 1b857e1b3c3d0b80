"""From a data file and a codebook to encoded rows; what does not fit is named by column and row."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.arrays import Array, Floats
from cloister.core.errors import InputError, PrivateDataError
from cloister.core.roster import task_ids
from cloister.core.tasks import Tasks
from cloister.tables.codebook import Codebook
from cloister.tables.column_checks import At
from cloister.tables.feature import Feature
from cloister.tables.table_files import read_table


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """A file's columns as they are, each row's task and person if asked for, and encoded rows and targets."""

    table: dict[str, Array]
    ids: Array | None
    X: NDArray[np.float64]
    y: Array | None
    person: Array | None = None

    def __len__(self) -> int:
        return len(self.X)

    def tasks(self, ids: ArrayLike) -> Tasks:
        """Return the rows as tasks, by the id of each row."""
        assert self.y is not None
        return Tasks.from_arrays(self.X, self.y, ids, person=self.person)

    def of(self, own: NDArray[np.bool_]) -> Rows:
        """Return some of the rows."""
        parts = (None if part is None else part[own] for part in (self.ids, self.X, self.y, self.person))
        return Rows({name: column[own] for name, column in self.table.items()}, *parts)  # type: ignore[arg-type]


def encode_table(
    codebook: Codebook, table: Mapping[str, Array], target: ArrayLike | None = None, at: At | None = None
) -> tuple[Floats, Array | None]:
    """Encode the columns that a codebook names, and targets if there are any: the one way that rows take.

    `at` names a row by its position, for the sentence of an error.
    """
    X = codebook.encode({name: table[name] for name in codebook.names}, at)
    return X, None if target is None else codebook.encode_target(target, at)


def task_column(path: Path, column: str, what: str = "task column ") -> Array:
    """Return each row's task (or group) as text, by the name that counts; no other column is looked at."""
    found = read_table(path, text=[column], only=[column])
    if column not in found:
        raise _no_column(path, column, what)
    return _names(path, column, found[column])


def read_rows(
    path: Path, codebook: Codebook, target: bool, skip: bool = False, person: str | None = None
) -> Rows:
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
    person : str, optional
        The column that says whose each row is. It is never learned from.
    """
    table = codebook_table(path, codebook, target, person)
    kept = rows_with_target(codebook, table) if skip else None
    return encoded_rows(path, codebook, table, target, kept, person)


def rows_with_target(codebook: Codebook, table: dict[str, Array]) -> NDArray[np.int64]:
    """Return which rows have a target, by position."""
    name = codebook.target.name
    return np.flatnonzero(~codebook.target.read(codebook.cells(name, table[name])).missing)


def encoded_rows(
    path: Path,
    codebook: Codebook,
    table: dict[str, Array],
    target: bool,
    kept: NDArray[np.int64] | None = None,
    person: str | None = None,
) -> Rows:
    def at(row: int) -> str:
        """Name a row as people count: that below the column names is row 1."""
        return f"Data row {(row if kept is None else int(kept[row])) + 1} of {path.name}"

    if kept is not None:
        table = {name: column[kept] for name, column in table.items()}
    ids = None if codebook.task is None else table.get(codebook.task)
    if ids is not None and codebook.task is not None:
        ids = _names(path, codebook.task, ids, kept)
    X, y = encode_table(codebook, table, table[codebook.target.name] if target else None, at)
    whose = None if person is None else person_labels(codebook, person, table, path.name, kept)
    return Rows(table, ids, X, y, whose)


def person_labels(
    codebook: Codebook,
    column: str,
    table: Mapping[str, Array],
    place: str,
    kept: NDArray[np.int64] | None = None,
) -> Array:
    """Return whose each row is, as text; refuse a column that is learned from, or empty somewhere."""
    if column in (*codebook.names, codebook.target.name):
        raise InputError(
            f"Column {column!r} says whose each row is, and must not be learned from. The codebook has it. "
            "Delete it there."
        )
    if column not in table:
        raise InputError(f"{place} must have a person column {column!r}. Got none. Check the spelling.")
    cells = ("" if cell is None or cell != cell else str(cell) for cell in table[column].tolist())
    labels = np.array([unicodedata.normalize("NFC", cell).strip() for cell in cells], dtype=np.str_)
    if (labels == "").any():
        raise PrivateDataError(
            f"Person column {column!r} of {place} must have an entry in every row. {_at(labels == '', kept)} "
            "has none. Fill it in, or leave the row out."
        )
    return labels


def codebook_table(
    path: Path, codebook: Codebook, target: bool, person: str | None = None
) -> dict[str, Array]:
    """Read a file's columns as its codebook means them; refuse one that lacks a column."""
    whose = [] if person is None else [person]
    table = read_table(path, text=[*text_columns(codebook, target), *whose])
    for part in needed_parts(codebook, target):
        if part.name not in table:
            raise _no_column(path, part.name)
    return table


def text_columns(codebook: Codebook, target: bool) -> list[str]:
    """Return the columns whose cells mean what is written, the task column among them."""
    task = [] if codebook.task is None else [codebook.task]
    return [*(part.name for part in needed_parts(codebook, target) if part.is_text), *task]


def needed_parts(codebook: Codebook, target: bool) -> list[Feature]:
    return [*codebook.features, *([codebook.target] if target else [])]


def _names(path: Path, column: str, ids: Array, kept: NDArray[np.int64] | None = None) -> Array:
    empty = ids == ""
    if empty.any():
        raise InputError(
            f"Task column {column!r} of {path.name} must have an entry in every row. {_at(empty, kept)} has "
            "none. Drop those rows, or name their task."
        )
    try:
        return task_ids(ids)
    except InputError as error:
        raise InputError(f"Task column {column!r} of {path.name}: {error}") from None


def _at(mask: NDArray[np.bool_], kept: NDArray[np.int64] | None = None) -> str:
    """Name the first row of a mask, of the rows that were kept, as people count: see `encoded_rows`."""
    others, first = int(mask.sum()) - 1, int(np.argmax(mask))
    row = f"Data row {(first if kept is None else int(kept[first])) + 1}"
    return row + (f" (the first of {others + 1})" if others else "")


def _no_column(path: Path, name: str, what: str = "column ") -> InputError:
    known = list(read_table(path))
    shown = ", ".join(known[:20]) + ", ..." * (len(known) > 20)
    return InputError(f"{path.name} has no {what}{name!r}. It has: {shown}. Check the spelling.")
