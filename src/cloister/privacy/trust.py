r"""Whom tasks trust with their messages, and therefore who adds the noise.

Where a curator is trusted it sees each clipped message and adds the noise itself. Where it is not, tasks lift
their messages and add noise at home. What is priced is a release with noise of standard deviation
:math:`\sigma` that the adversary knows nothing of:

* with a *secure sum* nobody sees a message. Only the sum opens, and each of n tasks has put a share of
  variance :math:`\sigma^2 / (n - t - c)` into it. Where t tasks drop out, and c pool what they know with the
  curator, n - t - c shares are left that the adversary does not know: noise of variance :math:`\sigma^2`;
* with noise *at each task* (a silo) a share has all of :math:`\sigma^2`, and whoever sees the message of one
  task, and everything else there is, has that noise in the way.

A share is a discrete Gaussian of five grid steps or more. The sum of n - t - c of them is, up to a factor of
1 + 10^-100 in any probability of one number, the discrete Gaussian of their variance [1]_, whose price is
that of the Gaussian (`cloister.privacy.noise.integer_deviation`).

References
----------
.. [1] Kairouz, Liu, Steinke, "The distributed discrete Gaussian mechanism for federated learning with secure
   aggregation", arXiv:2102.06387, Corollary 12.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats, Integers
from cloister.core.channel import GRID, Channel
from cloister.core.errors import InputError, PlanError
from cloister.privacy.guarantee import TRUSTED_CURATOR
from cloister.privacy.mechanisms import Mechanism, NoiseState, Schedule, on_grid
from cloister.privacy.noise_states import NoisySum, ReadRow, TaskSum
from cloister.privacy.randomness import Randomness, Stream
from cloister.privacy.sampling import Everyone, Sampling
from cloister.privacy.statement import ALL_OTHERS

#: Deviations of the noise that a sum of 64 bits has room for: beyond them is less than 1e-300.
_ROOM = 40
#: Every pair of tasks has masks of its own, so that work grows with the square of their number.
MOST_TASKS = 1000


class Trust(ABC):
    """Whom tasks trust with their messages, and who adds the noise: a value of a `Plan`.

    Examples
    --------
    >>> Trust.curator()
    TrustedCurator()
    >>> round(Trust.secure_sum(dropouts=1).deviation(1.0, n_tasks=8) ** 2, 3)  # 8 shares, 6 are counted on
    1.333
    >>> Trust.silo().deviation(1.0, n_tasks=9)
    3.0
    """

    @staticmethod
    def curator() -> TrustedCurator:
        """Let the curator see each clipped message and add the noise: least noise, and the default."""
        return TrustedCurator()

    @staticmethod
    def secure_sum(dropouts: int = 0, colluders: int = 1, curator_noise: bool | None = None) -> SecureSum:
        """Let nobody see a message: only the sum of all tasks opens, with the tasks' noise in it.

        Parameters
        ----------
        dropouts : int, default=0
            How many tasks may fail to answer in a round. With 0 a round waits until everyone has answered.
        colluders : int, default=1
            How many tasks may pool what they know with the curator; at least 1, as each knows its own share.
        curator_noise : bool, optional
            Whether the curator adds as much noise as is priced, on top, for who trusts neither side alone.
        """
        return SecureSum(dropouts, colluders, curator_noise)

    @staticmethod
    def silo() -> SiloNoise:
        """Trust nobody: each task adds all the noise at home, and a sum of m has sqrt(m) times as much."""
        return SiloNoise()

    @property
    def at_home(self) -> bool:
        """Whether tasks add the noise, and the curator none."""
        return True

    @property
    def masked(self) -> bool:
        """Whether messages leave their tasks under masks that only their sum is rid of."""
        return False

    @property
    def stepwise(self) -> bool:
        """Whether a sum is opened in several steps, as tasks may drop out of it."""
        return False

    @property
    @abstractmethod
    def adversary(self) -> str:
        """Who is kept from knowing, in a few words that a ledger compares; empty for a trusted curator."""

    @abstractmethod
    def parts(self, n_tasks: int) -> int:
        """Return how many shares together have the variance that is priced."""

    @abstractmethod
    def fewest(self, n_tasks: int) -> int:
        """Return how many shares a sum must have before it is released."""

    @abstractmethod
    def against(self, n_tasks: int) -> str:
        """Return against whom the guarantee holds, as its statement says."""

    @abstractmethod
    def describe(self, n_tasks: int) -> str:
        """Return what the guarantee says of who is trusted with what."""

    def kind(self, kind: str) -> str:
        """Return what the guarantee says of noise of this kind."""
        return f"{kind}, in shares that the tasks add at home"

    def deviation(self, noise: float, n_tasks: int, shares: int | None = None) -> float:
        """Return the noise in a release of so many shares (by default of all tasks), priced as `noise`."""
        count = n_tasks if shares is None else shares
        return noise * math.sqrt(count / self.parts(n_tasks))

    def deviations(self, noise: float, n_tasks: int, answered: int | None = None) -> Floats:
        """Return all that the noise of a release may be; where so many have answered, of so many shares."""
        counts = range(self.fewest(n_tasks), n_tasks + 1)
        due = counts if answered is None or not self.at_home else set(counts) & {answered}
        return np.array([self.deviation(noise, n_tasks, count) for count in due])

    def among_few(self) -> Trust:
        """Return trust of the same kind for a run of a few tasks, such as the auditor's."""
        return self

    def accept(self, mechanism: Mechanism, sampling: Sampling, n_tasks: int) -> None:
        """Refuse a plan whose noise its tasks cannot share."""
        kind = type(self).__name__
        if not mechanism.shareable:
            raise PlanError(
                f"{kind} needs noise that tasks can add in shares: exact Gaussian noise, fresh in every "
                f"round. Got {type(mechanism).__name__}. Use Gaussian(), or Trust.curator()."
            )
        if not isinstance(sampling, Everyone):
            raise PlanError(
                f"{kind} counts on a noise share of every task: all take part in every round. Got "
                f"{type(sampling).__name__}. Use Everyone(), or Trust.curator()."
            )

    def check_quorum(self, quorum: int, n_tasks: int) -> None:
        """Refuse to wait for fewer tasks than a sum opens of, or for more than there are."""
        least = self.fewest(n_tasks) if self.masked else 1
        if not least <= quorum <= n_tasks:
            raise PlanError(
                f"quorum must be at least {least}, the fewest tasks whose sum is released, and at most "
                f"n_tasks, {n_tasks}. Got {quorum}."
            )

    def check(self, mechanism: Mechanism, schedule: Schedule) -> None:
        """Refuse sums that may not fit into 64 bits, by public numbers; before anything is charged."""
        n = schedule.n_tasks
        for t, round in enumerate(schedule.rounds):
            for channel in round.channels:
                noise = self.deviation(mechanism.deviation(schedule, t, channel), n)
                if not (largest_sum(channel, schedule, noise) < 2.0**63).all():
                    raise PlanError(
                        f"The sums of {schedule.messages} messages with their noise may not fit into 64 "
                        "bits, which are added without a check. Ask for a larger epsilon, or fewer messages."
                    )

    def begin(self, mechanism: Mechanism, schedule: Schedule, source: Randomness) -> NoiseState:
        """Return the curator's noise before the first round of a run; none, where tasks have added it."""
        return _AlreadyNoisy(self, mechanism, schedule, None)

    def unknown(self, mechanism: Mechanism, schedule: Schedule, source: Randomness) -> NoiseState:
        """Return the noise as it is priced, for attacks: in shares that whoever attacks does not know."""
        return _UnknownShares(self, mechanism, schedule, source)


