r"""Where columns are and how far they spread: noisy histograms of all records, in one round.

A record says one-hot in which of 64 public bins each of its values lies. Values that many records share, such
as zeros, stand out of the bins around them and are taken as they are. What is left is taken for a normal,
whose place and spread are those that explain the noisy counts best; spreads are alike as far as they may be,
as columns tend to fill about as much of their bounds. Mean and spread are those of both together. All of it
is post-processing of noisy counts, hence free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from cloister.algorithms.constants import HISTOGRAM, SEARCH
from cloister.algorithms.locate import Locate
from cloister.algorithms.stages import UnitSearch
from cloister.core.arrays import Array, Floats, Public, States
from cloister.core.channel import Channel, Round
from cloister.core.errors import PlanError
from cloister.core.findings import EarlierPrior
from cloister.core.lifts import Absolute
from cloister.core.spec import DataSpec, Target
from cloister.learners.home import Home
from cloister.learners.linear.home_constants import NUMBER
from cloister.plan.algorithm import Budget

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release

#: Bins between the bounds, -1 and 1, and their middles.
BINS = HISTOGRAM.bins
MIDDLES = (2 * np.arange(BINS) + 1) / BINS - 1
#: Spreads of a normal that are tried, in half-widths of the bounds.
SPREADS = 2.0 ** (-np.arange(2, HISTOGRAM.finest) / 2)


def legible_share(records: float, mu: float, columns: int, deviations: float) -> float:
    """Return the share of the squared budget at which a usual column's bin stands so far out from the noise.

    Examples
    --------
    >>> round(legible_share(10_000, 0.24, 21, 5.0), 4)
    0.002
    """
    return float((deviations * math.sqrt(2 * columns) / (HISTOGRAM.peak * records * mu)) ** 2)


def places_and_spreads(
    counts: Floats, noise: float, records: float, least: Floats | float = 2 / BINS
) -> tuple[Floats, Floats]:
    """Return mean and deviation of each column, from its noisy counts.

    Parameters
    ----------
    counts : array of shape (columns, BINS)
        Noisy numbers of records in each bin.
    noise, records : float
        Deviation of the noise in a count, and the number of records.
    least : array of shape (columns,) or float
        The least deviation of each.

    Examples
    --------
    >>> counts = np.zeros((1, BINS))
    >>> counts[0, [32, 63]] = 750, 250  # zeros and ones
    >>> [found.round(1).tolist() for found in places_and_spreads(counts, 1.0, 1000)]
    [[0.3], [0.4]]
    """
    spikes, rest = _apart(counts, noise, records)
    part = np.clip(1 - spikes.sum(axis=1) / records, HISTOGRAM.least, 1.0)
    place, spread = _normal(rest, part, noise, records)
    spikes = spikes / records
    total = spikes.sum(axis=1) + part
    mean = (spikes @ MIDDLES + part * place) / total
    square = (spikes @ MIDDLES**2 + part * (place**2 + spread**2)) / total
    return mean, np.clip(np.sqrt(np.maximum(square - mean**2, 0.0)), least, 1.0)


def _apart(counts: Floats, noise: float, records: float) -> tuple[Floats, Floats]:
    """Take what stands out of the four bins around it apart from the rest."""
    wide = np.pad(counts, ((0, 0), (2, 2)), mode="reflect")
    around = (wide[:, :-4] + wide[:, 1:-3] + wide[:, 3:-1] + wide[:, 4:]) / 4
    out = counts - around > max(HISTOGRAM.clear * noise, HISTOGRAM.least * records)
    return np.where(out, np.clip(counts - around, 0.0, records), 0.0), np.where(out, around, counts)


def _normal(counts: Floats, part: Floats, noise: float, records: float) -> tuple[Floats, Floats]:
    """Fit a normal of known mass to each column's counts: posterior place and (geometric) spread."""
    edges = 2 * np.arange(BINS + 1) / BINS - 1
    shapes = np.diff(ndtr((edges - MIDDLES[:, None]) / SPREADS[:, None, None]), axis=2)
    mass = records * np.maximum(part, HISTOGRAM.least_mass)[:, None, None]
    score = 2 * mass * np.einsum("jb,slb->jsl", counts, shapes) - mass**2 * np.square(shapes).sum(axis=2)
    score = score / (2 * (noise**2 + HISTOGRAM.full * records)) - 0.5 * (MIDDLES / HISTOGRAM.off_middle) ** 2
    steps = np.arange(len(SPREADS))
    alike = -0.5 * ((steps[:, None] - steps) / HISTOGRAM.octaves) ** 2
    by_spread = np.logaddexp.reduce(score, axis=2)
    usual = int(np.argmax([np.logaddexp.reduce(by_spread + row, axis=1).sum() for row in alike]))
    score = score + alike[usual][:, None]
    weight = np.exp(score - np.logaddexp.reduce(score, axis=(1, 2), keepdims=True))
    return weight.sum(axis=1) @ MIDDLES, np.exp(weight.sum(axis=2) @ np.log(SPREADS))


