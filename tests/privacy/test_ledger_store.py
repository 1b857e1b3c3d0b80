"""A durable ledger, on SQLite and on PostgreSQL: what is kept, what is noticed, and what is refused."""

from __future__ import annotations

import math
import os
import pickle
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from cloister import Ledger, Plan, SharedPriorRegressor, Tasks, run
from cloister.algorithms import MeanRegularized
from cloister.channel import Relation
from cloister.engines import Local
from cloister.errors import BudgetError, InputError, LedgerError, MissingExtraError
from cloister.learners import LeastSquares
from cloister.ledger import stores
from cloister.privacy import tradeoff
from cloister.privacy.caveats import FLOATING_POINT, SEEDED
from cloister.privacy.events import Cost, GaussianEvent
from cloister.sampling import Everyone

TASKS, DELTA = 50, 1e-3
BUDGET = {"epsilon": 1.0, "delta": DELTA, "n_tasks": TASKS}


def cost(*mus: float) -> Cost:
    return Cost(tuple(map(GaussianEvent, mus)), Everyone(), TASKS)


def execute(where: str, *statements: str) -> None:
    """Write to a ledger behind its back."""
    url = where.replace("postgresql:", "postgresql+psycopg:") if "://" in where else f"sqlite:///{where}"
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def unguarded(where: str, statement: str) -> None:
    """Write to a ledger as its owner can: without the triggers."""
    if "://" in where:
        table = statement.split()[1 if statement.startswith("UPDATE") else 2]
        execute(
            where,
            f"ALTER TABLE {table} DISABLE TRIGGER ALL",
            statement,
            f"ALTER TABLE {table} ENABLE TRIGGER ALL",
        )
    else:
        triggers = stores._SQLITE_TRIGGERS
        execute(where, *(f"DROP TRIGGER {name}" for name in triggers), statement, *triggers.values())


def test_an_account_is_the_same_when_opened_again(where):
    ledger = Ledger.create(where, "schools", **BUDGET, relation=Relation.ZERO_OUT)
    zero_out = Cost((GaussianEvent(0.1, 0.05),) * 3 + (GaussianEvent(1 / 3),), Everyone(), TASKS, "zero_out")
    recorded = ledger.charge("plan", zero_out, run="7")
    again = Ledger.open(where, "schools")
    assert again.history == ledger.history == (recorded,)
    assert (again.epsilon, again.delta, again.relation, again.n_tasks) == (1.0, DELTA, "zero_out", TASKS)
    assert recorded.mu == math.sqrt(math.fsum([0.1**2] * 3 + [(1 / 3) ** 2]))  # to the last bit
    assert recorded.details["events"] == [
        {"kind": "GaussianEvent", "mu": 0.1, "zero_out_mu": 0.05, "count": 3},
        {"kind": "GaussianEvent", "mu": 1 / 3, "count": 1},
    ]
    assert recorded.time.endswith("+00:00")
    assert again.head == ledger.head == recorded.hash
    assert again.charge("plan", zero_out, run="7") == recorded  # resumed by another process: spent once
    assert len(again.history) == 1


def test_one_place_holds_several_populations(where):
    schools = Ledger.create(where, "schools", **BUDGET)
    assert Ledger.open(where).population == "schools"
    banks = Ledger.create(where, "banks", epsilon=2.0, delta=1e-4)
    schools.charge("plan", cost(0.1), run="7")
    banks.charge("plan", cost(0.2), run="7")
    assert [len(Ledger.open(where, name).history) for name in ("schools", "banks")] == [1, 1]
    with pytest.raises(LedgerError, match=r"There is no account of 'wards'\. .* of: 'banks', 'schools'"):
        Ledger.open(where, "wards")
    with pytest.raises(LedgerError, match=r"Say which population\. .* of: 'banks', 'schools'"):
        Ledger.open(where)
    with pytest.raises(LedgerError, match="already has an account of 'banks'"):
        Ledger.create(where, "banks", epsilon=100.0, delta=1e-4)
    assert Ledger.open(where, "banks").epsilon == 2.0


