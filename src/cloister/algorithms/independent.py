"""Independent: every task on its own. Nothing leaves: epsilon is 0. The baseline that joining must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloister.algorithms.bases import BayesianAlgorithm, WithoutRounds
from cloister.arrays import Public, States
from cloister.learners.home import Home
from cloister.learners.learner import BayesianLearner

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.tasks import Block

__all__ = ["Independent"]


@dataclass(frozen=True)
class Independent(WithoutRounds, BayesianAlgorithm):
    """Single-task learning, averaged over prior scales by evidence.

    Privacy
    -------
    Nothing is ever sent: epsilon = 0.
    """

    learner: BayesianLearner

    def start(self) -> Public:
        return {}

    def init(self, block: Block, board: BoardView) -> States:
        return self.learner.prepare(block)

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        return self.learner.finish(Home(states, block), (), {})
