"""The search for the largest budget that a target allows: prices cost time, so few of them are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable

from cloister.errors import PlanError
from cloister.privacy.accountants import single_mu
from cloister.privacy.events import Cost, GaussianEvent

__all__ = ["largest_budget"]

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
