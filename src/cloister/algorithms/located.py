r"""Located: where the target is and how wide it spreads, found by a private search before anything else.

A codebook may be wide: temperatures of 296 K in bounds of 0 to 1000. A private mean of targets has an error
that grows with the width; a *search* does not. In each round every task says in which of a few public bins
its own number lies, as a one-hot vector; the next round looks closer at the bins that were heard. Then the
algorithm inside works on targets less the public center, over the public unit, and its models are put back
into the codebook's units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from cloister.algorithm import Algorithm, Budget, Wrapper
from cloister.arrays import Array, Floats, Public, States
from cloister.channel import Absolute, Channel, Round
from cloister.earlier import EarlierPrior
from cloister.errors import PlanError
from cloister.population import Population
from cloister.rows import Location, Target

if TYPE_CHECKING:
    from cloister.board.billboard import BoardView, Release
    from cloister.tasks import Block

__all__ = ["Located"]

T = TypeVar("T")

#: Rounds that look for the place, each with so many bins; one more asks for the spread, in powers of two.
PLACES, BINS = 2, 32
ROUNDS = PLACES + 1
#: A window of bins is heard if it stands so many deviations of noise out; noise alone does in 2 % of rounds.
HEARD = 3.5
#: Most of the squared budget that the search may cost, and where all tasks in one bin would stand, in noise
#: deviations: more would be wasted, and less than `HEARD` is not worth asking.
MOST, CLEAR = 0.1, 15.0
#: The public unit is so many typical distances from the center: most targets are within it.
REACH = 3.0


@dataclass(frozen=True)
class Located(Wrapper):
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

    def __post_init__(self) -> None:
        rows = self.algorithm.rows if isinstance(self.algorithm, Algorithm) else None
        if rows is None or rows.target is not Target.NUMBER or len(rows.features or ()) != 1:
            raise PlanError(
                "Located needs an algorithm of linear models whose targets are numbers. "
                f"Got {type(self.algorithm).__name__}."
            )

    @property
    def inner(self) -> Algorithm:
        return self.algorithm

    def around(self, inner: Algorithm) -> Located:
        return replace(self, algorithm=inner)

    @property
    def network(self) -> None:
        """None: targets are re-centred in NumPy."""

    # Public: the search, and what it found.

    @property
    def _rounds(self) -> int:
        """Rounds of the search: none if an earlier board has said it, which all else there is relative to."""
        return ROUNDS if self.start_from is None else 0

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        if not self._rounds:
            return self.algorithm.schedule(n_tasks, budget)
        share = search_share(n_tasks, budget.mu)
        rest = replace(budget, mu=math.sqrt(1 - share) * budget.mu)
        inner = self.algorithm.schedule(n_tasks, rest)
        search = (Round(share / ROUNDS, (_CHANNEL,)),) * ROUNDS
        return (*search, *(Round((1 - share) * one.share, one.channels) for one in inner))

    def start(self) -> Public:
        earlier = self.start_from or EarlierPrior((), 0.0)
        search = {
            "located_center": np.array(earlier.center),
            "located_unit": np.array(earlier.unit),
            "located_found": np.array(earlier.found),
            "located_between": np.array([-1.0, 1.0]),
            "located_counts": np.zeros(BINS),
            "located_noise": np.zeros(()),
        }
        return search | dict(self.algorithm.start())

    def prior_on(self, board: BoardView) -> EarlierPrior:
        return replace(
            self.algorithm.prior_on(self._inner(board)),
            center=float(board["located_center"]),
            unit=float(board["located_unit"]),
            found=int(board["located_found"]),
        )

    def location(self, board: BoardView) -> Location:
        center, unit, found = (board[f"located_{name}"] for name in ("center", "unit", "found"))
        return Location(float(center), float(unit), bool(found), self._rounds)

    def population(self, board: BoardView) -> Population | None:
        found = self.algorithm.population(self._inner(board))
        if found is None:
            return None
        mean = found.mean
        if mean is not None:
            mean = _to_codebook({"coef": mean[None]}, np.full(1, self._constant), board)["coef"][0]
        return found.scaled(float(board["located_unit"]), mean)

    def _inner(self, board: BoardView) -> BoardView:
        return _InnerBoard(board, self._rounds)

    def channel(self, board: BoardView) -> Channel:
        return _CHANNEL if board.rounds < self._rounds else self.algorithm.channel(self._inner(board))

    def update(self, release: Release, board: BoardView) -> Public:
        posted = {name: board[name] for name in self.start()}
        if board.rounds >= self._rounds:
            return posted | dict(self.algorithm.update(release, self._inner(board)))
        if HEARD * release.noise > release.denominator:  # all tasks in one bin could not be heard
            return posted
        look = _place if board.rounds < PLACES else _spread
        return posted | look(release.value, release.noise, board)

    # Private: which bin, and the algorithm inside on located targets.

    def init(self, block: Block, board: BoardView) -> States:
        """Make room for the states of the algorithm inside, if any, which begins when targets are located."""
        one = self.algorithm.init(block.take([0]), self._inner(board))
        if not one:
            return {}
        room = {
            name: np.broadcast_to(np.zeros((), array.dtype), (len(block), *array.shape[1:]))
            for name, array in one.items()
        }
        return room | {"located": np.zeros(len(block), dtype=bool)}

    def _inside(self, states: States, located: Block, board: BoardView) -> States:
        """Return the states of the algorithm inside, begun where they were not."""
        if not states:
            return {}
        begun, inside = states["located"], {name: a for name, a in states.items() if name != "located"}
        if begun.all():
            return inside
        fresh = self.algorithm.init(located, self._inner(board))
        if not begun.any():
            return fresh
        return {
            name: np.where(begun.reshape(-1, *[1] * (a.ndim - 1)), a, fresh[name])
            for name, a in inside.items()
        }

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        if board.rounds < min(PLACES, self._rounds):
            return _one_hot(_bins(_medians(block), *board["located_between"]), block), states
        if board.rounds < self._rounds:
            return _one_hot(_octaves(block, float(board["located_center"])), block), states
        located = _located(block, board)
        states = self._inside(states, located, board)
        messages, states = self.algorithm.send(states, located, self._inner(board))
        return messages, states | {"located": np.ones(len(block), dtype=bool)} if states else {}

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        located = _located(block, board)
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


def _to_codebook(models: States, constant: Floats, board: BoardView) -> States:
    """Return models of the targets in the codebook's units, for rows with such a constant in front."""
    unit, center = float(board["located_unit"]), float(board["located_center"]) / constant
    weights = {name: unit * models[name] for name in ("coef", "alone", "shared", "own") if name in models}
    for name in weights.keys() - {"own"}:  # a part of the weights: what is beside it has the center
        weights[name][:, 0] += center
    squares = {name: unit**2 * models[name] for name in ("covariance", "noise") if name in models}
    return models | weights | squares