def with_share(
    trust: Trust,
    mechanism: Mechanism,
    schedule: Schedule,
    round: int,
    channel: Channel,
    lifted: Integers,
    stream: Stream,
) -> Integers:
    """Return a task's lifted message with its share of a round's noise.

    The share is drawn for these numbers, from a stream that the task alone knows: the same for the same ones.
    """
    priced = mechanism.deviation(schedule, round, channel)
    share = priced / math.sqrt(trust.parts(schedule.n_tasks))
    return on_grid(lifted, share, channel.steps, stream)


def largest_sum(channel: Channel, schedule: Schedule, noise: float) -> Floats:
    """Return how large each number of a noisy sum may be, in steps of the grid, from public numbers."""
    degrees = channel.lift.weights(channel.dim)[1]
    rounding = 8 * math.sqrt(schedule.n_tasks)
    return schedule.messages * float(GRID) ** degrees + _ROOM * (noise / channel.steps + rounding)


@dataclass(frozen=True)
class TrustedCurator(Trust):
    """The curator sees each clipped message, and adds the noise."""

    @property
    def at_home(self) -> bool:
        return False

    @property
    def adversary(self) -> str:
        return ""

    def parts(self, n_tasks: int) -> int:
        return n_tasks

    def fewest(self, n_tasks: int) -> int:
        return n_tasks

    def against(self, n_tasks: int) -> str:
        return ALL_OTHERS

    def describe(self, n_tasks: int) -> str:
        return TRUSTED_CURATOR

    def kind(self, kind: str) -> str:
        return kind

    def accept(self, mechanism: Mechanism, sampling: Sampling, n_tasks: int) -> None: ...

    def check(self, mechanism: Mechanism, schedule: Schedule) -> None: ...

    def begin(self, mechanism: Mechanism, schedule: Schedule, source: Randomness) -> NoiseState:
        return mechanism.begin(schedule, source)

    def unknown(self, mechanism: Mechanism, schedule: Schedule, source: Randomness) -> NoiseState:
        return mechanism.begin(schedule, source)


