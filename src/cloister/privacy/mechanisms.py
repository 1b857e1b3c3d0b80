r"""Mechanisms: the only way from what is private to what is public.

A mechanism turns the sum of a round's messages into a noisy value and says what that costs. Before a run it
is told its rounds, who takes part, and against which neighbours (`Schedule`). For a run it
begins a `NoiseState`, which goes from round to round and may keep a secret between them; where noise is
fresh in every round (`PerRound`) there is nothing to keep.

The level of `Gaussian` is the run's total Gaussian-DP budget :math:`\mu`: a round with share :math:`s` of the
squared budget gets noise of standard deviation :math:`\Delta / (\mu \sqrt{s})`, where :math:`\Delta` is the
exact sensitivity of the channel in use. What a round costs is thereby fixed before it is known what is said
in it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats, is_real
from cloister.core.channel import Channel, Round
from cloister.core.errors import PlanError
from cloister.core.lifts import Relation
from cloister.privacy.caveats import FLOATING_POINT, Caveat
from cloister.privacy.events import Cost, Event, GaussianEvent
from cloister.privacy.noise import discrete_gaussian, integer_deviation
from cloister.privacy.noise_states import ReadRow, TaskSum
from cloister.privacy.randomness import Randomness, Stream, normals
from cloister.privacy.sampling import Sampling, passes_of

if TYPE_CHECKING:
    from cloister.privacy.noise import Law


@dataclass(frozen=True)
class Schedule:
    """The public frame of a run: nothing in it depends on data.

    Parameters
    ----------
    rounds : tuple of Round
        Each with its share of the squared budget and the channels it may use.
    sampling : Sampling
        Who takes part.
    n_tasks : int
        Public number of tasks.
    relation : Relation
        The neighbours for which the noise is set.
    messages : int
        How many messages a sum has at most; by default one of each task.

    Examples
    --------
    >>> from cloister.channel import Channel
    >>> from cloister.sampling import Everyone
    >>> from cloister.core.channel import equal_rounds
    >>> len(Schedule(equal_rounds(4, [Channel(3)]), Everyone(), 100, Relation.REPLACE))
    4
    """

    rounds: tuple[Round, ...]
    sampling: Sampling
    n_tasks: int
    relation: Relation
    messages: int = 0

    def __post_init__(self) -> None:
        if not self.messages:
            object.__setattr__(self, "messages", self.n_tasks)

    def __len__(self) -> int:
        return len(self.rounds)

    @property
    def passes(self) -> int:
        """How often a task may take part, at worst."""
        return passes_of(self.sampling, len(self))

    @cached_property
    def channel(self) -> Channel:
        """The channel that all rounds use, with equal shares; a schedule that differs is refused."""
        channels = {channel for round in self.rounds for channel in round.channels}
        shares = [round.share for round in self.rounds]
        if len(channels) != 1 or not math.isclose(min(shares), max(shares), rel_tol=1e-9):
            raise PlanError(
                "Correlated noise needs one channel and equal shares in all rounds. "
                f"Got {len(channels)} channels, and shares from {min(shares):.3g} to {max(shares):.3g}. "
                "Use Gaussian()."
            )
        return channels.pop()


FLOATING = "floating-point noise (attacks on the lowest bits of floating-point numbers are not covered)"


class NoiseState(Protocol):
    """A mechanism at work in one run: with the curator, and what it remembers of sums never leaves."""

    @property
    def rows(self) -> int:
        """How many rows of numbers it remembers of old sums, in secret; 0 where noise is fresh."""

    def release(self, total: TaskSum, channel: Channel) -> Floats:
        """Return the next round's release: its sum with noise, in units of the clip."""

    def recall(self, total: TaskSum, posted: Floats) -> None:
        """Take in a round whose sum is known and whose release is posted: nothing is released."""

    def listen(self, posted: Floats) -> None:
        """Take in a posted release without its sum; what is remembered of sums follows by `restore`."""

    def changed(self) -> dict[int, NDArray[Any]]:
        """Return the rows of the secret memory that changed since this was last asked."""

    def restore(self, read: ReadRow) -> None:
        """Fill the secret memory with rows as they were after the last round that was listened to."""


