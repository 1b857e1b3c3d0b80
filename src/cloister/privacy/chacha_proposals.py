r"""Candidates for draws of the discrete Gaussian, many at a time, from the key stream of ChaCha20.

Candidate i of a call has two words of 64 bits of the call's key stream: of the first, 32 bits each say
what level k it has and whether it is kept; the second says its sign and j. The decisions are made on integer
bounds, so that they come out the same on every machine, a graphics card included; where 32 bits do not settle
one, once in thirty million, the candidate is in doubt, and `cloister.privacy.noise` settles it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from cloister.core.arrays import Integers, Words

#: Words of a block of ChaCha20; each candidate takes two.
BLOCK_WORDS = 8
#: Blocks that the counter tells apart under one key and nonce: what would go beyond is refused.
BLOCKS = 2**32
#: Candidates that are looked at together: their numbers stay in a processor's caches.
TOGETHER = 2**15
#: By what a sampler is told from a wrong one: numbers of calls, of candidates, and deviations. Of the last,
#: which are as many as in a large release, one is in doubt.
TRIALS = (
    *((2**40 + 7, 2001, deviation) for deviation in (1001, 2**31 - 1, 2**31 + 5, 2**58)),
    (2**40 + 102, 2**18, 2**31 + 5),
)
COARSE = 32
DOUBT = 64  # bounds all rounding of the coarse comparison, in units of 2^-32
LEVELS = 8  # levels k that are decided coarsely; all others have less than 2^-32 of the weight
HIGH, LOW = 24, 12  # low bits of the exponent that the two tables leave over


@dataclass(frozen=True)
class Call:
    """Where fair coins stand: a key of 32 bytes, and the number of the call under it."""

    key: bytes
    number: int

    def words(self, first: int, count: int) -> Words:
        """Return words of 64 coins from this place on."""
        before = first % BLOCK_WORDS
        return key_stream(self.key, self.number, first // BLOCK_WORDS, before + count)[before:]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Those that are kept or in doubt, in order.

    Attributes
    ----------
    values : int64 array
        What each would be; of no meaning where it is in doubt.
    doubtful : int64 array
        The places in `values` of those in doubt.
    numbers : int64 array
        Which candidates of the call these are.
    """

    values: Integers
    doubtful: Integers
    numbers: Integers


#: Computes so many candidates of a deviation from a call's coins: bit for bit the same, whoever does it.
Sampler: TypeAlias = Callable[[Call, int, int], Candidates]


def key_stream(key: bytes, nonce: int, block: int, words: int) -> Words:
    """Return words of 64 bits of ChaCha20's key stream, from a block on.

    Every block is of one key, nonce and counter: those of different calls are never the same.

    Examples
    --------
    >>> whole = key_stream(bytes(32), 0, 0, 24)
    >>> bool((key_stream(bytes(32), 0, 2, 8) == whole[16:]).all()), hex(whole[0])
    (True, '0x903df1a0ade0b876')
    """
    if BLOCK_WORDS * (BLOCKS - block) < words:
        raise OverflowError(f"One call gives at most 2^35 words. Got {words} from block {block} on.")
    start = block.to_bytes(8, "little") + nonce.to_bytes(8, "little")
    made = Cipher(algorithms.ChaCha20(key, start), mode=None).encryptor().update(bytes(8 * words))
    return np.frombuffer(made, dtype="<u8").astype(np.uint64, copy=False)


def mask_of(deviation: int) -> int:
    """Return the bits in which a whole number below the deviation is drawn."""
    return (1 << (deviation - 1).bit_length()) - 1


def on_processor(call: Call, count: int, deviation: int) -> Candidates:
    """Compute candidates with NumPy."""
    starts = range(0, count, TOGETHER)
    parts = [_drawn(call, start, min(TOGETHER, count - start), deviation) for start in starts]
    if len(parts) == 1:
        return parts[0]
    values, doubtful, numbers = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("values", "doubtful", "numbers")
    )
    sizes = [len(part.values) for part in parts]
    before = np.repeat(np.cumsum([0, *sizes[:-1]]), [len(part.doubtful) for part in parts])
    return Candidates(values, doubtful + before, numbers)


def agrees(sampler: Sampler) -> bool:
    """Say whether a sampler finds the candidates of the processor, of deviations of every length.

    It is asked before it is trusted: what another device computes depends on compilers and drivers.

    Examples
    --------
    >>> agrees(on_processor), agrees(lambda call, count, deviation: on_processor(call, count, deviation + 1))
    (True, False)
    """
    for number, count, deviation in TRIALS:
        call = Call(bytes(range(32)), number)
        found, right = sampler(call, count, deviation), on_processor(call, count, deviation)
        alike = [np.array_equal(getattr(found, n), getattr(right, n)) for n in ("doubtful", "numbers")]
        if not all(alike) or len(found.values) != len(right.values):
            return False
        settled = np.ones(len(right.values), dtype=np.bool_)
        settled[right.doubtful] = False
        if not np.array_equal(found.values[settled], right.values[settled]):
            return False
    return True


