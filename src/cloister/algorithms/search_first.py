"""What wrappers have in common that search for numbers of the tasks before the algorithm inside begins."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from cloister.algorithm import Algorithm, Budget, Wrapper
from cloister.algorithms.bin_search import (
    BINS,
    PLACES,
    ROUNDS,
    Search,
    bins,
    look_closer,
    measure_spread,
    octaves,
    one_hot,
    search_share,
    threshold,
)
from cloister.arrays import Array, Floats, Public, States
from cloister.channel import Absolute, Channel, Round
from cloister.errors import PlanError
from cloister.rows import Target

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView, Release
    from cloister.tasks import Block

__all__ = ["InnerBoard", "SearchFirst"]

T = TypeVar("T")


class SearchFirst(Wrapper):
    """An algorithm whose tasks first say where some numbers of theirs are, and how far they spread.

    The algorithm inside begins when that is on the board, on rows that are relative to it.
    """

    algorithm: Algorithm

    #: What is looked for, in a word for people.
    sought: ClassVar[str]
    #: What its public arrays begin with, and its private state is called.
    _name: ClassVar[str]

    def __post_init__(self) -> None:
        rows = self.algorithm.rows if isinstance(self.algorithm, Algorithm) else None
        if rows is None or rows.target is not Target.NUMBER or len(rows.features or ()) != 1:
            raise PlanError(
                f"{type(self).__name__} needs an algorithm of linear models whose targets are numbers. "
                f"Got {type(self.algorithm).__name__}."
            )

    @property
    def inner(self) -> Algorithm:
        return self.algorithm

    @property
    def spoken_name(self) -> str:
        """Its name for those who do not read code: that of what comes after all searches, and these.

        Examples
        --------
        >>> from cloister.algorithms import Located, SharedPrior
        >>> from cloister.learners import Regression
        >>> print(Located(SharedPrior(Regression(3))).spoken_name)
        shared-prior, after a private search for targets
        """
        sought, algorithm = [self.sought], self.algorithm
        while isinstance(algorithm, SearchFirst):
            sought.append(algorithm.sought)
            algorithm = algorithm.algorithm
        return f"{algorithm.spoken_name}, after a private search for {' and '.join(sought)}"

    @property
    def network(self) -> None:
        """None: rows are made relative in NumPy."""

    @property
    @abstractmethod
    def _shape(self) -> tuple[int, ...]:
        """Shape of the numbers that are looked for: () for one."""

    @property
    @abstractmethod
    def _reach(self) -> float:
        """How many typical distances from the center the public unit is."""

    @property
    @abstractmethod
    def _known(self) -> list[Search] | None:
        """What an earlier board has found, which nobody is asked for again; None if there is none."""

    @abstractmethod
    def _places(self, block: Block) -> Floats:
        """Return each task's own numbers, (tasks, numbers), in [-1, 1] by their public bounds."""

    @abstractmethod
    def _squares(self, block: Block, centers: Floats) -> Floats:
        """Return the mean squared distance of its rows' numbers from the centers, (tasks, numbers)."""

    @abstractmethod
    def _relative(self, block: Block, board: BoardView) -> Block:
        """Return the rows as the algorithm inside is to see them."""

    # Public: the search, and what it found.

    @property
    def _numbers(self) -> int:
        return math.prod(self._shape)

    @property
    def _channel(self) -> Channel:
        return Channel(BINS * self._numbers, 1.0, Absolute())

    @property
    def _rounds(self) -> int:
        """Rounds of the search: none if an earlier board has said it, which all else there is relative to."""
        return ROUNDS if self._known is None else 0

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        if not self._rounds:
            return self.algorithm.schedule(n_tasks, budget)
        share = search_share(n_tasks, budget.mu, self._numbers)
        rest = replace(budget, mu=math.sqrt(1 - share) * budget.mu)
        inner = self.algorithm.schedule(n_tasks, rest)
        search = (Round(share / ROUNDS, (self._channel,)),) * ROUNDS
        return (*search, *(Round((1 - share) * one.share, one.channels) for one in inner))

    def start(self) -> Public:
        known = self._known or [Search()] * self._numbers
        return self._posted(known) | dict(self.algorithm.start())

    def channel(self, board: BoardView) -> Channel:
        return self._channel if board.rounds < self._rounds else self.algorithm.channel(self._inner(board))

    def update(self, release: Release, board: BoardView) -> Public:
        posted = {name: board[name] for name in self._names}
        if board.rounds >= self._rounds:
            return posted | dict(self.algorithm.update(release, self._inner(board)))
        numbers, root = self._numbers, math.sqrt(self._numbers)
        counts, noise = root * release.value.reshape(numbers, BINS), root * release.noise
        if threshold(numbers) * noise > release.denominator:  # all tasks in one bin could not be heard
            return posted
        searches = zip(self._searches(board), counts, strict=True)
        if board.rounds < PLACES:
            return posted | self._posted([look_closer(one, v, noise, numbers) for one, v in searches])
        return posted | self._posted(
            [measure_spread(one, v, noise, self._reach, numbers) for one, v in searches]
        )

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """What is posted, by name."""
        return tuple(self.start())

    def _posted(self, searches: list[Search]) -> Public:
        """Return public arrays of what was found, each of the numbers' shape and its own."""
        found = {}
        for item in fields(Search):
            values = np.array([getattr(one, item.name) for one in searches])
            found[f"{self._name}_{item.name}"] = values.reshape((*self._shape, *values.shape[1:]))
        return found

    def _searches(self, board: BoardView) -> list[Search]:
        columns = [
            board[f"{self._name}_{item.name}"].reshape(self._numbers, *shape)
            for item, shape in zip(fields(Search), ((), (), (), (2,), (BINS,), ()), strict=True)
        ]
        return [
            Search(float(center), float(unit), int(found), between, counts, float(noise))
            for center, unit, found, between, counts, noise in zip(*columns, strict=True)
        ]

    def _inner(self, board: BoardView) -> BoardView:
        return InnerBoard(board, self._rounds)

    # Private: which bins, and the algorithm inside on relative rows.

    def init(self, block: Block, board: BoardView) -> States:
        """Make room for the states of the algorithm inside, if any, which begins when the search is over."""
        one = self.algorithm.init(block.take([0]), self._inner(board))
        if not one:
            return {}
        room = {
            name: np.broadcast_to(np.zeros((), array.dtype), (len(block), *array.shape[1:]))
            for name, array in one.items()
        }
        return room | {self._name: np.zeros(len(block), dtype=bool)}

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        if board.rounds < self._rounds:
            return one_hot(self._asked(block, board), np.any(block.weight > 0, axis=1)), states
        rows = block if self.summarized(states) else self._relative(block, board)
        messages, states = self.algorithm.send(self._inside(states, rows, board), rows, self._inner(board))
        return messages, states | {self._name: np.ones(len(block), dtype=bool)} if states else {}

    def summarized(self, states: States) -> bool:
        return bool(states) and bool(states[self._name].all()) and self.algorithm.summarized(states)

    def _asked(self, block: Block, board: BoardView) -> Floats:
        """Return the bin of each of the tasks' numbers in the coming round, (tasks, numbers)."""
        low, high = board[f"{self._name}_between"].reshape(self._numbers, 2).T
        if board.rounds < PLACES:
            return bins(self._places(block), low, high)
        centers = board[f"{self._name}_center"].reshape(self._numbers)
        return octaves(self._squares(block, centers), low, high)

    def _inside(self, states: States, rows: Block, board: BoardView) -> States:
        """Return the states of the algorithm inside, begun where they were not."""
        if not states:
            return {}
        begun, inside = states[self._name], {name: a for name, a in states.items() if name != self._name}
        if begun.all():
            return inside
        fresh = self.algorithm.init(rows, self._inner(board))
        if not begun.any():
            return fresh
        return {
            name: np.where(begun.reshape(-1, *[1] * (a.ndim - 1)), a, fresh[name])
            for name, a in inside.items()
        }


@dataclass(frozen=True, eq=False, repr=False)
class InnerBoard:
    """The board without the search's rounds, as the algorithm inside expects it."""

    board: BoardView
    search: int

    @property
    def plan(self) -> str:
        return self.board.plan

    @property
    def capacity(self) -> int:
        return self.board.capacity - self.search

    @property
    def rounds(self) -> int:
        return self.board.rounds - self.search

    @property
    def releases(self) -> Sequence[Release]:
        return self.board.releases[self.search :]

    def __getitem__(self, name: str) -> Array:
        return self.board[name]

    def __contains__(self, name: str) -> bool:
        return name in self.board

    def before(self, round: int) -> InnerBoard:
        return InnerBoard(self.board.before(round + self.search), self.search)

    def derive(self, function: Callable[..., T], *public: Hashable) -> T:
        found: T = self.board.derive(_derive_inside, self.search, function, public)
        return found


def _derive_inside(
    search: int, function: Callable[..., T], public: Sequence[Hashable], board: BoardView
) -> T:
    return function(*public, InnerBoard(board, search))
