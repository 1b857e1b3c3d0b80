"""The billboard: an append-only, hash-chained public record of releases and what was digested from them.

On disk it is one file: a first line, records, and a last line that is written when no record will follow.
Each record is the length of its header (8 bytes, little-endian), a JSON header, raw little-endian arrays, and
a SHA-256 over the previous record's hash, the header and the arrays; no pickle anywhere. A changed byte, a
missing piece or a record out of order is found on loading and named. What is whole can always be read.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.errors import BillboardError, InputError
from cloister.storage import write_file

__all__ = ["Billboard", "Release"]

Array = NDArray[Any]
MAGIC, END = b"cloister billboard 1\n", b"end of billboard\n"
DTYPE = re.compile(r"[<|][biufc]\d\d?")
#: How every record's header begins: where a second one is seen, a first one has ended.
HEADER = b'{"arrays":'
HASH = 32


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
    """

    value: NDArray[np.float64]
    noise: float
    denominator: float
    share: float = 1.0
    channel: int = 0

    def facts(self) -> dict[str, Any]:
        """Return everything but the value."""
        return {key: getattr(self, key) for key in ("noise", "denominator", "share", "channel")}


@dataclass(frozen=True, eq=False)
class _Record:
    release: Release | None
    digest: Mapping[str, Array]
    chain: Callable[[], bytes] | None

    @cached_property
    def hash(self) -> bytes:
        """The record's hash, computed when it is first needed: a device may work meanwhile."""
        assert self.chain is not None
        found = self.chain()
        object.__setattr__(self, "chain", None)  # it holds the board before this one, and that the one before
        return found


