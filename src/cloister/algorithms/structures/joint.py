"""Mean and covariance of the tasks' weights, in one message a round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithms.structures.moving_mean import (
    MovingMean,
    descend,
    found_mean,
    shared_candidates,
    standing_still,
)
from cloister.algorithms.structures.noisy_covariance import covariance_factors
from cloister.arrays import Floats, Public
from cloister.channel import Channel, MeanAndOuter
from cloister.earlier import EarlierPrior
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate
from cloister.lifts import unsvec

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView, Release

__all__ = ["Joint"]


@dataclass(frozen=True)
class Joint(MovingMean):
    """Mean and covariance in one message a round: the offset and its outer product, jointly clipped.

    Parameters
    ----------
    start_from : EarlierPrior, optional
        What an earlier board says, in place of zero.
    """

    several_classes = False
    #: Share of the message that is the mean: while the mean moves (or at first), and while it stands still.
    moving, standing = 0.6, 0.15

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        return tuple(
            Channel(learner.size, learner.clip, MeanAndOuter(a)) for a in (self.moving, self.standing)
        )

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        """Listen more to the mean at first and while it moves, more to the covariance otherwise."""
        moving = int(board["since"]) > 0 or float(board["precision"]) == 0
        return self.channels(learner)[0 if moving else 1]

    def start(self, learner: BayesianLearner) -> Public:
        dim = learner.size
        return standing_still(dim, self.start_from) | {
            "moment": np.zeros((dim, dim)),
            "moment_weight": np.zeros(()),
            "moment_noise": np.zeros(()),
        }

    def update(
        self, learner: BayesianLearner, release: Release, board: BoardView, part: float = 1.0
    ) -> Public:
        """Return the public state after a release; its mean has a part of the precision it could have."""
        a = (self.moving, self.standing)[release.channel]
        dim, m = learner.size, release.denominator
        mean_share = math.sqrt(a * part)
        g, s = release.value[:dim] / (mean_share * m), release.noise / (mean_share * m)
        outer = unsvec(release.value[dim:], dim) / (math.sqrt(1 - a) * m)
        outer_noise = release.noise / (math.sqrt(1 - a) * m)
        precision = 1 / (2 + a**2 / (2 * (1 - a)))  # of the release; the same shape under either relation
        shrunk = g * max(0.0, 1 - dim * s**2 / max(float(g @ g), 1e-300))  # as much of g as is not noise
        covariance = outer - np.outer(shrunk, shrunk)
        weight = precision * (1 - a)
        sampling = min(1.0, max(0.0, float(np.trace(outer)))) / (dim * m)
        moved = descend(learner, g, s, precision * a * part, board, sampling)
        return moved | {
            "moment": board["moment"] + weight * covariance,
            "moment_weight": board["moment_weight"] + weight,
            "moment_noise": board["moment_noise"] + (weight * outer_noise) ** 2,
        }

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        return self._mean(learner, board)[0]

    def _mean(self, learner: BayesianLearner, board: BoardView) -> tuple[Floats, float]:
        sampling = learner.clip**2 * self._spread(board) / (learner.size * board.releases[-1].denominator)
        return found_mean(learner, board, self.start_from, sampling)

    def _spread(self, board: BoardView) -> float:
        """Return the mean squared length of tasks' offsets from their mean, in clips."""
        weight = float(board["moment_weight"])
        return min(1.0, max(0.0, float(np.trace(board["moment"])) / weight)) if weight > 0 else 0.0

    def covariance(self, board: BoardView) -> tuple[Floats, float]:
        r"""Return the covariance of clipped weights, with an earlier one's, and its noise's deviation.

        The second moment of m tasks is uncertain without any noise: for offsets of all directions its entries
        vary as if noise of :math:`t \sqrt{2 / (m d (d + 2))}` were added, t being their mean squared length;
        the largest eigenvalue is larger than that noise's by :math:`1 + \sqrt{d/m}/2` (Marchenko-Pastur).
        """
        weight, dim, m = float(board["moment_weight"]), len(board["mean"]), board.releases[-1].denominator
        noise = math.sqrt(float(board["moment_noise"])) / weight
        sampling = self._spread(board) * math.sqrt(2 / (m * dim * (dim + 2))) * (1 + math.sqrt(dim / m) / 2)
        noise = math.hypot(noise, sampling)
        found = board["moment"] / weight, noise
        return found if self.start_from is None else self.start_from.combined_covariance(*found)

    def prior_on(self, learner: BayesianLearner, board: BoardView) -> EarlierPrior:
        mean, variance = self._mean(learner, board)
        covariance, noise = self.covariance(board)
        return EarlierPrior(tuple(mean.tolist()), variance, tuple(covariance.ravel().tolist()), noise)

    def candidates(self, learner: BayesianLearner, board: BoardView) -> list[Candidate]:
        """Return priors around the mean, and with the covariance where it is significant."""
        factors = covariance_factors(*self.covariance(board))
        return shared_candidates(learner, self.mean(learner, board), factors, board)