class Mechanism(ABC):
    """Noise and its price."""

    @property
    @abstractmethod
    def budget(self) -> float:
        """The level of the noise: for Gaussian noise the total mu if everyone took part in every round."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """What the guarantee says about the noise."""

    @property
    @abstractmethod
    def doubts(self) -> tuple[Caveat, ...]:
        """Doubts about a guarantee that rests on this noise."""

    @abstractmethod
    def cost(self, schedule: Schedule, relation: Relation) -> Cost:
        """Return what a run costs one task under `relation`; the noise is set for the schedule's own."""

    @abstractmethod
    def deviation(self, schedule: Schedule, round: int, channel: Channel) -> float:
        """Return the standard deviation of a release's noise on each coordinate, in units of the clip."""

    @abstractmethod
    def effective_mu(self, schedule: Schedule) -> float:
        """Return the budget at which fresh Gaussian noise in every round has the same deviation."""

    @abstractmethod
    def check(self, schedule: Schedule) -> None:
        """Refuse a schedule for which the noise cannot be made; called before anything is spent."""

    @abstractmethod
    def begin(self, schedule: Schedule, source: Randomness) -> NoiseState:
        """Return the state of the noise before the first round of a run."""

    @abstractmethod
    def scaled(self, budget: float) -> Mechanism:
        """Return the same mechanism with another total budget."""

    @property
    def calibrated(self) -> bool:
        return True

    @property
    def pure(self) -> bool:
        """Whether every release is purely differentially private, so that a delta of 0 can be had."""
        return False

    @property
    def exact(self) -> bool:
        """Whether noise is added to a sum of `Channel.rows`, which are whole, or of `Channel.units`."""
        return False

    @property
    def correlated(self) -> bool:
        """Whether the noise of one round depends on that of others; if so it is a `Correlated`."""
        return False

    @property
    def shareable(self) -> bool:
        """Whether tasks can add it in shares: discrete Gaussian on sums of `Channel.rows`, round by round."""
        return False

    @property
    def any_channel(self) -> bool:
        """Whether every round may have a channel, and a share of the budget, of its own."""
        return True

    @property
    def coordinatewise(self) -> bool:
        """Whether noise is drawn for each released number by itself, so that many releases are one call."""
        return False

    @property
    def smallest_dim(self) -> int | None:
        """The fewest numbers in a message on which this noise hides no more than on all of them.

        None if what it hides depends on how many there are.
        """
        return None

    def law(self, channel: Channel, noise: float) -> Law | None:
        """Return the law of the noise of this deviation on a channel; None where none is claimed."""
        return None


class PerRound(Mechanism):
    """Noise that is fresh in every round: the price of a run is made of the prices of its rounds."""

    @abstractmethod
    def event(self, round: Round, planned: Relation, relation: Relation) -> Event:
        """Return what a round costs a task that takes part, at worst over the channels it may use.

        The price is under `relation`; the noise is set for the sensitivity under `planned`.
        """

    @abstractmethod
    def noise(self, channel: Channel, planned: Relation, share: float) -> float:
        """Return the standard deviation of the noise on each coordinate, in units of the clip."""

    @abstractmethod
    def perturb(
        self, total: TaskSum, channel: Channel, noise: float, source: Randomness, round: int
    ) -> Floats:
        """Return the release: the sum with noise added, in units of the clip."""

    def cost(self, schedule: Schedule, relation: Relation) -> Cost:
        price = {round: self.event(round, schedule.relation, relation) for round in set(schedule.rounds)}
        events = tuple(price[round] for round in schedule.rounds)
        return Cost(events, schedule.sampling, schedule.n_tasks, relation.value)

    def deviation(self, schedule: Schedule, round: int, channel: Channel) -> float:
        return self.noise(channel, schedule.relation, schedule.rounds[round].share)

    def effective_mu(self, schedule: Schedule) -> float:
        """Return the budget, less where this noise has a larger deviation than Gaussian."""
        if not 0 < self.budget < math.inf:
            return self.budget
        excess = max(
            self.noise(c, schedule.relation, r.share)
            * self.budget
            * math.sqrt(r.share)
            / c.sensitivity(schedule.relation)
            for r in schedule.rounds
            for c in r.channels
        )
        return self.budget / round(excess, 12)  # 1 but for rounding where the noise is Gaussian

    def check(self, schedule: Schedule) -> None: ...

    def begin(self, schedule: Schedule, source: Randomness) -> NoiseState:
        return _Fresh(self, schedule, source)


