r"""Exhibits about noise on the right sum: too little, the same twice, known to all, or in floating point.

*Floating point* cannot reach some sums. Let e be the exponent of v. If :math:`y = v + n` comes out below
:math:`2^{e-2}`, then n has at least exponent :math:`e - 1` and is, like v, a multiple of :math:`2^{e-1-52}`;
so is y, and no rounding takes place. From zero, numbers that small come on a finer grid: *y is small and not
a multiple* has probability

.. math:: \tfrac56\,P(|n| < 2^{e-2})

without v and 0 with it. In the highest octave below :math:`2^{e-2}` three of four numbers are no multiple, in
the next seven of eight, and so on: :math:`\sum_j 2^{-j}(1 - 2^{-j-1}) = 5/6`.

References
----------
Mironov, *On significance of the least significant bits for differential privacy*, CCS 2012.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy.special import erf

from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.audit.releases import floating_point_hits, repeated
from cloister.core.arrays import Floats
from cloister.core.channel import Channel
from cloister.core.lifts import Lift, Plain, Relation
from cloister.privacy import tradeoff
from cloister.privacy.mechanisms import Gaussian
from cloister.privacy.randomness import SystemRandomness

_SEED = 10  # of the published code


class ReleaseMethod(Protocol):
    """A way to release a sum of messages with Gaussian noise."""

    def releases(self, messages: Floats, deviation: float, count: int, rng: np.random.Generator) -> Floats:
        """Return `count` noisy sums of messages, of shape (tasks, dim) and length 1 at most."""


@dataclass(frozen=True)
class Naive:
    """The sum plus floats."""

    def releases(self, messages: Floats, deviation: float, count: int, rng: np.random.Generator) -> Floats:
        total = messages.sum(axis=0)
        return np.asarray(total + deviation * rng.standard_normal((count, len(total))))


@dataclass(frozen=True)
class Reseeded:
    """Floats from a Mersenne Twister that is seeded each time with the same, published seed."""

    def releases(self, messages: Floats, deviation: float, count: int, rng: np.random.Generator) -> Floats:
        """Return noisy sums; the noise is the same in every call."""
        return Naive().releases(messages, deviation, count, np.random.Generator(np.random.MT19937(_SEED)))


@dataclass(frozen=True)
class Shipped:
    """The library's own `Gaussian`, with a fresh key: its sum, its noise."""

    exact: bool = True

    def releases(self, messages: Floats, deviation: float, count: int, rng: np.random.Generator) -> Floats:
        return self.sums(np.broadcast_to(messages, (count, *messages.shape)), Plain(), deviation, rng)

    def sums(self, messages: Floats, lift: Lift, deviation: float, rng: np.random.Generator) -> Floats:
        """Return the noisy sum of each run's messages, in one call of the mechanism.

        Parameters
        ----------
        messages : array of shape (runs, tasks, dim)
            Messages, of length 1 at most.
        lift : Lift
            What is summed.
        deviation : float
            Of the noise on each number.
        rng : numpy.random.Generator
            For the key.
        """
        mechanism, runs = Gaussian(1.0, self.exact), len(messages)
        channel = Channel(messages.shape[2], lift=lift)
        different = messages[:1] if messages.strides[0] == 0 else messages  # if all are the same, one
        totals = np.array([channel.total(one, self.exact) for one in different])
        wide = replace(channel, lift=repeated(lift, runs))
        flat = np.broadcast_to(totals, (runs, channel.size)).ravel()
        noisy = mechanism.perturb(flat, wide, deviation, SystemRandomness(rng.bytes(32)), 0)
        return noisy.reshape(runs, channel.size)


_DIGITS = 9  # differences beyond these are rounding


@dataclass(frozen=True)
class NoisySum:
    """A sum of messages of length 1 with Gaussian noise; the others subtract what they said."""

    noise: ReleaseMethod
    deviation: float
    dim: int = 3

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return what is left along the task's message."""
        message, others = np.eye(self.dim)[:1], np.full((4, self.dim), 0.5)
        released = self.noise.releases(np.vstack([speaking * message, others]), self.deviation, count, rng)
        return np.asarray((released - others.sum(axis=0)) @ message[0])


@dataclass(frozen=True)
class TwoRounds:
    """Two noisy sums, in which the task says 1 and then -1; the score is their difference."""

    noise: ReleaseMethod
    deviation: float

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return by how much the first sum exceeds the second."""
        first, second = (
            self.noise.releases(np.array([[speaking * sign]]), self.deviation, count, rng)[:, 0]
            for sign in (1.0, -1.0)
        )
        return np.asarray((first - second).round(_DIGITS))


@dataclass(frozen=True)
class SeededSum:
    """Noisy sums, one a round; the others run the published generator themselves and subtract."""

    noise: ReleaseMethod
    deviation: float

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return what is left of each round."""
        released = self.noise.releases(np.array([[speaking * 1.0]]), self.deviation, count, rng)
        regenerated = Reseeded().releases(np.zeros((1, 1)), self.deviation, count, rng)
        return np.asarray((released - regenerated)[:, 0].round(_DIGITS))


def randomness_exhibits(epsilon: float = 1.0, delta: float = 1e-3) -> tuple[Exhibit, ...]:
    """Return half the noise, a noise draw used twice, and a public seed."""
    claim = Claim(epsilon, delta, Relation.ZERO_OUT)
    enough = 1 / tradeoff.mu(epsilon, delta)
    twice = math.sqrt(2) * enough  # two rounds share the budget
    return (
        _half(claim, enough),
        Exhibit(
            name="reused-noise",
            title="one draw of noise for two rounds",
            claim=claim,
            source="a generator that is re-seeded every round; composition needs fresh noise",
            story="Noise that is the same in two rounds cancels in their difference, which is then known "
            "exactly. A task that says different things in the two is laid bare.",
            attack=TwoRounds(Reseeded(), twice),
            repaired=Repaired("our Gaussian: fresh noise each round", claim, TwoRounds(Shipped(), twice)),
        ),
        Exhibit(
            name="public-seed",
            title="noise from a seed that is public",
            claim=claim,
            source="PMTL's code: np.random.seed(seed), and seed=10 in its scripts",
            story="Pseudo-random noise is a function of its seed. Whoever knows that runs the generator "
            "again and subtracts: what is left has no noise.",
            attack=SeededSum(Reseeded(), enough),
            repaired=Repaired("our Gaussian, with a secret key", claim, SeededSum(Shipped(), enough)),
        ),
    )


def _half(claim: Claim, enough: float) -> Exhibit:
    return Exhibit(
        name="half-the-noise",
        title="half the noise that the claim needs",
        claim=claim,
        source="a sensitivity taken for half of what it is: 'replace' claimed, 'add or remove' "
        "accounted (PMTL)",
        story="A task that is replaced moves a sum by two clips, one that is left out by one. "
        "Accounting for the second and claiming the first halves the noise; here the same is "
        "shown as half the noise against silence. It is the mildest of the exhibits, and tells "
        "how fine the auditor sees.",
        attack=NoisySum(Naive(), enough / 2),
        repaired=Repaired("our Gaussian, with all of the noise", claim, NoisySum(Shipped(), enough)),
        draws=400_000,
    )


_RUNS = 250  # at a time


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

    noise: ReleaseMethod
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
    deviation = 1 / tradeoff.mu(epsilon, delta)
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
