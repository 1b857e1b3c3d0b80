"""The private side of a run: every task's data and state, in blocks that an engine computes on.

An engine decides where blocks live and how they are computed on. The curator's side, which is the same for
all, is in `cloister.engines.local`: it sees nothing but sums.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import States
from cloister.billboard import Billboard
from cloister.channel import finite_rows
from cloister.engines.models import Models
from cloister.errors import AlgorithmError
from cloister.plan import Plan
from cloister.privacy.doubts import Doubt
from cloister.tasks import Block, Tasks

__all__ = ["Cells", "Engine", "Local"]

T = TypeVar("T")
Coins = NDArray[np.bool_]
Each = Callable[..., list[Any]]
#: Blocks whose models are held before they are put in their places.
AT_ONCE = 8


class Cells(Protocol):
    """All tasks of a run, each with its own data and state."""

    def init(self, board: Billboard) -> None:
        """Let every task make its first state."""

    def speak(self, board: Billboard, coins: Coins) -> Any:
        """Let the tasks with a coin do a round's work; return the sum of what they say.

        The sum is what the plan's mechanism takes; it may be an array that is still being computed.
        """

    def rejected(self) -> int:
        """Return how many messages were not finite, and counted as zero."""

    def listen(self, board: Billboard, coins: Coins) -> None:
        """Let the tasks with a coin do a round's work and say nothing."""

    def finish(self, board: Billboard, folder: Path | None = None) -> States:
        """Return every task's model, in the order of the tasks; a folder has room for very many."""


class Engine(Protocol):
    """Where and how tasks are computed on; does not change what is released."""

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """What computing there takes away from a guarantee."""

    def cells(self, plan: Plan, tasks: Tasks, local_seed: int) -> AbstractContextManager[Cells]:
        """Settle the tasks of a plan."""


@dataclass(frozen=True)
class Local:
    """The reference engine: NumPy blocks on this machine's processor; errors name the function and the task.

    Parameters
    ----------
    threads : int, optional
        Blocks computed at the same time; by default one for each core. Does not change results.
    """

    threads: int | None = None

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """None: no number of a task depends on another's rows."""
        return ()

    @contextmanager
    def cells(self, plan: Plan, tasks: Tasks, local_seed: int) -> Iterator[Cells]:
        """Settle the tasks in blocks of similar size."""
        layout = tasks.layout(_widest(plan))
        blocks = list(tasks.blocks(layout, local_seed))
        with _pool(len(blocks), self.threads) as each:
            yield _LocalCells(plan, layout, blocks, each)


