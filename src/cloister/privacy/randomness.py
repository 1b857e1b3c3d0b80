"""Where secret randomness comes from: the operating system by default, a seed only for tests and papers.

A source is one secret key. Every stream (sampling coins, the noise of a round, a seed for the tasks' own
randomness) has a key of its own, SHAKE-256 of that key and the stream's name, and is ChaCha20's key stream
under it: who does not know the key cannot tell a stream from fair coins, nor one stream from another. Who
keeps the key can draw the same noise again, which is how a run that was killed goes on without ever adding a
second noise to the same sum. Nothing else makes noise.

The noise of a release is drawn from a stream that is *bound* to what it is added to (`Stream.bound_to`): the
same sum gets the same noise again, another sum in the same round independent noise, so that two releases of
one round never differ by their bare sums. The law of the noise stays what it was: to who does not know the
key SHAKE-256 is a random function, and a key that it gives at a place where it was not asked before is fair
coins, however that place was chosen from the data and from earlier releases; the round keeps places apart.
Two releases of one round are two releases, each at its price; and that they differ shows that their sums did.
Streams of a seed are not bound: they keep nothing secret anyway.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar

import numpy as np
from cryptography.hazmat.primitives.poly1305 import Poly1305
from numpy.typing import ArrayLike

from cloister.core.arrays import Floats, Words, to_uniforms
from cloister.privacy.caveats import SEEDED, Caveat
from cloister.privacy.chacha_proposals import Call, Sampler, on_processor

KEY_BYTES = 32


@dataclass
class Stream:
    """Fair coins in order, as words of 64: each call goes on where the last one ended."""

    key: bytes = field(repr=False)
    calls: int = 0
    binds: bool = True
    #: Who computes candidates of exact noise from these coins; it makes no difference to what they are.
    sampler: Sampler = field(default=on_processor, repr=False)

    def call(self) -> Call:
        """Return where the coins of the next call stand, and count it."""
        self.calls += 1
        return Call(self.key, self.calls - 1)

    def words(self, count: int) -> Words:
        """Return the next `count` words of 64 fair coins."""
        return self.call().words(0, count)

    def uniforms(self, count: int) -> Floats:
        """Return `count` uniforms in (0, 1)."""
        return to_uniforms(self.words(count))

    def numbered(self, call: int, count: int) -> Floats:
        """Return the uniforms of call number `call` (from 0), of so many, without going through the others.

        Examples
        --------
        >>> stream = SeededRandomness(7).stream("coins")
        >>> again, in_order = stream.numbered(1, 3), [stream.uniforms(3) for _ in range(2)]
        >>> bool((again == in_order[1]).all())
        True
        """
        return Stream(self.key, call).uniforms(count)

    def bound_to(self, *numbers: ArrayLike) -> Stream:
        """Return the stream of these numbers: the same for the same ones, independent of that of others.

        It counts as a call: bound twice to the same numbers, a stream gives two that are independent. The
        streams of a seed stay themselves.

        Examples
        --------
        >>> key = SystemRandomness()
        >>> first, again, other = (key.stream("noise").bound_to([3, k]) for k in (5, 5, 6))
        >>> drawn = first.words(3)
        >>> bool((again.words(3) == drawn).all()), bool((other.words(3) == drawn).any())
        (True, False)
        """
        if not self.binds:
            return self
        call = self.call()
        place = call.key, str(call.number).encode()
        point = _shake(*place, b"point")
        return Stream(_shake(*place, *(_tag(point, part) for part in numbers)), sampler=self.sampler)


class Origin(Enum):
    """Where the randomness of a release came from, and the doubts it leaves."""

    SYSTEM = "{noise}, from a cryptographic generator keyed by the operating system"
    SEED = "INSECURE: {noise}, from a seed, for tests and papers"
    NOWHERE = "none"

    def describe(self, noise: str) -> str:
        """Return a phrase for the guarantee, for this kind of noise."""
        return self.value.format(noise=noise)

    @property
    def doubts(self) -> tuple[Caveat, ...]:
        """Who knows the seed can subtract the noise."""
        return (SEEDED,) if self is Origin.SEED else ()


class Randomness(ABC):
    """A secret key, and the streams that follow from it."""

    origin: ClassVar[Origin]
    #: Whether noise is drawn for the sum it is added to.
    binds: ClassVar[bool] = True

    #: Who computes candidates of exact noise.
    sampler: Sampler

    @property
    @abstractmethod
    def key(self) -> bytes:
        """The secret itself: 32 bytes."""

    @abstractmethod
    def sampled_by(self, sampler: Sampler) -> Randomness:
        """Return the same source, whose exact noise is computed there: the same noise."""

    @property
    def doubts(self) -> tuple[Caveat, ...]:
        """Doubts about a guarantee whose noise comes from here."""
        return self.origin.doubts

    def stream(self, name: str, round: int = 0) -> Stream:
        """Return the stream of this name, from its beginning."""
        key = _shake(self.key, name.encode(), str(round).encode())
        return Stream(key, binds=self.binds, sampler=self.sampler)

    def derived(self, name: str, number: int = 0) -> SystemRandomness:
        """Return an independent source, whose key is drawn from the stream of this name."""
        return SystemRandomness(self.stream(name, number).words(4).tobytes(), self.sampler)

    def task_seeds(self, names: Iterable[object]) -> Words:
        """Return a seed for each task's own local randomness, by its name.

        It is a hash of the name under a key of its own: a task that knows its seed learns nothing of
        another's, nor of noise and coins.

        Examples
        --------
        >>> one, two = SeededRandomness(7).task_seeds(["Elm", "Oak"])
        >>> bool(one != two), bool(SeededRandomness(7).task_seeds(["Oak"])[0] == two)
        (True, True)
        """
        key = self.stream("local").words(4).tobytes()
        found = bytearray()  # of a million tasks, eight bytes each and no more
        for name in names:
            found += hashlib.blake2b(str(name).encode(), key=key, digest_size=8).digest()
        return np.frombuffer(bytes(found), dtype="<u8").astype(np.uint64, copy=False)


@dataclass(frozen=True)
class SystemRandomness(Randomness):
    """A key from the operating system's cryptographic generator, or the one that was kept to go on with."""

    secret: bytes = field(default_factory=lambda: os.urandom(KEY_BYTES), repr=False)
    sampler: Sampler = field(default=on_processor, repr=False, compare=False)
    origin: ClassVar[Origin] = Origin.SYSTEM

    @property
    def key(self) -> bytes:
        return self.secret

    def sampled_by(self, sampler: Sampler) -> SystemRandomness:
        return replace(self, sampler=sampler)