@dataclass
class _Fresh:
    """The state of noise that is fresh in every round."""

    mechanism: PerRound
    schedule: Schedule
    source: Randomness
    turn: int = 0
    rows: int = 0

    def release(self, total: TaskSum, channel: Channel) -> Floats:
        noise = self.mechanism.deviation(self.schedule, self.turn, channel)
        value = self.mechanism.perturb(total, channel, noise, self.source, self.turn)
        self.turn += 1
        return value

    def recall(self, total: TaskSum, posted: Floats) -> None:
        self.turn += 1

    def listen(self, posted: Floats) -> None:
        self.turn += 1

    def changed(self) -> dict[int, NDArray[Any]]:
        return {}

    def restore(self, read: ReadRow) -> None:
        pass


@dataclass(frozen=True)
class Gaussian(PerRound):
    r"""Independent Gaussian noise on every released coordinate.

    On a symmetric matrix, released as `svec`, this is GOE noise: variance :math:`\sigma^2` on the diagonal
    and :math:`\sigma^2/2` off it.

    Parameters
    ----------
    mu : float, optional
        Total Gaussian-DP parameter of the run under the plan's relation. Left out, the plan must be
        calibrated to an epsilon before it can run.
    exact : bool, default=True
        Messages are rounded to a grid, summed as integers, and get a discrete Gaussian drawn without any
        floating point: what is proven is what runs. False adds floating-point noise, whose lowest bits can
        give a message away; for research, and the guarantee says so. It is also drawn while a device still
        computes the sum, hence not bound to it: never make a round again from another sum with it.

    Privacy
    -------
    A round with share s is exactly :math:`\mu\sqrt s`-GDP for a task that takes part in it; with integers as
    well (:func:`~cloister.privacy.noise.integer_deviation`), because messages are lifted after rounding.

    Examples
    --------
    >>> Gaussian(mu=0.5).noise(Channel(3), Relation.REPLACE, share=0.25)
    8.0
    """

    mu: float | None = None
    exact: bool = True

    def __post_init__(self) -> None:
        check_level(self.mu)

    @property
    def budget(self) -> float:
        """The total Gaussian-DP parameter if everyone took part in every round."""
        return level(self.mu)

    @property
    def calibrated(self) -> bool:
        return self.mu is not None

    @property
    def coordinatewise(self) -> bool:
        return True

    @property
    def smallest_dim(self) -> int:
        return 1

    def law(self, channel: Channel, noise: float) -> Law | None:
        """Return the normal law; None for integers of so few steps that they are visibly no normal ones."""
        from cloister.privacy.noise import FINE, GaussianLaw

        coarse = self.exact and noise < FINE * channel.steps.max()
        return GaussianLaw(noise) if noise > 0 and not coarse else None

    def event(self, round: Round, planned: Relation, relation: Relation) -> GaussianEvent:
        mu = self.budget * math.sqrt(round.share)
        against, silence = (growth(round, planned, r) for r in (relation, Relation.ZERO_OUT))
        return GaussianEvent(mu * against, mu * silence)

    def noise(self, channel: Channel, planned: Relation, share: float) -> float:
        return channel.sensitivity(planned) / (self.budget * math.sqrt(share))

    @property
    def kind(self) -> str:
        return "exact integer noise on a fixed-point sum" if self.exact else FLOATING

    @property
    def doubts(self) -> tuple[Caveat, ...]:
        return () if self.exact else (FLOATING_POINT,)

    @property
    def shareable(self) -> bool:
        return self.exact

    def check(self, schedule: Schedule) -> None:
        if self.exact:
            for share, channel in {(r.share, channel) for r in schedule.rounds for channel in r.channels}:
                noise = self.noise(channel, schedule.relation, share)
                integer_deviation(noise / float(channel.steps.min()))

    def perturb(
        self, total: TaskSum, channel: Channel, noise: float, source: Randomness, round: int
    ) -> Floats:
        stream = source.stream("noise", round)
        if not self.exact:
            drawn = noise * normals(stream.uniforms(channel.size))
            return np.asarray(total) + drawn  # looked at last: it may still be being computed
        value = on_grid(np.asarray(total), noise, channel.steps, stream).astype(np.float64)
        value *= channel.steps
        return value

    def scaled(self, budget: float) -> Gaussian:
        return replace(self, mu=budget)


