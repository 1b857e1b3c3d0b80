"""The seam between the curator and the places where tasks live.

An engine answers one question: where do tasks live, and who computes on them? It gives the curator `Workers`.
The curator's side (`cloister.engines.curator`) is the same for all engines and sees nothing but what
`Workers.collect` returns: a `TaskSum` or `GridRows`. Rows, states and models stay with the workers.

All tasks of one operator may come in shards, which are read where they are computed on. Who runs a plan over
shards holds the public names of the tasks and which shard each is in. That is not the same as tasks that live
apart (a `Roster`): here one operator answers for all rows, draws the coins, and has a seed for each task.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Array, Integers, States, Words
from cloister.core.channel import GRID, Channel
from cloister.core.errors import AlgorithmError, InputError, PlanError, PrivateDataError
from cloister.core.roster import NO_GROUP, Roster
from cloister.core.tasks import Tasks
from cloister.plan.plan import Plan
from cloister.privacy.caveats import Caveat
from cloister.privacy.chacha_proposals import Sampler
from cloister.privacy.noise_states import TaskSum
from cloister.store.billboard import Billboard
from cloister.store.checkpoints import SavedState


class ShardError(InputError):
    """Files that cannot be read, or are not as they were made; says nothing of what is in a row."""


class ShardSource(Protocol):
    """Where the rows of one shard are; small, and sent to who computes on them."""

    def load(self) -> Tasks:
        """Read and encode the rows; refuse those that do not fit, to the operator alone."""


class Shards(ABC):
    """All tasks of one operator, in parts."""

    @property
    @abstractmethod
    def roster(self) -> Roster:
        """The public list of all tasks."""

    @property
    @abstractmethod
    def positions(self) -> Sequence[Integers]:
        """The positions on the roster of each part's tasks, in the order in which `Part.load` has them."""

    @abstractmethod
    def part(self, number: int) -> ShardSource:
        """Return where the rows of a part are."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that stands for all rows and how they are encoded. Private."""

    @property
    @abstractmethod
    def shape(self) -> Tasks:
        """Tasks like these, without a row: how many features, and what kind of targets."""

    @property
    def names(self) -> Array:
        """The names on the roster, as an array."""
        return np.array(self.roster.names)

    def __len__(self) -> int:
        return len(self.roster)

    @property
    def groups(self) -> Array | None:
        """The public label of each task, if they have any."""
        return None if self.roster.groups is None else np.array(self.roster.groups)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} tasks in {len(self.positions)} shards, private)"


def names_digest(names: Array) -> bytes:
    """Return a hash of names in their order, to tell whether a part holds the tasks that it should."""
    return hashlib.blake2b(repr(names.tolist()).encode(), digest_size=16).digest()


#: All tasks of a run: with their rows, in shards whose rows are read elsewhere, or of others, by name.
AnyTasks: TypeAlias = Tasks | Shards | Roster
#: Which tasks take part in a round.
Coins: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class GridRows:
    """Messages as they left their tasks: on the channel's grid, not summed. Private.

    The curator checks each exactly, refuses a second one of a task, and lifts and sums them itself. Where
    records send, what leaves a task is their lifted sum, of which the curator can check the range alone.

    Attributes
    ----------
    values : int64 array of shape (messages, width)
        Made by `Channel.rows`; where records send by `Channel.whole_sum`.
    tasks : sequence of int
        The position on the roster of each one's task.
    """

    values: Integers
    tasks: Sequence[int]

    def __repr__(self) -> str:
        return f"GridRows({len(self.tasks)} messages, private)"


#: What a round's collecting gives the curator: a sum (a `NoisySum` where tasks have added noise), or rows.
Collected: TypeAlias = TaskSum | GridRows


