"""Numbers of the pages are those that are kept, with what made them; figures of older code say so."""

from __future__ import annotations

import json
import re
from types import ModuleType

import pytest

from benchmarks import __main__ as command
from benchmarks import cells, fingerprint, forecast, pages, records
from papers.pages import MARKED as OF_PAPERS

RECORDS = {path.stem: json.loads(path.read_text("utf-8")) for path in records.RESULTS.glob("*.json")}
PAGES = {str(path.relative_to(pages.ROOT)): path.read_text("utf-8") for path in pages.sources()}
#: Tables of numbers that follow from a definition: nothing was measured.
FACTS = ("| what | where from | tasks |", "| call | writers |", "| cut | tasks from the 1461 characters |")
#: Compared with `cloister museum` by tests/audit/test_museum.py.
MUSEUM = "| exhibit | δ | claimed ε |"


def test_pages_say_what_is_kept():
    """`python -m benchmarks pages` makes the tables anew, with whose code has changed since."""
    for name, text in PAGES.items():
        assert text == pages.page(text), f"{name}: run python -m benchmarks pages"


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_says_what_made_it(name):
    record = RECORDS[name]
    assert record["name"] == name
    assert name.removesuffix("-cuda") in pages.modules()
    assert record["command"].startswith("python -m benchmarks ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
    assert record["commit"]
    assert record["machine"]
    assert record["code"]
    for rows in record["tables"].values():
        assert {len(row) for row in rows} == {len(rows[0])}


def test_the_band_of_forecasts_is_the_one_that_was_scored():
    rows = RECORDS["forecast"]["tables"]["forecast"]
    band = [
        (float(name[4:]), float(low), float(high)) for name, _, low, _, high in rows if name[:4] == "rho "
    ]
    assert tuple(band) == forecast.BAND


def test_no_other_table_has_measured_numbers():
    """A table mostly of numbers, on any page, is made from a record, or from a paper's result."""
    for name, text in PAGES.items():
        written = OF_PAPERS.sub("", pages.MARKED.sub("", text))
        for found in re.findall(r"(?:^\|.*\n){3,}", written, re.MULTILINE):
            head, _, *rows = found.splitlines()
            cells = [cell.strip() for row in rows for cell in row.split("|")[2:-1]]
            numbers = [cell for cell in cells if re.match(r"[-−+]?\.?\d[\d.,]*( |$|%)", cell)]
            assert 2 * len(numbers) < len(cells) or head.startswith((*FACTS, MUSEUM)), f"{name}: {head}"


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A benchmark of its own, whose page has its table."""
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(pages, "read", lambda name: records.read(name, tmp_path / "results"))
    monkeypatch.setattr(pages, "sources", list)
    path = tmp_path / "toy.py"
    path.write_text('NAME = "toy"\nMEASURES = ("metrics.py",)\nANSWER = 42  # as always\n')
    monkeypatch.setattr(pages, "modules", lambda: {"toy": path})
    module = ModuleType("toy")
    module.NAME, module.__file__ = "toy", str(path)
    module.run = lambda quick: (
        {"answer": 42.0},
        {"answer": ("<=", 50.0)},
        [["", "found"], ["a", "1"], ["b", "2"]],
    )
    monkeypatch.setattr(command, "find", lambda: {"toy": module})
    return path


def test_what_is_kept_becomes_a_table_and_grows_old(toy, capsys):
    assert command.main(["toy", "--keep"]) == 0
    text = pages.page("# Toy\n<!-- table: toy; b -->\n<!-- end -->\nEnd.\n")
    assert "|  | found |\n| --- | --- |\n| b | 2 |\n\n`python -m benchmarks toy`" in text
    assert records.commit() in text
    assert pages.OLDER not in text
    assert pages.page(text) == text
    assert "| answer | 42 | <= 50 |" in pages.between("toy/figures")
    toy.write_text(toy.read_text().replace("# as always", "# of course"))
    fingerprint._defined.cache_clear()
    assert pages.page(text) == text
    toy.write_text(toy.read_text().replace("42", "43"))
    fingerprint._defined.cache_clear()
    assert pages.page(text).count(pages.OLDER) == 1
    with pytest.raises(KeyError, match="change the page"):
        pages.between("toy; c")


def test_figures_grow_old_with_the_part_of_the_library_that_they_name(toy, tmp_path, monkeypatch):
    command.main(["toy", "--keep"])
    monkeypatch.setattr(records, "LIBRARY", tmp_path)
    (tmp_path / "metrics.py").write_text("def other(): ...\n")
    assert pages.OLDER in pages.between("toy")


def test_one_definition_of_the_library_may_be_named_alone(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LIBRARY", tmp_path)
    toy.write_text('MEASURES = ("laws.py:law",)\n')
    digits = []
    for text in ("law = 1\nother = 2\n", "law = 1\nother = 3\n", "law = 2\nother = 3\n"):
        (tmp_path / "laws.py").write_text(text)
        fingerprint._defined.cache_clear()
        fingerprint._part.cache_clear()
        digits.append(records.code(toy))
    assert digits[0] == digits[1] != digits[2]


def test_parts_are_gone_on_from_unless_they_are_of_other_code(tmp_path, monkeypatch):
    """Also where another machine measured them, and where a run was stopped while it wrote."""
    path = tmp_path / "forecast.pickle"
    digits = records.code(pages.modules()["forecast"], "measure")
    monkeypatch.setattr(records, "commit", lambda: "unknown")
    monkeypatch.setattr(records, "machine", lambda device: "elsewhere")
    first = cells.Cells(path, digits)
    first.add(repr(("b", 2)), "two")
    cells.Cells(path, "0123abcd").add(repr(("a", 1)), "of other code")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    monkeypatch.setattr(records, "commit", lambda: "here")
    assert list(cells.Cells(path, digits).found) == ["('b', 2)"]
    assert path.read_bytes() == whole
    cells.Cells(path, digits).add(repr(("a", 1)), "one")
    jobs = [("a", 1), ("b", 2)]
    assert cells.measured(forecast.measure, jobs, "forecast", tmp_path) == ["one", "two"]
    made = cells.makers("forecast", tmp_path, pages.modules()["forecast"])
    assert (made["machine"], made["commit"]) == ("elsewhere", "here")


def test_records_of_another_machine_are_taken_if_they_are_of_this_code(toy, tmp_path, monkeypatch):
    command.main(["toy", "--keep"])
    kept = tmp_path / "results" / "toy.json"
    found = json.loads(kept.read_text("utf-8"))
    kept.unlink()
    there = tmp_path / "toy.json"
    there.write_text(json.dumps(found | {"commit": "unknown", "machine": "elsewhere"}))
    assert command.main(["take", str(there)]) == 0
    assert json.loads(kept.read_text("utf-8")) == found | {"machine": "elsewhere"}
    there.write_text(json.dumps(found | {"code": "0123abcd"}))
    with pytest.raises(ValueError, match="measure it again"):
        command.main(["take", str(there)])
    with pytest.raises(SystemExit):
        command.main(["toy", str(there)])
    with pytest.raises(SystemExit):
        command.main(["take", str(tmp_path / "gone.json")])


def test_a_look_is_not_kept(toy, tmp_path):
    with pytest.raises(SystemExit):
        command.main(["toy", "--quick", "--keep"])
    assert command.main(["toy", "--quick"]) == 0
    assert not (tmp_path / "results").exists()


def test_a_page_that_names_what_is_not_kept_is_told_how_to_make_it(toy):
    with pytest.raises(FileNotFoundError, match="python -m benchmarks toy --keep"):
        pages.between("toy")
