"""A node's copy of the board: every record on it was signed, extends the one before, and follows the plan."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from cloister.engines.node.wire import SignedRecord
from cloister.errors import BillboardError, SignatureError
from cloister.plan import Plan
from cloister.store.billboard import MAGIC, Billboard, scan
from cloister.store.files import (
    BINARY,
    bytes_of,
    read_at,
    storage_errors,
    sync_folder,
    write_at,
    write_private,
)
from cloister.store.records import END, HASH
from cloister.store.signatures import SIGNATURE, SignedHead, SignedRoster

__all__ = ["KeptBoard"]

_AGAIN = "then the curator asks again"


class KeptBoard:
    """The files ``board`` and ``signatures`` of a run at a node.

    Parameters
    ----------
    folder : Path
        The run's folder.
    roster : SignedRoster
        The run's signed roster.
    operator : bytes
        The operator's public key.
    """

    def __init__(self, folder: Path, roster: SignedRoster, operator: bytes) -> None:
        self.folder, self.roster, self.operator = folder, roster, operator
        self.path, self.signatures = folder / "board", folder / "signatures"
        self.board: Billboard | None = None
        self._size, self._seen = 0, self._version()
        if self._seen is not None:
            found = scan(bytes_of(self.path), self.path)
            if found.problem is not None and not found.torn and found.board is not None:
                raise found.problem  # without a first record nothing was answered yet: it is sent again
            self.board, self._size = found.board, found.size

    @property
    def current(self) -> bool:
        """Whether the file is as it was when it was last read or written here."""
        return self._seen == self._version()

    def _version(self) -> tuple[int, ...] | None:
        if not self.path.exists():
            return None
        found = self.path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def __len__(self) -> int:
        """How many records are here."""
        return 0 if self.board is None else len(self.board.records)

    def signed_head(self, length: int | None = None) -> SignedHead:
        """Return the head after so many records, by default all, as the operator has signed it."""
        count = len(self) if length is None else length
        if self.board is None or not 1 <= count <= len(self):
            raise BillboardError(f"There are {len(self)} record(s) here. Got {count}. Ask for one of them.")
        file = os.open(self.signatures, os.O_RDONLY | BINARY)
        try:
            signature = read_at(file, SIGNATURE * (count - 1), SIGNATURE)
        finally:
            os.close(file)
        return self._head(count - 1, self.board.records[count - 1].hash, signature)

    def extend(self, first: int, sent: Sequence[SignedRecord], plan: Plan) -> None:
        """Take the records that are new; refuse all if one is not signed, or does not extend the board.

        A record that is here already must be the same: one that differs, and is signed, is kept as evidence.
        """
        board, known = self.board, len(self)
        for number, each in enumerate(sent, first):
            head = self._head(number, each.record[-HASH:], each.signature)
            head.verify(self.operator)
            if board is not None and number < known:
                self._compare(head, board.records[number].hash)
                continue
            board = Billboard.from_bytes(each.record) if board is None else board.append_bytes(each.record)
        if board is None or len(board.records) == known:
            return
        plan.check(board, since=known)
        self._write(board, known, [each.signature for each in sent[known - first :]])

    def _head(self, number: int, found: bytes, signature: bytes) -> SignedHead:
        return SignedHead(self.roster.run, self.roster.fingerprint, number + 1, found, signature)

    def _compare(self, other: SignedHead, own: bytes) -> None:
        if other.head == own:
            return
        evidence = {"ours": self.signed_head(other.length).to_dict(), "other": other.to_dict()}
        write_private(self.folder / "forked.json", json.dumps(evidence, indent=1).encode())
        raise SignatureError(
            f"The operator has signed two boards of run {self.roster.run!r}: record {other.length - 1} is "
            "another one than before. forked.json proves it. Answer no more, and ask the other owners."
        )

    def _write(self, board: Billboard, known: int, signatures: Sequence[bytes]) -> None:
        """Append records; their signatures are on disk before they are."""
        with storage_errors(self.folder, _AGAIN):
            self._put(self.signatures, SIGNATURE * known, b"".join(signatures))
            records = b"".join(map(board.record_bytes, range(known, len(board.records))))
            data = (b"" if known else MAGIC) + records
            self._put(self.path, self._size if known else 0, data + (END if board.complete else b""))
        self.board, self._size = board, (self._size if known else 0) + len(data)
        self._seen = self._version()

    def _put(self, path: Path, at: int, data: bytes) -> None:
        """Write at a place in a file that its owner alone can read, cut off what follows, and sync it."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | BINARY, 0o600)
        try:
            os.ftruncate(file, at)
            write_at(file, at, data)
            os.fsync(file)
        finally:
            os.close(file)
        if not at:
            sync_folder(path.parent)
