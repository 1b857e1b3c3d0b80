"""What a plan would promise and bring, from public numbers alone: what `cloister plan` says, or shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any

from cloister.cli.methods import Method, kind_of
from cloister.cli.proposals import PrivacyTarget
from cloister.core.errors import InputError
from cloister.core.lifts import Relation
from cloister.plan.forecast import (
    DEPENDABLE,
    MOST_EPSILON,
    MOST_TASKS,
    NO_GAMBLE,
    Forecast,
    band_at,
    dependable_from,
    dependable_mu,
    signal_to_noise,
)
from cloister.plan.record_forecast import UnitAdvice, records_heard
from cloister.privacy import tradeoff
from cloister.privacy.accounting import default_delta
from cloister.privacy.tradeoff import GaussianCurve
from cloister.privacy.trust import Trust
from cloister.privacy.unit import Unit
from cloister.tables.codebook import Codebook
from cloister.tables.column_types import Categorical, Numeric

if TYPE_CHECKING:
    from cloister.plan.plan import Plan

#: What tasks may have in common, and the method that makes use of it.
COMMON: dict[Method, str] = {
    Method.shared_prior: "a prior that each weighs at home",
    Method.low_rank: "a few directions of all weights",
    Method.group_sparse: "a few columns that matter to all",
    Method.mean_regularized: "a mean that all are drawn towards",
    Method.decomposed: "directions, and weights of their own",
    Method.meta: "a public start for new, small tasks",
}
#: Budgets that are compared.
EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
MOST_COLUMNS = 2_000


def stand_in(columns: int, classes: int | None = None) -> Codebook:
    """Return a codebook for so many columns of numbers: for prices and forecasts, where there is none yet."""
    if not 1 <= columns <= MOST_COLUMNS:
        raise InputError(f"columns must be from 1 to {MOST_COLUMNS}. Got {columns}.")
    if classes is not None and not 2 <= classes <= 100:
        raise InputError(f"classes must be from 2 to 100. Got {classes}. Leave it out for a number.")
    features = tuple(Numeric(f"x{i}", -1.0, 1.0) for i in range(columns))
    target = Numeric("y", -1.0, 1.0)
    return Codebook(features, target if classes is None else Categorical("y", list(range(classes))))


@dataclass(frozen=True)
class Wish:
    """What is asked of a plan; all of it is public, and no row is looked at.

    Attributes
    ----------
    codebook : Codebook
        What is public about the columns.
    tasks : int
        How many.
    target : Target
        How strict: an epsilon, or how often the others may detect one task's data.
    method : Method
        How tasks learn together.
    rows : float, optional
        A public guess at how many rows a typical task has. It moves the forecast, and never the plan.
    relation, delta, trust, unit : Relation, float, Trust, Unit
        As in a plan.
    """

    codebook: Codebook
    tasks: int
    target: PrivacyTarget
    method: Method = Method.shared_prior
    rows: float | None = None
    relation: Relation = Relation.REPLACE
    delta: float | None = None
    trust: Trust = field(default_factory=Trust.curator)
    unit: Unit = field(default_factory=Unit.task)

    def __post_init__(self) -> None:
        if not 2 <= self.tasks <= MOST_TASKS:
            raise InputError(f"tasks must be from 2 to {MOST_TASKS:,}. Got {self.tasks:,}.")
        if self.rows is not None and not 1 <= self.rows < math.inf:
            raise InputError(f"rows must be at least 1. Got {self.rows:g}. Leave it out if it is not known.")
        if self.method not in COMMON:
            raise InputError(f"method must be one of {', '.join(COMMON)}. Got {self.method}.")

    @cached_property
    def plan(self) -> Plan:
        """The plan that is proposed."""
        kind = kind_of(self.method, self.codebook)
        settings: dict[str, Any] = {"relation": self.relation.value}
        settings |= {} if self.delta is None else {"delta": self.delta}
        if self.unit.by_record:
            if "unit" not in signature(kind).parameters:
                raise InputError(f"{self.method} protects tasks. Use shared-prior, or leave --unit out.")
            settings |= {"unit": self.unit}
        plan = kind(epsilon=self.target.epsilon, **settings).plan(self.tasks, self.codebook)
        if not self.trust.at_home:
            return plan if self.target.detection is None else self.target.calibrate(plan)
        return self.target.calibrate(replace(plan, trust=self.trust))

    @cached_property
    def forecast(self) -> Forecast:
        return self.plan.forecast(self.rows)

    @property
    def _telling(self) -> float | None:
        return self.plan.informative_rows(self.rows)

    @property
    def pays_from(self) -> int:
        """About how many tasks make half of the gain dependable at this epsilon."""
        if self.trust.at_home:
            return self._pays_from_at_home
        return dependable_from(self.tasks, *self.plan.main_rounds, self._telling)

    @property
    def _pays_from_at_home(self) -> int:
        """Return the same where tasks add the noise, of which there is more the more they are."""
        (mu, dim), epsilon = self.plan.main_rounds, self.plan.guarantee.epsilon
        share = mu * self.trust.deviation(1.0, self.tasks) / self._mu
        count = max(4, self.tasks - self.trust.parts(self.tasks) + 2) if self.trust.masked else 4
        while count < MOST_TASKS:
            heard = share * tradeoff.mu(epsilon, default_delta(count)) / self.trust.deviation(1.0, count)
            if heard >= dependable_mu(count, dim, self._telling):
                break
            count = math.ceil(1.1 * count)
        unit = int(10 ** max(0, math.floor(math.log10(count)) - 1))
        return math.ceil(count / unit) * unit

    @property
    def epsilon_needed(self) -> float:
        """About which epsilon makes half of the gain dependable for so many tasks."""
        mu, dim = self.plan.main_rounds
        assert self.plan.delta is not None
        whole = self._mu * dependable_mu(self.tasks, dim, self._telling) / mu
        return tradeoff.epsilon(whole, self.plan.delta)

    @property
    def _mu(self) -> float:
        """The whole budget as Gaussian DP, by the plan's epsilon and delta."""
        assert self.plan.delta is not None
        return tradeoff.mu(self.plan.guarantee.epsilon, self.plan.delta)

    @property
    def verdict(self) -> str | None:
        """Whether joining pays, in a sentence; by record, which unit to choose says it."""
        told = self._verdict_in_bounds
        if told is None or not self.forecast.calibrated or self.forecast.silent is None:
            return told
        return f"If the bounds of the target are narrow: {told[0].lower()}{told[1:]}"

    @property
    def _verdict_in_bounds(self) -> str | None:
        low, epsilon = self.forecast.low, self.plan.guarantee.epsilon
        if self.unit.by_record:
            return None
        if not self.forecast.calibrated:
            return (
                "Whether joining pays cannot be said of so few tasks; at this epsilon half of the gain is "
                f"dependable from about {self.pays_from:,}."
            )
        if low >= DEPENDABLE:
            return (
                "Joining pays: count on half of what sharing without noise would gain, and expect more. At "
                f"this epsilon it does from about {self.pays_from:,} tasks."
            )
        instead = f"about {self.pays_from:,} tasks at this epsilon"
        if self.epsilon_needed <= MOST_EPSILON:
            instead += f", or about epsilon {self.epsilon_needed:.2g} with {self.tasks:,} tasks,"
        instead += " would make half of the gain dependable"
        odds = f"it gains in about {self.forecast.chance} runs"
        if self.forecast.pays >= NO_GAMBLE:
            return f"Joining probably pays: {odds}, if not always half of what it could; {instead}."
        lost = f"{100 * abs(low):.0f} % of what sharing without noise would gain"
        loses = f"{odds}, and may cost as much as {lost}" if epsilon > 0 else "nothing is gained"
        return f"Joining is a gamble here: {loses}; {instead}."

    @property
    def which_unit(self) -> UnitAdvice | None:
        """Which unit to choose, task or record; None without a guess at how many rows there are."""
        if self.unit.limit is not None or (not self.unit.by_record and self.rows is None):
            return None
        by_task = replace(self, unit=Unit.task())
        guess = math.ceil(self.tasks * (self.rows or 0))
        records = self.unit.count(self.tasks) if self.unit.by_record else guess
        epsilon = by_task.plan.guarantee.epsilon
        mu = tradeoff.mu(epsilon, default_delta(records)) / self.trust.deviation(1.0, self.tasks)
        low = by_task.forecast.low if by_task.forecast.calibrated else None
        guessed = records_heard(records, mu, self.codebook.width)
        return UnitAdvice.of(low, self.forecast.rho if self.unit.by_record else guessed, records)

    def at(self, epsilon: float) -> Wish:
        """Return the same wish at another epsilon."""
        return replace(self, target=PrivacyTarget(epsilon, None, self.target.false_alarms))

    def over_epsilon(self, epsilons: Sequence[float]) -> list[tuple[float, float, float, float]]:
        """Return (epsilon, detection, low, high) for several, with parts of the budget as at the plan's own.

        Detection is for noise by which Gaussian DP is proven, as the proposed plans have it. Of too few tasks
        there is no forecast: low and high are NaN.
        """
        mu, dim = self.plan.main_rounds
        assert self.plan.delta is not None
        share, found = mu / self._mu, []
        for epsilon in epsilons:
            whole = tradeoff.mu(epsilon, self.plan.delta)
            band = band_at(signal_to_noise(self.tasks, share * whole, dim, self._telling))[:2]
            known = band if self.forecast.calibrated else (math.nan, math.nan)
            found.append((epsilon, GaussianCurve(whole).detection(), *known))
        return found

    def heard_at(self, epsilon: float) -> float:
        """Return Q of a plan by record at another epsilon."""
        assert self.plan.delta is not None
        return self.forecast.rho * tradeoff.mu(epsilon, self.plan.delta) / self._mu

    def over_tasks(self, tasks: Sequence[int]) -> list[tuple[int, float, float]]:
        """Return (tasks, low, high) for several numbers of tasks at the plan's epsilon and default deltas."""
        mu, dim = self.plan.main_rounds
        share, epsilon, found = mu / self._mu, self.plan.guarantee.epsilon, []
        for count in tasks:
            whole = tradeoff.mu(epsilon, default_delta(count))
            found.append((count, *band_at(signal_to_noise(count, share * whole, dim, self._telling))[:2]))
        return found
