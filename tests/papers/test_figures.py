"""The papers by command: what is kept is what pages say, and a run that is stopped goes on."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from harness import catalog, records
from harness.sources import ROOT, Source
from papers import __main__ as command
from papers import pages, running
from papers.figure import COLUMNS, Claim, Figure, Options, Skipped, figures, judge
from papers.mpmtl import figure_12, tradeoff

FIGURES = figures()
LIBRARY, PAPERS = (str(ROOT / place) for place in ("src/cloister", "papers"))
KEPT = {name: catalog.record(name) for name in FIGURES if catalog.record(name)}


@pytest.mark.parametrize("name", FIGURES)
def test_its_work_is_in_parts(name):
    """Parts are small, named by JSON, and a look takes fewer of them."""
    module = FIGURES[name].module
    try:
        quick, full = module.cells(Options(quick=True)), module.cells(Options())
    except Skipped as reason:
        pytest.skip(str(reason))
    assert 0 < len(quick) <= len(full)
    assert len({json.dumps(cell, sort_keys=True, allow_nan=False) for cell in full}) == len(full)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_a_look_can_be_had(name, tmp_path, monkeypatch, capsys):
    """What a look at everything does: each figure measured in small, judged and drawn."""
    monkeypatch.setattr(running, "BUILD", tmp_path / "build")
    monkeypatch.setattr("harness.cells.BUILD", tmp_path / "cells")
    with ThreadPoolExecutor(1) as pool:
        made = running.make(FIGURES[name], Options(quick=True), pool)
    shown = capsys.readouterr().out
    assert "The finding" in shown if made else "is skipped: " in shown


def test_one_that_fails_leaves_the_others(squares, tmp_path, monkeypatch, capsys):
    broken = ModuleType("broken", "Figure 1: broken.")
    broken.NOT_COVERED, broken.cells = "all.", lambda options: 1 / 0
    there = {"toy-broken": Figure("toy-broken", "toy", broken), "toy-squares": squares}
    monkeypatch.setattr(command, "figures", lambda: there)
    monkeypatch.setattr(command, "processes", lambda count: ThreadPoolExecutor(1))
    assert command.main(["run", "--all"]) == 1
    said = capsys.readouterr()
    assert "ZeroDivisionError" in said.err
    assert "Squares grow. as published: comes out, 30." in said.out


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_can_be_shown(name):
    module, data = FIGURES[name].module, KEPT[name]["data"]
    rows = module.table(data)
    assert rows
    for row in rows:
        assert len(row) == len(COLUMNS)
        assert not any("|" in text or "nan" in text for text in row)
    assert module.finding(data).endswith(".")
    for claim in FIGURES[name].claims(data):
        assert not any("|" in text or "nan" in text for text in pages.row(claim))


def test_pages_say_what_is_kept():
    """`python -m papers pages` makes them anew; which are of older code may be said later."""

    def without_marks(texts):
        return {
            name: text.replace(pages.OLDER, "").replace(records.OLDER, "") for name, text in texts.items()
        }

    made = pages.pages(list(FIGURES.values()))
    there = {path.name: path.read_text(encoding="utf-8") for path in pages.FOLDER.glob("*.[mc]*")}
    assert without_marks(there) == without_marks(made)
    for name in FIGURES:
        assert ("not run yet: `python -m papers run " + name + "`" in made["README.md"]) == (name not in KEPT)
    for name in KEPT:
        assert (pages.FOLDER / f"{name}.svg").exists()


@pytest.mark.parametrize("name", ["mpmtl-figure-2", "dpmtl-theorem-2", "meta-theorem-4", "pmtl-theorem-5"])
def test_a_result_depends_on_every_file_that_runs(name):
    """What its cells call of the repository is among what its hash is of, and rooms above are not."""
    source, module, ran = catalog.source(name), FIGURES[name].module, set()

    def note(frame, event, argument):
        ran.add(frame.f_code.co_filename)

    options = Options(quick=True)
    try:
        cells = module.cells(options)[:2]
    except Skipped as reason:
        pytest.skip(str(reason))
    for cell in cells:
        sys.setprofile(note)
        try:
            module.measure(cell, options)
        finally:
            sys.setprofile(None)
    here = {Path(file).relative_to(ROOT).as_posix() for file in ran if file.startswith((LIBRARY, PAPERS))}
    called = {file for file in here if not file.endswith("__init__.py")}  # these only hand names on
    assert called <= set(source.paths)
    assert any(file.startswith("src/cloister/privacy/") for file in called)
    assert not any(file.startswith("src/cloister/cli/") for file in source.paths)


def test_tables_that_are_not_read_do_not_count():
    assert catalog.source("pmtl-figure-3").tables == "" != catalog.source("prior-accuracy").tables


def test_kept_results_are_small():
    assert sum(catalog.result_path(name).stat().st_size for name in KEPT) < 300_000


@pytest.fixture
def squares(tmp_path, monkeypatch):
    """A figure of five parts."""
    monkeypatch.setattr(running, "BUILD", tmp_path / "build")
    monkeypatch.setattr("harness.cells.BUILD", tmp_path / "cells")
    monkeypatch.setattr(catalog, "result_path", lambda name: tmp_path / "results" / f"{name}.json")
    own = ("papers/figure.py",)
    monkeypatch.setattr(catalog, "source", lambda name, data=None: Source(own, (), data or {}))
    module = ModuleType("squares", "Figure 0: squares.\n\nOf whole numbers.")
    module.NOT_COVERED, module.calls = "cubes.", []

    def measure(cell, options):
        module.calls.append(cell["seed"])
        return cell["seed"] ** 2

    module.cells = lambda options: [{"seed": seed} for seed in options.replications(full=5, quick=3)]
    module.measure = measure
    module.summarise = lambda found: {"total": sum(value for _, value in found)}
    module.table = lambda data: [("total", "30", str(data["total"]), "", "")]
    module.draw = lambda data, figure: figure.subplots().plot([0, data["total"]])
    module.claims = lambda data: [
        Claim("Squares grow.", "30", judge([data["total"] > 1], str(data["total"])))
    ]
    module.finding = lambda data: "They do."
    monkeypatch.setitem(sys.modules, "squares", module)
    return Figure("toy-squares", "toy", module)


def test_results_are_kept_and_those_of_quick_runs_are_not(squares, tmp_path, capsys):
    module = squares.module
    with ThreadPoolExecutor(1) as pool:
        assert running.make(squares, Options(), pool)
        record = json.loads((tmp_path / "results" / "toy-squares.json").read_text())
        assert record["data"] == {"total": 30}
        assert (record["seeds"], record["cells"], record["samples"]) == (5, 5, [[{"seed": 0}, 0]])
        shown = capsys.readouterr().out
        assert "Squares grow. as published: comes out, 30." in shown
        assert "The finding comes out. They do." in shown
        module.calls = []
        running.make(squares, Options(quick=True), pool)
        running.make(squares, Options(seeds=2), pool)
        assert module.calls == []
    assert json.loads((tmp_path / "build" / "quick" / "toy-squares.json").read_text())["data"] == {"total": 1}
    assert json.loads((tmp_path / "results" / "toy-squares.json").read_text()) == record


@pytest.mark.parametrize("seeds", ["0", "-1", "two"])
def test_there_is_at_least_one_seed(seeds, capsys):
    with pytest.raises(SystemExit):
        command.main(["run", "mpmtl-figure-2", "--seeds", seeds])
    assert "it must be 1 or more" in capsys.readouterr().err


def test_two_data_files_give_two_results(tmp_path, monkeypatch):
    """Figure 12 is of a user's own data: here the second file has the labels in another order."""
    monkeypatch.setattr(running, "BUILD", tmp_path / "build")
    monkeypatch.setattr("harness.cells.BUILD", tmp_path / "cells")
    cells = figure_12.cells
    quick = next(iter(tradeoff.ALONE))
    monkeypatch.setattr(figure_12, "cells", lambda o: [c for c in cells(o) if c["method"] == quick])
    for function, made in (("table", []), ("claims", []), ("finding", ".")):
        monkeypatch.setattr(figure_12, function, lambda data, made=made: made)
    monkeypatch.setattr(figure_12, "draw", lambda data, figure: None)
    monkeypatch.setattr(Figure, "verdict", lambda self, data: "-")
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (4 * 40, 3))
    y = (X[:, 0] + 0.3 * rng.normal(size=len(X)) > 0).astype(int)
    found = []
    for name, labels in (("first", y), ("second", rng.permutation(y))):
        np.savez(tmp_path / f"{name}.npz", X=X, y=labels, task=np.repeat(np.arange(4), 40))
        with ThreadPoolExecutor(1) as pool:
            options = Options(quick=True, seeds=1, data={"lsoa": tmp_path / f"{name}.npz"})
            assert running.make(FIGURES["mpmtl-figure-12"], options, pool)
        found.append(json.loads((tmp_path / "build" / "quick" / "mpmtl-figure-12.json").read_text()))
    assert found[0]["data files"] != found[1]["data files"]
    assert found[0]["data"] != found[1]["data"]


def test_skipped_says_what_to_give(squares, capsys):
    squares.module.cells = lambda options: [{"path": str(options.path("lsoa"))}]
    with ThreadPoolExecutor(1) as pool:
        assert not running.make(squares, Options(), pool)
    assert "--data lsoa=PATH" in capsys.readouterr().out


def test_results_of_a_users_own_data_stay_out_of_the_repository(squares, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        running.make(squares, Options(data={"lsoa": tmp_path / "lsoa.npz"}), pool)
    assert not (tmp_path / "results").exists()
    assert (tmp_path / "build" / "toy-squares.json").exists()
