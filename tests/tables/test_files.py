from __future__ import annotations

import contextlib
import datetime
import gzip
import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cloister.app.predict import write_csv
from cloister.cli import app
from cloister.errors import InputError, MissingExtraError
from cloister.tables.codebook import Codebook
from cloister.tables.reading import is_number
from cloister.tables.rows import read_rows
from cloister.tables.table_files import csv_text, read_table


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


OFFICE = "Schule;Größe;Datum;ja\nMüller;1,5;29.02.2024;wahr\nElm;-2;NA;\n"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (OFFICE.encode(), "a.csv"),
        (b"\xef\xbb\xbf" + OFFICE.replace("\n", "\r\n").encode(), "a.csv"),
        (OFFICE.encode("cp1252"), "a.csv"),
        (b"sep=;\r\n" + OFFICE.encode(), "a.csv"),
        (OFFICE.replace(";", "\t").encode("utf-16"), "a.txt"),
        (OFFICE.replace(";", "\t").encode(), "a.tsv"),
        (gzip.compress(OFFICE.encode(), mtime=0), "a.csv.gz"),
        (gzip.compress(OFFICE.encode("cp1252"), mtime=0), "a.csv"),
    ],
)
def test_csv_as_offices_write_it(table, data: bytes, name: str) -> None:
    columns = read_table(table(data, name), text=["Schule"])
    assert list(columns) == ["Schule", "Größe", "Datum", "ja"]
    assert columns["Schule"].tolist() == ["Müller", "Elm"]
    assert columns["Größe"].tolist() == [1.5, -2]
    assert columns["Datum"].tolist() == ["29.02.2024", "NA"]


def test_a_cell_that_is_no_number_is_the_one_that_is_blamed(table) -> None:
    path = table("a;b\n1,5;1\n3,5;2\n1.234,5;3\n2;4\n", "data.csv")
    assert read_table(path)["a"].tolist() == ["1.5", "3.5", "1.234,5", "2"]
    book = Codebook.from_mapping({"a": (0, 9), "b": (0, 9)}, ["a"], target="b")
    with pytest.raises(InputError, match=r"Column 'a' must .* Data row 3 of data.csv does not\. "):
        read_rows(path, book, target=True)


def test_separators_in_quotes_and_commas_in_comma_files_are_text(table) -> None:
    columns = read_table(table('"a;b",c\n"1,5",NA\n"2,5",3\n'))
    assert columns["a;b"].tolist() == ["1,5", "2,5"]
    np.testing.assert_array_equal(columns["c"], [np.nan, 3.0])


@pytest.mark.parametrize("name", ["a.arrow", "a.feather"])
def test_arrow(tmp_path: Path, name: str) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"x": [1, None], "d": [datetime.date(2024, 5, 31), None], "s": ["F", None]})
    kind = pa.ipc.new_file if name == "a.arrow" else pa.ipc.new_stream
    with kind(str(tmp_path / name), table.schema) as writer:
        writer.write_table(table)
    columns = read_table(tmp_path / name)
    np.testing.assert_array_equal(columns["x"], [1, np.nan])
    np.testing.assert_array_equal(columns["d"], np.array(["2024-05-31", "NaT"], dtype="M8[us]"))
    assert csv_text(columns) == "x,d,s\n1,2024-05-31,F\n,,\n"
    assert list(read_table(tmp_path / name, only=["s"])) == ["s"]


