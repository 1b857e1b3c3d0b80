r"""A private search over public bins for where numbers of the tasks are, and how far they spread.

In each round every task says in which of a few public bins its own number lies, as a one-hot vector; the next
round looks closer at the bins that were heard. All bins are alike, so the noise in a count does not know how
wide a bin is: twice the width costs one bit more of the search, where a mean's error would be twice as large.
What is made of noisy counts here is post-processing, hence free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Floats

__all__ = [
    "BINS",
    "PLACES",
    "ROUNDS",
    "Search",
    "bins",
    "finest_octave",
    "heard",
    "look_closer",
    "measure_spread",
    "octaves",
    "one_hot",
    "search_share",
    "threshold",
]

#: Rounds that look for the place, each with so many bins; one more asks for the spread, in powers of two.
PLACES, BINS = 2, 32
ROUNDS = PLACES + 1
#: A window of bins is heard if it stands so many deviations of noise out; noise alone does in 2 % of rounds.
HEARD = 3.5
#: Where tasks were heard they are for sure, and their spread is one of few octaves: so many will do for it.
SPREAD = 2.0
#: Most of the squared budget that the search may cost, and where all tasks in one bin would stand, in noise
#: deviations: more would be wasted, and less than `HEARD` is not worth asking.
MOST, CLEAR = 0.1, 15.0

_TIE = 1e-9


@dataclass(frozen=True, eq=False)
class Search:
    """What a board says of the search for one number. Public.

    Attributes
    ----------
    center, unit : float
        Where it is, and the reach around it.
    found : int
        0 if neither was heard, 1 for the place, 2 for the spread as well.
    between : array of shape (2,)
        The ends of the bins that are asked for.
    counts, noise : array of shape (BINS,) and float
        How many tasks were heard in each so far, and the deviation of the noise in a count.
    """

    center: float = 0.0
    unit: float = 1.0
    found: int = 0
    between: Floats = field(default_factory=lambda: np.array([-1.0, 1.0]))
    counts: Floats = field(default_factory=lambda: np.zeros(BINS))
    noise: float = 0.0


def threshold(numbers: int = 1) -> float:
    """Return how many deviations a window must stand out, where so many numbers are looked for at once."""
    return math.sqrt(HEARD**2 + 2 * math.log(numbers))


def search_share(n_tasks: int, mu: float, numbers: int = 1) -> float:
    """Return the search's share of the squared budget: as much as is needed, a tenth at most.

    All tasks in one bin stand ``n_tasks * mu * sqrt(share / rounds / 2 / numbers)`` deviations out of the
    noise, as the numbers of a task share one message.
    """
    if math.isinf(mu):
        return MOST
    stands = n_tasks * mu * math.sqrt(MOST / ROUNDS / 2 / numbers)
    if stands < threshold(numbers):
        return 1e-6  # nothing could be heard: next to nothing is spent on it
    return MOST * min(1.0, (CLEAR / stands) ** 2)


def heard(counts: Floats, noise: float, least: float = HEARD) -> tuple[int, int] | None:
    """Return the window of bins (its first, and the one after its last) that stands out of the noise most.

    None if none stands out by `least` deviations. Of windows that stand out alike it is the first of the
    narrowest, whatever the last bits of noise say.
    """
    best, window = least, None
    for width in (w for w in (1, 2, 4, 8) if w <= len(counts)):
        sums = np.convolve(counts, np.ones(width), mode="valid") / math.sqrt(width)
        at = int(np.argmax(sums > (1 - _TIE) * sums.max()))
        if sums[at] > (1 + _TIE) * best * max(noise, 1e-300):
            best, window = float(sums[at]) / max(noise, 1e-300), (at, at + width)
    return window


def look_closer(asked: Search, value: Floats, noise: float, numbers: int = 1) -> Search:
    """Look where most tasks are, and look closer there; if noise hides it ask the same again."""
    low, high = map(float, asked.between)
    counts, spent = asked.counts + value, math.hypot(asked.noise, noise)
    asked = replace(asked, counts=counts, noise=spent)
    window = heard(counts, spent, threshold(numbers))
    if window is None:
        return asked
    first, last = window
    width = (high - low) / BINS
    around = slice(max(0, 2 * first - last), min(BINS, 2 * last - first))  # as much again on either side
    loud = np.where(counts[around] > spent, counts[around], 0.0)
    middles = low + width * (np.arange(BINS)[around] + 0.5)
    center = float(loud @ middles / loud.sum() if loud.any() else middles.mean())
    if around.stop - around.start > BINS // 2:  # tasks are that far apart
        return replace(asked, center=center, found=1)
    between = np.array([low + width * around.start, low + width * around.stop])
    return Search(center, float(between[1] - between[0]) / 2, 1, between)


def measure_spread(asked: Search, value: Floats, noise: float, reach: float, numbers: int = 1) -> Search:
    """Take for the unit so many typical distances from the center, if these are heard."""
    low, high = asked.between
    finest = int(finest_octave(low, high))
    window = heard(value[: finest + 1], noise, SPREAD if asked.found else threshold(numbers))
    if window is None:
        return asked
    first, last = window
    loud = np.maximum(value[first:last], 0.0)
    octave = float(loud @ np.arange(first, last) / loud.sum())
    typical = max(2.0**-octave, float(high - low) / 2 / BINS)  # no less than a bin that was looked at
    return replace(asked, unit=min(1.0, reach * typical), found=2)


def bins(values: Floats, low: Floats, high: Floats) -> Floats:
    """Return the bin, between two ends, that each value is in."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.clip(np.floor((values - low) * (BINS / (high - low))), 0, BINS - 1))


def finest_octave(low: Floats, high: Floats) -> Floats:
    """Return the last octave that is told: that of half a bin between two ends."""
    return np.asarray(np.clip(np.ceil(np.log2(2 * BINS / (high - low))), 0, BINS - 1))


def octaves(squares: Floats, low: Floats, high: Floats) -> Floats:
    """Return minus the binary logarithm of typical distances, rounded, from their mean squares.

    Shorter ones than half a bin between the two ends are told as that.
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
