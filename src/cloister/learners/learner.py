"""What an algorithm asks of what learns at home: Bayesian, with a prior to share, or trained by steps.

`BayesianLearner` is regression or classification in closed form or nearly so; `ClientLearner` is a convex
loss or a network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from cloister.core.arrays import Array, Floats, States, namespace
from cloister.core.errors import PlanError
from cloister.core.spec import DataSpec
from cloister.learners.descent import Solver
from cloister.learners.home import Home
from cloister.learners.linear.losses import Loss
from cloister.learners.linear.question import Answers, Candidates, Question
from cloister.learners.linear.residuals import Residuals

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.learners.penalties import Penalty
    from cloister.plan.algorithm import Network


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
    def columns(self) -> int:
        """Number of columns of a row: those with weights, and an offset's if it has one."""
        return self.dim

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """The loss of its predictions, on the same weights."""

    @property
    def rows(self) -> DataSpec | None:
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
    def loose(self) -> float:
        """How many times as much intercepts vary between tasks as slopes do, in the prior that lets them."""

    @property
    @abstractmethod
    def widening(self) -> float:
        """How many times the variance of the noise in the mean is added to the scales of priors around it.

        So often that at the usual lambda, or variance, the prior has that noise in it once.
        """

    @property
    @abstractmethod
    def own_scales(self) -> tuple[float, float] | None:
        """Variances of a prior around the mean in own units, up to scale: intercept, slopes; or none."""

    @property
    def residuals(self) -> Residuals | None:
        """What a single record may say of its target, for `PooledPrior`; None if it is for tasks alone."""
        return None

    @property
    @abstractmethod
    def first(self) -> tuple[Question, ...]:
        """What tasks are asked before they speak of their weights."""

    @property
    @abstractmethod
    def last(self) -> tuple[Question, ...]:
        """What they are asked when the mean is known."""

    @property
    def questions(self) -> dict[str, Question]:
        """All that tasks are asked beside their weights, by name."""
        return {question.name: question for question in (*self.first, *self.last)}

    @abstractmethod
    def prepare(self, block: Block) -> States:
        """Return private state."""

    @abstractmethod
    def offset(self, home: Home, point: Floats) -> Floats:
        """Return how far from a public point each task's weights lie, as tasks tell it (see `weights_of`)."""

    def weights_of(self, told: Floats) -> Floats:
        """Return differences of weights from what tasks tell of them, (..., size): by default the same."""
        return told

    @abstractmethod
    def own_weights(self, home: Home) -> Floats:
        """Return single-task weights."""

    def weigh(self, home: Home, candidates: Candidates) -> States:
        """Return what of the candidates' evidence the last questions share: states that are kept for them.

        Their names are those that `prepare` has made room for.
        """
        return {}

    @abstractmethod
    def finish(self, home: Home, candidates: Candidates, answers: Answers) -> States:
        """Return models, averaged over candidates and the task's own prior by its own evidence."""


class Part(Enum):
    """What of a model is trained; the rest stays as it is meanwhile."""

    ALL = "all"
    SHARED = "shared"
    PERSONAL = "personal"


class ClientLearner(ABC):
    """What trains at home by steps, on flat parameters: a convex loss (`Convex`) or a network (`Module`).

    The first `shared_size` parameters are learned together: messages and the public model have these alone.
    The others are personal. They start where the public start says, and never leave their task.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of parameters that are trained, personal ones included."""

    @property
    def shared_size(self) -> int:
        """Number of parameters that messages speak of: the first ones."""
        return self.size

    @property
    def rows(self) -> DataSpec | None:
        """The rows it takes; None if it does not say."""
        return None

    @property
    def network(self) -> Network | None:
        """The network, if it is one that a device could train."""
        return None

    @abstractmethod
    def start(self) -> Array:
        """Return the public start, of personal parameters too."""

    @abstractmethod
    def spread(self, mean: Array, block: Block, states: States | None = None) -> Array:
        """Give every task of a block the public parameters, and its own personal ones beside them.

        Those are what `keep` put into its state; the public start's, without one.
        """

    def shared(self, weights: Array) -> Array:
        """Return what may be told of parameters, or of their differences."""
        return weights[..., : self.shared_size]

    def keep(self, weights: Array) -> States:
        """Return what tasks remember of their parameters from round to round: personal ones, if any."""
        if self.shared_size == self.size:
            return {}
        xp, personal = namespace(weights), weights[:, self.shared_size :]
        return {"personal": xp.concatenate([personal])}  # a copy: a view would hold all parameters

    def first(self, mean: Array, block: Block) -> States:
        """Return what tasks remember before the first round."""
        return {} if self.shared_size == self.size else self.keep(self.spread(mean, block))

    def model_without_data(self, mean: Array) -> Array:
        """Return the model of a task without rows: public parameters, and personal ones as at the start."""
        personal = self.start()[self.shared_size :].astype(mean.dtype)
        return np.concatenate([mean, personal])[None]

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
        part: Part = Part.ALL,
        linear: Array | None = None,
    ) -> Array:
        """Train each task on its own rows.

        The anchor has shared parameters alone, and a penalty holds these alone. `linear` has numbers of each
        task's own, (tasks, shared parameters), that are added to the gradient in every step: those of a
        linear term of its objective.
        """

    @abstractmethod
    def gradient(self, weights: Array, block: Block) -> Array:
        """Return the gradient of each task's mean loss on its own rows, all of them, at its weights."""

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
