"""What an algorithm is: seven small pure functions over blocks, and nothing about noise or epsilon."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from cloister.arrays import Public, States
from cloister.billboard import Billboard, Release
from cloister.channel import Channel, Round
from cloister.tasks import Block

__all__ = ["Algorithm"]


class Algorithm(Protocol):
    """An algorithm as a frozen dataclass of public numbers with seven pure methods.

    Every private array has a leading task axis and rows never mix: row i of what `init`, `send` and
    `finish` return depends on row i of their arguments and on the board alone. `check_algorithm` tests it.
    """

    def schedule(self, n_tasks: int, mu: float) -> tuple[Round, ...]:
        """Return the rounds, each one's share of the squared budget and the channels it may use."""

    def open(self) -> Public:
        """Return what the board says before anyone speaks."""

    def channel(self, board: Billboard) -> Channel:
        """Return what may leave a task in the coming round: one of the round's declared channels."""

    def init(self, block: Block, board: Billboard) -> States:
        """Return the tasks' private state."""

    def send(self, states: States, block: Block, board: Billboard) -> tuple[NDArray[Any], States]:
        """Take in the board, do this round's local work, return raw messages and new states."""

    def digest(self, release: Release, board: Billboard) -> Public:
        """Turn a release into the board's next public arrays."""

    def finish(self, states: States, block: Block, board: Billboard) -> States:
        """Return the tasks' models: private, local, free."""
