"""An algorithm of a user's own, in the user's own file: run, verified, replayed and audited, both ways."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

import cloister as cl
from cloister.audit import audit
from cloister.cli import app
from cloister.cli.options import own_types

OWN = Path(__file__).parent / "own" / "shrunken.py"
BOOK = """
task = "school"
[target]
name = "score"
bounds = [0.0, 12.0]
[features.hours]
bounds = [0.0, 10.0]
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with the user's file and a table; `finished` puts the public part of a run there."""
    desk = tmp_path_factory.mktemp("desk")
    shutil.copy(OWN, desk)
    (desk / "codebook.toml").write_text(BOOK)
    rng = np.random.default_rng(0)
    hours = rng.integers(0, 11, 120)
    ids = np.array([f"s{i % 30}" for i in range(120)])
    score = np.clip(2 + 0.6 * hours + rng.normal(size=120), 0, 12).round(1)
    rows = [f"{i},{h},{s}" for i, h, s in zip(ids, hours, score, strict=True)]
    (desk / "rows.csv").write_text("\n".join(["school,hours,score", *rows, ""]))
    (desk / "s0.csv").write_text(
        "\n".join(["school,hours,score", *[r for r in rows if r.startswith("s0,")], ""])
    )
    return desk


@pytest.fixture(scope="module")
def kind(desk):
    """The user's class, imported as the user would."""
    sys.path.append(str(desk))
    try:
        yield importlib.import_module("shrunken").ShrunkenRidge
    finally:
        sys.path.remove(str(desk))
        del sys.modules["shrunken"]


@pytest.fixture
def own_names(monkeypatch):
    """Forget afterwards what a test imports by the user's names, and where from.

    A module that a test leaves behind is another folder's to the next one that has a folder of its own: when
    tests of this file came to one process in two parts, `verify` refused the file of the second part.
    """
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {name: sys.modules.pop(name, None) for name in ("shrunken", "broken")}
    yield
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


@pytest.fixture(scope="module")
def tasks(desk):
    rows = np.genfromtxt(desk / "rows.csv", delimiter=",", dtype=None, names=True, encoding="utf-8")
    book = cl.Codebook.load(desk / "codebook.toml")
    X = book.encode({"hours": rows["hours"]})
    return cl.Tasks.from_arrays(X, book.encode_target(rows["score"]), rows["school"])


@pytest.fixture(scope="module")
def finished(desk, kind, tasks):
    plan = cl.Plan(kind(tasks.X.shape[1]), n_tasks=len(tasks)).calibrate(epsilon=2.0)
    finished = cl.run(plan, tasks)
    folder = desk / "run"
    folder.mkdir()
    plan.save(folder / "plan.toml")
    finished.board.save(folder / "board")
    (folder / "guarantee.json").write_text(finished.guarantee.to_json())
    shutil.copy(desk / "codebook.toml", folder)
    return finished


def command(*arguments: object) -> Result:
    """Give a command in the present folder, as if nobody had seen the class."""
    sys.modules.pop("shrunken", None)
    return CliRunner(env={"COLUMNS": "500"}).invoke(app, [*map(str, arguments)])


