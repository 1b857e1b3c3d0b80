r"""Mechanisms: the only door between what is private and what is public.

A mechanism turns the sum of a round's messages into a noisy value and says what that costs. Its one
parameter is the run's total Gaussian-DP budget :math:`\mu`: a round with share :math:`s` of the squared
budget gets noise of standard deviation :math:`\Delta / (\mu \sqrt{s})`, where :math:`\Delta` is the exact
sensitivity of the channel in use. What a round costs is thereby fixed before it is known what is said in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloister.errors import PlanError
from cloister.privacy.events import GaussianEvent
from cloister.privacy.randomness import Randomness, normals

__all__ = ["Gaussian", "Mechanism", "Silent"]

Floats = NDArray[np.float64]


class Mechanism(Protocol):
    """Noise and its price."""

    @property
    def budget(self) -> float:
        """The total Gaussian-DP parameter if everyone took part in every round."""

    def event(self, share: float) -> GaussianEvent:
        """Return what a round with this share of the squared budget costs a task that takes part."""

    def noise(self, sensitivity: float, share: float) -> float:
        """Return the standard deviation of the noise on each coordinate."""

    def perturb(self, total: Floats, noise: float, source: Randomness, round: int) -> Floats:
        """Return the sum with noise added."""

    def scaled(self, budget: float) -> Mechanism:
        """Return the same mechanism with another total budget."""


@dataclass(frozen=True)
class Gaussian:
    r"""Independent Gaussian noise on every released coordinate.

    On a symmetric matrix, released as `svec`, this is GOE noise: variance :math:`\sigma^2` on the diagonal
    and :math:`\sigma^2/2` off it.

    Parameters
    ----------
    mu : float, optional
        Total Gaussian-DP parameter of the run under the plan's relation. Left out, the plan must be
        calibrated to an epsilon before it can run.

    Privacy
    -------
    A round with share s is exactly :math:`\mu\sqrt s`-GDP for a task that takes part in it.

    Examples
    --------
    >>> Gaussian(mu=0.5).noise(sensitivity=2.0, share=0.25)
    8.0
    """

    mu: float | None = None

    def __post_init__(self) -> None:
        if self.mu is not None and not 0 < self.mu < math.inf:
            raise PlanError(f"mu must be > 0 and finite. Got {self.mu}. Use Silent() for a non-private run.")

    @property
    def budget(self) -> float:
        """The total Gaussian-DP parameter if everyone took part in every round."""
        if self.mu is None:
            raise PlanError("This plan has no noise level yet. Call plan.calibrate(epsilon) first.")
        return self.mu

    def event(self, share: float) -> GaussianEvent:
        """Return the price of a round."""
        return GaussianEvent(self.budget * math.sqrt(share))

    def noise(self, sensitivity: float, share: float) -> float:
        """Return the noise's standard deviation."""
        return sensitivity / (self.budget * math.sqrt(share))

    def perturb(self, total: Floats, noise: float, source: Randomness, round: int) -> Floats:
        """Return the sum with noise added."""
        return total + noise * normals(source.uniforms("noise", round, total.size)).reshape(total.shape)

    def scaled(self, budget: float) -> Gaussian:
        """Return Gaussian noise with another total budget."""
        return Gaussian(budget)


@dataclass(frozen=True)
class Silent:
    """No noise: the non-private run of the same algorithm. Its epsilon is infinite, and prints as such."""

    @property
    def budget(self) -> float:
        """Infinity."""
        return math.inf

    def event(self, share: float) -> GaussianEvent:
        """Return the infinite price of a round."""
        return GaussianEvent(math.inf)

    def noise(self, sensitivity: float, share: float) -> float:
        """Return 0."""
        return 0.0

    def perturb(self, total: Floats, noise: float, source: Randomness, round: int) -> Floats:
        """Return the sum itself."""
        return total

    def scaled(self, budget: float) -> Silent:
        """Refuse: silence has no level."""
        raise PlanError("Silent() adds no noise and cannot be calibrated. Use Gaussian().")
