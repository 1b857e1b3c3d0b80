"""A search for two messages of one task that move the sum further than the channel says is possible.

It starts from pairs that are known to be the worst of the shipped lifts, two vectors at some angle, and from
what floating point does worst (infinities, 1e300, numbers too small to be normal, norms a hair beyond the
clip), and climbs from the best pair found by random changes. What the other tasks say is part of the attack:
nobody, a few ordinary messages, or garbage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.channel import Channel
from cloister.core.lifts import Relation

Statistic = Callable[[Floats], Floats]
Total = Callable[[Channel, Floats], Floats]

#: What may stand in a message.
_HOSTILE = (np.inf, -np.inf, np.nan, 1e300, -1e300, 1e160, 5e-324, 1e-310, -0.0, 0.0)
#: Rounding of a sum that is no fault of the channel.
_ROUNDING = 1e-9
_ANGLES = 181


@dataclass(frozen=True)
class Furthest:
    """The pair that moves a sum furthest.

    Parameters
    ----------
    ratio : float
        How far it moves the sum, over what is claimed to be the most.
    one, other : array of shape (dim,)
        The pair.
    tries : int
        How many pairs were looked at.
    channels : int
        On how many channels.
    """

    ratio: float
    one: Floats = field(repr=False)
    other: Floats = field(repr=False)
    tries: int
    channels: int = 1

    @property
    def breach(self) -> bool:
        """Whether it moves the sum further than is claimed, rounding aside."""
        return not self.ratio <= 1 + _ROUNDING


def narrow(channel: Channel, dim: int) -> Channel:
    """Return a channel of few numbers with the same clip and lift, whose sensitivity is the same."""
    return replace(channel, dim=min(channel.dim, dim))


@lru_cache(maxsize=64)
def worst_pair(channel: Channel, relation: Relation) -> tuple[Floats, Floats]:
    """Return the two messages in a plane that move the sum furthest: a unit vector, and silence or another.

    Examples
    --------
    >>> from cloister.channel import MeanAndOuter
    >>> channel = Channel(2, lift=MeanAndOuter(0.5))
    >>> one, other = worst_pair(channel, Relation.REPLACE)
    >>> round(float(one @ other), 2), round(_moved(channel.total, one, other) ** 2, 4)
    (-0.5, 2.25)
    """
    one, other = max(_plane(channel, relation), key=lambda pair: _moved(channel.total, *pair))
    one.flags.writeable = other.flags.writeable = False  # whoever asks gets the same two
    return one, other


def furthest_on(
    channel: Channel, relation: Relation, *, total: Total = Channel.total, tries: int = 2000, seed: int = 0
) -> Furthest:
    """Search on a channel: climb in few dimensions, and try the known pairs in all of them.

    Examples
    --------
    >>> found = furthest_on(Channel(50, clip=0.3), Relation.REPLACE, tries=500)
    >>> found.breach, found.ratio > 0.999
    (False, True)
    """
    sensitivity, small = channel.sensitivity(relation), narrow(channel, 6)
    known = list(_plane(small, relation))
    climbed = furthest(partial(total, small), known, sensitivity, relation, tries=tries, seed=seed)
    if small == channel and len(known) <= tries:  # which were all tried
        return climbed
    pairs = [*_plane(channel, relation), *_elsewhere(channel, relation)]
    ratios = [_ratio(partial(total, channel), sensitivity, pair) for pair in pairs]
    at = int(np.argmax(ratios))
    if ratios[at] > climbed.ratio:
        return Furthest(ratios[at], *pairs[at], tries + len(pairs))
    return replace(climbed, tries=tries + len(pairs))


def furthest(
    statistic: Statistic,
    start: list[tuple[Floats, Floats]],
    sensitivity: float,
    relation: Relation,
    *,
    tries: int = 2000,
    seed: int = 0,
) -> Furthest:
    """Search for the pair of messages that moves a statistic furthest.

    Parameters
    ----------
    statistic : callable
        From messages of shape (tasks, dim) to what is summed.
    start : list of pairs
        Where to begin, at least one; the length of a first message is taken as the clip.
    sensitivity : float
        What is claimed.
    relation : Relation
        Under `zero_out` the other message is zero.
    tries : int
        Pairs to look at.
    seed : int
        Of the search.

    Examples
    --------
    >>> def average(messages):  # divides by how many spoke, not by a public number
    ...     return messages.sum(axis=0) / max(1, np.count_nonzero(messages.any(axis=1)))
    >>> pair = (np.ones(1), np.zeros(1))
    >>> furthest(average, [pair], 1 / 5, Relation.ZERO_OUT, tries=100).breach
    True
    """
    rng = np.random.default_rng(seed)
    dim, clip = len(start[0][0]), float(np.linalg.norm(start[0][0]))
    backgrounds = _others(dim, clip, rng)
    best, ratio = start[0], -1.0
    for turn in range(tries):
        pair = start[turn] if turn < len(start) else _next(best, relation, clip, rng)
        for others in backgrounds:
            found = _ratio(statistic, sensitivity, pair, others)
            if found > ratio:
                best, ratio = pair, found
    return Furthest(ratio, *best, tries)


def _next(
    best: tuple[Floats, Floats], relation: Relation, clip: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return a change of the best pair so far, or now and then another pair altogether."""
    one, other = (_changed(message, clip, rng) for message in best)
    if rng.random() < 0.1:
        one, other = (clip * rng.standard_normal(len(one)) for _ in range(2))
    return one, np.zeros_like(one) if relation == Relation.ZERO_OUT else other