@dataclass(frozen=True)
class NoNoise(PerRound):
    """No noise: the non-private run of the same algorithm. Its epsilon is infinite, and prints as such."""

    @property
    def budget(self) -> float:
        return math.inf

    def event(self, round: Round, planned: Relation, relation: Relation) -> GaussianEvent:
        return GaussianEvent(math.inf)

    def noise(self, channel: Channel, planned: Relation, share: float) -> float:
        return 0.0

    @property
    def kind(self) -> str:
        return "none"

    @property
    def doubts(self) -> tuple[Caveat, ...]:
        """None: epsilon is infinite, and nothing is claimed."""
        return ()

    def perturb(
        self, total: TaskSum, channel: Channel, noise: float, source: Randomness, round: int
    ) -> Floats:
        return np.asarray(total)

    def scaled(self, budget: float) -> NoNoise:
        raise PlanError("NoNoise() adds no noise and cannot be calibrated. Use Gaussian().")


def check_level(given: float | None) -> None:
    """Refuse a level that is no level; none at all is one that `calibrate` will find."""
    if given is not None and not (is_real(given) and 0 < given < math.inf):
        raise PlanError(f"mu must be > 0 and finite. Got {given}. Use NoNoise() for a non-private run.")


def level(given: float | None) -> float:
    """Return a mechanism's level, or say that it has none yet."""
    if given is None:
        raise PlanError("This plan has no noise level yet. Call plan.calibrate(epsilon) first.")
    return given


def on_grid(total: NDArray[Any], noise: float, steps: Floats, stream: Stream) -> NDArray[np.int64]:
    """Return whole numbers with exact noise, drawn for these numbers at this level and for no others."""
    bound = stream.bound_to(total, steps[:1] if _alike(steps) else steps, noise)
    drawn = grid_noise(noise, steps, bound)
    drawn += total
    return drawn


def grid_noise(noise: float, steps: Floats, stream: Stream) -> NDArray[np.int64]:
    """Return exact noise of one deviation on numbers that each have a step of their own, in steps."""
    if _alike(steps):
        return discrete_gaussian(integer_deviation(noise / steps[0]), len(steps), stream)
    whole = np.empty(len(steps), dtype=np.int64)
    left = np.ones(len(steps), dtype=np.bool_)
    while left.any():  # two or three kinds of numbers at most
        step = steps[left.argmax()]
        kind = steps == step
        whole[kind] = discrete_gaussian(integer_deviation(noise / step), int(kind.sum()), stream)
        left &= ~kind
    return whole


def _alike(steps: Floats) -> bool:
    return len(steps) > 0 and (steps.strides == (0,) or bool((steps == steps[0]).all()))


def growth(round: Round, planned: Relation, relation: Relation) -> float:
    """Return how much larger a sensitivity may be under `relation` than under the one planned for."""
    return max(c.sensitivity(relation) / c.sensitivity(planned) for c in round.channels)
