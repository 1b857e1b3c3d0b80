"""Secret files of a journal: the tasks' states, and the memory of correlated noise.

*States.* A run that goes on needs each task's state after the rounds that are posted. It can be computed
again, by all the local work of those rounds; or be read, from where it was kept last. Both come out the same.
The file is written beside its place and renamed into it. It says after which board its states are, by the
head, and of which data; a digest under the run's key covers all of it. One that is damaged, of another run,
or ahead of the board that is on disk is passed over, and its states are computed again.

*Correlated noise* remembers old sums in a file that never grows. It holds rows of 64-bit numbers, each in two
copies: writing a row overwrites the older one, and is over when it is on disk. A copy says after which round
it was written, and has a digest under the run's key. The rows of a round are written before the round's
release is. So whatever a crash leaves of the last write, for the board as it is on disk every row has a whole
copy.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Array, States
from cloister.core.errors import BillboardError, StorageError
from cloister.store.billboard import Billboard
from cloister.store.files import BINARY, read_at, storage_errors, write_at, write_file

_DIGEST = 32
_AGAIN = "then run the same again: what is posted is whole, and nothing is spent twice"


class SecretRows:
    """Rows of secret numbers, all of one length, in a file for this user alone.

    Parameters
    ----------
    path : path
        The file; made when a row is first written.
    key : bytes
        Key of the digests.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        self.path, self.key = path, key
        self.file: int | None = None

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def write(self, rows: Mapping[int, Array], round: int) -> None:
        """Write rows as they are after so many rounds; return when they are on disk."""
        if not rows:
            return
        with storage_errors(self.path, _AGAIN):
            file = self._open(os.O_RDWR | os.O_CREAT)
            for row, numbers in rows.items():
                data, size = numbers.tobytes(), _cell(numbers.nbytes)
                first, second = (_round_of(read_at(file, (2 * row + copy) * size, 8)) for copy in (0, 1))
                copy = int(second < first) if max(first, second) < round else int(second >= round)
                mark = round.to_bytes(8, "little")
                write_at(file, (2 * row + copy) * size, mark + self._digest(row, mark, data) + data)
            os.fsync(file)

    def read(self, row: int, since: int, until: int, size: int) -> bytes:
        """Return a row of `size` bytes that was last written between two rounds; its newest whole copy."""
        try:
            file, found = self._open(os.O_RDWR), (-1, b"")
        except OSError:
            raise self._lost() from None
        for copy in (0, 1):
            cell = read_at(file, (2 * row + copy) * _cell(size), _cell(size))
            mark, digest, data = cell[:8], cell[8 : 8 + _DIGEST], cell[8 + _DIGEST :]
            whole = len(cell) == _cell(size) and digest == self._digest(row, mark, data)
            if whole and since <= _round_of(mark) <= until:
                found = max(found, (_round_of(mark), data))
        if found[0] < 0:
            raise self._lost()
        return found[1]

    def _open(self, flags: int) -> int:
        if self.file is None:
            self.file = os.open(self.path, flags | BINARY | getattr(os, "O_NOFOLLOW", 0), 0o600)
        return self.file

    def _digest(self, row: int, mark: bytes, data: bytes) -> bytes:
        place = row.to_bytes(8, "little") + mark
        return hashlib.blake2b(
            place + data, key=self.key, digest_size=_DIGEST, person=b"cloister sums"
        ).digest()

    def _lost(self) -> BillboardError:
        return BillboardError(
            f"{self.path} is gone or was edited: this run cannot go on. Restore it, or remove the folder to "
            "give the unfinished run up: what it has spent stays spent."
        )


def _cell(size: int) -> int:
    return 8 + _DIGEST + size


def _round_of(mark: bytes) -> int:
    return int.from_bytes(mark, "little")


_MAGIC = b"cloister states 1\n"
_CHUNK = 1 << 24
_LONGEST_HEADER = 1 << 20


@dataclass(frozen=True, eq=False, repr=False)
class SavedState:
    """What workers know between two rounds, in the order of the tasks. Private: it stays with them.

    Attributes
    ----------
    states : dict of arrays
        Each task's state, as the algorithm made it.
    rejected : int
        How many messages were not finite so far.
    """

    states: States
    rejected: int

    def __repr__(self) -> str:
        return "SavedState(private)"


@dataclass(frozen=True)
class CheckpointFile:
    """A file of states, for this user alone.

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

    def of_shard(self, number: int, names: bytes) -> CheckpointFile:
        """Return the file of one shard, whose tasks have names of this digest.

        Its key says nothing of this one, which noise comes from: it goes to who computes on the shard.
        """
        key = hashlib.blake2b(names, key=self.key, digest_size=_DIGEST, person=b"cloister shard").digest()
        return CheckpointFile(self.path.with_name(f"{self.path.name}-{number:05d}"), key, self.data)

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
