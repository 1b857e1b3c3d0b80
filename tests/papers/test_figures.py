"""The papers by command: what is kept is what pages say, and a run that is stopped goes on."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest

from benchmarks import fingerprint
from papers import pages, running, store
from papers.figure import COLUMNS, Figure, Finding, Options, Skipped, Verdict, figures

FIGURES = figures()
KEPT = {name: store.read(name) for name in FIGURES if store.read(name)}


@pytest.mark.parametrize("name", FIGURES)
def test_its_work_is_in_parts(name):
    """Parts are small, named by JSON, and a look takes fewer of them."""
    module = FIGURES[name].module
    try:
        quick, full = module.cells(Options(quick=True)), module.cells(Options())
    except Skipped as reason:
        pytest.skip(str(reason))
    assert 0 < len(quick) <= len(full)
    assert len({store.key(cell) for cell in full}) == len(full)


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_can_be_shown(name):
    module, data = FIGURES[name].module, KEPT[name]["data"]
    rows = module.table(data)
    assert rows
    for row in rows:
        assert len(row) == len(COLUMNS)
        assert not any("|" in text or "nan" in text for text in row)
    assert module.finding(data).sentence.endswith(".")


def test_pages_say_what_is_kept():
    """`python -m papers pages` makes them anew, and marks what was measured by older code."""
    made = pages.pages(list(FIGURES.values()))
    there = {path.name: path.read_text(encoding="utf-8") for path in pages.FOLDER.glob("*.md")}
    assert there == made
    for name in FIGURES:
        assert ("not run yet: `python -m papers run " + name + "`" in made["README.md"]) == (name not in KEPT)
    for name in KEPT:
        assert (pages.FOLDER / f"{name}.svg").exists()
    for path in pages.elsewhere():
        text = path.read_text(encoding="utf-8")
        assert text == pages.with_figures(text, list(FIGURES.values())), (
            f"{path.name}: run python -m papers pages"
        )


def test_kept_results_are_small_and_of_a_figure_that_exists():
    files = list(store.RESULTS.glob("*.json"))
    assert {path.stem for path in files} <= set(FIGURES)
    assert sum(path.stat().st_size for path in files) < 200_000


@pytest.fixture
def squares(tmp_path, monkeypatch):
    """A figure whose third part fails until it is mended."""
    monkeypatch.setattr(store, "BUILD", tmp_path / "build")
    monkeypatch.setattr(store, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(store, "code", lambda module, name="measure": module.version)
    module = ModuleType("squares", "Figure 0: squares.\n\nOf whole numbers.")
    module.CLAIM, module.version, module.broken, module.calls = "Squares grow.", "a", True, []

    def measure(cell, options):
        module.calls.append(cell["seed"])
        if module.broken and cell["seed"] == 2:
            raise RuntimeError("broken")
        return cell["seed"] ** 2

    module.cells = lambda options: [{"seed": seed} for seed in options.replications(full=5, quick=3)]
    module.measure = measure
    module.summarise = lambda found: {"total": sum(value for _, value in found)}
    module.table = lambda data: [("total", "30", str(data["total"]), "", "")]
    module.draw = lambda data, figure: figure.subplots().plot([0, data["total"]])
    module.finding = lambda data: Finding(Verdict.YES, "They do.")
    monkeypatch.setitem(sys.modules, "squares", module)
    return Figure("toy-squares", "toy", module)


def test_a_run_that_is_stopped_goes_on(squares, tmp_path, capsys):
    module = squares.module
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(RuntimeError, match="broken"):
            running.make(squares, Options(), False, pool)
        done = store.Cells(squares)
        assert 2 <= len(done.lines) < 5
        with done.path.open("a") as file:
            file.write('{"cell": {"se')  # as a killed process leaves it
        module.broken, module.calls = False, []
        assert running.make(squares, Options(), False, pool)
        assert not set(module.calls) & {0, 1}
        document = json.loads((tmp_path / "results" / "toy-squares.json").read_text())
        assert document["data"] == {"total": 30}
        assert (document["seeds"], document["code"]) == (5, "a")
        assert "The finding comes out. They do." in capsys.readouterr().out
        module.calls = []
        running.make(squares, Options(quick=True), False, pool)
        assert module.calls == []
        running.make(squares, Options(quick=True), True, pool)
        assert module.calls == [0, 1, 2]
    assert json.loads((tmp_path / "build" / "quick" / "toy-squares.json").read_text())["data"] == {"total": 5}
    assert json.loads((tmp_path / "results" / "toy-squares.json").read_text()) == document


def test_parts_of_older_code_are_said_to_be(squares, capsys):
    module = squares.module
    module.broken = False
    with ThreadPoolExecutor(1) as pool:
        running.make(squares, Options(), False, pool)
        module.version = "b"
        running.make(squares, Options(), False, pool)
    assert "5 cells are of older code" in capsys.readouterr().err


def test_skipped_says_what_to_give(squares, capsys):
    squares.module.cells = lambda options: [{"path": str(options.path("lsoa"))}]
    with ThreadPoolExecutor(1) as pool:
        assert not running.make(squares, Options(), False, pool)
    assert "--data lsoa=PATH" in capsys.readouterr().out


def test_results_of_a_users_own_data_stay_out_of_the_repository(squares, tmp_path):
    squares.module.broken = False
    with ThreadPoolExecutor(1) as pool:
        running.make(squares, Options(data={"lsoa": tmp_path / "lsoa.npz"}), False, pool)
    assert not (tmp_path / "results").exists()
    assert (tmp_path / "build" / "toy-squares.json").exists()


HELPER = '''def used(x: int) -> int:
    """Return it."""
    return x + STEP  # a comment


def unused():
    return f"{1:.2f}"


STEP = 1
OTHER = 1


def by_name():
    return OTHER
'''
FIGURE = '''"""Title."""
from helpers.first import used
from helpers import first


def measure(cell, options):
    return used(first.by_name())


def draw(data, figure):
    pass


if __name__ == "__main__":
    draw(1, 2)
'''


@pytest.mark.parametrize(
    ("file", "old", "new", "differs"),
    [
        ("figure", "pass", "return 1", False),
        ("figure", "Title", "Another title", False),
        ("figure", "draw(1, 2)", "draw(2, 1)", False),
        ("figure", "used(first", "1 + used(first", True),
        ("first", "Return it.", "Return more.", False),
        ("first", "a comment", "another", False),
        ("first", "x: int", "x: float", False),
        ("first", ".2f", ".3f", False),
        ("first", "x + STEP", "STEP + x", True),
        ("first", "STEP = 1", "STEP = 2", True),
        ("first", "return OTHER", "return -OTHER", True),
        ("first", "OTHER = 1", "OTHER = 3", True),
        ("first", "OTHER = 1", "OTHER = 1\nprint(STEP)", True),
        ("first", "OTHER = 1", "OTHER = 1\nSTEP += 1", True),
    ],
)
def test_code_is_what_measures(tmp_path, monkeypatch, file, old, new, differs):
    """What a figure's measuring does not use may change, in its own file as in another."""
    digits = []
    for folder in ("before", "after"):
        monkeypatch.setattr(fingerprint, "ROOT", tmp_path / folder)
        sources = {"figure": FIGURE, "first": HELPER}
        if folder == "after":
            assert old in sources[file]
            sources[file] = sources[file].replace(old, new)
        (tmp_path / folder / "helpers").mkdir(parents=True)
        (tmp_path / folder / "helpers" / "first.py").write_text(sources["first"])
        path = tmp_path / folder / "figure.py"
        path.write_text(sources["figure"])
        digits.append(fingerprint.code(path, "measure"))
    assert (digits[0] != digits[1]) == differs


def test_code_is_the_same_in_every_python(tmp_path):
    """Worked out by Python 3.11 and 3.12; what they write of the same code differs for f-strings."""
    path = tmp_path / "toy.py"
    path.write_text(
        'def measure(a):\n    return f"{a!r:>{3}}" + f"{a[0]}\\n" f"{a=}" + "x" "y", 1e-5, None\n'
    )
    assert fingerprint.code(path, "measure") == "9fe29d2d"