@dataclass(frozen=True, eq=False, repr=False)
class Billboard:
    """What everyone may see: how it opened, every release so far, and the digest after each.

    ``board[name]`` reads the latest digest. `post` returns a new board and leaves the old one as it was,
    so any prefix is at hand for replay.

    Examples
    --------
    >>> board = Billboard.open({"mean": np.zeros(2)}, plan="p", capacity=1)
    >>> board = board.post(Release(np.ones(2), noise=0.1, denominator=2.0), {"mean": np.full(2, 0.5)})
    >>> board.rounds, board["mean"].tolist()
    (1, [0.5, 0.5])
    >>> board.post(Release(np.ones(2), noise=0.1, denominator=2.0), {})
    Traceback (most recent call last):
    ...
    cloister.errors.BillboardError: The plan allows 1 release(s) and all are posted: nothing more may leave.
    """

    plan: str
    capacity: int
    records: tuple[_Record, ...] = field(default=())
    noise: str = ""

    @classmethod
    def open(cls, digest: Mapping[str, Array], plan: str, capacity: int, noise: str = "") -> Billboard:
        """Open a board for a plan (its fingerprint) that allows `capacity` releases, with such noise."""
        return cls(plan, capacity, noise=noise)._append(None, digest)

    def post(self, release: Release, digest: Mapping[str, Array]) -> Billboard:
        """Return the board with one more release on it."""
        if self.rounds >= self.capacity:
            raise BillboardError(
                f"The plan allows {self.capacity} release(s) and all are posted: nothing more may leave."
            )
        return self._append(release, digest)

    def _append(self, release: Release | None, digest: Mapping[str, Array]) -> Billboard:
        frozen = {name: _frozen(array) for name, array in digest.items()}
        if release is not None:
            release = Release(_frozen(release.value), **release.facts())
        header, payload = self._encode(len(self.records), release, frozen)
        chain = lambda: _chain(self.head, header, *payload)  # noqa: E731
        record = _Record(release, MappingProxyType(frozen), chain)
        return replace(self, records=(*self.records, record))

    def _encode(
        self, number: int, release: Release | None, digest: Mapping[str, Array]
    ) -> tuple[bytes, list[Array]]:
        arrays = {f"digest/{name}": array for name, array in sorted(digest.items())}
        header: dict[str, Any] = {"record": number, "plan": self.plan, "capacity": self.capacity}
        if self.noise:
            header["noise"] = self.noise
        if release is not None:
            arrays["release"] = release.value
            header["release"] = release.facts()
        little = {
            name: array.astype(array.dtype.newbyteorder("<"), copy=False) for name, array in arrays.items()
        }
        header["arrays"] = [[name, array.dtype.str, list(array.shape)] for name, array in little.items()]
        text = json.dumps(header, sort_keys=True, separators=(",", ":"))
        return text.encode(), [array.reshape(-1) for array in little.values()]

    def __getitem__(self, name: str) -> Array:
        return self.records[-1].digest[name]

    def __contains__(self, name: str) -> bool:
        return name in self.records[-1].digest

    def __repr__(self) -> str:
        return f"Billboard({self.rounds} of {self.capacity} releases, head {self.head.hex()[:12] or 'empty'})"

    @property
    def rounds(self) -> int:
        """How many releases are posted."""
        return max(0, len(self.records) - 1)

    @property
    def complete(self) -> bool:
        """Whether the plan's every release is posted."""
        return self.rounds == self.capacity

    @property
    def releases(self) -> tuple[Release, ...]:
        """Every release so far, in order."""
        return tuple(record.release for record in self.records if record.release is not None)

    @property
    def head(self) -> bytes:
        """The hash that stands for the whole board."""
        if not self.records:
            return b""
        first = len(self.records)  # of those that still need a hash, the oldest goes first
        while first and "hash" not in self.records[first - 1].__dict__:
            first -= 1
        return [record.hash for record in self.records[min(first, len(self.records) - 1) :]][-1]

    def before(self, round: int) -> Billboard:
        """Return the board as it was when round number `round` (from 0) began."""
        return replace(self, records=self.records[: round + 1])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the board to one file, atomically: either the old file or the whole new one is there."""
        return write_file(Path(path), self._bytes())

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
        board = _parse(Path(path).read_bytes(), path)
        if head is not None and _head(head) != board.head:
            raise BillboardError(
                f"{path} is whole, but its head is {board.head.hex()}, not the one that was kept: it is "
                "another board, or was edited and its hashes computed anew."
            )
        return board

    @classmethod
    def recover(cls, path: str | os.PathLike[str]) -> Billboard:
        """Read what is whole of a board that `load` refuses: every record before the first bad one."""
        found = scan(Path(path).read_bytes(), path)
        if found.board is None:
            assert found.problem is not None
            raise found.problem
        return found.board

    def record_bytes(self, number: int) -> bytes:
        """Return one record (0 is how the board opened) as it stands in a file."""
        record = self.records[number]
        header, payload = self._encode(number, record.release, record.digest)
        return b"".join(
            [len(header).to_bytes(8, "little"), header, *(a.tobytes() for a in payload), record.hash]
        )

    def _bytes(self) -> bytes:
        return b"".join([MAGIC, *map(self.record_bytes, range(len(self.records))), END])

    def __reduce__(self) -> tuple[Any, ...]:
        return _parse, (self._bytes(), "This pickle")  # a copy is verified, and read-only, as a file is


@dataclass(frozen=True)
class Scan:
    """What was found in a file: the board as far as it is whole, where that ends, and what is wrong then.

    `torn` says that the rest is what a write that was cut short leaves, and not an edit.
    """

    board: Billboard | None
    size: int
    problem: BillboardError | None = None
    torn: bool = False


def scan(data: bytes, path: str | os.PathLike[str]) -> Scan:
    """Read a board's bytes as far as they are whole."""
    if not data.startswith(MAGIC):
        problem = BillboardError(f"{path} is not a cloister billboard (or its first bytes were changed).")
        return Scan(None, 0, problem, torn=MAGIC.startswith(data) or not data.strip(b"\0"))
    board: Billboard | None = None
    at = len(MAGIC)
    while board is None or not (len(data) - at == len(END) and data.endswith(END)):
        try:
            board, at = _read_record(data, at, board, path)
        except BillboardError as problem:
            return Scan(board, at, problem, _is_torn(data[at:], problem))
    return Scan(board, at)


def _parse(data: bytes, path: str | os.PathLike[str]) -> Billboard:
    found = scan(data, path)
    if found.problem is not None:
        raise found.problem
    assert found.board is not None
    return found.board


def _is_torn(rest: bytes, problem: BillboardError) -> bool:
    """Say whether the rest of a file can be one record whose write was cut short.

    Some file systems leave zeros where bytes did not arrive. If another record or the last line follows,
    then this one was whole once.
    """
    short = isinstance(problem, _TruncatedError) or rest.endswith(bytes(HASH)) or not rest.strip(b"\0")
    return short and END not in rest and rest.count(HEADER) <= 1


