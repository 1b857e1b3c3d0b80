"""What a structure of a shared prior is: rounds that tell how tasks are alike, and candidates of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cloister.arrays import Array, Floats, Public, States
from cloister.channel import Channel
from cloister.earlier import EarlierPrior
from cloister.groups import Groups
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView, Release
    from cloister.tasks import Block

__all__ = ["Structure"]


class Structure(Protocol):
    """How a shared prior is learned and what candidates come of it; all but `message` is public."""

    #: Whether a small share of the budget buys the scale of the prior.
    buys_scale: bool

    @property
    def several_classes(self) -> bool:
        """Whether tasks may have more than two classes."""

    @property
    def groups(self) -> Groups | None:
        """The public groups that it tells apart, if it does."""

    @property
    def for_groups(self) -> Structure | None:
        """What it says that groups can have too, a mean at least; None if it says no mean."""

    @property
    def start_from(self) -> EarlierPrior | None:
        """What an earlier board says, which rounds start from."""

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        """Return how many rounds to take."""

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        """Return the channels a round may use."""

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        """Return the one it uses next."""

    def start(self, learner: BayesianLearner) -> Public:
        """Return the public start."""

    def message(self, learner: BayesianLearner, states: States, block: Block, board: BoardView) -> Array:
        """Return what each task says."""

    def update(self, learner: BayesianLearner, release: Release, board: BoardView) -> Public:
        """Return the public state after a release."""

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        """Return the prior's mean."""

    def prior_on(self, learner: BayesianLearner, board: BoardView) -> EarlierPrior | None:
        """Return the prior on a finished board, for a later plan; None if it has none to start from."""

    def candidates(self, learner: BayesianLearner, board: BoardView) -> list[Candidate]:
        """Return the candidate priors."""
