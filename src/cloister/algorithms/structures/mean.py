"""Where tasks' weights lie on average: the simplest structure of a shared prior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloister.algorithms.structures.moving_mean import (
    descend,
    found_mean,
    looked_from,
    shared_candidates,
    short_rounds,
    standing_still,
)
from cloister.arrays import Array, Floats, Public, States
from cloister.channel import Channel, Plain
from cloister.earlier import EarlierPrior
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate

if TYPE_CHECKING:
    from cloister.board.billboard import BoardView, Release
    from cloister.tasks import Block

__all__ = ["Mean"]


@dataclass(frozen=True)
class Mean:
    """Tasks say where their weights lie from the public mean: the offset, clipped.

    Parameters
    ----------
    start_from : EarlierPrior, optional
        What an earlier board says, in place of zero.
    """

    start_from: EarlierPrior | None = None

    buys_scale = True
    several_classes = True
    groups = None

    @property
    def for_groups(self) -> Mean:
        return self

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return short_rounds(size, n_tasks, mu)

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        return (Channel(learner.size, learner.clip, Plain()),)

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        return self.channels(learner)[0]

    def start(self, learner: BayesianLearner) -> Public:
        return standing_still(learner.size, self.start_from)

    def message(self, learner: BayesianLearner, states: States, block: Block, board: BoardView) -> Array:
        return learner.offset(states, block, looked_from(board))

    def update(
        self, learner: BayesianLearner, release: Release, board: BoardView, part: float = 1.0
    ) -> Public:
        """Return the public state after a release; its mean has a part of the precision it could have."""
        m = release.denominator * math.sqrt(part)
        return descend(learner, release.value / m, release.noise / m, part, board, self.start_from)

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        return found_mean(learner, board, self.start_from)[0]

    def prior_on(self, learner: BayesianLearner, board: BoardView) -> EarlierPrior:
        mean, variance = found_mean(learner, board, self.start_from)
        return EarlierPrior(tuple(mean.tolist()), variance)

    def candidates(self, learner: BayesianLearner, board: BoardView) -> list[Candidate]:
        return shared_candidates(learner, self.mean(learner, board), [], board)
