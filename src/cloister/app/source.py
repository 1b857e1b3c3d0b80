"""Where rows come from: a table in memory, a file, a database or a function; encoded, as tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cloister.app.parquet import ParquetFolder
from cloister.core.arrays import Array
from cloister.core.errors import InputError, PrivateDataError
from cloister.core.roster import Name, group_labels, task_ids, task_name
from cloister.core.tasks import Tasks
from cloister.engines.local import Local
from cloister.engines.workers import Engine, Shards
from cloister.tables.codebook import Codebook
from cloister.tables.columns import (
    Columns,
    check_columns,
    has_column,
    labels_by_task,
    read_codebook,
    refuse_target,
    row_count,
    split_groups,
    target_column,
)
from cloister.tables.frames import named_columns
from cloister.tables.rows import (
    Rows,
    encode_table,
    encoded_rows,
    needed_parts,
    person_labels,
    read_rows,
    rows_with_target,
    task_column,
    text_columns,
)

#: Takes (done, in all).
Move = Callable[[int, int], None]


@dataclass(frozen=True, eq=False, repr=False)
class EncodedTable:
    """A table in memory, taken apart and encoded."""

    columns: Columns
    codebook: Codebook
    tasks: Tasks


@dataclass(frozen=True)
class TableReader:
    """How tables in memory are read: what estimators know before there is one.

    Attributes
    ----------
    task : str or int, optional
        The column of task ids, unless these come beside the table.
    bounds : mapping, path or Codebook
        What is public about the columns.
    classify : bool
        Whether targets are classes.
    name : str
        The estimator, for the sentences of errors.
    groups : str or int, optional
        The column of public groups.
    """

    task: str | int | None
    bounds: Any
    classify: bool
    name: str
    groups: str | int | None = None

    def encode(
        self,
        X: Any,
        y: Any,
        tasks: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        person: ArrayLike | None = None,
    ) -> EncodedTable:
        """Turn a table into tasks by its codebook; refuse what does not fit."""
        X, y, target = target_column(X, y)
        columns = self.columns(X, y, tasks, target)
        codebook = read_codebook(self.bounds, columns, target, y, self.classify)
        refuse_target(columns, codebook.target.name)
        if codebook.task is None and isinstance(self.task, str):
            codebook = replace(codebook, task=self.task)
        self.check_target(codebook)
        codebook.naming.check(np.unique(columns.ids).tolist(), "the table")
        data = _tasks_of_columns(codebook, columns, y, sample_weight, person)
        if not data.weight.any():
            raise PrivateDataError("sample_weight is zero in every row. Leave it out, or mend it.")
        if len(data) < 2:
            raise InputError(
                "There is one task only, and nobody to learn from. For a model of one's own use "
                "SingleTaskRegressor or SingleTaskClassifier."
            )
        return EncodedTable(columns, codebook, data)

    def split(self, X: Any, tasks: ArrayLike | None) -> Columns:
        """Take a table apart."""
        return split_groups(X, self.task, tasks, self.groups)

    def columns(self, X: Any, y: Any, tasks: ArrayLike | None, target: str) -> Columns:
        """Take a table apart that has targets beside it."""
        columns, shape = self.split(X, tasks), np.shape(y)
        if len(shape) != 1:
            got = f"shape {shape}" if shape else f"a single {type(y).__name__}"
            raise InputError(
                f"y must be one column, with one target a row. Got {got}. Pass the column, y[:, 0] of an "
                "array, or its name, if X has it."
            )
        if shape[0] != len(columns):
            raise InputError(f"X and y must have one entry a row: X has {len(columns)}, y {shape[0]}.")
        if not len(columns):
            raise InputError("X must have rows to fit. Got none. Check how they were selected.")
        refuse_target(columns, target)
        return columns

    def check_target(self, codebook: Codebook) -> None:
        """Refuse a codebook whose target is of the other kind."""
        if self.classify and codebook.classes is None:
            other = self.name.replace("Classifier", "Regressor")
            raise InputError(f"The codebook's target is a number. Use {other}, or list classes.")
        if not self.classify and codebook.classes is not None:
            other = self.name.replace("Regressor", "Classifier")
            raise InputError(f"The codebook's target has classes. Use {other}.")


def one_task(
    codebook: Codebook,
    X: Any,
    y: Any,
    task: str | int | None,
    sample_weight: ArrayLike | None = None,
    groups: str | int | None = None,
) -> Tasks:
    """Encode the rows of one task, with or without the columns of its name and of its group."""
    X, y, _ = target_column(X, y)
    rows = row_count(X)
    beside = None if has_column(X, task) else np.zeros(rows, dtype=int)
    columns = split_groups(X, task, beside, groups)
    if len(np.unique(columns.ids)) != 1 or len(np.asarray(y)) != rows:
        raise InputError("These must be the rows of one task, and one target for each.")
    return _tasks_of_columns(codebook, replace(columns, one=True), y, sample_weight)


def _tasks_of_columns(
    codebook: Codebook,
    columns: Columns,
    y: Any,
    sample_weight: ArrayLike | None,
    person: ArrayLike | None = None,
) -> Tasks:
    rows, target = encode_table(codebook, check_columns(codebook, columns), y, columns.at)
    assert target is not None
    data = Tasks.from_arrays(rows, target, columns.ids, sample_weight, person=person)
    return data if columns.groups is None else data.with_groups(labels_by_task(columns.ids, columns.groups))


@dataclass(frozen=True)
class TableFile:
    """A data file, the codebook that says what is public in it, and the column of public groups, if any.

    Public columns are read first, values last. With `skip`, rows whose target is missing are left out; who
    takes part does not depend on that. `note` is called with what its owner should know. `person` names the
    column that says whose each row is.
    """

    file: Path
    codebook: Codebook
    groups: str | None = None
    skip: bool = False
    note: Callable[[str], None] = field(default=lambda sentence: None, repr=False)
    person: str | None = None

    @property
    def task(self) -> str:
        assert self.codebook.task is not None
        return self.codebook.task

    @cached_property
    def ids(self) -> Array:
        """The tasks' ids, each once; no other column is looked at."""
        ids = self._listed()
        self.codebook.naming.check(ids.tolist(), self.file.name)
        if len(ids) < 2:
            raise InputError(
                f"Column {self.task!r} of {self.file.name} must hold at least 2 tasks. Got 1, with nobody to "
                "learn from. Name the column that tells schools, hospitals or persons apart."
            )
        return ids

    def _listed(self) -> Array:
        """Return the tasks' ids as the file has them, each once."""
        return np.unique(task_column(self.file, self.task))

    @cached_property
    def labels(self) -> dict[Any, str] | None:
        """The public group of each task, if tasks are in groups; no other columns are looked at."""
        if self.groups is None:
            return None
        column = task_column(self.file, self.groups, "groups' column ")
        return labels_by_task(task_column(self.file, self.task), column)

    def engine(self, draft: Path, bar: Callable[[str], Move]) -> Engine:
        """Return where tasks are computed on; models that it keeps go into the draft of a run's folder.

        What it does beside rounds has a progress bar of its own.
        """
        return Local()

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """Keep what a run needs until its folder is in place."""
        yield

    def data(self) -> Tasks | Shards:
        """Return what is run over: all rows, or shards of them."""
        return self.tasks()

    def check(self) -> None:
        """Refuse rows that do not fit the codebook, where they are read in this process."""
        self.tasks()

    def tasks(self) -> Tasks:
        """Return all rows, encoded."""
        return self._encoded

    @cached_property
    def _encoded(self) -> Tasks:
        """Read and encode all rows; refuse what does not fit the codebook."""
        rows = read_rows(self.file, self.codebook, True, self.skip, self.person)
        used = {*self.codebook.names, self.codebook.target.name, self.task, self.groups, self.person}
        unused = [name for name in rows.table if name not in used]
        if unused:
            self.note(f"Columns that the codebook does not name are not used: {', '.join(unused)}.")
        assert rows.ids is not None
        self._refuse_without_targets(rows.ids)
        tasks = rows.tasks(rows.ids)
        return tasks if self.labels is None else tasks.with_groups(self.labels)

    def _refuse_without_targets(self, left: Array) -> None:
        """Refuse tasks of which no row is left: they would be missing among those that take part."""
        without = np.setdiff1d(self.ids, left)
        if len(without):
            others = f" (the first of {len(without)} tasks)" if len(without) > 1 else ""
            raise PrivateDataError(
                f"Every task must have a row whose {self.codebook.target.name!r} is not missing. Task "
                f"{str(without[0])!r} has none{others}. Fill in one of its targets; or, if everybody may "
                f"see that it does not take part, delete its rows from {self.file.name}."
            )


