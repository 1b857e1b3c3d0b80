"""What a database's refusal says of the ledger in it: damaged, no ledger, or not to be had just now.

Whoever restores a copy forgets the charges that were made since, and spends that part of the budget again. So
a copy is advised only where the database itself says that what it holds is broken. Everything else, a full
disk or a lock, says nothing of what is in it, and is told so.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from cloister.core.errors import LedgerError

#: What says that stored content is broken: of SQLite (the last by its own extension alone), of PostgreSQL.
DAMAGED = ("SQLITE_CORRUPT", "SQLITE_FORMAT", "SQLITE_IOERR_DATA", "XX001")
#: Why a database cannot be used now, and what to do: SQLite's codes, then PostgreSQL's, by how they begin.
NOW = {
    "SQLITE_FULL": ("there is no space left", "free some space"),
    "SQLITE_IOERR_NOMEM": ("memory is short", "close other programs"),
    "SQLITE_IOERR": ("its disk does not read or write", "see whether the disk is full, or failing"),
    "SQLITE_NOMEM": ("memory is short", "close other programs"),
    "SQLITE_BUSY": ("it is locked by another process", "see what holds it"),
    "SQLITE_LOCKED": ("it is locked by another process", "see what holds it"),
    "SQLITE_PROTOCOL": ("it is locked by another process", "see what holds it"),
    "SQLITE_READONLY": ("it may not be written", "see who may write it and its folder"),
    "SQLITE_PERM": ("it may not be used", "see who may read and write it and its folder"),
    "SQLITE_AUTH": ("it may not be used", "see who may read and write it and its folder"),
    "SQLITE_CANTOPEN": (
        "it cannot be opened",
        "see that its folder is there, that both may be written, and that not too many files are open",
    ),
    "55P03": ("it is locked by another process", "see what holds it"),
    "57014": ("it was locked by another process for too long, or stopped", "see what holds it"),
    "40": ("another process was at it", "wait a moment"),
    "53100": ("the server's disk is full", "free some space"),
    "53": ("the server is short of memory or connections", "see to the server"),
    "57": ("the server is starting or stopping", "wait for the server"),
    "58": ("the server's disk does not read or write", "see to the server"),
    "08": ("the connection was lost", "see to the network and the server"),
    "28": ("the server does not let you in", "check user and password"),
    "42501": ("you may not use it", "see what the manual says of rights"),
    "25006": ("the server lets nobody write", "connect to the one that does"),
    "None": ("it cannot be reached", "see to its address, the network and the server"),
    "XX002": ("an index of it is broken", "have the server make its indexes anew (REINDEX)"),
}
_OTHER = ("the database refuses", "see to that")


@contextmanager
def database_errors(name: str) -> Iterator[None]:
    """Raise LedgerError, a sentence or two, for whatever a database refuses."""
    try:
        yield
    except IntegrityError:
        raise LedgerError(
            f"Another process wrote to {name} at the same moment. Nothing was recorded; try again."
        ) from None
    except DBAPIError as error:
        refuse(name, error.orig)
    except sqlite3.Error as error:
        refuse(name, error)
    except MemoryError:
        cannot_now(name, *NOW["SQLITE_NOMEM"])
    except UnicodeDecodeError:  # of words that no ledger has
        damaged(name)
    except SQLAlchemyError as error:
        cannot_now(name, type(error).__name__, _OTHER[1])


def refuse(name: str, error: BaseException | None) -> NoReturn:
    """Say why a database refused."""
    code = str(getattr(error, "sqlite_errorname", None) or getattr(error, "sqlstate", None))
    said = next(iter(str(error).strip().splitlines()), "").rstrip(".")
    if code.startswith("SQLITE_NOTADB"):
        raise LedgerError(f"{name} is not a ledger: it is no SQLite file. Check the path.") from None
    if code.startswith(DAMAGED) or said.startswith("Could not decode to UTF-8"):  # which has no code
        damaged(name)
    why, do = next((known for start, known in NOW.items() if code.startswith(start)), _OTHER)
    cannot_now(name, f"{why} ({said})" if code == "None" else f"{why} ({said}, {code})", do)


def check_found(name: str, found: str) -> None:
    """Refuse what SQLite's own check of a file found; pages that it could not read are not damaged ones."""
    codes = {int(code) & 0xFF for code in re.findall(r"error code=(\d+)", found)}
    if codes and sqlite3.SQLITE_CORRUPT not in codes:
        cannot_now(name, f"{NOW['SQLITE_IOERR'][0]} ({found})", NOW["SQLITE_IOERR"][1])
    if found != "ok":
        damaged(name)


def cannot_now(name: str, why: str, do: str) -> NoReturn:
    raise LedgerError(
        f"{name} cannot be used now: {why}. Nothing in it is lost by that: do not restore a copy, which "
        f"would forget charges, but {do}, and try again."
    ) from None


def damaged(name: str) -> NoReturn:
    raise LedgerError(f"{name} is damaged. Restore the ledger from a copy; do not charge this one.") from None
