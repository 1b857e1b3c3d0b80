r"""LocatedFeatures: where features are in their bounds, found by a private search before weights are shared.

Weights that tasks tell each other are those on public columns. If the bounds of a column are ten times too
wide, or its values all near one end of them, slopes are ten times as long, and mixed up with the intercept:
clips and noise then hide what tasks have in common. The algorithm inside works on columns less a public
center, over a public unit, and its models are put back into the codebook's units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithm import Algorithm
from cloister.algorithms.bin_search import Search
from cloister.algorithms.search_first import SearchFirst
from cloister.arrays import Floats, States
from cloister.earlier import EarlierPrior
from cloister.errors import PlanError
from cloister.population import Population
from cloister.rows import ColumnLocation, Location

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.tasks import Block

__all__ = ["EVEN_IN_ALL", "EVEN_IN_HALF", "LocatedFeatures"]

#: Typical distances in a unit that values which are spread evenly fill, and fill half of.
EVEN_IN_ALL, EVEN_IN_HALF = math.sqrt(3), 2 * math.sqrt(3)


@dataclass(frozen=True)
class LocatedFeatures(SearchFirst):
    r"""Any algorithm of linear models, with columns re-centred and re-scaled by a private search.

    Parameters
    ----------
    algorithm : Algorithm
        What tasks do together; its targets are numbers, its models have `coef`, and column 0 of its rows is
        an intercept. `Located` goes around all of it: targets are found first.
    columns : tuple of int
        The columns to look for: numbers between public bounds. Indicators have nothing to be found.
    intercept : float, optional
        The constant in column 0, which the bounds of all columns are multiples of; :math:`1/\sqrt d` by
        default.
    reach : float
        How many typical distances from its center a column's new unit is. By default values that are spread
        evenly fill half of it, which suits priors; what takes few steps wants columns that fill all of it,
        :math:`\sqrt 3`.

    Privacy
    -------
    In each of three rounds a task says, for each of k columns, which of 32 public bins holds the mean of its
    own rows, or the logarithm of their typical distance from the center found: k one-hot vectors over
    :math:`\sqrt k`, one message without negative numbers and of norm 1 at most. The l2 sensitivity is 1
    (zero-out) or :math:`\sqrt 2` (replace: it leaves one bin of every column and enters another), whatever k
    is. What is posted follows from the noisy counts alone. The three rounds have at most a tenth of the
    squared budget; if all tasks in one bin of every column could not be heard, next to nothing.

    Notes
    -----
    A column is changed only if both its place and its spread stood out of the noise, and is never made
    coarser: its unit is 1 at most. Rows that are longer than 1 in the new units are made shorter at home, all
    of a task's rows and targets by one factor, which leaves its weights what they are.

    Examples
    --------
    >>> from cloister import Plan, Tasks, run
    >>> from cloister.algorithms import SharedPrior
    >>> from cloister.learners import Regression
    >>> rng = np.random.default_rng(0)
    >>> age = -0.8 + 0.1 * rng.uniform(-1, 1, (300, 8))  # a tenth of the bounds, near their lower end
    >>> X = np.stack([np.ones((300, 8)), age], axis=2) / np.sqrt(2)
    >>> tasks = Tasks.from_list(list(X), list(4 * (age + 0.8)))
    >>> plan = Plan(LocatedFeatures(SharedPrior(Regression(2)), columns=(1,)), n_tasks=300).calibrate(1.0)
    >>> board = run(plan, tasks, random_state=0).board
    >>> abs(float(board["features_center"][0]) + 0.8) < 0.1, float(board["features_unit"][0]) < 0.4
    (True, True)
    """

    algorithm: Algorithm
    columns: tuple[int, ...]
    intercept: float | None = None
    reach: float = EVEN_IN_HALF

    sought = "features"
    _name = "features"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = set(range(1, self._width))
        if not self.columns or not known.issuperset(self.columns) or len({*self.columns}) < len(self.columns):
            raise PlanError(
                f"columns must be some of 1 to {self._width - 1}, each once: column 0 is the intercept. Got "
                f"{self.columns}."
            )
        if not 0 < self.reach < math.inf:
            raise PlanError(f"reach must be > 0 and finite. Got {self.reach}.")
        known_places = self.start_from.features if self.start_from is not None else ()
        if len(known_places) not in (0, len(self.columns)):
            raise PlanError(
                f"The earlier board has looked for {len(known_places)} columns, and this plan for "
                f"{len(self.columns)}. Start from a run with the same codebook."
            )

    def around(self, inner: Algorithm) -> LocatedFeatures:
        return replace(self, algorithm=inner)

    @property
    def _reach(self) -> float:
        return self.reach

    @property
    def _width(self) -> int:
        (width,) = self.algorithm.rows.features  # type: ignore[union-attr, misc]
        return width

    @property
    def _constant(self) -> float:
        return self.intercept or 1 / math.sqrt(self._width)

    @property
    def _shape(self) -> tuple[int, ...]:
        return (len(self.columns),)

    @property
    def _known(self) -> list[Search] | None:
        earlier = self.start_from
        if earlier is None:
            return None
        known = [Search(center, unit, found=2) for center, unit in earlier.features]
        return known or [Search()] * len(self.columns)

    def prior_on(self, board: BoardView) -> EarlierPrior:
        places = zip(*(values.tolist() for values in self._found(board)), strict=True)
        return replace(self.algorithm.prior_on(self._inner(board)), features=tuple(places))

    def location(self, board: BoardView) -> Location:
        found = zip(self.columns, *(values.tolist() for values in self._found(board)), strict=True)
        columns = (ColumnLocation(*one) for one in found)
        return Location(0.0, 1.0, False, 0, tuple(one for one in columns if (one.center, one.unit) != (0, 1)))

    def population(self, board: BoardView) -> Population | None:
        found = self.algorithm.population(self._inner(board))
        return None if found is None else found.turned(self._way(board))

    def newcomer(self, board: BoardView) -> States:
        return self._to_codebook(self.algorithm.newcomer(self._inner(board)), board)

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        relative, lengths = self._shortened(block, board)
        inside = self._inside(states, relative, board)
        models = self._to_codebook(self.algorithm.finish(inside, relative, self._inner(board)), board)
        return models | {"noise": models["noise"] * lengths**2} if "noise" in models else models

    def _found(self, board: BoardView) -> tuple[Floats, Floats]:
        """Return centers and units of all columns that are looked for: of those found, what was found."""
        found = board["features_found"] == 2
        return np.where(found, board["features_center"], 0.0), np.where(found, board["features_unit"], 1.0)

    def _way(self, board: BoardView) -> Floats:
        """Return the matrix that turns weights on new columns into weights on the codebook's."""
        (center, unit), columns = self._found(board), list(self.columns)
        way = np.eye(self._width)
        way[columns, columns] = 1 / unit
        way[0, columns] = -center / unit
        return way

    def _to_codebook(self, models: States, board: BoardView) -> States:
        way, turned = self._way(board), dict(models)
        for name in ("coef", "alone", "shared", "own"):
            if name in models:
                turned[name] = models[name] @ way.T
        if "covariance" in models:
            turned["covariance"] = way @ models["covariance"] @ way.T
        return turned

    def _places(self, block: Block) -> Floats:
        return self._average(block, self._columns(block))

    def _squares(self, block: Block, centers: Floats) -> Floats:
        with np.errstate(invalid="ignore", over="ignore"):
            return self._average(block, np.square(self._columns(block) - centers))

    def _columns(self, block: Block) -> Floats:
        first, last = self.columns[0], self.columns[-1]
        side_by_side = self.columns == tuple(range(first, last + 1))  # a slice is not copied
        X = block.X[:, :, first : last + 1] if side_by_side else block.X[:, :, self.columns]
        return np.asarray(X / self._constant)

    def _average(self, block: Block, values: Floats) -> Floats:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):  # no rows, no number
            values = np.where((block.weight > 0)[:, :, None], values, 0.0)
            sums = (block.weight[:, None, :] @ values)[:, 0]
            return np.asarray(sums / block.weight.sum(axis=1)[:, None])

    def _relative(self, block: Block, board: BoardView) -> Block:
        return self._shortened(block, board)[0]

    def _shortened(self, block: Block, board: BoardView) -> tuple[Block, Floats]:
        """Return rows on the new columns, each task's over the length of its longest, and these lengths.

        Rows are the very same where nothing was found; padding is left at zero.
        """
        center, unit = np.zeros(self._width), np.ones(self._width)
        center[list(self.columns)], unit[list(self.columns)] = self._found(board)
        if not center.any() and np.all(unit == 1):
            return block, np.ones(len(block))
        with np.errstate(invalid="ignore", over="ignore"):
            X = block.X - self._constant * center
            X /= unit
        X[block.weight <= 0] = 0.0
        length = _lengths(X)
        X /= length[:, None, None]
        return replace(block, X=X, y=block.y / length[:, None]), length


def _lengths(X: Floats) -> Floats:
    """Return the length of each task's longest row, or 1 if that is longer."""
    with np.errstate(invalid="ignore", over="ignore"):
        length = np.sqrt(np.square(X).sum(axis=2).max(axis=1, initial=1.0))
    return np.where(np.isfinite(length), length, 1.0)