def workbook(path: Path, rows: list[list[tuple[str, object]]]) -> Path:
    """Write a workbook of one sheet by hand: text, numbers, booleans, and dates in the one style there is."""
    cells = {"s": '<c t="inlineStr"><is><t>{}</t></is></c>', "n": "<c><v>{}</v></c>", "": "<c/>"}
    cells |= {"b": '<c t="b"><v>{}</v></c>', "d": '<c s="1"><v>{}</v></c>'}
    lines = "".join(f"<row>{''.join(cells[kind].format(v) for kind, v in row)}</row>" for row in rows)
    main, rels = "http://schemas.openxmlformats.org/spreadsheetml/2006/main", "package/2006/relationships"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    relation = f'<Relationships xmlns="http://schemas.openxmlformats.org/{rels}">{{}}</Relationships>'
    one = f'<Relationship Id="{{}}" Type="{office}/{{}}" Target="{{}}"/>'
    sheets = '<sheets><sheet name="A" sheetId="1" r:id="r1"/></sheets>'
    formats = '<cellXfs><xf/><xf numFmtId="14"/></cellXfs>'
    parts = {
        "[Content_Types].xml": "<Types/>",
        "_rels/.rels": relation.format(one.format("r1", "officeDocument", "xl/workbook.xml")),
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}">{sheets}</workbook>',
        "xl/_rels/workbook.xml.rels": relation.format(
            one.format("r1", "worksheet", "worksheets/a.xml") + one.format("r2", "styles", "styles.xml")
        ),
        "xl/styles.xml": f'<styleSheet xmlns="{main}">{formats}</styleSheet>',
        "xl/worksheets/a.xml": f'<worksheet xmlns="{main}"><sheetData>{lines}</sheetData></worksheet>',
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return path