@pytest.mark.usefixtures("brief_search")
def test_the_page_that_teaches_it_has_this_class():
    page = (Path(__file__).parents[1] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert OWN.read_text(encoding="utf-8").split('"""', 2)[2].strip() in page


def test_from_python(desk, kind, tasks, finished):
    cl.check_algorithm(kind(tasks.X.shape[1]), tasks)
    plan = cl.Plan.load(desk / "run" / "plan.toml", types=[kind])
    assert plan == finished.plan
    board = cl.Billboard.load(desk / "run" / "board")
    plan.check(board)
    again = cl.replay(plan, board, tasks.select([3]))
    np.testing.assert_allclose(again["coef"][0], finished.private.models["coef"][3], rtol=1e-12)
    assert not audit(plan, draws=2000, random_state=0).convicted


@pytest.mark.usefixtures("own_names")
def test_verify_without_the_class_neither_passes_nor_convicts(desk, finished, tmp_path):
    """Of a folder that Python saved: what can be checked is, and its guarantee is compared, to the letter."""
    folder, types = finished.save(tmp_path / "saved"), ["--types", str(desk / "shrunken.py:ShrunkenRidge")]

    def verdict(*arguments):
        result = CliRunner().invoke(app, ["verify", str(folder), *arguments])
        return result.exit_code, " ".join(result.stdout.split())

    code, said = verdict()
    assert (code, "passes" in said) == (3, False)
    assert "could NOT be checked" in said
    document = json.loads(CliRunner().invoke(app, ["verify", str(folder), "--json"]).stdout)
    assert (document["ok"], document["holds"]) == (False, False)
    assert "--types" in document["unread"]
    code, said = verdict(*types)
    assert code == 0, said
    assert verdict("--head", "0" * 64)[0] == 1
    words = folder / "guarantee.txt"
    words.write_text(words.read_text(encoding="utf-8").replace("30 tasks", "31 tasks"), encoding="utf-8")
    assert (verdict()[0], verdict(*types)[0]) == (3, 1)
    (folder / "guarantee.json").unlink()
    assert verdict(*types)[0] == 1
    words.unlink()
    assert verdict(*types)[0] == 0  # a journal promises nothing but what its plan and board give
    (folder / "board").write_bytes((folder / "board").read_bytes()[:-1])
    assert verdict()[0] == 1


@pytest.mark.usefixtures("own_names")
def test_from_the_command_line(desk, finished, monkeypatch):
    """By its file, in a process that has never seen the class, too; and by its module."""
    monkeypatch.chdir(desk)
    by_file, by_module = ["--types", "shrunken.py:ShrunkenRidge"], ["--types", "shrunken:ShrunkenRidge"]
    verify = [sys.executable, "-P", "-c", "from cloister.cli import main; main()", "verify", "run", *by_file]
    where = {"PYTHONPATH": str(Path(cl.__file__).parents[1]), "COLUMNS": "500"}
    verified = subprocess.run(verify, env=os.environ | where, capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert "ShrunkenRidge, 30 tasks, 1 release\n" in verified.stdout
    replayed = command("replay", "run", "s0.csv", "--task-name", "s0", *by_module, "-o", "s0.json")
    assert (replayed.exit_code, replayed.stderr) == (0, "")
    own = finished.private.ids.tolist().index("s0")
    weights = json.loads((desk / "s0.json").read_text())["weights"]
    np.testing.assert_allclose(weights, finished.private.models["coef"][own], rtol=1e-12)
    audited = command("audit", "run/plan.toml", *by_file, "--draws", 2000, "--confidence", 0.9999)
    assert audited.exit_code == 0
    assert "no contradiction found" in audited.stdout.lower()


@pytest.mark.usefixtures("own_names")
def test_fit_from_the_command_line(desk, finished, monkeypatch):
    """From a plan without a noise level: it gets it by --epsilon, and each school gets its model."""
    dataclasses.replace(finished.plan, mechanism=cl.mechanisms.Gaussian()).save(desk / "draft.toml")
    own = ["--types", "shrunken.py:ShrunkenRidge"]
    fit = [
        "fit",
        "rows.csv",
        "--codebook",
        "codebook.toml",
        "--plan",
        "draft.toml",
        "--epsilon",
        "2",
        "-o",
        "fitted",
    ]
    monkeypatch.chdir(desk)
    assert "not one of cloister's own types" in command(*fit).stderr
    done = command(*fit, *own)
    assert done.exit_code == 0, done.stderr
    assert (desk / "fitted" / "plan.toml").read_bytes() == (desk / "run" / "plan.toml").read_bytes()
    assert len(list((desk / "fitted" / "models").glob("*.json"))) == 30
    assert "  cloister summary fitted --types FILE.py:CLASS\n" in done.stdout
    assert command("verify", "fitted", *own).exit_code == 0


@pytest.mark.usefixtures("own_names")
def test_every_other_command_that_reads_a_plan(desk, finished, monkeypatch):
    monkeypatch.chdir(desk)
    cl.Ledger.create(desk / "l.sqlite", "s", epsilon=9, delta=0.01, n_tasks=30)
    commands = [
        ["account", "run/plan.toml"],
        ["predict", "run", "rows.csv"],
        ["gain", "run", "s0.csv", "--task-name", "s0", "--splits", "2"],
        ["ledger", "charge", "l.sqlite", "run/plan.toml"],
    ]
    for arguments in commands:
        refused = command(*arguments)
        assert refused.exit_code == 1
        assert "'ward-7/shrunken-ridge/1' is not one of cloister's own types" in refused.stderr
        assert "--types module:Class" in refused.stderr
        done = command(*arguments, "--types", "shrunken.py:ShrunkenRidge")
        assert done.exit_code == 0, done.stderr


@pytest.mark.usefixtures("own_names")
def test_a_file_of_the_same_name_that_computes_otherwise_is_found_out(desk, finished, tmp_path):
    """It has the id, so it is read; what it says the board should hold is not what the board holds."""
    other = tmp_path / "shrunken.py"
    other.write_text(OWN.read_text().replace("self.clip * release.value", "0.9 * self.clip * release.value"))
    found = command("verify", desk / "run", "--types", f"{other}:ShrunkenRidge")
    assert found.exit_code == 1
    assert "NO  what is posted follows from the releases" in found.stdout


@pytest.mark.parametrize(
    ("types", "sentence"),
    [
        ("shrunken", "--types must read module:Class or file.py:Class. Got 'shrunken'"),
        ("shrunken:", "--types must read module:Class"),
        ("nowhere:Mine", "there is no module 'nowhere' here"),
        ("nowhere.py:Mine", "there is no file nowhere.py"),
        ("shrunken.py:Mine", "shrunken.py has no 'Mine'"),
        ("broken.py:Mine", "broken.py cannot be imported: ZeroDivisionError"),
        ("json.py:Mine", "json.py has the name of another module, 'json'"),
        ("codebook.toml:Mine", "there is no module 'codebook.toml' here"),
    ],
)
@pytest.mark.usefixtures("own_names")
def test_what_cannot_be_handed_over_gets_a_sentence(desk, types, sentence, monkeypatch):
    (desk / "broken.py").write_text("1 / 0\n")
    (desk / "json.py").write_text("Mine = 1\n")
    monkeypatch.chdir(desk)
    with pytest.raises(cl.errors.InputError, match=re.escape(sentence)):
        own_types([types])


@pytest.mark.usefixtures("own_names")
def test_what_lies_in_a_folder_takes_no_installed_module_s_place(desk, monkeypatch):
    """Whoever can write where a command is given cannot make it run their `json`."""
    (desk / "json.py").write_text("Mine = 1\n")
    monkeypatch.chdir(desk)
    assert own_types(["json:JSONDecoder"]) == [json.JSONDecoder]
    assert sys.path[-1] == str(desk)
