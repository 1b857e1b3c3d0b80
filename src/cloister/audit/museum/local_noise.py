r"""Noise of the tasks with its scale upside down (Algorithm 5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloister.audit.fixtures import PublishedLaplace, PublishedWishart
from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.channel import Relation

__all__ = ["TaskNoise", "local_noise_exhibits"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TaskNoise:
    r"""A task adds noise of density :math:`\propto e^{-|b|/s}` to its model; others see a noisy covariance.

    They know what they said themselves and subtract it. The task's model is one of two orthogonal ones, of
    length 1, so the difference of the first two diagonal entries tells.

    Parameters
    ----------
    scale : float
        Of the length of the task's noise.
    dim : int
        Parameters of a model.
    curator : float
        Epsilon of the curator's own noise, on top; what is claimed of the task's noise does not depend on it.
    """

    scale: float
    dim: int = 2
    curator: float = 20.0

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return the difference of the first two variances."""
        model = np.eye(self.dim)[0 if speaking else 1]
        direction = rng.standard_normal((count, self.dim))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        said = model + direction * rng.gamma(self.dim, self.scale, (count, 1))
        noise = PublishedWishart(self.curator).draw(np.zeros((self.dim, self.dim)), rng, count)
        seen = said[:, :, None] * said[:, None, :] + noise
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
            attack=TaskNoise(published.scale),
            repaired=Repaired("the density the right way up", claim, TaskNoise(2 / epsilon)),
        ),
    )
