"""Who has joined a stream of tasks, and the sum of the messages since its last release.

In a journal both are on disk before they count. A task has joined when its name is in ``roster`` (a public
file: names as JSON, one a line, in the order of arrival) and the sum with its message is in ``waiting`` (a
secret file, as `sums` is). They are written in this order, and the sum comes with a digest of all names under
the run's key. So whatever a crash leaves, the last task has joined or it has not: a name without its sum is
taken back, and names that were edited are found out.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cloister.core.arrays import Array
from cloister.core.errors import BillboardError
from cloister.core.roster import GrowingRoster, Name
from cloister.store.checkpoints import SecretRows
from cloister.store.files import BINARY, read_at, storage_errors, sync_folder, write_all, write_file

#: Bytes of a digest; and more tasks than ever join.
_DIGEST, _ANY = 32, 1 << 62
_AGAIN = "then open the stream again: who has joined has joined, and nothing is spent twice"


@dataclass
class Arrivals:
    """The tasks of a stream so far, for as long as its process lives.

    Attributes
    ----------
    total : array
        The sum of the messages of the coming round. Private.
    roster : GrowingRoster
        Everybody who has joined.
    ending : bool
        Whether nobody may join any more, and the last round is posted as it is.
    """

    total: Array = field(repr=False)
    roster: GrowingRoster = field(default_factory=GrowingRoster)
    ending: bool = False

    def add(self, name: Name, message: Array) -> None:
        """Let a task join; when this returns, its message counts."""
        self.roster.add(name)
        self.total = self.total + message

    def clear(self) -> None:
        """Begin the next round: the sum is posted."""
        self.total = np.zeros_like(self.total)

    def end(self) -> None:
        """Let nobody join any more; when this returns, no crash can take it back."""
        self.ending = True

    def close(self) -> None: ...


class FolderArrivals(Arrivals):
    """The tasks of a stream so far, in the folder of its journal, which is locked for this process.

    Parameters
    ----------
    total : array
        Zeros, of the kind and length of a sum.
    folder : path
        The journal's.
    key : bytes
        The run's.
    """

    def __init__(self, total: Array, folder: Path, key: bytes) -> None:
        super().__init__(total, ending=(folder / "ending").exists())
        self.path, self.waiting = folder / "roster", SecretRows(folder / "waiting", key)
        self.names = hashlib.blake2b(key=key, digest_size=_DIGEST, person=b"cloister roster")
        with storage_errors(self.path, "then try again"):
            flags = os.O_RDWR | os.O_CREAT | BINARY | getattr(os, "O_NOFOLLOW", 0)
            self.file = os.open(self.path, flags, 0o666)
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def add(self, name: Name, message: Array) -> None:
        first = not len(self.roster)
        line, total = _line(name), self.total + message
        self.names.update(line)
        with storage_errors(self.path, _AGAIN):
            write_all(self.file, line)
        row = np.concatenate([np.frombuffer(self.names.digest(), np.int64), total.view(np.int64)])
        self.waiting.write({0: row}, len(self.roster) + 1)
        if first:
            sync_folder(self.path.parent)
        super().add(name, message)

    def end(self) -> None:
        write_file(self.path.with_name("ending"), b"Nobody may join any more.\n")
        super().end()

    def close(self) -> None:
        self.waiting.close()
        os.close(self.file)

    def _read(self) -> None:
        """Take in who has joined, and cut off what is left of somebody who has not."""
        lines = self._lines()
        if not self._joined(lines):
            lines = lines[:-1]
            if not self._joined(lines):
                raise BillboardError(
                    f"{self.path} was edited, or {self.waiting.path} is gone: this stream cannot go on. "
                    "Restore them, or remove the folder to give the stream up: what it has spent stays spent."
                )
        with storage_errors(self.path, _AGAIN):
            os.ftruncate(self.file, sum(map(len, lines)))
            os.lseek(self.file, 0, os.SEEK_END)
            os.fsync(self.file)

    def _lines(self) -> list[bytes]:
        """Return the lines that are whole: of the last one any bytes may be missing."""
        whole = []
        for line in read_at(self.file, 0, os.fstat(self.file).st_size).splitlines(keepends=True):
            try:
                if _line(json.loads(line)) != line:
                    break
            except (ValueError, RecursionError):
                break
            whole.append(line)
        return whole

    def _joined(self, lines: list[bytes]) -> bool:
        """Take in the names and their sum, if that is what was kept last."""
        names, count = self.names.copy(), len(lines)
        names.update(b"".join(lines))
        kept = self._kept(count, count) if count else b""
        if kept is None or (kept[:_DIGEST] != names.digest() if count else self._kept(0, _ANY) is not None):
            return False
        for line in lines:
            self.roster.add(json.loads(line), written=True)
        if count:
            self.total = np.frombuffer(kept[_DIGEST:], self.total.dtype)
        self.names = names
        return True

    def _kept(self, since: int, until: int) -> bytes | None:
        try:
            return self.waiting.read(0, since, until, _DIGEST + self.total.nbytes)
        except BillboardError:
            return None


def _line(name: Name) -> bytes:
    return json.dumps(name).encode() + b"\n"
