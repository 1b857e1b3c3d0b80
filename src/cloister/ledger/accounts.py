"""A ledger: what a population of tasks has spent over all its runs, and whether the next one is allowed."""

from __future__ import annotations

import math
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cloister.core.errors import BudgetError, InputError, LedgerError, PlanError
from cloister.core.lifts import Relation
from cloister.ledger.charges import Account, Charge, Room, exposure
from cloister.privacy import tradeoff
from cloister.privacy.accounting import check_delta
from cloister.privacy.caveats import Caveat, merged
from cloister.privacy.events import Cost, RelationName, UnitName
from cloister.privacy.guarantee import AllRuns
from cloister.privacy.statement import rounded_down, rounded_up

#: How far the sum of squares may pass the budget's, relatively, to forgive rounding.
_TOLERANCE = 1e-12
#: What a price for one unit says of another.
_WHAT_FOLLOWS = {
    ("task", "record"): ", which says of a task of k records that it is a group of k",
    ("task", "person"): ", which says of a task of k persons that it is a group of k",
}
_LEAST = 0.01  # an epsilon below which nobody runs anything


@dataclass(frozen=True)
class Balance:
    """An account and all its charges, at one moment.

    Examples
    --------
    >>> from cloister.privacy.events import GaussianEvent
    >>> from cloister.privacy.sampling import Everyone
    >>> balance = Balance(Account("schools", epsilon=1.0, delta=1e-5), ())
    >>> charge = balance.next("plan", Cost((GaussianEvent(0.2),), Everyone(), 100), run="1")
    >>> after = Balance(balance.account, (charge,))
    >>> round(after.spent_by(1), 3), round(after.spent_by(2), 3), round(after.remaining, 3)
    (0.726, 1.555, 0.641)
    """

    account: Account
    charges: tuple[Charge, ...]

    @property
    def head(self) -> str:
        """Hash of the last charge and so of everything before."""
        return self.charges[-1].hash if self.charges else self.account.head

    @property
    def squares(self) -> float:
        """Sum of the squared Gaussian-DP parameters of all charges."""
        return math.fsum(charge.mu**2 for charge in self.charges)

    @property
    def remaining(self) -> float:
        """The epsilon that one more run alone could have."""
        return self._epsilon(max(0.0, self.account.mu**2 - self.squares))

    @property
    def all_runs(self) -> AllRuns:
        """What all charged runs promise together: those so far, and all that the budget allows."""
        account, spent = self.account, math.sqrt(self.squares)
        doubts = merged(*(charge.doubts for charge in self.charges))
        relation: RelationName = account.relation.value
        promised = account.population, len(self.charges), relation, spent, account.mu, doubts
        whom = _whom(self.charges[0].adversary) if self.charges else None  # `next` refuses another
        return AllRuns(*promised, whom, account.unit)

    @property
    def _what_fits(self) -> str:
        """Say, to whoever was refused, how strict a run would have to be."""
        if self.remaining < _LEAST:
            return "No run fits into what is left."
        return f"A run with epsilon = {rounded_down(self.remaining)} at that delta would fit."

    def spent_by(self, group: int) -> float:
        """Epsilon of all runs so far for the owner of `group` tasks."""
        return self._epsilon(self.squares, self._checked(group))

    def budget_of(self, group: int) -> float:
        """Epsilon of the whole budget for the owner of `group` tasks."""
        tasks = self._checked(group)
        return self.account.epsilon if tasks == 1 else self._epsilon(self.account.mu**2, tasks)

    def next(
        self, plan: str, cost: Cost, run: str, doubts: tuple[Caveat, ...] = (), adversary: str = ""
    ) -> Charge:
        """Return the charge that records a run, or the one that did already; refuse what is not allowed."""
        self._check(cost, adversary)
        for charge in self.charges:
            if charge.run == run:
                if not charge.same(plan, cost):
                    raise LedgerError(
                        f"Run {run!r} was recorded for another plan or price, as charge {charge.number}. "
                        "Give each run a key of its own."
                    )
                for doubt in charge.unrecorded(doubts):
                    raise LedgerError(
                        f"Run {run!r} is charge {charge.number}, recorded without a doubt that it has now: "
                        f"{doubt}. Go on as it was begun, or give it a key of its own."
                    )
                return charge
        account, after = self.account, self.squares + exposure(cost) ** 2
        if not after <= account.mu**2 * (1 + _TOLERANCE):
            raise BudgetError(
                f"This run would bring these {account.unit}s to epsilon = "
                f"{rounded_up(self._epsilon(after), 3)} in all; the budget is {account.epsilon:g} at delta = "
                f"{account.delta:g}, and {rounded_up(self.spent_by(1), 3)} is spent. {self._what_fits} "
                "Nothing has left any task."
            )
        return Charge.after(self.head, len(self.charges), plan, run, cost, doubts, adversary)

    def room_for(self, cost: Cost, adversary: str = "") -> Room:
        """Return what one more run would leave, if it was charged; nothing is recorded."""
        self._check(cost, adversary)
        after = self.squares + exposure(cost) ** 2
        left = self.account.mu**2 - self.squares
        runs = math.floor(left * (1 + _TOLERANCE) / exposure(cost) ** 2) if exposure(cost) else None
        spent = (self.spent_by(1), self._epsilon(after))
        return Room(
            self.account.population,
            *spent,
            self.account.epsilon,
            self.account.delta,
            self.remaining,
            self._epsilon(max(0.0, self.account.mu**2 - after)),
            runs,
        )

    def _check(self, cost: Cost, adversary: str) -> None:
        account = self.account
        if cost.unit != account.unit and not self._covers(cost):
            raise PlanError(
                f"This account is kept for each {account.unit}. Got a price for each {cost.unit}"
                f"{_WHAT_FOLLOWS.get((account.unit, cost.unit), '')}. Open an account with "
                f"unit={cost.unit!r}, or give the plan the account's unit."
            )
        if cost.relation != account.relation:
            raise PlanError(
                f"This account is kept under {account.relation.value!r}. Got a price under "
                f"{cost.relation!r}. Use plan.cost_under(ledger.relation)."
            )
        if account.n_tasks not in (None, cost.n_tasks) and cost.unit == account.unit:
            raise PlanError(
                f"This account is of {account.n_tasks} {account.unit}s. Got a plan for {cost.n_tasks}. "
                "Open the account of these."
            )
        check_delta(account.delta, cost.n_tasks)
        for charge in self.charges:
            if charge.adversary != adversary:
                raise PlanError(
                    f"This account's runs are priced against {_whom(charge.adversary)}, and this one against "
                    f"{_whom(adversary)}: together they would promise neither. Open an account of its own."
                )

    def _covers(self, cost: Cost) -> bool:
        """Say whether a price for a task is one for what is in it: who replaces a record replaces its task.

        Under zero-out it is not: a task is not silent if a record is.
        """
        return cost.unit == "task" and cost.relation == self.account.relation == "replace"

    def _checked(self, group: int) -> int:
        most = self.account.n_tasks
        if isinstance(group, bool) or int(group) != group or not 1 <= group <= (most or math.inf):
            limit = "" if most is None else f" and at most {most}"
            raise InputError(f"group must be a number of tasks, at least 1{limit}. Got {group!r}.")
        return int(group)

    def _epsilon(self, squares: float, group: int = 1) -> float:
        return tradeoff.epsilon(group * math.sqrt(squares), self.account.delta)


