"""States of all tasks between two rounds, in a secret file of the journal: a long run does not start over.

A run that goes on needs each task's state after the rounds that are posted. It can be computed again, by all
the local work of those rounds; or be read, from where it was kept last. Both come out the same.

The file is written beside its place and renamed into it. It says after which board its states are, by the
head, and of which data; a digest under the run's key covers all of it. One that is damaged, of another run,
or ahead of the board that is on disk is passed over, and what it would have said is computed again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import States
from cloister.board.billboard import Billboard
from cloister.board.storage import BINARY, write_file
from cloister.engines.workers import Coins, SavedState, Workers
from cloister.errors import InputError, StorageError

__all__ = ["CheckpointedShards", "CheckpointedWorkers", "KeptStates", "ShardWorkers", "check_seconds"]

_MAGIC = b"cloister states 1\n"
_DIGEST = 32
_CHUNK = 1 << 24
_LONGEST_HEADER = 1 << 20
#: Checkpoints take at most one part in so many of a run's time.
SHARE = 20


def check_seconds(checkpoint: object) -> float:
    if isinstance(checkpoint, int | float) and not isinstance(checkpoint, bool) and checkpoint >= 0:
        return float(checkpoint)
    raise InputError(
        f"checkpoint must be a number of seconds, 0 or more; math.inf for none. Got {checkpoint!r}."
    )


@dataclass(frozen=True)
class KeptStates:
    """The file, for this user alone.

    Parameters
    ----------
    path : path
        Where it is.
    key : bytes
        Key of the digest.
    data : str
        Digest of the run's data.
    """

    path: Path
    key: bytes = field(repr=False)
    data: str = field(repr=False)

    def of_shard(self, number: int, names: bytes) -> KeptStates:
        """Return the file of one shard, whose tasks have names of this digest.

        Its key says nothing of this one, which noise comes from: it goes to who computes on the shard.
        """
        key = hashlib.blake2b(names, key=self.key, digest_size=_DIGEST, person=b"cloister shard").digest()
        return KeptStates(self.path.with_name(f"{self.path.name}-{number:05d}"), key, self.data)

    def write(self, saved: SavedState, board: Billboard) -> bool:
        """Put states in place of older ones; say whether that was possible, as nothing depends on it."""
        arrays = saved.states.values()
        size = sum(array.nbytes for array in arrays)
        if any(array.dtype.kind not in "biuf" for array in arrays):
            return False
        try:
            if shutil.disk_usage(self.path.parent).free < 2 * size:
                return False
            write_file(self.path, self._parts(saved, board), mode=0o600)
        except (OSError, StorageError):
            return False
        return True

    def read(self, board: Billboard) -> tuple[int, SavedState] | None:
        """Return after how many rounds of this board states were kept, and the states; None without any."""
        try:
            file = os.open(self.path, os.O_RDONLY | BINARY | getattr(os, "O_NOFOLLOW", 0))
        except OSError:
            return None
        with os.fdopen(file, "rb") as source:
            try:
                return self._read(source, board)
            except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
                return None

    def _parts(self, saved: SavedState, board: Billboard) -> Iterator[bytes]:
        """Yield the file's bytes, and their digest at the end."""
        plain = {name: np.ascontiguousarray(array) for name, array in saved.states.items()}
        header = json.dumps(
            {
                "arrays": [[name, array.dtype.str, array.shape] for name, array in plain.items()],
                "data": self.data,
                "head": board.head.hex(),
                "rejected": saved.rejected,
                "rounds": board.rounds,
            }
        ).encode()
        digest = self._new_digest()
        for part in (_MAGIC, len(header).to_bytes(8, "little"), header):
            digest.update(part)
            yield part
        for array in plain.values():
            raw = array.reshape(-1).view(np.uint8)
            for start in range(0, raw.size, _CHUNK):
                piece = raw[start : start + _CHUNK].tobytes()
                digest.update(piece)
                yield piece
        yield digest.digest()

    def _read(self, source: BinaryIO, board: Billboard) -> tuple[int, SavedState] | None:
        digest, left = self._new_digest(), os.fstat(source.fileno()).st_size - _DIGEST

        def take(size: int) -> bytes:
            found = source.read(size)
            digest.update(found)
            return found

        if take(len(_MAGIC)) != _MAGIC:
            return None
        length = int.from_bytes(take(8), "little")
        if length > _LONGEST_HEADER:
            return None
        header = json.loads(take(length))
        rounds, shapes = int(header["rounds"]), header["arrays"]
        known = 0 <= rounds <= board.rounds and header["head"] == board.before(rounds).head.hex()
        kinds = [(name, np.dtype(kind), tuple(map(int, shape))) for name, kind, shape in shapes]
        size = sum(kind.itemsize * math.prod(shape) for _, kind, shape in kinds)
        if not known or header["data"] != self.data or source.tell() + size != left:
            return None
        states: States = {}
        for name, kind, shape in kinds:
            states[name] = np.empty(shape, kind)
            _fill(states[name], source, digest)
        if not hmac.compare_digest(source.read(), digest.digest()):
            return None
        return rounds, SavedState(states, int(header["rejected"]))

    def _new_digest(self) -> Any:
        return hashlib.blake2b(key=self.key, digest_size=_DIGEST, person=b"cloister states")