def rows_of_file(
    task: Name, path: Path, codebook: Codebook, skip: bool = False, person: str | None = None
) -> Tasks:
    """Read one task's rows from a CSV, Parquet, Arrow or Excel file, or a folder of Parquet files.

    With `skip`, here as below, rows whose target is missing are left out; some row must be left. The column
    `person` says whose each row is.
    """
    rows = own_rows(path, codebook, str(task), skip, person)
    assert rows.y is not None
    return _tasks(task, rows.X, rows.y, rows.person)


def rows_of_query(
    task: Name, url: str, query: str, codebook: Codebook, skip: bool = False, person: str | None = None
) -> Tasks:
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
    return _encoded(task, columns, codebook, "The query", skip, person)


def rows_of_function(
    task: Name,
    function: Callable[[], Any],
    codebook: Codebook | None,
    skip: bool = False,
    person: str | None = None,
) -> Tasks:
    """Let a function of the owner's own return one task's rows.

    With a codebook it returns a table, such as a data frame or a mapping of columns; without one a pair of
    arrays, features and targets, as the plan takes them.
    """
    found = function()
    if codebook is not None:
        return _encoded(task, named_columns(found)[0], codebook, "The function", skip, person)
    if person is not None:
        raise InputError("--person names a column, and goes with a codebook. Return a table, and name one.")
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


