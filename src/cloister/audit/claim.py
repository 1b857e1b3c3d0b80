r"""What a plan claims: an epsilon at every delta, and the trade-off curve that follows.

A guarantee at (epsilon, delta) says that a test with false alarms in a share a of cases misses at least
:math:`\max(0,\ 1 - \delta - e^\varepsilon a,\ e^{-\varepsilon}(1 - \delta - a))`. A plan claims this at all
deltas at once. With Gaussian DP that is the curve :math:`\Phi(\Phi^{-1}(1 - a) - \mu)`.

References
----------
Dong, Roth, Su, *Gaussian differential privacy*, arXiv:1905.02383, Propositions 2.5 and 2.12.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri

from cloister.arrays import Floats
from cloister.plan import Plan
from cloister.privacy import accounting
from cloister.privacy.accountants import single_mu
from cloister.privacy.events import GaussianEvent

__all__ = ["claimed_epsilon", "claimed_missed"]


_DELTAS = (1e-5, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5)


def claimed_epsilon(plan: Plan, delta: float) -> float:
    """Return the epsilon that a plan claims at a delta."""
    if delta == plan.delta:
        return plan.guarantee.epsilon
    return accounting.price(plan.cost, delta).epsilon


def claimed_missed(plan: Plan, false_alarms: Floats) -> Floats:
    """Return the least share of cases that a test with such false alarms must miss.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> plan = Plan(MeanRegularized(LeastSquares(3)), n_tasks=100).calibrate(epsilon=1.0)
    >>> claimed_missed(plan, np.array([0.0, 0.05, 1.0])).round(3).tolist()
    [1.0, 0.896, 0.0]
    """
    cost = plan.cost
    mu = single_mu(cost, size=1) if cost.only(GaussianEvent) and not plan.sampling.hidden else None
    if mu is not None:
        with np.errstate(divide="ignore"):
            return np.asarray(ndtr(ndtri(1 - false_alarms) - mu))
    assert plan.delta is not None
    best = np.zeros_like(false_alarms)
    for delta in (plan.delta, *_DELTAS):
        epsilon = claimed_epsilon(plan, delta)
        if np.isfinite(epsilon):
            rest = 1 - delta - false_alarms
            best = np.maximum.reduce(
                [best, 1 - delta - np.exp(min(epsilon, 700.0)) * false_alarms, np.exp(-epsilon) * rest]
            )
    return best
