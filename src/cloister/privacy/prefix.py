r"""Noise for running totals: correlated over rounds, so that it mostly cancels in their sum.

A release is an estimate of its own round's sum, as with `Gaussian`, and an algorithm need not know which
noise it has. But the noise of one round takes back some of that of earlier rounds: where 1024 rounds see each
task once, a running total has 3.3 times the noise that one task needs to be hidden, not 32 times. A single
release has a little more noise. What is measured is in :mod:`cloister.privacy.strategies`, what is kept
from round to round in :mod:`cloister.privacy.noise_states`, what it costs in
:mod:`cloister.privacy.correlated`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cloister.errors import PlanError
from cloister.privacy.buffers import Buffered, buffers_for
from cloister.privacy.correlated import Correlated, bits_for
from cloister.privacy.mechanisms import NoiseState
from cloister.privacy.noise_states import BufferState, Measure, RingState, TreeState
from cloister.privacy.randomness import Randomness
from cloister.privacy.schedule import Schedule
from cloister.privacy.strategies import BinaryTree, LowerToeplitz, square_root

__all__ = ["BLT", "Toeplitz", "Tree"]

#: Bits after the point of a weight, at least.
_LEAST_BITS = 6
#: The share of a sensitivity that may go to the rounding of buffers.
_SLACK = 0.01


@dataclass(frozen=True)
class Toeplitz(Correlated):
    r"""The square-root factorisation: the least noise on running totals, nearly, of all such noise.

    Parameters
    ----------
    mu, exact
        As for `Gaussian`.
    bands : int, optional
        How many rounds are remembered; by default all. Where tasks take part several times, as many as lie
        between two of a task's rounds, or fewer, is best: its rounds then do not meet in any measurement.

    Privacy
    -------
    The whole run is :math:`\mu`-GDP. The curator keeps `bands` past sums in secret.

    References
    ----------
    Fichtenberger, Henzinger, Upadhyay, *Constant matters*, arXiv:2202.11205 (the square root); Denisov et
    al., arXiv:2202.08312 (such noise where later messages depend on earlier releases); Choquette-Choo et al.,
    arXiv:2306.08153 (bands, and tasks that take part several times).

    Examples
    --------
    >>> from cloister import Plan
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> from cloister.sampling import Epochs, OnePass
    >>> algorithm = MeanRegularized(LeastSquares(3), rounds=16)
    >>> plan = Plan(algorithm, Toeplitz(), OnePass(), n_tasks=200).calibrate(epsilon=1.0)
    >>> round(plan.guarantee.epsilon, 3), plan.noise(0, plan.rounds[0].channels[0]) > 0
    (1.0, True)
    """

    bands: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bands is not None and self.bands < 1:
            raise PlanError(f"bands must be at least 1. Got {self.bands}. With 1 band noise is independent.")

    @property
    def name(self) -> str:
        return "square-root Toeplitz" + ("" if self.bands is None else f", {self.bands} bands")

    def strategy(self, schedule: Schedule) -> LowerToeplitz:
        return _square_root(len(schedule), self.bands, self.bits(schedule) if self.exact else None)

    def bits(self, schedule: Schedule) -> int:
        real = _square_root(len(schedule), self.bands, None)
        found = bits_for(schedule, real, min(schedule.passes, float(real.coefficients.sum())))
        if found < _LEAST_BITS:
            raise PlanError(
                f"{schedule.n_tasks} tasks and {len(schedule)} rounds leave {found} bits for a weight, and "
                f"{_LEAST_BITS} are needed. Use Tree(), fewer tasks, or exact=False for research."
            )
        return found

    def state(self, schedule: Schedule, measure: Measure, source: Randomness) -> NoiseState:
        c = self.strategy(schedule).coefficients
        weights = np.rint(c * 2.0 ** self.bits(schedule)).astype(np.int64) if self.exact else c
        return RingState(weights, c, measure, source)


@dataclass(frozen=True)
class Tree(Correlated):
    r"""Tree aggregation: every node of a binary tree over the rounds gets noise once.

    Three times the noise of `Toeplitz` on running totals; here to compare with what is published.

    Parameters
    ----------
    mu, exact
        As for `Gaussian`.
    honaker : bool, default=False
        Estimate each node from its own measurement and its children's, weighted by their precision.

    Privacy
    -------
    The whole run is :math:`\mu`-GDP. In one pass over n rounds a task is in :math:`\lfloor \log_2 n \rfloor +
    1` nodes at most. The curator keeps one sum for each binary digit of the round.

    References
    ----------
    Honaker, *Efficient use of differentially private binary trees*, 2015.

    Examples
    --------
    >>> Tree(honaker=True).name
    'binary tree, estimated from below'
    """

    honaker: bool = False

    @property
    def name(self) -> str:
        return "binary tree, estimated from below" if self.honaker else "binary tree"

    def strategy(self, schedule: Schedule) -> BinaryTree:
        return _tree(len(schedule), self.honaker)

    def bits(self, schedule: Schedule) -> int:
        """Return 0: nodes are whole sums."""
        return min(0, bits_for(schedule, self.strategy(schedule), schedule.passes))

    def state(self, schedule: Schedule, measure: Measure, source: Randomness) -> NoiseState:
        return TreeState(self.strategy(schedule), "i8" if self.exact else "f8", measure, source)


@dataclass(frozen=True)
class BLT(Correlated):
    r"""Buffered linear Toeplitz noise: that of `Toeplitz` within a per cent, from a handful of sums.

    Parameters
    ----------
    mu, exact
        As for `Gaussian`.
    buffers : int, optional
        Decaying sums that are remembered; by default about half the logarithm of the number of rounds.

    Privacy
    -------
    The whole run is :math:`\mu`-GDP. Exact buffers are rounded once a round; by how much that can move
    measurements is bounded and added to the sensitivity, one per cent at most.

    References
    ----------
    Dvijotham et al., arXiv:2404.16706.

    Examples
    --------
    >>> from cloister import Plan
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> from cloister.sampling import OnePass
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=64), BLT(), OnePass(), n_tasks=200)
    >>> round(plan.calibrate(epsilon=1.0).guarantee.epsilon, 3)
    1.0
    """

    buffers: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffers is not None and self.buffers < 2:
            raise PlanError(f"buffers must be at least 2. Got {self.buffers}. Use Gaussian() for none.")

    @property
    def name(self) -> str:
        return "buffered Toeplitz"

    def strategy(self, schedule: Schedule) -> Buffered:
        return _buffered(len(schedule), self.buffers)

    def bits(self, schedule: Schedule) -> int:
        return bits_for(schedule, self.strategy(schedule), schedule.passes)

    def slack(self, schedule: Schedule) -> float:
        """Return the norm, over all rounds and numbers, of what rounding can gather."""
        if not self.exact:
            return 0.0
        drift = self.strategy(schedule).buffers.drift(len(schedule)) * 2.0 ** -self.bits(schedule)
        return drift * math.sqrt(len(schedule)) * float(np.linalg.norm(schedule.channel.steps))

    def check(self, schedule: Schedule) -> None:
        """Refuse what integers cannot hold, and rounding that would cost more than one per cent."""
        super().check(schedule)
        share = self.slack(schedule) / self.reach(schedule, schedule.relation) if schedule.rounds else 0.0
        if share > _SLACK:
            raise PlanError(
                f"Rounding would cost {100 * share:.2g} % of the noise, more than 1 %, with "
                f"{schedule.n_tasks} tasks, {len(schedule)} rounds and {schedule.channel.size} numbers. "
                "Use Toeplitz(), or exact=False for research."
            )

    def state(self, schedule: Schedule, measure: Measure, source: Randomness) -> NoiseState:
        bits = self.bits(schedule) if self.exact else None
        return BufferState(self.strategy(schedule).buffers, bits, measure, source)


@lru_cache(maxsize=16)
def _square_root(rounds: int, bands: int | None, bits: int | None) -> LowerToeplitz:
    c = square_root(rounds if bands is None else min(bands, rounds))
    return LowerToeplitz(c if bits is None else np.rint(c * 2.0**bits) * 2.0**-bits, rounds)


@lru_cache(maxsize=16)
def _buffered(rounds: int, count: int | None) -> Buffered:
    return Buffered(buffers_for(rounds, count), rounds)


@lru_cache(maxsize=16)
def _tree(rounds: int, honaker: bool) -> BinaryTree:
    return BinaryTree(rounds, honaker)
