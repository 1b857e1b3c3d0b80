"""What estimators share: the budget, the plan that it pays for, and what several fits add up to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from hashlib import sha256
from itertools import count
from numbers import Integral, Real
from typing import Any

from cloister.core.arrays import Array, is_real
from cloister.core.errors import InputError
from cloister.engines.curator import check_ledger
from cloister.ledger import Ledger
from cloister.plan.algorithm import Algorithm
from cloister.plan.plan import Plan
from cloister.privacy.guarantee import Guarantee
from cloister.privacy.mechanisms import Gaussian, Mechanism, NoNoise
from cloister.privacy.sampling import Everyone, Sampling
from cloister.privacy.statement import rounded_up
from cloister.privacy.trust import Trust
from cloister.privacy.unit import Unit


@dataclass(frozen=True)
class PrivacyBudget:
    """What a run may cost, who pays, where its noise comes from, and of what kind it is."""

    epsilon: float
    delta: float | str = "auto"
    relation: str = "replace"
    ledger: Ledger | None = None
    random_state: int | None = None
    sampling: Sampling | None = None
    mechanism: Mechanism | None = None
    trust: Trust | None = None
    unit: Unit | None = None

    @classmethod
    def of(cls, estimator: Any) -> PrivacyBudget | None:
        """Return the budget among an estimator's parameters, checked; None if it spends nothing."""
        given = estimator.get_params(deep=False)
        if "epsilon" not in given:
            return None
        budget = cls(**{part.name: given[part.name] for part in fields(cls) if part.name in given})
        budget._check()
        return budget

    def _check(self) -> None:
        """Refuse what is not a number where one is needed."""
        epsilon: object = self.epsilon
        delta: object = self.delta
        seed: object = self.random_state
        if not is_real(epsilon):
            raise InputError(f"epsilon must be a number. Got {epsilon!r}.")
        if not self.epsilon > 0:
            raise InputError(
                f"epsilon must be > 0. Got {self.epsilon}. Infinity means no noise; to share nothing, use "
                "SingleTaskRegressor or SingleTaskClassifier."
            )
        if delta != "auto" and not is_real(delta):
            raise InputError(f"delta must be a number or 'auto'. Got {delta!r}.")
        if seed is not None and not isinstance(seed, Integral):
            raise InputError(f"random_state must be an integer or None. Got {seed!r}.")
        check_ledger(self.ledger)
        unit: object = self.unit
        if not (unit is None or isinstance(unit, Unit)):
            raise InputError(f"unit must be a Unit, such as Unit.record(rows=10_000). Got {unit!r}.")

    @property
    def chosen_delta(self) -> float | None:
        """Delta, or None for the plan's default."""
        return None if isinstance(self.delta, str) else float(self.delta)

    def plan(self, algorithm: Algorithm, n_tasks: int, caveats: tuple[str, ...] = ()) -> Plan:
        """Return the plan of an algorithm with the noise that the budget needs."""
        silent = math.isinf(self.epsilon)
        plan = Plan(
            algorithm,
            NoNoise() if silent else Gaussian() if self.mechanism is None else self.mechanism,
            Everyone() if self.sampling is None else self.sampling,
            n_tasks=n_tasks,
            relation=self.relation,  # type: ignore[arg-type]
            delta=self.chosen_delta,
            caveats=caveats,
            trust=Trust.curator() if self.trust is None else self.trust,
            unit=Unit.task() if self.unit is None else self.unit,
        )
        return plan if silent else plan.calibrate(self.epsilon)


def check_count(name: str, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
        raise InputError(f"{name} must be a whole number, at least 1. Got {count!r}.")


def check_word(name: str, word: str, known: Iterable[str]) -> None:
    words = list(known)
    if word not in words:
        raise InputError(f"{name} must be one of {', '.join(map(repr, words))}. Got {word!r}.")


def number_or_auto(name: str, given: object, automatic: float) -> float:
    if isinstance(given, Real) and is_real(given):
        return float(given)
    if given != "auto":
        raise InputError(f"{name} must be a number or 'auto'. Got {given!r}.")
    return automatic


@cache
def _fits(roster: bytes) -> Iterator[int]:
    """Return a counter of what this process has fitted without a ledger, for one public list of tasks."""
    return count(1)


def what_adds_up(ledger: Ledger | None, guarantee: Guarantee, ids: Array) -> str:
    """Return what to say if the tasks of a private fit have been in one before."""
    if ledger is not None and len(ledger.history) > 1:
        unit = ledger.balance.account.unit
        return (
            f"These tasks have now been charged {len(ledger.history)} times: together epsilon = "
            f"{rounded_up(ledger.spent, 3)} of {ledger.epsilon:g} at delta = {ledger.delta:g}"
            f"{'' if unit == 'task' else f', for each {unit}'}."
        )
    if ledger is not None or not guarantee.holds or guarantee.epsilon == 0:
        return ""
    times = next(_fits(sha256(repr(ids.tolist()).encode()).digest()))
    return (times > 1) * (
        f"These tasks have now been fitted {times} times without a ledger. What they lose adds up, and no "
        "guarantee here says to how much: pass ledger=cloister.Ledger(epsilon, delta) to every fit."
    )
