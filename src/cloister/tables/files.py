"""Tables in files: CSV and Parquet in, CSV out, as plain columns.

A column is float64 if every cell of it that is not empty is a number, else text. An empty cell is NaN or "".
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from cloister.arrays import Array
from cloister.board.storage import write_private
from cloister.errors import InputError, MissingExtraError
from cloister.tables.reading import is_number

__all__ = ["csv_text", "read_table", "write_csv"]

#: Rows that are taken apart at a time.
_CHUNK = 1 << 12


def read_table(
    path: str | os.PathLike[str], text: Collection[str] = (), only: Collection[str] | None = None
) -> dict[str, Array]:
    """Read the columns of a ``.csv`` or ``.parquet`` file.

    Parameters
    ----------
    path : path
        The file; a CSV file has column names in its first line.
    text : collection of str
        Columns to keep as text as they are written, e.g. task ids: ``007`` stays ``007``.
    only : collection of str, optional
        Columns to keep; by default all. Names that the file does not have are passed over.

    Returns
    -------
    dict of str to array
        float64 or text, in the order of the file.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"There is no file {file}. Check the path.")
    if file.suffix.lower() == ".csv":
        return _read_csv(file, text, only)
    if file.suffix.lower() in (".parquet", ".pq"):
        return _read_parquet(file, text, only)
    raise InputError(
        f"A table must be a .csv or .parquet file. Got {file.name}. Save it as CSV, with column names on top."
    )


def write_csv(path: str | os.PathLike[str], columns: Mapping[str, Any]) -> Path:
    """Write columns to a CSV file for its owner alone; whole numbers without ``.0``, NaN as an empty cell."""
    return write_private(Path(path), csv_text(columns).encode())


def csv_text(columns: Mapping[str, Any]) -> str:
    r"""Return columns as the text of a CSV file.

    Examples
    --------
    >>> csv_text({"school": np.array(["007", "8"]), "score": np.array([3.0, np.nan])})
    'school,score\n007,3\n8,\n'
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(_cells(np.asarray(column)) for column in columns.values()), strict=True))
    return buffer.getvalue()


def _cells(column: Array) -> list[Any]:
    if column.dtype.kind != "f":
        return [str(value) for value in column.tolist()]
    return [_cell(value) for value in column.tolist()]


def _cell(value: float) -> str:
    if math.isnan(value):
        return ""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _read_csv(file: Path, text: Collection[str], only: Collection[str] | None) -> dict[str, Array]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            chunks = _chunks(file, stream)
            names = _header(file, next(chunks)[0])
            kept = [i for i, name in enumerate(names) if only is None or name in only]
            columns: list[list[str]] = [[] for _ in kept]
            for chunk in chunks:
                if set(map(len, chunk)) - {len(names)}:
                    raise _ragged(file, len(names))
                parts = list(zip(*chunk, strict=True))
                for column, i in zip(columns, kept, strict=True):
                    column.extend(parts[i])
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file.name} must be UTF-8 text: {error.reason}. Save it as 'CSV UTF-8' and try again."
        ) from None
    if kept and not columns[0]:
        raise InputError(f"{file.name} has column names but no rows. Check that the export is complete.")
    return {names[i]: _convert(file, columns[n], names[i] in text) for n, i in enumerate(kept)}


def _chunks(file: Path, stream: TextIO) -> Iterator[list[list[str]]]:
    """Yield the first line that is not blank by itself, then the others, many at a time."""
    reader = csv.reader(stream, strict=True)
    try:
        yield [next(filter(None, reader), [])]
        while chunk := list(islice(reader, _CHUNK)):
            if not all(chunk):
                chunk = [row for row in chunk if row]
            yield chunk
    except csv.Error as error:
        raise InputError(
            f"{file.name} is not CSV at line {reader.line_num}: {error}. Mend the quotes there or before."
        ) from None


def _ragged(file: Path, width: int) -> InputError:
    """Find the first line that has too many or too few cells."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, strict=True)
        count = next(len(row) for row in reader if row and len(row) != width)
        return InputError(
            f"Every line of {file.name} must have {width} cells. Line {reader.line_num} has {count}. "
            "Mend that line; a cell with a comma in it needs quotes."
        )


def _header(file: Path, names: list[str]) -> list[str]:
    if not names:
        raise InputError(f"{file.name} is empty. Its first line must hold the column names.")
    _check_names(file, names)
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        raise InputError(
            f"{file.name} must separate columns by commas. Its first line has none. Save it as CSV."
        )
    if all(map(is_number, names)):
        raise InputError(
            f"The first line of {file.name} must hold column names. Got numbers only. Add a line of names."
        )
    return names


def _check_names(file: Path, names: Sequence[str]) -> None:
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


def _convert(file: Path, cells: list[str], as_text: bool) -> Array:
    if not as_text:
        try:
            numbers = np.array([float(cell) if cell else math.nan for cell in cells])
        except ValueError:
            pass
        else:
            # float() reads 1_000, which no spreadsheet means; and a column without any cell is no number.
            if any(cells) and not any("_" in cell for cell in cells):
                return numbers
    _refuse_nul(file, cells)
    return np.array(cells, dtype=np.str_)


def _refuse_nul(file: Path, cells: list[str]) -> None:
    """Refuse the character NUL: arrays of text drop it at the end, and two names would become one."""
    if any("\0" in cell for cell in cells):
        raise InputError(f"{file.name} must be text. Got the character NUL in a cell. Export the file again.")


def _refuse_large(file: Path, column: Any) -> None:
    """Refuse floats that may each stand for several whole numbers: several names would have become one."""
    limit = 2.0 ** {16: 11, 32: 24, 64: 53}[column.type.bit_width]
    large = [value for value in column.to_pylist() if value is not None and abs(value) >= limit]
    if large:
        raise InputError(
            f"{file.name} must hold names as text or whole numbers. Got the float {large[0]!r}, which may "
            "stand for several whole numbers. Export the column as whole numbers or text."
        )


def _read_parquet(file: Path, text: Collection[str], only: Collection[str] | None) -> dict[str, Array]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError("pyarrow", "table", f"Reading {file.name}") from error
    try:
        names = pq.read_schema(file).names
        _check_names(file, names)
        table = pq.read_table(file, columns=[name for name in names if only is None or name in only])
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"{file.name} is not a readable Parquet file: {reason}. Export it again.") from None
    if table.num_columns and not table.num_rows:
        raise InputError(f"{file.name} has column names but no rows. Check that the export is complete.")
    return {name: _from_arrow(file, pa, table.column(name), name in text) for name in table.column_names}


def _from_arrow(file: Path, pa: Any, column: Any, as_text: bool) -> Array:
    kind = column.type
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not as_text and (number or pa.types.is_boolean(kind)):
        return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)
    if pa.types.is_floating(kind):  # ids that pandas turned into floats: 7.0 is task 7
        _refuse_large(file, column)
        cells = [_cell(math.nan if value is None else value) for value in column.to_pylist()]
    else:
        cells = ["" if value is None else str(value) for value in column.to_pylist()]
    _refuse_nul(file, cells)
    return np.array(cells, dtype=np.str_)
