"""From whatever table a user has to named columns, task ids and a codebook."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cloister.core.arrays import Array, Floats
from cloister.core.errors import InputError, PrivateDataError
from cloister.core.roster import group_labels, is_missing, task_ids
from cloister.core.spelling import counted
from cloister.tables.codebook import Codebook
from cloister.tables.frames import as_array, library_of, named_columns

#: What targets are called that come without a name.
UNNAMED = "target"


@dataclass(frozen=True, eq=False, repr=False)
class Columns:
    """A table taken apart: feature columns in order, whether they had names, one task id and label a row.

    `one` says that they are one task's rows.
    """

    features: dict[str, Array]
    named: bool
    ids: Array
    groups: Array | None = None
    library: str | None = None
    one: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, row: int) -> str:
        """Name a row, counted from 1, and its task unless there is one only: for the operator alone."""
        return f"Row {row + 1}" if self.one else f"Row {row + 1}, of task {self.ids[row]!s},"


def split_table(X: Any, task: str | int | None, tasks: ArrayLike | None) -> Columns:
    """Take the task ids out of a table, by the name of their column, or from beside it."""
    columns, named = named_columns(X)
    rows = len(next(iter(columns.values()), ()))
    if task is None and tasks is None:
        raise InputError(
            "Whose rows these are must be said: name the task column with task=, or pass one id a row with "
            "tasks=. Got neither. For a model of one's own, which shares nothing, use SingleTaskRegressor or "
            "SingleTaskClassifier."
        )
    if tasks is not None:
        ids = task_ids(tasks)
        if len(ids) != rows:
            raise InputError(
                f"tasks must name one task a row: X has {counted(rows, 'row')}, tasks has {len(ids)}."
            )
        features = {k: v for k, v in columns.items() if k != task}
        return Columns(features, named, ids, library=library_of(X))
    name = _column_name(task, named)
    if name not in columns:
        raise InputError(
            f"X has no task column {task!r}. It has: {', '.join(columns)}. Name the column with task=, "
            "or pass one id a row with tasks=."
        )
    try:
        ids = task_ids(_as_given(X, name, columns))
    except InputError as error:
        raise InputError(f"Column {task!r}: {error}") from None
    features = {k: v for k, v in columns.items() if k != name}
    return Columns(features, named, ids, library=library_of(X))


def _as_given(X: Any, name: str, columns: dict[str, Array]) -> Any:
    """Return the task column before NumPy has made one kind of its entries."""
    return next((X[key] for key in X if str(key) == name), ()) if isinstance(X, Mapping) else columns[name]


def _column_name(task: str | int | None, named: bool) -> str:
    return f"x{task}" if isinstance(task, int) and not named else str(task)


def split_groups(
    X: Any, task: str | int | None, tasks: ArrayLike | None, groups: str | int | None
) -> Columns:
    """Take task ids out of a table, and the labels of public groups if it has the column of these."""
    columns = split_table(X, task, tasks)
    name = _column_name(groups, columns.named)
    if groups is None or name not in columns.features:
        return columns
    try:
        labels = group_labels(_as_given(X, name, columns.features))
    except InputError as error:
        raise InputError(f"Column {groups!r}: {error}") from None
    return replace(columns, features={k: v for k, v in columns.features.items() if k != name}, groups=labels)


def labels_by_task(ids: Array, labels: Array) -> dict[Any, str]:
    """Return the public label of each task; refuse a task whose rows have different ones.

    Examples
    --------
    >>> labels_by_task(np.array(["Elm", "Oak", "Elm"]), np.array(["north", "south", "north"]))
    {'Elm': 'north', 'Oak': 'south'}
    """
    if len(labels) != len(ids):
        raise InputError(f"groups must have one label a row: there are {len(ids)}. Got {len(labels)}.")
    pairs = sorted(set(zip(ids.tolist(), labels.tolist(), strict=True)))
    found: dict[Any, str] = dict(pairs)
    if len(found) < len(pairs):
        task = next(one for (one, _), (two, _) in pairwise(pairs) if one == two)
        both = [label for name, label in pairs if name == task]
        raise InputError(
            f"A task's group is public and one for all its rows. Task {task!r} has {both[0]!r} and "
            f"{both[1]!r}. Mend the column, or name another."
        )
    return found


def target_column(X: Any, y: Any) -> tuple[Any, Any, str]:
    """Return table, targets and what these are called: `y` may be the name of a column of the table.

    Examples
    --------
    >>> target_column({"age": [7, 8], "score": [1.0, 2.0]}, "score")
    ({'age': [7, 8]}, array([1., 2.]), 'score')
    """
    if not isinstance(y, str):
        name = str(getattr(y, "name", None) or "target")
        return X, as_array(y) if hasattr(y, "combine_chunks") else y, name
    columns, named = named_columns(X)
    if not named or y not in columns:
        has = f"It has: {', '.join(columns)}" if named else "It is an array, without names"
        raise InputError(f"X has no column {y!r} with the targets. {has}. Pass y as one target a row.")
    if isinstance(X, Mapping):
        return {name: column for name, column in X.items() if str(name) != y}, columns[y], y
    import narwhals as nw

    return nw.from_native(X).drop(y).to_native(), columns[y], y


def refuse_target(columns: Columns, name: str) -> None:
    """Refuse a table that has its own target among the features."""
    if name in columns.features:
        raise InputError(
            f"X has the target's column {name!r} among its features. Leave it out, or pass y={name!r} alone."
        )


def has_column(X: Any, name: str | int | None) -> bool:
    found, named = named_columns(X)
    return _column_name(name, named) in found


def row_count(X: Any) -> int:
    """Return how many rows a table has, whatever kind of table it is."""
    return len(next(iter(named_columns(X)[0].values()), ()))


def encode_rows(codebook: Codebook, columns: Columns) -> Floats:
    """Encode a table's features; a row that does not fit is named, with its task."""
    return codebook.encode(check_columns(codebook, columns), columns.at)