def _fill(array: NDArray[Any], source: BinaryIO, digest: Any) -> None:
    raw = array.reshape(-1).view(np.uint8)
    for start in range(0, raw.size, _CHUNK):
        piece = source.read(min(_CHUNK, raw.size - start))
        digest.update(piece)
        raw[start : start + _CHUNK] = np.frombuffer(piece, np.uint8)


@runtime_checkable
class ShardWorkers(Workers, Protocol):
    """Workers of shards, who keep states where they compute: one file a shard, on a disk that all share."""

    def keep_states(self, kept: KeptStates, board: Billboard) -> None:
        """Let every shard write its states as they are after the rounds of this board, or later ones."""

    def recall_states(self, kept: KeptStates, posted: Billboard) -> None:
        """Let every shard go on from what it kept last on this board, now and whenever it is read again."""


@dataclass
class CheckpointedWorkers:
    """Workers whose states are kept now and then, and who begin with what was kept.

    Parameters
    ----------
    workers : Workers
        In this process: states of tasks that are elsewhere stay there.
    kept : KeptStates
        The file.
    posted : Billboard
        What is on disk for good when the run begins or goes on.
    every : int
        Only after so many rounds is the board on disk for good.
    seconds : float
        Time from one checkpoint to the next, at least; more where writing one takes long.
    """

    workers: Workers
    kept: KeptStates
    posted: Billboard
    every: int
    seconds: float

    def __post_init__(self) -> None:
        self.heard = 0  # rounds whose work the restored states have behind them
        self.due = time.monotonic() + self.seconds

    def start(self, board: Billboard) -> None:
        found = self.kept.read(self.posted)
        if found is None:
            self.workers.start(board)
        else:
            self.heard, saved = found
            self.workers.restore_state(saved)

    def listen(self, board: Billboard, coins: Coins) -> None:
        if board.rounds >= self.heard:
            self._keep(board)
            self.workers.listen(board, coins)

    def collect(self, board: Billboard, coins: Coins) -> Any:
        self._keep(board)
        return self.workers.collect(board, coins)

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
        if begun < self.due or board.rounds % self.every or board.rounds <= self.heard:
            return
        self._write(board)
        ended = time.monotonic()
        self.due = ended + max(self.seconds, SHARE * (ended - begun))

    def _write(self, board: Billboard) -> None:
        self.kept.write(self.workers.save_state(self.kept.path.parent), board)


@dataclass
class CheckpointedShards(CheckpointedWorkers):
    """Workers of shards: each keeps its states for itself, and has heard of what it has heard of."""

    workers: ShardWorkers

    def start(self, board: Billboard) -> None:
        self.workers.start(board)
        self.workers.recall_states(self.kept, self.posted)

    def _write(self, board: Billboard) -> None:
        self.workers.keep_states(self.kept, board)
