"""Records of a billboard, one a release: how they are written, what a cut-short write leaves, where they are.

A record in a file is the length of its header (8 bytes, little-endian), a JSON header, raw little-endian
arrays, and a SHA-256 over the previous record's hash, the header and the arrays; no pickle anywhere.

A journal is synced after every record, or in a long run after several. What came since may be missing from
the file in any part; what was synced before was whole once, and stays whole unless somebody changes it.

Boards that began alike share one list of records, of which each sees its own first part; posting adds to the
list, and on a board that another has outgrown it begins a new one. Records of a large file are read back when
they are asked for, and must still have the hash that they had.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Array
from cloister.core.errors import BillboardError
from cloister.store import files
from cloister.store.files import ByteSource, FileBytes

DTYPE = re.compile(r"[<|][biufc]\d\d?")
#: How every record's header begins: where a second one is seen, a first one has ended.
HEADER = b'{"arrays":'
HASH = 32
#: No board writes a longer header; one that claims to be is not even read.
LONGEST_HEADER = 1 << 24
#: The last line of a file to which no record will be added.
END = b"end of billboard\n"
#: A run's journal is synced so many times at most: a power cut costs a thousandth of the rounds.
SYNCS = 1000
_WINDOW = 1 << 16
#: What a header that no board writes can raise while it is read.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, eq=False)
class Release:
    """One noisy posting. Only a mechanism makes one.

    Attributes
    ----------
    value : array
        The noisy sum of lifted messages, in units of the channel's clip.
    noise : float
        Standard deviation of the noise on each coordinate (0 for a non-private run).
    denominator : float
        The public, expected number of tasks behind the sum.
    share : float
        The round's share of the squared budget.
    channel : int
        Which of the round's declared channels was used.
    answered : int, optional
        Of how many tasks it is, of those that were asked, where the plan has a quorum: who has no coin, or
        whose rows fail, answers with zeros.
    """

    value: NDArray[np.float64]
    noise: float
    denominator: float
    share: float = 1.0
    channel: int = 0
    answered: int | None = None

    def facts(self) -> dict[str, Any]:
        """Return what is public of a release beside its value."""
        answered = {} if self.answered is None else {"answered": self.answered}
        return {key: getattr(self, key) for key in ("noise", "denominator", "share", "channel")} | answered


@dataclass(frozen=True, eq=False)
class Record:
    """A release (none in the first record), the public arrays it led to, and how its hash is made."""

    release: Release | None
    public: Mapping[str, Array]
    chain: Callable[[], bytes] | None

    @cached_property
    def hash(self) -> bytes:
        """The record's hash, computed when it is first needed: a device may work meanwhile."""
        assert self.chain is not None
        found = self.chain()
        object.__setattr__(self, "chain", None)  # it holds the board before this one, and that the one before
        return found

    @property
    def hashed(self) -> bool:
        return "hash" in self.__dict__

    @property
    def size(self) -> int:
        value = 0 if self.release is None else self.release.value.nbytes
        return value + sum(array.nbytes for array in self.public.values())


def known_record(release: Release | None, public: Mapping[str, Array], found: bytes) -> Record:
    """Return a record whose hash was found to be right."""
    record = Record(release, MappingProxyType(public), lambda: found)
    assert record.hash
    return record


def frozen(array: Array) -> Array:
    copy = np.array(array, order="C")
    if copy.dtype.kind not in "biufc":
        raise BillboardError(f"A billboard holds arrays of numbers only. Got dtype {copy.dtype}.")
    copy.setflags(write=False)
    return copy


