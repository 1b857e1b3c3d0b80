"""A ledger: what a population of tasks has spent over all its runs, and whether the next one is allowed."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Any

from cloister.channel import Relation
from cloister.errors import BudgetError, PlanError
from cloister.privacy import gaussian_dp
from cloister.privacy.accounting import check_delta
from cloister.privacy.events import Cost, Event, GaussianEvent

__all__ = ["Charge", "Ledger"]


@dataclass(frozen=True)
class Charge:
    """One run's charge: which plan, and its Gaussian-DP parameter at worst."""

    plan: str
    mu: float


@dataclass(eq=False)
class Ledger:
    r"""An account in memory, for the runs of one process over the same tasks.

    Runs are chosen after seeing what earlier ones posted, so their costs compose by a filter that is proven
    for adaptive choice: a run is allowed as long as :math:`\sum \mu_i^2` stays within the budget's
    :math:`\mu^2`. Sampling is charged as if every task took part in every round. Nothing is refunded.

    Parameters
    ----------
    epsilon, delta : float
        The budget of every task over all runs.
    relation : {"replace", "zero_out"}
        Who counts as a neighbour.

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
    cloister.errors.BudgetError: This run would bring these tasks to epsilon = 1.06 in all; the budget is 1...
    """

    epsilon: float
    delta: float
    relation: Relation = Relation.REPLACE
    history: list[Charge] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and 0 < self.delta < 1):
            raise BudgetError(
                f"A ledger needs epsilon > 0 and delta in (0, 1). Got {self.epsilon} and {self.delta}."
            )
        self.relation = Relation(self.relation)

    @property
    def spent(self) -> float:
        """The epsilon of all runs so far, composed, at the ledger's delta."""
        return self._epsilon(charge.mu for charge in self.history)

    def charge(self, plan: str, cost: Cost) -> Charge:
        """Book a run before anything leaves a task; refuse it if the budget does not allow it."""
        mu = math.sqrt(math.fsum(_mu(event) ** 2 for event in cost.events))
        charge = Charge(plan, mu)
        check_delta(self.delta, cost.n_tasks)
        with self._lock:
            after = self._epsilon([*(past.mu for past in self.history), mu])
            if after > self.epsilon * (1 + 1e-9):
                raise BudgetError(
                    f"This run would bring these tasks to epsilon = {after:.3g} in all; the budget is "
                    f"{self.epsilon:g} at delta = {self.delta:g}, and {self.spent:.3g} is spent. "
                    "Nothing has left any task."
                )
            self.history.append(charge)
        return charge

    def _epsilon(self, mus: Any) -> float:
        total = math.sqrt(math.fsum(mu**2 for mu in mus))
        return gaussian_dp.epsilon(total, self.delta) if total > 0 else 0.0

    def __deepcopy__(self, memo: Any) -> Ledger:
        return self  # an account has no copies: a cloned estimator spends from the same one


def _mu(event: Event) -> float:
    """Return an event's Gaussian-DP parameter; the filter is proven for such events only."""
    if not isinstance(event, GaussianEvent):
        raise PlanError(
            f"A ledger adds up Gaussian noise only. Got a {type(event).__name__}. "
            "Use Gaussian() in this plan."
        )
    return event.mu
