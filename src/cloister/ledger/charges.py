"""What a ledger holds: an account with its budget, and charges chained by hashes; what room is left."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, get_args

from cloister.core.arrays import is_real
from cloister.core.errors import BudgetError, InputError, LedgerError, PlanError
from cloister.core.lifts import Relation
from cloister.core.spelling import counted
from cloister.privacy import tradeoff
from cloister.privacy.accounting import check_delta
from cloister.privacy.caveats import Caveat, Grade, caveats_in_old_words
from cloister.privacy.events import Cost, Event, GaussianEvent, PureEvent, UnitName
from cloister.privacy.sampling import Epochs, OnePass
from cloister.privacy.statement import rounded_down, rounded_up

_FORMAT = "cloister ledger 1"
_LONGEST = 200  # characters of a name; what a database column holds


@dataclass(frozen=True)
class Account:
    """The budget of one population of tasks; it never changes.

    Parameters
    ----------
    population : str
        Name of the population.
    epsilon, delta : float
        What every task may spend over all runs.
    relation : Relation
        Who counts as a neighbour.
    n_tasks : int, optional
        Public number of tasks, or of whatever the unit is.
    unit : {"task", "record", "person"}
        Whose budget it is: that of each task, by default, or of each record or person.

    Examples
    --------
    >>> Account("schools", epsilon=1.0, delta=1e-5).head[:12]
    '06cf5968bf8a'
    """

    population: str
    epsilon: float
    delta: float
    relation: Relation = Relation.REPLACE
    n_tasks: int | None = None
    unit: UnitName = "task"

    def __post_init__(self) -> None:
        check_name("The name of a population", self.population)
        numbers = is_real(self.epsilon) and is_real(self.delta)
        if not (numbers and 0 < self.epsilon < math.inf and 0 < self.delta < 1):
            raise BudgetError(
                f"A ledger needs a finite epsilon > 0 and delta in (0, 1). "
                f"Got {self.epsilon} and {self.delta}."
            )
        if self.relation not in list(Relation):
            raise InputError(f"relation must be 'replace' or 'zero_out'. Got {self.relation!r}.")
        if self.unit not in get_args(UnitName):
            raise InputError(f"unit must be one of {', '.join(get_args(UnitName))}. Got {self.unit!r}.")
        if self.n_tasks is not None:
            if isinstance(self.n_tasks, bool) or int(self.n_tasks) != self.n_tasks or self.n_tasks < 1:
                raise InputError(f"n_tasks must be a whole number of at least 1. Got {self.n_tasks!r}.")
            check_delta(self.delta, self.n_tasks)
            object.__setattr__(self, "n_tasks", int(self.n_tasks))
        for name, kind in (("epsilon", float), ("delta", float), ("relation", Relation)):
            object.__setattr__(self, name, kind(getattr(self, name)))

    @property
    def head(self) -> str:
        """Hash of the account, where the chain of its charges starts."""
        content = asdict(self)
        if self.unit == "task":  # accounts of before there was a choice
            del content["unit"]
        return _sha256(_FORMAT, content)

    @property
    def neighbours(self) -> str:
        """Relation and unit in a word, as databases keep them: the relation alone where it is the task."""
        return self.relation.value if self.unit == "task" else f"{self.relation.value}/{self.unit}"

    @property
    def mu(self) -> float:
        """The budget as a Gaussian-DP parameter."""
        return tradeoff.mu(self.epsilon, self.delta)


@dataclass(frozen=True)
class Room:
    """What one more run would leave of an account's budget; every epsilon is at the account's delta.

    Attributes
    ----------
    population : str
        Whose account.
    spent, after : float
        Epsilon of all runs, before and after this one.
    budget, delta : float
        The budget.
    remaining, left : float
        Epsilon that one more run alone could have, before and after this one.
    runs : int, optional
        How many runs like this one fit into what is left now; None if it costs nothing.
    """

    population: str
    spent: float
    after: float
    budget: float
    delta: float
    remaining: float
    left: float
    runs: int | None

    def __str__(self) -> str:
        spent = f"epsilon {rounded_up(self.spent, 3)} of {self.budget:g} is spent at delta {self.delta:g}"
        if self.runs == 0:
            fits = f"a run with epsilon {rounded_down(self.remaining)} at that delta would"
            return f"The account {self.population!r}: {spent}. This run does not fit; {fits}."
        enough = f" What is left is enough for {counted(self.runs, 'such run')}." if self.runs else ""
        after, left = rounded_up(self.after, 3), rounded_down(self.left)
        return (
            f"The account {self.population!r}: {spent}. With this run it would be {after}.{enough} After "
            f"this one, a run with epsilon {left} would still fit. Planning is not charged."
        )


@dataclass(frozen=True)
class Charge:
    """One run's charge: which plan, and its Gaussian-DP parameter at worst.

    Attributes
    ----------
    plan : str
        Fingerprint of the plan.
    mu : float
        The run is mu-GDP for every task, however it was sampled.
    run : str
        Key of the run: charging it again spends nothing.
    number : int
        Place in the account, from 0.
    time : str
        When it was recorded, in UTC.
    events : str
        What was charged for, as JSON: equal rounds together, relation, sampling, number of tasks, doubts.
    hash : str
        SHA-256 of the hash before and of everything above.
    """

    plan: str
    mu: float
    run: str = field(default="", repr=False)
    number: int = field(default=0, repr=False)
    time: str = field(default="", repr=False)
    events: str = field(default="{}", repr=False)
    hash: str = field(default="", repr=False)

    @classmethod
    def after(
        cls,
        head: str,
        number: int,
        plan: str,
        run: str,
        cost: Cost,
        doubts: Iterable[Caveat],
        adversary: str = "",
    ) -> Charge:
        """Write a new charge, dated now, behind the one whose hash is given."""
        check_name("A plan's fingerprint", plan)
        check_name("A run's key", run)
        time = datetime.now(UTC).isoformat(timespec="microseconds")
        draft = cls(plan, exposure(cost), run, number, time, describe(cost, doubts, adversary))
        return cls(**{**asdict(draft), "hash": draft.chained(head)})

    @property
    def details(self) -> dict[str, Any]:
        """What was charged for: events with their counts, relation, sampling, number of tasks, doubts."""
        document: dict[str, Any] = json.loads(self.events)
        return document

    @property
    def doubts(self) -> tuple[Caveat, ...]:
        """Why this run may not keep what its price promises; none if it does.

        Charges of cloister 0.1 have a text about their noise instead, and are read for ever.
        """
        details = self.details
        if "doubts" in details:
            return tuple(map(Caveat.from_dict, details["doubts"]))
        return caveats_in_old_words(str(details.get("noise", "")))

    @property
    def adversary(self) -> str:
        """Against whom the run was priced; empty where a curator was trusted."""
        return str(self.details.get("adversary", ""))

    def unrecorded(self, doubts: Iterable[Caveat]) -> tuple[Caveat, ...]:
        """Return the doubts of a grade that was not recorded; 0.1 recorded words, and is not asked."""
        recorded = {doubt.grade for doubt in self.doubts} if "doubts" in self.details else set(Grade)
        return tuple(doubt for doubt in doubts if doubt.grade not in recorded)

    def chained(self, head: str) -> str:
        """Return the hash that this charge has to have behind another."""
        content = asdict(self)
        del content["hash"]
        return _sha256(head, content)

    def same(self, plan: str, cost: Cost) -> bool:
        """Whether this is the charge of the same plan at the same price, up to another machine's rounding."""
        return self.plan == plan and math.isclose(self.mu, exposure(cost), rel_tol=1e-9)


