"""Which coordinates the tasks' weights have in common, from one round in which each says its direction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithms.structures.subspace import unit_length
from cloister.arrays import Array, Floats, Public, States
from cloister.channel import Absolute, Channel
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView, Release
    from cloister.tasks import Block

__all__ = ["Support"]


@dataclass(frozen=True)
class Support:
    """Tasks say how much of their own direction lies on each coordinate: for a common support."""

    buys_scale = False
    several_classes = False
    groups = None
    for_groups = None
    start_from = None

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return 1

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        return (Channel(learner.size, 1.0, Absolute()),)

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        return self.channels(learner)[0]

    def start(self, learner: BayesianLearner) -> Public:
        return {"size": np.zeros(learner.size), "noise": np.zeros(())}

    def message(self, learner: BayesianLearner, states: States, block: Block, board: BoardView) -> Array:
        return unit_length(learner.own_weights(states, block))

    def update(self, learner: BayesianLearner, release: Release, board: BoardView) -> Public:
        return {"size": release.value, "noise": np.array(release.noise)}

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        return np.zeros(learner.size)

    def prior_on(self, learner: BayesianLearner, board: BoardView) -> None:
        return None

    def candidates(self, learner: BayesianLearner, board: BoardView) -> list[Candidate]:
        """Return diagonal priors at three thresholds."""
        dim, noise = learner.size, float(board["noise"])
        above = board["size"] - np.median(board["size"])
        diagonals = []
        for threshold in (0.0, 1.0, math.sqrt(2 * math.log(max(dim, 2)))):
            kept = np.where(above > threshold * noise, np.maximum(above, 0.0) ** 2, 0.0)
            if kept.sum() > 0:
                diagonals.append(np.sqrt(np.maximum(kept * dim / kept.sum(), 1e-6)))
        zero, weight = np.zeros(dim), 1.0 / (1 + len(diagonals))
        return [Candidate(weight, zero, np.diag(d), False) for d in diagonals]
