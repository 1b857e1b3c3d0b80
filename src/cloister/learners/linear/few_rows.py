r"""Tasks of too few rows to tell: their own level, and slopes as far as others rely on them.

How likely one's own rows are under a prior that others share is compared with how likely they are under one's
own. The own prior knows neither level nor spread: :math:`p(\mu, \sigma) \propto 1/\sigma`, which has no
evidence until there are rows enough to make it proper. But shared slopes say nothing of level and spread,
either: both priors have these two in common, so that their evidences are of the same kind, and what is left
of n centred targets decides,

.. math:: p(y) \propto \Big(\sum_i (y_i - \bar y - m'(x_i - \bar x))^2\Big)^{-(n-1)/2}.

One row says nothing, and neither do rows whose targets are all the same: then it is for the board to say.

References
----------
Berger, Pericchi and Varshavsky, "Bayes factors and marginal distributions in invariant situations", Sankhya A
60, 1998.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats
from cloister.learners.linear.average import Candidate, Posterior
from cloister.learners.linear.home_constants import TRUST

if TYPE_CHECKING:
    from cloister.core.tasks import Block

#: Targets that are left over count as no less than this part of what there was: rounding.
EXACT = 1e-12


def too_few(count: Floats) -> NDArray[np.bool_]:
    """Say which tasks have rows, and fewer than it takes to fit slopes and compare priors."""
    return (count > 0) & (count < TRUST.few)


def own_level_shared_slopes(
    block: Block, alone: Posterior, candidates: Sequence[Candidate], spread: float
) -> list[Posterior]:
    """Return what each task makes of no slopes, first, and of each candidate's, around its own mean.

    Parameters
    ----------
    block : Block
        Tasks with rows and an intercept.
    alone : Posterior
        Their own means, with the log weight of no slopes for `log_evidence`.
    candidates : sequence of Candidate
        Priors of the slopes.
    spread : float
        By how many times less than a candidate's covariance slopes vary.
    """
    level, middle, y, X = _centred(block)
    turn = np.repeat(np.eye(block.X.shape[2])[None], len(block), axis=0)
    turn[:, 0] = -middle / middle[:, :1]
    square, parts = (block.weight * y**2).sum(axis=1), []
    for slopes, weight, covariance in _slopes(candidates):
        left = (block.weight * np.square(y - X @ slopes)).sum(axis=1)
        coef = np.repeat(slopes[None], len(block), axis=0)
        coef[:, 0] = (level - (middle * slopes).sum(axis=1)) / middle[:, 0]
        around = alone.covariance + turn @ (covariance / spread) @ turn.swapaxes(1, 2)
        worth = math.log(weight) + _log_evidence(left, square, block.weight.sum(axis=1))
        parts.append(Posterior(worth, coef, around, alone.noise))
    own = alone.log_evidence + _log_evidence(square, square, block.weight.sum(axis=1))
    return [Posterior(own, alone.coef, alone.covariance, alone.noise), *parts]


def slope_losses(block: Block, slopes: Floats, parts: Sequence[float]) -> list[Floats]:
    """Return each task's sum of squares around its own mean, of each part of the shared slopes."""
    _, _, y, X = _centred(block)
    return [(block.weight * np.square(y - part * (X @ slopes))).sum(axis=1) for part in parts]


def with_level(factor: Floats, variance: Floats | float) -> Floats:
    """Return the factor of a covariance to which so much is added for the level."""
    both = np.concatenate([factor.T, math.sqrt(variance) * np.eye(1, len(factor))])
    upper = np.linalg.qr(both).R
    return np.asarray(upper.T * np.where(np.diag(upper) < 0, -1.0, 1.0))


def _centred(block: Block) -> tuple[Floats, Floats, Floats, Floats]:
    """Return each task's mean target and row, and its targets and rows less these."""
    there = block.weight > 0
    share = np.where(there, block.weight, 0.0) / block.weight.sum(axis=1, keepdims=True)
    y, X = np.where(there, block.y, 0.0), np.where(there[:, :, None], block.X, 0.0)
    level, middle = (share * y).sum(axis=1), (share[:, None, :] @ X)[:, 0]
    y, X = np.where(there, y - level[:, None], 0.0), np.where(there[:, :, None], X - middle[:, None, :], 0.0)
    return level, middle, y, X


def _slopes(candidates: Sequence[Candidate]) -> list[tuple[Floats, float, Floats]]:
    """Return slopes, weight and covariance of each candidate, without its level."""
    found = []
    for candidate in candidates:
        slopes, covariance = candidate.mean.copy(), candidate.factor @ candidate.factor.T
        slopes[0] = covariance[0] = covariance[:, 0] = 0.0
        found.append((slopes, candidate.weight, covariance))
    return found


def _log_evidence(left: Floats, square: Floats, count: Floats) -> Floats:
    """Return how well centred targets were foreseen, by what is left of their sum of squares."""
    varies = square > 0
    least = np.maximum(left, EXACT * square)
    return np.where(varies, -0.5 * (count - 1) * np.log(np.where(varies, least, 1.0)), 0.0)
