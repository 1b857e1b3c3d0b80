"""What algorithms have in common that are built on a loss, on a learner, or that say nothing at all.

`Independent` is every task on its own. Nothing leaves: epsilon is 0. It is the baseline that joining must
beat.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from cloister.core.arrays import Public, States
from cloister.core.errors import PlanError
from cloister.learners.home import Home
from cloister.learners.learner import BayesianLearner
from cloister.plan.algorithm import Algorithm, Budget, Network

if TYPE_CHECKING:
    from cloister.core.arrays import Array
    from cloister.core.channel import Channel, Round
    from cloister.core.spec import DataSpec
    from cloister.core.tasks import Block
    from cloister.learners.descent import Solver
    from cloister.learners.learner import ClientLearner
    from cloister.learners.linear.losses import Loss
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


class LossAlgorithm(Algorithm):
    """An algorithm whose models are weights of a loss: it takes the loss's rows and predicts by it."""

    loss: Loss

    @property
    def rows(self) -> DataSpec | None:
        return self.loss.rows

    def predict(self, models: States, X: Array) -> Array:
        return self.loss.predict(models["coef"], X)

    def losses(self, models: States, block: Block) -> Array:
        return self.loss.value(models["coef"], block.X, block.y, block.weight)


class BayesianAlgorithm(Algorithm):
    """An algorithm whose models are posteriors: predictions are those of the mean weights."""

    learner: BayesianLearner

    @property
    def rows(self) -> DataSpec | None:
        return self.learner.rows

    def predict(self, models: States, X: Array) -> Array:
        return self.learner.predict(models["coef"], X)

    def losses(self, models: States, block: Block) -> Array:
        return self.learner.loss.value(models["coef"], block.X, block.y, block.weight)


class ClientAlgorithm(Algorithm):
    """An algorithm whose models are parameters of what trains by steps: a convex loss or a network."""

    learner: ClientLearner
    solver: Solver

    @property
    def rows(self) -> DataSpec | None:
        return self.learner.rows

    def predict(self, models: States, X: Array) -> Array:
        outputs: Array = self.learner.predict(models["coef"], X)
        return outputs

    def losses(self, models: States, block: Block) -> Array:
        return self.learner.losses(models["coef"], block)

    @property
    def network(self) -> Network | None:
        return self.learner.network

    def with_network(self, network: Network) -> Self:
        bound: dict[str, Any] = {"learner": network}
        return replace(self, **bound)  # type: ignore[type-var]

    @property
    def local_batch(self) -> int | None:
        return self.solver.batch


class WithoutRounds(Algorithm):
    """Nothing is said, and nothing is spent."""

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        return ()

    def channel(self, board: BoardView) -> Channel:
        raise self._refusal()

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        raise self._refusal()

    def update(self, release: Release, board: BoardView) -> Public:
        raise self._refusal()

    def _refusal(self) -> PlanError:
        return PlanError(f"{type(self).__name__} has no rounds: its tasks say nothing.")


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
