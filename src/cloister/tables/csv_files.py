"""Tables as text, as offices write them: separator, decimal comma and encoding found by a public rule.

The first line decides the separator: a tab if it has one outside quotes, else a semicolon, else a comma.
Beside semicolons and tabs numbers may have a decimal comma, throughout the file. Text is UTF-8, UTF-16 with
its mark, or else Windows-1252. Nothing is guessed from rows, but for whether a column is numbers or text.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from cloister.core.arrays import Array
from cloister.core.errors import InputError, PrivateDataError
from cloister.tables.reading import is_number, says_missing

_T = TypeVar("_T")
#: Rows that are taken apart at a time.
_CHUNK = 1 << 12
_SEPARATORS = {"\t": "tab", ";": "semicolon", ",": "comma"}
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+(,\d+)?([eE][+-]?\d+)?\s*")
#: Characters of two bytes or more in UTF-8.
_UTF8 = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_SAVE = "Save it as 'CSV UTF-8' and try again."


def read_csv(file: Path, text: Collection[str], only: Collection[str] | None) -> dict[str, Array]:
    """Read columns of numbers and text; those in ``text`` stay as they are written."""
    return _read(file, lambda found: found.columns(text, only))


def _read(file: Path, read: Callable[[_Csv], _T]) -> _T:
    """Read a file in the encoding that it has."""
    try:
        with _open(file) as stream:
            wide = stream.read(2) in (b"\xff\xfe", b"\xfe\xff")
        try:
            return read(_Csv.of(file, "utf-16" if wide else "utf-8-sig"))
        except UnicodeDecodeError:
            with _open(file) as stream:
                mixed = wide or any(map(_UTF8.search, stream))
            if not mixed:
                return read(_Csv.of(file, "cp1252"))
        # One name that is written in two encodings would become two tasks.
        raise InputError(f"{file.name} must be UTF-8 text. Got some of it in another encoding. {_SAVE}")
    except UnicodeDecodeError as error:
        raise InputError(f"{file.name} must be UTF-8 text: {error.reason}. {_SAVE}") from None
    except (EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"{file.name} must be a whole gzip file. Got: {error}. Export it again.") from None


def _open(file: Path, encoding: str | None = None) -> IO[Any]:
    """Open a file, packed or not: for bytes, or for text in an encoding."""
    with file.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    kind, newline = ("rb", None) if encoding is None else ("rt", "")
    opened: Callable[..., IO[Any]] = gzip.open if packed else open
    return opened(file, kind, encoding=encoding, newline=newline)


@dataclass(frozen=True)
class Dialect:
    """How a file writes its cells: separator, whether numbers have a decimal comma, encoding."""

    separator: str = ","
    decimal_comma: bool = False
    encoding: str = "utf-8"

    def number(self, value: float) -> str:
        """Return a number as a cell has it."""
        return number_text(value).replace(".", ",") if self.decimal_comma else number_text(value)

    def encode(self, text: str, name: str) -> bytes:
        """Return text as a file of this name has it; refuse a letter that its encoding lacks."""
        try:
            return text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise InputError(
                f"{name} would be written as the table is, in Windows-1252, which lacks "
                f"{text[error.start]!r}. Save the table as 'CSV UTF-8', or name a .parquet file."
            ) from None


def read_as_written(file: Path) -> tuple[dict[str, Array], Dialect]:
    """Read all cells of a CSV file as they are written, and how they are."""
    found, columns = _read(file, lambda found: (found, found.columns((), None, as_written=True)))
    commas = found.separator != "," and any(_has_commas(column.tolist()) for column in columns.values())
    with _open(file) as stream:
        unmarked = found.encoding == "utf-8-sig" and stream.read(3) != b"\xef\xbb\xbf"
    return columns, Dialect(found.separator, commas, "utf-8" if unmarked else found.encoding)


@dataclass(frozen=True)
class _Csv:
    """A file, its encoding, what separates cells, and how many lines of Excel's own stand above the names."""

    file: Path
    encoding: str
    separator: str
    skipped: int

    @classmethod
    def of(cls, file: Path, encoding: str) -> _Csv:
        with _open(file, encoding) as stream:
            lines = [line.strip("\r\n") for line in islice(stream, 100)]
        if lines and (found := re.fullmatch(r"sep=([,;\t])", lines[0])):
            return cls(file, encoding, found[1], 1)
        bare = re.sub(r'"[^"]*"', "", next(filter(None, lines), ""))
        return cls(file, encoding, next((mark for mark in _SEPARATORS if mark in bare), ","), 0)

    def columns(
        self, text: Collection[str], only: Collection[str] | None, *, as_written: bool = False
    ) -> dict[str, Array]:
        with _open(self.file, self.encoding) as stream:
            rows = self._rows(stream)
            names = self._names(next(rows, []))
            kept = [i for i, name in enumerate(names) if only is None or name in only]
            cells: list[list[str]] = [[] for _ in kept]
            while chunk := list(islice(rows, _CHUNK)):
                if set(map(len, chunk)) - {len(names)}:
                    raise self._ragged(len(names))
                parts = list(zip(*chunk, strict=True))
                for column, i in zip(cells, kept, strict=True):
                    column.extend(parts[i])
        if kept:
            check_rows(self.file, len(cells[0]))
        found = {names[i]: cells[n] for n, i in enumerate(kept)}
        if as_written:
            return {name: text_column(self.file, column) for name, column in found.items()}
        commas = self.separator != ","
        if commas:
            self._check_marks({name: column for name, column in found.items() if name not in text})
        return {name: convert(self.file, column, name in text, commas) for name, column in found.items()}

    def _rows(self, stream: IO[str]) -> Iterator[list[str]]:
        """Yield the rows that are not blank."""
        reader = csv.reader(stream, strict=True, delimiter=self.separator)
        try:
            yield from filter(None, islice(reader, self.skipped, None))
        except csv.Error as error:
            raise InputError(
                f"{self.file.name} is not CSV at line {reader.line_num}: {error}. Mend the quotes there or "
                "before."
            ) from None

    def _names(self, names: list[str]) -> list[str]:
        where = self.file.name
        if not names:
            raise InputError(f"{where} is empty. Its first line must hold the column names.")
        check_names(self.file, names)
        if len(names) == 1 and "|" in names[0]:
            raise InputError(
                f"{where} must separate columns by commas, semicolons or tabs. Its first line has none. Save "
                "it as CSV."
            )
        if all(map(is_number, names)):
            raise InputError(
                f"The first line of {where} must hold column names. Got numbers only. Add a line of names."
            )
        return names

    def _ragged(self, width: int) -> InputError:
        """Find the first line that has too many or too few cells."""
        with _open(self.file, self.encoding) as stream:
            reader = csv.reader(stream, strict=True, delimiter=self.separator)
            rows = islice(reader, self.skipped, None)
            count = next(len(row) for row in rows if row and len(row) != width)
            return InputError(
                f"Every line of {self.file.name} must have {width} cells. Line {reader.line_num} has "
                f"{count}. Mend that line; a cell with a {_SEPARATORS[self.separator]} in it needs quotes."
            )

    def _check_marks(self, columns: dict[str, list[str]]) -> None:
        """Refuse a file with decimal commas and decimal points: one of them may mean thousands."""
        commas = next((name for name, cells in columns.items() if _has_commas(cells)), None)
        points = next((name for name, cells in columns.items() if _has_points(cells)), None)
        if commas is not None and points is not None:
            raise InputError(
                f"{self.file.name} must have decimal commas or decimal points throughout. Column {commas!r} "
                f"has commas and column {points!r} has points. Export it with one of them, and none for "
                "thousands."
            )
        for name, cells in columns.items():
            self._check_mark(name, cells)

    def _check_mark(self, name: str, cells: list[str]) -> None:
        """Refuse a column of numbers some of which have a comma and some a point; name one of the fewer."""
        with_comma = [row for row, cell in enumerate(cells) if _is_comma_number(cell)]
        if not with_comma:
            return
        with_point = [row for row, cell in enumerate(cells) if "." in cell and is_number(cell)]
        if with_point and all(map(_may_be_number, cells)):
            few, many = sorted([(with_comma, "comma"), (with_point, "point")], key=lambda rows: len(rows[0]))
            raise PrivateDataError(
                f"Column {name!r} of {self.file.name} must have decimal commas or decimal points throughout. "
                f"Data row {few[0][0] + 1} has a {few[1]}"
                + (f" (the first of {len(few[0])} rows)" if len(few[0]) > 1 else "")
                + f", and {len(many[0])} have a {many[1]}. Mend the fewer, and write none for thousands."
            )


