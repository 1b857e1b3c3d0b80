"""The mean of several classes, and which features matter in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithms.constants import MEAN, WEIGHTS
from cloister.algorithms.prior.mean import (
    Mean,
    in_own_units,
    initial_mean,
    noise_share,
    shared_weight,
    short_rounds,
    update_mean,
)
from cloister.algorithms.prior.structure import Structure
from cloister.core.arrays import Array, Floats, Public
from cloister.core.channel import Channel
from cloister.core.findings import EarlierPrior
from cloister.core.lifts import MeanAndSquares
from cloister.core.roster import Groups
from cloister.learners.home import Home
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate, every_class

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


@dataclass(frozen=True)
class FeatureRelevance(Structure):
    r"""Mean and each feature's variance over tasks in one message a round, for several classes.

    The variances say which part of the mean is chance. With :math:`|m_j|^2` the squared length of feature j's
    means over the q classes, :math:`v` the noise's variance and :math:`s_j^2` the squared standard error that
    the scatter of tasks leaves, the feature keeps

    .. math:: \max(0, 1 - (q v / 2 + s_j^2) / |m_j|^2)

    of its mean (James and Stein's shrinkage, feature by feature): one that matters to nobody is left out, and
    a prior whose variances follow what is left is one more candidate. So is one around zero in public units.

    Privacy
    -------
    The message is that of `Mean`, lifted by `MeanAndSquares` with two thirds for the mean: under replace the
    mean is as precise as it is in `Mean`, under zero-out its noise is 1.22 times as large.
    """

    about = "where weights lie, and which features matter"
    several_classes = True
    #: Share of the message that is the mean: from here on it does not pay for the squares, under replace.
    share = WEIGHTS.relevance
    #: Least variance of a feature's prior, of an average of 1.
    floor = WEIGHTS.least_relevance

    def grouped(self, groups: Groups) -> Structure:
        return Mean().grouped(groups)

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return short_rounds(size, n_tasks, mu)

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        lift = MeanAndSquares(self.share, learner.size // learner.dim)
        return (Channel(learner.size, learner.clip, lift),)

    def start(self, learner: BayesianLearner) -> Public:
        return initial_mean(learner.size, None) | {"chance": np.zeros(learner.dim), "spoken": np.zeros(())}

    def message(self, learner: BayesianLearner, home: Home, board: BoardView) -> Array:
        return learner.offset(home, board["mean"])

    def update(self, learner: BayesianLearner, release: Release, board: BoardView) -> Public:
        m, mean_share = release.denominator, math.sqrt(self.share)
        g, s = release.value[: learner.size] / (mean_share * m), release.noise / (mean_share * m)
        squares = release.value[learner.size :] / (math.sqrt(1 - self.share) * m)
        means = _by_feature(learner, g) - learner.size // learner.dim * s**2
        sampling = min(1.0, max(0.0, float(squares.sum()))) / (learner.size * m)
        return update_mean(learner, learner.weights_of(g), s, 1.0, board, sampling) | {
            "chance": board["chance"] + (squares - np.maximum(means, 0.0)) / m,
            "spoken": board["spoken"] + 1,
        }

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        mean = board["mean"]
        if not mean.any():
            return np.zeros(learner.size)
        first = board["sum"] / float(board["precision"])  # what the mean moved by at first, in clips
        steps = float(mean @ mean) / float(first @ first)
        chance = steps * np.maximum(board["chance"], 0.0) / float(board["spoken"])
        noise = learner.size // learner.dim * float(board["variance"])
        left = 1 - (MEAN.shrinkage * noise + chance) / np.maximum(_by_feature(learner, mean), 1e-300)
        return np.asarray(np.tile(np.maximum(left, 0.0), learner.size // learner.dim) * mean)

    def prior(self, learner: BayesianLearner, board: BoardView) -> EarlierPrior:
        return EarlierPrior(tuple(self.mean(learner, board).tolist()), float(board["variance"]))

    def candidates(self, learner: BayesianLearner, located: int | None, board: BoardView) -> list[Candidate]:
        """Return a prior around zero in public units, and two around the mean: own units, relevant features.

        Public units may suit a task better than its own, as those of pixels do. Where no mean stands out
        nobody can tell, and tasks keep to themselves.
        """
        mean, zero = self.mean(learner, board), np.zeros(learner.size)
        factor = math.sqrt(learner.prior_scales[0]) * np.eye(learner.size)
        sizes = _by_feature(learner, mean)
        if not sizes.any():
            return []
        diagonal = (1 - self.floor) * sizes / sizes.mean() + self.floor
        relevant = every_class(np.diag(np.sqrt(diagonal)), learner.size)
        noise = noise_share(learner, mean, board)
        half = WEIGHTS.by_class * shared_weight(noise)
        shared = [
            Candidate(WEIGHTS.zero, zero, factor, False),
            *in_own_units(learner, mean, half),
            Candidate(half, mean, math.sqrt(learner.prior_scales[2]) * relevant, True),
        ]
        return [replace(candidate, heard=1 - noise) for candidate in shared]


def _by_feature(learner: BayesianLearner, flat: Floats) -> Floats:
    """Return the squared length of every feature's weights over the classes."""
    return np.asarray(np.square(flat.reshape(-1, learner.dim)).sum(axis=0))
