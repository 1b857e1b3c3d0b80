r"""The discrete Gaussian, drawn exactly: integers only, no floating-point number decides anything.

The law is :math:`P(n) \propto e^{-n^2 / 2\sigma^2}` on the integers, for an integer :math:`\sigma`. A draw is
:math:`\pm(k\sigma + j)` with :math:`k` of weight :math:`e^{-k^2/2}` and :math:`j` uniform in
:math:`0, \dots, \sigma - 1`, kept with probability :math:`e^{-x(2k+x)/2}`, :math:`x = j/\sigma`: together
:math:`e^{-(k+x)^2/2}`. Both decisions compare a uniform with an irrational number. They are made for many
draws at once, on the uniform's first 32 bits and an integer bound of that number. Where this leaves a doubt,
about once in :math:`10^7` draws, 64 more bits at a time, and integers as long as it takes, settle it.

References
----------
Karney, "Sampling exactly from the normal distribution", ACM TOMS 42 (2016): the decomposition.
Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", arXiv:2004.00010: the mechanism.
Peikert, "An efficient and parallel Gaussian sampler for lattices", CRYPTO 2010: the convolution that
:func:`integer_deviation` rests on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Integers, Words
from cloister.errors import PlanError
from cloister.privacy.randomness import Stream

__all__ = ["discrete_gaussian", "integer_deviation"]


#: The randomised rounding that turns a Gaussian into a discrete one: e^{-2 pi^2 r^2} is below 1e-137.
ROUNDING = 4
LARGEST_DEVIATION = 2**58  # twenty deviations fit into 64 bits
BATCH = 2**16  # fits into the cache
COARSE = 32
DOUBT = np.uint64(64)  # bounds all rounding of the coarse comparison, in units of 2^-32
COARSE_LEVELS = 8  # levels k that are decided coarsely; all others have less than 2^-32 of the weight
HIGH, LOW = 24, 12  # low bits of the exponent that the two tables leave over


def integer_deviation(deviation: float) -> int:
    r"""Return the integer :math:`\sigma` whose discrete Gaussian hides as much as a Gaussian does.

    Let :math:`y` be a Gaussian with deviation :math:`s` around an integer, rounded at random to the integers
    near it with weights :math:`e^{-(n-y)^2/2r^2}`. By Poisson summation the law of the result differs from
    the discrete Gaussian with :math:`\sigma^2 = s^2 + r^2` by factors within
    :math:`1 \pm 3e^{-2\pi^2 r^2}` only, and it moves with the centre. So a release with discrete noise is a
    Gaussian release, post-processed: it is :math:`\mu`-GDP with :math:`\mu = \Delta/s`, in any dimension, up
    to such a factor for each coordinate. Here :math:`r = 4`: a million coordinates add less than
    :math:`10^{-130}` to epsilon. The integer :math:`\sigma` is rounded up.

    Examples
    --------
    >>> integer_deviation(0.0), integer_deviation(1000.0)
    (5, 1001)
    """
    found = math.ceil(math.hypot(deviation, ROUNDING) * (1 + 2.0**-40))
    if found > LARGEST_DEVIATION:
        raise PlanError(
            f"The noise would be {deviation:.2g} grid steps, more than integers of 64 bits can hold. "
            "Ask for a larger epsilon or fewer rounds."
        )
    return found


def discrete_gaussian(deviation: int, count: int, stream: Stream) -> Integers:
    """Return `count` independent draws with parameter `deviation`, a positive integer.

    Examples
    --------
    >>> from cloister.privacy.randomness import SeededRandomness
    >>> draws = discrete_gaussian(2**40, 10_000, SeededRandomness(0).stream("noise"))
    >>> draws.dtype, bool(abs(draws.std() / 2**40 - 1) < 0.03)
    (dtype('int64'), True)
    """
    if not 1 <= deviation <= LARGEST_DEVIATION:
        raise PlanError(f"A deviation must be an integer from 1 to 2^58. Got {deviation}.")
    out = np.empty(count, dtype=np.int64)
    filled = 0
    while filled < count:
        kept = _batch(deviation, min(BATCH, (count - filled) * 3 // 2 + 16), stream)[: count - filled]
        out[filled : filled + len(kept)] = kept
        filled += len(kept)
    return out


def _batch(deviation: int, count: int, stream: Stream) -> Integers:
    """Return the draws that are kept among `count` candidates."""
    first, second = stream.words(2 * count).reshape(2, count)
    second = second[
        (second >> np.uint64(1)) & _mask(deviation) < deviation
    ]  # j is uniform below the deviation
    first = first[: len(second)]
    negative = (second & 1).astype(np.bool_)
    j = (second >> np.uint64(1)) & _mask(deviation)
    level, keep, doubt = _coarse(first, j, deviation)
    level = level.astype(np.int64)
    for i in np.flatnonzero(doubt):
        level[i], keep[i] = _exact(int(first[i]), int(j[i]), deviation, stream)
    keep &= ~(negative & (level == 0) & (j == 0))  # zero has one sign
    size = level * deviation + j.astype(np.int64)
    return np.where(negative, -size, size)[keep]


def _mask(deviation: int) -> np.uint64:
    return np.uint64((1 << (deviation - 1).bit_length()) - 1)


def _coarse(first: Words, j: Words, deviation: int) -> tuple[Words, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return level, whether to keep, and whether 32 bits leave a doubt about either."""
    floors, high, low = _tables()
    u, v = first >> COARSE, first & np.uint64(2**COARSE - 1)
    level = np.searchsorted(floors, u, side="right").astype(np.uint64)
    doubt = floors[np.maximum(level, 1).astype(np.intp) - 1] == u
    level = np.minimum(level, COARSE_LEVELS - 1)  # more is in doubt already
    shift = max(0, deviation.bit_length() - 31)
    x = np.minimum(((j >> shift) << COARSE) // np.uint64(deviation >> shift), np.uint64(2**COARSE - 1))
    exponent = x * level + (x * x >> (COARSE + 1))
    weight = high[exponent >> HIGH] * low[(exponent >> LOW) & np.uint64(2 ** (HIGH - LOW) - 1)] >> (
        COARSE - 1
    )
    weight -= weight * (exponent & np.uint64(2**LOW - 1)) >> COARSE
    doubt |= (v <= weight + DOUBT) & (weight <= v + DOUBT)
    return level, v < weight, doubt


@lru_cache(maxsize=1)
def _tables() -> tuple[Words, Words, Words]:
    """Return the floors of 2^32 P(level <= k), and the powers of e that an exponent is put together from."""
    floors = [_cumulative(k, COARSE + 64)[0] >> 64 for k in range(COARSE_LEVELS)]
    high = [_power(a, 1 << (COARSE - HIGH), COARSE - 1)[0] for a in range(COARSE_LEVELS << (COARSE - HIGH))]
    low = [_power(b, 1 << (COARSE - LOW), COARSE)[0] for b in range(1 << (HIGH - LOW))]
    return tuple(np.array(table, dtype=np.uint64) for table in (floors, high, low))  # type: ignore[return-value]


def _exact(first: int, j: int, deviation: int, stream: Stream) -> tuple[int, bool]:
    """Decide about one candidate with as many bits as it takes."""
    u = _Uniform(first >> COARSE, COARSE, stream)
    level = 0
    while not u.below(partial(_cumulative, level)):
        level += 1
    v = _Uniform(first & (2**COARSE - 1), COARSE, stream)
    exponent = partial(_power, j * (2 * level * deviation + j), 2 * deviation**2)
    return level, v.below(exponent)


@dataclass
class _Uniform:
    """A uniform number of which only the first bits are drawn yet."""

    prefix: int
    bits: int
    stream: Stream

    def below(self, bounds: Callable[[int], tuple[int, int]]) -> bool:
        """Say whether it is below a number, given by integers around 2^bits times it."""
        while True:
            lowest, highest = bounds(self.bits)
            if self.prefix < lowest:
                return True
            if self.prefix >= highest:
                return False
            self.prefix = self.prefix << 64 | int(self.stream.words(1)[0])
            self.bits += 64


def _power(p: int, q: int, bits: int) -> tuple[int, int]:
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


def _cumulative(level: int, bits: int) -> tuple[int, int]:
    """Return integers around 2^bits times the weight of the levels up to this one."""
    work = bits + 32
    terms = max(level + 2, math.isqrt(2 * work) + 2)  # the rest weighs less than its first term, twice
    weights = [_power(k * k, 2, work) for k in range(terms)]
    part = [sum(weight[side] for weight in weights[: level + 1]) for side in (0, 1)]
    rest = [sum(weight[side] for weight in weights[level + 1 :]) for side in (0, 1)]
    rest[1] += 2 * _power(terms * terms, 2, work)[1]
    return (part[0] << bits) // (part[0] + rest[1]), -((-part[1] << bits) // (part[1] + rest[0]))
