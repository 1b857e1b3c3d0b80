"""The seam between a shared prior and what tasks do at home, be it regression or classification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cloister.arrays import Floats, States
from cloister.learners.average import Candidate
from cloister.learners.question import Candidates, Question, Said

if TYPE_CHECKING:
    from cloister.tasks import Block

__all__ = ["BayesianLearner"]


class BayesianLearner(Protocol):
    """A learner with a Gaussian prior on its weights and an evidence to weigh priors by."""

    @property
    def dim(self) -> int:
        """Number of columns."""

    @property
    def intercept(self) -> bool:
        """Whether column 0 is an intercept."""

    @property
    def size(self) -> int:
        """Number of weights."""

    @property
    def clip(self) -> float:
        """How far weights may lie from the public point before a message is clipped."""

    @property
    def prior_scales(self) -> tuple[float, float, float]:
        """Scales of the shared priors: isotropic, with a loose intercept, with a covariance."""

    @property
    def first(self) -> tuple[Question, ...]:
        """What tasks are asked before they speak of their weights."""

    @property
    def last(self) -> tuple[Question, ...]:
        """What they are asked when the mean is known."""

    @property
    def own_candidates(self) -> list[Candidate]:
        """The priors of a task on its own."""

    def prepare(self, block: Block) -> States:
        """Return private state."""

    def offset(self, states: States, block: Block, point: Floats) -> Floats:
        """Return how far from a public point each task's weights lie."""

    def own_weights(self, states: States, block: Block) -> Floats:
        """Return single-task weights."""

    def finish(self, states: States, block: Block, candidates: Candidates, said: Said) -> States:
        """Return models, averaged over candidates by each task's own evidence."""
