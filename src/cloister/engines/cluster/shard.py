"""One shard at an actor: its rows, and how far its tasks have come; in memory, or on disk between rounds."""

from __future__ import annotations

import hashlib
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from cloister.arrays import States, Words
from cloister.board.billboard import Billboard
from cloister.engines.workers import Coins, Engine, SavedState, Workers
from cloister.plan import Plan
from cloister.tasks import Tasks

__all__ = ["HeldShard", "Missed", "packed", "unpacked"]

T = TypeVar("T")
#: What the rows of a shard take beside themselves while it is open: blocks are copies, where rows are padded.
COPIES = 2


@dataclass(frozen=True)
class Missed:
    """The rounds that a shard was not told of: the first (-1: it has no states yet), and its coins."""

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
        self.columns = sum(array.nbytes for array in (tasks.X, tasks.y, tasks.weight))
        self.home: _Memory | _Disk = _Memory(engine, plan, tasks, seeds)

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        return self.columns * COPIES + self.home.state_bytes

    @property
    def in_memory(self) -> bool:
        return isinstance(self.home, _Memory)

    @property
    def rejected(self) -> int:
        return self.home.rejected

    def put_on_disk(self) -> None:
        """Keep rows and states in files without a name, which go with the process."""
        if isinstance(self.home, _Memory):
            self.home = self.home.on_disk()

    def collect(self, board: Billboard, missed: Missed, coins: bytes | None) -> Any:
        """Return the sum of what sampled tasks say in the coming round."""

        def act(workers: Workers) -> Any:
            self._catch_up(workers, board, missed)
            return np.asarray(workers.collect(board, unpacked(coins, len(self.ids))))

        return self.home.use(act)

    def catch_up(self, board: Billboard, missed: Missed) -> None:
        """Go through the rounds that this shard was not told of, in silence."""
        if missed.first < 0 or missed.coins:
            self.home.use(lambda workers: self._catch_up(workers, board, missed))

    def finish(self, board: Billboard, missed: Missed) -> States:
        """Return the models."""
        self.catch_up(board, missed)
        return self.home.look(lambda workers: workers.finish(board))

    def save(self) -> SavedState:
        return self.home.look(lambda workers: workers.save_state())

    def restore(self, saved: SavedState) -> None:
        self.home.use(lambda workers: workers.restore_state(saved))

    def _catch_up(self, workers: Workers, board: Billboard, missed: Missed) -> None:
        if missed.first < 0:
            workers.start(board.before(0))
        for t, coins in enumerate(missed.coins, start=max(0, missed.first)):
            workers.listen(board.before(t), unpacked(coins, len(self.ids)))


class _Memory:
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

    def on_disk(self) -> _Disk:
        saved = None if self.state_bytes < 0 else self.workers.save_state()
        self.stack.close()
        return _Disk(*self.given, saved)


class _Disk:
    """Rows and states in files; workers are made anew whenever something is to be done."""

    state_bytes = 0

    def __init__(
        self, engine: Engine, plan: Plan, tasks: Tasks, seeds: Words, saved: SavedState | None
    ) -> None:
        self.engine, self.plan, self.seeds = engine, plan, seeds
        self.rows, self.rejected = _File(tasks), 0
        self.states: _File | None = None
        self.digest = b""
        self._keep(saved)

    def use(self, act: Callable[[Workers], T]) -> T:
        with self._open() as workers:
            found = act(workers)
            saved = workers.save_state()
        self._keep(saved)
        return found

    def look(self, act: Callable[[Workers], T]) -> T:
        with self._open() as workers:
            return act(workers)

    def _keep(self, saved: SavedState | None) -> None:
        """Write states, unless they are the same as before: many algorithms make them once."""
        if saved is not None and _digest(saved) != self.digest:
            self.states, self.digest, self.rejected = _File(saved), _digest(saved), saved.rejected

    @contextmanager
    def _open(self) -> Iterator[Workers]:
        with self.engine.workers(self.plan, self.rows.read(), self.seeds) as workers:
            if self.states is not None:
                workers.restore_state(self.states.read())
            yield workers


def _digest(saved: SavedState) -> bytes:
    """Return a hash of states, to tell whether they have changed."""
    digest = hashlib.blake2b(str(saved.rejected).encode(), digest_size=16)
    for name, array in saved.states.items():
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


class _File:
    """An object of this process, in a file that has no name and goes with the process."""

    def __init__(self, value: object) -> None:
        self.file = tempfile.TemporaryFile(prefix="cloister-")  # noqa: SIM115 (closed with this object)
        pickle.dump(value, self.file, protocol=5)
        self.file.flush()

    def read(self) -> Any:
        self.file.seek(0)
        return pickle.load(self.file)
