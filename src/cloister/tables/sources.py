"""One task's rows, from where its owner keeps them: a file, a database, or a function of the owner's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cloister.arrays import Array
from cloister.errors import InputError
from cloister.roster import Name, task_ids, task_name
from cloister.tables.codebook import Codebook
from cloister.tables.frames import named_columns
from cloister.tables.rows import check_rows_left, own_rows, rows_with_target
from cloister.tasks import Tasks

__all__ = ["rows_of_file", "rows_of_function", "rows_of_query"]


def rows_of_file(task: Name, path: Path, codebook: Codebook, skip: bool = False) -> Tasks:
    """Read one task's rows from a CSV, Parquet, Arrow or Excel file, or a folder of Parquet files.

    With `skip`, here as below, rows whose target is missing are left out; some row must be left.
    """
    rows = own_rows(path, codebook, str(task), skip)
    assert rows.y is not None
    return _tasks(task, rows.X, rows.y)


def rows_of_query(task: Name, url: str, query: str, codebook: Codebook, skip: bool = False) -> Tasks:
    """Read one task's rows by an SQL query; the address is one of SQLAlchemy, ``postgresql://user@host/db``.

    Nothing is written, and no error repeats the address, which may hold a password.
    """
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    try:
        with create_engine(url, poolclass=NullPool).connect() as connection:
            found = connection.execute(text(query))
            names, rows = list(found.keys()), found.fetchall()
    except (SQLAlchemyError, ImportError) as error:
        reason = str(getattr(error, "orig", None) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"The database did not answer the query: {reason}. Check --data and --query."
        ) from None
    columns = {name: _column([row[at] for row in rows]) for at, name in enumerate(names)}
    return _encoded(task, columns, codebook, "The query", skip)


def rows_of_function(
    task: Name, function: Callable[[], Any], codebook: Codebook | None, skip: bool = False
) -> Tasks:
    """Let a function of the owner's own return one task's rows.

    With a codebook it returns a table, such as a data frame or a mapping of columns; without one a pair of
    arrays, features and targets, as the plan takes them.
    """
    found = function()
    if codebook is not None:
        return _encoded(task, named_columns(found)[0], codebook, "The function", skip)
    if skip:
        raise InputError(
            "--skip-missing-targets goes with a codebook, which says what a missing target is. Return from "
            "the function only rows that have one."
        )
    if not isinstance(found, tuple) or len(found) != 2:
        raise InputError(
            f"The function must return features and targets, a pair of arrays. Got {type(found).__name__}. "
            "Return X, y; or name a --codebook, and return a table."
        )
    return _tasks(task, np.asarray(found[0]), np.asarray(found[1]))


def _encoded(task: Name, columns: dict[str, Array], codebook: Codebook, source: str, skip: bool) -> Tasks:
    for name in (*codebook.names, codebook.target.name):
        if name not in columns:
            known = ", ".join(list(columns)[:20])
            raise InputError(f"{source} must give a column {name!r}, as the codebook has. Got: {known}.")
    if codebook.task in columns:
        own = task_ids(columns[codebook.task]).astype(str) == str(task_name(task))
        columns = {name: column[own] for name, column in columns.items()}
    if skip and len(columns[codebook.target.name]):
        kept = rows_with_target(codebook, columns)
        check_rows_left(len(kept), task, codebook, source.lower())
        columns = {name: column[kept] for name, column in columns.items()}
    X = codebook.encode({name: columns[name] for name in codebook.names})
    return _tasks(task, X, codebook.encode_target(columns[codebook.target.name]))


def _column(cells: list[Any]) -> Array:
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return column


def _tasks(task: Name, X: Array, y: Array) -> Tasks:
    if not len(X):
        raise InputError(f"There are no rows of task {task!r}. Check where they come from, and the name.")
    return Tasks.from_arrays(X, y, [task] * len(X))