class Workers(Protocol):
    """All tasks of a run, each with its own data and state."""

    def start(self, board: Billboard) -> None:
        """Let every task make its first state, now or before the round in which its algorithm begins."""

    def collect(self, board: Billboard, channel: Channel, coins: Coins) -> Collected:
        """Let the sampled tasks do a round's work; return the sum of their messages, or each as `GridRows`.

        The sum is what the plan's mechanism takes. The channel is the round's, as the curator has computed it
        from the board and found it declared; a node of another institution computes its own all the same.
        Where `coins` is empty, each task draws and keeps its own.
        """

    def listen(self, board: Billboard, coins: Coins) -> None:
        """Let the sampled tasks do a round's work whose release is posted already: nothing leaves them."""

    def finish(self, board: Billboard, folder: Path | None = None) -> States:
        """Let every task make its model from its state as it is; return models in the order of the tasks.

        Workers that keep models to themselves return nothing, ``{}``. Models that are too large for memory
        may be put into a file in the folder.
        """

    def rejected(self) -> int:
        """Return how many messages were not finite, and counted as zero. Private."""

    def save_state(self, folder: Path | None = None) -> SavedState:
        """Return what workers know between two rounds, to go on from there without listening again.

        States that are too large for memory may be put into a file in the folder.
        """

    def restore_state(self, saved: SavedState) -> None:
        """Go on from what was saved, by workers of any layout; in place of `start` and the rounds since."""


@runtime_checkable
class Engine(Protocol):
    """Where and how tasks are computed on; does not change what is released."""

    @property
    def remote(self) -> bool:
        """Whether releases leave this process for those that compute: each is on disk for good before."""

    def doubts_of(self, plan: Plan) -> tuple[Caveat, ...]:
        """Return what computing a plan there takes away from its guarantee."""

    def noise_sampler(self) -> Sampler:
        """Return who computes candidates of exact noise for the curator; they are the same whoever does."""

    def workers(self, plan: Plan, tasks: AnyTasks, seeds: Words) -> AbstractContextManager[Workers]:
        """Make the workers of a run, and refuse a plan or tasks that they cannot compute on.

        Engines in this process get rows, and each task's seed for its local randomness; those of one operator
        whose rows are read elsewhere get shards, and the seeds. Engines whose tasks are others' get a roster
        and an empty array: each task has a seed of its own.
        """


def summed(collected: Collected) -> TaskSum:
    """Return what engines of one operator collect, which is a sum."""
    assert not isinstance(collected, GridRows)
    return collected


def catch_up(workers: Workers, board: Billboard, first: int, coins: Iterable[Coins]) -> None:
    """Let workers do the work of rounds whose releases are posted, from round number `first` on.

    Each of `coins` says who takes part in a round; workers are started, or restored, before.
    """
    for t, own in enumerate(coins, start=first):
        workers.listen(board.before(t), own)


def begins_later(plan: Plan, board: Billboard) -> bool:
    """Say whether rounds come first in which tasks have no state."""
    return board.rounds < plan.algorithm.begins(board.capacity)


def begins_now(plan: Plan, board: Billboard) -> bool:
    """Say whether such rounds are over, and states are made before anything else."""
    return 0 < board.rounds == plan.algorithm.begins(board.capacity)


def check_engine(engine: object) -> None:
    """Refuse what is no engine, such as the name of a device."""
    if isinstance(engine, type) or not isinstance(engine, Engine):
        raise InputError(
            f"engine must be an engine. Got {engine!r}. Write engine=cloister.engines.Local(), or for "
            'networks Batched("cpu") or Batched("cuda").'
        )


def check_tasks(tasks: object, name: str = "tasks") -> None:
    """Refuse rows without the names of their tasks."""
    if not isinstance(tasks, AnyTasks):
        raise InputError(
            f"{name} must be Tasks. Got a {type(tasks).__name__}. Write "
            "Tasks.from_arrays(X, y, tasks), with the task of each row."
        )


