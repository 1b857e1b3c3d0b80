r"""Noise of MP-MTL's first version: of half a length where a square is meant, and of a scale read from data.

A task of length K moves the covariance by :math:`K^2`. The first version's Algorithms 2 and 3 take 2K for the
sensitivity of the squared length, so that the density of the noise is :math:`\propto
e^{-\epsilon\,\mathrm{tr}E/(2K)}` and a silent task makes an impossible output with probability
:math:`1 - e^{-\epsilon K/2}`. Its Algorithm 1 does not clip: the scale of the noise is the largest change of
a squared length, which is read from the very models that it should hide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cloister.audit.fixtures import FirstVersionWishart, PublishedWishart
from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.audit.museum.wishart_exhibits import (
    CovarianceRelease,
    OuterProductNoise,
    ShippedGaussian,
    directions,
)
from cloister.core.arrays import Floats
from cloister.core.lifts import Relation
from cloister.privacy import tradeoff


@dataclass(frozen=True)
class FirstVersionNoise:
    """The first version's noise at a clip, in units in which models have length 1 at most."""

    epsilon: float
    clip: float

    def covariances(self, messages: Floats, rng: np.random.Generator) -> Floats:
        runs, _, dim = messages.shape
        fixture = FirstVersionWishart(self.epsilon, self.clip)
        noise = fixture.draw(np.zeros((dim, dim)), rng, runs) / self.clip**2
        return np.asarray(messages.swapaxes(1, 2) @ messages + noise)


@dataclass(frozen=True)
class ScaleFromData:
    """Algorithm 1 as printed: models as they are, and noise as loud as the longest of them is long."""

    epsilon: float

    def covariances(self, messages: Floats, rng: np.random.Generator) -> Floats:
        runs, _, dim = messages.shape
        longest = np.square(messages).sum(axis=2).max(axis=1)
        noise = PublishedWishart(self.epsilon).draw(np.zeros((dim, dim)), rng, runs)
        return np.asarray(messages.swapaxes(1, 2) @ messages + longest[:, None, None] * noise)


@dataclass(frozen=True)
class ClippedFirst:
    """The library's way: clip to a public length, that of the others, and release with Gaussian noise."""

    noise: ShippedGaussian

    def covariances(self, messages: Floats, rng: np.random.Generator) -> Floats:
        lengths = np.linalg.norm(messages, axis=2, keepdims=True)
        return self.noise.covariances(messages / np.maximum(1.0, lengths), rng)


@dataclass(frozen=True)
class LoudTask:
    """One task's model is longer than all others'; the score is the trace of what is released."""

    noise: OuterProductNoise
    length: float = 100.0
    dim: int = 5
    others: int = 9

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return traces, less what all others said."""
        models = directions(self.others + 1, self.dim)
        models[0] *= self.length * speaking
        released = self.noise.covariances(np.broadcast_to(models, (count, *models.shape)), rng)
        return np.asarray(np.trace(released, axis1=1, axis2=2) - self.others)


def first_version_exhibits(epsilon: float = 0.1, delta: float = 1e-5) -> tuple[Exhibit, ...]:
    """Return both flaws at the sizes of the first version's Figure 2: d = 5, ten tasks, K = 100 √5.

    Parameters
    ----------
    epsilon : float
        What is claimed, with delta 0.
    delta : float
        Of the repaired ones.
    """
    claim, sound = Claim(epsilon, 0.0, Relation.REPLACE), Claim(epsilon, delta, Relation.ZERO_OUT)
    quiet, clip = ShippedGaussian(1 / tradeoff.mu(epsilon, delta)), 100 * math.sqrt(5)
    return (
        Exhibit(
            name="wishart-length",
            title="Wishart noise for a length, where the square of it moves",
            claim=claim,
            source="MP-MTL, first version, Algorithms 2 and 3, Steps 4 and 6, and Corollary 1",
            story="Models are clipped to length K, so a squared length moves by up to K^2. Step 4 says 2K. "
            "At its own Figure 2 the noise is 112 times smaller than the later version's, and a silent task "
            "makes an output that is impossible under the neighbour with probability "
            "1 - exp(-epsilon K / 2).",
            attack=CovarianceRelease(FirstVersionNoise(epsilon, clip), others=9),
            repaired=Repaired("our Gaussian", sound, CovarianceRelease(quiet, others=9)),
            impossible=-math.expm1(-epsilon * clip / 2),
        ),
        Exhibit(
            name="scale-from-data",
            title="a scale of noise that is read from the models",
            claim=claim,
            source="MP-MTL, first version, Algorithm 1, Steps 3 and 5, and Theorem 1",
            story="Nothing is clipped. The noise is scaled by the largest change of a squared length, here "
            "against a task that says nothing: the squared length of the longest model. Whether a task with "
            "a long model takes part can be told from how loud the noise is.",
            attack=LoudTask(ScaleFromData(epsilon)),
            repaired=Repaired(
                "models clipped to a public length, our Gaussian", sound, LoudTask(ClippedFirst(quiet))
            ),
        ),
    )
