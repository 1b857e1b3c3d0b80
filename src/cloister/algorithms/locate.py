r"""Where numbers of the tasks are, and how far they spread: private searches over public bins.

In each round every task says in which of a few public bins its own number lies, as a one-hot vector; the next
round looks closer at the bins that stood out. All bins are alike, so the noise in a count does not know how
wide a bin is: twice the width costs one bit more of the search, where a mean's error would be twice as large.
What is made of noisy counts here is post-processing, hence free.

A codebook may be wide: temperatures of 296 K in bounds of 0 to 1000. If the bounds of a feature are ten times
too wide, or its values all near one end of them, slopes are ten times as long, and mixed up with the
intercept: clips and noise then hide what tasks have in common. What comes after is relative to what is found.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from cloister.algorithms.constants import SEARCH
from cloister.algorithms.stages import UnitSearch
from cloister.core.arrays import Array, Floats, Public, States
from cloister.core.channel import Channel, Round
from cloister.core.errors import PlanError
from cloister.core.findings import ColumnLocation, EarlierPrior, Location
from cloister.core.lifts import Absolute
from cloister.core.spec import DataSpec, Target
from cloister.learners.home import Home, Units
from cloister.learners.linear.home_constants import NUMBER
from cloister.plan.algorithm import Budget

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release

#: Rounds that look for the place, each with so many bins; one more asks for the spread, in powers of two.
PLACES, BINS = SEARCH.places, SEARCH.bins
ROUNDS = PLACES + 1
#: Most of the squared budget that the search may cost.
MOST = SEARCH.most

_TIE = 1e-9


@dataclass(frozen=True, eq=False)
class Search:
    """What a board says of the search for one number. Public.

    Attributes
    ----------
    center, unit : float
        Where it is, and the reach around it.
    found : int
        0 if neither stood out, 1 for the place, 2 for the spread as well.
    between : array of shape (2,)
        The ends of the bins that are asked for.
    counts, noise : array of shape (BINS,) and float
        The noisy number of tasks in each so far, and the deviation of the noise in a count.
    """

    center: float = 0.0
    unit: float = 1.0
    found: int = 0
    between: Floats = field(default_factory=lambda: np.array([-1.0, 1.0]))
    counts: Floats = field(default_factory=lambda: np.zeros(BINS))
    noise: float = 0.0


def threshold(numbers: int = 1) -> float:
    """Return how many deviations a window must stand out, where so many numbers are looked for at once."""
    return math.sqrt(SEARCH.significant**2 + 2 * math.log(numbers))


def most_deviations(n_tasks: int, mu: float, numbers: int = 1) -> float:
    """Return how many deviations all tasks in one bin stand out of the noise, at the largest share.

    That is ``n_tasks * mu * sqrt(share / rounds / 2 / numbers)``, as the numbers of a task share one message.
    """
    return n_tasks * mu * math.sqrt(MOST / ROUNDS / 2 / numbers)


def search_share(n_tasks: int, mu: float, numbers: int = 1) -> float:
    """Return the search's share of the squared budget: as much as is needed, a tenth at most."""
    if math.isinf(mu):
        return MOST
    stands = most_deviations(n_tasks, mu, numbers)
    if stands < threshold(numbers):
        return SEARCH.nothing  # nothing could stand out: next to nothing is spent on it
    return MOST * min(1.0, (SEARCH.clear / stands) ** 2)


def significant_window(
    counts: Floats, noise: float, least: float = SEARCH.significant
) -> tuple[int, int] | None:
    """Return the window of bins (its first, and the one after its last) that stands out from the noise most.

    None if none stands out by `least` deviations. Of windows that stand out alike it is the first of the
    narrowest, whatever the last bits of noise say.
    """
    best, window = least, None
    for width in (w for w in SEARCH.windows if w <= len(counts)):
        sums = np.convolve(counts, np.ones(width), mode="valid") / math.sqrt(width)
        at = int(np.argmax(sums > (1 - _TIE) * sums.max()))
        if sums[at] > (1 + _TIE) * best * max(noise, 1e-300):
            best, window = float(sums[at]) / max(noise, 1e-300), (at, at + width)
    return window


