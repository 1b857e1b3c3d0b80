from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import InputError, MissingExtraError
from cloister.tables.files import csv_text, is_number, read_table, write_csv


@pytest.fixture
def table(tmp_path: Path):
    def write(text: str | bytes, name: str = "data.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_columns_are_numbers_or_text(table) -> None:
    columns = read_table(table('id,x,sex,note\n007,1,F,\n8,-2.5e1,M,"a, b"\n'))
    assert list(columns) == ["id", "x", "sex", "note"]
    np.testing.assert_array_equal(columns["id"], [7.0, 8.0])
    np.testing.assert_array_equal(columns["x"], [1.0, -25.0])
    assert columns["sex"].tolist() == ["F", "M"]
    assert columns["note"].tolist() == ["", "a, b"]


def test_empty_cells(table) -> None:
    columns = read_table(table("x,s,none\n1,,\n,b,\n"))
    np.testing.assert_array_equal(columns["x"], [1.0, np.nan])
    assert columns["s"].tolist() == ["", "b"]
    assert columns["none"].tolist() == ["", ""]


def test_ids_stay_as_they_are_written(table) -> None:
    path = table("school,x\n007,1\n7,2\n7.0,3\n12345678901234567890,4\n")
    assert read_table(path, text=["school"])["school"].tolist() == ["007", "7", "7.0", "12345678901234567890"]


def test_only_some_columns(table) -> None:
    path = table("a,b,c\n1,2,3\n")
    assert list(read_table(path, only=["c", "a", "nowhere"])) == ["a", "c"]
    assert read_table(path, only=["nowhere"]) == {}


def test_byte_order_mark_blank_lines_and_line_breaks_in_cells(table) -> None:
    columns = read_table(table(b'\xef\xbb\xbfa,b\r\n\r\n1,"x\r\ny"\r\n\r\n2,z\r\n'))
    assert list(columns) == ["a", "b"]
    assert columns["b"].tolist() == ["x\r\ny", "z"]


def test_underscores_are_not_numbers(table) -> None:
    assert read_table(table("a\n1_000\n2\n"))["a"].tolist() == ["1_000", "2"]
    assert not is_number("1_000")


def test_long_files_are_read_whole(table) -> None:
    path = table("i\n" + "\n".join(map(str, range(10_000))) + "\n")
    np.testing.assert_array_equal(read_table(path)["i"], np.arange(10_000.0))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "data.csv is empty. Its first line must hold the column names."),
        ("\n\n", "data.csv is empty. Its first line must hold the column names."),
        ("a,b\n", "data.csv has column names but no rows. Check that the export is complete."),
        (
            "a,b\n1,2\n\n1,2,3\n",
            "Every line of data.csv must have 2 cells. Line 4 has 3. Mend that line; a cell with a comma in "
            "it needs quotes.",
        ),
        ("a,b,a\n1,2,3\n", "Column names in data.csv must differ. Got 'a' more than once. Rename one."),
        (
            ",a\n0,1\n",
            "Every column of data.csv must have a name. Column 1 has none. Name it, or leave it out (pandas: "
            "to_csv(..., index=False)).",
        ),
        (
            "a;b\n1;2\n",
            "data.csv must separate columns by commas. Its first line has none. Save it as CSV.",
        ),
        (
            "1,2\n3,4\n",
            "The first line of data.csv must hold column names. Got numbers only. Add a line of names.",
        ),
        ("a\nx\0\n", "data.csv must be text. Got the character NUL in a cell. Export the file again."),
        (
            b"a\n\xff\n",
            "data.csv must be UTF-8 text: invalid start byte. Save it as 'CSV UTF-8' and try again.",
        ),
        (
            'a,b\n1,"2\n',
            "data.csv is not CSV at line 2: unexpected end of data. Mend the quotes there or before.",
        ),
    ],
)
def test_bad_csv_is_one_sentence(table, text: str | bytes, sentence: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}$"):
        read_table(table(text))


def test_ragged_line_beyond_the_first_chunk(table) -> None:
    with pytest.raises(InputError, match="Line 9002 has 1"):
        read_table(table("a,b\n" + "1,2\n" * 9000 + "1\n"))


def test_missing_file_folder_and_unknown_kind(tmp_path: Path, table) -> None:
    with pytest.raises(InputError, match="There is no file"):
        read_table(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="There is no file"):
        read_table(tmp_path)
    with pytest.raises(InputError, match=r"must be a \.csv or \.parquet file\. Got data\.xlsx"):
        read_table(table("a\n1\n", "data.xlsx"))


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "data.parquet"
    columns = {
        "school": pa.array([1, 2, None]),
        "float_id": pa.array([7.0, 8.5, None]),
        "x": pa.array([1.5, None, 2.0]),
        "yes": pa.array([True, False, None]),
        "sex": pa.array(["F", None, "M"]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), path)
    read = read_table(path, text=["school", "float_id"])
    assert read["school"].tolist() == ["1", "2", ""]
    assert read["float_id"].tolist() == ["7", "8.5", ""]
    np.testing.assert_array_equal(read["x"], [1.5, np.nan, 2.0])
    np.testing.assert_array_equal(read["yes"], [1.0, 0.0, np.nan])
    assert read["sex"].tolist() == ["F", "", "M"]
    assert list(read_table(path, only=["x"])) == ["x"]


def test_bad_parquet_is_one_sentence(table, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    with pytest.raises(InputError, match=r"^data.parquet is not a readable Parquet file: "):
        read_table(table("a\n1\n", "data.parquet"))
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    with pytest.raises(InputError, match="no rows"):
        read_table(tmp_path / "none.parquet")


def test_parquet_without_pyarrow_names_the_extra(table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cloister\[table\]'"):
        read_table(table("", "data.parquet"))


def test_write_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    columns = {
        "school": np.array(["007", 'say "hi"', "a,b"]),
        "x": np.array([1.0, 0.1, np.nan]),
        "big": np.array([1e300, -3.0, 2.0**60]),
        "whole": np.array([1, 2, 3]),
    }
    assert write_csv(path, columns) == path
    assert path.read_text().splitlines()[1] == "007,1,1e+300,1"
    read = read_table(path, text=["school"])
    for name, column in columns.items():
        np.testing.assert_array_equal(read[name], column)
    assert [file.name for file in tmp_path.iterdir()] == ["out.csv"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old")
    with pytest.raises(ValueError, match="zip"):
        write_csv(path, {"a": [1.0], "b": [1.0, 2.0]})
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["out.csv"]


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_a_sentence(tmp_path_factory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(InputError):
        columns = read_table(path)
        assert len({len(column) for column in columns.values()}) == 1


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_numbers_survive_a_round_trip(tmp_path_factory, values: list[float]) -> None:
    path = tmp_path_factory.getbasetemp() / "numbers.csv"
    path.write_text(csv_text({"i": np.arange(len(values)), "x": np.array(values)}))
    read = read_table(path)["x"]
    if not all(np.isnan(values)):
        np.testing.assert_array_equal(read, values)
