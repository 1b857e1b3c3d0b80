"""The databases that ledgers are kept in: an SQLite file, or a server behind an SQLAlchemy URL.

A transaction that returns is on disk. What a database refuses is said in one sentence, without a password.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from cloister.errors import LedgerError, MissingExtraError

__all__ = ["Place", "Server", "SqliteFile", "locate", "session"]

#: Seconds to wait for other processes.
PATIENCE = 60
#: Written by hand and never by SQLAlchemy, whose wording may change: a file must have exactly this schema.
_TABLES = {
    "cloister_accounts": (
        "CREATE TABLE cloister_accounts (population VARCHAR(200) NOT NULL PRIMARY KEY, "
        "epsilon DOUBLE PRECISION NOT NULL, delta DOUBLE PRECISION NOT NULL, "
        "relation VARCHAR(20) NOT NULL, n_tasks BIGINT, hash CHAR(64) NOT NULL)"
    ),
    "cloister_charges": (
        "CREATE TABLE cloister_charges (population VARCHAR(200) NOT NULL REFERENCES cloister_accounts, "
        "number BIGINT NOT NULL, plan VARCHAR(200) NOT NULL, run VARCHAR(200) NOT NULL, "
        "mu DOUBLE PRECISION NOT NULL, events TEXT NOT NULL, time VARCHAR(40) NOT NULL, "
        "hash CHAR(64) NOT NULL, PRIMARY KEY (population, number), UNIQUE (population, run))"
    ),
}
_SQLITE_TRIGGERS = {
    f"{table}_no_{verb}": (
        f"CREATE TRIGGER {table}_no_{verb} BEFORE {verb.upper()} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'a cloister ledger is append-only'); END"
    )
    for table in _TABLES
    for verb in ("update", "delete")
}
_POSTGRES_GUARD = (
    "CREATE FUNCTION cloister_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'a cloister ledger is append-only'; END $$",
    *(
        f"CREATE TRIGGER {table}_guard BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION cloister_append_only()"
        for table in _TABLES
    ),
)
_POSTGRES_SETTINGS = (
    f"SET LOCAL lock_timeout = '{PATIENCE}s'",
    f"SET LOCAL statement_timeout = '{PATIENCE}s'",
    "SET LOCAL synchronous_commit = on",
)
#: One of all databases: two processes that make the tables at once take turns.
_POSTGRES_TURN = "SELECT pg_advisory_xact_lock(hashtext('cloister ledger'))"


@dataclass(frozen=True)
class SqliteFile:
    """One file, in write-ahead mode, every commit on disk before it counts."""

    path: Path
    mode: str

    @property
    def name(self) -> str:
        return str(self.path)

    @cached_property
    def engine(self) -> Engine:
        """Connect anew for every transaction: nothing is shared between threads or processes."""
        engine = create_engine("sqlite://", creator=self._connect, poolclass=NullPool)
        event.listen(engine, "begin", _begin)
        return engine

    def _connect(self) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode={self.mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=PATIENCE, isolation_level=None)
        try:
            for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "synchronous=FULL"):
                connection.execute(f"PRAGMA {pragma}").close()
        except BaseException:
            connection.close()
            raise
        return connection

    def configure(self, connection: Connection) -> None: ...

    def holds_ledger(self, connection: Connection) -> bool:
        """Whether the schema is exactly a ledger's; an empty file holds none, anything else is refused.

        No table is read before this: a view or a trigger of somebody else's making is never run.
        """
        rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        found = sorted((str(name), str(sql)) for name, sql in rows)
        if found and found != sorted({**_TABLES, **_SQLITE_TRIGGERS}.items()):
            raise LedgerError(
                f"{self.name} is a database, but not a ledger: it has other tables, views or triggers than "
                "`cloister ledger create` makes. Check the path."
            )
        return bool(found)

    def install(self, connection: Connection) -> None:
        """Make the tables, and triggers against accidents."""
        for statement in (*_TABLES.values(), *_SQLITE_TRIGGERS.values()):
            connection.exec_driver_sql(statement)

    def check(self, connection: Connection) -> None:
        """Refuse a file with damaged pages."""
        if connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar() != "ok":
            _damaged(self.name)

    def finish(self) -> None:
        """Switch to write-ahead logging, where readers do not hold up writers.

        If others are busy with the file just now it stays as it is, which is as safe.
        """
        with suppress(sqlite3.OperationalError), closing(self._connect()) as connection:
            connection.execute("PRAGMA journal_mode=WAL").close()

    def without_password(self) -> str:
        return str(self.path.absolute())


@dataclass(frozen=True)
class Server:
    """A database server; PostgreSQL is what the tests run against."""

    url: URL

    @property
    def name(self) -> str:
        """The URL without password and options."""
        return _bare(self.url, {}).render_as_string()

    @cached_property
    def engine(self) -> Engine:
        """Connect anew for every transaction: nothing is shared between threads or processes."""
        limit = {"connect_timeout": PATIENCE} if self.url.drivername == "postgresql+psycopg" else {}
        try:
            return create_engine(
                self.url,
                poolclass=NullPool,
                isolation_level="READ COMMITTED",
                connect_args=limit if "connect_timeout" not in self.url.query else {},
            )
        except ModuleNotFoundError as error:
            if self.url.get_backend_name() == "postgresql":
                raise MissingExtraError(
                    str(error.name), "postgres", "A ledger on a PostgreSQL server"
                ) from None
            raise LedgerError(f"A ledger at {self.name} needs the package {error.name!r}.") from None
        except NoSuchModuleError:
            raise LedgerError(
                f"SQLAlchemy knows no database {self.url.drivername!r}. Use postgresql://user@host/database."
            ) from None

    def configure(self, connection: Connection) -> None:
        """Wait for others only so long, and count a commit only once it is on disk."""
        if connection.dialect.name == "postgresql":
            for statement in _POSTGRES_SETTINGS:
                connection.exec_driver_sql(statement)

    def holds_ledger(self, connection: Connection) -> bool:
        return all(inspect(connection).has_table(table) for table in _TABLES)

    def install(self, connection: Connection) -> None:
        """Make the tables and, on PostgreSQL, triggers against accidents."""
        guarded = connection.dialect.name == "postgresql"
        if guarded:
            connection.exec_driver_sql(_POSTGRES_TURN)
            if self.holds_ledger(connection):
                return
        for statement in (*_TABLES.values(), *(_POSTGRES_GUARD if guarded else ())):
            connection.exec_driver_sql(statement)

    def check(self, connection: Connection) -> None: ...

    def finish(self) -> None: ...

    def without_password(self) -> str:
        """Return the URL; a password then comes from where the driver finds it, such as ~/.pgpass."""
        query = {name: value for name, value in self.url.query.items() if "pass" not in name}
        return _bare(self.url, query).render_as_string()


Place: TypeAlias = SqliteFile | Server


def locate(where: str | os.PathLike[str], create: bool) -> Place:
    """Tell a file from a URL; refuse a file that is not there, unless it is to be made."""
    if isinstance(where, str) and "://" in where:
        try:
            url = make_url(where.replace("postgres://", "postgresql://", 1))
        except (ArgumentError, ValueError):  # its words would repeat the password
            raise LedgerError(
                "This is not the URL of a database. It looks like postgresql://user@host/database."
            ) from None
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        if url.get_backend_name() != "sqlite":
            return Server(url)
        where = url.database or ":memory:"
    path = Path(where).resolve()  # now: the folder of the process may change
    if path.is_dir():
        raise LedgerError(f"A ledger is a file, and {str(where)!r} is none. Name one, such as tasks.ledger.")
    if str(where).startswith((":memory:", "file:")):
        raise LedgerError("An SQLite ledger is a plain file. Name it, or use Ledger(epsilon, delta).")
    if not path.is_file() and (not create or path.exists()):
        raise LedgerError(f"There is no ledger file {path}. Check the path, or `cloister ledger create` one.")
    return SqliteFile(path, "rwc" if create else "rw")


@contextmanager
def session(place: Place, writing: bool) -> Iterator[Connection]:
    """Yield a connection in a transaction that is committed at the end, or not at all."""
    with database_errors(place.name), place.engine.connect() as plain:
        connection = plain.execution_options(writing=writing)
        with connection.begin():
            place.configure(connection)
            yield connection


@contextmanager
def database_errors(name: str) -> Iterator[None]:
    """Raise LedgerError, one sentence, for whatever a database refuses."""
    try:
        yield
    except IntegrityError:
        raise LedgerError(
            f"Another process wrote to {name} at the same moment. Nothing was recorded; try again."
        ) from None
    except DBAPIError as error:
        _refuse(name, error.orig)
    except sqlite3.Error as error:
        _refuse(name, error)
    except (MemoryError, UnicodeDecodeError):  # lengths or words that no ledger has
        _damaged(name)
    except SQLAlchemyError as error:
        raise LedgerError(f"{name} cannot be used as a ledger ({type(error).__name__}).") from None


def _begin(connection: Connection) -> None:
    """Begin on SQLite: a writer locks the file before it reads, so that two never decide at once."""
    writing = connection.get_execution_options().get("writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _refuse(name: str, error: BaseException | None) -> NoReturn:
    """Say in one sentence why a database refused."""
    code = str(getattr(error, "sqlite_errorname", None) or getattr(error, "sqlstate", None))
    first = next(iter(str(error).strip().splitlines()), "").rstrip(".")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or code in ("55P03", "57014"):
        raise LedgerError(
            f"{name} has been locked by another process for more than {PATIENCE} seconds. Nothing was "
            "recorded; see what holds it, and try again."
        ) from None
    if code.startswith("SQLITE_READONLY"):
        raise LedgerError(f"{name} cannot be written: {first}. Check who may write it.") from None
    if code.startswith("SQLITE_NOTADB"):
        raise LedgerError(f"{name} is not a ledger: it is no SQLite file. Check the path.") from None
    if code.startswith("SQLITE_CANTOPEN"):
        raise LedgerError(
            f"{name} cannot be opened. Check that its folder is there, and that both may be written."
        ) from None
    if code.startswith("SQLITE_FULL"):
        raise LedgerError(f"There is no space left for {name}. Nothing was recorded.") from None
    if code.startswith("SQLITE_"):
        _damaged(name)
    raise LedgerError(f"{name} cannot be used: {first}. Nothing was recorded.") from None


def _damaged(name: str) -> NoReturn:
    raise LedgerError(f"{name} is damaged. Restore the ledger from a copy; do not charge this one.") from None


def _bare(url: URL, query: Any) -> URL:
    return URL.create(url.drivername, url.username, None, url.host, url.port, url.database, query)
