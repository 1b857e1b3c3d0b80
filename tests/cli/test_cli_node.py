"""The owner of a node: init, approve, run, status, compare; and rows from wherever they are."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import stat
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import BOOK, cloister, ok, pupils, refused

from cloister import Codebook, Ledger, Plan, SharedPriorRegressor, run
from cloister.app.predict import write_csv
from cloister.app.source import rows_of_file, rows_of_function, rows_of_query
from cloister.app.task_model import TaskModel
from cloister.core.roster import Roster
from cloister.engines import RemoteNodes
from cloister.errors import PrivateDataError
from cloister.nodes import Node
from cloister.nodes.local_transports import FolderTransport
from cloister.store.signatures import Operator

SCHOOLS = ["000", "001", "002"]
QUERY = "select age, sex, score from pupils where school = '001'"
FUNCTION = """
import sqlite3


def pupils():
    with sqlite3.connect("exam.db") as connection:
        found = connection.execute("select age, sex, score from pupils where school = '002'")
        return dict(zip(("age", "sex", "score"), zip(*found)))
"""


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the examples speak of, and a plan for three schools.

    A function's module is imported from there; the next test finds neither it nor the folder.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("own_rows", "other_rows"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    table = pupils(3)
    write_csv(tmp_path / "pupils.csv", table)
    with sqlite3.connect(tmp_path / "exam.db") as connection:
        connection.execute("create table pupils (school text, age real, sex text, score real)")
        rows = zip(*(column.tolist() for column in table.values()), strict=True)
        connection.executemany("insert into pupils values (?, ?, ?, ?)", list(rows))
    connection.close()
    (tmp_path / "own_rows.py").write_text(FUNCTION)
    (tmp_path / "exam.toml").write_text(BOOK)
    book = Codebook.load(tmp_path / "exam.toml")
    SharedPriorRegressor(epsilon=2.0, delta=1e-2, bounds=book).plan(3).save(tmp_path / "plan.toml")
    operator = Operator("exam-2026", bytes(range(32)))
    (tmp_path / "operator.pub").write_text(operator.public.hex() + "\n")
    return tmp_path


def test_a_file_a_query_and_a_function_give_the_same_rows(office: Path) -> None:
    book, url = Codebook.load("exam.toml"), "sqlite:///exam.db"
    table = pupils(3)
    file = rows_of_file("001", Path("pupils.csv"), book)
    found = [
        rows_of_query("001", url, QUERY, book),
        rows_of_query("001", url, "select * from pupils", book),  # the task column tells whose they are
        rows_of_function("001", lambda: table, book),
        rows_of_function("001", lambda: (file.X, file.y), None),
    ]
    for rows in found:
        assert rows.ids.tolist() == ["001"]
        np.testing.assert_array_equal(rows.X, file.X)
        np.testing.assert_array_equal(rows.y, file.y)


def test_rows_without_a_target_are_left_out_if_that_is_said(office: Path) -> None:
    book, table, url = Codebook.load("exam.toml"), pupils(3), "sqlite:///exam.db"
    own = np.flatnonzero(table["school"] == "001")
    whole = rows_of_file("001", Path("pupils.csv"), book)
    table["score"][[own[0], *np.flatnonzero(table["school"] == "002")]] = np.nan
    write_csv("pupils.csv", table)
    with sqlite3.connect("exam.db") as connection:
        least = "select min(rowid) from pupils where school = '001'"
        connection.execute(f"update pupils set score = null where school = '002' or rowid = ({least})")
    connection.close()
    found = {
        "pupils.csv": lambda task: rows_of_file(task, Path("pupils.csv"), book, skip=True),
        "the query": lambda task: rows_of_query(task, url, "select * from pupils", book, skip=True),
        "the function": lambda task: rows_of_function(task, lambda: table, book, skip=True),
    }
    for name, rows in found.items():
        np.testing.assert_array_equal(rows("001").X, whole.X[1:])
        np.testing.assert_array_equal(rows("001").y, whole.y[1:])
        with pytest.raises(PrivateDataError, match=f"Task '002' must have a row .* none in {name}"):
            rows("002")
    with pytest.raises(ValueError, match="goes with a codebook"):
        rows_of_function("001", lambda: (whole.X, whole.y), None, skip=True)
    init("001", "--data", "pupils.csv")
    approve = ("node", "approve", "n001", "plan.toml", "--yes")
    assert "add --skip-missing-targets to the command" in refused(*approve)
    assert f"keeps {len(own) - 1} rows for it" in ok(*approve, "--skip-missing-targets")


def test_a_source_that_does_not_fit_says_what_to_do(office: Path) -> None:
    book = Codebook.load("exam.toml")
    with pytest.raises(ValueError, match="did not answer the query: no such table: wards"):
        rows_of_query("001", "sqlite:///exam.db", "select * from wards", book)
    with pytest.raises(ValueError) as told:
        rows_of_query("001", "nobase://me:secret@host/db", "select 1", book)
    assert "secret" not in str(told.value)
    with pytest.raises(ValueError, match="must give a column 'sex'"):
        rows_of_query("001", "sqlite:///exam.db", "select age, score from pupils", book)
    with pytest.raises(ValueError, match="no rows of task '999'"):
        rows_of_query("999", "sqlite:///exam.db", "select * from pupils", book)
    with pytest.raises(ValueError, match=r"a pair of arrays\. Got list"):
        rows_of_function("001", lambda: [1.0], None)


def init(name: str, *more: str) -> str:
    budget = ("--epsilon", "4", "--delta", "1e-2", "--operator", "operator.pub", "--codebook", "exam.toml")
    return ok("node", "init", f"n{name}", "--task", name, *budget, *more)


def test_three_owners_take_part(office: Path) -> None:
    """By a file, a query and a function; nothing leaves that was not approved, and heads agree."""
    init("000", "--data", "pupils.csv")
    init("001", "--data", "sqlite:///exam.db", "--query", QUERY)
    init("002", "--data", "own_rows.py:pupils")
    said = cloister("node", "approve", "n000", "plan.toml")  # nobody answers
    assert said.exit_code == 1
    assert "Who is protected" in said.stdout
    assert "will be after one run of it" in " ".join(said.stdout.split())
    assert not Path("n000/plans").exists()
    for name in SCHOOLS:
        assert "Approved." in ok("node", "approve", f"n{name}", "plan.toml", "--yes")
    operator, done = Operator("exam-2026", bytes(range(32))), []
    plan, digest = Plan.load("plan.toml"), hashlib.sha256(Path("exam.toml").read_bytes()).hexdigest()
    engine = RemoteNodes(FolderTransport("shared"), operator, deadline=120.0, codebook=digest)
    curator = threading.Thread(target=lambda: done.append(run(plan, Roster(SCHOOLS), engine=engine)))
    curator.start()
    while curator.is_alive():
        for name in SCHOOLS:
            ok("node", "run", f"n{name}", "--exchange", "shared", "--once")
    (finished,) = done
    assert finished.guarantee.holds
    for name in SCHOOLS:
        assert Node(f"n{name}").board("exam-2026").head == finished.board.head
        assert finished.board.head.hex() in "".join(ok("node", "status", f"n{name}").split())
        assert len(Ledger.open(f"n{name}/ledger").history) == 1
        Path(f"{name}.json").write_text(ok("node", "status", f"n{name}", "--run", "exam-2026", "--json"))
    assert "same board" in ok("node", "compare", "000.json", "001.json", "--operator", "operator.pub")
    other = operator.sign_head(
        json.loads(Path("000.json").read_text())["roster"], finished.board.rounds + 1, bytes(32)
    )
    Path("other.json").write_text(json.dumps(other.to_dict()))
    told = cloister("node", "compare", "000.json", "other.json", "--operator", "operator.pub")
    assert told.exit_code == 3
    assert told.stdout.startswith("FORKED")
    assert json.loads(ok("node", "status", "n000", "--json"))["spent"]["epsilon"] > 1
    assert "private" in ok("node", "model", "n000", "--run", "exam-2026", "-o", "own.json")
    assert "Task 000" in ok("show", "own.json")
    write_csv(Path("own.csv"), {name: column[:20] for name, column in pupils(1).items()})
    ok("predict", "own.csv", "--model", "own.json", "-o", "predicted.csv")
    own, same = TaskModel.load("own.json"), Node("n000").model("exam-2026")
    np.testing.assert_array_equal(own.weights, same["coef"])
    private = [
        path
        for path in [*Path("n000").rglob("*"), Path("own.json")]
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert private == []


def test_a_budget_for_each_record_is_not_called_the_tasks(office: Path) -> None:
    """A plan by task fits it; what is spent over all runs is said of one record."""
    init("000", "--data", "pupils.csv", "--unit", "record")
    said = " ".join(cloister("node", "approve", "n000", "plan.toml").stdout.split())
    assert "at delta = 0.01 over all runs for each record, 0" in said
    assert "is spent for each record, by 0 runs" in " ".join(ok("node", "status", "n000").split())


def test_what_an_owner_types_wrong(office: Path) -> None:
    common = ("node", "init", "new", "--task", "Elm", "--epsilon", "4", "--delta", "1e-2")
    key = ("--operator", "operator.pub")
    assert "public key must be 64 hexadecimal digits" in refused(
        *common, "--operator", "nobody", "--data", "pupils.csv", "--codebook", "exam.toml"
    )
    assert "Add --codebook FILE" in refused(*common, *key, "--data", "pupils.csv")
    assert "--query goes with the URL" in refused(
        *common, *key, "--data", "pupils.csv", "--query", "select 1"
    )
    assert "has no node.toml" in refused("node", "status", "nowhere")
    Path("no-head.json").write_text("[]")
    assert "not a signed head" in refused("node", "compare", "no-head.json", "no-head.json", *key)
    init("000", "--data", "missing.csv")
    assert "There is no file" in refused("node", "approve", "n000", "plan.toml", "--yes")
    init("002", "--data", "bad.csv")
    write_csv(
        Path("bad.csv"), {"age": np.array(["9", "old"]), "sex": np.array(["F", "M"]), "score": np.ones(2)}
    )
    assert "--zeros" in refused("node", "approve", "n002", "plan.toml", "--yes")
    assert "Zeros will be sent" in ok("node", "approve", "n002", "plan.toml", "--yes", "--zeros")
    Path("other_rows.py").write_text("")
    init("001", "--data", "other_rows.py:nothing")
    assert "has no 'nothing'" in refused("node", "approve", "n001", "plan.toml", "--yes")