def _encoded(
    task: Name,
    columns: dict[str, Array],
    codebook: Codebook,
    source: str,
    skip: bool,
    person: str | None,
) -> Tasks:
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
    X, y = encode_table(codebook, columns, columns[codebook.target.name])
    assert y is not None
    whose = None if person is None else person_labels(codebook, person, columns, source)
    return _tasks(task, X, y, whose)


def _column(cells: list[Any]) -> Array:
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return column


def _tasks(task: Name, X: Array, y: Array, person: Array | None = None) -> Tasks:
    if not len(X):
        raise InputError(f"There are no rows of task {task!r}. Check where they come from, and the name.")
    return Tasks.from_arrays(X, y, [task] * len(X), person=person)


def own_tasks(
    path: Path, codebook: Codebook, task: str, skip: bool, groups: str, known: Mapping[str, str]
) -> Tasks:
    """Read one task's rows, in its public group: by its label in the file, or by what is known of tasks."""
    rows = own_rows(path, codebook, task, skip)
    own = rows.tasks([task] * len(rows))
    if groups not in rows.table:
        return own.with_groups({own.ids[0]: known[task]}) if task in known else own
    alone = rows.ids is None or path.is_dir()  # of a folder, this task's rows alone are read
    whose = own.ids[:1] if alone else task_column(path, str(codebook.task))
    labels = group_labels(rows.table[groups]) if path.is_dir() else task_column(path, groups)
    return own.with_groups(labels_by_task(np.resize(whose, len(labels)), labels))


def own_rows(
    path: Path, codebook: Codebook, task: str, skip: bool = False, person: str | None = None
) -> Rows:
    """Read one task's rows, with their targets: all of them if the file has no task column.

    With `skip` and `person`, as in `read_rows`; a task must have a row that is left.
    """
    read = _from_folder if path.is_dir() else _from_file
    rows = read(path, codebook, task, skip, person)
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


def _from_file(path: Path, codebook: Codebook, task: str, skip: bool, person: str | None) -> Rows:
    rows = read_rows(path, codebook, True, skip, person)
    if rows.ids is None or codebook.task is None:
        return rows
    name = task_name(task)
    own = rows.ids == name
    if not own.any() and not (skip and name in task_column(path, codebook.task)):
        raise InputError(
            f"Column {codebook.task!r} of {path.name} has no rows of task {task!r}. "
            "Write the name as it is in the file, or leave the column out of a file of one task."
        )
    return rows.of(own)


def _from_folder(path: Path, codebook: Codebook, task: str, skip: bool, person: str | None) -> Rows:
    """Read one task's rows from a folder of Parquet files, which has a task column."""
    if codebook.task is None:
        raise InputError("The codebook must name the task column, to find a task's rows in a folder.")
    folder = ParquetFolder(path)
    folder.check_columns([part.name for part in needed_parts(codebook, target=True)])
    text = [*text_columns(codebook, target=True), *([] if person is None else [person])]
    table = folder.own_rows(str(task_name(task)), codebook.task, text)
    kept = rows_with_target(codebook, table) if skip else None
    return encoded_rows(path, codebook, table, True, kept, person)