def test_triggers_stop_accidents(where):
    Ledger.create(where, "schools", **BUDGET).charge("plan", cost(0.1))
    before = Ledger.open(where)
    for statement in (
        "UPDATE cloister_charges SET mu = 0",
        "DELETE FROM cloister_charges",
        "UPDATE cloister_accounts SET epsilon = 100",
        "DELETE FROM cloister_accounts",
    ):
        with pytest.raises(DBAPIError, match="append-only"):
            execute(where, statement)
    assert Ledger.open(where).history == before.history


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "UPDATE cloister_charges SET mu = 0.001 WHERE number = 1",
            "Charge 1 .* was changed",
        ),
        ("UPDATE cloister_charges SET plan = 'x' WHERE number = 2", "Charge 2 of 'schools'"),
        ("DELETE FROM cloister_charges WHERE number = 0", "Charge 0 of 'schools'"),
        ("DELETE FROM cloister_charges WHERE number = 1", "one before it was removed"),
        ("UPDATE cloister_charges SET events = '[]' WHERE number = 1", "holds what no ledger writes"),
        ("UPDATE cloister_accounts SET epsilon = 100", "holds what no ledger writes"),
    ],
)
def test_edits_are_noticed(where, statement, message):
    ledger = Ledger.create(where, "schools", **BUDGET)
    for number in range(3):
        ledger.charge(f"plan {number}", cost(0.1))
    unguarded(where, statement)
    for use in (lambda: Ledger.open(where), lambda: ledger.history, lambda: ledger.charge("p", cost(0.1))):
        with pytest.raises(LedgerError, match=message):
            use()


def test_a_removed_last_charge_shows_in_the_head(where):
    ledger = Ledger.create(where, "schools", **BUDGET)
    heads = [ledger.head]
    for number in range(2):
        heads.append(ledger.charge(f"plan {number}", cost(0.1)).hash)
    assert ledger.head == heads[2]
    unguarded(where, "DELETE FROM cloister_charges WHERE number = 1")
    assert Ledger.open(where).head == heads[1] != heads[2]


def test_a_run_is_charged_before_its_first_release(where):
    ledger = Ledger.create(where, "schools", **BUDGET)
    rng = np.random.default_rng(0)
    tasks = Tasks.from_arrays(rng.uniform(-1, 1, (100, 3)), rng.uniform(-1, 1, 100), np.arange(100) % TASKS)
    seen = []

    class Watched(Local):
        @contextmanager
        def workers(self, *arguments):
            with super().workers(*arguments) as workers:
                start = workers.start
                workers.start = lambda board: (seen.append(len(Ledger.open(where).history)), start(board))
                yield workers

    plan = Plan(MeanRegularized(LeastSquares(3), rounds=2), n_tasks=TASKS, delta=DELTA).calibrate(0.9)
    run(plan, tasks, ledger=ledger, random_state=0, engine=Watched())
    assert seen == [1]  # committed, and seen by another connection, before a task was asked for anything
    with pytest.raises(BudgetError):
        run(plan, tasks, ledger=Ledger.open(where), random_state=0, engine=Watched())
    assert seen == [1]


def test_estimators_spend_from_a_durable_account(where):
    rng = np.random.default_rng(0)
    ids, x = np.arange(300) % TASKS, rng.uniform(-1, 1, (300, 2))
    bounds = {0: (-1, 1), 1: (-1, 1), "target": (-2, 2)}
    ledger = Ledger.create(where, "schools", **BUDGET)
    model = SharedPriorRegressor(epsilon=0.7, delta=DELTA, bounds=bounds, ledger=ledger)
    copy = pickle.loads(pickle.dumps(clone(model)))  # what a worker process gets
    assert clone(model).ledger is ledger
    model.fit(x, x.sum(axis=1), tasks=ids)
    assert copy.ledger.history == ledger.history
    with pytest.raises(BudgetError):
        copy.fit(x, x.sum(axis=1), tasks=ids)
    assert "schools" in repr(model)


def test_passwords_are_never_told(new_database):
    url = new_database().replace("postgres@", "postgres:open-sesame@") + "&sslpassword=open-sesame"
    ledger = Ledger.create(url, "schools", **BUDGET)
    frozen = pickle.dumps(ledger)
    assert b"sesame" not in frozen
    assert pickle.loads(frozen).head == ledger.head
    assert "sesame" not in repr(ledger)
    for bad in (url.replace("/ledger", "/no-"), "nosuch://me:open-sesame@host/x", "://me:open-sesame@x"):
        with pytest.raises(LedgerError) as refused:
            Ledger.open(bad)
        assert "sesame" not in str(refused.value)


def test_another_process_holding_the_lock_is_told(where, monkeypatch):
    ledger = Ledger.create(where, "schools", **BUDGET)
    other = Ledger.open(where)
    monkeypatch.setattr(stores, "PATIENCE", 0.2)
    monkeypatch.setattr(stores, "_POSTGRES_SETTINGS", ("SET LOCAL lock_timeout = '200ms'",))

    def meanwhile(past):
        with pytest.raises(LedgerError, match="locked by another process"):
            other.charge("other", cost(0.1))
        assert other.history == ()  # reading goes on
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ledger.store.record(meanwhile)
    assert ledger.history == ()
    other.charge("other", cost(0.1))


