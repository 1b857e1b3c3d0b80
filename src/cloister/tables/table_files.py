"""Tables in files: CSV, Parquet, Arrow and Excel, as plain columns.

A column is float64 if every cell of it that is not missing is a number, datetime64 if a file of another kind
than CSV says that it holds dates, else text. A missing cell is NaN, NaT or "".
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cloister.core.arrays import Array
from cloister.core.errors import InputError
from cloister.tables.binary_files import read_arrow, read_excel, read_parquet
from cloister.tables.csv_files import Dialect, read_csv

_Reader = Callable[[Path, Collection[str], Collection[str] | None], dict[str, Array]]
_READERS: dict[_Reader, tuple[str, ...]] = {
    read_csv: (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"),
    read_parquet: (".parquet", ".pq"),
    read_arrow: (".arrow", ".feather", ".ipc"),
    read_excel: (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"),
}


def read_table(
    path: str | os.PathLike[str], text: Collection[str] = (), only: Collection[str] | None = None
) -> dict[str, Array]:
    """Read the columns of a CSV, Parquet, Arrow or Excel file, known by the end of its name.

    Parameters
    ----------
    path : path
        The file; a CSV file, and the first sheet of a workbook, has column names in its first line.
    text : collection of str
        Columns to keep as text as they are written, e.g. task ids: ``007`` stays ``007``.
    only : collection of str, optional
        Columns to keep; by default all. Names that the file does not have are passed over.

    Returns
    -------
    dict of str to array
        float64, text or datetime64, in the order of the file.
    """
    file = Path(path)
    if file.is_dir():
        raise InputError(_instead_of(file))
    if not file.is_file():
        raise InputError(f"There is no file {file}. Check the path.")
    for reader, ends in _READERS.items():
        if file.name.lower().endswith(ends):
            return reader(file, text, only)
    raise InputError(
        "A table must be a .csv (or .csv.gz, .tsv, .txt), .parquet, .arrow, .feather or .xlsx file. Got "
        f"{file.name}. Save it as CSV, with column names on top."
    )


def _instead_of(folder: Path) -> str:
    """Say which file may be meant by a folder."""
    ends = tuple(end for each in _READERS.values() for end in each if end != ".txt")
    tables = (
        path
        for depth in ("*", "*/*", "*/*/*")
        for path in sorted(folder.glob(depth))
        if path.is_file() and path.name.lower().endswith(ends)
    )
    first = next(tables, None)
    if first is None:
        return f"{folder} is a folder with no table in it. Name the file of a table."
    if first.suffix.lower() == ".parquet":
        return (
            f"{folder} is a folder. Name the file of a table, such as {first}; all files of a folder of "
            "Parquet are fitted with --engine ray."
        )
    return f"{folder} is a folder. Name the file of a table, such as {first}."


def is_csv(path: Path) -> bool:
    return path.name.lower().endswith(_READERS[read_csv])


def is_workbook(path: Path) -> bool:
    return path.name.lower().endswith(_READERS[read_excel])


def csv_text(columns: Mapping[str, Any], dialect: Dialect = Dialect()) -> str:  # noqa: B008
    r"""Return columns as the text of a CSV file.

    Examples
    --------
    >>> csv_text({"school": np.array(["007", "8"]), "score": np.array([3.0, np.nan])})
    'school,score\n007,3\n8,\n'
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n", delimiter=dialect.separator)
    writer.writerow(columns)
    cells = (_cells(np.asarray(column), dialect) for column in columns.values())
    writer.writerows(zip(*cells, strict=True))
    return buffer.getvalue()


def _cells(column: Array, dialect: Dialect) -> list[str]:
    if column.dtype.kind == "M":
        days = column.astype("M8[D]")
        shown = (
            days if np.array_equal(days[~np.isnat(days)], column[~np.isnat(days)]) else column.astype("M8[s]")
        )
        return ["" if np.isnat(value) else str(value) for value in shown]
    if column.dtype.kind != "f":
        return [str(value) for value in column.tolist()]
    return [dialect.number(value) for value in column.tolist()]
