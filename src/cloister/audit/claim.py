"""What a plan claims: an epsilon at every delta, and its trade-off curve (`cloister.privacy.tradeoff`)."""

from __future__ import annotations

from cloister.arrays import Floats
from cloister.plan import Plan
from cloister.privacy import accounting

__all__ = ["claimed_epsilon", "claimed_missed"]


def claimed_epsilon(plan: Plan, delta: float) -> float:
    """Return the epsilon that a plan claims at a delta."""
    if delta == plan.delta:
        return plan.guarantee.epsilon
    return accounting.price(plan.cost, delta).epsilon


def claimed_missed(plan: Plan, false_alarms: Floats) -> Floats:
    """Return the least share of cases that a test with such false alarms must miss.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> plan = Plan(MeanRegularized(LeastSquares(3)), n_tasks=100).calibrate(epsilon=1.0)
    >>> claimed_missed(plan, np.array([0.0, 0.05, 1.0])).round(3).tolist()
    [1.0, 0.896, 0.0]
    """
    return plan.guarantee.tradeoff.missed(false_alarms)
