"""The reference engine: every task on this machine, in NumPy blocks; errors name function and task."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Array, Integers, States, Words
from cloister.core.channel import Channel, finite_rows
from cloister.core.errors import AlgorithmError, PlanError
from cloister.core.tasks import QUICK_ELEMENTS, Block, Tasks
from cloister.engines.workers import (
    AnyTasks,
    Coins,
    begins_later,
    begins_now,
    check_messages,
    check_states,
    checked_rows,
    group_positions,
)
from cloister.plan.plan import Plan
from cloister.privacy.caveats import SHARED_DEVICE, Caveat
from cloister.privacy.chacha_proposals import Sampler, on_processor
from cloister.store.billboard import Billboard
from cloister.store.checkpoints import SavedState
from cloister.store.model_store import ModelStore

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

T = TypeVar("T")
Each = Callable[..., list[Any]]
#: Messages, and the group of each one's task.
Sent = tuple[Array, Integers]
#: Numbers that the records of a network say at once.
MICROBATCH = 1 << 22
#: Blocks whose models are held before they are put in their places.
AT_ONCE = 8


@dataclass(frozen=True)
class Local:
    """The reference engine: NumPy blocks on this machine's processor; errors name the function and the task.

    Parameters
    ----------
    threads : int, optional
        Blocks computed at the same time; by default one for each core. Does not change results.
    block : int, optional
        The most tasks in a block; by default as many as fit into the caches. With 1 every task is computed
        alone, as at a node of its own.
    """

    threads: int | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        if self.block is not None and self.block < 1:
            raise PlanError(f"block must be a number of tasks, at least 1. Got {self.block!r}.")

    @property
    def remote(self) -> bool:
        return False

    def doubts_of(self, plan: Plan) -> tuple[Caveat, ...]:
        """None, but for networks: their tasks share matrix products, whose last bits depend on the block."""
        return () if plan.algorithm.network is None else (SHARED_DEVICE,)

    def noise_sampler(self) -> Sampler:
        return on_processor

    @contextmanager
    def workers(self, plan: Plan, tasks: AnyTasks, seeds: Words) -> Iterator[LocalWorkers]:
        plan, rows = on_features(plan, checked_rows(plan, tasks, self), self.block)
        per_row = 1 if plan.algorithm.network is None else plan.widest
        layout = _at_most(self.block, rows.layout(plan.widest, per_row, plan.n_tasks))
        blocks = list(rows.blocks(layout, seeds, per_row, group_positions(plan, rows), plan.n_tasks))
        quick = 1 + rows.X.size // QUICK_ELEMENTS  # more threads than that would wait for each other
        with _pool(min(len(blocks), quick), self.threads) as each:
            yield LocalWorkers(plan, layout, blocks, each)


@dataclass
class LocalWorkers:
    """All tasks, in blocks, with their states."""

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

    def start(self, board: Billboard) -> None:
        self.states = [{} for _ in self.blocks]
        if not begins_later(self.plan, board):
            self._begin(board)

    def _begin(self, board: Billboard) -> None:
        self.states = self.each(partial(named, self.plan.algorithm.init, board), self.blocks)
        self.own = [False] * len(self.layout)

    def collect(self, board: Billboard, channel: Channel, coins: Coins) -> Array:
        if self.plan.unit.by_record:
            totals = self._by_record(
                board, partial(_record_total, self.plan, channel, self.plan.mechanism.exact)
            )
            return np.asarray(sum(totals))
        sent = self._send(board, partial(_collect, self.plan, channel.dim, board), coins)
        parts = zip(*_together(sent, channel.dim), strict=True)
        sums = self.each(partial(_summed, channel, self.plan.mechanism.exact), *parts)
        self.bad += sum(bad for _, bad in sums)
        return np.asarray(sum(total for total, _ in sums))

    def collect_rows(self, board: Billboard, channel: Channel) -> Integers:
        """Let every task do a round's work; return what leaves each for another machine.

        That is its message, on the grid; where records send, the lifted sum of theirs.
        """
        if self.plan.unit.by_record:
            whole = self._by_record(board, partial(_record_sums, self.plan, channel))
        else:
            everyone = np.full(len(self.home), True)
            sent = self._send(board, partial(_collect, self.plan, channel.dim, board), everyone)
            self.bad += sum(int((~finite_rows(messages)).sum()) for messages, _ in sent)
            whole = [channel.rows(messages) for messages, _ in sent]
        rows = np.zeros((len(self.home), whole[0].shape[1]), dtype=np.int64)
        for index, own in zip(self.layout, whole, strict=True):
            rows[index] = own
        return rows

    def _by_record(
        self, board: Billboard, function: Callable[[Billboard, Block], tuple[Array, int]]
    ) -> list[Array]:
        """Let the records of each block do a round's work; return what a function makes of what they say."""
        if begins_now(self.plan, board):
            self._begin(board)
        results = self.each(partial(function, board), self.blocks)
        self.bad += sum(bad for _, bad in results)
        return [found for found, _ in results]

    def rejected(self) -> int:
        return self.bad

    def listen(self, board: Billboard, coins: Coins) -> None:
        if self.plan.unit.by_record:
            channel = self.plan.algorithm.channel(board)
            self._by_record(board, partial(_record_total, self.plan, channel, True))
            return
        results = self._send(board, partial(_listen, self.plan, board), coins)
        self.bad += sum(int((~finite_rows(messages)).sum()) for messages in results)

    def _send(
        self, board: Billboard, function: Callable[..., tuple[States, bool, T]], coins: Coins
    ) -> list[T]:
        """Let the blocks with sampled tasks do a round's work; the others cost nothing."""
        if begins_now(self.plan, board):
            self._begin(board)
        active = np.flatnonzero(np.bincount(self.home[np.flatnonzero(coins)])).tolist()
        parts = [(self.states[b], self.own[b], self.blocks[b], coins[self.layout[b]]) for b in active]
        results = self.each(function, *zip(*parts, strict=True)) if parts else []
        for block, (states, own, _) in zip(active, results, strict=True):
            self.states[block], self.own[block] = states, own
        return [sent for _, _, sent in results]

    def finish(self, board: Billboard, folder: Path | None = None) -> States:
        if begins_now(self.plan, board):
            self._begin(board)
        models = ModelStore(len(self.home), folder)
        function = partial(named, self.plan.algorithm.finish, board)
        for start in range(0, len(self.blocks), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            parts = self.each(function, self.blocks[some], self.states[some])
            for index, part in zip(self.layout[some], parts, strict=True):
                models.put(index, part)
        return models.arrays()

    def save_state(self, folder: Path | None = None) -> SavedState:
        states = ModelStore(len(self.home), folder)
        for index, part in zip(self.layout, self.states, strict=True):
            states.put(index, part)
        return SavedState(states.arrays(), self.bad)

    def restore_state(self, saved: SavedState) -> None:
        rows = ({name: _rows(array, index) for name, array in saved.states.items()} for index in self.layout)
        self.states, self.bad = list(rows), saved.rejected
        self.own = [False] * len(self.layout)


def _rows(array: NDArray[Any], index: NDArray[np.int64]) -> NDArray[Any]:
    """Return some rows: as a view where they lie one after the other."""
    first, last = index[0], index[-1]
    return array[first : last + 1] if last - first + 1 == len(index) else array[index]


def _at_most(block: int | None, layout: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    if block is None:
        return layout
    return [index[start : start + block] for index in layout for start in range(0, len(index), block)]


def on_features(plan: Plan, tasks: Tasks, together: int | None) -> tuple[Plan, Tasks]:
    """Let a network's frozen body make features of all rows, once; the plan is then for what is left.

    Both are as given where nothing is frozen. At most so many tasks share a call of the body.
    """
    if plan.algorithm.network is None:
        return plan, tasks
    from cloister.networks.body_features import keep_features

    rest, rows = keep_features(plan.algorithm.network, tasks, together=together)
    return (plan if rows is tasks else replace(plan, algorithm=plan.algorithm.with_network(rest))), rows


def _listen(
    plan: Plan, board: Billboard, states: States, own: bool, block: Block, coins: Coins
) -> tuple[States, bool, NDArray[Any]]:
    """Let the sampled rows of a block do their local work; return new states and raw messages.

    States of some rows are put in place among the others: once those are copies of our `own`, without
    copying them again.
    """
    if coins.all():
        messages, states = sent(plan, board, block, states)
        return states, False, messages
    rows = np.flatnonzero(coins)
    part = {name: array[rows] for name, array in states.items()}
    messages, part = named(plan.algorithm.send, board, block.take(rows), part)
    merged = states if own else {name: array.copy() for name, array in states.items()}
    for name, array in part.items():
        home = merged.get(name)
        if home is None or array.shape != (len(rows), *home.shape[1:]) or array.dtype != home.dtype:
            raise AlgorithmError(f"send must keep the state's names, shapes and types. Got another {name!r}.")
        home[rows] = array
    return merged, True, messages


def _collect(
    plan: Plan, dim: int, board: Billboard, states: States, own: bool, block: Block, coins: Coins
) -> tuple[States, bool, Sent]:
    states, own, messages = _listen(plan, board, states, own, block, coins)
    check_messages(np.shape(messages), int(coins.sum()), dim)
    return states, own, (messages, block.group[coins])


def _record_total(
    plan: Plan, channel: Channel, exact: bool, board: Billboard, block: Block
) -> tuple[Array, int]:
    """Return the lifted sum of the records of all tasks of a block, and how many said no number."""
    parts = [_summed(channel, exact, said, groups) for said, groups, _ in _said(plan, channel, board, block)]
    nothing = np.zeros(channel.size, dtype=np.int64 if exact else np.float64)
    return sum((total for total, _ in parts), nothing), sum(bad for _, bad in parts)


def _record_sums(plan: Plan, channel: Channel, board: Billboard, block: Block) -> tuple[Array, int]:
    """Return the lifted sum of each task's records, in whole numbers, and how many said no number."""
    sums, bad = np.zeros((len(block), channel.size), dtype=np.int64), 0
    for messages, groups, task in _said(plan, channel, board, block):
        first = np.flatnonzero(np.append(True, task[1:] != task[:-1]))
        for own in np.split(np.arange(len(task)), first[1:]):
            total, odd = _summed(channel, True, messages[own], groups[own])
            sums[task[own[0]]] += total
            bad += odd
    return sums, bad


def _said(
    plan: Plan, channel: Channel, board: Billboard, block: Block
) -> Iterator[tuple[Array, Integers, Integers]]:
    """Yield what the records of a block say, with the group and the place of each one's task in the block.

    So many at a time that what is computed stays in the caches; of a network, whose calls take longer, more.
    """
    records, most = block.records(plan.unit.limit), plan.unit.limit
    task = np.repeat(np.arange(len(block)), block.counts(most))
    step = max(1, (QUICK_ELEMENTS if plan.algorithm.network is None else MICROBATCH) // channel.dim)
    for at in range(0, len(records), step):
        part = records if step >= len(records) else records.take(np.arange(len(records))[at : at + step])
        messages, states = named(plan.algorithm.send, board, part, {})
        check_states(plan, states)
        check_messages(np.shape(messages), len(part), channel.dim)
        yield messages, part.group, task[at : at + step]


def _together(sent: Sequence[Sent], dim: int) -> list[Sent]:
    """Put messages of small blocks together, to be summed at once: one array at least, of no messages."""
    parts: list[list[Sent]] = []
    left = 0
    for messages, groups in sent or [(np.zeros((0, dim)), np.zeros(0, dtype=np.int64))]:
        left -= messages.size
        if left < 0 or not parts:
            parts, left = [*parts, []], QUICK_ELEMENTS - messages.size
        parts[-1].append((messages, groups))
    return [tuple(map(np.concatenate, zip(*part, strict=True))) for part in parts]  # type: ignore[misc]


def _summed(channel: Channel, exact: bool, messages: Array, groups: Integers) -> tuple[Array, int]:
    return channel.total(messages, exact, groups), int((~finite_rows(messages)).sum())


def sent(plan: Plan, board: Billboard, block: Block, states: States) -> tuple[Array, States]:
    """Let the senders of a block do a round's work; records have no state, and that of their tasks stays.

    Return raw messages and the tasks' new states.
    """
    if not plan.unit.by_record:
        return named(plan.algorithm.send, board, block, states)
    messages, kept = named(plan.algorithm.send, board, block.records(plan.unit.limit), {})
    check_states(plan, kept)
    return messages, states


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
    workers = min(blocks, threads or os.cpu_count() or 1)
    with one_thread():
        if workers <= 1:
            yield lambda function, *parts: list(map(function, *parts))
            return
        with ThreadPoolExecutor(workers) as executor:
            yield lambda function, *parts: list(
                (executor.map if len(parts[0]) > 1 else map)(function, *parts)  # one needs no other thread
            )


def one_thread() -> AbstractContextManager[object]:
    """Let linear algebra libraries keep to one thread meanwhile: other threads add up in other orders."""
    limit: AbstractContextManager[object] = _libraries(len(sys.modules)).limit(limits=1)
    return limit


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Find the linear algebra libraries of this process: once for as many modules as are imported by now.

    To look through all that is loaded takes milliseconds, longer than a run over few tasks.
    """
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
