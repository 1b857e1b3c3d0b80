"""Where tasks' weights lie on average: the simplest structure of a shared prior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloister.algorithms.structures.moving_mean import (
    MovingMean,
    descend,
    found_mean,
    shared_candidates,
    standing_still,
)
from cloister.arrays import Floats, Public
from cloister.channel import Channel, Plain
from cloister.earlier import EarlierPrior
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView, Release

__all__ = ["Mean"]


@dataclass(frozen=True)
class Mean(MovingMean):
    """Tasks say where their weights lie from the public mean: the offset, clipped.

    Parameters
    ----------
    start_from : EarlierPrior, optional
        What an earlier board says, in place of zero.
    """

    several_classes = True

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        return (Channel(learner.size, learner.clip, Plain()),)

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        return self.channels(learner)[0]

    def start(self, learner: BayesianLearner) -> Public:
        return standing_still(learner.size, self.start_from)

    def update(
        self, learner: BayesianLearner, release: Release, board: BoardView, part: float = 1.0
    ) -> Public:
        """Return the public state after a release; its mean has a part of the precision it could have."""
        m = release.denominator * math.sqrt(part)
        return descend(learner, release.value / m, release.noise / m, part, board)

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        return found_mean(learner, board, self.start_from)[0]

    def prior_on(self, learner: BayesianLearner, board: BoardView) -> EarlierPrior:
        mean, variance = found_mean(learner, board, self.start_from)
        return EarlierPrior(tuple(mean.tolist()), variance)

    def candidates(self, learner: BayesianLearner, board: BoardView) -> list[Candidate]:
        return shared_candidates(learner, self.mean(learner, board), [], board)
