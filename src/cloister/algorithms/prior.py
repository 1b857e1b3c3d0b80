r"""SharedPrior: a few short rounds of one bounded message, then a Bayesian average at home.

Everything after a release is post-processing and everything a task does with the board and its own data is
free under joint differential privacy. So the budget goes into a handful of releases that say how tasks are
alike, and each task solves at home with that as its prior: private empirical Bayes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithm import Budget
from cloister.algorithms.bases import BayesianAlgorithm
from cloister.algorithms.nested import Nested, by_prior
from cloister.algorithms.population_mean import population_mean
from cloister.algorithms.structures import Joint, Structure
from cloister.arrays import Array, Public, States
from cloister.channel import Channel, Round
from cloister.earlier import EarlierPrior
from cloister.errors import PlanError
from cloister.groups import NO_GROUP, Groups
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.question import Candidates, Question
from cloister.population import Population
from cloister.tasks import Block

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView, Release

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
    structure : Joint, Mean, FeatureRelevance, Subspace, Support or Nested
        What tasks tell each other; with several classes `Mean` or `FeatureRelevance`. `Nested` is `Joint` or
        `Mean` with public groups.
    """

    learner: BayesianLearner
    structure: Structure = field(default_factory=Joint)

    def __post_init__(self) -> None:
        start = self.structure.start_from
        if start is not None and len(start.mean) != self.learner.size:
            raise PlanError(
                f"The earlier board has {len(start.mean)} weights a task, and this plan {self.learner.size}. "
                "Start from a run with the same codebook."
            )
        for question in (*self.learner.first, *self.learner.last):
            if len(self._known.get(question.name, question.unknown)) != len(question.unknown):
                raise PlanError(
                    f"The earlier board answers the question of {question.name} with "
                    f"{len(self._known[question.name])} numbers, and this version of cloister asks for "
                    f"{len(question.unknown)}. Start anew, without the earlier board."
                )
        if self.learner.size != self.learner.dim and not self.structure.several_classes:
            raise PlanError(
                "With more than two classes tasks share a mean, and what matters of it. Got "
                f"{type(self.structure).__name__}(). Use structure=Mean() or FeatureRelevance()."
            )

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        """Return the rounds; questions about the scale share 6 % of the squared budget."""
        channels, first, last = self.structure.channels(self.learner), *self._questions
        if not self.structure.buys_scale:
            return (Round(1.0, channels),)
        each = SCALE_SHARE / len((*self.learner.first, *self.learner.last))
        rest = 1 - each * len(first + last)
        count = self.structure.rounds(self.learner.size, n_tasks, math.sqrt(rest) * budget.mu)
        before, after = ([Round(each, (question.channel,)) for question in asked] for asked in (first, last))
        return (*before, *(Round(rest / count, channels),) * count, *after)

    @property
    def _questions(self) -> tuple[tuple[Question, ...], tuple[Question, ...]]:
        """What is asked about the scale, before and after the structure's rounds: what is not yet known."""
        if not self.structure.buys_scale:
            return (), ()
        first, last = (
            tuple(question for question in asked if question.name not in self._known)
            for asked in (self.learner.first, self.learner.last)
        )
        return first, last

    @property
    def _known(self) -> Public:
        """What an earlier board says about the scale."""
        start = self.structure.start_from
        return {} if start is None else start.said

    def _question(self, board: BoardView) -> Question | None:
        first, last = self._questions
        asked = first + (None,) * (board.capacity - len(first + last)) + last
        return asked[board.rounds]

    def _said(self, board: BoardView) -> Public:
        first, last = self._questions
        return {name: board[name] for name in (*(question.name for question in first + last), *self._known)}

    def start(self) -> Public:
        first, last = self._questions
        unknown = {question.name: np.array(question.unknown) for question in first + last}
        return unknown | dict(self._known) | dict(self.structure.start(self.learner))

    @property
    def start_from(self) -> EarlierPrior | None:
        return self.structure.start_from

    def prior_on(self, board: BoardView) -> EarlierPrior:
        found = self.structure.prior_on(self.learner, board)
        if found is None:
            raise PlanError(
                "A plan can start from a board of SharedPrior with structure Joint() or Mean(). Got "
                f"{type(self.structure).__name__}()."
            )
        said = {name: tuple(answer.tolist()) for name, answer in self._said(board).items()}
        known = {name: answer for name, answer in said.items() if _informative(answer)}
        return replace(found, known=tuple(known), answers=tuple(known.values()))

    def channel(self, board: BoardView) -> Channel:
        question = self._question(board)
        return self.structure.channel(self.learner, board) if question is None else question.channel

    def init(self, block: Block, board: BoardView) -> States:
        return self.learner.prepare(block)

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        question = self._question(board)
        if question is None:
            return self.structure.message(self.learner, states, block, board), states
        said = self._said(board)
        if board.rounds <= len(self._questions[0]):
            return question.answer(states, block, (), said), states

        def answer(states: States, block: Block, candidates: Candidates) -> States:
            kept = self.learner.weigh(states, block, candidates)
            return kept | {"answer": question.answer(states | kept, block, candidates, said)}

        found = by_prior(self.structure, self.learner, states, block, board, answer)
        return found.pop("answer"), states | found

    def summarized(self, states: States) -> bool:
        return self.learner.summarizes and self.structure.buys_scale

    def update(self, release: Release, board: BoardView) -> Public:
        posted, question = {name: board[name] for name in self.start()}, self._question(board)
        if question is None:
            return posted | dict(self.structure.update(self.learner, release, board))
        clip = question.channel.clip
        return posted | {question.name: question.update(clip * release.value, clip * release.noise)}

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        said = self._said(board)

        def solve(states: States, block: Block, candidates: Candidates) -> States:
            return self.learner.finish(states, block, candidates, said)

        return by_prior(self.structure, self.learner, states, block, board, solve)

    def newcomer(self, board: BoardView) -> States:
        """Return the model of a task without rows; then, where tasks are in groups, of one in each group."""
        said, count = self._said(board), 1 if self.groups is None else 1 + len(self.groups)
        nothing = np.zeros((count, 1))
        empty = Block(
            np.zeros(count),
            np.zeros((count, 1, self.learner.dim)),
            nothing,
            nothing,
            np.zeros(count, np.uint64),
            np.arange(NO_GROUP, count - 1),
        )

        def solve(states: States, block: Block, candidates: Candidates) -> States:
            shared = [c for c in candidates if c.shared] or candidates
            total = sum(c.weight for c in shared)
            shared = [replace(c, weight=c.weight / total) for c in shared]  # nothing is known of its own
            return self.learner.finish(states, block, shared, said)

        return by_prior(self.structure, self.learner, self.learner.prepare(empty), empty, board, solve)

    def population(self, board: BoardView) -> Population | None:
        """See `Algorithm`; None for a structure that says directions and no mean."""
        if not self.structure.buys_scale:
            return None
        first, last = self._questions
        rounds = range(len(first), board.capacity - len(last))
        found = population_mean(self.learner, self.structure, board, rounds)
        mean, covariance, scatter = (None, None, None) if found is None else found
        said, new = self._said(board), self.newcomer(board)
        spread = new["covariance"][0] if _scale_heard(said["scale"]) and new["shared_weight"][0] > 0 else None
        if spread is not None and scatter is not None:
            less = np.diag(scatter) / np.maximum(np.diag(spread), 1e-300)
            spread = spread * np.sqrt(np.outer(np.minimum(less, 1.0), np.minimum(less, 1.0)))
        heard = self.structure.mean(self.learner, board).reshape(-1, self.learner.dim) != 0
        heard[:, 0] |= self.learner.intercept  # zero is a place too
        level, trust = said.get("level"), said["trust"]
        return Population(
            mean,
            heard.ravel(),
            covariance,
            scatter,
            spread,
            math.exp(float(level[0])) if level is not None and math.isfinite(float(level[1])) else None,
            float(trust[0]) if math.isfinite(float(trust[1])) else None,
        )

    @property
    def groups(self) -> Groups | None:
        return self.structure.groups

    def with_groups(self, groups: Groups) -> SharedPrior:
        inside = self.structure.for_groups or self.structure  # which says why, if it has none
        return replace(self, structure=Nested(inside, groups))  # type: ignore[arg-type]


def _scale_heard(answer: Array) -> bool:
    """Say whether tasks were heard to prefer one scale of the prior: weights of a grid, or center and sd.

    All variances of classes' grid alike have a deviation of 3.
    """
    return float(answer[1]) < 2.0 if len(answer) == 2 else _informative(tuple(answer.tolist()))


def _informative(answer: tuple[float, ...]) -> bool:
    """Say whether an answer on a board is more than 'not heard': finite, and not the same for all."""
    return all(map(math.isfinite, answer)) and len(set(answer)) > 1
