r"""Located: where the target is and how wide it spreads, found by a private search before anything else.

A codebook may be wide: temperatures of 296 K in bounds of 0 to 1000. The algorithm inside works on targets
less the public center that a search has found (see `bin_search`), over the public unit, and its models are
put back into the codebook's units.
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
from cloister.population import Population
from cloister.rows import Location

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.tasks import Block

__all__ = ["Located"]


@dataclass(frozen=True)
class Located(SearchFirst):
    r"""Any algorithm of linear models, with targets re-centred and re-scaled by a private search.

    Parameters
    ----------
    algorithm : Algorithm
        What tasks do together; its targets are numbers, in [-1, 1] by their public bounds, its models have
        `coef`, and column 0 of its rows is an intercept.
    intercept : float, optional
        The constant in column 0, for models of tasks without rows; :math:`1/\sqrt d` by default.

    Privacy
    -------
    In each of three rounds a task says one-hot which of 32 public bins holds its own median, or the
    logarithm of its targets' typical distance from the center found. It is in one bin only, so the l2
    sensitivity is 1 (zero-out) or :math:`\sqrt 2` (replace: it leaves one bin and enters another). Which
    bins the next round has follows from the noisy counts alone. The three rounds have at most a tenth of
    the squared budget, and no more than is needed for so many tasks; all that comes later is relative to
    what the board says, so its price is the algorithm's.

    Notes
    -----
    All bins are alike, so the noise in a count is that of one bin, whatever the width: twice the width costs
    one bit more of the search. If no window of bins stands out of the noise the board says so (`found` 0),
    and targets stay as they are.

    Examples
    --------
    >>> from cloister import Plan, Tasks, run
    >>> from cloister.algorithms import SharedPrior
    >>> from cloister.learners import Regression
    >>> rng = np.random.default_rng(0)
    >>> y = -0.4 + 0.003 * rng.normal(size=(300, 8))  # a hundredth of the bounds, far from their middle
    >>> tasks = Tasks.from_list([np.ones((8, 1))] * 300, list(y))
    >>> plan = Plan(Located(SharedPrior(Regression(1))), n_tasks=300).calibrate(epsilon=1.0)
    >>> board = run(plan, tasks, random_state=0).board
    >>> abs(float(board["located_center"]) + 0.4) < 0.003, float(board["located_unit"]) < 0.03
    (True, True)
    """

    algorithm: Algorithm
    intercept: float | None = None

    sought = "targets"
    _name = "located"
    _shape = ()
    _reach = 3.0  # most targets are within it

    def around(self, inner: Algorithm) -> Located:
        return replace(self, algorithm=inner)

    @property
    def _known(self) -> list[Search] | None:
        earlier = self.start_from
        return None if earlier is None else [Search(earlier.center, earlier.unit, earlier.found)]

    def prior_on(self, board: BoardView) -> EarlierPrior:
        return replace(
            self.algorithm.prior_on(self._inner(board)),
            center=float(board["located_center"]),
            unit=float(board["located_unit"]),
            found=int(board["located_found"]),
        )

    def location(self, board: BoardView) -> Location:
        center, unit, found = (board[f"located_{name}"] for name in ("center", "unit", "found"))
        inside = self.algorithm.location(self._inner(board))
        columns = () if inside is None else inside.columns
        return Location(float(center), float(unit), bool(found), self._rounds, columns)

    def population(self, board: BoardView) -> Population | None:
        found = self.algorithm.population(self._inner(board))
        if found is None:
            return None
        mean = found.mean
        if mean is not None:
            mean = _to_codebook({"coef": mean[None]}, np.full(1, self._constant), board)["coef"][0]
        return found.scaled(float(board["located_unit"]), mean)

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        located = self._relative(block, board)
        states = self._inside(states, located, board)
        models = self.algorithm.finish(states, located, self._inner(board))
        with np.errstate(all="ignore"):  # data that are not finite count as no data
            total = block.weight.sum(axis=1)
            own = (block.weight * block.X[..., 0]).sum(axis=1) / np.where(total > 0, total, 1.0)
        return _to_codebook(models, np.where(np.isfinite(own) & (own != 0), own, self._constant), board)

    def newcomer(self, board: BoardView) -> States:
        models = self.algorithm.newcomer(self._inner(board))
        return _to_codebook(models, np.full(1, self._constant), board)

    @property
    def _constant(self) -> float:
        (dim,) = self.algorithm.rows.features  # type: ignore[union-attr, misc]
        return self.intercept or 1 / math.sqrt(dim)

    def _places(self, block: Block) -> Floats:
        return _medians(block)[:, None]

    def _squares(self, block: Block, centers: Floats) -> Floats:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            squares = np.where(block.weight > 0, np.square(block.y - centers), 0.0)
            return np.asarray((block.weight * squares).sum(axis=1) / block.weight.sum(axis=1))[:, None]

    def _relative(self, block: Block, board: BoardView) -> Block:
        with np.errstate(invalid="ignore", over="ignore"):
            y = (block.y - float(board["located_center"])) / float(board["located_unit"])
        return replace(block, y=np.where(block.weight > 0, y, 0.0))


def _to_codebook(models: States, constant: Floats, board: BoardView) -> States:
    """Return models of the targets in the codebook's units, for rows with such a constant in front."""
    unit, center = float(board["located_unit"]), float(board["located_center"]) / constant
    weights = {name: unit * models[name] for name in ("coef", "alone", "shared", "own") if name in models}
    for name in weights.keys() - {"own"}:  # a part of the weights: what is beside it has the center
        weights[name][:, 0] += center
    squares = {name: unit**2 * models[name] for name in ("covariance", "noise") if name in models}
    return models | weights | squares


def _medians(block: Block) -> Floats:
    """Return the weighted median of each task's targets (the lower of two), without padding."""
    if block.y.shape[1] == 0:
        return np.full(len(block), np.nan)
    values = np.where(block.weight > 0, block.y, np.inf)
    order = np.argsort(values, axis=1, kind="stable")
    with np.errstate(over="ignore"):
        reached = np.cumsum(np.take_along_axis(block.weight, order, axis=1), axis=1)
    middle = np.argmax(reached >= reached[:, -1:] / 2, axis=1)
    at = np.take_along_axis(order, middle[:, None], axis=1)
    return np.asarray(np.take_along_axis(values, at, axis=1)[:, 0])