def exposure(cost: Cost) -> float:
    r"""Gaussian-DP parameter of a whole run, for the task that is most exposed.

    Rounds compose to :math:`\sqrt{\sum \mu_t^2}`. Coins are never counted on: a task is charged as if it took
    part in every round, hidden or not. In one pass it takes part in one round, whoever sees which, and the
    other rounds do not depend on it at all: its exposure is at most the largest :math:`\mu_t`. In several
    passes it is that of the costliest place in a pass.

    Examples
    --------
    >>> cost = Cost((GaussianEvent(0.3), GaussianEvent(0.4)), OnePass(), n_tasks=100)
    >>> exposure(cost)
    0.4
    """
    mus = [_mu(event) for event in cost.events]
    if isinstance(cost.sampling, OnePass):
        return max(mus, default=0.0)
    if isinstance(cost.sampling, Epochs):
        gap = cost.sampling.slots(len(mus))
        return math.sqrt(max(math.fsum(mu * mu for mu in mus[slot::gap]) for slot in range(gap)))
    return math.sqrt(math.fsum(mu * mu for mu in mus))


def _mu(event: Event) -> float:
    """Return an event's Gaussian-DP parameter; the filter is proven for such events only."""
    if isinstance(event, GaussianEvent):
        return float(event.mu)
    if isinstance(event, PureEvent):
        return tradeoff.mu_of_pure(event.epsilon)
    raise PlanError(
        f"A ledger composes Gaussian and pure DP only. Got a {type(event).__name__}, which Gaussian "
        "DP does not bound. Use Gaussian() in this plan."
    )


def describe(cost: Cost, doubts: Iterable[Caveat] = (), adversary: str = "") -> str:
    """Write down what a run is charged for, its doubts, and against whom, as JSON; equal rounds together.

    Examples
    --------
    >>> from cloister.privacy.sampling import Everyone
    >>> describe(Cost((PureEvent(0.5),) * 2, Everyone(), n_tasks=9))  # doctest: +ELLIPSIS
    '{"doubts":[],"events":[{"count":2,"epsilon":0.5,"kind":"PureEvent"}],"n_tasks":9,"relation":"replace",...'
    """
    events = [{"kind": type(e).__name__, "count": n, **_numbers(e)} for e, n in Counter(cost.events).items()]
    against = {"adversary": adversary} if adversary else {}
    return _json(
        {
            **against,
            "doubts": [doubt.to_dict() for doubt in doubts],
            "events": events,
            "n_tasks": int(cost.n_tasks),
            "relation": str(cost.relation),
            "sampling": cost.sampling.describe(),
        }
    )


def _numbers(event: Event) -> dict[str, float]:
    return {name: float(value) for name, value in asdict(event).items() if value is not None}


def check_chain(account: Account, charges: Iterable[Charge], where: str) -> None:
    """Refuse charges that were edited, or of which one is missing before the last."""
    head = account.head
    for number, charge in enumerate(charges):
        if charge.number != number or charge.hash != charge.chained(head):
            raise LedgerError(
                f"Charge {number} of {account.population!r} in {where} was changed, or one before it was "
                "removed: the hashes do not follow. Restore the ledger from a copy; do not charge this one."
            )
        head = charge.hash


def check_name(what: str, name: str) -> str:
    """Return a name that can be stored and printed; refuse any other."""
    if not (isinstance(name, str) and 0 < len(name) <= _LONGEST and name.isprintable()):
        raise InputError(f"{what} must be 1 to {_LONGEST} printable characters. Got {str(name)[:20]!r}.")
    return name


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _sha256(head: str, content: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{head}\n{_json(content)}".encode()).hexdigest()