def encode(
    head: Mapping[str, Any], number: int, release: Release | None, public: Mapping[str, Array]
) -> tuple[bytes, list[Array]]:
    """Return a record's header and its arrays, in order; `head` is what all headers of a board say."""
    arrays = {f"digest/{name}": array for name, array in sorted(public.items())}
    header: dict[str, Any] = {"record": number, **head}
    if release is not None:
        arrays["release"] = release.value
        header["release"] = release.facts()
    little = {name: array.astype(array.dtype.newbyteorder("<"), copy=False) for name, array in arrays.items()}
    header["arrays"] = [[name, array.dtype.str, list(array.shape)] for name, array in little.items()]
    text = json.dumps(header, sort_keys=True, separators=(",", ":"))
    return text.encode(), [array.reshape(-1) for array in little.values()]


def chained(previous: bytes, header: bytes, *payload: bytes | Array) -> bytes:
    """Return the hash of a record that follows one with the hash `previous`."""
    found = hashlib.sha256(previous + len(header).to_bytes(8, "little") + header)
    for part in payload:
        found.update(part if isinstance(part, bytes) else part.data)
    return found.digest()


def read_header(text: bytes) -> tuple[dict[str, Any], int]:
    """Return a header, and how many bytes the arrays have that it lists."""
    header = json.loads(text.decode())
    size = 0
    for _, kind, shape in header["arrays"]:
        if len(shape) > 32 or not all(type(length) is int and 0 <= length < 1 << 63 for length in shape):
            raise ValueError(shape)
        size += np.dtype(DTYPE.fullmatch(kind)[0]).itemsize * math.prod(shape)  # type: ignore[index]
    return header, size


def contents(header: dict[str, Any], payload: bytes) -> tuple[Release | None, dict[str, Array]]:
    """Return the release and the public arrays that a header and its arrays' bytes hold: read-only."""
    arrays: dict[str, Array] = {}
    at = 0
    for name, kind, shape in header["arrays"]:
        stop = at + np.dtype(kind).itemsize * math.prod(shape)
        arrays[name] = np.frombuffer(payload[at:stop], dtype=kind).reshape(shape)
        at = stop
    public = {name.removeprefix("digest/"): a for name, a in arrays.items() if name != "release"}
    facts = header.get("release")
    if (facts is None) != (header["record"] == 0):
        raise ValueError(header["record"])
    if facts is None:
        return None, public
    numbers: dict[str, Any] = {k: v if isinstance(v, float) else operator.index(v) for k, v in facts.items()}
    return Release(arrays["release"], **numbers), public


def synced_every(capacity: int) -> int:
    """Return after how many records a journal is synced: after each one, up to a thousand."""
    return max(1, -(-capacity // SYNCS))


def is_torn(text: ByteSource, at: int, number: int, every: int, short: bool) -> bool:
    """Say whether the rest of a file can be what is left of records that were not synced yet.

    Some file systems leave zeros where bytes did not arrive, and of several records any part may be missing.
    If the last line follows, or more records than are synced together, then this one was whole once.

    Parameters
    ----------
    text : ByteSource
        The file.
    at, number : int
        Where the first record begins that is not whole, and which it is.
    every : int
        How many records are synced together.
    short : bool
        Whether the file ends within that record.
    """
    left = -number % every + 1  # this record and those after it that are synced with it
    if (
        every == 1
        and not short
        and text.read(text.size - HASH, HASH) != bytes(HASH)
        and not is_blank(text, at)
    ):
        return False
    headers = 0
    for window, seen in _windows(text, at, len(END) - 1):
        headers += window.count(HEADER, max(0, seen - len(HEADER) + 1))
        if headers > left or END in window:
            return False
    return True


def is_blank(text: ByteSource, at: int = 0) -> bool:
    return all(not window.strip(b"\0") for window, _ in _windows(text, at, 0))


def _windows(text: ByteSource, at: int, overlap: int) -> Iterator[tuple[bytes, int]]:
    """Pass through the rest of a text: pieces that begin with the end of the last, and how much of it."""
    kept = b""
    while piece := text.read(at, _WINDOW):
        yield kept + piece, len(kept)
        kept = (kept + piece)[-overlap:] if overlap else b""
        at += len(piece)


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
        while self.used > files.CACHE_BYTES and len(self.cached) > 2:
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