def test_excel(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    head = [("s", "school"), ("s", "x"), ("s", "day"), ("s", "yes"), ("s", "note")]
    rows = [
        [("n", 7), ("n", 1.5), ("d", 45443), ("b", 1), ("s", "a, b")],
        [("s", "Elm"), ("", ""), ("", ""), ("b", 0), ("n", 3)],
    ]
    columns = read_table(workbook(tmp_path / "a.xlsx", [head, *rows]), text=["school"])
    assert columns["school"].tolist() == ["7", "Elm"]
    np.testing.assert_array_equal(columns["x"], [1.5, np.nan])
    np.testing.assert_array_equal(columns["day"], np.array(["2024-05-31", "NaT"], dtype="M8[us]"))
    assert columns["yes"].tolist() == ["True", "False"]
    assert columns["note"].tolist() == ["a, b", "3"]
    with pytest.raises(InputError, match=r"Got the float 1000000000000000\.0, which may stand"):
        read_table(workbook(tmp_path / "id.xlsx", [[("s", "id")], [("n", 10**15)]]), text=["id"])
    with pytest.raises(InputError, match="has column names but no rows"):
        read_table(workbook(tmp_path / "none.xlsx", [head]))
    with pytest.raises(InputError, match=r"The first sheet of empty\.xlsx is empty"):
        read_table(workbook(tmp_path / "empty.xlsx", []))


def test_a_workbook_goes_through_all_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a template to predictions and a page; names of tasks are numbers there, and dates are dates."""
    pytest.importorskip("python_calamine")
    monkeypatch.chdir(tmp_path)
    rng, names = np.random.default_rng(0), ("Schule", "age", "born", "note", "score")
    head = [("s", name) for name in names]
    rows = [
        [("n", i % 20), ("n", a), ("d", 40000 + 9 * i), ("s", "\u00fc"), ("n", 2 * a + rng.normal())]
        for i, a in enumerate(rng.integers(8, 19, 120).tolist())
    ]
    workbook(Path("exam.xlsx"), [head, *rows])
    workbook(Path("title.xlsx"), [[("s", "Exam 2024"), *[("", "")] * 4], head, *rows])

    def said(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, [*words])
        assert result.exit_code == code, result.output
        return " ".join(result.output.split())

    template = ["codebook", "exam.xlsx", "--task", "Schule", "--target", "score", "-o", "book.toml"]
    assert "4 columns to fill in" in said(*template)
    assert "[features.born]\nbounds = []  # dates:" in Path("book.toml").read_text()
    Path("book.toml").write_text(
        'task = "Schule"\n[target]\nname = "score"\nbounds = [0, 50]\n[features.age]\nbounds = [5, 20]\n'
        "[features.born]\nbounds = [2009-01-01, 2013-12-31]\n"
    )
    assert "A fit takes it. 20 tasks by column 'Schule', of 6 rows each; fewest: '0' (6)" in said(
        "codebook", "exam.xlsx", "--check", "book.toml"
    )
    said("plan", "exam.xlsx", "--codebook", "book.toml", "-o", "plan.toml")
    said("fit", "exam.xlsx", "--codebook", "book.toml", "--plan", "plan.toml", "-o", "run")
    assert "Name it p.csv, which spreadsheets open." in said(
        "predict", "run", "exam.xlsx", "-o", "p.xlsx", code=1
    )
    said("predict", "run", "exam.xlsx", "-o", "p.csv")
    written = Path("p.csv").read_bytes()
    assert written.startswith(b"\xef\xbb\xbfSchule,age,born,note,score,prediction,")
    assert written.decode("utf-8-sig").splitlines()[1].split(",")[2:4] == ["2009-07-06", "\u00fc"]
    said("predict", "run", "p.csv", "-o", "again.parquet", code=1)  # it has predictions already
    for edition in (["--public"], ["--data", "exam.xlsx"]):
        assert "open it in a browser" in said("report", "run", *edition)
    refused = said("codebook", "title.xlsx", "--check", "book.toml", code=1)
    assert "'Exam 2024' and nothing beside it. Delete the rows above" in refused
    assert "For the operator alone" in refused


@pytest.mark.parametrize(("name", "kind"), [("a.arrow", "Arrow"), ("a.xlsx", "Excel")])
def test_bad_files_are_one_sentence(table, name: str, kind: str) -> None:
    pytest.importorskip({"Arrow": "pyarrow", "Excel": "python_calamine"}[kind])
    with pytest.raises(InputError, match=rf"^{name} is not a readable {kind} file: .*\. Export it again\.$"):
        read_table(table("a\n1\n", name))


def test_excel_without_its_reader_names_the_extra(table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cloister\[tables\]'"):
        read_table(table("", "data.xlsx"))


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
            "a|b\n1|2\n",
            "data.csv must separate columns by commas, semicolons or tabs. Its first line has none. Save it "
            "as CSV.",
        ),
        (
            "a;b\n1,5;2.5\n",
            "data.csv must have decimal commas or decimal points throughout. Column 'a' has commas and "
            "column 'b' has points. Export it with one of them, and none for thousands.",
        ),
        (
            "a;b\n1,5;x\n2.5;y\n;z\n3;x\n3,5;x\n",
            "Column 'a' of data.csv must have decimal commas or decimal points throughout. Data row 2 has a "
            "point, and 2 have a comma. Mend the fewer, and write none for thousands. For the operator "
            "alone: this tells something about a task's rows.",
        ),
        (
            "a;b\n1.5;x\n2,5;y\n1.5;x\n1.5;x\n2,5;x\n",
            "Column 'a' of data.csv must have decimal commas or decimal points throughout. Data row 2 has a "
            "comma (the first of 2 rows), and 3 have a point. Mend the fewer, and write none for thousands. "
            "For the operator alone: this tells something about a task's rows.",
        ),
        (
            "1,2\n3,4\n",
            "The first line of data.csv must hold column names. Got numbers only. Add a line of names.",
        ),
        ("a\nx\0\n", "data.csv must be text. Got the character NUL in a cell. Export the file again."),
        (
            "Müller,".encode() + "Müller\n1,2\n".encode("latin-1"),
            "data.csv must be UTF-8 text. Got some of it in another encoding. Save it as 'CSV UTF-8' and try "
            "again.",
        ),
        (
            b"a\n\x81\n",
            "data.csv must be UTF-8 text: character maps to <undefined>. Save it as 'CSV UTF-8' and try "
            "again.",
        ),
        (
            gzip.compress(b"a\n1\n", mtime=0)[:-4],
            "data.csv must be a whole gzip file. Got: Compressed file ended before the end-of-stream marker "
            "was reached. Export it again.",
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
    with pytest.raises(InputError, match="is a folder with no table in it"):
        read_table(tmp_path)
    (tmp_path / "year=2024").mkdir()
    (tmp_path / "year=2024" / "a.parquet").touch()
    with pytest.raises(InputError, match=r"such as .*/year=2024/a\.parquet; .* --engine ray"):
        read_table(tmp_path)
    with pytest.raises(InputError, match=r"\.feather or \.xlsx file\. Got data\.docx"):
        read_table(table("a\n1\n", "data.docx"))


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
    with pytest.raises(MissingExtraError, match=r"pip install 'cloister\[tables\]'"):
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
