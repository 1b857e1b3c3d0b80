"""Tables in Parquet, Arrow and Excel files."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from cloister.core.arrays import Array
from cloister.core.errors import InputError, MissingExtraError, PrivateDataError
from cloister.tables.csv_files import cell_text, check_names, check_rows, convert, number_text, text_column


def read_parquet(file: Path, text: Collection[str], only: Collection[str] | None) -> dict[str, Array]:
    pa = _pyarrow(file)
    try:
        import pyarrow.parquet as pq

        names = pq.read_schema(file).names
        check_names(file, names)
        table = pq.read_table(file, columns=[name for name in names if only is None or name in only])
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(file, "Parquet", error) from None
    return _columns(file, pa, table, text)


def parquet_bytes(file: Path, columns: Mapping[str, Array]) -> bytes:
    """Return columns as the bytes of a Parquet file, which is to have this name."""
    pa = _pyarrow(file)
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({name: pa.array(column) for name, column in columns.items()}), buffer)
    written: bytes = buffer.getvalue().to_pybytes()
    return written


def read_arrow(file: Path, text: Collection[str], only: Collection[str] | None) -> dict[str, Array]:
    """Read an Arrow file (also called Feather), or a stream that was written to a file."""
    pa = _pyarrow(file)
    try:
        with pa.OSFile(str(file)) as source:
            try:
                table = pa.ipc.open_file(source).read_all()
            except pa.ArrowInvalid:
                source.seek(0)
                table = pa.ipc.open_stream(source).read_all()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(file, "Arrow", error) from None
    check_names(file, table.column_names)
    kept = [name for name in table.column_names if only is None or name in only]
    return _columns(file, pa, table.select(kept), text)


def read_excel(file: Path, text: Collection[str], only: Collection[str] | None) -> dict[str, Array]:
    """Read the first sheet of a workbook; its first row that is not empty holds the column names."""
    try:
        from python_calamine import CalamineError, CalamineWorkbook
    except ImportError as error:
        raise MissingExtraError("python-calamine", "tables", f"Reading {file.name}") from error
    try:
        rows = CalamineWorkbook.from_path(str(file)).get_sheet_by_index(0).to_python()
    except (CalamineError, OSError) as error:
        raise _unreadable(file, "Excel", error) from None
    filled = [row for row in rows if any(cell not in ("", None) for cell in row)]
    if not filled:
        raise InputError(
            f"The first sheet of {file.name} is empty. Its first row must hold the column names."
        )
    names = [cell_text(cell) for cell in filled[0]]
    title = next(filter(None, names))
    if len(names) > 1 and len([*filter(None, names)]) == 1:
        raise PrivateDataError(  # it may be a cell of somebody's row
            f"The first row of {file.name} that is not empty must hold the column names. Got {title!r} and "
            "nothing beside it. Delete the rows above the names."
        )
    check_names(file, names)
    check_rows(file, len(filled) - 1)
    columns = zip(names, zip(*filled[1:], strict=True), strict=True)
    kept = ((name, [*cells]) for name, cells in columns if only is None or name in only)
    return {name: _from_sheet(file, cells, name in text) for name, cells in kept}


def _from_sheet(file: Path, cells: list[Any], as_text: bool) -> Array:
    known = [cell for cell in cells if cell not in ("", None)]
    if as_text:
        _refuse_large(file, known, 1e15)  # Excel keeps fifteen digits
    if known and not as_text and all(isinstance(cell, date) for cell in known):
        return np.array([cell if isinstance(cell, date) else None for cell in cells], dtype="M8[us]")
    return convert(file, [cell_text(cell) for cell in cells], as_text)


def _pyarrow(file: Path) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ImportError as error:
        raise MissingExtraError("pyarrow", "tables", f"Reading {file.name}") from error
    return pa


def _unreadable(file: Path, kind: str, error: Exception) -> InputError:
    reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
    return InputError(f"{file.name} is not a readable {kind} file: {reason}. Export it again.")


def arrow_columns(file: Path, table: Any, text: Collection[str]) -> dict[str, Array]:
    """Return the columns of an Arrow table; some as text, as they are written."""
    return _columns(file, _pyarrow(file), table, text)


def _columns(file: Path, pa: Any, table: Any, text: Collection[str]) -> dict[str, Array]:
    if table.num_columns:
        check_rows(file, table.num_rows)
    return {name: _from_arrow(file, pa, table.column(name), name in text) for name in table.column_names}


def _from_arrow(file: Path, pa: Any, column: Any, as_text: bool) -> Array:
    kind = column.type
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not as_text and (number or pa.types.is_boolean(kind)):
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    if not as_text and (pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)):
        return np.asarray(column.cast(pa.timestamp("us"), safe=False).to_numpy()).astype("M8[us]")
    return text_column(file, text_cells(file, column))


def text_cells(file: Path, column: Any) -> list[str]:
    """Return the cells of an Arrow column as one writes them; a missing one is empty."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_nested(kind):
        raise InputError(
            f"A column of {file.name} holds lists or records. Every cell must be one number, text or date: "
            "leave the column out, or make several of it."
        )
    if pa.types.is_integer(kind) and not column.null_count:
        column = column.cast(pa.string())
    try:
        cells = column.to_pylist()
    except UnicodeDecodeError:
        raise InputError(f"{file.name} has text that is not UTF-8. Export it again.") from None
    if pa.types.is_integer(kind) or pa.types.is_string(kind):
        return ["" if value is None else str(value) for value in cells]
    if not pa.types.is_floating(kind):
        return [cell_text(value) for value in cells]
    _refuse_large(file, cells, 2.0 ** {16: 11, 32: 24, 64: 53}[kind.bit_width])
    return [number_text(math.nan if value is None else value) for value in cells]  # 7.0 is task 7


def _refuse_large(file: Path, cells: list[Any], limit: float) -> None:
    """Refuse floats that may each stand for several whole numbers: several names would have become one."""
    large = [cell for cell in cells if isinstance(cell, float) and abs(cell) >= limit]
    if large:
        raise InputError(
            f"{file.name} must hold names as text or whole numbers. Got the float {large[0]!r}, which may "
            "stand for several whole numbers. Export the column as whole numbers or text."
        )