_CHANNEL = Channel(BINS, 1.0, Absolute())
_TIE = 1e-9


def search_share(n_tasks: int, mu: float) -> float:
    """Return the search's share of the squared budget: as much as is needed, a tenth at most.

    All tasks in one bin stand ``n_tasks * mu * sqrt(share / rounds / 2)`` deviations out of the noise.
    """
    if math.isinf(mu):
        return MOST
    stands = n_tasks * mu * math.sqrt(MOST / ROUNDS / 2)
    if stands < HEARD:
        return 1e-6  # nothing could be heard: next to nothing is spent on it
    return MOST * min(1.0, (CLEAR / stands) ** 2)


def _heard(counts: Floats, noise: float) -> tuple[int, int] | None:
    """Return the window of bins (its first, and the one after its last) that stands out of the noise most.

    Of windows that stand out alike it is the first of the narrowest, whatever the last bits of noise say.
    """
    best, window = HEARD, None
    for width in (1, 2, 4, 8):
        sums = np.convolve(counts, np.ones(width), mode="valid") / math.sqrt(width)
        at = int(np.argmax(sums > (1 - _TIE) * sums.max()))
        if sums[at] > (1 + _TIE) * best * max(noise, 1e-300):
            best, window = float(sums[at]) / max(noise, 1e-300), (at, at + width)
    return window


