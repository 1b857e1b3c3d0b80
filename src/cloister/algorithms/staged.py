"""Algorithms of several stages, in a list that stands in one place.

Where a stage begins and ends is public. Stages that search for units come first; all others get rows in the
units that were found, and see the board from there on.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from cloister.algorithms.locate import Locate
from cloister.algorithms.stages import PartOfBoard, Stage, UnitSearch
from cloister.core.arrays import Array, Public, States
from cloister.core.channel import Channel, Round
from cloister.core.errors import PlanError
from cloister.core.findings import EarlierPrior, Findings, Location, Population
from cloister.core.roster import Groups
from cloister.core.spec import DataSpec
from cloister.core.tasks import Block
from cloister.learners.home import Home, Units
from cloister.plan.algorithm import Algorithm, Budget, name_in_words

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


class Staged(Algorithm):
    """An algorithm that is a list of stages: searches for units, rounds in these, a solve at home."""

    searches_itself = True

    #: What to search for first, if anything.
    locate: Locate | None

    @property
    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """All stages in their order: those of `searches` first."""

    @abstractmethod
    def prepare(self, home: Home, board: BoardView) -> States:
        """Return the tasks' first state, when units are known."""

    @abstractmethod
    def solve(self, home: Home, board: BoardView) -> States:
        """Return the tasks' models, in the units that were found."""

    @property
    def searches(self) -> tuple[UnitSearch, ...]:
        """The stages that search for units."""
        return () if self.locate is None else self.locate.searches(self.rows, self.start_from)

    def check_searches(self) -> None:
        """Refuse to search what has nothing to be found; for `__post_init__`."""
        if self.locate is not None:
            self.locate.check(self.rows, self.start_from)

    def units(self, board: BoardView) -> Units | None:
        """Return the units that a board has found; None for the codebook's."""
        return None if self.locate is None else self.locate.units(self.rows, board)

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        searches = [stage for stage in self._stages if stage.finds_units]
        others = [stage for stage in self._stages if not stage.finds_units]
        return tuple(_divided(searches, others, n_tasks, budget))

    def start(self) -> Public:
        return {name: array for stage in self._stages for name, array in stage.start().items()}

    def channel(self, board: BoardView) -> Channel:
        stage, part = self._at(board)
        return stage.channel(part)

    @property
    def plain_name(self) -> str:
        return self.after_searches(name_in_words(type(self)))

    def after_searches(self, name: str) -> str:
        """Return a name with what is searched for.

        Examples
        --------
        >>> from cloister.algorithms import Locate, SharedPrior
        >>> from cloister.learners import Regression
        >>> print(SharedPrior(Regression(3), locate=Locate()).plain_name)
        shared-prior, after a private search for targets
        """
        found = " and ".join(search.sought for search in self.searches)
        return f"{name}, after a private search for {found}" if found else name

    def findings(self, board: BoardView) -> Findings:
        return StagedFindings(self, board)

    def begins(self, capacity: int) -> int:
        return sum(stage.length or 0 for stage in self._stages if stage.finds_units)

    @property
    def audible_from(self) -> float:
        return max((search.audible_from for search in self.searches), default=0.0)

    def init(self, block: Block, board: BoardView) -> States:
        return self.prepare(self._home({}, block, board), self.main_part(board))

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        stage, part = self._at(board)
        home = Home(states, block) if stage.finds_units else self._home(states, block, board)
        return stage.message(home, part)

    def update(self, release: Release, board: BoardView) -> Public:
        stage, part = self._at(board)
        return {name: board[name] for name in self._names} | dict(stage.update(release, part))

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        home = self._home(states, block, board)
        return home.in_codebook(self.solve(home, self.main_part(board)))

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        return self.stages

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """What is posted, by name."""
        return tuple(self.start())

    def main_part(self, board: BoardView) -> BoardView:
        """Return the board from where units are known."""
        first = self.begins(board.capacity)
        return PartOfBoard(board, first) if first else board

    def rounds_of(self, kind: type[Stage], part: BoardView) -> range:
        """Return the rounds of a stage among those of `main_part`."""
        first, others = 0, sum(stage.length or 0 for stage in self._stages if not stage.finds_units)
        for stage in self._stages:
            length = part.capacity - others if stage.length is None else stage.length
            if isinstance(stage, kind):
                return range(first, first + length)
            first += 0 if stage.finds_units else length
        return range(first, first)

    def _home(self, states: States, block: Block, board: BoardView) -> Home:
        return Home(states, block, self.units(board))

    def _at(self, board: BoardView) -> tuple[Stage, BoardView]:
        """Return the stage of the coming round, and its part of the board."""
        others = sum(stage.length or 0 for stage in self._stages)
        first = 0
        for stage in self._stages:
            length = board.capacity - others if stage.length is None else stage.length
            if board.rounds < first + length:
                return stage, PartOfBoard(board, first) if stage.finds_units else self.main_part(board)
            first += length
        raise ValueError("All rounds are over.")


class Around(Staged):
    """An algorithm whose rounds are those of another, with more before or after."""

    algorithm: Algorithm

    @property
    def rows(self) -> DataSpec | None:
        return self.algorithm.rows

    @property
    def plain_name(self) -> str:
        return self.after_searches(f"{name_in_words(type(self))} ({self.algorithm.plain_name})")

    def inside(self, board: BoardView) -> BoardView:
        """Return the part of a board that the algorithm inside is on."""
        return self.main_part(board)

    def model_without_data(self, board: BoardView) -> States:
        units, models = self.units(board), self.algorithm.model_without_data(self.inside(board))
        return models if units is None else units.models(models)

    def findings(self, board: BoardView) -> Findings:
        return AroundFindings(self, board)

    def predict(self, models: States, X: Array) -> Array:
        return self.algorithm.predict(models, X)

    def losses(self, models: States, block: Block) -> Array | None:
        return self.algorithm.losses(models, block)

    @property
    def start_from(self) -> EarlierPrior | None:
        return self.algorithm.start_from

    @property
    def groups(self) -> Groups | None:
        return self.algorithm.groups

    def with_groups(self, groups: Groups) -> Algorithm:
        return replace(self, algorithm=self.algorithm.with_groups(groups))  # type: ignore[type-var]

    def check_searches(self) -> None:
        if self.algorithm.begins(LONG):
            raise PlanError(
                f"{type(self).__name__} searches for all that is inside. Write locate= there, and not inside."
            )
        super().check_searches()