def check_callable(**functions: object) -> None:
    """Refuse what cannot be called; before anything is charged."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise InputError(
                f"{name} must be a function of one argument. Got {function!r}. Leave it out, or pass one."
            )


def rows_of(tasks: AnyTasks, engine: object) -> Tasks:
    """Return the tasks with their rows; refuse what has none here."""
    if isinstance(tasks, Tasks):
        return tasks
    if isinstance(tasks, Shards):
        raise InputError(
            f"{type(engine).__name__} computes on rows that are here, and those of shards are elsewhere. "
            "Pass engine=Cluster(), or Tasks."
        )
    raise InputError(
        f"{type(engine).__name__} computes on the rows of tasks, and a roster has none. Pass Tasks, or an "
        "engine whose tasks are elsewhere."
    )


def checked_rows(plan: Plan, tasks: AnyTasks, engine: object) -> Tasks:
    """Return the tasks with their rows; refuse targets that are no class, to the operator alone.

    So are more records than a plan is priced for, and records of no weight, which would be left out.
    """
    rows = rows_of(tasks, engine)
    if plan.unit.by_record and len(rows.y) > plan.senders:
        raise PrivateDataError(
            f"The plan is for at most {plan.senders} records. Got {len(rows.y)}. Make a plan for as many."
        )
    if plan.unit.by_record and not (rows.weight > 0).all():  # others' places, and last bits, would follow it
        raise PrivateDataError("Where records send, each must have a weight above 0. Leave the others out.")
    if plan.unit.limit is not None and rows.turn is None:
        raise InputError(
            "The plan protects persons, and whose each row is nobody has said. Pass "
            "person=labels to Tasks.from_arrays, or to fit."
        )
    if plan.algorithm.rows is not None:
        plan.algorithm.rows.check_labels(rows.X, rows.y)
    return rows


def group_positions(plan: Plan, tasks: AnyTasks) -> Integers:
    """Return the position of each task's public group in the plan: -1 for those without a label.

    A label that names none of the plan's groups is refused.
    """
    if plan.algorithm.groups is None or tasks.groups is None:
        return np.full(len(tasks), NO_GROUP)
    return plan.algorithm.groups.positions(tasks.groups)


def check_groups(plan: Plan, roster: Roster) -> None:
    """Refuse a roster whose labels are not those that the plan is for; before anything is charged."""
    known = plan.algorithm.groups
    if known is None:
        return
    found = group_positions(plan, roster)
    if (found == NO_GROUP).any():
        raise InputError(
            f"The plan is for tasks in {len(known)} public groups, and these have no labels. Give each its "
            "own, Tasks.with_groups or Roster(names, groups)."
        )
    sizes = tuple(np.bincount(found, minlength=len(known)).tolist())
    if sizes != known.sizes:
        wrong = next(i for i, (due, got) in enumerate(zip(known.sizes, sizes, strict=True)) if due != got)
        raise InputError(
            f"The plan is for {known.sizes[wrong]} tasks in group {known.names[wrong]!r}. "
            f"Got {sizes[wrong]}. Mend the labels, or make a plan for these."
        )


def check_sent(plan: Plan, channel: Channel, values: Integers) -> None:
    """Refuse what no task can have sent on a channel, as far as that shows."""
    if plan.unit.by_record:
        channel.check_sums(values, plan.senders)
    else:
        channel.check_rows(values)


def check_messages(shape: tuple[int, ...], count: int, dim: int) -> None:
    """Refuse a second row of a task: it would be a message that nobody paid for."""
    if shape != (count, dim):
        raise AlgorithmError(
            f"send must return one message a row of its block, of shape {(count, dim)}. Got shape "
            f"{tuple(shape)}."
        )


def check_states(plan: Plan, states: States) -> None:
    """Refuse states of records: what a record says follows from its row and the board."""
    if plan.unit.by_record and states:
        raise AlgorithmError(f"Records have no states between rounds. Got {sorted(states)} from send.")


def check_whole(plan: Plan, apart: bool = False) -> None:
    """Refuse so many messages that a sum of whole numbers would not fit into 64 bits.

    Where tasks sum their records *apart*, each of their sums may lie as high as all records allow: beyond 64
    bits a single record would decide whether the total wraps around.
    """
    if not plan.mechanism.exact:
        return
    for channel in {channel for round in set(plan.rounds) for channel in round.channels}:
        degree = int(channel.lift.weights(channel.dim)[1].max())
        sums = plan.n_tasks if apart and plan.unit.by_record else 1
        if sums * plan.senders * GRID**degree >= 1 << 63:
            most = (1 << 63) // (sums * GRID**degree)
            raise PlanError(
                f"Sums on this channel are exact for fewer than {most} messages. Got {plan.senders}."
            )
