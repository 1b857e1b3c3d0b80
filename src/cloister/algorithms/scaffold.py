r"""Federated averaging in which no task drifts: local steps are corrected by control variates.

Where tasks differ, each one's steps lead to its own optimum, and the mean of where they end is not that of
what all want. A control variate is what a task expects its own gradient to be, :math:`c_k`, and the public
one, :math:`c`, what all expect on average: a local step takes :math:`g - c_k + c` in place of its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithms.federated import FedAvg, narrow
from cloister.core.arrays import Array, Public, States, is_real, namespace
from cloister.core.errors import PlanError
from cloister.core.spec import Sender

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


@dataclass(frozen=True)
class Scaffold(FedAvg):
    r"""SCAFFOLD with clipped, noisy updates; its public control variate costs nothing.

    From the public model :math:`x` a task takes K steps of size :math:`\eta`, ends at :math:`y_k`, and tells
    :math:`\Delta_k`, which is :math:`y_k - x`, clipped. With :math:`q` the share of tasks that take part,

    .. math::
        c_k \leftarrow c_k - c - \frac{\Delta_k}{K\eta}, \qquad
        x \leftarrow x + \bar\Delta, \qquad
        c \leftarrow (1 - q)\, c - q\, \frac{\bar\Delta}{K\eta}.

    Parameters
    ----------
    learner, clip, rounds, server, finetune
        As for `FedAvg`.
    solver : Descent
        Without momentum, and of a public number of steps: ``Descent(lr, batch=10, steps=20)``, or without
        batches.
    share : float
        The probability that a task takes part in a round, as in the plan's sampling: 1 for `Everyone`.

    Privacy
    -------
    As for `FedAvg`: a message is one clipped update. The paper has tasks send the change of their control
    variates too. That is :math:`-c - \Delta_k / (K\eta)`, of which :math:`c`, K and the step size are public:
    the mean of it follows from the released one, and so :math:`c` is computed from the board alone. A task's
    own control variate stays at home. The noise of :math:`c` is that of the mean, divided by :math:`K\eta`:
    it moves a round's local work by as much as the last release was off.

    Notes
    -----
    Without noise the mean of all :math:`c_k` is :math:`c` in every round, clipped or not. Where nothing moves
    any more every task's gradient is :math:`c_k`, and their mean 0: the optimum of all tasks' mean loss. The
    longer tasks train at home, the farther `FedAvg` is from it. With much noise there is little to correct.

    References
    ----------
    S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich and A. T. Suresh, "SCAFFOLD: stochastic
    controlled averaging for federated learning", arXiv:1910.06378, Algorithm 1 with option II.

    Examples
    --------
    >>> from torch import nn
    >>> from cloister.learners import Descent, Module
    >>> algorithm = Scaffold(Module(nn.Linear(4, 3)), Descent(lr=0.1, batch=10, steps=20), clip=0.5)
    >>> algorithm.channel(None).dim, sorted(algorithm.start())
    (15, ['control', 'mean'])
    """

    share: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_real(self.share) and 0 < self.share <= 1):
            raise PlanError(f"share must be the sampling's probability, in (0, 1]. Got {self.share!r}.")
        if self.solver.slots:
            raise PlanError(
                "Control variates are gradients, and with momentum steps are not. Use Descent without "
                f"momentum. Got {self.solver}."
            )
        if self.solver.batch is not None and self.solver.steps is None:
            raise PlanError(
                "Control variates need a number of steps that is the same for all tasks. Give steps, "
                f"Descent(lr, batch=10, steps=20), in place of epochs. Got {self.solver}."
            )

    @property
    def senders(self) -> frozenset[Sender]:
        return frozenset({Sender.TASK})  # whose correction is a state

    def start(self) -> Public:
        return {**super().start(), "control": np.zeros(self.learner.shared_size, dtype=np.float32)}

    def init(self, block: Block, board: BoardView) -> States:
        mean = board["mean"]
        none = self.learner.shared(self.learner.spread(mean, block)) * 0
        return {"control": none} | self.learner.first(mean, block)

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        drift = board["control"] - states["control"]
        start = self.learner.spread(board["mean"], block, states)
        ended = self.learner.descend(start, block, self.solver, board.rounds, linear=drift)
        moved = self.learner.shared(ended - start)
        control = -drift - _heard(moved, self.clip) / self._distance(board.rounds)
        return moved, {"control": control} | self.learner.keep(ended)

    def update(self, release: Release, board: BoardView) -> Public:
        mean = self.clip / release.denominator * release.value
        control = (1 - self.share) * board["control"] - self.share * mean / self._distance(board.rounds)
        return narrow({**self.server.step(board, mean), "control": control})

    def _distance(self, round: int) -> float:
        """Return how far a round's steps lead along a gradient of length 1."""
        return float(self.solver.timetable(round, self.solver.count(1))[:, 0].sum())


def _heard(updates: Array, clip: float) -> Array:
    """Return updates as the channel clips them; those that are not finite count as nothing."""
    xp = namespace(updates)
    wide = xp.asarray(updates, dtype=xp.float64)  # where squares of 32-bit numbers do not overflow
    length = xp.sqrt((wide * wide).sum(1))[:, None]
    share = xp.asarray(clip / xp.where(length > clip, length, clip), dtype=updates.dtype)
    found: Array = xp.where(xp.isfinite(length), share * updates, xp.zeros_like(updates))
    return found
