"""Where a board's records are: the last ones in memory, older ones in the file that holds them all.

Boards that began alike share one row of records, of which each sees its own first part; posting adds to the
row, and on a board that another has outgrown it begins a new row. Records of a large file are read back when
they are asked for, and must still have the hash that they had.
"""

from __future__ import annotations

import os
import threading
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Protocol, overload

from cloister.board.records import HASH, UNREADABLE, Record, chained, contents, known_record, read_header
from cloister.board.storage import BINARY, read_at
from cloister.errors import BillboardError

__all__ = ["ByteSource", "FileBytes", "RecordStore", "bytes_of"]

#: Bytes of a file's records that are held in memory; a board that is no larger is held whole.
ROOM = 1 << 25


class ByteSource(Protocol):
    """Bytes that are read piece by piece."""

    @property
    def size(self) -> int:
        """How many there are."""

    def read(self, at: int, size: int) -> bytes:
        """Return so many bytes from there, or fewer where they end."""


class MemoryBytes:
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read(self, at: int, size: int) -> bytes:
        return self.data[at : at + size]


class FileBytes:
    """A file that stays open for reading as long as something refers to it, whatever becomes of its name."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | BINARY)
        weakref.finalize(self, os.close, self._file)

    @property
    def size(self) -> int:
        return os.fstat(self._file).st_size

    def read(self, at: int, size: int) -> bytes:
        found = read_at(self._file, at, size)
        more = size - len(found)
        return found + self.read(at + len(found), more) if found and more else found


def bytes_of(path: str | os.PathLike[str]) -> ByteSource:
    """Return a file's bytes: in memory if there is room for them, else piece by piece from the file."""
    if os.stat(path).st_size <= ROOM:
        return MemoryBytes(Path(path).read_bytes())
    return FileBytes(path)


class _Pages:
    """Records that stand in a file: where, with which hash, and the ones that were used last."""

    def __init__(self, text: FileBytes, start: int) -> None:
        self.text = text
        self.bounds = array("q", [start])
        self.hashes = bytearray()
        self.held: OrderedDict[int, Record] = OrderedDict()
        self.used = 0
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def add(self, record: Record, end: int) -> None:
        self.hashes += record.hash
        with self.lock:
            self.bounds.append(end)
            self._hold(len(self) - 1, record)

    def hash(self, number: int) -> bytes:
        return bytes(self.hashes[number * HASH : (number + 1) * HASH])

    def get(self, number: int) -> Record:
        with self.lock:
            found = self.held.get(number)
            if found is None:
                self._hold(number, found := self._read(number))
            self.held.move_to_end(number)
            return found

    def _hold(self, number: int, record: Record) -> None:
        self.held[number] = record
        self.used += record.size
        while self.used > ROOM and len(self.held) > 2:
            self.used -= self.held.popitem(last=False)[1].size

    def _read(self, number: int) -> Record:
        start, stop = self.bounds[number], self.bounds[number + 1]
        data = self.text.read(start, stop - start)
        length = int.from_bytes(data[:8], "little")
        header, payload = data[8 : 8 + length], data[8 + length : -HASH]
        found = chained(self.hash(number - 1) if number else b"", header, payload)
        if found != self.hash(number):
            raise BillboardError(
                f"{self.text.path} was changed after it was read: record {number} does not match its hash. "
                "Restore the file from a copy and read it again."
            )
        try:
            return known_record(*contents(read_header(header)[0], payload), found)
        except UNREADABLE as error:  # it was readable when it got this hash
            raise BillboardError(f"Record {number} of {self.text.path} cannot be read: {error}.") from None


class _Row:
    """Records in order, to which more are added: first the ones that are in a file, then the loose ones."""

    def __init__(self, pages: _Pages | None, paged: int, loose: list[Record]) -> None:
        self.pages, self.paged, self.loose = pages, paged, loose
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return self.paged + len(self.loose)

    def get(self, number: int) -> Record:
        with self.lock:
            if number >= self.paged:
                return self.loose[number - self.paged]
        assert self.pages is not None
        return self.pages.get(number)

    def hashed(self, number: int) -> bool:
        return number < self.paged or self.get(number).hashed

    def hash(self, number: int) -> bytes:
        if number < self.paged and self.pages is not None:
            return self.pages.hash(number)
        return self.get(number).hash

    def add(self, record: Record, after: int) -> _Row:
        """Return a row in which a record follows the first `after`: this one, or a new one if others do."""
        with self.lock:
            if len(self) == after:
                self.loose.append(record)
                return self
            paged = min(self.paged, after)
            return _Row(self.pages if paged else None, paged, [*self.loose[: after - paged], record])

    def settle(self, pages: _Pages, ends: Iterable[int]) -> None:
        with self.lock:
            for end in ends:
                if self.paged != len(pages):  # a row that has turned away from the file's keeps its own
                    return
                pages.add(self.loose[0], end)
                self.pages, self.paged = pages, self.paged + 1
                del self.loose[0]


class RecordStore(Sequence[Record]):
    """The records of one board, in order: the first part of a row that boards share.

    Examples
    --------
    >>> first, second, other = (known_record(None, {}, bytes([i]) * 32) for i in range(3))
    >>> one = RecordStore.of([first])
    >>> two, fork = one.append(second), one.append(other)
    >>> len(one), two[1] is second, fork[1] is other, two[:1][0] is fork[0]
    (1, True, True, True)
    """

    __slots__ = ("_length", "_row")

    def __init__(self, row: _Row, length: int) -> None:
        self._row, self._length = row, length

    @classmethod
    def of(cls, records: Iterable[Record]) -> RecordStore:
        loose = list(records)
        return cls(_Row(None, 0, loose), len(loose))

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Record]: ...
    def __getitem__(self, at: int | slice) -> Record | Sequence[Record]:
        numbers = range(self._length)[at]
        if isinstance(numbers, int):
            return self._row.get(numbers)
        if numbers.start == 0 and numbers.step == 1:
            return RecordStore(self._row, len(numbers))
        return tuple(map(self._row.get, numbers))

    def __iter__(self) -> Iterator[Record]:
        return map(self._row.get, range(self._length))

    def append(self, record: Record) -> RecordStore:
        """Return the shelf with one record more; this one stays as it is."""
        return RecordStore(self._row.add(record, self._length), self._length + 1)

    @property
    def head(self) -> bytes:
        """The last record's hash. Of those that still need one, the oldest goes first."""
        first = self._length
        while first and not self._row.hashed(first - 1):
            first -= 1
        for number in range(first, self._length):
            self._row.hash(number)
        return self._row.hash(self._length - 1) if self._length else b""

    @property
    def settled(self) -> int:
        """How many of the records are read back from a file."""
        return min(self._row.paged, self._length)

    def settle(
        self, file: str | os.PathLike[str] | FileBytes, start: int, earlier: Iterable[int], end: int
    ) -> None:
        """Say that the next records stand in a file: old ones are read from there from now on.

        The file's first record begins at `start`, the last of these ends at `end`, and those before it have
        sizes `earlier`.
        """
        _ = self.head  # what is in a file has its hash
        pages = self._row.pages
        if pages is None:
            pages = _Pages(file if isinstance(file, FileBytes) else FileBytes(file), start)
        ends = list(accumulate(earlier, initial=pages.bounds[-1]))[1:]
        self._row.settle(pages, [*ends, end])