@dataclass(frozen=True)
class SeededRandomness(Randomness):
    """A key from a seed. INSECURE: who knows the seed can subtract the noise.

    Its noise does not depend on what it is added to, so that engines and machines whose sums differ in their
    last bits can be compared.

    Examples
    --------
    >>> first, again = (SeededRandomness(7).stream("noise", 1) for _ in range(2))
    >>> bool((first.words(3) == again.words(3)).all()), bool((first.words(3) == first.words(3)).any())
    (True, False)
    >>> SeededRandomness(7).origin.describe("floating-point noise")
    'INSECURE: floating-point noise, from a seed, for tests and papers'
    """

    seed: int
    sampler: Sampler = field(default=on_processor, repr=False, compare=False)
    origin: ClassVar[Origin] = Origin.SEED
    binds: ClassVar[bool] = False

    @property
    def key(self) -> bytes:
        return _shake(b"seed", str(int(self.seed)).encode())

    def sampled_by(self, sampler: Sampler) -> SeededRandomness:
        return replace(self, sampler=sampler)


def source_of(seed: int | None) -> Randomness:
    """Return the operating system's randomness, or that of a seed."""
    return SystemRandomness() if seed is None else SeededRandomness(int(seed))


def normals(uniforms: Floats) -> Floats:
    """Turn uniforms into standard normals by inversion."""
    from scipy.special import ndtri

    return np.asarray(ndtri(uniforms), dtype=np.float64)


def _tag(key: bytes, numbers: ArrayLike) -> bytes:
    """Return Poly1305 of numbers under a key of one call: of n of them in 64 bits, the same on every machine.

    It is a polynomial at a secret point: two arrays that were chosen without knowing it have one tag with
    probability (n/2 + 5) / 2^103 at most. It takes a fifth of SHA-256's time. Numbers that neither 64 bits
    nor floats hold are refused: rounded, two sums would have one noise.
    """
    array = np.asarray(numbers)
    if np.can_cast(array.dtype, np.int64):
        kind = "<i8"
    elif array.dtype in (np.float32, np.float64):
        kind = "<f8"
    else:
        raise TypeError(f"Noise is for numbers of int64 or float64. Got {array.dtype}.")
    header = f"{kind} {array.shape}".encode()
    tag = Poly1305(key)
    tag.update(len(header).to_bytes(8, "little") + header)
    tag.update(np.ascontiguousarray(array, dtype=kind).reshape(-1).view(np.uint8).data)
    return tag.finalize()


def _shake(*parts: bytes, size: int = KEY_BYTES) -> bytes:
    """Return SHAKE-256 of some parts, each after its length, so that no two lists look alike."""
    return hashlib.shake_256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest(size)
