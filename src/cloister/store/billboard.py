"""The billboard: an append-only, hash-chained public record of releases and what was computed from them.

On disk it is one file: a first line, records, and a last line that is written when no record will follow.
Each record is the length of its header (8 bytes, little-endian), a JSON header, raw little-endian arrays, and
a SHA-256 over the previous record's hash, the header and the arrays; no pickle anywhere. A changed byte, a
missing piece or a record out of order is found on loading and named. What is whole can always be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, overload

from cloister.core.arrays import Array
from cloister.core.errors import BillboardError, InputError
from cloister.core.spelling import counted
from cloister.privacy.caveats import Caveat
from cloister.store.files import ByteSource, FileBytes, MemoryBytes, bytes_of, write_file
from cloister.store.records import (
    END,
    HASH,
    LONGEST_HEADER,
    UNREADABLE,
    Record,
    RecordStore,
    Release,
    chained,
    contents,
    encode,
    frozen,
    is_blank,
    is_torn,
    known_record,
    read_header,
    synced_every,
)

T = TypeVar("T")

MAGIC = b"cloister billboard 1\n"


class Releases(Sequence[Release]):
    """A board's releases, in order; those of a large file are read when they are asked for."""

    __slots__ = ("_records",)

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    def __len__(self) -> int:
        return max(0, len(self._records) - 1)

    @overload
    def __getitem__(self, at: int) -> Release: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Release]: ...
    def __getitem__(self, at: int | slice) -> Release | Sequence[Release]:
        numbers = range(len(self))[at]
        if isinstance(numbers, range):
            return tuple(self[number] for number in numbers)
        found = self._records[numbers + 1].release
        assert found is not None
        return found


class BoardView(Protocol):
    """The board as an algorithm sees it, with arrays where tasks are computed on: NumPy's, or a device's.

    A `Billboard` is one. Releases are the public record itself, NumPy arrays everywhere.
    """

    @property
    def plan(self) -> str:
        """The fingerprint of the plan."""

    @property
    def capacity(self) -> int:
        """How many releases the plan allows."""

    @property
    def rounds(self) -> int:
        """How many releases are posted."""

    @property
    def releases(self) -> Sequence[Release]:
        """Every release so far, in order."""

    def __getitem__(self, name: str) -> Array:
        """Return the latest public array of this name."""

    def __contains__(self, name: str) -> bool:
        """Say whether there is a public array of this name."""

    def before(self, round: int) -> BoardView:
        """Return the board as it was when round number `round` (from 0) began."""

    def derive(self, function: Callable[..., T], *public: Hashable) -> T:
        """Return ``function(*public, board)``, computed once for all blocks of tasks.

        All of it must be public: what follows from one task's data would reach the others.
        """


