r"""Wishart noise on a sum of outer products, with enough degrees of freedom to be private.

Noise :math:`E \sim W_d(\nu, sI)` on :math:`S = \sum_i u_i u_i'` keeps the release positive definite. Against
silence a task moves the sum by :math:`uu'` with :math:`|u| \le 1`. For :math:`M = E` in silence and
:math:`M = E + uu'` with data the ratio of densities is

.. math:: (1 - u'M^{-1}u)^{(\nu-d-1)/2}\, e^{|u|^2/2s}, \qquad |u|^2 / u'M^{-1}u \sim s\,\chi^2_k
    \text{ in silence},\quad k = \nu - d + 1,

and :math:`|u|^2` more than that with data. So a release is *exactly* as private as one number with noise
:math:`s\,\chi^2_k` and sensitivity 1 (:mod:`cloister.privacy.chi_square_pld`).

With the degrees of freedom of the literature, :math:`\nu = d + 1`, an output that data could not have led to
has probability :math:`1 - e^{-1/2s}` in silence: such noise is refused. Symmetric Gaussian noise needs less
deviation for the same guarantee; more degrees bring the two together.

References
----------
Muirhead, *Aspects of multivariate statistical theory*, 1982, Theorems 3.2.11 and 3.2.14 (Bartlett).
Jiang, Xie, Zhang, *Wishart mechanism for differentially private principal components analysis*, AAAI 2016
(the noise with :math:`\nu = d + 1`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.channel import Channel, Round
from cloister.core.errors import PlanError
from cloister.core.lifts import Outer, Relation, svec
from cloister.privacy.caveats import FLOATING_POINT, Caveat
from cloister.privacy.events import GammaEvent
from cloister.privacy.mechanisms import FLOATING, PerRound, check_level, level
from cloister.privacy.noise_states import TaskSum
from cloister.privacy.randomness import Randomness, normals

if TYPE_CHECKING:
    from cloister.privacy.noise import Law


@dataclass(frozen=True)
class Wishart(PerRound):
    r"""Wishart noise less its public mean, on channels that say an outer product.

    Parameters
    ----------
    degrees : float
        Degrees of freedom to spare, :math:`k = \nu - d + 1`, above 2; the more, the less noise and the more
        Gaussian it is.
    mu : float, optional
        Level: a round with share t of the squared budget has scale
        :math:`s = \Delta / (\mu\sqrt t\sqrt{2k})`, so that levels compare with those of `Gaussian`. Left out,
        the plan must be calibrated before it can run.

    Privacy
    -------
    Against silence a round is exactly the shift of a chi-square with k degrees of freedom by 1/s. Replacement
    is priced as two steps, through silence. Priced for `Everyone()` only.

    Examples
    --------
    >>> noise = Wishart(degrees=300, mu=0.5).noise(Channel(30, lift=Outer()), Relation.ZERO_OUT, share=0.25)
    >>> round(noise, 3)  # sqrt(2 nu) s: more than the 4 of Gaussian noise, as nu is more than k
    4.189
    >>> Wishart(degrees=2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    cloister.errors.PlanError: Wishart degrees must be > 2. Got 2. At 2, the published nu = d + 1, ...
    """

    degrees: float = 300.0
    mu: float | None = None

    def __post_init__(self) -> None:
        if not 2 < self.degrees < math.inf:
            raise PlanError(
                f"Wishart degrees must be > 2. Got {self.degrees}. At 2, the published nu = d + 1, a "
                "silent task makes outputs that data could not, with probability 1 - exp(-epsilon). Use 300."
            )
        check_level(self.mu)

    @property
    def budget(self) -> float:
        """The level, comparable with the total mu of Gaussian noise."""
        return level(self.mu)

    @property
    def calibrated(self) -> bool:
        return self.mu is not None

    @property
    def any_channel(self) -> bool:
        return False

    @property
    def smallest_dim(self) -> int:
        """Two: the degrees of freedom to spare are those of every block of the matrix."""
        return 2

    def law(self, channel: Channel, noise: float) -> Law | None:
        from cloister.privacy.noise import WishartLaw

        freedom = self._freedom(channel.dim)
        return WishartLaw(noise / math.sqrt(2 * freedom), freedom, channel.dim) if noise > 0 else None

    def event(self, round: Round, planned: Relation, relation: Relation) -> GammaEvent:
        """Return the price of a round against silence, from which that of a replacement follows."""
        scales = [self._scale(channel, planned, round.share) for channel in round.channels]
        return GammaEvent(float(self.degrees), 1 / min(scales))

    def noise(self, channel: Channel, planned: Relation, share: float) -> float:
        """Return the standard deviation of a diagonal entry, and of sqrt(2) times one off it."""
        return math.sqrt(2 * self._freedom(channel.dim)) * self._scale(channel, planned, share)

    @property
    def kind(self) -> str:
        return FLOATING

    @property
    def doubts(self) -> tuple[Caveat, ...]:
        return (FLOATING_POINT,)

    def perturb(
        self, total: TaskSum, channel: Channel, noise: float, source: Randomness, round: int
    ) -> Floats:
        """Return the sum with noise added and the noise's mean taken off."""
        total, freedom = np.asarray(total), self._freedom(channel.dim)
        stream = source.stream("noise", round).bound_to(total, noise)
        drawn = wishart(stream.uniforms(total.size), channel.dim, freedom)
        centered = svec(drawn - freedom * np.eye(channel.dim))
        return np.asarray(total + noise / math.sqrt(2 * freedom) * centered)

    def scaled(self, budget: float) -> Wishart:
        return replace(self, mu=budget)

    def _freedom(self, dim: int) -> float:
        return self.degrees + dim - 1

    def _scale(self, channel: Channel, planned: Relation, share: float) -> float:
        """Return s in units of the squared clip; refuse what is not an outer product."""
        if channel.lift != Outer():
            raise PlanError(
                "Wishart noise is for sums of outer products, as in LowRank. "
                f"Got a channel with lift {channel.lift}. Use Gaussian()."
            )
        return channel.sensitivity(planned) / (self.budget * math.sqrt(2 * self.degrees * share))


def wishart(uniforms: Floats, dim: int, freedom: float) -> Floats:
    """Turn uniforms, dim (dim + 1) / 2 to a matrix, into Wishart matrices of unit scale.

    Bartlett's decomposition: independent normals below the diagonal of a triangular factor, and roots of
    chi-squares with `freedom`, `freedom` - 1, ... degrees on it, all by inversion.

    Examples
    --------
    >>> wishart(np.full(3, 0.5), dim=2, freedom=5.0).round(2).tolist()
    [[4.35, 0.0], [0.0, 3.36]]
    """
    from scipy.special import gammaincinv

    factor = np.zeros((*uniforms.shape[:-1], dim, dim))
    below, on = np.tril_indices(dim, -1), np.arange(dim)
    factor[..., *below] = normals(uniforms[..., dim:])
    factor[..., on, on] = np.sqrt(2 * gammaincinv((freedom - on) / 2, uniforms[..., :dim]))
    return np.asarray(factor @ factor.swapaxes(-1, -2))
