"""What an algorithm is: seven small pure functions over blocks, and nothing about noise or epsilon."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from cloister.core.errors import InputError, PlanError
from cloister.core.findings import Findings
from cloister.core.spec import Sender
from cloister.core.spelling import counted

if TYPE_CHECKING:
    from cloister.core.arrays import Array, Public, States
    from cloister.core.channel import Channel, Round
    from cloister.core.findings import EarlierPrior
    from cloister.core.metrics import Metric
    from cloister.core.roster import Groups
    from cloister.core.spec import DataSpec
    from cloister.core.tasks import Block
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


@dataclass(frozen=True)
class Budget:
    """What a schedule may know of the noise: public numbers, fixed before data is touched.

    Parameters
    ----------
    mu : float
        Level of the whole run; for Gaussian noise its Gaussian-DP parameter.
    pure : bool
        Whether every release is purely differentially private (delta is 0), so that the rounds' epsilons add
        up; if not, it is their squares that do.
    """

    mu: float
    pure: bool = False


class Network(Protocol):
    """A network and its loss, as an engine needs them to train it on another device.

    Both are torch's, which is imported where networks are trained and nowhere else.
    """

    @property
    def net(self) -> Any:
        """The network, an `nn.Module`."""

    @property
    def loss(self) -> Callable[[Any, Any], Any]:
        """From outputs and targets to one loss an example."""

    @property
    def personal(self) -> tuple[str, ...]:
        """Patterns of the names of parameters that stay at home."""

    @property
    def shared_size(self) -> int:
        """Number of parameters that messages speak of: the first ones; the others are personal."""

    @property
    def split(self) -> tuple[Any, Network] | None:
        """Its frozen prefix, and the rest as a network on what that makes of rows; None without one."""

    def for_rows(self, X: Array) -> Network:
        """Return what trains on rows of this kind: with several inputs it is another network."""

    def on_device(self, trainer: Any) -> Network:
        """Return the same, bound to what trains it on a device."""

    def settle(self, X: Array) -> None:
        """Find out how what it is bound to can run on rows of this kind."""

    def features_like(self, X: Array, device: Any, most: int) -> Any:
        """Return what the frozen prefix makes of synthetic rows; None if nothing is to be kept of it.

        Refuse one that mixes examples, tried on a device in batches of up to `most` rows.
        """

    def keep_apart(self, X: Array, device: Any) -> None:
        """Refuse frozen layers that mix examples, tried on a device."""

    def default_score(self, X: Array, y: Array) -> Metric | None:
        """Return the score, from 0 to 1, that the loss suggests for such targets; None if it has none."""

    def module(self, coef: Array) -> Any:
        """Return the network with one task's flat parameters."""

    def save(self, path: Path, coef: Array, facts: Mapping[str, str], *, private: bool) -> Path:
        """Write the network with one task's flat parameters to a file, with facts about them."""


class Algorithm(ABC):
    """An algorithm: a frozen dataclass of public numbers with seven pure methods.

    Every private array has a leading task axis and rows never mix: row i of what `init`, `send` and
    `finish` return depends on row i of their arguments and on the board alone, and so for `predict` and
    `losses`, which score many tasks at once. `check_algorithm` tests it.

    What follows the seven has defaults. Whoever declares `rows` has wrong data refused before they cost
    anything; `model_without_data`, `predict` and `losses` let boards and models be used by commands and
    evaluations;
    `network` lets `Batched` train it; `type_id` names it in files.
    """

    #: Its name in files, "owner/name/number"; None for "module:Class/1". It is not inherited.
    type_id: ClassVar[str | None] = None
    #: Whether it has a `locate` of its own, for what it searches for before its rounds.
    searches_itself: ClassVar[bool] = False

    @abstractmethod
    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        """Return the rounds, each one's share of the squared budget and the channels it may use."""

    @abstractmethod
    def start(self) -> Public:
        """Return what the board says before anyone speaks."""

    @abstractmethod
    def channel(self, board: BoardView) -> Channel:
        """Return what may leave a task in the coming round: one of the round's declared channels."""

    @abstractmethod
    def init(self, block: Block, board: BoardView) -> States:
        """Return the tasks' private state."""

    @property
    def audible_from(self) -> float:
        """From what product of tasks and budget on its search can find targets; 0 without one."""
        return 0.0

    def begins(self, capacity: int) -> int:
        """Return the round before which engines call `init`, out of so many.

        In earlier rounds tasks have no state: `send` gets and returns an empty one.
        """
        return 0

    @abstractmethod
    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        """Take in the board, do this round's local work, return raw messages and new states."""

    @abstractmethod
    def update(self, release: Release, board: BoardView) -> Public:
        """Turn a release into the board's next public arrays."""

    @abstractmethod
    def finish(self, states: States, block: Block, board: BoardView) -> States:
        """Return the tasks' models: private, local, free."""

    @property
    def plain_name(self) -> str:
        """Its name for those who do not read code."""
        return name_in_words(type(self))

    @property
    def rows(self) -> DataSpec | None:
        """The rows it takes; None if it does not say."""
        return None

    def model_without_data(self, board: BoardView) -> States:
        """Return the model of a task without rows, from the board alone; arrays of one task.

        An algorithm with groups adds a row for a task without rows in each of them.
        """
        raise InputError(
            f"A board of {type(self).__name__} has no model for a task without rows. Use replay (on the "
            "command line `cloister replay`) with the task's own rows."
        )

    @property
    def senders(self) -> frozenset[Sender]:
        """Who can send its messages, of which a plan's unit is one: tasks, unless it says otherwise.

        Where records send, `send` gets a block in which every record is a task of one row, with empty states:
        a record's message follows from its row and the board alone. `schedule` and `release.denominator` have
        the public number of records where they would have that of tasks. All else is of tasks.
        """
        return frozenset({Sender.TASK})

    @property
    def start_from(self) -> EarlierPrior | None:
        """What an earlier board says that its rounds start from, if they do."""
        return None

    def findings(self, board: BoardView) -> Findings:
        """Return what a board says beside its arrays: free, as it follows from the board alone."""
        return Findings()

    def predict(self, models: States, X: Array) -> Array:
        """Return what each task's model says of its own rows X (k, n, ...).

        Numbers, or probabilities of class 1, of shape (k, n); scores or probabilities of classes,
        (k, n, classes).
        """
        raise InputError(
            f"{type(self).__name__} does not say how its models predict. Give it a method predict(models, X)."
        )

    def losses(self, models: States, block: Block) -> Array | None:
        """Return each task's mean loss, (k,), of its own model on its own rows; None if it does not say."""
        return None

    @property
    def groups(self) -> Groups | None:
        """The public groups that it tells apart; None if tasks need no label."""
        return None

    def with_groups(self, groups: Groups) -> Algorithm:
        """Return the same algorithm for other groups."""
        raise PlanError(f"{type(self).__name__} knows no groups. Use an algorithm that does.")

    def for_newcomers(self) -> Algorithm:
        """Return the same for tasks that sent nothing in the run, should it count what they have sent."""
        return self

    @property
    def network(self) -> Network | None:
        """The network that it trains, if a device could; its models are then that network's parameters."""
        return None

    def with_network(self, network: Network) -> Algorithm:
        """Return the same algorithm with its network bound to a device."""
        raise PlanError(f"{type(self).__name__} trains no network. Use the engine Local().")

    @property
    def local_batch(self) -> int | None:
        """The most examples in one local step, which an engine reckons memory by; None for all rows."""
        return None