@dataclass(frozen=True, eq=False, repr=False)
class Billboard:
    """What everyone may see: how it opened, every release so far, and the public arrays after each.

    ``board[name]`` reads the latest public arrays. `post` returns a new board and leaves the old one alone,
    so any prefix is at hand for replay.

    Examples
    --------
    >>> import numpy as np
    >>> board = Billboard.create({"mean": np.zeros(2)}, plan="p", capacity=1)
    >>> board = board.post(Release(np.ones(2), noise=0.1, denominator=2.0), {"mean": np.full(2, 0.5)})
    >>> board.rounds, board["mean"].tolist()
    (1, [0.5, 0.5])
    >>> board.post(Release(np.ones(2), noise=0.1, denominator=2.0), {})
    Traceback (most recent call last):
    ...
    cloister.errors.BillboardError: The plan allows 1 release: all are posted, and nothing more may leave.
    """

    plan: str
    capacity: int
    records: Sequence[Record] = ()
    noise: str = ""
    doubts: tuple[Caveat, ...] = ()
    _derived: dict[Hashable, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.records, RecordStore):
            object.__setattr__(self, "records", RecordStore.of(self.records))

    @classmethod
    def create(
        cls,
        public: Mapping[str, Array],
        plan: str,
        capacity: int,
        noise: str = "",
        doubts: tuple[Caveat, ...] = (),
    ) -> Billboard:
        """Open a board for a plan (its fingerprint) that allows `capacity` releases, with such noise.

        `doubts` are those of the engine: what plan and noise do not say.
        """
        return cls(plan, capacity, noise=noise, doubts=doubts)._append(None, public)

    def post(self, release: Release, public: Mapping[str, Array]) -> Billboard:
        """Return the board with one more release on it."""
        if self.rounds >= self.capacity:
            raise BillboardError(
                f"The plan allows {counted(self.capacity, 'release')}: all are posted, and nothing more may "
                "leave."
            )
        return self._append(release, public)

    def _append(self, release: Release | None, public: Mapping[str, Array]) -> Billboard:
        arrays = {name: frozen(array) for name, array in public.items()}
        if release is not None:
            release = Release(frozen(release.value), **release.facts())

        def chain() -> bytes:
            header, payload = encode(self._head, len(self.records), release, arrays)
            return chained(self.head, header, *payload)

        return self._with(Record(release, MappingProxyType(arrays), chain))

    def _with(self, record: Record) -> Billboard:
        return replace(self, records=self._store.append(record))

    @property
    def _store(self) -> RecordStore:
        assert isinstance(self.records, RecordStore)
        return self.records

    @property
    def _head(self) -> dict[str, Any]:
        """What the header of each record says."""
        noise = {"noise": self.noise} if self.noise else {}
        doubts = {"doubts": [doubt.to_dict() for doubt in self.doubts]} if self.doubts else {}
        return {"plan": self.plan, "capacity": self.capacity, **noise, **doubts}

    def __getitem__(self, name: str) -> Array:
        return self.records[-1].public[name]

    def __contains__(self, name: str) -> bool:
        return name in self.records[-1].public

    def __repr__(self) -> str:
        return f"Billboard({self.rounds} of {self.capacity} releases, head {self.head.hex()[:12] or 'empty'})"

    @property
    def rounds(self) -> int:
        return max(0, len(self.records) - 1)

    @property
    def complete(self) -> bool:
        """Whether every release of the plan is posted: nothing can follow."""
        return self.rounds == self.capacity

    @property
    def releases(self) -> Sequence[Release]:
        return Releases(self.records)

    @property
    def head(self) -> bytes:
        """The hash that stands for the whole board."""
        return self._store.head

    def before(self, round: int) -> Billboard:
        return replace(self, records=self.records[: round + 1])

    def derive(self, function: Callable[..., T], *public: Hashable) -> T:
        key = (function, public)
        if key not in self._derived:  # two threads may both compute it, to the same end
            self._derived[key] = function(*public, self)
        found: T = self._derived[key]
        return found

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the board to one file, atomically: either the old file or the whole new one is there."""
        return write_file(Path(path), self._parts())

    @classmethod
    def load(cls, path: str | os.PathLike[str], head: str | bytes | None = None) -> Billboard:
        """Read a board and verify every record; a truncated or edited one is refused by number.

        Parameters
        ----------
        path : path
            The file.
        head : str or bytes, optional
            The head as it was published or signed (`board.head`, or its 64 hexadecimal digits). Whoever
            edits a board can compute its hashes anew, but not to the same head.
        """
        board = _parse(bytes_of(path), path)
        if head is not None:
            board.expect(head, path)
        return board

    def expect(self, head: str | bytes, where: str | os.PathLike[str] = "The board") -> None:
        """Refuse a board that has another head than the one that was published or signed."""
        if _head(head) != self.head:
            raise BillboardError(
                f"{where} is whole, but its head is {self.head.hex()}, not the one that was kept: it is "
                "another board, or was edited and its hashes computed anew. Ask who published it."
            )

    @classmethod
    def recover(cls, path: str | os.PathLike[str]) -> Billboard:
        """Read what is whole of a board that `load` refuses: every record before the first bad one."""
        found = scan(bytes_of(path), path)
        if found.board is None:
            assert found.problem is not None
            raise found.problem
        return found.board

    def record_bytes(self, number: int) -> bytes:
        """Return one record (0 is how the board opened) as it stands in a file."""
        record = self.records[number]
        header, payload = encode(self._head, number, record.release, record.public)
        return b"".join(
            [len(header).to_bytes(8, "little"), header, *(a.tobytes() for a in payload), record.hash]
        )

    @classmethod
    def from_bytes(cls, record: bytes) -> Billboard:
        """Return the board that a first record opens, verified; see `append_bytes`."""
        return _received(None, record)

    def append_bytes(self, record: bytes) -> Billboard:
        """Return the board with one record more, as `record_bytes` gave it elsewhere; refuse any other.

        The record must be of this board's plan, be the next one, be allowed by the plan, and have the hash
        that follows from everything before it: so who has a board can be sent what it has not seen yet.

        Examples
        --------
        >>> import numpy as np
        >>> one = Billboard.create({"mean": np.zeros(2)}, plan="p", capacity=1)
        >>> two = one.post(Release(np.ones(2), noise=0.1, denominator=2.0), {"mean": np.full(2, 0.5)})
        >>> elsewhere = Billboard.from_bytes(one.record_bytes(0)).append_bytes(two.record_bytes(1))
        >>> elsewhere.head == two.head
        True
        """
        return _received(self, record)

    def mark_stored(self, path: str | os.PathLike[str], size: int) -> None:
        """Note that every record is stored in a file, of this size: old ones need not be kept in memory."""
        records = self._store
        waiting = range(records.stored, len(records))
        earlier = [len(self.record_bytes(number)) for number in waiting[:-1]]
        records.mark_stored(path, len(MAGIC), earlier, size)

    def _parts(self) -> Iterator[bytes]:
        yield MAGIC
        yield from map(self.record_bytes, range(len(self.records)))
        yield END

    def _bytes(self) -> bytes:
        return b"".join(self._parts())

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_bytes, (self._bytes(), "This pickle")  # a copy is verified, and read-only, as a file is


@dataclass(frozen=True)
class Scan:
    """What was found in a file: the board as far as it is whole, where that ends, and what is wrong then.

    `torn` says that the rest is what a write that was cut short leaves, and not an edit.
    """

    board: Billboard | None
    size: int
    problem: BillboardError | None = None
    torn: bool = False


def scan(text: ByteSource, path: str | os.PathLike[str]) -> Scan:
    """Read a board's bytes as far as they are whole, one record at a time."""
    start = text.read(0, len(MAGIC))
    if start != MAGIC:
        problem = BillboardError(f"{path} is not a cloister billboard, or was edited. Restore a copy.")
        return Scan(None, 0, problem, torn=MAGIC.startswith(start) or is_blank(text))
    board: Billboard | None = None
    at, size = len(MAGIC), text.size
    while board is None or not (size - at == len(END) and text.read(at, len(END)) == END):
        try:
            board, at = _read_record(text, at, size, board, path)
        except BillboardError as problem:
            number = 0 if board is None else len(board.records)
            every = 1 if board is None or board.complete else synced_every(board.capacity)
            short = isinstance(problem, _TruncatedError)
            return Scan(board, at, problem, is_torn(text, at, number, every, short))
    return Scan(board, at)


