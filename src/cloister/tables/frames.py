"""The columns of whatever table a user has in memory: data frames, mappings and arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cloister.core.arrays import Array
from cloister.core.errors import InputError
from cloister.core.spelling import counted
from cloister.tables.feature import require


def named_columns(X: Any) -> tuple[dict[str, Array], bool]:
    """Return the columns of a data frame, a mapping or a 2-D array (named x0, x1, ... there).

    Data frames are those of pandas, polars (lazy ones are collected), pyarrow and what else narwhals knows.
    """
    if isinstance(X, Mapping):
        _refuse_repeats([str(name) for name in X])
        return {str(name): as_array(column) for name, column in X.items()}, True
    if not isinstance(X, np.ndarray | list | tuple):
        import narwhals as nw

        _refuse_repeats(_names(X))
        frame = nw.from_native(X, pass_through=True)
        if isinstance(frame, nw.LazyFrame):
            frame = frame.collect()
        if isinstance(frame, nw.DataFrame):
            return {str(name): _from_frame(frame[name]) for name in frame.columns}, True
    values = np.asarray(X)
    if values.dtype.kind == "U" and not hasattr(X, "__array__"):  # a list: text drops NUL at its end
        values = np.asarray(X, dtype=object)
    if values.ndim != 2:
        raise InputError(
            f"X must be a table or a two-dimensional array. Got {counted(values.ndim, 'dimension')}."
        )
    return {f"x{i}": values[:, i] for i in range(values.shape[1])}, False


def _names(X: Any) -> list[str]:
    """Return the names of a data frame's columns, if its library lists them, before narwhals looks."""
    if hasattr(X, "collect_schema"):  # polars has no name twice
        return []
    kept = "column_names" if hasattr(X, "column_names") else "columns"  # pyarrow's `columns` are the columns
    return [str(name) for name in getattr(X, kept, ())]


def _refuse_repeats(names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(
            f"Each column of X must have a name of its own. Got {twice[0]!r} more than once. Rename or drop "
            "all but one of them."
        )


def as_array(column: Any) -> Array:
    """Return a column as an array, without what NumPy would lose on the way.

    A missing category of pyarrow is None (it would become another one), and times with a zone keep it.
    """
    kind: Any = getattr(column, "type", None)
    if hasattr(column, "to_pylist") and getattr(kind, "tz", None) is not None:
        return np.array(column.to_pylist(), dtype=object)
    if getattr(getattr(column, "dtype", None), "time_zone", None) is not None:
        return np.array(column.to_list(), dtype=object)
    encoded = hasattr(column, "cast") and str(kind).startswith("dictionary")
    return np.asarray(column.cast(kind.value_type) if encoded else column)


def _from_frame(series: Any) -> Array:
    native = series.to_native()
    zoned = getattr(series.dtype, "time_zone", None) is not None
    return as_array(native if hasattr(native, "combine_chunks") else series if zoned else series.to_numpy())


LIBRARIES = ("pandas", "polars", "pyarrow")


def library_of(X: Any) -> str | None:
    """Return the name of the library that a table is of; None if it is a mapping or an array.

    Examples
    --------
    >>> import pandas as pd
    >>> library_of(pd.DataFrame({"age": [7]})), library_of({"age": [7]})
    ('pandas', None)
    """
    import narwhals as nw

    frame = nw.from_native(X, pass_through=True)
    if not isinstance(frame, nw.DataFrame | nw.LazyFrame):
        return None
    name = str(frame.implementation.value)
    return name if name in LIBRARIES else None


def data_frame(columns: Mapping[str, ArrayLike], library: str | None = None) -> Any:
    """Return a data frame of these columns: of this library, or of the first that is installed.

    Examples
    --------
    >>> type(data_frame({"age": [7, 8]}, "polars")).__module__.partition(".")[0]
    'polars'
    """
    if library is not None and library not in LIBRARIES:
        raise InputError(f"A data frame is of one of {', '.join(LIBRARIES)}. Got {library!r}.")
    found = library or next((name for name in LIBRARIES if find_spec(name) is not None), None)
    if found is None:
        raise InputError("A data frame needs pandas, polars or pyarrow. Install one, or use to_dict().")
    import narwhals as nw

    plain = {name: np.asarray(column).tolist() for name, column in columns.items()}
    return nw.from_dict(plain, backend=found).to_native()  # type: ignore[arg-type]


def one_column(name: str, values: ArrayLike) -> Array:
    column = np.asarray(values)
    require(column.ndim == 1, f"column {name!r} must be a 1-D array. Got shape {column.shape}. Flatten it.")
    return column


def equal_columns(columns: Any, names: Sequence[str] = ()) -> dict[str, Array]:
    found, named = named_columns(columns)
    if names and not named:
        require(
            len(found) == len(names),
            f"an array without names must have the codebook's {len(names)} features, in order. Got "
            f"{len(found)} columns. Pass a table with names, or those columns.",
        )
        found = dict(zip(names, found.values(), strict=True))
    missing = [name for name in names if name not in found]
    require(not missing, f"columns must hold every feature. Missing: {missing}. Add or rename the column.")
    table = {name: one_column(name, found[name]) for name in names or found}
    lengths = {name: len(column) for name, column in table.items()}
    require(len(set(lengths.values())) == 1, f"columns must have one length. Got {lengths}. Take one table.")
    return table
