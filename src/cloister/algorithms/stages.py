"""A stage of an algorithm: some rounds about one thing, and the part of a board that they are on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from cloister.core.arrays import Array, Public, States
from cloister.core.channel import Channel, Round
from cloister.learners.home import Home
from cloister.plan.algorithm import Budget

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release

T = TypeVar("T")


class Stage(ABC):
    """Some rounds about one thing. All of it is public, but for `message`.

    The board that it gets begins with the first round after the searches; that of a search, with its own.
    """

    #: What it is about, in a few words for those who read a plan.
    about: str
    #: How many rounds it has; None for as many as `rounds` says.
    length: int | None = 1
    #: Whether it searches for units: it has a share of what earlier searches leave, and no state.
    finds_units: ClassVar[bool] = False

    def share(self, n_tasks: int, budget: Budget) -> float | None:
        """Return its share of the squared budget; None for all that the others leave."""
        return None

    @abstractmethod
    def rounds(self, n_tasks: int, budget: Budget, share: float) -> tuple[Round, ...]:
        """Return its rounds, which have this share together; `budget` is what they have."""

    @abstractmethod
    def start(self) -> Public:
        """Return what the board says of it before anyone speaks."""

    @abstractmethod
    def channel(self, board: BoardView) -> Channel:
        """Return what may leave a task in the coming round."""

    @abstractmethod
    def message(self, home: Home, board: BoardView) -> tuple[Array, States]:
        """Return raw messages, and what tasks know from now on."""

    @abstractmethod
    def update(self, release: Release, board: BoardView) -> Public:
        """Return what a release changes on the board."""


class UnitSearch(Stage):
    """A search for units, with what is sought in a word."""

    finds_units = True
    sought: ClassVar[str]

    @property
    def audible_from(self) -> float:
        """From what product of tasks and budget on it can find targets; 0 if it needs none."""
        return 0.0


@dataclass(frozen=True, eq=False, repr=False)
class PartOfBoard:
    """A board from one round on, without the last few: the only view of it that there is.

    Parameters
    ----------
    board : BoardView
        The whole.
    first : int
        How many rounds come before.
    after : int
        How many come after; `board` may have those already.
    """

    board: BoardView
    first: int
    after: int = 0

    @property
    def plan(self) -> str:
        return self.board.plan

    @property
    def capacity(self) -> int:
        return self.board.capacity - self.first - self.after

    @property
    def rounds(self) -> int:
        return min(self.board.rounds - self.first, self.capacity)

    @property
    def releases(self) -> Sequence[Release]:
        return self.board.releases[self.first : self.first + self.capacity]

    def __getitem__(self, name: str) -> Array:
        return self.board[name]

    def __contains__(self, name: str) -> bool:
        return name in self.board

    def before(self, round: int) -> PartOfBoard:
        return PartOfBoard(self.board.before(round + self.first), self.first, self.after)

    def derive(self, function: Callable[..., T], *public: Hashable) -> T:
        found: T = self.board.derive(_derived, self.first, self.after, function, public)
        return found


def _derived(
    first: int, after: int, function: Callable[..., T], public: Sequence[Hashable], board: BoardView
) -> T:
    return function(*public, PartOfBoard(board, first, after))