def look_closer(search: Search, value: Floats, noise: float, numbers: int = 1) -> Search:
    """Look where most tasks are, and look closer there; if noise hides it, in the same bins again."""
    low, high = map(float, search.between)
    counts, spent = search.counts + value, math.hypot(search.noise, noise)
    search = replace(search, counts=counts, noise=spent)
    window = significant_window(counts, spent, threshold(numbers))
    if window is None:
        return search
    first, last = window
    width = (high - low) / BINS
    around = slice(max(0, 2 * first - last), min(BINS, 2 * last - first))  # as much again on either side
    clear = np.where(counts[around] > spent, counts[around], 0.0)
    middles = low + width * (np.arange(BINS)[around] + 0.5)
    center = float(clear @ middles / clear.sum() if clear.any() else middles.mean())
    if around.stop - around.start > BINS // 2:  # tasks are that far apart
        return replace(search, center=center, found=1)
    between = np.array([low + width * around.start, low + width * around.stop])
    return Search(center, float(between[1] - between[0]) / 2, 1, between)


def measure_spread(search: Search, value: Floats, noise: float, reach: float, numbers: int = 1) -> Search:
    """Take for the unit so many typical distances from the center, if these stand out."""
    low, high = search.between
    finest = int(finest_octave(low, high))
    window = significant_window(
        value[: finest + 1], noise, SEARCH.spread if search.found else threshold(numbers)
    )
    if window is None:
        return search
    first, last = window
    clear = np.maximum(value[first:last], 0.0)
    octave = float(clear @ np.arange(first, last) / clear.sum())
    typical = max(2.0**-octave, float(high - low) / 2 / BINS)  # no less than a bin that was looked at
    return replace(search, unit=min(1.0, reach * typical), found=2)


def bins(values: Floats, low: Floats, high: Floats) -> Floats:
    """Return the bin, between two ends, that each value is in."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.clip(np.floor((values - low) * (BINS / (high - low))), 0, BINS - 1))


def finest_octave(low: Floats, high: Floats) -> Floats:
    """Return the last octave that counts: that of half a bin between two ends."""
    return np.asarray(np.clip(np.ceil(np.log2(2 * BINS / (high - low))), 0, BINS - 1))


def octaves(squares: Floats, low: Floats, high: Floats) -> Floats:
    """Return minus the binary logarithm of typical distances, rounded, from their mean squares.

    Shorter ones than half a bin between the two ends count as that.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.clip(np.round(-0.5 * np.log2(squares)), 0, finest_octave(low, high)))


def one_hot(places: Floats, speaks: NDArray[np.bool_]) -> Floats:
    r"""Return a one in the bin of each of a task's numbers, over the root of how many there are.

    Places have shape (tasks, numbers). A task that does not speak, or has no such number, is in no bin. What
    is returned has shape (tasks, numbers * BINS), no negative number, and norm 1 at most.
    """
    speaks = speaks[:, None] & np.isfinite(places)
    inside = (places[:, :, None] == np.arange(BINS)) & speaks[:, :, None]
    return np.asarray(inside.reshape(len(places), -1) / math.sqrt(places.shape[1]), dtype=np.float64)


