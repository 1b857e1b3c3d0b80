r"""The discrete Gaussian, drawn exactly; and the laws that mechanisms claim for their noise.

*Draws* are of integers only, and no floating-point number decides anything. The law is
:math:`P(n) \propto e^{-n^2 / 2\sigma^2}` on the integers, for an integer :math:`\sigma`. A draw is
:math:`\pm(k\sigma + j)` with :math:`k` of weight :math:`e^{-k^2/2}` and :math:`j` uniform in
:math:`0, \ldots, \sigma - 1`, kept with probability :math:`e^{-x(2k+x)/2}`, :math:`x = j/\sigma`: together
:math:`e^{-(k+x)^2/2}`. Both decisions compare a uniform with an irrational number. They are made for many
candidates at once, on the uniform's first 32 bits and an integer bound of that number
(`cloister.privacy.chacha_proposals`), by the processor or a graphics card. Where this leaves a doubt, once in
thirty million candidates, 64 more bits at a time, and integers as long as it takes, settle it here.

*Laws* are a density to attack with, and uniforms to test noise by.

* Gaussian: independent coordinates. The discrete Gaussian is compared with the Gaussian it stands for, from
  which it cannot be told above some thousand steps of the grid; below them it is larger than claimed.
* Laplace on the ball: density :math:`e^{-|b|/s}`, a Gamma length and a uniform direction.
* Wishart, less its mean: by Bartlett the Cholesky factor has independent entries, normal below the diagonal
  and roots of chi-squares on it.

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
from functools import partial
from typing import Protocol

import numpy as np
from scipy.special import betainc, gammainc, ndtr

from cloister.core.arrays import Floats, Integers
from cloister.core.errors import PlanError
from cloister.core.lifts import unsvec
from cloister.privacy.chacha_proposals import COARSE, Call, Candidates, cumulative, mask_of, power
from cloister.privacy.randomness import Stream

#: The randomised rounding that turns a Gaussian into a discrete one: e^{-2 pi^2 r^2} is below 1e-137.
ROUNDING = 4
LARGEST_DEVIATION = 2**58  # twenty deviations fit into 64 bits
MOST = 2**22  # candidates of one call: what they take is bounded


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
    parts: list[Integers] = []
    left = count
    while left:  # mostly once
        call = stream.call()
        candidates = stream.sampler(call, _enough(deviation, left), deviation)
        parts.append(settled(candidates, call, deviation, stream)[:left])
        left -= len(parts[-1])
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _enough(deviation: int, count: int) -> int:
    """Return how many candidates will mostly do: 1 in 1.4 of those with j below the deviation is kept."""
    return min(MOST, count * (mask_of(deviation) + 1) * 7 // (5 * deviation) + 8 * math.isqrt(count) + 16)


def settled(candidates: Candidates, call: Call, deviation: int, stream: Stream) -> Integers:
    """Return the candidates that are kept; those in doubt are decided about in order, with fresh coins."""
    values, kept = candidates.values, np.ones(len(candidates.values), dtype=np.bool_)
    if len(candidates.doubtful):
        values = values.copy()
    for place, number in zip(candidates.doubtful.tolist(), candidates.numbers.tolist(), strict=True):
        first, second = (int(word) for word in call.words(2 * number, 2))
        negative, j = second & 1, (second >> 1) & mask_of(deviation)
        level, keep = _exact(first, j, deviation, stream)
        size = level * deviation + j
        kept[place] = keep and not (negative and size == 0)  # zero has one sign
        values[place] = -size if negative else size
    return values[kept] if len(candidates.doubtful) else values


def _exact(first: int, j: int, deviation: int, stream: Stream) -> tuple[int, bool]:
    """Decide about one candidate with as many bits as it takes."""
    u = _Uniform(first >> COARSE, COARSE, stream)
    level = 0
    while not u.below(partial(cumulative, level)):
        level += 1
    v = _Uniform(first & (2**COARSE - 1), COARSE, stream)
    exponent = partial(power, j * (2 * level * deviation + j), 2 * deviation**2)
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


#: Steps of the grid below which integer noise is visibly not a Gaussian of the claimed deviation.
FINE = 4000


class Law(Protocol):
    """What the noise of a release is said to be."""

    def log_density(self, noise: Floats) -> Floats:
        """Return the log density of each row, up to a constant; minus infinity where it cannot be."""

    def uniforms(self, noise: Floats) -> Floats:
        """Return numbers that are independent and uniform if the law holds, some for each row."""


@dataclass(frozen=True)
class GaussianLaw:
    """Independent normal coordinates.

    Examples
    --------
    >>> GaussianLaw(2.0).uniforms(np.array([[0.0, 2.0]])).round(4).tolist()
    [[0.5, 0.8413]]
    """

    deviation: float

    def log_density(self, noise: Floats) -> Floats:
        return np.asarray(-0.5 * ((noise / self.deviation) ** 2).sum(axis=1))

    def uniforms(self, noise: Floats) -> Floats:
        return np.asarray(ndtr(noise / self.deviation))


@dataclass(frozen=True)
class LaplaceLaw:
    """A Gamma length and a uniform direction.

    Examples
    --------
    >>> LaplaceLaw(1.0).uniforms(np.array([[0.0, 1.0]])).round(4).tolist()  # of the length, of the direction
    [[0.2642, 0.5]]
    """

    scale: float

    def log_density(self, noise: Floats) -> Floats:
        return np.asarray(-np.linalg.norm(noise, axis=1) / self.scale)

    def uniforms(self, noise: Floats) -> Floats:
        """Return one for the length and one for the first coordinate of the direction."""
        size, length = noise.shape[1], np.linalg.norm(noise, axis=1)
        of_length = gammainc(size, length / self.scale)
        if size == 1:  # the direction is a sign: of both together one uniform is left
            signed = np.where(noise[:, 0] > 0, 1 - 0.5 * np.exp(-length / self.scale), 0.5 - 0.5 * of_length)
            return np.asarray(signed[:, None])
        cosine = noise[:, 0] / np.where(length > 0, length, 1.0)
        of_direction = betainc((size - 1) / 2, (size - 1) / 2, (1 + cosine) / 2)
        return np.stack([of_length, of_direction], axis=1)


@dataclass(frozen=True)
class WishartLaw:
    """A Wishart matrix of some scale and degrees of freedom less its mean, as svec.

    Examples
    --------
    >>> law = WishartLaw(scale=1.0, freedom=4.0, dim=1)
    >>> law.uniforms(np.array([[-0.6433]])).round(3).tolist(), law.log_density(np.array([[-4.5]])).tolist()
    ([[0.5]], [-inf])
    """

    scale: float
    freedom: float
    dim: int

    def log_density(self, noise: Floats) -> Floats:
        """Return the log density; it is minus infinity where the matrix is not positive."""
        matrix = self._matrix(noise)
        values = np.linalg.eigvalsh(matrix)
        positive = values[:, 0] > 0
        logs = np.log(np.where(positive[:, None], values, 1.0)).sum(axis=1)
        inside = 0.5 * (self.freedom - self.dim - 1) * logs - 0.5 * values.sum(axis=1)
        return np.where(positive, inside, -np.inf)

    def uniforms(self, noise: Floats) -> Floats:
        """Return one for each entry of the Cholesky factor; 0 where there is none."""
        matrix = self._matrix(noise)
        positive = np.linalg.eigvalsh(matrix)[:, 0] > 0
        factor = np.linalg.cholesky(np.where(positive[:, None, None], matrix, np.eye(self.dim)))
        on, below = np.arange(self.dim), np.tril_indices(self.dim, -1)
        chi = gammainc((self.freedom - on) / 2, factor[:, on, on] ** 2 / 2)
        out = np.concatenate([chi, ndtr(factor[:, below[0], below[1]])], axis=1)
        return np.where(positive[:, None], out, 0.0)

    def _matrix(self, noise: Floats) -> Floats:
        return unsvec(noise, self.dim) / self.scale + self.freedom * np.eye(self.dim)
