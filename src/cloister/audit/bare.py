"""A mechanism without an algorithm: one release on one channel, as a plan that can be audited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.algorithm import Algorithm, Budget
from cloister.arrays import Public, States
from cloister.audit.auditor import audit
from cloister.audit.verdict import Audit
from cloister.channel import Channel, Relation, Round
from cloister.plan import Plan
from cloister.privacy.mechanisms import Mechanism
from cloister.store.billboard import BoardView, Release
from cloister.tasks import Block

__all__ = ["OneRelease", "audit_mechanism"]


def audit_mechanism(
    mechanism: Mechanism,
    channel: Channel,
    *,
    n_tasks: int,
    relation: Relation = Relation.REPLACE,
    delta: float | None = None,
    draws: int = 1_000_000,
    confidence: float = 0.95,
    progress: Callable[[int, int], None] | None = None,
    random_state: int | None = None,
) -> Audit:
    """Attack one release of a mechanism on a channel; what is claimed is the price of its own event.

    Parameters
    ----------
    mechanism : Mechanism
        With its level set, e.g. ``Gaussian(mu=0.5)``.
    channel : Channel
        What tasks may say.
    n_tasks : int
        Public number of tasks.
    relation : {"replace", "zero_out"}
        Who counts as a neighbour.
    delta : float, optional
        By default that of a plan for so many tasks.
    draws, confidence, progress, random_state
        As for :func:`~cloister.audit.audit`. Isolation is not tested: there is no model.

    Examples
    --------
    >>> from cloister.channel import Channel, Outer
    >>> from cloister.mechanisms import Gaussian
    >>> channel = Channel(3, lift=Outer())
    >>> found = audit_mechanism(Gaussian(mu=0.5), channel, n_tasks=100, draws=20_000, random_state=0)
    >>> found.verdict, found.bound.epsilon < found.guarantee.epsilon
    ('No contradiction found.', True)
    """
    plan = Plan(OneRelease(channel), mechanism, n_tasks=n_tasks, relation=relation, delta=delta)
    return audit(plan, draws=draws, confidence=confidence, progress=progress, random_state=random_state)


@dataclass(frozen=True)
class OneRelease(Algorithm):
    """An algorithm of one round on one channel, in which nobody has anything to say or to learn."""

    only: Channel

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        return (Round(1.0, (self.only,)),)

    def start(self) -> Public:
        return {}

    def channel(self, board: BoardView) -> Channel:
        return self.only

    def init(self, block: Block, board: BoardView) -> States:
        return {}

    def send(self, states: States, block: Block, board: BoardView) -> tuple[NDArray[Any], States]:
        return np.zeros((len(block), self.only.dim)), states

    def update(self, release: Release, board: BoardView) -> Public:
        return {}

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        return {}