class BinSearch(UnitSearch):
    """Three rounds of search for some numbers of each task, all of them in one message."""

    #: What its public arrays begin with.
    prefix: ClassVar[str]
    #: Whether the numbers stand alone on the board, and not in a row.
    single: ClassVar[bool]

    #: How many numbers are looked for, and how many typical distances from the center the public unit is.
    count: int
    reach: float
    #: What an earlier board has found, which nobody searches for again; None if there is none.
    known: tuple[Search, ...] | None

    @abstractmethod
    def places(self, block: Block) -> Floats:
        """Return each task's own numbers, (tasks, count), in [-1, 1] by their public bounds."""

    @abstractmethod
    def squares(self, block: Block, centers: Floats) -> Floats:
        """Return the mean squared distance of its rows' numbers from the centers, (tasks, count)."""

    @property
    def length(self) -> int:  # type: ignore[override]
        return ROUNDS if self.known is None else 0

    def share(self, n_tasks: int, budget: Budget) -> float:
        return search_share(n_tasks, budget.mu, self.count) if self.length else 0.0

    def rounds(self, n_tasks: int, budget: Budget, share: float) -> tuple[Round, ...]:
        return (Round(share / ROUNDS, (self._channel,)),) * self.length

    def start(self) -> Public:
        return self._posted(self.known or (Search(),) * self.count)

    def channel(self, board: BoardView) -> Channel:
        return self._channel

    def message(self, home: Home, board: BoardView) -> tuple[Array, States]:
        block = home.block
        low, high = board[f"{self.prefix}_between"].reshape(self.count, 2).T
        if board.rounds < PLACES:
            at = bins(self.places(block), low, high)
        else:
            at = octaves(self.squares(block, board[f"{self.prefix}_center"].reshape(self.count)), low, high)
        return one_hot(at, np.any(block.weight > 0, axis=1)), home.states

    def update(self, release: Release, board: BoardView) -> Public:
        count, root = self.count, math.sqrt(self.count)
        counts, noise = root * release.value.reshape(count, BINS), root * release.noise
        if threshold(count) * noise > release.denominator:  # all tasks in one bin could not stand out
            return {}
        searches = zip(self.found(board), counts, strict=True)
        if board.rounds < PLACES:
            return self._posted(tuple(look_closer(one, v, noise, count) for one, v in searches))
        return self._posted(tuple(measure_spread(one, v, noise, self.reach, count) for one, v in searches))

    def found(self, board: BoardView) -> list[Search]:
        """Return what a board says of each number."""
        columns = [
            board[f"{self.prefix}_{item.name}"].reshape(self.count, *shape)
            for item, shape in zip(fields(Search), ((), (), (), (2,), (BINS,), ()), strict=True)
        ]
        return [
            Search(float(center), float(unit), int(found), between, counts, float(noise))
            for center, unit, found, between, counts, noise in zip(*columns, strict=True)
        ]

    @property
    def _channel(self) -> Channel:
        return Channel(BINS * self.count, 1.0, Absolute())

    def _posted(self, searches: tuple[Search, ...]) -> Public:
        shape, public = (() if self.single else (self.count,)), {}
        for item in fields(Search):
            values = np.array([getattr(one, item.name) for one in searches])
            public[f"{self.prefix}_{item.name}"] = values.reshape((*shape, *values.shape[1:]))
        return public


@dataclass(frozen=True)
class TargetSearch(BinSearch):
    """The place of a task is the median of its targets."""

    known: tuple[Search, ...] | None = None

    about, sought = "where targets are", "targets"
    prefix, single, count = "located", True, 1
    reach = NUMBER.typical  # most targets are within it

    @property
    def audible_from(self) -> float:
        return threshold() / most_deviations(1, 1.0) if self.length else 0.0

    def places(self, block: Block) -> Floats:
        return _medians(block)[:, None]

    def squares(self, block: Block, centers: Floats) -> Floats:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            squares = np.where(block.weight > 0, np.square(block.y - centers), 0.0)
            return np.asarray((block.weight * squares).sum(axis=1) / block.weight.sum(axis=1))[:, None]


@dataclass(frozen=True)
class ColumnSearch(BinSearch):
    """The places of a task are the means of its rows in some columns, whose bounds are `constant`."""

    columns: tuple[int, ...]
    constant: float
    reach: float
    known: tuple[Search, ...] | None = None

    about, sought = "where features are", "features"
    prefix, single = "features", False

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.columns)

    def places(self, block: Block) -> Floats:
        return self._average(block, self._values(block))

    def squares(self, block: Block, centers: Floats) -> Floats:
        with np.errstate(invalid="ignore", over="ignore"):
            return self._average(block, np.square(self._values(block) - centers))

    def _values(self, block: Block) -> Floats:
        first, last = self.columns[0], self.columns[-1]
        side_by_side = self.columns == tuple(range(first, last + 1))  # a slice is not copied
        X = block.X[:, :, first : last + 1] if side_by_side else block.X[:, :, self.columns]
        return np.asarray(X / self.constant)

    def _average(self, block: Block, values: Floats) -> Floats:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):  # no rows, no number
            values = np.where((block.weight > 0)[:, :, None], values, 0.0)
            sums = (block.weight[:, None, :] @ values)[:, 0]
            return np.asarray(sums / block.weight.sum(axis=1)[:, None])


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


