"""What a ledger says when its database refuses: a copy is advised where content is broken, and nowhere else.

A restored copy forgets the charges that were made since, and that part of a budget is then spent again.
"""

from __future__ import annotations

import json
import re
import resource
import sqlite3
import subprocess
import sys

import pytest

from cloister import Ledger
from cloister.errors import LedgerError
from cloister.ledger import refusals
from cloister.privacy.events import Cost, GaussianEvent
from cloister.sampling import Everyone

COST = Cost((GaussianEvent(0.1),), Everyone(), 50)
#: What SQLite calls by these codes is broken content, all other codes are not about content.
BROKEN = {"CORRUPT", "CORRUPT_INDEX", "CORRUPT_SEQUENCE", "CORRUPT_VTAB", "FORMAT", "IOERR_DATA"}
#: Result codes by their documented names; the module has other numbers (of authorizers, limits) beside them.
PRIMARY = re.findall(
    r"\w+",
    "ERROR INTERNAL PERM ABORT BUSY LOCKED NOMEM READONLY INTERRUPT IOERR CORRUPT NOTFOUND FULL CANTOPEN "
    "PROTOCOL EMPTY SCHEMA TOOBIG CONSTRAINT MISMATCH MISUSE NOLFS AUTH FORMAT RANGE NOTADB",
)
EXTENDED = [
    name.removeprefix("SQLITE_")
    for name in dir(sqlite3)
    if name.startswith(tuple(f"SQLITE_{code}_" for code in PRIMARY)) and getattr(sqlite3, name) > 0xFF
]


def said(error: BaseException) -> str:
    with pytest.raises(LedgerError) as refused, refusals.database_errors("tasks.ledger"):
        raise error
    return str(refused.value)


def keeps(words: str) -> bool:
    """Whether a copy is warned of; it is either that, or damage, or no database."""
    warned = "Nothing in it is lost by that: do not restore a copy" in words
    assert warned != ("is damaged. Restore" in words or "is no SQLite file" in words)
    return warned


@pytest.mark.parametrize("code", PRIMARY + EXTENDED)
def test_of_sqlite_codes_those_of_broken_content_alone_advise_a_copy(code):
    error = sqlite3.OperationalError("words of SQLite")
    error.sqlite_errorname = f"SQLITE_{code}"
    assert keeps(said(error)) == (code not in BROKEN | {"NOTADB"})


def test_extended_codes_were_found():
    assert len(EXTENDED) > 50
    assert BROKEN - set(PRIMARY) <= set(EXTENDED) | {"IOERR_DATA"}  # which SQLite has from 3.32 on


def test_what_has_no_code():
    assert not keeps(said(sqlite3.OperationalError("Could not decode to UTF-8 column 'hash' with text 'x'")))
    assert not keeps(said(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")))
    assert "memory is short" in said(MemoryError())
    assert keeps(said(MemoryError()))
    assert keeps(said(sqlite3.ProgrammingError("Cannot operate on a closed database.")))


@pytest.mark.parametrize(
    ("found", "broken"),
    [
        ("*** in database main ***\nTree 3 page 5: btreeInitPage() returns error code 11", True),
        ("Page 4: never used", True),
        ("row 3 missing from index sqlite_autoindex_cloister_charges_1", True),
        ("Tree 3 page 5: unable to get the page. error code=11", True),
        ("Tree 3 page 5: unable to get the page. error code=266", False),  # SQLITE_IOERR_READ
        ("Tree 3 page 5: unable to get the page. error code=7", False),  # SQLITE_NOMEM
    ],
)
def test_pages_that_the_check_cannot_read_are_not_damaged_ones(found, broken):
    refusals.check_found("tasks.ledger", "ok")
    with pytest.raises(LedgerError) as refused:
        refusals.check_found("tasks.ledger", found)
    assert keeps(str(refused.value)) != broken


def test_of_postgresql_states_corrupted_data_alone_advises_a_copy():
    errors = pytest.importorskip("psycopg.errors")
    kinds = {kind.sqlstate: kind for kind in vars(errors).values() if getattr(kind, "sqlstate", None)}
    assert {"08006", "25006", "42501", "53100", "53200", "55P03", "57P01", "58030", "XX000"} < set(kinds)
    advised = set()
    for state, kind in kinds.items():
        with pytest.raises(LedgerError) as refused:
            refusals.refuse("postgresql://host/x", kind("words of the server"))
        if not keeps(str(refused.value)):
            advised.add(state)
    assert advised == {"XX001"}


USED_UNDER_A_LIMIT = """
import json, resource, signal, sys
from cloister import Ledger
from cloister.errors import LedgerError
from cloister.privacy.events import Cost, GaussianEvent
from cloister.sampling import Everyone
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file, kind, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
Ledger.open(file)  # what it imports is there before files run out
resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
said, cost = [], Cost((GaussianEvent(0.1),), Everyone(), 50)
for use in (lambda: Ledger.open(file), lambda: Ledger.open(file).charge("plan", cost)):
    try:
        use()
    except LedgerError as error:
        said.append(str(error))
print(json.dumps(said))
"""


@pytest.mark.parametrize(
    ("kind", "limit", "why"),
    [
        (
            resource.RLIMIT_FSIZE,
            4096,
            "its disk does not read or write",
        ),  # as on a full disk: not even reading
        (resource.RLIMIT_NOFILE, 3, "it cannot be opened"),
    ],
)
def test_a_whole_ledger_where_nothing_can_be_written_stays_as_it_is(tmp_path, kind, limit, why):
    ledger = Ledger.create(tmp_path / "tasks.ledger", "schools", epsilon=1.0, delta=1e-3)
    ledger.charge("plan", COST)
    command = [sys.executable, "-c", USED_UNDER_A_LIMIT, str(ledger._store.where), str(int(kind)), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    words = json.loads(done.stdout)
    assert len(words) == 2
    assert all(keeps(word) and why in word for word in words)
    assert len(Ledger.open(tmp_path / "tasks.ledger").history) == 1
