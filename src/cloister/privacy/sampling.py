"""Who takes part in which round, and whether the others can know it.

Sampling amplifies privacy only while the coin of a task stays secret. Under joint differential privacy the
other tasks may collude and pool their own coins, so secrecy is an *assertion* about a deployment, and the
default is ``hidden=False``: participation is visible and nothing is gained from it.

The denominators are public constants. The number of tasks that really took part is never used. Coins are
drawn when they are asked for: a long run does not hold all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from cloister.core.arrays import Floats
from cloister.core.errors import PlanError

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Participation:
    """A table of ``rounds`` rows and ``n_tasks`` columns of which one row at a time exists. Secret.

    ``table[t]`` says which tasks take part in round t: a boolean array, the same whenever it is asked for.
    ``table[t, task]`` and ``table[:, tasks]`` read as with an array, and the latter draws nothing yet;
    ``numpy.asarray(table)`` is the whole of it.

    Parameters
    ----------
    row : callable
        Returns the row of a round; gives the same again for the same round.
    rounds, n_tasks : int
        The shape.

    Examples
    --------
    >>> table = Participation(lambda t: np.arange(3) == t, rounds=2, n_tasks=3)
    >>> table[1].tolist(), bool(table[1, 0]), np.asarray(table[:, [1, 2]]).tolist()
    ([False, True, False], False, [[False, False], [True, False]])
    """

    row: Callable[[int], Mask] = field(repr=False)
    rounds: int
    n_tasks: int

    @classmethod
    def always(cls, n_tasks: int, rounds: int) -> Participation:
        return cls(partial(_alike, n_tasks, True), rounds, n_tasks)

    @classmethod
    def never(cls, n_tasks: int, rounds: int) -> Participation:
        return cls(partial(_alike, n_tasks, False), rounds, n_tasks)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rounds, self.n_tasks

    def __len__(self) -> int:
        return self.rounds

    def __iter__(self) -> Iterator[Mask]:
        return map(self.row, range(self.rounds))

    def __getitem__(self, at: Any) -> Any:
        rounds, tasks = at if isinstance(at, tuple) else (at, slice(None))
        if isinstance(rounds, slice) and rounds == slice(None) and not isinstance(tasks, int | np.integer):
            chosen = np.arange(self.n_tasks)[tasks]
            return Participation(partial(_chosen, self.row, chosen), self.rounds, len(chosen))
        if isinstance(rounds, int | np.integer):
            return self.row(range(self.rounds)[rounds])[tasks]
        return np.asarray(self)[at]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        whole = np.empty(self.shape, dtype=np.bool_)
        for t, row in enumerate(self):
            whole[t] = row
        return whole if dtype is None else whole.astype(dtype)


def _alike(n_tasks: int, value: bool, _: int) -> Mask:
    return np.full(n_tasks, value)


def _chosen(row: Callable[[int], Mask], tasks: npt.NDArray[np.int64], t: int) -> Mask:
    return row(t)[tasks]


Coins: TypeAlias = Callable[[int, int], Floats]
"""Secret source of uniforms: ``coins(t, n)`` returns handful number t, of ``n`` float64 numbers in (0, 1).

Asked for again it is the same, so that nobody need keep it.
"""


@runtime_checkable
class Sampling(Protocol):
    """How tasks are drawn for each round of a plan."""

    @property
    def hidden(self) -> bool:
        """Whether a task's coins are asserted to be known to the curator alone."""

    @property
    def independent(self) -> bool:
        """Whether a task can draw its own coins, because they do not depend on those of others."""

    def probability(self, n_tasks: int, rounds: int) -> float:
        """Probability that one given task takes part in one given round."""

    def denominator(self, n_tasks: int, rounds: int) -> float:
        """Public expected number of tasks in a round."""

    def draw(self, coins: Coins, n_tasks: int, rounds: int) -> Participation:
        """Draw who takes part: a boolean table of shape ``(rounds, n_tasks)``, one row at a time."""

    def describe(self) -> str:
        """Return a phrase for the guarantee."""


@dataclass(frozen=True)
class Everyone:
    """Every task takes part in every round.

    Examples
    --------
    >>> Everyone().denominator(n_tasks=139, rounds=10)
    139.0
    >>> Everyone().describe()
    'every task takes part in every round'
    """

    independent: ClassVar[bool] = True

    @property
    def hidden(self) -> bool:
        return False

    def probability(self, n_tasks: int, rounds: int) -> float:
        return 1.0

    def denominator(self, n_tasks: int, rounds: int) -> float:
        return float(n_tasks)

    def draw(self, coins: Coins, n_tasks: int, rounds: int) -> Participation:
        return Participation.always(n_tasks, rounds)

    def describe(self) -> str:
        return "every task takes part in every round"


