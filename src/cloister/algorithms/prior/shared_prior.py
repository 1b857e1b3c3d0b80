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

from cloister.algorithms.bases import BayesianAlgorithm
from cloister.algorithms.constants import BUDGET, GROUPS
from cloister.algorithms.locate import Locate
from cloister.algorithms.prior.groups import solve_by_group
from cloister.algorithms.prior.mean import Joint
from cloister.algorithms.prior.population import population_mean
from cloister.algorithms.prior.structure import Structure
from cloister.algorithms.staged import Staged, StagedFindings
from cloister.algorithms.stages import Stage
from cloister.core.arrays import Array, Floats, Public, States
from cloister.core.channel import Channel, Round
from cloister.core.errors import PlanError
from cloister.core.findings import EarlierPrior, Findings, Population
from cloister.core.roster import NO_GROUP, Groups
from cloister.core.tasks import Block
from cloister.learners.home import Home
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.question import Candidates, Question
from cloister.plan.algorithm import Budget

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


@dataclass(frozen=True)
class SharedPrior(Staged, BayesianAlgorithm):
    """Private empirical Bayes.

    Parameters
    ----------
    learner : Regression or Classification
        What a task does at home.
    structure : Joint, Mean, FeatureRelevance, Subspace, Support or GroupMeans
        What tasks tell each other; with several classes `Mean` or `FeatureRelevance`. `GroupMeans` is `Joint`
        or `Mean` with public groups.
    locate : Locate, optional
        Search for where targets and features are first; everything else is relative to what is found.
    """

    learner: BayesianLearner
    structure: Structure = field(default_factory=Joint)
    locate: Locate | None = None

    def __post_init__(self) -> None:
        start = self.structure.start_from
        if start is not None and len(start.mean) != self.learner.size:
            raise PlanError(
                f"The earlier board has {len(start.mean)} weights a task, and this plan {self.learner.size}. "
                "Start from a run with the same codebook."
            )
        for name, question in self.learner.questions.items():
            if len(self._known.get(name, question.unknown)) != len(question.unknown):
                raise PlanError(
                    f"The earlier board answers the question of {name} with "
                    f"{len(self._known[name])} numbers, and this version of cloister asks for "
                    f"{len(question.unknown)}. Start anew, without the earlier board."
                )
        if self.learner.size != self.learner.dim and not self.structure.several_classes:
            raise PlanError(
                "With more than two classes tasks share a mean, and what matters of it. Got "
                f"{type(self.structure).__name__}(). Use structure=Mean() or FeatureRelevance()."
            )
        self.check_searches()

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Searches, a question about the noise in rows, where weights lie, two about the prior's scale."""
        walk = Walk(self.structure, self.learner)
        if not self.structure.buys_scale:
            return (*self.searches, walk)
        first, last = self.learner.first, self.learner.last
        share = BUDGET.questions / len(self.learner.questions)
        before = (Ask(self, question, share, self._known.get(question.name)) for question in first)
        after = (Ask(self, question, share, self._known.get(question.name), True) for question in last)
        return (*self.searches, *before, walk, *after)

    @property
    def _known(self) -> Public:
        """What an earlier board says about the scale."""
        start = self.structure.start_from
        return {} if start is None else start.said

    def answers(self, board: BoardView) -> Public:
        """Return what a board says to each question so far."""
        return {name: board[name] for name in self.learner.questions} if self.structure.buys_scale else {}

    def located(self, board: BoardView) -> int | None:
        """Say how much of where targets are a board has found: see `Structure.candidates`."""
        return int(board["located_found"]) if self.locate is not None and self.locate.targets else None

    def prepare(self, home: Home, board: BoardView) -> States:
        return self.learner.prepare(home.rows)

    def solve(self, home: Home, board: BoardView) -> States:
        answers = self.answers(board)

        def solve(home: Home, candidates: Candidates) -> States:
            return self.learner.finish(home, candidates, answers)

        return solve_by_group(self.structure, self.learner, self.located(board), home, board, solve)

    def model_without_data(self, board: BoardView) -> States:
        """Return the model of a task without rows; then, where tasks are in groups, of one in each group."""
        units, models = self.units(board), self._without_rows(self.main_part(board))
        return models if units is None else units.models(models)

    def _without_rows(self, board: BoardView) -> States:
        answers, count = self.answers(board), 1 if self.groups is None else 1 + len(self.groups)
        nothing = np.zeros((count, 1))
        empty = Block(
            np.zeros(count),
            np.zeros((count, 1, self.learner.columns)),
            nothing,
            nothing,
            np.zeros(count, np.uint64),
            np.arange(NO_GROUP, count - 1),
        )

        def solve(home: Home, candidates: Candidates) -> States:
            shared = [c for c in candidates if c.shared] or candidates
            total = sum(c.weight for c in shared)
            shared = [replace(c, weight=c.weight / total) for c in shared]  # nothing is known of its own
            return self.learner.finish(home, shared, answers)

        home = Home(self.learner.prepare(empty), empty)
        return solve_by_group(self.structure, self.learner, self.located(board), home, board, solve)

    def findings(self, board: BoardView) -> Findings:
        return PriorFindings(self, board)

    @property
    def start_from(self) -> EarlierPrior | None:
        return self.structure.start_from

    @property
    def groups(self) -> Groups | None:
        return self.structure.groups

    def with_groups(self, groups: Groups) -> SharedPrior:
        return replace(self, structure=self.structure.grouped(groups))