def _whom(adversary: str) -> str:
    return adversary or "all other tasks, with a trusted curator"


Decision = Callable[[tuple[Charge, ...]], Charge]
"""Given all charges so far, return the next one, or an old one to spend nothing, or raise."""


class Store(Protocol):
    """Where one account is kept."""

    @property
    def account(self) -> Account:
        """The account."""

    @property
    def where(self) -> str:
        """Name of the place, without any password."""

    def charges(self) -> tuple[Charge, ...]:
        """Return all charges in order."""

    def record(self, decide: Decision) -> Charge:
        """Decide and write in one transaction that no other charge of this account can come between."""

    def reopening(self) -> tuple[str, str]:
        """Return the place, without a password, and the population by which another process opens it."""


@dataclass(frozen=True, eq=False, repr=False)
class Ledger:
    r"""An account of what a population of tasks has spent over all runs.

    ``Ledger(epsilon, delta)`` lives in memory, for the runs of one process. :meth:`create` and :meth:`open`
    keep it in an SQLite file or on a database server, for all runs there will ever be.

    Runs are chosen after seeing what earlier ones posted, so their costs compose by a filter that is proven
    for adaptive choice: a run is allowed as long as :math:`\sum \mu_i^2` stays within the budget's
    :math:`\mu^2`. Sampling is charged as if every task took part in every round; one pass is charged its
    largest round. A purely epsilon-DP round counts as the smallest :math:`\mu` that covers it
    (:func:`cloister.privacy.tradeoff.mu_of_pure`). Nothing is refunded.

    Parameters
    ----------
    epsilon, delta : float
        The budget of every task over all runs.
    relation : {"replace", "zero_out"}
        Who counts as a neighbour.
    n_tasks : int, optional
        Public number of tasks; plans for any other number are refused.
    unit : {"task", "record", "person"}
        Whose budget it is. Plans with another unit are refused, but for plans by task under `replace`.
    store : Store, optional
        Where the account is kept; by default in memory.

    Privacy
    -------
    What is promised to every task, whatever plans are chosen in whatever light, is the *budget*: all releases
    together are (epsilon, delta)-differentially private for it, as long as no charge has a doubt that is void
    (`Charge.doubts`). `spent` says how much of the budget is used.

    References
    ----------
    Smith and Thakurta, "Fully adaptive composition for Gaussian differential privacy", arXiv:2210.17520.

    Examples
    --------
    >>> from cloister.privacy.events import Cost, GaussianEvent
    >>> from cloister.privacy.sampling import Everyone
    >>> ledger = Ledger(epsilon=1.0, delta=1e-5)
    >>> cost = Cost((GaussianEvent(0.2),), Everyone(), 100)
    >>> ledger.charge("first", cost), round(ledger.spent, 3)
    (Charge(plan='first', mu=0.2), 0.726)
    >>> ledger.charge("again", cost)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    cloister.errors.BudgetError: This run would bring these tasks to epsilon = 1.07 in all; the budget is 1...
    >>> round(ledger.remaining, 3)  # not 1 - 0.726: costs do not just add up
    0.641
    """

    epsilon: float
    delta: float
    relation: Relation = Relation.REPLACE
    n_tasks: int | None = field(default=None, kw_only=True)
    unit: UnitName = field(default="task", kw_only=True)
    store: Store | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        population = "tasks" if self.store is None else self.store.account.population
        account = Account(population, self.epsilon, self.delta, self.relation, self.n_tasks, self.unit)
        if self.store is None:
            object.__setattr__(self, "store", _Memory(account))
        elif self.store.account != account:
            raise InputError("A budget cannot be changed. Use Ledger.open, or Ledger.create a new account.")
        object.__setattr__(self, "relation", account.relation)

    @classmethod
    def create(
        cls,
        where: str | os.PathLike[str],
        population: str,
        *,
        epsilon: float,
        delta: float,
        n_tasks: int | None = None,
        relation: Relation = Relation.REPLACE,
        unit: UnitName = "task",
    ) -> Ledger:
        """Open a new account in an SQLite file or on a server; its budget can never be changed.

        Parameters
        ----------
        where : path or str
            A file, made if it is not there, or an SQLAlchemy URL such as ``postgresql://user@host/database``.
            One place may hold the accounts of several populations.
        population : str
            A name that is not taken there.
        epsilon, delta : float
            The budget of every task over all runs.
        n_tasks : int, optional
            Public number of tasks; plans for any other number are refused.
        relation : {"replace", "zero_out"}
            Who counts as a neighbour.
        unit : {"task", "record", "person"}
            Whose budget it is. Plans with another unit are refused, but for plans by task under `replace`.
        """
        from cloister.ledger.stores import create_account

        account = Account(population, epsilon, delta, relation, n_tasks, unit)
        return cls._over(create_account(where, account))

    @classmethod
    def open(cls, where: str | os.PathLike[str], population: str | None = None) -> Ledger:
        """Open an account that is there; its every charge is checked against the chain of hashes.

        Parameters
        ----------
        where : path or str
            The file, or the SQLAlchemy URL.
        population : str, optional
            Whose account; needed if there are several.
        """
        from cloister.ledger.stores import open_account

        return cls._over(open_account(where, population))

    @classmethod
    def _over(cls, store: Store) -> Ledger:
        account = store.account
        budget = account.epsilon, account.delta, account.relation
        return cls(*budget, n_tasks=account.n_tasks, unit=account.unit, store=store)

    @property
    def population(self) -> str:
        """Whose account it is, by its name in the ledger."""
        return self._store.account.population

    @property
    def balance(self) -> Balance:
        """The account and all its charges as they are now; read once, they agree with each other."""
        return Balance(self._store.account, self._store.charges())

    @property
    def history(self) -> tuple[Charge, ...]:
        """All charges in the order they were recorded."""
        return self.balance.charges

    @property
    def head(self) -> str:
        """Hash of the last charge and so of everything before; publish it to show later that none is gone."""
        return self.balance.head

    @property
    def spent(self) -> float:
        """The epsilon of all runs so far, composed, at the ledger's delta."""
        return self.spent_by(1)

    @property
    def remaining(self) -> float:
        """The epsilon that one more run alone could have, at the ledger's delta.

        It is not the budget less what is spent: what adds up is the square of each run's mu.
        """
        return self.balance.remaining

    def spent_by(self, group: int) -> float:
        """Epsilon of all runs so far for somebody who owns `group` of the tasks, at the ledger's delta.

        If one task changing is mu-GDP, then `group` tasks changing at once are (group * mu)-GDP.
        """
        return self.balance.spent_by(group)

    def budget_of(self, group: int) -> float:
        """Epsilon that the whole budget means for an owner of `group` tasks, at the ledger's delta."""
        return self.balance.budget_of(group)

    def charge(
        self,
        plan: str,
        cost: Cost,
        run: str | None = None,
        *,
        doubts: Iterable[Caveat] = (),
        adversary: str = "",
    ) -> Charge:
        """Record a run before anything leaves a task; refuse it if the budget does not allow it.

        Parameters
        ----------
        plan : str
            Fingerprint of the plan.
        cost : Cost
            What one task is exposed to, under the ledger's relation.
        run : str, optional
            Key of this run, by default a new random one. Charging again under the same key returns the first
            charge and spends nothing, so that a run that was interrupted can go on with *the same* board. A
            release that is made afresh needs a charge, and a key, of its own.
        doubts : iterable of Caveat
            Doubts about the guarantee of what is charged: ``guarantee.doubts``. The charge says so for
            ever.
        adversary : str, optional
            Against whom it is priced, ``plan.trust.adversary``; empty where a curator is trusted. The runs of
            one account all have the same.

        Returns
        -------
        Charge
            It is committed: a crash from here on does not undo it.
        """
        key = secrets.token_hex(16) if run is None else run
        account, given = self._store.account, tuple(doubts)
        return self._store.record(lambda past: Balance(account, past).next(plan, cost, key, given, adversary))

    @property
    def _store(self) -> Store:
        assert self.store is not None
        return self.store

    def __repr__(self) -> str:
        return (
            f"Ledger({self.population!r} in {self._store.where}, epsilon={self.epsilon:g}, "
            f"delta={self.delta:g}, relation={self.relation.value!r})"
        )

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: Any) -> Ledger:
        return self  # an account has no copies: a cloned estimator spends from the same one

    def __reduce__(self) -> tuple[Any, ...]:
        return Ledger.open, self._store.reopening()  # another process opens the same account


class _Memory:
    """An account in memory."""

    where = "memory"

    def __init__(self, account: Account) -> None:
        self.account = account
        self._charges: tuple[Charge, ...] = ()
        self._lock = threading.Lock()
        self._process = os.getpid()

    def charges(self) -> tuple[Charge, ...]:
        self._refuse_copies()
        return self._charges

    def record(self, decide: Decision) -> Charge:
        self._refuse_copies()
        with self._lock:
            charge = decide(self._charges)
            if charge.number == len(self._charges):
                self._charges = (*self._charges, charge)
        return charge

    def reopening(self) -> tuple[str, str]:
        raise LedgerError(_NOT_SHARED)

    def _refuse_copies(self) -> None:
        if os.getpid() != self._process:  # after a fork: the process that opened it does not see this one
            raise BudgetError(_NOT_SHARED)


_NOT_SHARED = (
    "A ledger in memory cannot be shared with another process, which would spend the budget again. "
    "Use Ledger.create(file, population, ...)."
)
