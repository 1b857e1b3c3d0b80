"""One shard at an actor: its rows, and how far its tasks have come; in memory, or on disk between rounds."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from cloister.core.arrays import Array, States, Words
from cloister.core.channel import Channel
from cloister.core.tasks import Tasks
from cloister.engines.workers import Coins, Engine, Workers, catch_up, summed
from cloister.plan.plan import Plan
from cloister.store.billboard import Billboard
from cloister.store.checkpoints import SavedState

T = TypeVar("T")
#: What the rows of a shard take beside themselves while it is open: blocks are copies, where rows are padded.
COPIES = 2
#: Arrays in a file begin at multiples of so many bytes, as they would in memory.
ALIGNED = 64


@dataclass(frozen=True)
class Missed:
    """The rounds that a shard was not sent: the first (-1: it has no states yet), and its coins."""

    first: int
    coins: tuple[bytes | None, ...]


def packed(coins: Coins) -> bytes | None:
    """Return coins as bits; None if everybody takes part."""
    return None if coins.all() else np.packbits(coins).tobytes()


def unpacked(bits: bytes | None, count: int) -> Coins:
    """Return the coins of so many tasks.

    Examples
    --------
    >>> unpacked(packed(np.array([True, False, True])), 3).tolist(), unpacked(None, 2).tolist()
    ([True, False, True], [True, True])
    """
    if bits is None:
        return np.full(count, True)
    return np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=count).astype(np.bool_)


class HeldShard:
    """The tasks of a shard, with workers of the actor's engine.

    Parameters
    ----------
    engine, plan : Engine, Plan
        What computes, and what.
    tasks, seeds : Tasks, uint64 array
        Rows, and each task's own seed.
    """

    def __init__(self, engine: Engine, plan: Plan, tasks: Tasks, seeds: Words) -> None:
        self.ids = tasks.ids
        self.done = -1  # rounds that its states have behind them; -1 without states
        self.columns = sum(array.nbytes for array in (tasks.X, tasks.y, tasks.weight))
        self.home: _InMemory | _OnDisk = _InMemory(engine, plan, tasks, seeds)

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        return self.columns * COPIES + self.home.state_bytes

    @property
    def in_memory(self) -> bool:
        return isinstance(self.home, _InMemory)

    @property
    def rejected(self) -> int:
        return self.home.rejected

    def put_on_disk(self) -> None:
        """Keep rows and states in files without a name, which go with the process."""
        if isinstance(self.home, _InMemory):
            self.home = self.home.on_disk()

    def collect(self, board: Billboard, channel: Channel, missed: Missed, coins: bytes | None) -> Array:
        """Return the sum of the messages of sampled tasks in the coming round."""

        def act(workers: Workers) -> Array:
            self._catch_up(workers, board, missed)
            self.done = board.rounds + 1
            return np.asarray(summed(workers.collect(board, channel, unpacked(coins, len(self.ids)))))

        return self.home.use(act)

    def catch_up(self, board: Billboard, missed: Missed) -> None:
        """Do the work of the rounds that this shard missed; nothing leaves."""
        if missed.first < 0 or missed.coins:
            self.home.use(lambda workers: self._catch_up(workers, board, missed))

    def finish(self, board: Billboard, missed: Missed) -> States:
        """Return the models."""
        self.catch_up(board, missed)
        return self.home.look(lambda workers: workers.finish(board))

    def save(self) -> SavedState:
        return self.home.look(lambda workers: workers.save_state())

    def restore(self, saved: SavedState, rounds: int = 0) -> None:
        """Go on from what was saved after so many rounds, or after those that were not missed."""
        self.home.use(lambda workers: workers.restore_state(saved))
        self.done = rounds

    def _catch_up(self, workers: Workers, board: Billboard, missed: Missed) -> None:
        """Go through what was missed, but for what these states have behind them."""
        if missed.first < 0 and self.done < 0:
            workers.start(board.before(0))
        first = max(0, missed.first)
        known = max(0, self.done - first)
        catch_up(
            workers, board, first + known, (unpacked(own, len(self.ids)) for own in missed.coins[known:])
        )
        self.done = max(self.done, 0, missed.first + len(missed.coins) + (missed.first < 0))


class _InMemory:
    """Workers that stay open."""

    def __init__(self, engine: Engine, plan: Plan, tasks: Tasks, seeds: Words) -> None:
        self.given = engine, plan, tasks, seeds
        self.stack = ExitStack()
        self.workers = self.stack.enter_context(engine.workers(plan, tasks, seeds))
        self.state_bytes = -1

    @property
    def rejected(self) -> int:
        return self.workers.rejected()

    def use(self, act: Callable[[Workers], T]) -> T:
        found = act(self.workers)
        if self.state_bytes < 0:  # there are states now
            states = self.workers.save_state().states
            self.state_bytes = sum(array.nbytes for array in states.values())
        return found

    def look(self, act: Callable[[Workers], T]) -> T:
        return act(self.workers)

    def on_disk(self) -> _OnDisk:
        saved = None if self.state_bytes < 0 else self.workers.save_state()
        self.stack.close()
        return _OnDisk(*self.given, saved)


class _OnDisk:
    """Rows and states in files; workers are made anew whenever something is to be done."""

    state_bytes = 0

    def __init__(
        self, engine: Engine, plan: Plan, tasks: Tasks, seeds: Words, saved: SavedState | None
    ) -> None:
        self.rows = _File({"X": tasks.X, "y": tasks.y, "weight": tasks.weight})
        self.given = engine, plan, replace(tasks, **self.rows.arrays), seeds
        self.states: _File | None = None
        self.rejected = 0
        if saved is not None:
            self._keep(saved)

    def use(self, act: Callable[[Workers], T]) -> T:
        with self._open() as workers:
            found = act(workers)
            self._keep(workers.save_state())
        self._leave_memory()
        return found

    def look(self, act: Callable[[Workers], T]) -> T:
        with self._open() as workers:
            found = act(workers)
        self._leave_memory()
        return found

    def _keep(self, saved: SavedState) -> None:
        """Write states, unless they are the same as before: many algorithms make them once."""
        if self.states is None or not _same(self.states.arrays, saved.states):
            self.states = _File(saved.states)
        self.rejected = saved.rejected

    @contextmanager
    def _open(self) -> Iterator[Workers]:
        engine, plan, tasks, seeds = self.given
        with engine.workers(plan, tasks, seeds) as workers:
            if self.states is not None:
                workers.restore_state(SavedState(self.states.arrays, self.rejected))
            yield workers

    def _leave_memory(self) -> None:
        self.rows.leave_memory()
        if self.states is not None:
            self.states.leave_memory()


def _same(one: States, two: States) -> bool:
    """Say whether arrays are the same to the bit."""
    return one.keys() == two.keys() and all(
        array.dtype == two[name].dtype
        and array.shape == two[name].shape
        and np.array_equal(_bytes(array), _bytes(two[name]))
        for name, array in one.items()
    )


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class _File:
    """Arrays in a file that has no name and goes with the process; in memory while they are looked at."""

    def __init__(self, arrays: States) -> None:
        starts = {}
        with tempfile.TemporaryFile(prefix="cloister-") as file:
            for name, array in arrays.items():
                starts[name] = file.tell()
                file.write(_bytes(array).data)
                file.write(b"\0" * (ALIGNED - file.tell() % ALIGNED))
            file.write(b"\0")  # a file of nothing cannot be mapped
            file.flush()
            self.whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.arrays = {
            name: np.frombuffer(self.whole, array.dtype, array.size, starts[name]).reshape(array.shape)
            for name, array in arrays.items()
        }

    def leave_memory(self) -> None:
        """Let the system have the memory back, where it can be told; the arrays stay as they were."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.whole.madvise(mmap.MADV_DONTNEED)
