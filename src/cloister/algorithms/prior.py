r"""SharedPrior: a few short rounds of one bounded message, then a Bayesian average at home.

Everything after a release is post-processing and everything a task does with the board and its own data is
free under joint differential privacy. So the budget goes into a handful of releases that say how tasks are
alike, and each task solves at home with that as its prior: private empirical Bayes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithm import Budget
from cloister.algorithms.bases import BayesianAlgorithm
from cloister.algorithms.structures import Joint, Mean, Structure
from cloister.arrays import Array, Public, States
from cloister.channel import Channel, Round
from cloister.errors import PlanError
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.question import Question
from cloister.tasks import Block

if TYPE_CHECKING:
    from cloister.board.billboard import BoardView, Release

__all__ = ["SharedPrior"]

#: Share of the squared budget that buys the scale of the prior.
SCALE_SHARE = 0.06


@dataclass(frozen=True)
class SharedPrior(BayesianAlgorithm):
    """Private empirical Bayes.

    Parameters
    ----------
    learner : Regression or Classification
        What a task does at home.
    structure : Joint, Mean, Subspace or Support
        What tasks tell each other.
    """

    learner: BayesianLearner
    structure: Structure = field(default_factory=Joint)

    def __post_init__(self) -> None:
        if self.learner.size != self.learner.dim and not isinstance(self.structure, Mean):
            raise PlanError(
                f"With more than two classes tasks share a mean only. Got {type(self.structure).__name__}(). "
                "Use structure=Mean()."
            )

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        """Return the rounds; questions about the scale share 6 % of the squared budget."""
        channels, first, last = self.structure.channels(self.learner), *self._questions
        if not first + last:
            return (Round(1.0, channels),)
        rest, each = 1 - SCALE_SHARE, SCALE_SHARE / len(first + last)
        count = self.structure.rounds(self.learner.size, n_tasks, math.sqrt(rest) * budget.mu)
        before, after = ([Round(each, (question.channel,)) for question in asked] for asked in (first, last))
        return (*before, *(Round(rest / count, channels),) * count, *after)

    @property
    def _questions(self) -> tuple[tuple[Question, ...], tuple[Question, ...]]:
        """What is asked about the scale, before and after the structure's rounds."""
        return (self.learner.first, self.learner.last) if self.structure.buys_scale else ((), ())

    def _question(self, board: BoardView) -> Question | None:
        first, last = self._questions
        asked = first + (None,) * (board.capacity - len(first + last)) + last
        return asked[board.rounds]

    def _said(self, board: BoardView) -> Public:
        first, last = self._questions
        return {question.name: board[question.name] for question in first + last}

    def start(self) -> Public:
        first, last = self._questions
        unknown = {question.name: np.array(question.unknown) for question in first + last}
        return unknown | dict(self.structure.start(self.learner))

    def channel(self, board: BoardView) -> Channel:
        question = self._question(board)
        return self.structure.channel(self.learner, board) if question is None else question.channel

    def init(self, block: Block, board: BoardView) -> States:
        return self.learner.prepare(block)

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        question = self._question(board)
        if question is None:
            return self.structure.message(self.learner, states, block, board), states
        shared = board.rounds > len(self._questions[0])
        candidates = self.structure.candidates(self.learner, board) if shared else self.learner.own_candidates
        return question.answer(states, block, candidates, self._said(board)), states

    def update(self, release: Release, board: BoardView) -> Public:
        posted, question = {name: board[name] for name in self.start()}, self._question(board)
        if question is None:
            return posted | dict(self.structure.update(self.learner, release, board))
        clip = question.channel.clip
        return posted | {question.name: question.update(clip * release.value, clip * release.noise)}

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        candidates = self.structure.candidates(self.learner, board)
        return self.learner.finish(states, block, candidates, self._said(board))

    def newcomer(self, board: BoardView) -> States:
        nothing = np.zeros((1, 1))
        empty = Block(
            np.zeros(1), np.zeros((1, 1, self.learner.dim)), nothing, nothing, np.zeros(1, np.uint64)
        )
        candidates = self.structure.candidates(self.learner, board)
        shared = [c for c in candidates if c.shared] or candidates
        return self.learner.finish(self.learner.prepare(empty), empty, shared, self._said(board))
