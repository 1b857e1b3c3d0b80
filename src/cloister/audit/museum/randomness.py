"""The right sum, the wrong noise: too little, the same twice, or known to all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.channel import Relation
from cloister.privacy import gaussian_dp

__all__ = ["NoisySum", "PublicSeed", "SecretSeed", "SeededSum", "TwoRounds", "randomness_exhibits"]

Floats = NDArray[np.float64]
_SEED = 10  # of the published code
_DIGITS = 9  # differences beyond these are rounding


@dataclass(frozen=True)
class NoisySum:
    """A sum of messages of length 1 with Gaussian noise; the others subtract what they said."""

    deviation: float
    dim: int = 3

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return what is left along the task's message."""
        message, others = np.eye(self.dim)[0], np.full(self.dim, 2.5)
        noise = self.deviation * rng.standard_normal((count, self.dim))
        return np.asarray((others + speaking * message + noise - others) @ message)


@dataclass(frozen=True)
class TwoRounds:
    """Two noisy sums, in which the task says 1 and then -1; the score is their difference.

    Parameters
    ----------
    draws : int
        How many draws of noise there are: one for both rounds, or two.
    deviation : float
        Of each.
    """

    draws: int
    deviation: float

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return by how much the first sum exceeds the second."""
        noise = self.deviation * rng.standard_normal((count, self.draws))
        first, second = speaking * 1.0 + noise[:, 0], speaking * -1.0 + noise[:, -1]
        return np.asarray((first - second).round(_DIGITS))


class Seeding(Protocol):
    """Where the noise of a run comes from."""

    def generator(self, rng: np.random.Generator) -> np.random.Generator:
        """Return the run's generator of noise."""


@dataclass(frozen=True)
class PublicSeed:
    """The seed that is written in the code."""

    def generator(self, rng: np.random.Generator) -> np.random.Generator:
        """Return a Mersenne Twister with the published seed."""
        return np.random.Generator(np.random.MT19937(_SEED))


@dataclass(frozen=True)
class SecretSeed:
    """A seed that nobody else has."""

    def generator(self, rng: np.random.Generator) -> np.random.Generator:
        """Return a generator that is seeded anew."""
        return rng.spawn(1)[0]


@dataclass(frozen=True)
class SeededSum:
    """Noisy sums, one a round; the others run the published generator themselves and subtract."""

    seeding: Seeding
    deviation: float

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return what is left of each round."""
        released = speaking * 1.0 + self.deviation * self.seeding.generator(rng).standard_normal(count)
        regenerated = self.deviation * PublicSeed().generator(rng).standard_normal(count)
        return np.asarray((released - regenerated).round(_DIGITS))


def randomness_exhibits(epsilon: float = 1.0, delta: float = 1e-3) -> tuple[Exhibit, ...]:
    """Return half the noise, a noise draw used twice, and a public seed."""
    claim = Claim(epsilon, delta, Relation.ZERO_OUT)
    enough = 1 / gaussian_dp.mu(epsilon, delta)
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
            attack=TwoRounds(1, twice),
            repaired=Repaired("fresh noise each round", claim, TwoRounds(2, twice)),
        ),
        Exhibit(
            name="public-seed",
            title="noise from a seed that is public",
            claim=claim,
            source="PMTL's code: np.random.seed(seed), and seed=10 in its scripts",
            story="Pseudo-random noise is a function of its seed. Whoever knows that runs the generator "
            "again and subtracts: what is left has no noise.",
            attack=SeededSum(PublicSeed(), enough),
            repaired=Repaired("a secret seed", claim, SeededSum(SecretSeed(), enough)),
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
        attack=NoisySum(enough / 2),
        repaired=Repaired("all of the noise", claim, NoisySum(enough)),
        draws=400_000,
    )
