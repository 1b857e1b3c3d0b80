"""The seam between a shared prior and what tasks do at home, be it regression or classification."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from cloister.arrays import Array, Floats, States
from cloister.errors import PlanError
from cloister.learners.descent import Solver
from cloister.learners.linear.losses import Loss
from cloister.learners.linear.question import Candidates, Question, Said
from cloister.rows import Rows

if TYPE_CHECKING:
    from cloister.algorithm import Network
    from cloister.learners.network.penalties import Penalty
    from cloister.tasks import Block

__all__ = ["BayesianLearner", "ClientLearner", "require_learner"]


class BayesianLearner(ABC):
    """A learner with a Gaussian prior on its weights and an evidence to weigh priors by."""

    #: Number of columns, and whether column 0 is an intercept.
    dim: int
    intercept: bool

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of weights."""

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """The loss of its predictions, on the same weights."""

    @property
    def rows(self) -> Rows | None:
        return self.loss.rows

    def predict(self, weights: Floats, X: Floats) -> Floats:
        """Return expected targets, or class probabilities, at posterior mean weights."""
        return self.loss.predict(weights, X)

    @property
    @abstractmethod
    def clip(self) -> float:
        """How far weights may lie from the public point before a message is clipped."""

    @property
    @abstractmethod
    def prior_scales(self) -> tuple[float, float, float]:
        """Scales of the shared priors: isotropic, with a loose intercept, with a covariance."""

    @property
    @abstractmethod
    def own_scales(self) -> tuple[float, float] | None:
        """Variances of a prior around the mean in own units, up to scale: intercept, slopes; or none."""

    @property
    @abstractmethod
    def first(self) -> tuple[Question, ...]:
        """What tasks are asked before they speak of their weights."""

    @property
    @abstractmethod
    def last(self) -> tuple[Question, ...]:
        """What they are asked when the mean is known."""

    @abstractmethod
    def prepare(self, block: Block) -> States:
        """Return private state."""

    @abstractmethod
    def offset(self, states: States, block: Block, point: Floats) -> Floats:
        """Return how far from a public point each task's weights lie."""

    @abstractmethod
    def own_weights(self, states: States, block: Block) -> Floats:
        """Return single-task weights."""

    @abstractmethod
    def finish(self, states: States, block: Block, candidates: Candidates, said: Said) -> States:
        """Return models, averaged over candidates and the task's own prior by its own evidence."""


class ClientLearner(ABC):
    """What trains at home by steps, on flat parameters: a convex loss (`Convex`) or a network (`Module`)."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of parameters."""

    @property
    def rows(self) -> Rows | None:
        """The rows it takes; None if it does not say."""
        return None

    @property
    def network(self) -> Network | None:
        """The network, if it is one that a device could train."""
        return None

    @abstractmethod
    def start(self) -> Array:
        """Return the public start."""

    @abstractmethod
    def spread(self, mean: Array, block: Block) -> Array:
        """Give every task of a block the same parameters."""

    @abstractmethod
    def check_solver(self, solver: Solver, penalty: Penalty | None) -> None:
        """Refuse a solver or a penalty that it could not train with, before anything is spent."""

    @abstractmethod
    def descend(
        self,
        weights: Array,
        block: Block,
        solver: Solver,
        round: int,
        anchor: Array | None = None,
        penalty: Penalty | None = None,
    ) -> Array:
        """Train each task on its own rows."""

    @abstractmethod
    def losses(self, weights: Array, block: Block) -> Array:
        """Return each task's mean loss on its own rows."""

    @abstractmethod
    def folds(self, block: Block, count: int) -> list[tuple[Block, Block]]:
        """Return, for each of `count` parts of each task's rows, the block without it and with it alone."""

    @abstractmethod
    def predict(self, weights: Array, X: Array) -> Array:
        """Return outputs (k, n, ...) of each task's own model on its own rows."""


def require_learner(given: object) -> None:
    """Refuse a loss or a network as it is: what learns is made of it."""
    if isinstance(given, ClientLearner):
        return
    kind = type(given).__name__
    wrapped = f"Convex({kind}(...))" if isinstance(given, Loss) else f"Module({kind}(...))"
    raise PlanError(f"learner must be a Convex or a Module. Got a bare {kind}; wrap it: {wrapped}.")
