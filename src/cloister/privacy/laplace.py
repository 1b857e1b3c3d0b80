r"""Laplace noise on the l2 ball: pure differential privacy in any dimension.

The density of the noise is proportional to :math:`e^{-|b|_2/s}`: its direction is uniform, its length has a
Gamma law with shape ``dim`` and scale s. By the triangle inequality a change of the sum by at most
:math:`\Delta` in l2 norm moves its logarithm by at most :math:`\Delta/s`, with no delta. The length grows
with the dimension, that of Gaussian noise with its root: above some ten numbers the latter is smaller.

References
----------
Chaudhuri, Monteleoni, Sarwate, *Differentially private empirical risk minimization*, arXiv:0912.0071,
equation (4). Paper "Privacy-preserving multi-task learning" (MP-MTL), Algorithm 5 prints the density with the
scale inverted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.channel import Channel, Round
from cloister.core.lifts import Relation
from cloister.privacy.caveats import FLOATING_POINT, Caveat
from cloister.privacy.events import PureEvent
from cloister.privacy.mechanisms import FLOATING, PerRound, check_level, growth, level
from cloister.privacy.noise_states import TaskSum
from cloister.privacy.randomness import Randomness, normals

if TYPE_CHECKING:
    from cloister.privacy.noise import Law


@dataclass(frozen=True)
class L2Laplace(PerRound):
    r"""Noise with a uniform direction and a Gamma length on every release.

    Parameters
    ----------
    mu : float, optional
        Level: a round with share t of the squared budget has scale :math:`\Delta / (\mu\sqrt t)`. Left out,
        the plan must be calibrated before it can run.

    Privacy
    -------
    A round with share t is purely :math:`\mu\sqrt t`-DP under the plan's relation, for a task that takes
    part. Rounds compose by their sum or, at a delta, by
    :func:`cloister.privacy.accountants.composition_bound`. Sampling is priced as if all took part.

    Examples
    --------
    >>> round(L2Laplace(mu=0.5).noise(Channel(3), Relation.REPLACE, share=0.25), 6)  # scale 8, times sqrt(4)
    16.0
    """

    mu: float | None = None

    def __post_init__(self) -> None:
        check_level(self.mu)

    @property
    def budget(self) -> float:
        """The level: root of the sum of squares of the rounds' epsilons."""
        return level(self.mu)

    @property
    def calibrated(self) -> bool:
        return self.mu is not None

    @property
    def pure(self) -> bool:
        return True

    def law(self, channel: Channel, noise: float) -> Law | None:
        from cloister.privacy.noise import LaplaceLaw

        return LaplaceLaw(noise / math.sqrt(channel.size + 1)) if noise > 0 else None

    def event(self, round: Round, planned: Relation, relation: Relation) -> PureEvent:
        return PureEvent(self.budget * math.sqrt(round.share) * growth(round, planned, relation))

    def noise(self, channel: Channel, planned: Relation, share: float) -> float:
        """Return the standard deviation of a coordinate: the scale times sqrt(size + 1)."""
        scale = channel.sensitivity(planned) / (self.budget * math.sqrt(share))
        return scale * math.sqrt(channel.size + 1)

    @property
    def kind(self) -> str:
        return FLOATING

    @property
    def doubts(self) -> tuple[Caveat, ...]:
        return (FLOATING_POINT,)

    def perturb(
        self, total: TaskSum, channel: Channel, noise: float, source: Randomness, round: int
    ) -> Floats:
        from scipy.special import gammaincinv

        total = np.asarray(total)
        uniforms = source.stream("noise", round).bound_to(total, noise).uniforms(total.size + 1)
        length = noise / math.sqrt(total.size + 1) * float(gammaincinv(total.size, uniforms[0]))
        direction = normals(uniforms[1:])
        return np.asarray(total + length * (direction / np.linalg.norm(direction)))

    def scaled(self, budget: float) -> L2Laplace:
        return L2Laplace(budget)