#: A run that is longer than any search.
LONG = 1_000_000


@dataclass(frozen=True)
class Rescaled(Around):
    """Any algorithm of linear models, with targets and columns re-centred and re-scaled by a private search.

    Parameters
    ----------
    algorithm : Algorithm
        What tasks do together; its targets are numbers, in [-1, 1] by their public bounds, its models have
        `coef`, and column 0 of its rows is an intercept.
    locate : Locate
        What to search for, and its privacy.

    Examples
    --------
    >>> from cloister.algorithms import Locate, MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> Rescaled(MeanRegularized(LeastSquares(2)), Locate(columns=(1,))).plain_name
    'mean-regularized, after a private search for targets and features'
    """

    algorithm: Algorithm
    locate: Locate = field(default_factory=Locate)

    def __post_init__(self) -> None:
        if self.algorithm.searches_itself:  # one plan has one form, and so one fingerprint
            raise PlanError(
                f"{type(self.algorithm).__name__} searches by itself. Write locate= there, without Rescaled."
            )
        self.check_searches()

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (*self.searches, RoundsOf(self.algorithm))

    @property
    def plain_name(self) -> str:
        return self.after_searches(self.algorithm.plain_name)

    def prepare(self, home: Home, board: BoardView) -> States:
        return self.algorithm.init(home.rows, board)

    def solve(self, home: Home, board: BoardView) -> States:
        return self.algorithm.finish(home.states, home.rows, board)


@dataclass(frozen=True)
class RoundsOf(Stage):
    """The rounds of an algorithm, before so many of others."""

    algorithm: Algorithm
    after: int = 0

    length = None

    @property
    def about(self) -> str:  # type: ignore[override]
        return self.algorithm.plain_name

    def part(self, board: BoardView) -> BoardView:
        return PartOfBoard(board, 0, self.after) if self.after else board

    def rounds(self, n_tasks: int, budget: Budget, share: float) -> tuple[Round, ...]:
        return tuple(
            replace(one, share=share * one.share) for one in self.algorithm.schedule(n_tasks, budget)
        )

    def start(self) -> Public:
        return self.algorithm.start()

    def channel(self, board: BoardView) -> Channel:
        return self.algorithm.channel(self.part(board))

    def message(self, home: Home, board: BoardView) -> tuple[Array, States]:
        return self.algorithm.send(home.states, home.rows, self.part(board))

    def update(self, release: Release, board: BoardView) -> Public:
        return self.algorithm.update(release, self.part(board))


def _divided(
    searches: Sequence[Stage], others: Sequence[Stage], n_tasks: int, budget: Budget
) -> Iterator[Round]:
    """Give each search its share of what earlier ones leave, and the others theirs of what then is left."""
    if searches:
        search, *later = searches
        share = search.share(n_tasks, budget) or 0.0
        yield from _of_stage(search, n_tasks, budget, share)
        rest = replace(budget, mu=math.sqrt(1 - share) * budget.mu)
        for one in _divided(later, others, n_tasks, rest):
            yield replace(one, share=(1 - share) * one.share)
        return
    shares = [stage.share(n_tasks, budget) for stage in others]
    left = 1 - math.fsum(share for share in shares if share is not None)
    if left < 0 or shares.count(None) > 1:
        raise PlanError(
            f"Stages must share one budget: one of them may take what the others leave, {left:g} of it here. "
            f"Got shares {shares}."
        )
    rest = replace(budget, mu=math.sqrt(left) * budget.mu)
    for stage, own in zip(others, shares, strict=True):
        yield from _of_stage(stage, n_tasks, rest, left if own is None else own)


def _of_stage(stage: Stage, n_tasks: int, budget: Budget, share: float) -> Iterator[Round]:
    for one in stage.rounds(n_tasks, budget, share):
        yield replace(one, about=one.about or stage.about)


class StagedFindings(Findings):
    """Where a board says that rows are."""

    def __init__(self, algorithm: Staged, board: BoardView) -> None:
        self.algorithm, self.board = algorithm, board

    @property
    def location(self) -> Location | None:
        locate = self.algorithm.locate
        rounds = next((stage.length or 0 for stage in self.algorithm.searches), 0)
        return None if locate is None else locate.location(self.board, rounds)

    def relative(self, earlier: EarlierPrior | None) -> EarlierPrior | None:
        """Return what a later plan starts from, with the units that it is in."""
        locate = self.algorithm.locate
        return earlier if earlier is None or locate is None else locate.added(earlier, self.board)


class AroundFindings(StagedFindings):
    """What a board says of the algorithm inside, in the codebook's units."""

    algorithm: Around

    @property
    def _inside(self) -> Findings:
        return self.algorithm.algorithm.findings(self.algorithm.inside(self.board))

    @property
    def population(self) -> Population | None:
        found, units = self._inside.population, self.algorithm.units(self.board)
        return found if found is None or units is None else units.population(found)

    @property
    def prior(self) -> EarlierPrior | None:
        return self.relative(self._inside.prior)
