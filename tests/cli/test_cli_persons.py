"""Persons by command: whose a row is comes from a column that is neither learned from nor kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_helpers import BOOK, cloister, ok, pupils, refused

from cloister import Codebook, Plan, Unit
from cloister.app.predict import write_csv
from cloister.app.source import TableFile, rows_of_file, rows_of_function
from cloister.app.task_model import TaskModel
from cloister.errors import InputError
from cloister.nodes import NodeFolder
from cloister.store.signatures import Operator

FIT = ("fit", "exam.csv", "--codebook", "book.toml")
PERSONS = ("--unit", "person=400:2", "--person", "pupil")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A table with a column of persons, several of whom have more than two rows in a task."""
    monkeypatch.chdir(tmp_path)
    found = pupils(12)
    drawn = np.random.default_rng(0).integers(4, size=len(found["score"]))
    found["pupil"] = np.array([f"{task}/{n}" for task, n in zip(found["school"], drawn, strict=True)])
    write_csv(Path("exam.csv"), found)
    Path("book.toml").write_text(BOOK)
    return found


def test_a_run_for_persons_and_all_that_is_done_with_it(table):
    """The board has the noise of two records; the column is in no file of the run; its models are its own."""
    ok(*("ledger", "create", "our.ledger", "--unit", "person", "--epsilon", 4, "--tasks", 400))
    said = " ".join(ok(*FIT, *PERSONS, "--ledger", "our.ledger", "-o", "run").split())
    assert "each person in any of the 12 tasks" in said
    assert "the first 2 send" in said
    plan = Plan.load("run/plan.toml")
    assert plan.unit == Unit.person(400, most=2)
    assert plan.mechanism.mu * 2 == pytest.approx(plan.guarantee.mu)
    assert not any(b"pupil" in file.read_bytes() for file in Path("run").rglob("*") if file.is_file())
    ok("verify", "run")
    ok("predict", "run", "exam.csv", "-o", "predicted.csv")
    assert "one person" in ok("ledger", "show", "our.ledger")
    ok("replay", "run", "exam.csv", "--task-name", "003", "-o", "own.json")  # whose rows are is not asked
    again, own = (TaskModel.load(path) for path in ("own.json", next(Path("run/models").glob("003*.json"))))
    np.testing.assert_allclose(again.weights, own.weights, rtol=1e-9)
    ok("gain", "run", "exam.csv", "--task-name", "003", "--splits", 2)


def test_of_a_person_the_first_rows_send(table):
    book = Codebook.load("book.toml")
    read = TableFile(Path("exam.csv"), book, person="pupil").tasks()
    seen: dict[str, int] = {}
    for name, turn in zip(table["pupil"], read.turn, strict=True):  # tasks lie one after the other already
        assert turn == seen.get(name, 0)
        seen[name] = turn + 1
    assert max(seen.values()) > 2
    one = rows_of_file("003", Path("exam.csv"), book, person="pupil")
    again = rows_of_function("003", lambda: table, book, person="pupil")
    assert one.turn.tolist() == again.turn.tolist() == read.turn[table["school"] == "003"].tolist()


def test_what_an_operator_types_wrong(table):
    assert "Add --person COLUMN" in refused(*FIT, "--unit", "person=400:2")
    assert "is for a plan that protects persons" in refused(*FIT, "--person", "pupil")
    assert "must have a person column 'name'" in refused(*FIT, *PERSONS[:2], "--person", "name")
    assert "must not be learned from" in refused(*FIT, *PERSONS[:2], "--person", "age")
    assert "Leave one out" in refused(*FIT, *PERSONS, "--engine", "ray")
    for word in ("person=400", "person=400:", "person=:2"):
        assert "person=N:K" in " ".join(cloister(*FIT, "--unit", word).stderr.split())
    table["pupil"][7] = " "
    write_csv(Path("exam.csv"), table)
    assert "Data row 8 has none" in refused(*FIT, *PERSONS)
    table["score"] = np.where(np.arange(len(table["score"])) == 2, np.nan, table["score"])
    write_csv(Path("exam.csv"), table)
    said = refused(*FIT, *PERSONS, "--skip-missing-targets")
    assert "Data row 8 has none" in said  # as in the file, though one before it is left out
    assert not Path("exam-run").exists()
    with pytest.raises(InputError, match="goes with a codebook"):
        rows_of_function("003", lambda: (np.zeros((2, 2)), np.zeros(2)), None, person="pupil")


def test_a_plan_for_persons_says_how_to_run_it(table):
    shown = ok("plan", "exam.csv", "--codebook", "book.toml", *PERSONS[:2], "-o", "plan.toml")
    said = " ".join(shown.split())
    assert "one person's data" in said
    assert "Which unit" not in said
    assert "--plan plan.toml --person COLUMN" in said
    assert Plan.load("plan.toml").unit == Unit.person(400, most=2)
    ok(*FIT, "--plan", "plan.toml", "--person", "pupil", "-o", "run")
    assert Plan.load("run/plan.toml") == Plan.load("plan.toml")


def test_a_node_keeps_the_turns_and_not_the_names(table):
    ok("plan", "exam.csv", "--codebook", "book.toml", *PERSONS[:2], "-o", "plan.toml")
    Path("operator.pub").write_text(Operator("exam-2026", bytes(range(32))).public.hex() + "\n")
    budget = ("--epsilon", 4, "--delta", 1e-3, "--unit", "person")
    source = ("--operator", "operator.pub", "--data", "exam.csv", "--codebook", "book.toml")
    ok("node", "init", "n003", "--task", "003", *source, *budget)
    assert "Add --person COLUMN" in refused("node", "approve", "n003", "plan.toml", "--yes")
    ok("node", "approve", "n003", "plan.toml", "--yes", "--person", "pupil")
    kept = NodeFolder(Path("n003"))
    assert not any(b"003/1" in file.read_bytes() for file in kept.folder.rglob("*") if file.is_file())