def test_what_is_not_a_ledger_is_one_sentence(tmp_path, new_database):
    (tmp_path / "text").write_text("not a database at all\n" * 100)
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    with sqlite3.connect(tmp_path / "other") as connection:
        connection.execute("CREATE TABLE cloister_charges (x)")
    connection.close()
    for name, message in {
        "text": "is not a ledger: it is no SQLite file",
        "empty": "holds no ledger",
        "folder": "A ledger is a file, and",
        "absent": "There is no ledger file",
        "other": "is a database, but not a ledger",
    }.items():
        with pytest.raises(LedgerError, match=message):
            Ledger.open(tmp_path / name)
    before = (tmp_path / "other").read_bytes()
    for name in ("text", "folder", "other", "absent/ledger"):
        with pytest.raises(LedgerError):
            Ledger.create(tmp_path / name, "schools", **BUDGET)
    assert (tmp_path / "other").read_bytes() == before
    for url, message in {
        new_database(): "holds no ledger",
        f"postgresql://x@/x?host={tmp_path}": r"cannot be used now: it cannot be reached \(connection",
        "sqlite://": "plain file",
        "sqlite:///:memory:": "plain file",
        "nosuch://host": "knows no database 'nosuch'",
        "postgresql://host:port/x": "not the URL of a database",
    }.items():
        with pytest.raises(LedgerError, match=message):
            Ledger.open(url)


def test_a_missing_driver_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"needs the package 'psycopg'.*cloister\[postgres\]"):
        Ledger.open("postgresql://host/x")


def test_a_file_that_may_not_be_written_is_one_sentence():
    """Run by somebody who may only read the file and its folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        file = Path(folder) / "tasks.ledger"
        Ledger.create(file, "schools", **BUDGET).charge("plan", cost(0.1))
        file.chmod(0o444)
        os.chmod(folder, 0o555)
        child = os.fork()
        if child == 0:  # root may write everything, so become nobody
            code = 9
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                Ledger.open(file).charge("plan", cost(0.1))
            except LedgerError as error:
                words = str(error)
                told = "may not be written" in words or "cannot be opened" in words
                code = 0 if told and "do not restore a copy" in words else 8
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        os.chmod(folder, 0o755)
        assert os.waitstatus_to_exitcode(status) == 0


def test_sqlalchemy_comes_with_a_durable_ledger_only():
    code = "import sys; from cloister import Ledger; Ledger(1.0, 1e-3); print('sqlalchemy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_the_file_is_written_ahead_and_synchronised(tmp_path):
    ledger = Ledger.create(tmp_path / "tasks.ledger", "schools", **BUDGET)
    with ledger.store.place.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # full


def test_the_role_of_runs_needs_no_ownership(new_database):
    """Rights as the manual gives them: charges go through, edits do not, triggers cannot be dropped."""
    url = new_database()
    Ledger.create(url, "schools", **BUDGET)
    execute(
        url,
        "CREATE ROLE runner LOGIN",
        "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO runner",
    )
    runner = url.replace("postgres@", "runner@")
    Ledger.open(runner).charge("plan", cost(0.1))
    for statement in (
        "UPDATE cloister_accounts SET epsilon = 100",
        "DELETE FROM cloister_charges",
        "DROP TRIGGER cloister_charges_guard ON cloister_charges",
        "ALTER TABLE cloister_charges DISABLE TRIGGER ALL",
    ):
        with pytest.raises(DBAPIError):
            execute(runner, statement)
    assert len(Ledger.open(url).history) == 1


def test_a_server_with_another_default_isolation_refuses_nothing_in_error(new_database):
    url = new_database()
    name = url.split("/")[3].split("?")[0]
    execute(url, f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    ledger = Ledger.create(url, "schools", **BUDGET)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: ledger.charge(f"plan {n}", cost(0.05)), range(16)))
    assert len(ledger.history) == 16


def test_a_budget_is_not_changed_in_passing(where):
    ledger = Ledger.create(where, "schools", **BUDGET)
    with pytest.raises(InputError, match="A budget cannot be changed"):
        replace(ledger, epsilon=100.0)


def test_a_ledger_of_0_1_is_read_checked_and_charged(tmp_path):
    """Its charges have words about noise instead of doubts; the chain of hashes goes on over both."""
    file = tmp_path / "old.ledger"
    connection = sqlite3.connect(file)
    connection.executescript(Path(__file__).with_name("ledger_0.1.sql").read_text(encoding="utf-8"))
    connection.close()
    old = Ledger.open(file)
    assert [charge.doubts for charge in old.history] == [(), (SEEDED,), (FLOATING_POINT,), ()]
    assert old.spent == pytest.approx(1.5085811570109056)
    again = old.charge("exact", cost(0.1, 0.1), run="1", doubts=(SEEDED,))
    assert again.number == 0  # a run of 0.1 that goes on is spent once
    old.charge("new", cost(0.1), doubts=(SEEDED, FLOATING_POINT))
    again = Ledger.open(file)
    assert again.history[-1].doubts == (SEEDED, FLOATING_POINT)
    assert again.head == old.head
    unguarded(str(file), """UPDATE cloister_charges SET events = replace(events, 'INSECURE: ', '')""")
    with pytest.raises(LedgerError, match="Charge 1 of 'schools'"):
        Ledger.open(file)


def test_doubts_cannot_be_edited_away_or_into_nonsense(where):
    ledger = Ledger.create(where, "schools", **BUDGET)
    recorded = ledger.charge("plan", cost(0.1), doubts=iter((SEEDED,)))
    assert Ledger.open(where).history == (recorded,)
    assert recorded.details["doubts"] == [SEEDED.to_dict()]
    for old, new, words in (
        ('"void"', '"not proven to the last bit"', "was changed"),
        ('"void"', '"fine"', "what no ledger writes"),
        ('"reason"', '"because"', "what no ledger writes"),
    ):
        unguarded(where, f"UPDATE cloister_charges SET events = replace(events, '{old}', '{new}')")
        with pytest.raises(LedgerError, match=words):
            Ledger.open(where)
        unguarded(where, f"UPDATE cloister_charges SET events = replace(events, '{new}', '{old}')")
    assert Ledger.open(where).history[0].doubts == (SEEDED,)


@pytest.mark.parametrize("spelling", ["here.ledger", Path("here.ledger"), "sqlite:///here.ledger"])
def test_a_ledger_stays_where_it_was_opened(tmp_path, monkeypatch, spelling):
    """A process that changes its folder does not get another account of the same name to spend from."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        monkeypatch.chdir(folder)
        Ledger.create(spelling, "schools", **BUDGET)
    monkeypatch.chdir(first)
    made, opened = Ledger.create("more.ledger", "schools", **BUDGET), Ledger.open(spelling)
    whole = cost(tradeoff.mu(1.0, DELTA))
    opened.charge("plan", whole)
    monkeypatch.chdir(second)
    with pytest.raises(BudgetError):
        opened.charge("plan", whole)
    made.charge("plan", whole)
    assert str(first) in repr(made)
    assert [len(Ledger.open(path).history) for path in (first / "here.ledger", "here.ledger")] == [1, 0]


