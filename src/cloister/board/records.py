"""What stands on a billboard, one record a release, and how a record is written and read.

A record in a file is the length of its header (8 bytes, little-endian), a JSON header, raw little-endian
arrays, and a SHA-256 over the previous record's hash, the header and the arrays; no pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Array
from cloister.errors import BillboardError

__all__ = ["Record", "Release"]

DTYPE = re.compile(r"[<|][biufc]\d\d?")
#: How every record's header begins: where a second one is seen, a first one has ended.
HEADER = b'{"arrays":'
HASH = 32
#: No board writes a longer header; one that claims to be is not even read.
LONGEST_HEADER = 1 << 24
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
    """

    value: NDArray[np.float64]
    noise: float
    denominator: float
    share: float = 1.0
    channel: int = 0

    def facts(self) -> dict[str, Any]:
        """Return what is public of a release beside its value: noise, denominator, share, channel."""
        return {key: getattr(self, key) for key in ("noise", "denominator", "share", "channel")}


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