@dataclass(frozen=True)
class Walk(Stage):
    """The rounds of a structure: where tasks' weights lie from a public point."""

    structure: Structure
    learner: BayesianLearner

    length = None

    @property
    def about(self) -> str:  # type: ignore[override]
        return self.structure.about

    def rounds(self, n_tasks: int, budget: Budget, share: float) -> tuple[Round, ...]:
        count = self.structure.rounds(self.learner.size, n_tasks, budget.mu)
        return (Round(share / count, self.structure.channels(self.learner)),) * count

    def start(self) -> Public:
        return self.structure.start(self.learner)

    def channel(self, board: BoardView) -> Channel:
        return self.structure.channel(self.learner, board)

    def message(self, home: Home, board: BoardView) -> tuple[Array, States]:
        return self.structure.message(self.learner, home, board), home.states

    def update(self, release: Release, board: BoardView) -> Public:
        return self.structure.update(self.learner, release, board)


@dataclass(frozen=True, eq=False)
class Ask(Stage):
    """One round: a question about the prior's scale; none if an earlier board has the answer."""

    prior: SharedPrior
    question: Question
    part: float
    known: Floats | None = None
    of_candidates: bool = False

    @property
    def about(self) -> str:  # type: ignore[override]
        return self.question.about

    @property
    def length(self) -> int:  # type: ignore[override]
        return 1 if self.known is None else 0

    def share(self, n_tasks: int, budget: Budget) -> float:
        return self.part if self.length else 0.0

    def rounds(self, n_tasks: int, budget: Budget, share: float) -> tuple[Round, ...]:
        return (Round(share, (self.question.channel,)),) * self.length

    def start(self) -> Public:
        return {self.question.name: np.array(self.question.unknown) if self.known is None else self.known}

    def channel(self, board: BoardView) -> Channel:
        return self.question.channel

    def message(self, home: Home, board: BoardView) -> tuple[Array, States]:
        prior, answers = self.prior, self.prior.answers(board)
        if not self.of_candidates:
            return self.question.answer(home, (), answers), home.states

        def answer(home: Home, candidates: Candidates) -> States:
            kept = prior.learner.weigh(home, candidates)
            return kept | {"answer": self.question.answer(home.knowing(kept), candidates, answers)}

        found = solve_by_group(prior.structure, prior.learner, prior.located(board), home, board, answer)
        return found.pop("answer"), home.states | found

    def update(self, release: Release, board: BoardView) -> Public:
        clip = self.question.channel.clip
        return {self.question.name: self.question.update(clip * release.value, clip * release.noise)}


class PriorFindings(StagedFindings):
    """What a board of `SharedPrior` says of the population, and for a later plan to start from."""

    algorithm: SharedPrior

    @property
    def prior(self) -> EarlierPrior | None:
        algorithm, board = self.algorithm, self.algorithm.main_part(self.board)
        found = algorithm.structure.prior(algorithm.learner, board)
        if found is None:
            return None
        answers, before = algorithm.answers(board), algorithm._known
        new = {name: answer for name, answer in answers.items() if name not in before}
        said = {name: tuple(answer.tolist()) for name, answer in (new | before).items()}
        known = {name: answer for name, answer in said.items() if _informative(answer)}
        return self.relative(replace(found, known=tuple(known), answers=tuple(known.values())))

    @property
    def population(self) -> Population | None:
        """None for a structure that says directions and no mean."""
        algorithm, board = self.algorithm, self.algorithm.main_part(self.board)
        structure, learner = algorithm.structure, algorithm.learner
        if not structure.buys_scale:
            return None
        found = population_mean(learner, structure, board, algorithm.rounds_of(Walk, board))
        mean, covariance, scatter = (None, None, None) if found is None else found
        answers, new = algorithm.answers(board), algorithm._without_rows(board)
        known = "scale" in answers and _scale_known(answers["scale"])
        spread = new["covariance"][0] if known and new["shared_weight"][0] > 0 else None
        if spread is not None and scatter is not None:
            less = np.diag(scatter) / np.maximum(np.diag(spread), 1e-300)
            spread = spread * np.sqrt(np.outer(np.minimum(less, 1.0), np.minimum(less, 1.0)))
        significant = structure.mean(learner, board).reshape(-1, learner.dim) != 0
        significant[:, 0] |= learner.intercept  # zero is a place too
        level, trust = (_stated(answers.get(name)) for name in ("level", "trust"))
        population = Population(
            mean,
            significant.ravel(),
            covariance,
            scatter,
            spread,
            None if level is None else math.exp(level[0]),
            trust,
        )
        units = algorithm.units(self.board)
        return population if units is None else units.population(population)


def _stated(answer: Array | None) -> tuple[float, float] | None:
    """Return the number that a board states, and its error; None if nobody was asked or noise hides it."""
    return None if answer is None or not math.isfinite(answer[1]) else (float(answer[0]), float(answer[1]))


def _scale_known(answer: Array) -> bool:
    """Say whether tasks prefer one scale of the prior: weights of a grid, or center and deviation.

    All variances of classes' grid alike have a deviation of 3.
    """
    return float(answer[1]) < GROUPS.unsure if len(answer) == 2 else _informative(tuple(answer.tolist()))


def _informative(answer: tuple[float, ...]) -> bool:
    """Say whether an answer on a board is more than none: finite, and not the same for all."""
    return all(map(math.isfinite, answer)) and len(set(answer)) > 1