def _is_comma_number(cell: str) -> bool:
    return "," in cell and _DECIMAL_COMMA.fullmatch(cell) is not None


def _may_be_number(cell: str) -> bool:
    return _DECIMAL_COMMA.fullmatch(cell) is not None or is_number(cell) or says_missing(cell)


def _has_commas(cells: list[str]) -> bool:
    fits = (_DECIMAL_COMMA.fullmatch(cell) or says_missing(cell) for cell in cells)
    return any("," in cell for cell in cells) and all(fits)


def _has_points(cells: list[str]) -> bool:
    fits = (is_number(cell) or says_missing(cell) for cell in cells)
    return any("." in cell for cell in cells) and all(fits)


def convert(file: Path, cells: list[str], as_text: bool, decimal_comma: bool = False) -> Array:
    """Return float64 if every cell that is not missing is a number, and one is; else text."""
    if not as_text:
        try:
            numbers = np.array([float(cell) if cell else math.nan for cell in cells])
        except ValueError:
            pass
        else:
            # float() reads 1_000, which no spreadsheet means; and a column without any cell is no number.
            if any(cells) and not any("_" in cell for cell in cells):
                return numbers
        known = [cell for cell in cells if not says_missing(cell)]
        if known and all(map(is_number, known)):
            return np.array([math.nan if says_missing(cell) else float(cell) for cell in cells])
        if known and decimal_comma and all(map(_DECIMAL_COMMA.fullmatch, known)):
            return np.array(
                [math.nan if says_missing(cell) else float(cell.replace(",", ".")) for cell in cells]
            )
        if decimal_comma:  # what is a number stays one, so that the cells that are none are found
            cells = [cell.replace(",", ".") if _is_comma_number(cell) else cell for cell in cells]
    return text_column(file, cells)


def number_text(value: float) -> str:
    """Return a number as a cell has it: whole ones without ``.0``, NaN as an empty cell.

    Examples
    --------
    >>> number_text(7.0), number_text(0.1), number_text(math.nan)
    ('7', '0.1', '')
    """
    if math.isnan(value):
        return ""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def cell_text(value: Any) -> str:
    """Return any cell as text; dates as ISO 8601 has them."""
    if value is None:
        return ""
    if isinstance(value, float):
        return number_text(value)
    return value.isoformat() if isinstance(value, date) else str(value)


def text_column(file: Path, cells: list[str]) -> Array:
    """Return cells as text; arrays of it drop NUL at the end, and two names would become one."""
    if any("\0" in cell for cell in cells):
        raise InputError(f"{file.name} must be text. Got the character NUL in a cell. Export the file again.")
    return np.array(cells, dtype=np.str_)


def check_names(file: Path, names: Sequence[str]) -> None:
    """Refuse columns without a name, and two of one name."""
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


def check_rows(file: Path, rows: int) -> None:
    if not rows:
        raise InputError(f"{file.name} has column names but no rows. Check that the export is complete.")
