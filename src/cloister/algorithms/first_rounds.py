"""The board as an algorithm sees it whose wrapper asks for something more in the end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from cloister.arrays import Array

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView, Release

__all__ = ["FirstRounds"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class FirstRounds:
    """The board without its last round, which comes after those of the algorithm inside."""

    board: BoardView

    @property
    def plan(self) -> str:
        return self.board.plan

    @property
    def capacity(self) -> int:
        return self.board.capacity - 1

    @property
    def rounds(self) -> int:
        return min(self.board.rounds, self.capacity)

    @property
    def releases(self) -> Sequence[Release]:
        return self.board.releases[: self.capacity]

    def __getitem__(self, name: str) -> Array:
        return self.board[name]

    def __contains__(self, name: str) -> bool:
        return name in self.board

    def before(self, round: int) -> FirstRounds:
        return FirstRounds(self.board.before(round))

    def derive(self, function: Callable[..., T], *public: Hashable) -> T:
        found: T = self.board.derive(_derive_inside, function, public)
        return found


def _derive_inside(function: Callable[..., T], public: Sequence[Hashable], board: BoardView) -> T:
    return function(*public, FirstRounds(board))
