"""Where a board's records are: the last ones in memory, older ones in the file that holds them all.

Boards that began alike share one list of records, of which each sees its own first part; posting adds to the
list, and on a board that another has outgrown it begins a new one. Records of a large file are read back when
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

#: Bytes of a file's records that are kept in memory; a board that is no larger is kept whole.
CACHE_BYTES = 1 << 25


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
    """Return a file's bytes: in memory if they fit in the cache, else piece by piece from the file."""
    if os.stat(path).st_size <= CACHE_BYTES:
        return MemoryBytes(Path(path).read_bytes())
    return FileBytes(path)


class _FileRecords:
    """Records that are stored in a file: where, with which hash, and the ones that were used last."""

    def __init__(self, text: FileBytes, start: int) -> None:
        self.text = text
        self.bounds = array("q", [start])
        self.hashes = bytearray()
        self.cached: OrderedDict[int, Record] = OrderedDict()
        self.used = 0
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def add(self, record: Record, end: int) -> None:
        self.hashes += record.hash
        with self.lock:
            self.bounds.append(end)
            self._cache(len(self) - 1, record)

    def hash(self, number: int) -> bytes:
        return bytes(self.hashes[number * HASH : (number + 1) * HASH])

    def get(self, number: int) -> Record:
        with self.lock:
            found = self.cached.get(number)
            if found is None:
                self._cache(number, found := self._read(number))
            self.cached.move_to_end(number)
            return found

    def _cache(self, number: int, record: Record) -> None:
        self.cached[number] = record
        self.used += record.size
        while self.used > CACHE_BYTES and len(self.cached) > 2:
            self.used -= self.cached.popitem(last=False)[1].size

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


class _RecordList:
    """Records in order, to which more are added: first those that are in a file, then the others."""

    def __init__(self, in_file: _FileRecords | None, stored: int, unstored: list[Record]) -> None:
        self.in_file, self.stored, self.unstored = in_file, stored, unstored
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return self.stored + len(self.unstored)

    def get(self, number: int) -> Record:
        with self.lock:
            if number >= self.stored:
                return self.unstored[number - self.stored]
        assert self.in_file is not None
        return self.in_file.get(number)

    def hashed(self, number: int) -> bool:
        return number < self.stored or self.get(number).hashed

    def hash(self, number: int) -> bytes:
        if number < self.stored and self.in_file is not None:
            return self.in_file.hash(number)
        return self.get(number).hash

    def add(self, record: Record, after: int) -> _RecordList:
        """Return a list in which a record follows the first `after`: this one, or a new one if others do."""
        with self.lock:
            if len(self) == after:
                self.unstored.append(record)
                return self
            stored = min(self.stored, after)
            kept = [*self.unstored[: after - stored], record]
            return _RecordList(self.in_file if stored else None, stored, kept)

    def mark_stored(self, in_file: _FileRecords, ends: Iterable[int]) -> None:
        with self.lock:
            for end in ends:
                if self.stored != len(in_file):  # a list that has left the file's records keeps its own
                    return
                in_file.add(self.unstored[0], end)
                self.in_file, self.stored = in_file, self.stored + 1
                del self.unstored[0]


class RecordStore(Sequence[Record]):
    """The records of one board, in order: the first part of a list that boards share.

    Examples
    --------
    >>> first, second, other = (known_record(None, {}, bytes([i]) * 32) for i in range(3))
    >>> one = RecordStore.of([first])
    >>> two, fork = one.append(second), one.append(other)
    >>> len(one), two[1] is second, fork[1] is other, two[:1][0] is fork[0]
    (1, True, True, True)
    """

    __slots__ = ("_length", "_records")

    def __init__(self, records: _RecordList, length: int) -> None:
        self._records, self._length = records, length

    @classmethod
    def of(cls, records: Iterable[Record]) -> RecordStore:
        unstored = list(records)
        return cls(_RecordList(None, 0, unstored), len(unstored))

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Record]: ...
    def __getitem__(self, at: int | slice) -> Record | Sequence[Record]:
        numbers = range(self._length)[at]
        if isinstance(numbers, int):
            return self._records.get(numbers)
        if numbers.start == 0 and numbers.step == 1:
            return RecordStore(self._records, len(numbers))
        return tuple(map(self._records.get, numbers))

    def __iter__(self) -> Iterator[Record]:
        return map(self._records.get, range(self._length))

    def append(self, record: Record) -> RecordStore:
        """Return the records with one more; these stay as they are."""
        return RecordStore(self._records.add(record, self._length), self._length + 1)

    @property
    def head(self) -> bytes:
        """The last record's hash. Of those that still need one, the oldest goes first."""
        first = self._length
        while first and not self._records.hashed(first - 1):
            first -= 1
        for number in range(first, self._length):
            self._records.hash(number)
        return self._records.hash(self._length - 1) if self._length else b""

    @property
    def stored(self) -> int:
        """How many of the records are read back from a file."""
        return min(self._records.stored, self._length)

    def mark_stored(
        self, file: str | os.PathLike[str] | FileBytes, start: int, earlier: Iterable[int], end: int
    ) -> None:
        """Note that the next records are stored in a file: old ones are read from there from now on.

        The file's first record begins at `start`, the last of these ends at `end`, and those before it have
        sizes `earlier`.
        """
        _ = self.head  # what is in a file has its hash
        in_file = self._records.in_file
        if in_file is None:
            in_file = _FileRecords(file if isinstance(file, FileBytes) else FileBytes(file), start)
        ends = list(accumulate(earlier, initial=in_file.bounds[-1]))[1:]
        self._records.mark_stored(in_file, [*ends, end])
