"""The billboard: an append-only, hash-chained public record of releases and what was digested from them.

On disk it is one file of records. Each is a JSON header, raw little-endian arrays, and a SHA-256 over the
previous record's hash, the header and the arrays; no pickle anywhere. A last line marks the end. A changed
byte, a missing piece or a record out of order is found on loading and named.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.errors import BillboardError

__all__ = ["Billboard", "Release"]

Array = NDArray[Any]
MAGIC, END = b"cloister billboard 1\n", b"end of billboard\n"
DTYPE = re.compile(r"[<|][biufc]\d\d?")


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
    hash: bytes


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

    @classmethod
    def open(cls, digest: Mapping[str, Array], plan: str, capacity: int) -> Billboard:
        """Open a board for a plan (its fingerprint) that allows `capacity` releases."""
        return cls(plan, capacity)._append(None, digest)

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
        header, payload = _encode(self, release, frozen)
        record = _Record(release, MappingProxyType(frozen), _chain(self.head, header, payload))
        return Billboard(self.plan, self.capacity, (*self.records, record))

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
        return self.records[-1].hash if self.records else b""

    def before(self, round: int) -> Billboard:
        """Return the board as it was when round number `round` (from 0) began."""
        return Billboard(self.plan, self.capacity, self.records[: round + 1])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the board to one file, atomically: either the old file or the whole new one is there."""
        target = Path(path)
        draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with open(draft, "xb") as file:
                file.write(self._bytes())
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Billboard:
        """Read a board and verify every record; a truncated or edited one is refused by number."""
        return _parse(Path(path).read_bytes(), path)

    def _bytes(self) -> bytes:
        parts, board = [MAGIC], Billboard(self.plan, self.capacity)
        for record in self.records:
            header, payload = _encode(board, record.release, record.digest)
            parts += [len(header).to_bytes(8, "little"), header, payload, record.hash]
            board = Billboard(self.plan, self.capacity, (*board.records, record))
        return b"".join([*parts, END])

    def __reduce__(self) -> tuple[Any, ...]:
        return _parse, (self._bytes(), "This pickle")  # a copy is verified, and read-only, as a file is


def _parse(data: bytes, path: str | os.PathLike[str]) -> Billboard:
    if not data.startswith(MAGIC):
        raise BillboardError(f"{path} is not a cloister billboard (or its first bytes were changed).")
    board: Billboard | None = None
    at = len(MAGIC)
    while data[at:] != END or board is None:
        board, at = _read_record(data, at, board, path)
    return board


def _frozen(array: Array) -> Array:
    copy = np.array(array, order="C")
    if copy.dtype.kind not in "biufc":
        raise BillboardError(f"A billboard holds arrays of numbers only. Got dtype {copy.dtype}.")
    copy.setflags(write=False)
    return copy


def _chain(previous: bytes, header: bytes, payload: bytes) -> bytes:
    return hashlib.sha256(previous + len(header).to_bytes(8, "little") + header + payload).digest()


def _encode(board: Billboard, release: Release | None, digest: Mapping[str, Array]) -> tuple[bytes, bytes]:
    arrays = {f"digest/{name}": array for name, array in sorted(digest.items())}
    header: dict[str, Any] = {"record": len(board.records), "plan": board.plan, "capacity": board.capacity}
    if release is not None:
        arrays["release"] = release.value
        header["release"] = release.facts()
    little = {name: array.astype(array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    header["arrays"] = [[name, array.dtype.str, list(array.shape)] for name, array in little.items()]
    text = json.dumps(header, sort_keys=True, separators=(",", ":"))
    return text.encode(), b"".join(array.tobytes() for array in little.values())


def _read_record(
    data: bytes, at: int, board: Billboard | None, path: str | os.PathLike[str]
) -> tuple[Billboard, int]:
    number = 0 if board is None else len(board.records)
    truncated = BillboardError(
        f"{path} is truncated in record {number}; records before it are whole. Restore the file from a copy."
    )
    edited = BillboardError(
        f"{path} was edited: record {number} does not match its hash. Nothing from it on can be trusted."
    )
    stop = at + 8 + int.from_bytes(data[at : at + 8], "little")
    if at + 8 > len(data) or stop > len(data):
        raise truncated
    try:
        header = json.loads(data[at + 8 : stop])
        arrays, cursor = {}, stop
        for name, kind, shape in header["arrays"]:
            dtype = np.dtype(DTYPE.fullmatch(kind)[0])  # type: ignore[index]
            size = dtype.itemsize * math.prod(shape)
            if cursor + size > len(data):
                raise truncated
            arrays[name] = np.frombuffer(data[cursor : cursor + size], dtype=dtype).reshape(shape)
            cursor += size
        if cursor + 32 > len(data):
            raise truncated
        digest = {name.removeprefix("digest/"): a for name, a in arrays.items() if name != "release"}
        facts = header.get("release")
        if facts is not None:  # numbers only
            facts = {k: v if isinstance(v, float) else operator.index(v) for k, v in facts.items()}
        release = None if facts is None else Release(arrays["release"], **facts)
        start = Billboard(header["plan"], header["capacity"]) if board is None else board
        over = number > start.capacity
        posted = start._append(release, digest)
    except BillboardError as error:
        raise (error if error is truncated else edited) from None
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise edited from None
    if (
        posted.head != data[cursor : cursor + 32]
        or _chain(start.head, data[at + 8 : stop], data[stop:cursor]) != posted.head
    ):
        raise edited
    if over:
        raise BillboardError(f"{path} holds more releases than its plan allows ({start.capacity}).")
    return posted, cursor + 32
