r"""Noise of the tasks with its scale upside down (Algorithm 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cloister.arrays import Floats
from cloister.audit.fixtures import PublishedLaplace, PublishedWishart
from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.audit.releases import Curator
from cloister.channel import Channel, Relation
from cloister.privacy.laplace import L2Laplace
from cloister.privacy.randomness import SystemRandomness

__all__ = ["GammaLength", "NoisyTask", "ShippedLaplace", "TaskNoise", "local_noise_exhibits"]


class TaskNoise(Protocol):
    """Noise that a task adds to its own model."""

    def noisy(self, model: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Return `count` noisy models."""


@dataclass(frozen=True)
class GammaLength:
    """A uniform direction and a Gamma length of some scale."""

    scale: float

    def noisy(self, model: Floats, count: int, rng: np.random.Generator) -> Floats:
        direction = rng.standard_normal((count, len(model)))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        return np.asarray(model + direction * rng.gamma(len(model), self.scale, (count, 1)))


@dataclass(frozen=True)
class ShippedLaplace:
    """The library's own `L2Laplace` at an epsilon: one release of one message."""

    epsilon: float

    def noisy(self, model: Floats, count: int, rng: np.random.Generator) -> Floats:
        mechanism, channel = L2Laplace(self.epsilon), Channel(len(model))
        curator = Curator(mechanism, SystemRandomness(rng.bytes(32)))
        total, noise = curator.total(channel, model[None]), mechanism.noise(channel, Relation.REPLACE, 1.0)
        return curator.releases(total, channel, noise, count)


@dataclass(frozen=True)
class NoisyTask:
    r"""A task adds noise of density :math:`\propto e^{-|b|/s}` to its model; others see a noisy covariance.

    They know what they said themselves and subtract it. The task's model is one of two orthogonal ones, of
    length 1, so the difference of the first two diagonal entries tells.

    Parameters
    ----------
    noise : TaskNoise
        How the task adds it.
    dim : int
        Parameters of a model.
    curator : float
        Epsilon of the curator's own noise, on top; what is claimed of the task's noise does not depend on it.
    """

    noise: TaskNoise
    dim: int = 2
    curator: float = 20.0

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return the difference of the first two variances."""
        model = np.eye(self.dim)[0 if speaking else 1]
        noisy_models = self.noise.noisy(model, count, rng)
        noise = PublishedWishart(self.curator).draw(np.zeros((self.dim, self.dim)), rng, count)
        seen = noisy_models[:, :, None] * noisy_models[:, None, :] + noise
        return np.asarray(seen[:, 0, 0] - seen[:, 1, 1])


def local_noise_exhibits(epsilon: float = 0.5) -> tuple[Exhibit, ...]:
    """Return Algorithm 5 at an epsilon_dp."""
    claim = Claim(epsilon, 0.0, Relation.REPLACE)
    published = PublishedLaplace(epsilon)
    return (
        Exhibit(
            name="inverted-density",
            title="a noise density with epsilon upside down",
            claim=claim,
            source="MP-MTL, supplement, Algorithm 5, Step 4, and Proposition 4",
            story="The printed density falls like exp(-2K|b|/epsilon): less epsilon means less noise, and "
            "two models 2K apart differ by a factor of exp(4K^2/epsilon). The density that is meant "
            "falls like exp(-epsilon|b|/2K).",
            attack=NoisyTask(GammaLength(published.scale)),
            repaired=Repaired(
                "our Laplace: the density the right way up", claim, NoisyTask(ShippedLaplace(epsilon))
            ),
        ),
    )
