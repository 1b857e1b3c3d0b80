"""Independent: every task on its own. Nothing leaves: epsilon is 0. The baseline that joining must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from cloister.arrays import States
from cloister.channel import Channel, Round
from cloister.errors import PlanError
from cloister.learners.learner import BayesianLearner

if TYPE_CHECKING:
    from cloister.billboard import Billboard, Release
    from cloister.tasks import Block

__all__ = ["Independent"]


@dataclass(frozen=True)
class Independent:
    """Single-task learning, averaged over prior scales by evidence.

    Privacy
    -------
    Nothing is ever sent: epsilon = 0.
    """

    learner: BayesianLearner

    def schedule(self, n_tasks: int, mu: float) -> tuple[Round, ...]:
        """Return no rounds."""
        return ()

    def open(self) -> dict[str, NDArray[Any]]:
        """Return nothing."""
        return {}

    def channel(self, board: Billboard) -> Channel:
        """Refuse: there is no round."""
        raise PlanError("Independent has no rounds: its tasks say nothing.")

    def init(self, block: Block, board: Billboard) -> States:
        """Return what the task keeps of its data."""
        return self.learner.prepare(block)

    def send(self, states: States, block: Block, board: Billboard) -> tuple[NDArray[Any], States]:
        """Refuse: there is no round."""
        raise PlanError("Independent has no rounds: its tasks say nothing.")

    def digest(self, release: Release, board: Billboard) -> dict[str, NDArray[Any]]:
        """Refuse: there is no round."""
        raise PlanError("Independent has no rounds: its tasks say nothing.")

    def finish(self, states: States, block: Block, board: Billboard) -> States:
        """Fit each task on its own data alone."""
        return self.learner.finish(states, block, self.learner.own_candidates, {})