def _drawn(call: Call, start: int, count: int, deviation: int) -> Candidates:
    """Compute candidates from a place on; arrays are written over where they are not needed any more."""
    words = call.words(2 * start, 2 * count)
    j = words[1::2] >> np.uint64(1)
    j &= np.uint64(mask_of(deviation))
    at = np.flatnonzero(j < deviation)  # j is uniform below the deviation
    j, place = j.take(at), 2 * at
    first = words.take(place)
    place += 1
    negative = (words.take(place) & np.uint64(1)).astype(np.bool_)
    size, keep, doubt = coarse(first, j, deviation)
    size *= np.uint64(deviation)
    size += j
    keep &= ~(negative & (size == 0))  # zero has one sign
    keep |= doubt
    kept = np.flatnonzero(keep)
    values = size.take(kept).view(np.int64)
    values *= 1 - 2 * negative.take(kept).astype(np.int8)
    doubts = np.flatnonzero(doubt)
    return Candidates(values, np.searchsorted(kept, doubts), start + at[doubts])


def coarse(first: Words, j: Words, deviation: int) -> tuple[Words, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return level, whether to keep, and whether 32 bits leave a doubt; `first` is written over."""
    floors, high, low = tables()
    u = (first >> np.uint64(COARSE)).astype(np.uint32)
    steps, doubt = np.zeros(len(u), dtype=np.uint8), np.zeros(len(u), dtype=np.bool_)
    for floor in floors.astype(np.uint32):
        steps += u >= floor
        doubt |= u == floor
    level = np.minimum(steps, LEVELS - 1).astype(np.uint64)  # more is in doubt already
    shift = max(0, deviation.bit_length() - 31)
    x = j >> np.uint64(shift)
    x <<= np.uint64(COARSE)
    x //= np.uint64(deviation >> shift)
    np.minimum(x, np.uint64(2**COARSE - 1), out=x)
    exponent = x * x
    exponent >>= np.uint64(COARSE + 1)
    x *= level
    exponent += x
    weight = high.take((exponent >> np.uint64(HIGH)).view(np.int64))
    np.right_shift(exponent, np.uint64(LOW), out=x)
    x &= np.uint64(2 ** (HIGH - LOW) - 1)
    weight *= low.take(x.view(np.int64))
    weight >>= np.uint64(COARSE - 1)
    exponent &= np.uint64(2**LOW - 1)
    exponent *= weight
    exponent >>= np.uint64(COARSE)
    weight -= exponent
    v = first
    v &= np.uint64(2**COARSE - 1)
    keep = v < weight
    v += np.uint64(DOUBT)
    v -= weight  # modulo 2^64: small if v and weight are close
    doubt |= v <= np.uint64(2 * DOUBT)
    return level, keep, doubt


@lru_cache(maxsize=1)
def tables() -> tuple[Words, Words, Words]:
    """Return the floors of 2^32 P(level <= k), and the powers of e that an exponent is put together from."""
    floors = [cumulative(k, COARSE + 64)[0] >> 64 for k in range(LEVELS)]
    high = [power(a, 1 << (COARSE - HIGH), COARSE - 1)[0] for a in range(LEVELS << (COARSE - HIGH))]
    low = [power(b, 1 << (COARSE - LOW), COARSE)[0] for b in range(1 << (HIGH - LOW))]
    return tuple(np.array(table, dtype=np.uint64) for table in (floors, high, low))  # type: ignore[return-value]


def power(p: int, q: int, bits: int) -> tuple[int, int]:
    """Return integers around 2^bits exp(-p/q), at most a few apart."""
    if p == 0:
        return 1 << bits, 1 << bits
    halvings = max(0, (p // q).bit_length()) + 8
    work = bits + 2 * halvings + 32
    x = (p << work) // (q << halvings)  # below 2^-8
    term = total = 1 << work
    n = 0
    while term:
        n += 1
        term = (term * x >> work) // n
        total += -term if n % 2 else term
    for _ in range(halvings):
        total = total * total >> work
    error = (2 * n + 8) << (halvings + 1)  # two units a term, doubled and one more at each squaring
    return max(0, total - error) >> (work - bits), ((total + error) >> (work - bits)) + 1


def cumulative(level: int, bits: int) -> tuple[int, int]:
    """Return integers around 2^bits times the weight of the levels up to this one."""
    work = bits + 32
    terms = max(level + 2, math.isqrt(2 * work) + 2)  # the rest weighs less than its first term, twice
    weights = [power(k * k, 2, work) for k in range(terms)]
    part = [sum(weight[side] for weight in weights[: level + 1]) for side in (0, 1)]
    rest = [sum(weight[side] for weight in weights[level + 1 :]) for side in (0, 1)]
    rest[1] += 2 * power(terms * terms, 2, work)[1]
    return (part[0] << bits) // (part[0] + rest[1]), -((-part[1] << bits) // (part[1] + rest[0]))
