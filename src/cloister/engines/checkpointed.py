"""Workers whose states are kept now and then, so that a run that goes on does not start over."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from cloister.core.arrays import States
from cloister.core.channel import Channel
from cloister.core.errors import InputError
from cloister.core.tasks import Tasks
from cloister.engines.workers import AnyTasks, Coins, Collected, Shards, Workers
from cloister.store.billboard import Billboard
from cloister.store.checkpoints import CheckpointFile, SavedState
from cloister.store.journal import Journal

#: Checkpoints take at most one part in so many of a run's time.
SHARE = 20


def check_seconds(checkpoint: object) -> float:
    if isinstance(checkpoint, int | float) and not isinstance(checkpoint, bool) and checkpoint >= 0:
        return float(checkpoint)
    raise InputError(
        f"checkpoint must be a number of seconds, 0 or more; math.inf for none. Got {checkpoint!r}."
    )


@runtime_checkable
class ShardWorkers(Workers, Protocol):
    """Workers of shards, who keep states where they compute: one file a shard, on a disk that all share."""

    def save_checkpoint(self, file: CheckpointFile, board: Billboard) -> None:
        """Let every shard write its states as they are after the rounds of this board, or later ones."""

    def load_checkpoint(self, file: CheckpointFile, posted: Billboard) -> None:
        """Let every shard go on from what it kept last on this board, now and whenever it is read again."""


def checkpointed(workers: Workers, tasks: AnyTasks, journal: Journal, seconds: float) -> Workers:
    """Return workers whose states a journal keeps; as they are if it keeps none, or where tasks are apart."""
    shards = workers if isinstance(tasks, Shards) and isinstance(workers, ShardWorkers) else None
    if journal.checkpoint is None or (shards is None and not isinstance(tasks, Tasks)):
        return workers
    on_disk = journal.posted.before(journal.kept)
    return Checkpointed(workers, shards, journal.checkpoint, on_disk, journal.every, seconds)


@dataclass
class Checkpointed:
    """Workers who begin with what was kept, and whose states are kept now and then.

    Parameters
    ----------
    workers : Workers
        In this process, or of shards: states of tasks that are elsewhere stay there.
    shards : ShardWorkers, optional
        The same, if they keep states for themselves and know which rounds these have behind them.
    file : CheckpointFile
        Where.
    posted : Billboard
        What is on disk for good when the run begins or goes on.
    every : int
        Only after so many rounds is the board on disk for good.
    seconds : float
        Time from one checkpoint to the next, at least; more where writing one takes long.
    """

    workers: Workers
    shards: ShardWorkers | None
    file: CheckpointFile
    posted: Billboard
    every: int
    seconds: float

    def __post_init__(self) -> None:
        self.restored = 0  # rounds whose work the restored states have behind them
        self.due = time.monotonic() + self.seconds

    def start(self, board: Billboard) -> None:
        found = self.file.read(self.posted) if self.shards is None else None
        if found is None:
            self.workers.start(board)
        else:
            self.restored, saved = found
            self.workers.restore_state(saved)
        if self.shards is not None:
            self.shards.load_checkpoint(self.file, self.posted)

    def listen(self, board: Billboard, coins: Coins) -> None:
        if board.rounds >= self.restored:
            self._keep(board)
            self.workers.listen(board, coins)

    def collect(self, board: Billboard, channel: Channel, coins: Coins) -> Collected:
        self._keep(board)
        return self.workers.collect(board, channel, coins)

    def finish(self, board: Billboard, folder: Path | None = None) -> States:
        self._keep(board)
        return self.workers.finish(board, folder)

    def rejected(self) -> int:
        return self.workers.rejected()

    def save_state(self, folder: Path | None = None) -> SavedState:
        return self.workers.save_state(folder)

    def restore_state(self, saved: SavedState) -> None:
        self.workers.restore_state(saved)

    def _keep(self, board: Billboard) -> None:
        """Keep states as they are after the rounds of a board that is on disk, if it is time."""
        begun = time.monotonic()
        if begun < self.due or board.rounds % self.every or board.rounds <= self.restored:
            return
        if self.shards is None:
            self.file.write(self.workers.save_state(self.file.path.parent), board)
        else:
            self.shards.save_checkpoint(self.file, board)
        ended = time.monotonic()
        self.due = ended + max(self.seconds, SHARE * (ended - begun))
