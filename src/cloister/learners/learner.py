"""The seam between a shared prior and what tasks do at home, be it regression or classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cloister.channel import Channel
from cloister.learners.average import Candidate

if TYPE_CHECKING:
    from cloister.tasks import Block

__all__ = ["BayesianLearner"]

Floats = NDArray[np.float64]
States = dict[str, NDArray[Any]]


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
    def scale_first(self) -> bool:
        """Whether the scale message comes before the rounds, or after them."""

    @property
    def scale_channel(self) -> Channel:
        """The channel of the scale message."""

    @property
    def own_candidates(self) -> list[Candidate]:
        """The priors of a task on its own."""

    def prepare(self, block: Block) -> States:
        """Return private state."""

    def offset(self, states: States, block: Block, point: Floats) -> Floats:
        """Return how far from a public point each task's weights lie."""

    def own_weights(self, states: States, block: Block) -> Floats:
        """Return single-task weights."""

    def scale_message(self, states: States, block: Block, mean: Floats) -> Floats:
        """Return what each task says about the prior's scale."""

    def scale_digest(self, value: Floats, noise: float) -> Floats:
        """Return (center, sd) of the log scale from the noisy sum of scale messages."""

    def finish(
        self, states: States, block: Block, candidates: Sequence[Candidate], scale: Floats | None
    ) -> States:
        """Return models, averaged over candidates by each task's own evidence."""
