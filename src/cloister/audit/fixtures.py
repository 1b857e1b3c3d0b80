r"""Published mechanisms that are not as private as they claim, kept so that audits have something to find.

None of these is a mechanism of the library: none has a price, and a plan refuses them.

References
----------
Paper "Privacy-preserving multi-task learning" (MP-MTL): Algorithm 1 and Theorem 1 (Wishart noise, and the
variant with W'W), Algorithm 5 (noise of the tasks).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats
from cloister.core.lifts import Relation
from cloister.privacy.wishart import wishart


@dataclass(frozen=True)
class PublishedWishart:
    r"""Noise :math:`W_d(d+1, \frac{K^2}{2\epsilon} I)` on a sum of outer products, claimed to be epsilon-DP.

    Its density is :math:`\propto e^{-\epsilon\,\mathrm{tr} E/K^2}` on positive matrices. With data
    :math:`uu'`, :math:`|u| = K`, a release less the others' sum and less :math:`uu'` is always positive. In
    silence it is so with probability :math:`e^{-\epsilon}` only: translate the integral. What is claimed is
    shown on the set where both densities are positive; on the rest delta is :math:`1 - e^{-\epsilon}`,
    whatever the epsilon.

    Examples
    --------
    >>> round(PublishedWishart(epsilon=1.0).delta, 4)
    0.6321
    """

    epsilon: float
    clip: float = 1.0

    @property
    def delta(self) -> float:
        """Probability that a silent task makes an output that its data could not have made."""
        return -math.expm1(-self.epsilon)

    def draw(self, total: Floats, rng: np.random.Generator, count: int) -> Floats:
        """Return `count` releases of one sum of outer products, of shape (count, d, d)."""
        dim = len(total)
        noise = wishart(rng.random((count, dim * (dim + 1) // 2)), dim, dim + 1.0)
        return np.asarray(total + self.clip**2 / (2 * self.epsilon) * noise)

    def impossible(self, releases: Floats, others: Floats, message: Floats) -> NDArray[np.bool_]:
        """Say which releases cannot come from a message and the others' sum: the rest is not positive."""
        left = releases - others - np.outer(message, message)
        return np.asarray(np.linalg.eigvalsh(left)[..., 0] < -1e-9 * np.abs(left).max(axis=(-2, -1)))


@dataclass(frozen=True)
class FirstVersionWishart:
    r"""Noise :math:`W_d(d+1, \frac{K}{\epsilon} I)`: MP-MTL's first version, claimed to be epsilon-DP.

    It takes 2K for the sensitivity of a squared length, which is :math:`K^2`. This is the later noise at an
    epsilon of :math:`\epsilon K / 2`: K/2 times too little for K > 2, and more than that for less.

    Examples
    --------
    >>> round(FirstVersionWishart(epsilon=0.1, clip=100 * 5**0.5).delta, 5)  # at its own Figure 2
    0.99999
    """

    epsilon: float
    clip: float = 1.0

    @property
    def delta(self) -> float:
        """Probability that a silent task makes an output that its data could not have made."""
        return self._later.delta

    def draw(self, total: Floats, rng: np.random.Generator, count: int) -> Floats:
        """Return `count` releases of one sum of outer products, of shape (count, d, d)."""
        return self._later.draw(total, rng, count)

    @property
    def _later(self) -> PublishedWishart:
        return PublishedWishart(self.epsilon * self.clip / 2, self.clip)


@dataclass(frozen=True)
class TaskRelationship:
    r"""The m x m matrix :math:`W'W` of inner products of models, in place of :math:`WW'`.

    One task is in a whole row and column, hence the sensitivity grows with the number of tasks:
    :math:`2K^2\sqrt{2(m-1)}` under replacement and :math:`K^2\sqrt{2m-1}` against silence, where the claim
    is for :math:`K^2`. Both are attained when all models are aligned.

    Examples
    --------
    >>> [round(TaskRelationship().sensitivity(m, Relation.REPLACE), 1) for m in (2, 20, 200)]
    [2.8, 12.3, 39.9]
    """

    clip: float = 1.0

    def statistic(self, models: Floats) -> Floats:
        """Return the inner products of models, of shape (m, d), that are clipped first."""
        lengths = np.linalg.norm(models, axis=1, keepdims=True)
        inside = models / np.maximum(1.0, lengths / self.clip)
        return np.asarray(inside @ inside.T)

    def sensitivity(self, n_tasks: int, relation: Relation) -> float:
        """Return the largest Frobenius change when one of so many tasks changes."""
        if relation == Relation.REPLACE:
            return 2 * self.clip**2 * math.sqrt(2 * (n_tasks - 1))
        return self.clip**2 * math.sqrt(2 * n_tasks - 1)


@dataclass(frozen=True)
class PublishedLaplace:
    r"""Noise of a task with density :math:`\propto e^{-\frac{2K}{\epsilon}|b|}`, claimed to be epsilon-DP.

    The scale is printed upside down: it should be :math:`2K/\epsilon` and is :math:`\epsilon/2K`, so that
    less epsilon means less noise. Models may be 2K apart: the real epsilon is :math:`4K^2/\epsilon`.

    Examples
    --------
    >>> PublishedLaplace(epsilon=0.5).real_epsilon
    8.0
    """

    epsilon: float
    clip: float = 1.0

    @property
    def scale(self) -> float:
        return self.epsilon / (2 * self.clip)

    @property
    def real_epsilon(self) -> float:
        """The smallest epsilon for which it is purely private."""
        return 2 * self.clip / self.scale

    def loss(self, output: Floats, model: Floats, other: Floats) -> float:
        """Return the log likelihood ratio of two models at an output."""
        far, near = (float(np.linalg.norm(output - w)) for w in (other, model))
        return (far - near) / self.scale