@dataclass(frozen=True)
class Poisson:
    """Each task tosses its own coin in each round.

    Parameters
    ----------
    rate : float
        Probability of taking part in one round, in (0, 1].
    hidden : bool, default=False
        Assert that a task's coins are known to the curator alone: no other task and no observer can tell, by
        traffic, timing, logs, the task's own word, or the last bits of networks that were computed in one
        program with its own (see `Batched`), in which rounds it took part. Only then does sampling amplify
        privacy. Nothing in the library can check this.

    Examples
    --------
    >>> Poisson(0.25).denominator(n_tasks=100, rounds=10)
    25.0
    >>> Poisson(0.25).describe()
    'each task takes part in each round with probability 0.25, independently; who did may be seen by all'
    """

    independent: ClassVar[bool] = True

    rate: float
    hidden: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise PlanError(
                f"Poisson rate must be in (0, 1]. Got {self.rate!r}. "
                "Use Everyone() if all tasks take part in every round."
            )

    def probability(self, n_tasks: int, rounds: int) -> float:
        return float(self.rate)

    def denominator(self, n_tasks: int, rounds: int) -> float:
        return float(self.rate) * n_tasks

    def draw(self, coins: Coins, n_tasks: int, rounds: int) -> Participation:
        return Participation(partial(_below, coins, n_tasks, self.rate), rounds, n_tasks)

    def describe(self) -> str:
        seen = (
            "its coin is asserted to be hidden from everyone but the curator"
            if self.hidden
            else "who did may be seen by all"
        )
        return f"each task takes part in each round with probability {self.rate:g}, independently; {seen}"


@dataclass(frozen=True)
class FixedSize:
    """A uniformly random set of ``size`` tasks in each round; never amplifies.

    Parameters
    ----------
    size : int
        Number of tasks in a round, at least 1.
    hidden : bool, default=False
        Must stay False: colluders who know all other coins learn the last one by counting.

    Examples
    --------
    >>> FixedSize(20).probability(n_tasks=100, rounds=10)
    0.2
    """

    independent: ClassVar[bool] = False

    size: int
    hidden: bool = False

    def __post_init__(self) -> None:
        if self.size < 1 or int(self.size) != self.size:
            raise PlanError(f"FixedSize size must be a whole number >= 1. Got {self.size!r}. Pass, say, 10.")
        if self.hidden:
            raise PlanError(
                "FixedSize cannot be hidden: colluders who know all other coins learn the last one, so no "
                "amplification can be claimed. Got hidden=True. "
                "Use Poisson(rate, hidden=True) or hidden=False."
            )

    def probability(self, n_tasks: int, rounds: int) -> float:
        if self.size > n_tasks:
            raise PlanError(
                f"FixedSize size must be at most the number of tasks, {n_tasks}. Got {self.size}. "
                "Use Everyone() for all of them."
            )
        return self.size / n_tasks

    def denominator(self, n_tasks: int, rounds: int) -> float:
        return self.probability(n_tasks, rounds) * n_tasks

    def draw(self, coins: Coins, n_tasks: int, rounds: int) -> Participation:
        """Draw who takes part: the tasks that hold the smallest uniforms."""
        self.probability(n_tasks, rounds)
        return Participation(partial(_smallest, coins, n_tasks, self.size), rounds, n_tasks)

    def describe(self) -> str:
        return f"a random set of {self.size} tasks takes part in each round; who did may be seen by all"


@dataclass(frozen=True)
class OnePass:
    """Each task takes part in exactly one round; the rounds are as equal in size as can be.

    Needs no secrecy: a task is exposed once, whoever sees when.

    Examples
    --------
    >>> OnePass().denominator(n_tasks=100, rounds=10)
    10.0
    >>> OnePass().describe()
    'each task takes part in exactly one round; which one may be seen by all'
    """

    independent: ClassVar[bool] = False

    @property
    def hidden(self) -> bool:
        return False

    def probability(self, n_tasks: int, rounds: int) -> float:
        return 1 / rounds

    def denominator(self, n_tasks: int, rounds: int) -> float:
        return n_tasks / rounds

    def draw(self, coins: Coins, n_tasks: int, rounds: int) -> Participation:
        """Draw who takes part: a uniformly random balanced assignment of tasks to rounds."""
        # Both the order of tasks and that of rounds are random: no round is larger by right.
        order = np.argsort(coins(0, n_tasks), kind="stable")
        names = np.argsort(coins(1, rounds), kind="stable")
        turns = np.empty(n_tasks, dtype=np.int64)
        turns[order] = names[np.arange(n_tasks) % rounds]
        return Participation(partial(np.equal, turns), rounds, n_tasks)

    def describe(self) -> str:
        return "each task takes part in exactly one round; which one may be seen by all"