def _changed(message: Floats, clip: float, rng: np.random.Generator) -> Floats:
    """Return the message with one thing changed: a nudge, a sign, a length, or a hostile number."""
    out = message.copy()
    where = rng.integers(len(out))
    match rng.integers(6):
        case 0:
            out += clip * 10.0 ** rng.uniform(-8, 1) * rng.standard_normal(len(out))
        case 1:
            out[where] = -out[where]
        case 2:
            out[where] = rng.choice(_HOSTILE)
        case 3:
            out = rng.permutation(out)
        case 4:
            with np.errstate(over="ignore", invalid="ignore"):
                out = out * rng.choice([1 + 2.0**-52, 1 - 2.0**-53, 1 + 1e-9, 1e5, 1e300, 0.5])
        case _:
            pass
    return out


def _others(dim: int, clip: float, rng: np.random.Generator) -> list[Floats]:
    """Return what the others may say: nothing, something, or garbage."""
    garbage = np.array([[value] * dim for value in (np.nan, np.inf, 1e300, -1e300)])
    return [np.zeros((0, dim)), clip * rng.standard_normal((4, dim)), garbage]


def _plane(channel: Channel, relation: Relation) -> Iterator[tuple[Floats, Floats]]:
    """Yield a vector as long as the clip beside silence, and pairs of that length at every angle.

    One of the two lies along an axis, or they mirror each other: where squares count, axes are special.
    """
    one, zero = np.zeros(channel.dim), np.zeros(channel.dim)
    one[0] = channel.clip
    yield one, zero
    if relation == Relation.ZERO_OUT:
        return
    for angle in np.linspace(0, math.pi, _ANGLES if channel.dim > 1 else 2):
        other = zero.copy()
        other[0] = channel.clip * round(math.cos(angle), 15)
        if channel.dim > 1:
            other[1] = channel.clip * math.sin(angle)
        yield one, other
        if channel.dim > 1:
            mirrored = zero.copy()
            mirrored[:2] = -other[1::-1]
            yield other, mirrored


def _elsewhere(channel: Channel, relation: Relation) -> Iterator[tuple[Floats, Floats]]:
    """Yield a worst pair in the last two numbers, and spread over all; as it is, and far beyond the clip."""
    if channel.dim < 2:
        return
    pair = worst_pair(narrow(channel, 2), relation)
    last, spread = np.zeros((2, channel.dim)), np.full((2, channel.dim), channel.dim**-0.5)
    last[:, -2:] = np.eye(2)
    spread[1, 1::2] *= -1
    for axes in (last, spread):
        for length in (1.0, 1e5):
            one, other = (length * message @ axes for message in pair)
            yield one, other


def _moved(statistic: Statistic, one: Floats, other: Floats, others: Floats | None = None) -> float:
    rows = np.zeros((0, len(one))) if others is None else others
    first, second = (statistic(np.vstack([rows, message[None]])) for message in (one, other))
    return float(np.linalg.norm(first - second))


def _ratio(
    statistic: Statistic, sensitivity: float, pair: tuple[Floats, Floats], others: Floats | None = None
) -> float:
    """Return how far a pair moves the sum, over the claim; a sum that is not a number is infinitely far."""
    with np.errstate(all="ignore"):
        moved = _moved(statistic, *pair, others)
    return math.inf if math.isnan(moved) else moved / sensitivity