#: Typical distances in a unit that values which are spread evenly fill, and fill half of.
EVEN_IN_ALL, EVEN_IN_HALF = SEARCH.even, SEARCH.half * SEARCH.even


@dataclass(frozen=True)
class Locate:
    r"""Searches for where targets and features are, which an algorithm of linear models may begin with.

    Whoever has it works on targets and columns less the public centers that were found, over the public
    units; its models are put back into the codebook's units.

    Parameters
    ----------
    columns : tuple of int
        The columns to look for: numbers between public bounds. Indicators have nothing to be found.
    intercept : float, optional
        The constant in column 0, which the bounds of all columns are multiples of; :math:`1/\sqrt d` by
        default.
    reach : float
        How many typical distances from its center a column's new unit is. By default values that are spread
        evenly fill half of it, which suits priors; what takes few steps wants columns that fill all of it,
        :math:`\sqrt 3`.
    targets : bool
        Whether to look for the targets.

    Privacy
    -------
    In each of three rounds a task says one-hot which of 32 public bins holds the median of its targets, or
    the logarithm of their typical distance from the center found. It is in one bin only, so the l2
    sensitivity is 1 (zero-out) or :math:`\sqrt 2` (replace: it leaves one bin and enters another). In three
    more it says the same of the means of its rows in k columns: k one-hot vectors over :math:`\sqrt k`, one
    message without negative numbers and of norm 1 at most, with the same sensitivity whatever k is. What is
    posted follows from the noisy counts alone. Each search has at most a tenth of the squared budget, no more
    than is needed for so many tasks, and next to nothing where all tasks in one bin could not stand out; all
    that comes later is relative to what the board says, so its price is its own.

    Notes
    -----
    Where targets are is used if a window stands out from the noise (`found` is 1, or 2 for their spread
    as well). A column is changed only if its spread is found, in the last round; it may be without its place,
    and the center is then that of the bounds. Units are 1 at most: nothing is made coarser. Rows that are
    longer than 1 in the new units are made shorter at home, all of a task's rows and targets by one factor,
    which leaves its weights what they are.

    Examples
    --------
    >>> from cloister import Plan, Tasks, run
    >>> from cloister.algorithms import SharedPrior
    >>> from cloister.learners import Regression
    >>> rng = np.random.default_rng(0)
    >>> age = -0.8 + 0.1 * rng.uniform(-1, 1, (300, 8))  # a tenth of the bounds, near their lower end
    >>> X = np.stack([np.ones((300, 8)), age], axis=2) / np.sqrt(2)
    >>> tasks = Tasks.from_list(list(X), list(0.3 + 0.1 * (age + 0.8)))
    >>> plan = Plan(SharedPrior(Regression(2), locate=Locate((1,))), n_tasks=300).calibrate(epsilon=1.0)
    >>> board = run(plan, tasks, random_state=0).board
    >>> abs(float(board["located_center"]) - 0.3) < 0.02, float(board["located_unit"]) < 0.1
    (True, True)
    >>> abs(float(board["features_center"][0]) + 0.8) < 0.1, float(board["features_unit"][0]) < 0.4
    (True, True)
    """

    columns: tuple[int, ...] = ()
    intercept: float | None = None
    reach: float = EVEN_IN_HALF
    targets: bool = True

    #: Of what targets there may be.
    kinds: ClassVar[frozenset[Target]] = frozenset({Target.NUMBER})

    def check(self, rows: DataSpec | None, earlier: EarlierPrior | None) -> None:
        """Refuse rows that have nothing to be searched, columns that are none, and another run's columns."""
        if rows is None or rows.target not in self.kinds or len(rows.features or ()) != 1:
            raise PlanError(
                "Locate needs an algorithm of linear models whose targets are numbers. Leave it out."
            )
        if not (self.columns or self.targets):
            raise PlanError("Locate must have columns or targets to look for. Leave it out.")
        (width,) = rows.features or ()
        if not {*range(1, width)}.issuperset(self.columns) or len({*self.columns}) < len(self.columns):
            raise PlanError(
                f"columns must be some of 1 to {width - 1}, each once: column 0 is the intercept. Got "
                f"{self.columns}."
            )
        if not 0 < self.reach < math.inf:
            raise PlanError(f"reach must be > 0 and finite. Got {self.reach}.")
        known = () if earlier is None else earlier.features
        if self.columns and len(known) not in (0, len(self.columns)):
            raise PlanError(
                f"The earlier board has looked for {len(known)} columns, and this plan for "
                f"{len(self.columns)}. Start from a run with the same codebook."
            )

    def searches(self, rows: DataSpec | None, earlier: EarlierPrior | None = None) -> tuple[UnitSearch, ...]:
        """Return the stages; without rounds where an earlier board has what all else there is relative to."""
        target = places = None
        if earlier is not None:
            target = (Search(earlier.center, earlier.unit, earlier.found),)
            places = tuple(Search(center, unit, found=2) for center, unit in earlier.features)
            places = places or (Search(),) * len(self.columns)
        found: list[BinSearch] = [TargetSearch(target)] if self.targets else []
        if self.columns:
            found.append(ColumnSearch(self.columns, self._constant(rows), self.reach, places))
        return tuple(found)

    def units(self, rows: DataSpec | None, board: BoardView) -> Units:
        """Return the units that a board has found."""
        target = centers = units = None
        if self.targets:
            target = float(board["located_center"]), float(board["located_unit"])
        if self.columns:
            (width,) = rows.features  # type: ignore[union-attr, misc]
            centers, units = np.zeros(width), np.ones(width)
            centers[list(self.columns)], units[list(self.columns)] = self._columns_found(board)
        shortens = rows is not None and rows.target is Target.NUMBER
        return Units(self._constant(rows), target, centers, units, shortens)

    def location(self, board: BoardView, rounds: int) -> Location:
        """Return where a board says that targets and columns are; `rounds` were for the targets."""
        columns = (
            zip(self.columns, *(values.tolist() for values in self._columns_found(board)), strict=True)
            if self.columns
            else ()
        )
        shown = tuple(ColumnLocation(*one) for one in columns if one[1:] != (0, 1))
        if not self.targets:
            return Location(0.0, 1.0, False, 0, shown)
        center, unit, found = (board[f"located_{name}"] for name in ("center", "unit", "found"))
        return Location(float(center), float(unit), bool(found), rounds, shown)

    def added(self, earlier: EarlierPrior, board: BoardView) -> EarlierPrior:
        """Return what a later plan starts from, with what it is relative to."""
        if self.columns:
            places = zip(*(values.tolist() for values in self._columns_found(board)), strict=True)
            earlier = replace(earlier, features=tuple(places))
        if self.targets:
            center, unit, found = (board[f"located_{name}"] for name in ("center", "unit", "found"))
            earlier = replace(earlier, center=float(center), unit=float(unit), found=int(found))
        return earlier

    def _columns_found(self, board: BoardView) -> tuple[Floats, Floats]:
        """Return centers and units of all columns that are looked for: of those found, what was found."""
        found = board["features_found"] == 2
        return np.where(found, board["features_center"], 0.0), np.where(found, board["features_unit"], 1.0)

    def _constant(self, rows: DataSpec | None) -> float:
        (width,) = rows.features  # type: ignore[union-attr, misc]
        return self.intercept or 1 / math.sqrt(width)
