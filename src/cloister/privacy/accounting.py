"""What a plan costs, and how much a budget buys.

Every accountant that can price a cost is asked, and the smallest *proven* epsilon is reported with its name.
Prices cost time, so the search for the largest budget that a target allows asks for few of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from scipy.special import ndtri

from cloister.core.errors import InputError, PlanError
from cloister.core.lifts import Relation
from cloister.privacy import hidden_sampling
from cloister.privacy import tradeoff as gaussian_dp
from cloister.privacy.accountants import (
    ACCOUNTANTS,
    FALLBACK,
    RDP,
    GaussianDP,
    amplified,
    single_mu,
    visible_epsilon,
)
from cloister.privacy.events import Cost, GaussianEvent, PureEvent, UnitName
from cloister.privacy.sampling import OnePass
from cloister.privacy.statement import ceiling
from cloister.privacy.tradeoff import Envelope, GaussianCurve, TradeOff

_TOLERANCE = 1e-4


def largest_budget(
    cost_of: Callable[[float], Cost], measure: Callable[[Cost], float], target: float, start: float
) -> float:
    """Return the largest budget whose measure is at most the target; it grows with the budget."""
    bracket = _Bracket()
    x, following = math.log(start), _guess(cost_of(start), start)
    for turn in range(100):
        bracket.add(x, _log_ratio(measure(cost_of(math.exp(x))), target))
        if bracket.done:
            return math.exp(bracket.good[0])
        x = following if turn == 0 and following != x else bracket.next(turn)
    raise PlanError(
        f"calibrate found no budget for the target {target!r}. Got the same side a hundred times. "
        "Check that cost_of(mu) grows with mu."
    )


def _guess(cost: Cost, mu: float) -> float:
    """Where the budget should be, from how the exposure scales with mu, on a log scale."""
    if not cost.only(GaussianEvent):
        return math.log(mu)
    single = single_mu(cost, size=1)
    if single is not None and single > 0:
        return math.log(mu * mu / single)
    rate, n = cost.probability, max(1, cost.rounds)
    if cost.sampling.hidden:  # central limit: rate * sqrt(n (exp(s^2/n) - 1)) = mu
        return 0.5 * math.log(n * math.log1p((mu / rate) ** 2 / n))
    return math.log(mu / math.sqrt(rate))


def _log_ratio(got: float, target: float) -> float:
    """Compare prices on a log scale, kept finite for interpolation."""
    if got <= target:
        return max(-3.0, math.log(max(got, 1e-300) / target))
    return min(3.0, max(1e-15, math.log(got / target)))


class _Bracket:
    """Search on a log scale: x is the log of a budget, y the log of its price over the target."""

    def __init__(self) -> None:
        self.good, self.bad = (-math.inf, -math.inf), (math.inf, math.inf)
        self.seen: list[tuple[float, float]] = []

    def add(self, x: float, y: float) -> None:
        self.seen.append((x, y))
        if y <= 0:
            self.good = (x, y)
        else:
            self.bad = (x, y)

    @property
    def done(self) -> bool:
        """Whether the affordable end is near enough to the target, or to a jump in the price."""
        return self.good[1] >= -_TOLERANCE or self.bad[0] - self.good[0] < 1e-7

    def next(self, turn: int) -> float:
        """Choose the next budget: a secant step, kept inside what is known."""
        (x0, y0), (x1, y1) = self.seen[-2:] if len(self.seen) > 1 else (self.seen[0], self.seen[0])
        slope = (y1 - y0) / (x1 - x0) if x1 != x0 and y1 != y0 else 1.0
        x = x1 + min(max((-_TOLERANCE / 2 - y1) / max(slope, 0.5), -1.0), 1.0)
        low, high = self.good[0], self.bad[0]
        if math.isinf(low) or math.isinf(high):  # go further than the secant asks, to catch the answer
            return x1 + 1.1 * (x - x1)
        if turn % 4 == 3 or not low < x < high:  # a jump defeats the secant: halve now and then
            return (low + high) / 2
        return x


#: Pairs of epsilon and delta that an `Envelope` is made of: rates are within a thousandth of the whole curve.
_PAIRS = 96
#: The smallest delta among them, up to how they are spaced.
_LEAST = 1e-6
#: Digits of these pairs, rounded up: files stay short, and machines that round otherwise agree on them.
_DIGITS = 6


@dataclass(frozen=True)
class Price:
    """An epsilon at a delta, and who proved it."""

    epsilon: float
    delta: float
    accountant: str


@dataclass(frozen=True)
class Prices:
    """What an exposure costs under the relation that is claimed, and under the other at the same delta.

    `curve` is the trade-off curve under the relation that is claimed, where more is proven than one epsilon.
    `unit` is who is exposed, and `units` how many of them there are at most.
    """

    relation: Relation
    own: Price
    other: Price
    curve: TradeOff | None = None
    unit: UnitName = "task"
    units: int = 1

    @classmethod
    def of(cls, cost_under: Callable[[Relation], Cost], relation: Relation, delta: float) -> Prices:
        own, other = cost_under(relation), cost_under(relation.other)
        prices = price(own, delta), price(other, delta), tradeoff(own, delta=delta)
        return cls(relation, *prices, own.unit, own.n_tasks)


@lru_cache(maxsize=1024)
def price(cost: Cost, delta: float) -> Price:
    """Smallest proven epsilon of a cost at ``delta``.

    Parameters
    ----------
    cost : Cost
        Everything one task is exposed to.
    delta : float
        Between 0 and 1; see :func:`check_delta` for what is meaningful.

    Returns
    -------
    Price
        Epsilon, delta and the accountant that proved it. An exact accountant is not second-guessed. If no
        round says anything, both epsilon and delta are 0.

    Examples
    --------
    >>> from cloister.privacy.events import GaussianEvent
    >>> from cloister.privacy.sampling import FixedSize
    >>> cost = Cost((GaussianEvent(0.4),) * 1000, FixedSize(100), n_tasks=205)
    >>> paid = price(cost, 1e-5)
    >>> round(paid.epsilon, 1), paid.accountant
    (76.7, 'exact Gaussian DP')
    """
    if not (0 < delta < 1 or (delta == 0 and cost.only(PureEvent))):
        raise PlanError(f"delta must be in (0, 1). Got {delta!r}. Use default_delta(n_tasks).")
    if cost.silent:
        return Price(0.0, 0.0, GaussianDP.name)
    best: Price | None = None
    for accountant in ACCOUNTANTS:
        if accountant.supports(cost):
            found = Price(accountant.epsilon(cost, delta), delta, accountant.name)
            if accountant.exact:
                return found
            if best is None or found.epsilon < best.epsilon:
                best = found
    if (best is None or math.isinf(best.epsilon)) and FALLBACK.supports(cost):
        return Price(FALLBACK.epsilon(cost, delta), delta, FALLBACK.name)
    if best is None:
        raise PlanError(
            f"No accountant prices a {type(cost.events[0]).__name__} with sampling {cost.sampling!r}. "
            "Use Everyone(), or Gaussian() noise."
        )
    return best


@lru_cache(maxsize=256)
def tradeoff(*costs: Cost, delta: float) -> TradeOff | None:
    """Trade-off curve that is proven for a cost; of several, one that holds for each of them.

    Gaussian DP is exact where no coin is tossed. Otherwise the curve is made of pairs of epsilon and delta,
    each proven by an accountant in both directions: privacy loss distributions for hidden coins and for
    Wishart noise, an average over the task's own coins where these are visible, composition of pure DP and of
    the Gaussian DP that bounds it.

    Parameters
    ----------
    *costs : Cost
        What tasks are exposed to.
    delta : float
        The delta of the guarantee, whose own epsilon is among the pairs.

    Returns
    -------
    TradeOff or None
        None where nothing is promised.

    Examples
    --------
    >>> from cloister.privacy.events import GaussianEvent
    >>> from cloister.privacy.sampling import Everyone, Poisson
    >>> tradeoff(Cost((GaussianEvent(0.3), GaussianEvent(0.4)), Everyone(), n_tasks=200), delta=1e-5)
    GaussianCurve(mu=0.5)
    >>> sampled = Cost((GaussianEvent(1.0),) * 50, Poisson(0.1, hidden=True), 200, "zero_out")
    >>> round(tradeoff(sampled, delta=1e-5).detection(), 3)
    0.227
    """
    if not all(cost.private for cost in costs):
        return None
    mus = [0.0 if cost.silent else _exact_mu(cost) for cost in costs]
    if None not in mus:
        return GaussianCurve(max(mu for mu in mus if mu is not None))
    own = max(price(cost, delta).epsilon for cost in costs)
    if math.isinf(own):
        return None
    proven = [_deltas(cost, delta) for cost in costs if not cost.silent]

    def worst(epsilon: float) -> float:
        return ceiling(max(delta_at(epsilon) for delta_at in proven), _DIGITS)

    found = {epsilon: worst(epsilon) for epsilon in _epsilons(own, delta)}
    if all(cost.only(PureEvent) for cost in costs):
        found[max(price(cost, 0.0).epsilon for cost in costs)] = 0.0
    pairs = ((epsilon, value) for epsilon, value in sorted(found.items()) if value < 1)
    return Envelope((*pairs, (own, delta)))


def _exact_mu(cost: Cost) -> float | None:
    """Return mu where a run is exactly mu-GDP: Gaussian noise, and no coin."""
    return single_mu(cost, size=1) if GaussianDP().supports(cost) else None


def _deltas(cost: Cost, delta: float) -> Callable[[float], float]:
    """Return the curve of delta by epsilon: never of Rényi DP, which is loose at large deltas."""
    able = [a for a in ACCOUNTANTS if a.supports(cost) and not isinstance(a, RDP)]
    reader = able[0] if able and price(cost, delta).accountant != FALLBACK.name else FALLBACK
    if not cost.only(PureEvent):
        return lambda epsilon: reader.delta(cost, epsilon)
    mus = [gaussian_dp.mu_of_pure(event.exposure) for event in cost.events]
    mu = max(mus) if isinstance(cost.sampling, OnePass) else math.sqrt(math.fsum(mu * mu for mu in mus))
    return lambda epsilon: min(reader.delta(cost, epsilon), gaussian_dp.delta(mu, epsilon))


def _epsilons(own: float, delta: float) -> tuple[float, ...]:
    """Epsilons at which to ask: evenly spaced, as far as the Gaussian curve through the guarantee goes."""
    mu = gaussian_dp.mu(own, delta) if delta > 0 else gaussian_dp.mu_of_pure(own)
    last = min(gaussian_dp.epsilon(mu, _LEAST), 700.0)
    return tuple(ceiling(last * k / _PAIRS, _DIGITS) for k in range(_PAIRS))


def calibrate(cost_of: Callable[[float], Cost], epsilon: float, delta: float) -> float:
    """Largest budget whose price is at most ``epsilon``; never overspends.

    Parameters
    ----------
    cost_of : callable
        Builds the cost from the total mu that a task would be exposed to if it took part in every round. The
        number of rounds may depend on it.
    epsilon, delta : float
        The target.

    Returns
    -------
    float
        The budget: ``price(cost_of(budget), delta).epsilon <= epsilon``, and within 1e-4 of it unless the
        price jumps there.

    Examples
    --------
    >>> from cloister.privacy.events import GaussianEvent
    >>> from cloister.privacy.sampling import Poisson
    >>> def cost_of(mu):
    ...     return Cost((GaussianEvent(mu / 10),) * 100, Poisson(0.1, hidden=True), 1000, "zero_out")
    >>> mu = calibrate(cost_of, epsilon=1.0, delta=1e-5)
    >>> 0.9998 < price(cost_of(mu), 1e-5).epsilon <= 1.0
    True
    """
    if not epsilon > 0:
        raise PlanError(f"epsilon must be above 0. Got {epsilon!r}. A plan without rounds needs no budget.")
    start = gaussian_dp.mu(epsilon, delta) * (1 - 1e-12) if delta > 0 else epsilon
    if math.isinf(start):
        return math.inf
    return largest_budget(cost_of, lambda cost: price(cost, delta).epsilon, epsilon, start)


def calibrate_detection(
    cost_of: Callable[[float], Cost], detection: float, false_alarms: float, delta: float
) -> float:
    """Largest budget at which no test detects more than ``detection`` with such false alarms.

    As `calibrate`, for a risk: what is compared is how far the two rates are apart on the scale of normal
    quantiles, where Gaussian noise moves them by mu.

    Examples
    --------
    >>> from cloister.privacy.events import GaussianEvent
    >>> from cloister.privacy.sampling import Everyone
    >>> def cost_of(mu):
    ...     return Cost((GaussianEvent(mu),), Everyone(), 200)
    >>> mu = calibrate_detection(cost_of, detection=0.1, false_alarms=0.05, delta=1e-4)
    >>> round(mu, 3), 0.0999 < tradeoff(cost_of(mu), delta=1e-4).detection() <= 0.1
    (0.363, True)
    """
    if not 0 < false_alarms < detection < 1:
        raise PlanError(
            "detection must be above false_alarms, which guessing reaches, and both between 0 and 1. Got "
            f"{detection!r} and {false_alarms!r}. Use detection=0.1, false_alarms=0.05."
        )
    target = float(ndtri(detection) - ndtri(false_alarms))

    def apart(cost: Cost) -> float:
        curve = tradeoff(cost, delta=delta)
        rate = 1.0 if curve is None else curve.detection(false_alarms)
        if rate <= detection:
            return min(target, float(ndtri(rate) - ndtri(false_alarms)))
        return max(math.nextafter(target, math.inf), float(ndtri(rate) - ndtri(false_alarms)))

    return largest_budget(cost_of, apart, target, target * (1 - 1e-12))


def default_delta(n_tasks: int) -> float:
    """Delta that is small against the number of tasks: ``min(m ** -1.5, 1 / (10 m))``.

    Examples
    --------
    >>> f"{default_delta(1000):.1e}"
    '3.2e-05'
    """
    return float(min(n_tasks**-1.5, 1 / (10 * n_tasks)))


def check_delta(delta: float, n_tasks: int) -> float:
    """Return ``delta`` if it means something for so many tasks, else raise.

    Examples
    --------
    >>> check_delta(1e-5, n_tasks=1000)
    1e-05
    """
    if not delta > 0:
        raise PlanError(
            f"delta must be above 0 for Gaussian noise. Got {delta!r}. Use default_delta({n_tasks}) = "
            f"{default_delta(n_tasks):.2g}."
        )
    if delta > 1 / n_tasks:
        raise PlanError(
            f"delta must be at most 1/{n_tasks}: publishing one random task's data whole satisfies "
            f"(0, 1/{n_tasks})-DP. Got {delta!r}. Use default_delta({n_tasks}) = "
            f"{default_delta(n_tasks):.2g}."
        )
    return delta


def group_epsilon(cost: Cost, delta: float, size: int) -> float:
    """Epsilon for someone who owns ``size`` of the tasks, all of which change at once.

    Parameters
    ----------
    cost : Cost
        What one task is exposed to.
    delta : float
        Between 0 and 1.
    size : int
        Number of tasks owned.

    Returns
    -------
    float
        Infinity where nothing can be said.

    Examples
    --------
    >>> from cloister.privacy.events import GaussianEvent
    >>> from cloister.privacy.sampling import Poisson
    >>> cost = Cost((GaussianEvent(0.2),) * 200, Poisson(0.1, hidden=True), 1000, "zero_out")
    >>> [round(group_epsilon(cost, 1e-5, size), 2) for size in (1, 2, 5)]
    [1.1, 2.37, 6.84]
    """
    if not 1 <= size <= cost.n_tasks:
        raise InputError(
            f"size must be between 1 and {cost.n_tasks} tasks. Got {size!r}. Count the owner's tasks."
        )
    if size == 1:
        return price(cost, delta).epsilon
    best = visible_epsilon(cost, delta, size)
    groups, rate = cost.groups, cost.probability
    if amplified(cost) and cost.private and hidden_sampling.feasible(groups, rate, size):
        best = min(best, hidden_sampling.pld_epsilon(groups, rate, cost.relation, size, delta))
    return best
