"""The right sum, the wrong noise: too little, the same twice, or known to all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cloister.arrays import Floats
from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.audit.museum.noise import Naive, Release, Reseeded, Shipped
from cloister.channel import Relation
from cloister.privacy import gaussian_dp

__all__ = ["NoisySum", "SeededSum", "TwoRounds", "randomness_exhibits"]

_DIGITS = 9  # differences beyond these are rounding


@dataclass(frozen=True)
class NoisySum:
    """A sum of messages of length 1 with Gaussian noise; the others subtract what they said."""

    noise: Release
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

    noise: Release
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

    noise: Release
    deviation: float

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return what is left of each round."""
        released = self.noise.releases(np.array([[speaking * 1.0]]), self.deviation, count, rng)
        regenerated = Reseeded().releases(np.zeros((1, 1)), self.deviation, count, rng)
        return np.asarray((released - regenerated)[:, 0].round(_DIGITS))


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