def read_codebook(bounds: Any, columns: Columns, target: str, y: Any, classify: bool) -> Codebook:
    """Return the public schema: a codebook, a file, a mapping, or, only if typed out, the data's own."""
    if isinstance(bounds, Codebook):
        return bounds
    if isinstance(bounds, str) and bounds == "data":
        refuse_missing(columns, {target: np.asarray(y)})
        return Codebook.from_data(columns.features, np.asarray(y), target, classify=classify)
    if isinstance(bounds, (str, os.PathLike)):
        return Codebook.load(os.fspath(bounds))
    if isinstance(bounds, Mapping):
        if not columns.named:  # by position in X, where the task column counts
            bounds = {f"x{key}" if isinstance(key, int) else key: limits for key, limits in bounds.items()}
        others = [key for key in bounds if key not in columns.features]
        named = [key for key in others if key not in (target, UNNAMED, "y")]
        if len(others) > 1 and named and not columns.named:
            raise InputError(
                f"X is an array, whose columns have no names. Got bounds of {named}. Write bounds of "
                f"{list(columns.features)} (or of their numbers), or pass a data frame."
            )
        if len(others) == 1 and named and target == UNNAMED:  # the bounds know what y is called
            target = str(named[0])
        return Codebook.from_mapping(bounds, list(columns.features), target)
    raise InputError(
        "bounds= is required to share anything: public limits of every feature and of the target, as a "
        "mapping {'age': (0, 120), 'sex': ['F', 'M'], 'target': (0, 10)} or a codebook file "
        "('cloister codebook data.csv' writes a template). bounds='data' reads them from the data, and "
        "then the guarantee does not hold."
    )


def refuse_missing(columns: Columns, target: Mapping[str, Array] | None = None) -> None:
    """Refuse missing or infinite values, naming the column, the first row with its task, and their number.

    Parameters
    ----------
    columns : Columns
        The features.
    target : mapping, optional
        The targets, by what they are called.
    """
    goal = target or {}
    for name, values in {**columns.features, **goal}.items():
        if values.dtype.kind == "f":
            bad = ~np.isfinite(values)
        elif values.dtype.kind == "M":
            bad = np.isnat(values)
        elif values.dtype.kind == "O":
            bad = np.fromiter(map(is_missing, values), dtype=bool, count=len(values))
        else:
            continue
        if bad.any():
            row, count = int(bad.argmax()), int(np.count_nonzero(bad))
            others = f" (the first of {count} rows)" if count > 1 else ""
            raise PrivateDataError(
                f"Column {name!r} must have a finite value in every row. {columns.at(row)} has none{others}. "
                f"Fill such cells in at home by a public rule, or pass "
                f"{_without(columns, name, values, name in goal)}: nothing is imputed behind your back."
            )


def _without(columns: Columns, name: str, values: Array, goal: bool) -> str:
    """Return what to type to leave out rows that lack a value: of a frame, or of arrays side by side."""
    if columns.named and name != UNNAMED:
        return f"df.dropna(subset=[{name!r}])"
    where = "y" if goal else f"X[:, {name.removeprefix('x')}]"
    test = "np.isfinite" if values.dtype.kind == "f" else "pd.notna"
    return f"X[keep], y[keep] and tasks[keep], keep = {test}({where})"


def check_columns(codebook: Codebook, columns: Columns) -> dict[str, Array]:
    """Return the codebook's features in order; refuse missing and unknown ones."""
    missing = [name for name in codebook.names if name not in columns.features]
    known = (*codebook.names, codebook.target.name)  # the target may be there: nobody looks
    unknown = [name for name in columns.features if name not in known]
    if missing or unknown:
        advice = " Add what is missing, by its name in the codebook." if missing else ""
        advice += f" Drop what is not to be used: X.drop(columns={unknown})." if unknown else ""
        raise InputError(
            f"X must have exactly the features the codebook names: missing {missing}, unknown {unknown}."
            + advice
        )
    return {name: columns.features[name] for name in codebook.names}


def numeric_columns(columns: Columns) -> Floats:
    """Return the features as they are, one column each; without bounds they must be numbers."""
    for name, values in columns.features.items():
        if np.asarray(values).dtype.kind not in "biuf":
            raise InputError(f"Column {name!r} is not numeric. Pass bounds= with its levels.")
    return np.column_stack([np.asarray(v, dtype=np.float64) for v in columns.features.values()])
