"""Accounts in databases: an SQLite file, or a server behind an SQLAlchemy URL.

An account is read and checked whole, and written by appending in one transaction; one that returns is on
disk. What a database refuses is said in one sentence, without a password. Imported only when a durable ledger
is opened: it brings SQLAlchemy.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    column,
    create_engine,
    event,
    insert,
    inspect,
    make_url,
    select,
    table,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from cloister.core.errors import LedgerError, MissingExtraError
from cloister.core.lifts import Relation
from cloister.ledger.charges import Account, Charge, check_chain, check_name
from cloister.ledger.refusals import check_found, database_errors

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
        check_found(self.name, str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()))

    def finish(self) -> None:
        """Switch to write-ahead logging, where readers do not hold up writers.

        If others are busy with the file just now it stays as it is, which is as safe.
        """
        with suppress(sqlite3.OperationalError), closing(self._connect()) as connection:
            connection.execute("PRAGMA journal_mode=WAL").close()

    def without_password(self) -> str:
        return str(self.path.absolute())


@dataclass(frozen=True)
class DatabaseServer:
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


Place: TypeAlias = SqliteFile | DatabaseServer


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
            return DatabaseServer(url)
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


def _begin(connection: Connection) -> None:
    """Begin on SQLite: a writer locks the file before it reads, so that two never decide at once."""
    writing = connection.get_execution_options().get("writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _bare(url: URL, query: Any) -> URL:
    return URL.create(url.drivername, url.username, None, url.host, url.port, url.database, query)


T = TypeVar("T")
_ACCOUNT = {
    "population": str,
    "epsilon": float,
    "delta": float,
    "relation": str,
    "n_tasks": int,
    "hash": str,
}
_CHARGE = {
    "plan": str,
    "mu": float,
    "run": str,
    "number": int,
    "time": str,
    "events": str,
    "hash": str,
}
_accounts = table("cloister_accounts", *map(column, _ACCOUNT))
_charges = table("cloister_charges", column("population"), *map(column, _CHARGE))


@dataclass(frozen=True)
class DatabaseStore:
    """One account in a database."""

    place: Place
    account: Account
    seen: list[Charge] = field(default_factory=list, repr=False, compare=False)

    @property
    def where(self) -> str:
        """The path, or the URL without password."""
        return self.place.name

    def charges(self) -> tuple[Charge, ...]:
        known = self.seen[-1:]  # before the reading begins: another thread may record one meanwhile
        with session(self.place, writing=False) as connection:
            _require_ledger(self.place, connection)
            return self._read(connection, known)

    def record(self, decide: Callable[[tuple[Charge, ...]], Charge]) -> Charge:
        """Decide and append in one transaction; what is returned is committed.

        The account is locked before its charges are read. Should a database not honour that, two
        writers would give their charges the same number, and its primary key would refuse one of them.
        """
        known = self.seen[-1:]
        with session(self.place, writing=True) as connection:
            _require_ledger(self.place, connection)
            mine = _accounts.c.population == self.account.population
            connection.execute(select(_accounts.c.population).where(mine).with_for_update()).one_or_none()
            past = self._read(connection, known)
            charge = decide(past)
            if charge.number == len(past):
                row = {"population": self.account.population, **asdict(charge)}
                connection.execute(insert(_charges).values(row))
        self.seen[:] = [charge]
        return charge

    def reopening(self) -> tuple[str, str]:
        """Return the place, without a password, and the population."""
        return self.place.without_password(), self.account.population

    def _read(self, connection: Connection, known: Sequence[Charge] = ()) -> tuple[Charge, ...]:
        """Read all charges; refuse a history without one that was known: it would be spent a second time."""
        if _find(self.place, connection, self.account.population) != self.account:
            raise LedgerError(
                f"The account of {self.account.population!r} in {self.where} is not the one that was opened. "
                "Open it again."
            )
        columns = [_charges.c[name] for name in _CHARGE]
        mine = _charges.c.population == self.account.population
        query = select(*columns).where(mine).order_by(_charges.c.number)
        charges = _decode(self.place, _charge, lambda: connection.execute(query).all())
        check_chain(self.account, charges, self.where)
        for charge in known:
            if charge not in charges[charge.number : charge.number + 1]:
                raise LedgerError(
                    f"{self.where} has lost charge {charge.number} of {self.account.population!r}, which was "
                    "there before. Restore the ledger from a later copy; do not charge this one."
                )
        self.seen[:] = charges[-1:]
        return charges


def create_account(where: str | os.PathLike[str], account: Account) -> DatabaseStore:
    """Write a new account; make the tables if they are not there."""
    place = locate(where, create=True)
    with session(place, writing=True) as connection:
        if not place.holds_ledger(connection):
            place.install(connection)
        if account.population in _populations(place, connection):
            raise LedgerError(
                f"{place.name} already has an account of {account.population!r}, and its budget stays as it "
                "is. Choose another name."
            )
        row = {**asdict(account), "relation": account.neighbours, "hash": account.head}
        del row["unit"]
        connection.execute(insert(_accounts).values(row))
    place.finish()
    return DatabaseStore(locate(where, create=False), account)


def open_account(where: str | os.PathLike[str], population: str | None) -> DatabaseStore:
    """Read an account and check all of it."""
    place = locate(where, create=False)
    with session(place, writing=False) as connection:
        _require_ledger(place, connection)
        place.check(connection)
        names = _populations(place, connection)
        wanted = names[0] if population is None and len(names) == 1 else population
        if wanted not in names:
            there = ", ".join(map(repr, names)) or "none"
            asked = "Say which population" if wanted is None else f"There is no account of {wanted!r}"
            raise LedgerError(f"{asked}. {place.name} has accounts of: {there}.")
        store = DatabaseStore(place, _find(place, connection, wanted))
        store._read(connection)
    return store


def _require_ledger(place: Place, connection: Connection) -> None:
    if not place.holds_ledger(connection):
        raise LedgerError(f"{place.name} holds no ledger. Make one with `cloister ledger create`.")


def _populations(place: Place, connection: Connection) -> list[str]:
    query = select(_accounts.c.population).order_by(_accounts.c.population)
    names = _decode(place, lambda row: check_name("A name", row[0]), lambda: connection.execute(query).all())
    return list(names)


def _find(place: Place, connection: Connection, population: str) -> Account:
    columns = [_accounts.c[name] for name in _ACCOUNT]
    query = select(*columns).where(_accounts.c.population == population)
    found = _decode(place, _account, lambda: connection.execute(query).all())
    if len(found) != 1:
        raise LedgerError(f"{place.name} has no account of {population!r} any more. Restore it from a copy.")
    return found[0]


def _decode(
    place: Place, read: Callable[[Sequence[Any]], T], fetch: Callable[[], Sequence[Sequence[Any]]]
) -> tuple[T, ...]:
    """Read rows; what a ledger cannot have written is damage."""
    try:
        return tuple(map(read, fetch()))
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        if isinstance(error, LedgerError):
            raise
        raise LedgerError(
            f"{place.name} holds what no ledger writes. Restore it from a copy; do not charge this one."
        ) from None


def _account(row: Sequence[Any]) -> Account:
    values = _typed(row, _ACCOUNT)
    stored = values.pop("hash")
    neighbours = values.pop("relation")
    relation, _, unit = neighbours.partition("/")
    account = Account(**values, relation=Relation(relation), unit=unit or "task")
    if account.head != stored or account.neighbours != neighbours:
        raise ValueError("the budget was changed")
    return account


def _charge(row: Sequence[Any]) -> Charge:
    charge = Charge(**_typed(row, _CHARGE))
    for name in (charge.plan, charge.run, charge.time, charge.hash):
        check_name("A name", name)
    if not 0 <= charge.mu < float("inf") or not isinstance(json.loads(charge.events), dict):
        raise ValueError("not a charge")
    _ = charge.doubts
    return charge


def _typed(row: Sequence[Any], kinds: dict[str, type]) -> dict[str, Any]:
    values = dict(zip(kinds, row, strict=True))
    for name, kind in kinds.items():
        if type(values[name]) is not kind and not (name == "n_tasks" and values[name] is None):
            raise TypeError(name)
    return values