@dataclass(frozen=True)
class InOrder(OnePass):
    """Each task takes part in exactly one round, in the order in which tasks come: the first ones first.

    A round takes as many tasks as it must for all to have their turn, and the last one whoever is left. In
    `run` the order is that of the roster; in a `TaskStream` that of arrival.

    Needs no secrecy, and no coin: a task is exposed once, whoever sees when. But what is seen is not hidden
    either: that a task came, and when, must not depend on anybody's rows.

    Examples
    --------
    >>> np.asarray(InOrder().draw(lambda t, n: np.zeros(n), n_tasks=5, rounds=3)).astype(int).tolist()
    [[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]
    >>> InOrder().describe()  # doctest: +ELLIPSIS
    'each task takes part in exactly one round, in the order in which tasks come; who came, and when, is ...
    """

    def per_round(self, n_tasks: int, rounds: int) -> int:
        """Return how many tasks a full round takes."""
        return -(-n_tasks // max(1, rounds))

    def denominator(self, n_tasks: int, rounds: int) -> float:
        return float(self.per_round(n_tasks, rounds))

    def draw(self, coins: Coins, n_tasks: int, rounds: int) -> Participation:
        """Return who takes part; no coin is tossed."""
        turns = np.arange(n_tasks) // self.per_round(n_tasks, rounds)
        return Participation(partial(np.equal, turns), rounds, n_tasks)

    def describe(self) -> str:
        return (
            "each task takes part in exactly one round, in the order in which tasks come; who came, and "
            "when, is seen by all and must not depend on the rows of any task"
        )


@dataclass(frozen=True)
class Epochs:
    """Several passes over the tasks, in one order: a task takes part once a pass, always at the same place.

    Needs no secrecy: a task is exposed as often as there are passes, whoever sees when.

    Parameters
    ----------
    passes : int
        How often each task takes part; the number of rounds must be a multiple of it.

    Examples
    --------
    >>> Epochs(4).denominator(n_tasks=100, rounds=20)
    20.0
    >>> Epochs(4).describe()
    'each task takes part in 4 rounds, equally far apart; which ones may be seen by all'
    """

    independent: ClassVar[bool] = False

    passes: int

    def __post_init__(self) -> None:
        if self.passes < 1 or int(self.passes) != self.passes:
            raise PlanError(f"Epochs passes must be a whole number >= 1. Got {self.passes!r}. Pass, say, 4.")

    @property
    def hidden(self) -> bool:
        return False

    def probability(self, n_tasks: int, rounds: int) -> float:
        return 1 / self.slots(rounds)

    def denominator(self, n_tasks: int, rounds: int) -> float:
        return n_tasks / self.slots(rounds)

    def slots(self, rounds: int) -> int:
        """Return how many rounds a pass has."""
        if rounds % self.passes:
            raise PlanError(
                f"{self.passes} passes need a number of rounds that is a multiple of {self.passes}. "
                f"Got {rounds} rounds."
            )
        return max(1, rounds // self.passes)

    def draw(self, coins: Coins, n_tasks: int, rounds: int) -> Participation:
        one = OnePass().draw(coins, n_tasks, self.slots(rounds))
        return Participation(partial(_again, one), rounds, n_tasks)

    def describe(self) -> str:
        return (
            f"each task takes part in {self.passes} rounds, equally far apart; which ones may be seen by all"
        )


def passes_of(sampling: Sampling, rounds: int) -> int:
    """Return how often a task may take part, at worst: always in rounds that are equally far apart.

    Examples
    --------
    >>> [passes_of(sampling, 20) for sampling in (OnePass(), Epochs(4), Poisson(0.1))]
    [1, 4, 20]
    """
    if isinstance(sampling, OnePass):
        return 1
    if isinstance(sampling, Epochs) and sampling.slots(rounds):
        return sampling.passes if rounds else 0
    return rounds


def may_take_part(sampling: Sampling, rounds: int, taken: Sequence[int]) -> bool:
    """Say whether a task may take part in these rounds, by what its price was made for.

    Examples
    --------
    >>> [may_take_part(sampling, 20, [3, 8]) for sampling in (OnePass(), Epochs(4), Epochs(5), Poisson(0.1))]
    [False, True, False, True]
    """
    if isinstance(sampling, Epochs):
        return len({t % sampling.slots(rounds) for t in taken}) <= 1
    return len(taken) <= passes_of(sampling, rounds)


def _below(coins: Coins, n_tasks: int, rate: float, t: int) -> npt.NDArray[np.bool_]:
    return coins(t, n_tasks) < rate


def _smallest(coins: Coins, n_tasks: int, size: int, t: int) -> npt.NDArray[np.bool_]:
    row = np.zeros(n_tasks, dtype=np.bool_)
    row[np.argsort(coins(t, n_tasks), kind="stable")[:size]] = True
    return row


def _again(one: Participation, t: int) -> npt.NDArray[np.bool_]:
    return one.row(t % one.rounds)
