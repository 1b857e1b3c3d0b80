r"""Noise for running totals: correlated over rounds, so that it mostly cancels in their sum.

A release is an estimate of its own round's sum, as with `Gaussian`, and an algorithm need not know which
noise it has. But the noise of one round takes back some of that of earlier rounds: where 1024 rounds see each
task once, a running total has 3.3 times the noise that one task needs to be hidden, not 32 times. A single
release has a little more noise. What is measured is in :mod:`cloister.privacy.strategies`, what is kept
from round to round in :mod:`cloister.privacy.noise_states`.

*What it costs.* Given all earlier releases, round t is a Gaussian release of a measurement that one task
moves by some :math:`\Delta_t`, and :math:`\sum_t |\Delta_t|^2` is at most the squared sensitivity of the
strategy *whatever the earlier releases were*. Hence the run as a whole is :math:`\mu`-GDP, messages that
depend on the board included, and is priced as one event. Sampling never makes it smaller: the coins of a task
in different rounds meet in one measurement.

Where noise is exact, measurements are whole numbers: sums on the channel's grid, weighted by whole numbers
over :math:`2^b`, plus a discrete Gaussian on the finer grid. As many bits b are taken as fit into 64-bit
integers, from public numbers alone.

References
----------
Denisov, McMahan, Rush, Smith, Thakurta, *Improved differential privacy for SGD via optimal private linear
operators on adaptive streams*, arXiv:2202.08312. Smith, Thakurta, *Fully adaptive composition for Gaussian
differential privacy*, arXiv:2210.17520.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats
from cloister.core.channel import GRID, Channel
from cloister.core.errors import PlanError
from cloister.core.lifts import Relation
from cloister.privacy.caveats import FLOATING_POINT, Caveat
from cloister.privacy.events import Cost, GaussianEvent
from cloister.privacy.mechanisms import FLOATING, Mechanism, NoiseState, Schedule, check_level, level, on_grid
from cloister.privacy.noise import integer_deviation
from cloister.privacy.noise_states import BufferState, Measure, RingState, TreeState
from cloister.privacy.randomness import Randomness, Stream, normals
from cloister.privacy.sampling import Everyone
from cloister.privacy.strategies import (
    BinaryTree,
    Buffered,
    LowerToeplitz,
    Strategy,
    buffers_for,
    square_root,
)

#: Bits of a sum in fixed point, and of a deviation, of which twenty and a sum together fit into 63.
SUM_BITS, NOISE_BITS, DEVIATION_BITS = 61, 57, 58
#: Bits after the point at most; and bits kept for the noise, so that a mu of 2^-7 or more always fits.
MOST_BITS, BUDGET_BITS = 20, 7


@dataclass(frozen=True)
class Correlated(Mechanism):
    """What all correlated noise has in common.

    Parameters
    ----------
    mu : float, optional
        Gaussian-DP parameter of the whole run under the plan's relation. Left out, the plan must be
        calibrated to an epsilon before it can run.
    exact : bool, default=True
        Integers throughout, as in `Gaussian`, with noise that is drawn for what is measured. False is for
        research, and the guarantee says so.
    """

    mu: float | None = None
    exact: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        check_level(self.mu)

    @property
    @abstractmethod
    def name(self) -> str:
        """What the guarantee calls it."""

    @abstractmethod
    def strategy(self, schedule: Schedule) -> Strategy:
        """Return what is measured."""

    @abstractmethod
    def state(self, schedule: Schedule, measure: Measure, source: Randomness) -> NoiseState:
        """Return the state of one run."""

    @abstractmethod
    def bits(self, schedule: Schedule) -> int:
        """Return how many bits after the point a measurement has where noise is exact."""

    def slack(self, schedule: Schedule) -> float:
        """Return how far rounding may move all measurements together, in units of the clip."""
        return 0.0

    @property
    def budget(self) -> float:
        return level(self.mu)

    @property
    def calibrated(self) -> bool:
        return self.mu is not None

    @property
    def correlated(self) -> bool:
        return True

    @property
    def any_channel(self) -> bool:
        return False

    @property
    def kind(self) -> str:
        made = "exact integer noise on a fixed-point sum" if self.exact else FLOATING
        return f"{made}, correlated over rounds ({self.name}; no gain from sampling is claimed)"

    @property
    def doubts(self) -> tuple[Caveat, ...]:
        return () if self.exact else (FLOATING_POINT,)

    def cost(self, schedule: Schedule, relation: Relation) -> Cost:
        if not schedule.rounds:
            return Cost((), Everyone(), schedule.n_tasks, relation.value)
        scale = self.budget / self.reach(schedule, schedule.relation)
        against, silence = (scale * self.reach(schedule, r) for r in (relation, Relation.ZERO_OUT))
        return Cost((GaussianEvent(against, silence),), Everyone(), schedule.n_tasks, relation.value)

    def reach(self, schedule: Schedule, relation: Relation) -> float:
        """Return how far one task can move all measurements together, in units of the clip."""
        moved = largest(self.strategy(schedule), schedule.passes)
        return schedule.channel.sensitivity(relation) * moved + self.slack(schedule)

    def level(self, schedule: Schedule) -> float:
        """Return the deviation of the noise on a measurement, in units of the clip."""
        return self.reach(schedule, schedule.relation) / self.budget

    def deviation(self, schedule: Schedule, round: int, channel: Channel) -> float:
        return self.level(schedule) * float(self.strategy(schedule).deviations[round])

    def effective_mu(self, schedule: Schedule) -> float:
        """Return the budget at which fresh Gaussian noise gives totals of the same largest deviation."""
        largest_deviation = self.level(schedule) * float(self.strategy(schedule).prefix_deviations.max())
        return len(schedule) * schedule.channel.sensitivity(schedule.relation) / largest_deviation

    def check(self, schedule: Schedule) -> None:
        if schedule.rounds and self.exact:
            step = float(schedule.channel.steps.min()) * 2.0 ** -self.bits(schedule)
            integer_deviation(2 ** (DEVIATION_BITS - NOISE_BITS) * self.level(schedule) / step)

    def begin(self, schedule: Schedule, source: Randomness) -> NoiseState:
        self.check(schedule)
        if not schedule.rounds:
            return self.state(schedule, measure=_nothing, source=source)
        level, fine = self.level(schedule), 2.0 ** -self.bits(schedule) if self.exact else 1.0

        def measure(encoded: NDArray[Any], channel: Channel, stream: Stream) -> Floats:
            steps = channel.steps * fine
            noisy = self.perturb(encoded, steps, level, stream)
            return np.asarray(steps * noisy if self.exact else noisy)

        return self.state(schedule, measure, source)

    def perturb(self, encoded: NDArray[Any], steps: Floats, noise: float, stream: Stream) -> NDArray[Any]:
        """Return a measurement: with noise, in whole steps if exact, else in units of the clip."""
        if self.exact:
            return on_grid(encoded, noise, steps, stream)
        return np.asarray(encoded + noise * normals(stream.uniforms(len(steps))))

    def scaled(self, budget: float) -> Self:
        return replace(self, mu=budget)


@lru_cache(maxsize=64)
def largest(strategy: Strategy, passes: int) -> float:
    """Return how far a task moves all measurements that says 1 in the rounds of its slot, at worst."""
    return float(strategy.sensitivities(passes).max())


def bits_for(schedule: Schedule, strategy: Strategy, times: float) -> int:
    """Return how many bits after the point fit beside sums in which a task counts so many times.

    The noise must fit as well. A sum that does not fit as it is, is refused.
    """
    channel = schedule.channel
    degree = int(channel.lift.weights(channel.dim)[1].max())
    sums = math.log2(schedule.messages * times * GRID**degree)
    moved = channel.sensitivity(schedule.relation) * largest(strategy, schedule.passes)
    noise = math.log2(moved / float(channel.steps.min())) + BUDGET_BITS
    bits = min(math.floor(SUM_BITS - sums), math.floor(NOISE_BITS - noise), MOST_BITS)
    if bits < 0:
        raise PlanError(
            f"Sums over {schedule.messages} messages and {len(schedule)} rounds do not fit into integers of "
            "64 bits. Use fewer tasks or rounds, or exact=False for research."
        )
    return bits


def _nothing(encoded: NDArray[Any], channel: Channel, stream: Stream) -> Floats:
    raise PlanError("A plan without rounds has nothing to measure.")


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