def _parse(text: ByteSource, path: str | os.PathLike[str]) -> Billboard:
    found = scan(text, path)
    if found.problem is not None:
        raise found.problem
    assert found.board is not None
    return found.board


def _received(board: Billboard | None, record: bytes) -> Billboard:
    """Verify one record that was sent by somebody else."""
    number = 0 if board is None else len(board.records)
    if board is not None and board.complete:
        raise BillboardError(f"The plan allows {counted(board.capacity, 'release')}, and all are posted.")
    try:
        found, end = _read_record(MemoryBytes(record), 0, len(record), board, "This record")
    except BillboardError:
        end = -1
    if end != len(record):
        raise BillboardError(
            f"These bytes are not record {number} of this board: they were changed on the way, are out of "
            "order, or are of another board. Ask for the record again."
        ) from None
    return found


def _from_bytes(data: bytes, path: str) -> Billboard:
    return _parse(MemoryBytes(data), path)


def _head(head: str | bytes) -> bytes:
    try:
        wanted = bytes.fromhex(head) if isinstance(head, str) else bytes(head)
    except ValueError:
        wanted = b""
    if len(wanted) != HASH:
        raise InputError(f"head must be 64 hexadecimal digits (or 32 bytes). Got {head!r}.")
    return wanted


class _TruncatedError(BillboardError):
    """The file ends where something should follow."""


def _truncated(path: str | os.PathLike[str], number: int, empty: bool) -> BillboardError:
    what = "has no last line: its run is unfinished" if empty else f"is truncated in record {number}"
    return _TruncatedError(
        f"{path} {what}. Billboard.recover reads what is whole: {counted(number, 'record')}. "
        "Go on with the run that writes it, or restore the file from a copy."
    )


def _read_record(
    text: ByteSource, at: int, size: int, board: Billboard | None, path: str | os.PathLike[str]
) -> tuple[Billboard, int]:
    number = 0 if board is None else len(board.records)
    stop = at + 8 + int.from_bytes(text.read(at, 8), "little")
    if at + 8 > size or stop > size:
        raise _truncated(path, number, empty=at == size)
    try:
        if stop - at > LONGEST_HEADER:
            raise ValueError(stop - at)
        raw = text.read(at + 8, stop - at - 8)
        header, length = read_header(raw)
        end = stop + length + HASH
        if end > size:
            raise EOFError
        payload, kept = text.read(stop, length), text.read(end - HASH, HASH)
        start = _start(header) if board is None else board
        release, public = contents(header, payload)
        written, _ = encode(start._head, number, release, public)
    except EOFError:
        raise _truncated(path, number, empty=False) from None
    except (BillboardError, *UNREADABLE):
        raise _edited(path, number) from None
    if written != raw or kept != chained(start.head, raw, payload):
        raise _edited(path, number)
    if number > start.capacity:
        raise BillboardError(
            f"{path} holds more releases than its plan allows, {start.capacity}. Restore a copy."
        )
    posted = start._with(known_record(release, public, kept))
    if isinstance(text, FileBytes):
        posted._store.mark_stored(text, len(MAGIC), [], end)
    return posted, end


def _edited(path: str | os.PathLike[str], number: int) -> BillboardError:
    return BillboardError(
        f"{path} was edited: record {number} does not match its hash. Nothing from it on can be trusted; "
        f"Billboard.recover reads what is whole before it: {counted(number, 'record')}."
    )


def _start(header: dict[str, Any]) -> Billboard:
    plan, capacity, noise = header["plan"], header["capacity"], header.get("noise", "")
    if type(plan) is not str or type(noise) is not str or type(capacity) is not int or capacity < 0:
        raise ValueError(plan, noise, capacity)
    doubts = tuple(map(Caveat.from_dict, header.get("doubts", ())))
    return Billboard(plan, capacity, noise=noise, doubts=doubts)
