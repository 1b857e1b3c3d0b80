"""What a plan costs, and how much a budget buys.

Every accountant that can price a cost is asked, and the smallest *proven* epsilon is reported with its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from cloister.errors import InputError, PlanError
from cloister.privacy import gaussian_dp, hidden
from cloister.privacy.accountants import (
    ACCOUNTANTS,
    PLD,
    RDP,
    Accountant,
    GaussianDP,
    Unamplified,
    amplified,
    single_mu,
    visible_epsilon,
)
from cloister.privacy.events import Cost

__all__ = [
    "ACCOUNTANTS",
    "PLD",
    "RDP",
    "Accountant",
    "GaussianDP",
    "Price",
    "Unamplified",
    "calibrate",
    "check_delta",
    "default_delta",
    "group_epsilon",
    "price",
]

_TOLERANCE = 1e-4
Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Price:
    """An epsilon at a delta, and who proved it."""

    epsilon: float
    delta: float
    accountant: str


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
        Epsilon, delta and the accountant that proved it. An exact accountant is not second-guessed.

    Examples
    --------
    >>> from cloister.privacy.events import GaussianEvent
    >>> from cloister.privacy.sampling import FixedSize
    >>> cost = Cost((GaussianEvent(0.4),) * 1000, FixedSize(100), n_tasks=205)
    >>> paid = price(cost, 1e-5)
    >>> round(paid.epsilon, 1), paid.accountant
    (76.7, 'exact Gaussian DP')
    """
    if not 0 < delta < 1:
        raise PlanError(f"delta must be in (0, 1). Got {delta!r}. Use default_delta(n_tasks).")
    best: Price | None = None
    for accountant in ACCOUNTANTS:
        if accountant.supports(cost):
            found = Price(accountant.epsilon(cost, delta), delta, accountant.name)
            if accountant.exact:
                return found
            if best is None or found.epsilon < best.epsilon:
                best = found
    if best is None:
        raise PlanError(
            f"No accountant supports sampling {cost.sampling!r}. Use one of cloister.privacy.sampling."
        )
    return best


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
        raise PlanError(
            f"epsilon must be above 0. Got {epsilon!r}. A plan that says nothing needs no budget."
        )
    start = gaussian_dp.mu(epsilon, delta) * (1 - 1e-12)
    if math.isinf(start):
        return math.inf
    good: Point | None = None  # log of a budget, log of its price over the target: affordable
    bad: Point | None = None
    x, following = math.log(start), _guess(cost_of(start), start)
    for turn in range(100):
        value = _log_ratio(price(cost_of(math.exp(x)), delta).epsilon, epsilon)
        if value <= 0:
            good = (x, value)
        else:
            bad = (x, value)
        if good and (good[1] >= -_TOLERANCE or (bad and bad[0] - good[0] < 1e-7)):
            return math.exp(good[0])
        x = following if turn == 0 and following != x else _next(good, bad, turn)
    raise PlanError(
        f"calibrate found no budget for epsilon={epsilon!r}. Got the same side a hundred times. "
        "Check that cost_of(mu) grows with mu."
    )


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
    if amplified(cost) and cost.private and hidden.feasible(groups, rate, size):
        best = min(best, hidden.pld_epsilon(groups, rate, cost.relation, size, delta))
    return best


def _guess(cost: Cost, mu: float) -> float:
    """Where the budget should be, from how the exposure scales with mu, on a log scale."""
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


def _next(good: Point | None, bad: Point | None, turn: int) -> float:
    """Choose the next budget to price: outward until the answer is bracketed, then by interpolation."""
    if bad is None and good is not None:
        return good[0] + max(0.02, 1.1 * abs(good[1])) * 1.5**turn
    if good is None and bad is not None:
        return bad[0] - max(0.02, 1.1 * bad[1]) * 1.5**turn
    assert good is not None
    assert bad is not None
    share = (-_TOLERANCE / 2 - good[1]) / (bad[1] - good[1])
    if turn % 4 == 3:  # a jump in the price defeats interpolation: halve now and then
        share = 0.5
    return good[0] + min(max(share, 0.01), 0.99) * (bad[0] - good[0])
