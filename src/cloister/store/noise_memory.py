"""What correlated noise remembers of old sums, in a secret file of the journal that never grows.

The file holds rows of 64-bit numbers, each in two copies: writing a row overwrites the older one, and is over
when it is on disk. A copy says after which round it was written, and has a digest under the run's key. The
rows of a round are written before the round's release is. So whatever a crash leaves of the last write, for
the board as it is on disk every row has a whole copy.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from cloister.arrays import Array
from cloister.errors import BillboardError
from cloister.store.files import BINARY, read_at, storage_errors, write_at

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