@dataclass(frozen=True)
class SecureSum(Trust):
    r"""Messages are masked, so that only their sum opens; the noise in it is the tasks'.

    Parameters
    ----------
    dropouts : int
        t, how many tasks may fail to answer in a round.
    colluders : int
        c, how many tasks may pool what they know with the curator.
    curator_noise : bool, optional
        Whether the curator adds noise of the priced variance to the sum that opens.

    Privacy
    -------
    Priced against the curator and any c tasks together, who know their own messages and shares of noise. A
    further colluder takes another share away: c + 1 leave (n - t - c - 1) / (n - t - c) of the variance. All
    other tasks without the curator know no more than the releases, and their own shares. With the noise
    of the curator on top, the price holds against all of them together too, if it adds it and tells
    nobody, and if they see no masked message on its way, which their masks and shares would open.

    Notes
    -----
    Where tasks may drop out, k of them must help to open a sum, with (n + c) / 2 < k <= n - t: two sets that
    differ cannot both find k helpers, if each honest task helps with one. The smallest k is used.
    """

    dropouts: int = 0
    colluders: int = 1
    curator_noise: bool | None = None

    def __post_init__(self) -> None:
        for name, least in (("dropouts", 0), ("colluders", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise PlanError(f"{name} must be a whole number, at least {least}. Got {value!r}.")
        if self.curator_noise not in (None, True):
            raise PlanError(f"curator_noise must be True or None. Got {self.curator_noise!r}.")

    @property
    def masked(self) -> bool:
        return True

    @property
    def stepwise(self) -> bool:
        return self.dropouts > 0

    def among_few(self) -> SecureSum:
        return SecureSum(curator_noise=self.curator_noise)

    @property
    def adversary(self) -> str:
        return f"the curator and {self.colluders} of the tasks"

    def threshold(self, n_tasks: int) -> int:
        """Return how many tasks must help to open a sum from which some have dropped out."""
        return (n_tasks + self.colluders) // 2 + 1

    def parts(self, n_tasks: int) -> int:
        return n_tasks - self.dropouts - self.colluders

    def fewest(self, n_tasks: int) -> int:
        return n_tasks - self.dropouts

    def deviation(self, noise: float, n_tasks: int, shares: int | None = None) -> float:
        return math.hypot(super().deviation(noise, n_tasks, shares), noise if self.curator_noise else 0.0)

    def kind(self, kind: str) -> str:
        on_top = ", with the curator's own noise on top" if self.curator_noise else ""
        return super().kind(kind) + on_top

    def begin(self, mechanism: Mechanism, schedule: Schedule, source: Randomness) -> NoiseState:
        own = mechanism.begin(schedule, source) if self.curator_noise else None
        return _AlreadyNoisy(self, mechanism, schedule, own)

    def against(self, n_tasks: int) -> str:
        tasks = "any one of the other tasks" if self.colluders == 1 else f"any {self.colluders} other tasks"
        return (
            f"the curator together with {tasks}, even if they pool their data, their models and all "
            "that they have seen, and everybody else who sees what is published"
            + (
                "; or all other tasks together, without the curator, if it adds its noise, tells nobody, and "
                "they see no message on its way"
                if self.curator_noise
                else ""
            )
        )

    def describe(self, n_tasks: int) -> str:
        t, c, parts = self.dropouts, self.colluders, self.parts(n_tasks)
        missing = (
            f"at most {t} of the {n_tasks} tasks fail to answer in a round"
            if t
            else "a round waits until all tasks have answered"
        )
        return (
            "nobody sees the message of another task, and neither does the curator: only the sum over tasks "
            f"opens, with noise in it that the tasks have added. This holds if {missing}, and if at most {c} "
            f"of them collude{'s' if c == 1 else ''} with the curator; {c + 1} leave {parts - 1}/{parts} of "
            "the noise's variance. Nobody can check a message that is masked: a task that breaks the rules "
            "can spoil the result, not the privacy of others. The protocol has had no review from outside"
        )

    def accept(self, mechanism: Mechanism, sampling: Sampling, n_tasks: int) -> None:
        n, t, c = n_tasks, self.dropouts, self.colluders
        if n < 3 or n - t - c < 2:
            raise PlanError(
                "A secure sum needs 3 tasks, and 2 that neither drop out nor collude: n - dropouts - "
                f"colluders >= 2. Got {n}, {t} and {c}. Use Trust.silo(), where nobody is counted on."
            )
        if n > MOST_TASKS:
            raise PlanError(
                f"A secure sum masks every pair of tasks, and is for at most {MOST_TASKS} of them. Got {n}. "
                "Use Trust.curator(), or Trust.silo()."
            )
        if t and self.threshold(n) > n - t:
            raise PlanError(
                "With drop-outs more than (n + colluders) / 2 tasks must answer: dropouts < (n - colluders) "
                f"/ 2. Got {t} of {n} tasks, and {c} colluders. Use fewer, or 0, which waits for all."
            )
        super().accept(mechanism, sampling, n_tasks)


@dataclass(frozen=True)
class SiloNoise(Trust):
    r"""Every task adds all of the noise to its own message: the sum over m tasks has sqrt(m) times as much.

    Privacy
    -------
    What is priced is one task's noisy message, against the curator and all other tasks together. Nobody is
    counted on, and who answers makes no difference.
    """

    @property
    def adversary(self) -> str:
        return "everybody else"

    def parts(self, n_tasks: int) -> int:
        return 1

    def fewest(self, n_tasks: int) -> int:
        return 1

    def against(self, n_tasks: int) -> str:
        return f"the curator, and {ALL_OTHERS}"

    def describe(self, n_tasks: int) -> str:
        return "nobody is trusted with a message: its task adds the noise before it leaves"

    def kind(self, kind: str) -> str:
        return f"{kind}, all of it added by each task at home"


@dataclass
class _AtHome:
    """What states of noise that tasks add have in common: it is fresh in every round."""

    trust: Trust
    mechanism: Mechanism
    schedule: Schedule
    turn: int = field(default=0, init=False)
    rows: int = field(default=0, init=False)

    def recall(self, total: TaskSum, posted: Floats) -> None:
        self.turn += 1

    def listen(self, posted: Floats) -> None:
        self.turn += 1

    def changed(self) -> dict[int, NDArray[Any]]:
        return {}

    def restore(self, read: ReadRow) -> None: ...


@dataclass
class _AlreadyNoisy(_AtHome):
    """The curator's noise where tasks have added theirs, if any: and no sum without theirs passes."""

    own: NoiseState | None

    def recall(self, total: TaskSum, posted: Floats) -> None:
        self.listen(posted)

    def listen(self, posted: Floats) -> None:
        super().listen(posted)
        if self.own is not None:
            self.own.listen(posted)

    def release(self, total: TaskSum, channel: Channel) -> Floats:
        if not isinstance(total, NoisySum):
            raise InputError("A sum without its tasks' noise is not released. Let the tasks add theirs.")
        n = self.schedule.n_tasks
        if not self.trust.fewest(n) <= total.shares <= n:
            raise InputError(
                f"A sum needs noise shares of {self.trust.fewest(n)} to {n} tasks. Got {total.shares}. Wait "
                "for more answers."
            )
        noise = self.mechanism.deviation(self.schedule, self.turn, channel)
        whole = np.asarray(total)
        largest = largest_sum(channel, self.schedule, self.trust.deviation(noise, n))
        if whole.shape != largest.shape or not (np.abs(whole.astype(np.float64)) <= largest).all():
            raise InputError(
                "A sum did not open: it is larger than messages and noise can be. One task has sent "
                "something else, or masks were made of different keys. Ask all tasks again, or end the run."
            )
        self.turn += 1
        return np.asarray(whole * channel.steps) if self.own is None else self.own.release(whole, channel)


@dataclass
class _UnknownShares(_AtHome):
    """As many shares as are counted on, each of a key of its own: what is in the way of an attack."""

    source: Randomness

    def release(self, total: TaskSum, channel: Channel) -> Floats:
        whole = np.asarray(total)
        for place in range(self.trust.parts(self.schedule.n_tasks)):
            own = self.source.stream(f"noise share of task {place}", self.turn)
            parts = self.trust, self.mechanism, self.schedule
            whole = with_share(*parts, self.turn, channel, whole, own)
        self.turn += 1
        return np.asarray(whole * channel.steps)