@dataclass
class _LocalCells:
    plan: Plan
    layout: Sequence[NDArray[np.int64]]
    blocks: list[Block]
    each: Each
    states: list[States] = field(default_factory=list)
    bad: int = 0

    def __post_init__(self) -> None:
        self.home = np.empty(sum(map(len, self.layout)), dtype=np.int64)  # the block of each task
        for number, index in enumerate(self.layout):
            self.home[index] = number
        self.own = [False] * len(self.layout)  # whether a block's states are copies that may be changed

    def init(self, board: Billboard) -> None:
        self.states = self.each(partial(named, self.plan.algorithm.init, board), self.blocks)

    def speak(self, board: Billboard, coins: Coins) -> Any:
        channel, mechanism = self.plan.algorithm.channel(board), self.plan.mechanism
        heard = self._send(partial(_speak, self.plan, board), coins)
        self.bad += sum(bad for _, bad in heard)
        totals = [total for total, _ in heard] or [mechanism.total(channel, np.zeros((0, channel.dim)))]
        return sum(totals)

    def rejected(self) -> int:
        return self.bad

    def listen(self, board: Billboard, coins: Coins) -> None:
        self._send(partial(_listen, self.plan, board), coins)

    def _send(self, function: Callable[..., tuple[States, bool, T]], coins: Coins) -> list[T]:
        """Let the blocks in which somebody has a coin do a round's work; the others cost nothing."""
        awake = np.flatnonzero(np.bincount(self.home[np.flatnonzero(coins)])).tolist()
        parts = [(self.states[b], self.own[b], self.blocks[b], coins[self.layout[b]]) for b in awake]
        heard = self.each(function, *zip(*parts, strict=True)) if parts else []
        for block, (states, own, _) in zip(awake, heard, strict=True):
            self.states[block], self.own[block] = states, own
        return [said for _, _, said in heard]

    def finish(self, board: Billboard, folder: Path | None = None) -> States:
        models = Models(len(self.home), folder)
        function = partial(named, self.plan.algorithm.finish, board)
        for start in range(0, len(self.blocks), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            parts = self.each(function, self.blocks[some], self.states[some])
            for index, part in zip(self.layout[some], parts, strict=True):
                models.put(index, part)
        return models.arrays()


def check_messages(shape: tuple[int, ...], count: int, dim: int) -> None:
    """Refuse a second row of a task: it would be a message that nobody paid for."""
    if shape != (count, dim):
        raise AlgorithmError(
            f"send must return one message a task, of shape {(count, dim)}. Got shape {tuple(shape)}."
        )


def _widest(plan: Plan) -> int:
    """Return the most numbers that a task says in a round: about what its state and its model take."""
    return max((channel.dim for round in set(plan.rounds) for channel in round.channels), default=1)


def _listen(
    plan: Plan, board: Billboard, states: States, own: bool, block: Block, coins: Coins
) -> tuple[States, bool, NDArray[Any]]:
    """Let the sampled rows of a block do their local work; return new states and raw messages.

    States of some rows are put in place among the others: once those are copies of our `own`, without
    copying them again.
    """
    if coins.all():
        messages, states = named(plan.algorithm.send, board, block, states)
        return states, False, messages
    rows = np.flatnonzero(coins)
    part = {name: array[rows] for name, array in states.items()}
    messages, part = named(plan.algorithm.send, board, block.take(rows), part)
    merged = states if own else {name: array.copy() for name, array in states.items()}
    for name, array in part.items():
        home = merged.get(name)
        if home is None or array.shape != (len(rows), *home.shape[1:]) or array.dtype != home.dtype:
            raise AlgorithmError(f"send changes the names, shapes or types of the state: {name!r}.")
        home[rows] = array
    return merged, True, messages


def _speak(
    plan: Plan, board: Billboard, states: States, own: bool, block: Block, coins: Coins
) -> tuple[States, bool, tuple[Any, int]]:
    channel = plan.algorithm.channel(board)
    states, own, messages = _listen(plan, board, states, own, block, coins)
    check_messages(np.shape(messages), int(coins.sum()), channel.dim)
    return states, own, (plan.mechanism.total(channel, messages), int((~finite_rows(messages)).sum()))


def named(function: Callable[..., T], board: Billboard, block: Block, states: States | None = None) -> T:
    """Call one of an algorithm's private functions; if it fails, say which one and for which task."""
    try:
        return function(block, board) if states is None else function(states, block, board)
    except Exception as error:
        for i, name in enumerate(block.ids.tolist()):
            one = block.take([i])
            try:
                if states is None:
                    function(one, board)
                else:
                    function({key: value[[i]] for key, value in states.items()}, one, board)
            except Exception as cause:
                raise AlgorithmError(f"{_called(function)} failed for task {name!r}: {cause}") from cause
        raise AlgorithmError(f"{_called(function)} failed on a block: {error}") from error


def _called(function: Callable[..., object]) -> str:
    """Return what a user knows a method by: its algorithm, not the base class that wrote it."""
    owner = getattr(function, "__self__", None)
    return function.__qualname__ if owner is None else f"{type(owner).__name__}.{function.__name__}"


@contextmanager
def _pool(blocks: int, threads: int | None) -> Iterator[Callable[..., list[Any]]]:
    """Yield an ordered map over blocks, on threads when there are several (NumPy releases the lock).

    Linear algebra libraries keep to one thread meanwhile: matrices are small and there are many.
    """
    from threadpoolctl import threadpool_limits

    workers = min(blocks, threads or os.cpu_count() or 1)
    with threadpool_limits(limits=1):
        if workers <= 1:
            yield lambda function, *parts: list(map(function, *parts))
            return
        with ThreadPoolExecutor(workers) as executor:
            yield lambda function, *parts: list(
                (executor.map if len(parts[0]) > 1 else map)(function, *parts)  # one needs no other thread
            )