def _head(head: str | bytes) -> bytes:
    try:
        wanted = bytes.fromhex(head) if isinstance(head, str) else bytes(head)
    except ValueError:
        wanted = b""
    if len(wanted) != HASH:
        raise InputError(f"head must be 64 hexadecimal digits (or 32 bytes). Got {head!r}.")
    return wanted


def _frozen(array: Array) -> Array:
    copy = np.array(array, order="C")
    if copy.dtype.kind not in "biufc":
        raise BillboardError(f"A billboard holds arrays of numbers only. Got dtype {copy.dtype}.")
    copy.setflags(write=False)
    return copy


def _chain(previous: bytes, header: bytes, *payload: bytes | Array) -> bytes:
    found = hashlib.sha256(previous + len(header).to_bytes(8, "little") + header)
    for part in payload:
        found.update(part if isinstance(part, bytes) else part.data)
    return found.digest()


class _TruncatedError(BillboardError):
    """The file ends where something should follow."""


def _truncated(path: str | os.PathLike[str], number: int, empty: bool) -> BillboardError:
    what = "has no last line: its run is unfinished" if empty else f"is truncated in record {number}"
    return _TruncatedError(
        f"{path} {what}. {number} record(s) are whole, and Billboard.recover reads them. "
        "Go on with the run that writes it, or restore the file from a copy."
    )


def _read_record(
    data: bytes, at: int, board: Billboard | None, path: str | os.PathLike[str]
) -> tuple[Billboard, int]:
    number = 0 if board is None else len(board.records)
    stop = at + 8 + int.from_bytes(data[at : at + 8], "little")
    if at + 8 > len(data) or stop > len(data):
        raise _truncated(path, number, empty=at == len(data))
    try:
        header = json.loads(data[at + 8 : stop].decode())
        arrays, cursor = _read_arrays(data, stop, header["arrays"])
        if cursor + HASH > len(data):
            raise EOFError
        start = _start(header) if board is None else board
        posted = start._append(*_contents(header, arrays))
    except EOFError:
        raise _truncated(path, number, empty=False) from None
    except (BillboardError, *_UNREADABLE):
        raise _edited(path, number) from None
    raw = _chain(start.head, data[at + 8 : stop], data[stop:cursor])
    if not posted.head == raw == data[cursor : cursor + HASH]:
        raise _edited(path, number)
    if number > start.capacity:
        raise BillboardError(f"{path} holds more releases than its plan allows ({start.capacity}).")
    return posted, cursor + HASH


#: What a header that no board writes can raise while it is read.
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)


def _edited(path: str | os.PathLike[str], number: int) -> BillboardError:
    return BillboardError(
        f"{path} was edited: record {number} does not match its hash. Nothing from it on can be trusted; "
        f"{number} record(s) before it are whole, and Billboard.recover reads them."
    )


def _read_arrays(data: bytes, at: int, listed: Any) -> tuple[dict[str, Array], int]:
    """Read the arrays a header lists; nothing is allocated that the file is too short for."""
    arrays: dict[str, Array] = {}
    for name, kind, shape in listed:
        dtype = np.dtype(DTYPE.fullmatch(kind)[0])  # type: ignore[index]
        if len(shape) > 32 or not all(type(length) is int and 0 <= length < 1 << 63 for length in shape):
            raise ValueError(shape)
        size = dtype.itemsize * math.prod(shape)
        if at + size > len(data):
            raise EOFError
        arrays[name] = np.frombuffer(data[at : at + size], dtype=dtype).reshape(shape)
        at += size
    return arrays, at


def _start(header: dict[str, Any]) -> Billboard:
    plan, capacity, noise = header["plan"], header["capacity"], header.get("noise", "")
    if type(plan) is not str or type(noise) is not str or type(capacity) is not int or capacity < 0:
        raise ValueError(plan, noise, capacity)
    return Billboard(plan, capacity, noise=noise)


def _contents(header: dict[str, Any], arrays: dict[str, Array]) -> tuple[Release | None, dict[str, Array]]:
    digest = {name.removeprefix("digest/"): a for name, a in arrays.items() if name != "release"}
    facts = header.get("release")
    if facts is None:
        return None, digest
    numbers: dict[str, Any] = {k: v if isinstance(v, float) else operator.index(v) for k, v in facts.items()}
    return Release(arrays["release"], **numbers), digest