def _place(value: Floats, noise: float, board: BoardView) -> Public:
    """Look where most tasks are, and look closer there; if noise hides it ask the same again."""
    low, high = map(float, board["located_between"])
    counts, spent = board["located_counts"] + value, math.hypot(float(board["located_noise"]), noise)
    asked = {"located_counts": counts, "located_noise": np.array(spent)}
    window = _heard(counts, spent)
    if window is None:
        return asked
    first, last = window
    width = (high - low) / BINS
    around = slice(max(0, 2 * first - last), min(BINS, 2 * last - first))  # as much again on either side
    loud = np.where(counts[around] > spent, counts[around], 0.0)
    middles = low + width * (np.arange(BINS)[around] + 0.5)
    found = {
        "located_center": np.array(loud @ middles / loud.sum() if loud.any() else middles.mean()),
        "located_found": np.array(1),
    }
    if around.stop - around.start > BINS // 2:  # tasks are that far apart
        return asked | found
    between = np.array([low + width * around.start, low + width * around.stop])
    return found | {
        "located_between": between,
        "located_counts": np.zeros(BINS),
        "located_noise": np.zeros(()),
        "located_unit": np.array((between[1] - between[0]) / 2),
    }


def _spread(value: Floats, noise: float, board: BoardView) -> Public:
    """Take the typical distance from the center for a third of the unit, if it is heard."""
    window = _heard(value, noise)
    if window is None:
        return {}
    first, last = window
    loud = np.maximum(value[first:last], 0.0)
    octave = float(loud @ np.arange(first, last) / loud.sum())
    low, high = map(float, board["located_between"])
    typical = max(2.0**-octave, (high - low) / 2 / BINS)  # no less than a bin that was looked at
    return {"located_unit": np.array(min(1.0, REACH * typical)), "located_found": np.array(2)}


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


def _bins(values: Floats, low: float, high: float) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.clip(np.floor((values - low) * (BINS / (high - low))), 0, BINS - 1))


def _octaves(block: Block, center: float) -> Floats:
    """Return minus the binary logarithm of the targets' typical distance from the center, rounded."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        squares = np.where(block.weight > 0, np.square(block.y - center), 0.0)
        typical = (block.weight * squares).sum(axis=1) / block.weight.sum(axis=1)
        return np.asarray(np.clip(np.round(-0.5 * np.log2(typical)), 0, BINS - 1))


def _one_hot(places: Floats, block: Block) -> Floats:
    """Return a one in each task's own bin; none for a task without usable rows."""
    speaks = (block.weight > 0).any(axis=1) & np.isfinite(places)
    return np.asarray((places[:, None] == np.arange(BINS)) & speaks[:, None], dtype=np.float64)


def _located(block: Block, board: BoardView) -> Block:
    with np.errstate(invalid="ignore", over="ignore"):
        y = (block.y - float(board["located_center"])) / float(board["located_unit"])
    return replace(block, y=np.where(block.weight > 0, y, 0.0))


@dataclass(frozen=True, eq=False, repr=False)
class _InnerBoard:
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

    def before(self, round: int) -> _InnerBoard:
        return _InnerBoard(self.board.before(round + self.search), self.search)

    def derive(self, function: Callable[..., T], *public: Hashable) -> T:
        found: T = self.board.derive(_derive_inside, self.search, function, public)
        return found


def _derive_inside(
    search: int, function: Callable[..., T], public: Sequence[Hashable], board: BoardView
) -> T:
    return function(*public, _InnerBoard(board, search))
