r"""Gaussian noise in floating point: some sums cannot be reached.

Let e be the exponent of v. If :math:`y = v + n` comes out below :math:`2^{e-2}`, then n has at least
exponent :math:`e - 1` and is, like v, a multiple of :math:`2^{e-1-52}`; so is y, and no rounding takes place.
From zero, numbers that small come on a finer grid: *y is small and not a multiple* has probability

.. math:: \tfrac56\,P(|n| < 2^{e-2})

without v and 0 with it. In the highest octave below :math:`2^{e-2}` three of four numbers are no multiple, in
the next seven of eight, and so on: :math:`\sum_j 2^{-j}(1 - 2^{-j-1}) = 5/6`.

References
----------
Mironov, *On significance of the least significant bits for differential privacy*, CCS 2012.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from cloister.arrays import Floats
from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.audit.museum.noise import Naive, Release, Shipped
from cloister.channel import Relation
from cloister.privacy import gaussian_dp

__all__ = [
    "SpreadMessage",
    "floating_point_exhibits",
    "floating_point_hits",
    "hit_probability",
]

_RUNS = 250  # at a time


def floating_point_hits(values: Floats, v: float) -> NDArray[np.bool_]:
    """Say which released numbers cannot be v plus double-precision noise, rounded.

    Parameters
    ----------
    values : array
        Released numbers, in the units of v, less nothing: the others' sum is zero.
    v : float
        What the task is suspected of having said in each of these coordinates.

    Examples
    --------
    >>> floating_point_hits(np.array([0.25, 2.0**-60]), v=1 / 3)
    array([False,  True])
    """
    exponent = math.frexp(v)[1] - 1
    steps = np.ldexp(values, 53 - exponent)  # in units of 2^(e-1-52); exact
    return np.asarray((np.abs(values) < 2.0 ** (exponent - 2)) & (steps != np.rint(steps)))


def hit_probability(v: float, deviation: float) -> float:
    """Return the chance of a hit, in one coordinate, if the task said 0 instead of v.

    Examples
    --------
    >>> round(hit_probability(0.002, deviation=0.01), 4)
    0.0325
    """
    exponent = math.frexp(v)[1] - 1
    return float(5 / 6 * erf(2.0 ** (exponent - 2) / deviation / math.sqrt(2)))


@dataclass(frozen=True)
class SpreadMessage:
    """One release of many coordinates; the others say nothing, the task says the same in each of them.

    Its length is 1 in all. The score is minus the number of coordinates that cannot come from it.
    """

    noise: Release
    deviation: float
    dim: int = 4096

    @property
    def each(self) -> float:
        return 1 / math.sqrt(self.dim)

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return minus the number of impossible coordinates."""
        scores = np.empty(count)
        for start in range(0, count, _RUNS):
            message = np.full((1, self.dim), speaking * self.each)
            released = self.noise.releases(message, self.deviation, min(_RUNS, count - start), rng)
            scores[start : start + len(released)] = -floating_point_hits(released, self.each).sum(axis=1)
        return scores


def floating_point_exhibits(epsilon: float = 1.0, delta: float = 1e-5) -> tuple[Exhibit, ...]:
    """Return Gaussian noise with the right deviation, as a float."""
    deviation = 1 / gaussian_dp.mu(epsilon, delta)
    broken = SpreadMessage(Naive(), deviation)
    claim = Claim(epsilon, delta, Relation.ZERO_OUT)
    return (
        Exhibit(
            name="floating-point",
            title="Gaussian noise added in double precision",
            claim=claim,
            source="PMTL's code, and nearly every other: sum + sigma * randn()",
            story="Numbers close to zero are finer than those further away. A small result that is no "
            "multiple of the coarser grid cannot be the message plus noise, but can be noise alone. "
            "In one coordinate that happens now and then; a message spread over thousands is found "
            "nearly every time.",
            attack=broken,
            repaired=Repaired(
                "exact integer noise on a fixed-point sum", claim, SpreadMessage(Shipped(), deviation)
            ),
            draws=5_000,
            impossible=-math.expm1(broken.dim * math.log1p(-hit_probability(broken.each, deviation))),
        ),
    )
