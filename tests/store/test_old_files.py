"""Files that cloister 0.1 has written: ledgers are read and charged for ever, the rest is read or told of.

`old_files/v0.1` was made by version 0.1.0: a ledger (three finished runs, one of them from a seed and one
with floating-point noise, and a run that was killed), that run's journal, a folder of `cloister fit`, and the
draft of another that was killed.
"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr
from typer.testing import CliRunner

import cloister as cl
from cloister.app.task_model import TaskModel
from cloister.cli import app
from cloister.ledger import Ledger
from cloister.privacy.caveats import Grade

HOME = Path(__file__).parent / "old_files" / "v0.1"
HEAD = "a7b8a5c5fbf38cd769c6a57fe8e1c0d508c0b3aa7f2353fffe8a76f2c2c92f24"
SPENT = 2.5228394096087468
FINISHES = "cloister 0.1"


@pytest.fixture
def old(tmp_path, monkeypatch):
    """Copy the files, and work beside them."""
    home = shutil.copytree(HOME, tmp_path / "old")
    (home / "half").rename(home / ".half.unfinished")
    (home / ".half.unfinished").chmod(0o755)  # as 0.1 made it, however this file was unpacked
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def tasks(old):
    rows = np.genfromtxt(old / "rows.csv", delimiter=",", dtype=None, names=True, encoding="utf-8")
    X = np.column_stack([np.ones(len(rows)), rows["hours"] / 5 - 1])
    return cl.Tasks.from_arrays(X, rows["score"] / 6 - 1, rows["school"])


def plan(rounds: int = 4) -> cl.Plan:
    algorithm = cl.algorithms.MeanRegularized(cl.learners.LeastSquares(2), rounds=rounds)
    return cl.Plan(algorithm, n_tasks=6, delta=0.01).calibrate(1.0)


def delta_of(epsilon: float, mu: float) -> float:
    return ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


def told(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    return result.exit_code, " ".join(result.output.split())


def test_a_ledger_of_0_1_is_read_and_charged(old, tasks):
    ledger = Ledger.open(old / "ledger.sqlite")
    assert (len(ledger.history), ledger.head, ledger.population) == (4, HEAD, "schools")
    assert ledger.spent == pytest.approx(SPENT, rel=1e-9)
    finished = cl.run(plan(), tasks, ledger=ledger)
    again = Ledger.open(old / "ledger.sqlite")
    assert len(again.history) == 5
    assert again.history[:4] == ledger.history[:4]
    assert again.history[4].plan == finished.plan.fingerprint
    mu = 5**0.5 * plan().mechanism.mu
    assert delta_of(again.spent, mu) == pytest.approx(0.01, rel=1e-4)
    assert told("ledger", "show", "ledger.sqlite")[0] == 0


def test_what_0_1_knew_of_doubts_is_still_known(old):
    """The second run was seeded, the third had floating-point noise; it was written in prose."""
    history = Ledger.open(old / "ledger.sqlite").history
    grades = [[doubt.grade for doubt in charge.doubts] for charge in history]
    assert grades == [[], [Grade.VOID], [Grade.LAST_BIT], []]


def test_a_ledger_of_0_1_still_says_no(old, tasks):
    """Refusing to read it would reset a budget; so would reading it as empty."""
    ledger = Ledger.open(old / "ledger.sqlite")
    with pytest.raises(cl.errors.BudgetError, match="the budget is 8"):
        cl.run(cl.Plan(plan().algorithm, n_tasks=6, delta=0.01).calibrate(7.9), tasks, ledger=ledger)
    assert Ledger.open(old / "ledger.sqlite").head == HEAD


def test_the_chain_of_0_1_is_verified(old):
    with closing(sqlite3.connect(old / "ledger.sqlite")) as database, database:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        (charges,) = [name for name in tables if "charge" in name]
        for trigger in database.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            database.execute(f"drop trigger {trigger[0]}")
        database.execute(f"update {charges} set mu = 0.1 where number = 1")
    with pytest.raises(cl.errors.LedgerError):
        _ = Ledger.open(old / "ledger.sqlite").spent


def test_a_run_that_0_1_charged_is_not_charged_twice(old):
    """Whoever finishes it elsewhere finds it recorded."""
    ledger = Ledger.open(old / "ledger.sqlite")
    recorded = ledger.history[3]
    assert ledger.charge(recorded.plan, plan().cost_under(ledger.relation), run=recorded.run) == recorded
    assert Ledger.open(old / "ledger.sqlite").head == HEAD


def test_a_board_of_0_1_is_read(old):
    board = cl.Billboard.load(old / "run" / "board", head=(old / "run" / "head.txt").read_text().strip())
    assert (board.rounds, board.complete) == (6, True)
    assert cl.Billboard.recover(old / "journal" / "board").rounds == 2


def test_a_plan_of_0_1_is_refused_by_name(old):
    for path in ("run/plan.toml", "journal/plan.toml"):
        with pytest.raises(cl.errors.PlanError, match=r"written by cloister 0\.1"):
            cl.Plan.load(old / path)
        for command in ("account", "audit"):
            code, said = told(command, path)
            assert code == 1
            assert f"written by {FINISHES}" in said


def test_a_folder_of_0_1_is_refused_by_name_and_its_models_predict(old):
    for command in (
        ["verify", "run"],
        ["predict", "run", "rows.csv"],
        ["gain", "run", "rows.csv", "--task-name", "s0"],
    ):
        code, said = told(*command)
        assert code == 1
        assert f"written by {FINISHES}" in said
    Path("own.csv").write_text("hours,score\n3,4\n")
    code, said = told("predict", "own.csv", "--model", "run/models/s0.json")
    assert code == 0
    assert "prediction" in said


def test_a_half_finished_journal_of_0_1_names_the_version_that_finishes_it(old, tasks):
    before = {path: path.read_bytes() for path in sorted((old / "journal").iterdir())}
    ledger = Ledger.open(old / "ledger.sqlite")
    with pytest.raises(
        cl.errors.BillboardError, match=r"begun by cloister 0\.1, and that version alone can finish"
    ):
        cl.run(plan(), tasks, ledger=ledger, journal=old / "journal")
    assert {path: path.read_bytes() for path in sorted((old / "journal").iterdir())} == before
    assert Ledger.open(old / "ledger.sqlite").head == HEAD
    code, said = told("fit", "rows.csv", "--codebook", "codebook.toml", "--epsilon", "5", "-o", "half")
    assert code == 1
    assert f"begun by {FINISHES}" in said


# ------------------------------------------------------------------ files of versions to come


def newer(path: Path, format: str) -> Path:
    """Let a file say that it is of a later format."""
    text = path.read_text(encoding="utf-8")
    assert text.count(format) == 1, text
    path.write_text(text.replace(format, format[:-1] + "7"), encoding="utf-8")
    return path


def test_every_file_says_its_format_and_a_later_one_is_refused_by_it(tasks, old, tmp_path):
    begun = tmp_path / "begun"

    def killed(posted):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cl.run(plan(), tasks, journal=begun, progress=killed)
    secret = json.loads((begun / "secret").read_text())
    (begun / "secret").write_text(json.dumps(secret | {"version": "0.7"}))
    with pytest.raises(
        cl.errors.BillboardError, match=r"begun by cloister 0\.7, and that version alone can finish it"
    ):
        cl.run(plan(), tasks, journal=begun)
    assert (begun / "board").read_bytes().startswith(b"cloister billboard 1\n")
    book = cl.Codebook.load(old / "codebook.toml")  # one without a format is of the first
    book.save(old / "new.toml")
    model = TaskModel.load(old / "run" / "models" / "s0.json")
    model.save(old / "s0.json")
    (old / "guarantee.json").write_text(plan().guarantee.to_json())
    guarantee = lambda path: cl.Guarantee.from_dict(json.loads(path.read_text()))  # noqa: E731
    for path, format, newest, read in (
        (old / "new.toml", "cloister codebook 1", 2, cl.Codebook.load),  # what 1 can say is written as 1
        (old / "s0.json", "cloister task model 1", 1, TaskModel.load),
        (old / "guarantee.json", "cloister guarantee 4", 4, guarantee),
    ):
        said = f"says format = '{format[:-1]}7'.* reads '{format[:-1]}{newest}'"
        with pytest.raises(cl.errors.InputError, match=said):
            read(newer(path, format))
    plan().save(old / "plan.toml")
    with pytest.raises(cl.errors.PlanError, match=r"'cloister/plan/7'\. It reads cloister/plan/1"):
        cl.Plan.load(newer(old / "plan.toml", "cloister/plan/1"))


def test_a_guarantee_of_0_1_is_read(old):
    said = cl.Guarantee.from_dict(json.loads((old / "run" / "guarantee.json").read_text()))
    assert (said.epsilon, said.doubts, said.holds) == (pytest.approx(5.0, rel=1e-6), (), True)
