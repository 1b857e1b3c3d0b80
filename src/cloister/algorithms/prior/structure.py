"""What a structure of a shared prior is: rounds that tell how tasks are alike, and candidates of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cloister.core.arrays import Array, Floats, Public
from cloister.core.channel import Channel
from cloister.core.errors import PlanError
from cloister.core.findings import EarlierPrior
from cloister.core.roster import Groups
from cloister.learners.home import Home
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


class Structure(ABC):
    """How a shared prior is learned and what candidates come of it; all but `message` is public."""

    #: What its rounds are about, for those who read a plan.
    about: ClassVar[str]
    #: Whether a small share of the budget buys the scale of the prior; what says no mean has no scale.
    buys_scale: ClassVar[bool] = True
    #: Whether tasks may have more than two classes.
    several_classes: ClassVar[bool] = False
    #: Whether groups of tasks can have means of their own beside the common one.
    for_groups: ClassVar[bool] = False
    #: What an earlier board says, which rounds start from.
    start_from: EarlierPrior | None = None
    #: The public groups that it tells apart; None if it does not.
    groups: Groups | None = None

    def grouped(self, groups: Groups) -> Structure:
        """Return a structure that tells these groups apart."""
        raise no_group_means(self)

    @abstractmethod
    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        """Return how many rounds to take."""

    @abstractmethod
    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        """Return the channels a round may use."""

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        """Return the one it uses next."""
        return self.channels(learner)[0]

    @abstractmethod
    def start(self, learner: BayesianLearner) -> Public:
        """Return the public start."""

    @abstractmethod
    def message(self, learner: BayesianLearner, home: Home, board: BoardView) -> Array:
        """Return each task's message."""

    @abstractmethod
    def update(self, learner: BayesianLearner, release: Release, board: BoardView) -> Public:
        """Return the public state after a release."""

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        """Return the prior's mean: zero, for what says none."""
        return np.zeros(learner.size)

    def without_groups(
        self, learner: BayesianLearner, release: Release, before: BoardView
    ) -> tuple[Floats, Release, float]:
        """Return the point that tasks looked from, and what all of them said together, whatever their groups.

        The third is the part that this has of the precision which it would have without groups.
        """
        return before["mean"], release, 1.0

    def prior(self, learner: BayesianLearner, board: BoardView) -> EarlierPrior | None:
        """Return the prior on a finished board, for a later plan; None if it has none to start from."""
        return None

    @abstractmethod
    def candidates(self, learner: BayesianLearner, located: int | None, board: BoardView) -> list[Candidate]:
        """Return the candidate priors.

        `located` is 1 if zero is where targets were found to be, 2 if the unit is how far they spread, 0 if
        neither was heard, and None if nobody looked: what units there are, are meant.
        """

    def offsets(self, learner: BayesianLearner, board: BoardView) -> Floats:
        """Return how far each group's mean lies from the common one, (groups, size)."""
        return np.zeros((0, learner.size))

    def group_candidates(
        self, learner: BayesianLearner, located: int | None, offset: Floats, board: BoardView
    ) -> list[Candidate]:
        """Return the candidate priors of a group whose mean lies so far from the common one."""
        return self.candidates(learner, located, board)


def no_group_means(structure: Structure) -> PlanError:
    return PlanError(
        f"Groups have means of their own. Got {type(structure).__name__}(), which says none. Use Mean() or "
        "Joint()."
    )
