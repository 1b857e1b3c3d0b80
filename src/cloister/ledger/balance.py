"""The rules of a ledger, as a pure function of its charges: what is spent, what remains, what is allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cloister.errors import BudgetError, InputError, LedgerError, PlanError
from cloister.ledger.charges import Account, Charge, exposure
from cloister.privacy import gaussian_dp
from cloister.privacy.accounting import check_delta
from cloister.privacy.doubts import Doubt
from cloister.privacy.events import Cost

__all__ = ["Balance"]

#: How far the sum of squares may pass the budget's, relatively, to forgive rounding.
_TOLERANCE = 1e-9


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

    def spent_by(self, group: int) -> float:
        """Epsilon of all runs so far for the owner of `group` tasks."""
        return self._epsilon(self.squares, self._checked(group))

    def budget_of(self, group: int) -> float:
        """Epsilon of the whole budget for the owner of `group` tasks."""
        return self._epsilon(self.account.mu**2, self._checked(group))

    def next(self, plan: str, cost: Cost, run: str, doubts: tuple[Doubt, ...] = ()) -> Charge:
        """Return the charge that books a run, or the one that did already; refuse what is not allowed."""
        self._check(cost)
        for charge in self.charges:
            if charge.run == run:
                if not charge.same(plan, cost):
                    raise LedgerError(
                        f"Run {run!r} was booked for another plan or price, as charge {charge.number}. "
                        "Give each run a key of its own."
                    )
                for doubt in charge.unbooked(doubts):
                    raise LedgerError(
                        f"Run {run!r} was booked as charge {charge.number}, without a doubt that it has now: "
                        f"{doubt}. Go on as it was begun, or give it a key of its own."
                    )
                return charge
        after = self.squares + exposure(cost) ** 2
        if not after <= self.account.mu**2 * (1 + _TOLERANCE):
            raise BudgetError(
                f"This run would bring these tasks to epsilon = {self._epsilon(after):.3g} in all; the "
                f"budget is {self.account.epsilon:g} at delta = {self.account.delta:g}, and "
                f"{self.spent_by(1):.3g} is spent. Nothing has left any task."
            )
        return Charge.after(self.head, len(self.charges), plan, run, cost, doubts)

    def _check(self, cost: Cost) -> None:
        account = self.account
        if cost.relation != account.relation:
            raise PlanError(
                f"This account is kept under {account.relation.value!r}. Got a price under "
                f"{cost.relation!r}. Use plan.cost_under(ledger.relation)."
            )
        if account.n_tasks is not None and cost.n_tasks != account.n_tasks:
            raise PlanError(
                f"This account is of {account.n_tasks} tasks. Got a plan for {cost.n_tasks}. "
                "Open the account of these tasks."
            )
        check_delta(account.delta, cost.n_tasks)

    def _checked(self, group: int) -> int:
        most = self.account.n_tasks
        if isinstance(group, bool) or int(group) != group or not 1 <= group <= (most or math.inf):
            limit = "" if most is None else f" and at most {most}"
            raise InputError(f"group must be a number of tasks, at least 1{limit}. Got {group!r}.")
        return int(group)

    def _epsilon(self, squares: float, group: int = 1) -> float:
        return gaussian_dp.epsilon(group * math.sqrt(squares), self.account.delta)
