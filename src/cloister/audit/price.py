r"""The price of a plan, reckoned once more: from the noise of every round, and from who takes part.

Let a pair of messages move the sum of round t by :math:`\Delta_t`, found by trying pairs, and let its noise
have deviation :math:`\sigma_t`. Whoever takes part in a set of rounds is exposed to :math:`\mu`-Gaussian DP
with :math:`\mu^2 = \sum_t \Delta_t^2/\sigma_t^2` over all of them, however quiet, and no less. Coins that may
be seen do not depend on data: delta is the mean over them,

.. math:: \delta(\varepsilon) = \mathbb{E}\,\Bigl[\Phi\bigl(\tfrac\mu2 - \tfrac\varepsilon\mu\bigr)
    - e^\varepsilon\,\Phi\bigl(-\tfrac\mu2 - \tfrac\varepsilon\mu\bigr)\Bigr].

Their law is rounded down, so that this is a lower bound, and convicts nobody by chance. It leans on the law
of the noise, which is another test's business, and on nothing that accountants compute. Rounds whose noise is
not Gaussian count for nothing. Where coins are hidden nothing is reckoned: games are what is left.

References
----------
Dong, Roth, Su, *Gaussian differential privacy*, arXiv:1905.02383, Corollary 1 (delta of a curve).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from scipy.special import gammaln, log_ndtr, ndtr, ndtri

from cloister.audit import releases
from cloister.audit.sensitivity import narrow, worst_pair
from cloister.core.arrays import Floats
from cloister.core.channel import Channel
from cloister.core.lifts import Relation
from cloister.plan.plan import Plan
from cloister.privacy.noise import GaussianLaw
from cloister.privacy.sampling import Epochs, Everyone, FixedSize, InOrder, OnePass, Poisson
from cloister.privacy.statement import rounded_up
from cloister.privacy.tradeoff import FALSE_ALARMS

#: A law and its values: squares of mu, and how probable they are.
Atoms = tuple[Floats, Floats]

#: Values of a law at most, beyond which they are rounded down to a grid; probabilities that are left out.
_ATOMS, _RARE = 2**14, 1e-15
#: Rounds of more different exposures are rounded down, to so many in an octave.
_DIFFERENT, _OCTAVE = 256, 16
#: Rounding of a price that is no fault of it.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Reckoned:
    """A claim, what it is about, and what it would have to be at least."""

    what: str
    least: float
    claimed: float

    @property
    def breach(self) -> bool:
        return self.least > self.claimed * (1 + _ROUNDING) + 1e-9


def reckon(plan: Plan, claims: Mapping[float, float]) -> tuple[Reckoned, ...]:
    """Return lower bounds on all that a plan claims; none where none is known here.

    Parameters
    ----------
    plan : Plan
        Calibrated.
    claims : mapping of float to float
        What it claims of epsilon, by delta.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=2), n_tasks=100).calibrate(epsilon=1.0)
    >>> found = reckon(plan, {plan.delta: plan.guarantee.epsilon})
    >>> [(one.what, round(one.least / one.claimed, 4), one.breach) for one in found][0]
    ('epsilon at delta 0.001', 1.0, False)
    """
    law, others = _law(plan, plan.relation), _law(plan, plan.relation.other)
    if law is None or others is None:
        return ()
    guarantee, mus = plan.guarantee, np.sqrt(law[0])
    detected = float(law[1] @ ndtr(ndtri(FALSE_ALARMS) + mus))
    other = f"epsilon at delta {rounded_up(guarantee.delta)} under {plan.relation.other}"
    return (
        *(Reckoned(f"epsilon at delta {rounded_up(d)}", _epsilon(law, d), c) for d, c in claims.items()),
        Reckoned(other, _epsilon(others, guarantee.delta), plan.prices.other.epsilon),
        Reckoned("the share of cases detected", detected, guarantee.detection()),
    )


def _epsilon(law: Atoms, delta: float) -> float:
    """Return the epsilon at a delta, from below."""
    if _delta(law, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while _delta(law, high) > delta and high < 1e9:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(law, middle) > delta else (low, middle)
    return low


def _delta(law: Atoms, epsilon: float) -> float:
    values, weights = law
    mus = np.sqrt(values[values > 0])
    found = ndtr(mus / 2 - epsilon / mus) - np.exp(epsilon + log_ndtr(-mus / 2 - epsilon / mus))
    return float(weights[values > 0] @ np.maximum(found, 0.0))


def _law(plan: Plan, relation: Relation) -> Atoms | None:
    """Return the law of the squared mu that one task is exposed to, over its own coins."""
    sampling, rounds = plan.sampling, len(plan.rounds)
    if sampling.hidden or not rounds:
        return None
    if plan.mechanism.correlated:
        return np.array([_streamed(plan, relation)]), np.ones(1)
    square = cache(partial(_square, plan, relation))
    squares = [
        max(square(c, plan.unknown_noise(t, c)) for c in round.channels)
        for t, round in enumerate(plan.rounds)
    ]
    if not any(squares):
        return None
    if isinstance(sampling, Everyone):
        return np.array([math.fsum(squares)]), np.ones(1)
    if isinstance(sampling, InOrder):  # whoever comes may know its turn
        return np.array([max(squares)]), np.ones(1)
    if isinstance(sampling, (OnePass, Epochs)):
        slots = sampling.slots(rounds) if isinstance(sampling, Epochs) else rounds
        return np.array(squares).reshape(-1, slots).sum(axis=0), np.full(slots, 1 / slots)
    if isinstance(sampling, (Poisson, FixedSize)):
        return _coins(squares, sampling.probability(plan.n_tasks, rounds))
    return None


def _square(plan: Plan, relation: Relation, channel: Channel, noise: float) -> float:
    """Return the squared mu of a round on a channel; 0 if its noise is no Gaussian that is known."""
    gaussian = plan.mechanism.law(channel, noise) == GaussianLaw(noise)
    return (_reach(plan, channel, relation) / noise) ** 2 if gaussian else 0.0


def _reach(plan: Plan, channel: Channel, relation: Relation) -> float:
    """Return how far a pair of messages moves the sum, sent by all senders of a unit."""
    plane = narrow(channel, 2)
    pair = worst_pair(plane, relation)
    one, other = (plane.total(np.repeat(row[None], plan.unit.group, axis=0)) for row in pair)
    return float(np.linalg.norm(one - other))


def _streamed(plan: Plan, relation: Relation) -> float:
    """Return the squared mu of correlated noise, for the place in a pass that is exposed most."""
    channel, played = plan.schedule.channel, releases.rounds_played(plan)
    slots = len(plan.rounds) // plan.schedule.passes
    present = (np.arange(played)[:, None] % slots == np.arange(min(slots, played))).astype(float)
    apart = np.linalg.solve(releases.covariance_root(plan), present)
    return float((_reach(plan, channel, relation) * np.linalg.norm(apart, axis=0).max()) ** 2)


def _coins(squares: Sequence[float], chance: float) -> Atoms:
    """Return the law of a sum of squares of which each counts by a coin of its own, rounded down."""
    counts = Counter(squares)
    if len(counts) > _DIFFERENT:
        counts = Counter(2 ** (math.floor(math.log2(s) * _OCTAVE) / _OCTAVE) for s in squares if s > 0)
    values: Floats = np.zeros(1)
    weights: Floats = np.ones(1)
    for square, count in counts.items():
        often, chances = _binomial(count, chance)
        values = np.add.outer(values, square * often).ravel()
        weights = np.multiply.outer(weights, chances).ravel()
        if len(values) > _ATOMS:
            unit = float(values.max()) / _ATOMS
            cells = np.floor(values / unit).astype(np.int64)
            together = np.bincount(cells, weights)
            filled = np.flatnonzero(together)
            values, weights = unit * filled.astype(np.float64), np.asarray(together[filled], np.float64)
    return values, weights


def _binomial(count: int, chance: float) -> Atoms:
    """Return how often coins may fall so, and with which probability; rare numbers are left out."""
    if chance >= 1:
        return np.array([float(count)]), np.ones(1)
    often = np.arange(count + 1)
    ways = gammaln(count + 1) - gammaln(often + 1) - gammaln(count - often + 1)
    chances = np.exp(ways + often * math.log(chance) + (count - often) * math.log1p(-chance))
    return often[chances > _RARE].astype(np.float64), chances[chances > _RARE]