@dataclass(frozen=True)
class HistogramSearch(UnitSearch):
    """One round in which records say where their values lie: of targets that are numbers, and of columns."""

    columns: tuple[int, ...]
    constant: float
    indicators: tuple[int, ...]
    reach: float
    targets: bool = True

    length = 1

    @property
    def about(self) -> str:  # type: ignore[override]
        return f"where {self.sought} are"

    @property
    def sought(self) -> str:  # type: ignore[override]
        return "targets and features" if self.targets else "features"

    def share(self, n_tasks: int, budget: Budget) -> float:
        if legible_share(n_tasks, budget.mu, self._count, HISTOGRAM.clear) > HISTOGRAM.hopeless:
            return SEARCH.nothing  # nothing could be read: next to nothing is spent on it
        needed = legible_share(n_tasks, budget.mu, self._count, HISTOGRAM.legible)
        return min(max(needed, HISTOGRAM.fewest), HISTOGRAM.most)

    def rounds(self, n_tasks: int, budget: Budget, share: float) -> tuple[Round, ...]:
        return (Round(share, (self._channel,)),)

    def start(self) -> Public:
        return self._posted(np.zeros(self._count), np.ones(self._count), 0, 0.0)

    def channel(self, board: BoardView) -> Channel:
        return self._channel

    def message(self, home: Home, board: BoardView) -> tuple[Array, States]:
        block = home.block
        values = block.X[:, 0, self.columns] / self.constant
        if self.targets:
            values = np.concatenate([block.y, values], axis=1)
        with np.errstate(invalid="ignore"):
            places = np.clip(np.floor((values + 1) * (BINS / 2)), 0, BINS - 1)
        said, there = np.zeros((*values.shape, BINS), dtype=bool), (block.weight > 0) & ~np.isnan(places)
        np.put_along_axis(said, np.where(there, places, 0).astype(np.intp)[..., None], there[..., None], 2)
        return said.reshape(len(block), -1), home.states

    def update(self, release: Release, board: BoardView) -> Public:
        clip, records = self._channel.clip, release.denominator
        noise = clip * release.noise
        if HISTOGRAM.peak * records < HISTOGRAM.clear * noise / math.sqrt(2):
            return {}
        counts = clip * release.value.reshape(self._count, BINS)
        told, error = counts.sum() / self._count, noise * math.sqrt(BINS / self._count)
        if told < records - HISTOGRAM.fewer * error:
            records = max(told, 1.0)
        rare = [HISTOGRAM.rare if j in self.indicators else 2 / BINS for j in self.columns]
        least = np.array([2 / BINS] * self.targets + rare)
        places, spreads = places_and_spreads(counts, noise, records, least)
        reach = np.array([NUMBER.typical] * self.targets + [self.reach] * len(self.columns))
        return self._posted(places, np.minimum(reach * spreads, 1.0), 2, records)

    def _posted(self, places: Floats, units: Floats, found: int, records: float) -> Public:
        """Return what a board says, of targets first where they are looked for."""
        target = {
            "located_center": places[0],
            "located_unit": units[0],
            "located_found": np.array(found),
        }
        at = int(self.targets)
        return (target if self.targets else {}) | {
            "records": np.array(records),
            "features_center": places[at:],
            "features_unit": units[at:],
            "features_found": np.full(len(self.columns), found),
        }

    @property
    def _count(self) -> int:
        return self.targets + len(self.columns)

    @property
    def _channel(self) -> Channel:
        return Channel(BINS * self._count, math.sqrt(self._count), Absolute())


@dataclass(frozen=True)
class LocateRecords(Locate):
    r"""A search for where targets and columns are, by histograms of all records.

    It counts them as well, where the plan has a loose bound on their number.

    Parameters
    ----------
    columns, intercept : tuple of int, float
        As for `Locate`; indicators are columns too.
    reach : float
        How many deviations a column's new unit is.
    targets : bool
        Whether targets are numbers, and in the same message; classes are not looked for.
    indicators : tuple of int
        Which columns are zeros and ones: they are thought to be rare at worst.

    Privacy
    -------
    A record is in one of 64 bins with each of q values: q one-hot vectors, without negative numbers and of
    norm :math:`\sqrt q`. Hence the l2 sensitivity is :math:`\sqrt q` (zero-out) or :math:`\sqrt{2q}`
    (replace: all values move to other bins).
    """

    reach: float = 1.0
    indicators: tuple[int, ...] = ()

    kinds = frozenset({Target.NUMBER, Target.CLASS})

    def check(self, rows: DataSpec | None, earlier: EarlierPrior | None) -> None:
        super().check(rows, earlier)
        numbers = rows is not None and rows.target is Target.NUMBER
        if self.targets is not numbers or not {*self.columns}.issuperset(self.indicators):
            raise PlanError(
                "A search by records has targets=True if they are numbers and targets=False if not, and "
                f"indicators that are among its columns. Got targets={self.targets} and "
                f"indicators={self.indicators}."
            )

    def searches(self, rows: DataSpec | None, earlier: EarlierPrior | None = None) -> tuple[UnitSearch, ...]:
        constant = self._constant(rows)
        return (HistogramSearch(self.columns, constant, self.indicators, self.reach, self.targets),)