def test_a_ledger_that_lost_a_charge_it_gave_is_refused_by_who_got_it(where):
    """An old copy put back, with hashes that follow: only who saw the later charge can tell."""
    ledger = Ledger.create(where, "schools", **BUDGET)
    for number in range(2):
        ledger.charge(f"plan {number}", cost(0.1))
    other = Ledger.open(where)
    unguarded(where, "DELETE FROM cloister_charges WHERE number = 1")
    for use in (lambda: ledger.charge("plan", cost(0.1)), lambda: other.spent):
        with pytest.raises(LedgerError, match="has lost charge 1"):
            use()
    assert len(Ledger.open(where).history) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_ledger_in_memory_is_of_the_process_that_opened_it():
    """A forked child would spend from a copy that nobody adds up."""
    ledger = Ledger(**BUDGET)
    ledger.charge("plan", cost(0.1))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for use in (lambda: ledger.charge("plan", cost(0.1)), lambda: ledger.spent):
            try:
                use()
            except BudgetError as error:
                said.append("another process" in str(error))
        os.write(write, bytes(said))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 9) == bytes([True, True])
    os.close(read)
    os.close(write)
    ledger.charge("plan", cost(0.1))
    assert len(ledger.history) == 2


def test_a_commit_on_a_server_is_durable_whatever_the_server_is_set_to(new_database):
    """A database that answers before a charge is on disk could forget it, with what it paid for posted."""
    where = new_database()
    execute(where, f"ALTER DATABASE {where.split('/')[3].split('?')[0]} SET synchronous_commit = off")
    ledger, found = Ledger.create(where, "tasks", **BUDGET), []

    def ask(connection):
        found.append(connection.exec_driver_sql("SHOW synchronous_commit").scalar())

    event.listen(Engine, "commit", ask)
    try:
        ledger.charge("plan", cost(0.1))
    finally:
        event.remove(Engine, "commit", ask)
    assert found
    assert set(found) == {"on"}
