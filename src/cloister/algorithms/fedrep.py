"""A shared body and personal heads that are trained in turn.

References
----------
L. Collins, H. Hassani, A. Mokhtari and S. Shakkottai, "Exploiting shared representations for personalized
federated learning", arXiv:2102.07078, Algorithm 1 (FedRep).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloister.algorithms.federated import FedAvg
from cloister.algorithms.finetuning import FineTuning, variants_of
from cloister.arrays import Array, States
from cloister.errors import PlanError
from cloister.learners.descent import StepSolver
from cloister.learners.learner import Part

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.tasks import Block

__all__ = ["FedRep"]


@dataclass(frozen=True)
class FedRep(FedAvg):
    """Train the personal parameters with the shared ones fixed, then the shared ones with these; tell those.

    A task ends with the public model's shared parameters and its own personal ones, trained on these once
    more. `FedAvg` with the same learner trains both at once, which is known as FedPer.

    Parameters
    ----------
    learner : Module
        With personal parameters: ``Module(net, personal=("head.*",))``.
    solver : Descent, Nesterov, Adam or AdamW
        A round's training of what is shared.
    clip, rounds, server, finetune
        As for `FedAvg`; `finetune` goes on with all parameters, after the last training of personal ones.
    head : Descent, Nesterov, Adam or AdamW, optional
        A round's training of what is personal, before that; as `solver` by default.

    Privacy
    -------
    As for `FedAvg`: a message is the update of the shared parameters, clipped. What a task has learned for
    itself shows in that update and nowhere else.

    Examples
    --------
    >>> from torch import nn
    >>> from cloister.learners import Descent, Module
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> learner = Module(net, personal=("2.*",))
    >>> fedrep = FedRep(learner, Descent(lr=0.1, batch=10), head=Descent(lr=0.1, batch=10, epochs=5))
    >>> fedrep.channel(None).dim, fedrep.learner.size
    (40, 67)
    """

    head: StepSolver | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.learner.check_solver(self._head, None)
        variants_of(FineTuning(self._head), self.rounds)
        if self.learner.shared_size == self.learner.size:
            raise PlanError(
                "FedRep trains personal parameters and shared ones in turn, and this learner has no personal "
                'ones. Name them, Module(net, personal=("head.*",)), or use FedAvg.'
            )

    @property
    def _head(self) -> StepSolver:
        return self.solver if self.head is None else self.head

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        start = self.learner.spread(board["mean"], block, states)
        own = self._train_head(start, block, board)
        ended = self.learner.descend(own, block, self.solver, board.rounds, part=Part.SHARED)
        return self.learner.shared(ended - start), self.learner.keep(own)

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        start = self.learner.spread(board["mean"], block, states)
        return {"coef": self._tune(self._train_head(start, block, board), block, board)}

    def _train_head(self, start: Array, block: Block, board: BoardView) -> Array:
        return self.learner.descend(start, block, self._head, board.rounds, part=Part.PERSONAL)

    @property
    def local_batch(self) -> int | None:
        both = (self.solver.batch, self._head.batch)
        return None if None in both else max(batch for batch in both if batch is not None)
