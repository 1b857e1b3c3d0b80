r"""Correlated noise: what all of it has in common.

Given all earlier releases, round t is a Gaussian release of a measurement that one task moves by some
:math:`\Delta_t`, and :math:`\sum_t |\Delta_t|^2` is at most the squared sensitivity of the strategy
*whatever the earlier releases were*. Hence the run as a whole is :math:`\mu`-GDP, messages that depend on the
board included, and is priced as one event. Sampling never makes it smaller: the coins of a task in different
rounds meet in one measurement.

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

from cloister.arrays import Floats
from cloister.channel import GRID, Channel, Relation
from cloister.doubts import FLOATING_POINT, Doubt
from cloister.errors import PlanError
from cloister.privacy.events import Cost, GaussianEvent
from cloister.privacy.mechanisms import FLOATING, Mechanism, NoiseState, check_level, level, on_grid
from cloister.privacy.noise import integer_deviation
from cloister.privacy.noise_states import Measure
from cloister.privacy.randomness import Randomness, Stream, normals
from cloister.privacy.sampling import Everyone
from cloister.privacy.schedule import Schedule
from cloister.privacy.strategies import Strategy

__all__ = ["Correlated", "bits_for", "largest"]


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
    def doubts(self) -> tuple[Doubt, ...]:
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
    sums = math.log2(schedule.n_tasks * times * GRID**degree)
    moved = channel.sensitivity(schedule.relation) * largest(strategy, schedule.passes)
    noise = math.log2(moved / float(channel.steps.min())) + BUDGET_BITS
    bits = min(math.floor(SUM_BITS - sums), math.floor(NOISE_BITS - noise), MOST_BITS)
    if bits < 0:
        raise PlanError(
            f"Sums over {schedule.n_tasks} tasks and {len(schedule)} rounds do not fit into integers of "
            "64 bits. Use fewer tasks or rounds, or exact=False for research."
        )
    return bits


def _nothing(encoded: NDArray[Any], channel: Channel, stream: Stream) -> Floats:
    raise PlanError("A plan without rounds has nothing to measure.")