def name_in_words(kind: type) -> str:
    """Return a class's name for those who do not read code: shared-prior."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()


class Wrapper(Algorithm):
    """An algorithm around another: all that it does not define itself is the inner one's."""

    @property
    @abstractmethod
    def inner(self) -> Algorithm:
        """The algorithm inside."""

    @abstractmethod
    def around(self, inner: Algorithm) -> Self:
        """Return the same wrapper around another algorithm."""

    @property
    def plain_name(self) -> str:
        return f"{super().plain_name} ({self.inner.plain_name})"

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        return self.inner.schedule(n_tasks, budget)

    def start(self) -> Public:
        return self.inner.start()

    def channel(self, board: BoardView) -> Channel:
        return self.inner.channel(board)

    @property
    def audible_from(self) -> float:
        return self.inner.audible_from

    def begins(self, capacity: int) -> int:
        return self.inner.begins(capacity)

    def init(self, block: Block, board: BoardView) -> States:
        return self.inner.init(block, board)

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        return self.inner.send(states, block, board)

    def update(self, release: Release, board: BoardView) -> Public:
        return self.inner.update(release, board)

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        return self.inner.finish(states, block, board)

    @property
    def rows(self) -> DataSpec | None:
        return self.inner.rows

    def model_without_data(self, board: BoardView) -> States:
        return self.inner.model_without_data(board)

    @property
    def start_from(self) -> EarlierPrior | None:
        return self.inner.start_from

    def findings(self, board: BoardView) -> Findings:
        return self.inner.findings(board)

    def predict(self, models: States, X: Array) -> Array:
        return self.inner.predict(models, X)

    def losses(self, models: States, block: Block) -> Array | None:
        return self.inner.losses(models, block)

    @property
    def groups(self) -> Groups | None:
        return self.inner.groups

    def with_groups(self, groups: Groups) -> Algorithm:
        return self.around(self.inner.with_groups(groups))

    def for_newcomers(self) -> Algorithm:
        return self.around(self.inner.for_newcomers())

    @property
    def network(self) -> Network | None:
        return self.inner.network

    def with_network(self, network: Network) -> Algorithm:
        return self.around(self.inner.with_network(network))

    @property
    def local_batch(self) -> int | None:
        return self.inner.local_batch


@dataclass(frozen=True)
class PlannedStage:
    """Some rounds of a plan that are about one thing.

    Attributes
    ----------
    about : str
        What tasks are asked for in them, in a few words.
    rounds : int
        How many there are.
    numbers : int
        How many numbers a task says in one of them, at most.
    share : float
        Their part of the budget: of its square, as noise adds up so; of epsilon itself where delta is 0.

    Examples
    --------
    >>> from cloister import Plan
    >>> from cloister.algorithms import Locate, SharedPrior
    >>> from cloister.learners import Regression
    >>> plan = Plan(SharedPrior(Regression(3), locate=Locate()), n_tasks=200).calibrate(epsilon=1.0)
    >>> for stage in plan.stages:
    ...     print(stage)
    where targets are: 3 rounds of 32 numbers, 10.0 % of the budget
    how large the noise in rows is: 1 round of 2 numbers, 1.8 % of the budget
    where weights lie, and how they vary: 9 rounds of 3 numbers, 84.6 % of the budget
    how far tasks differ: 1 round of 16 numbers, 1.8 % of the budget
    how far tasks rely on what they share: 1 round of 2 numbers, 1.8 % of the budget
    """

    about: str
    rounds: int
    numbers: int
    share: float

    @classmethod
    def of(cls, about: str, rounds: Sequence[Round]) -> PlannedStage:
        numbers = max(channel.dim for round in rounds for channel in round.channels)
        return cls(about, len(rounds), numbers, math.fsum(round.share for round in rounds))

    def __str__(self) -> str:
        rounds, numbers = counted(self.rounds, "round"), counted(self.numbers, "number")
        return f"{self.about}: {rounds} of {numbers}, {100 * self.share:.1f} % of the budget"
