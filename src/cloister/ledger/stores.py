"""Accounts that are kept in a database: read and checked whole, written by appending in one transaction.

Imported only when a durable ledger is opened: it brings SQLAlchemy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection, column, insert, select, table

from cloister.channel import Relation
from cloister.errors import LedgerError
from cloister.ledger.charges import Account, Charge, check_chain, check_name
from cloister.ledger.databases import Place, locate, session

__all__ = ["DatabaseStore", "create_account", "open_account"]

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
        row = {**asdict(account), "relation": account.relation.value, "hash": account.head}
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
    account = Account(**{**values, "relation": Relation(values["relation"])})
    if account.head != stored:
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
