"""Files that are damaged, or made to do harm: one sentence, no crash, no hang, nothing in them is run."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from cloister import Ledger
from cloister.errors import LedgerError
from cloister.ledger import stores
from cloister.privacy.events import Cost, GaussianEvent
from cloister.sampling import Everyone

COST = Cost((GaussianEvent(0.1),), Everyone(), 50)


def fuzz(count: int, seed: int) -> tuple[int, int]:
    script = Path(__file__).with_name("ledger_garbage.py")
    memory = Path("/dev/shm")  # a file system without a disk to wait for, where there is one
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as work:
        command = [sys.executable, "-W", "error", str(script), work, str(count), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    refused, read = map(int, done.stdout.split())
    return refused, read


def test_damaged_files_are_refused_or_read_as_they_were():
    refused, read = fuzz(count=120, seed=0)
    assert refused > 12
    assert read > 12


@pytest.mark.slow
def test_many_damaged_files():
    refused, read = fuzz(count=6000, seed=1)
    assert refused + read == 6000


HARMFUL = {
    "a view that never ends": (
        "DROP TABLE cloister_charges",
        "CREATE VIEW cloister_charges AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "SELECT 'schools' AS population, x AS number, '' AS plan, '' AS run, 0.0 AS mu, '' AS events, "
        "'' AS time, '' AS hash FROM n",
    ),
    "a trigger that swallows charges": (
        "CREATE TRIGGER x BEFORE INSERT ON cloister_charges BEGIN SELECT RAISE(IGNORE); END",
    ),
    "a trigger under a known name": (
        "DROP TRIGGER cloister_charges_no_delete",
        "CREATE TRIGGER cloister_charges_no_delete AFTER INSERT ON cloister_charges "
        "BEGIN DELETE FROM cloister_charges; END",
    ),
    "a table without its key": (
        "DROP TABLE cloister_charges",
        "CREATE TABLE cloister_charges (population, number, plan, run, mu, events, time, hash)",
    ),
    "no triggers": (*(f"DROP TRIGGER {name}" for name in stores._SQLITE_TRIGGERS),),
}


@pytest.mark.parametrize("kind", HARMFUL)
def test_harmful_schemas_are_never_run(tmp_path, kind):
    ledger = Ledger.create(tmp_path / "ledger", "schools", epsilon=1.0, delta=1e-3)
    ledger.charge("plan", COST)
    connection = sqlite3.connect(tmp_path / "ledger")
    for statement in HARMFUL[kind]:
        connection.execute(statement).close()
    connection.commit()
    connection.close()
    for use in (
        lambda: Ledger.open(tmp_path / "ledger"),
        lambda: ledger.history,
        lambda: ledger.charge("plan", COST),
        lambda: Ledger.create(tmp_path / "ledger", "banks", epsilon=1.0, delta=1e-3),
    ):
        with pytest.raises(LedgerError, match="is a database, but not a ledger"):
            use()


@pytest.mark.parametrize(
    "changes",
    [
        {"events": "[" * 100_000},
        {"events": '{"a": 1'},
        {"plan": "\x1b[2Jplan"},
        {"mu": -0.1},
        {"mu": float("inf")},
        {"time": ""},
        {"run": "x" * 201},
    ],
)
def test_harmful_content_is_refused_though_its_hashes_are_right(tmp_path, changes):
    ledger = Ledger.create(tmp_path / "ledger", "schools", epsilon=1.0, delta=1e-3)
    true = ledger.charge("plan", COST)
    forged = replace(true, **{"run": "other", "number": 1, **changes})
    row = {"population": "schools", **asdict(forged), "hash": forged.chained(true.hash)}
    connection = sqlite3.connect(tmp_path / "ledger")
    places = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO cloister_charges ({', '.join(row)}) VALUES ({places})", [*row.values()])
    connection.commit()
    connection.close()
    with pytest.raises(LedgerError, match="holds what no ledger writes"):
        Ledger.open(tmp_path / "ledger")
