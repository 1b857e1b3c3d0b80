"""The seam between the curator and the places where tasks live.

An engine answers one question: where do tasks live, and who computes on them? It gives the curator `Workers`.
The curator's side (`cloister.engines.curator`) is the same for all engines and sees nothing but what
`Workers.collect` returns. Rows, states and models stay with the workers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import States
from cloister.billboard import Billboard
from cloister.errors import AlgorithmError
from cloister.plan import Plan
from cloister.privacy.doubts import Doubt
from cloister.tasks import OwnSeed, Tasks

__all__ = ["Coins", "Engine", "SavedState", "Workers", "check_messages"]

#: Which tasks take part in a round.
Coins: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class SavedState:
    """What workers know between two rounds, in the order of the tasks. Private: it stays with them.

    Attributes
    ----------
    states : dict of arrays
        Each task's state, as the algorithm made it.
    rejected : int
        How many messages were not finite so far.
    """

    states: States
    rejected: int

    def __repr__(self) -> str:
        return "SavedState(private)"


class Workers(Protocol):
    """All tasks of a run, each with its own data and state."""

    def start(self, board: Billboard) -> None:
        """Let every task make its first state."""

    def collect(self, board: Billboard, coins: Coins) -> Any:
        """Let the sampled tasks do a round's work; return the sum of their bounded messages.

        The sum is what the plan's mechanism takes; it may be an array that is still being computed.
        """

    def listen(self, board: Billboard, coins: Coins) -> None:
        """Let the sampled tasks do a round's work whose release is posted already: nothing leaves them."""

    def finish(self, board: Billboard, folder: Path | None = None) -> States:
        """Let every task make its model; return the models in the order of the tasks.

        Workers that keep models to themselves return nothing, ``{}``. Models that are too large for memory
        may be put into a file in the folder.
        """

    def rejected(self) -> int:
        """Return how many messages were not finite, and counted as zero. Private."""

    def save_state(self) -> SavedState:
        """Return what workers know between two rounds, to go on from there without listening again."""

    def restore_state(self, saved: SavedState) -> None:
        """Go on from what was saved, by workers of any layout; in place of `start` and the rounds since."""


class Engine(Protocol):
    """Where and how tasks are computed on; does not change what is released."""

    def doubts_of(self, plan: Plan) -> tuple[Doubt, ...]:
        """Return what computing a plan there takes away from its guarantee."""

    def workers(self, plan: Plan, tasks: Tasks, local_seed: int | OwnSeed) -> AbstractContextManager[Workers]:
        """Make the workers of a run, and refuse a plan or tasks that they cannot compute on."""


def check_messages(shape: tuple[int, ...], count: int, dim: int) -> None:
    """Refuse a second row of a task: it would be a message that nobody paid for."""
    if shape != (count, dim):
        raise AlgorithmError(
            f"send must return one message a task, of shape {(count, dim)}. Got shape {tuple(shape)}."
        )
