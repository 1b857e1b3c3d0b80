"""Channels: the public promise about a message, clipped, on a grid, and lifted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from cloister.core.arrays import A, Floats, Integers, is_real, namespace, on_card
from cloister.core.errors import InputError, PlanError
from cloister.core.lifts import (
    Absolute,
    Diagonal,
    Grouped,
    Lift,
    MeanAndOuter,
    MeanAndSquares,
    Outer,
    Plain,
    Relation,
    SumOfOuters,
    SumOfSquares,
)

__all__ = [
    "Absolute",
    "Channel",
    "Diagonal",
    "Grouped",
    "Lift",
    "MeanAndOuter",
    "MeanAndSquares",
    "Outer",
    "Plain",
    "Relation",
    "Round",
    "SumOfOuters",
    "SumOfSquares",
]


#: Fixed point: steps in one clip. Products of two numbers, added over EXACT_ROWS rows, stay below 2^53.
GRID, EXACT_ROWS = 2**18, 2**17
#: From so many steps on, dividing by a step and rounding may give a neighbour.
BEYOND = 2.0**50
#: Numbers whose squares are added at once on a processor: over more, OpenBLAS calls its other threads.
ALONE = 2**13


@dataclass(frozen=True)
class Channel:
    """What may leave a task in one round: `dim` numbers, clipped to `clip`, then lifted.

    Privacy
    -------
    The engine sends nothing but ``total(messages)``: `whole_sum` of `whole` (or, for
    floating-point noise, `lifted_sum` of `units`). A row that is not finite counts as zero. Values on
    the billboard are in units of the clip.

    Examples
    --------
    >>> channel = Channel(2, clip=0.5, lift=Plain())
    >>> channel.total(np.array([[3.0, 4.0], [np.nan, 1.0]])).round(6).tolist()
    [0.6, 0.8]
    >>> channel.sensitivity(Relation.REPLACE)
    2.0
    """

    dim: int
    clip: float = 1.0
    lift: Lift = field(default_factory=Plain)

    def __post_init__(self) -> None:
        if not (is_real(self.clip) and 0 < self.clip < math.inf):
            raise PlanError(
                f"clip must be a number > 0 and finite. Got {self.clip!r}. "
                "Use NoNoise() for a non-private run."
            )
        if self.dim < 1:
            raise PlanError(f"A message must have at least one number. Got dim={self.dim}.")

    @property
    def size(self) -> int:
        """How many numbers a release on this channel has."""
        return len(self.lift.weights(self.dim)[0])

    @property
    def steps(self) -> Floats:
        """What one unit of a sum of whole rows stands for in each number of a release, in clips."""
        return _steps(self)

    def sensitivity(self, relation: Relation) -> float:
        """Return the exact l2 sensitivity of the sum, in units of the clip."""
        return self.lift.sensitivity(Relation(relation))

    def units(self, messages: A) -> A:
        """Clip each row to the ball and divide by the clip: norms are at most 1, rounding included."""
        rows, divisors = self._clipped(messages, 1)
        return rows / divisors

    def _clipped(self, messages: A, steps: int) -> tuple[A, A]:
        """Return rows and what to divide each by, (k, 1), to clip it to a ball whose radius is so many steps.

        Their number is a power of two. To divide by a step is to divide by the clip and multiply by it, to
        the bit.
        """
        xp = namespace(messages)
        given = xp.asarray(messages).reshape(len(messages), self.dim)
        rows = xp.asarray(given, dtype=xp.float64)
        high = xp.asarray(xp.amax(given, axis=1, keepdims=True), dtype=xp.float64)
        low = xp.asarray(xp.amin(given, axis=1, keepdims=True), dtype=xp.float64)
        largest = xp.maximum(high, -low)  # divided out first, lest squares overflow
        finite = xp.isfinite(largest)
        if on_card(rows) or not finite.all():  # a processor goes over the rows once more only if it must
            rows, largest = xp.where(finite, rows, 0.0), xp.where(finite, largest, 0.0)
        scaled = rows / xp.where(largest > 0, largest, 1.0)
        length = xp.sqrt((scaled * scaled).sum(axis=1, keepdims=True))
        slack = 1 + (self.dim + 8) * 2.0**-52  # more than all the rounding around it
        with np.errstate(over="ignore"):
            inside = largest / self.clip * length * slack <= 1
        if on_card(rows):
            scaled = xp.where(inside, rows, scaled)
        elif inside.all():
            scaled = rows
        else:
            at = xp.where(inside[:, 0])[0]
            scaled[at] = rows[at]
        divisors = xp.where(inside, self.clip, length * slack)
        if self.clip / steps * steps != self.clip:  # a step below the smallest numbers of full length
            return scaled * steps, divisors
        return scaled, divisors / steps

    def rows(self, messages: A) -> A:
        """Return each task's message as it leaves for another machine: `whole` in integers of 64 bits."""
        xp = namespace(messages)
        return xp.asarray(self.whole(messages), dtype=xp.int64)

    def whole(self, messages: A) -> A:
        """Return each task's message as it is summed: clipped, on the grid, whole, of norm at most GRID.

        A row is rounded to the grid, and towards zero if its whole norm would leave the ball otherwise. It
        is lifted after rounding, so that the exact sensitivity holds for the rounded sum as well. The whole
        numbers are floats, which add and multiply them without error.
        """
        xp = namespace(messages)
        rows, divisors = self._clipped(messages, GRID)
        whole = rows / divisors
        if on_card(rows):
            near = xp.round(whole)
            return xp.where(_outside(near), _towards_zero(whole), near)
        xp.round(whole, out=whole)
        outside = _outside(whole)
        if outside.any():
            at = xp.where(outside[:, 0])[0]
            whole[at] = _towards_zero(rows[at] / divisors[at])
        return whole

    def check_rows(self, rows: A) -> None:
        """Refuse rows that `rows` cannot have made: what a curator asks of rows made elsewhere, exactly.

        Examples
        --------
        >>> channel = Channel(2, clip=0.5)
        >>> channel.check_rows(channel.rows(np.array([[3.0, 4.0]])))
        >>> channel.check_rows(np.array([[GRID, 1]]))
        Traceback (most recent call last):
        ...
        cloister.errors.InputError: Row 0 is longer than its channel allows. Make rows with Channel.rows.
        """
        xp = namespace(rows)
        if rows.ndim != 2 or rows.shape[1] != self.dim or rows.dtype != xp.int64:
            raise InputError(
                f"Rows must be 64-bit integers of shape (tasks, {self.dim}). Got {rows.dtype} of shape "
                f"{tuple(rows.shape)}. Make them with Channel.rows."
            )
        beyond = xp.any((rows > GRID) | (rows < -GRID), axis=1)  # the rest has squares that cannot overflow
        bad = beyond | _outside(xp.asarray(rows, dtype=xp.float64))[:, 0]
        if bad.any():
            first = int(np.flatnonzero(np.asarray(bad.tolist()))[0])
            raise InputError(f"Row {first} is longer than its channel allows. Make rows with Channel.rows.")

    def check_sums(self, sums: Integers, most: int) -> None:
        """Refuse sums of lifted messages that no `most` messages can have: by the range of each number.

        That a sum is really one of so many clipped messages, nobody can tell from the sum.
        """
        degrees = self.lift.weights(self.dim)[1]
        if sums.ndim != 2 or sums.shape[1] != self.size or sums.dtype != np.int64:
            raise InputError(
                f"Sums must be 64-bit integers of shape (tasks, {self.size}). Got {sums.dtype} of shape "
                f"{tuple(sums.shape)}. Make them with Channel.whole_sum."
            )
        largest = most * GRID**degrees
        bad = ((sums > largest) | (sums < -largest)).any(axis=1)
        if bad.any():
            raise InputError(
                f"Sum {int(np.flatnonzero(bad)[0])} is larger than that of {most} messages can be. Make sums "
                "with Channel.whole_sum."
            )

    def lifted_sum(self, rows: A, groups: Integers | None = None) -> A:
        """Return the sum over tasks of lifted rows: exact and whole for `rows`, in clips for `units`.

        `groups` has the position of each task's public group, for a `Grouped` lift; by default all are in the
        first.
        """
        xp, places = namespace(rows), self.lift.places(len(rows), groups)
        if rows.dtype == xp.int64:
            return self.whole_sum(rows, groups)
        return _weights(self, xp, None if xp is np else rows.device) * self.lift.placed_sums(rows, places)

    def whole_sum(self, rows: A, groups: Integers | None = None) -> A:
        """Return the sum over tasks of lifted rows of whole numbers, of `rows` or `whole`: exact.

        Times `steps` it is in units of the clip. It is made of parts below 2^53, which floating point adds
        without error in any order, on any device.
        """
        xp, places = namespace(rows), self.lift.places(len(rows), groups)
        parts = (slice(at, at + EXACT_ROWS) for at in range(0, max(1, len(rows)), EXACT_ROWS))
        whole = ((xp.asarray(rows[part], dtype=xp.float64), places[part]) for part in parts)
        return sum(xp.asarray(self.lift.placed_sums(*part), dtype=xp.int64) for part in whole)

    def on_grid(self, value: Floats) -> bool:
        """Say whether a release is a whole number of `steps` in each number, to the last bit.

        Beyond 2^50 steps every float is taken for one.

        Examples
        --------
        >>> channel = Channel(2)
        >>> on = 7 * channel.steps
        >>> channel.on_grid(on), channel.on_grid(np.nextafter(on, 1.0)), channel.on_grid(-0.0 * on)
        (True, False, False)
        """
        if not np.isfinite(value).all():
            return False
        count = np.rint(value / self.steps)
        whole = np.where(np.abs(count) < BEYOND, (count + 0.0) * self.steps, value)  # no negative zero
        return bool((np.asarray(value, dtype=np.float64).view(np.int64) == whole.view(np.int64)).all())

    def total(self, messages: A, exact: bool = False, groups: Integers | None = None) -> A:
        """Return the sum over tasks of the clipped, then lifted messages: whole numbers if `exact`.

        Of zeros and ones, told as such, the exact sum is the same to the bit, and made sooner.
        """
        if exact and messages.dtype == np.bool_:
            return self._indicator_sum(messages, groups)
        if exact:
            return self.whole_sum(self.whole(messages), groups)
        return self.lifted_sum(self.units(messages), groups)

    def _indicator_sum(self, messages: Any, groups: Integers | None) -> Any:
        """Return the `whole_sum` of zeros and ones: in `whole`, all ones of a row are the same number.

        It depends on how many they are, and every number of a lift is a power of it.
        """
        there = messages.reshape(len(messages), self.dim)
        counts, degrees = there.sum(axis=1), self.lift.weights(self.dim)[1]
        total = np.zeros(self.size, dtype=np.int64)
        for count in np.unique(counts[counts > 0]).tolist():
            alike = slice(None) if (counts == count).all() else counts == count
            own = None if groups is None else groups[alike]
            total += self.whole_sum(there[alike], own) * _one(self, count) ** degrees
        return total


@dataclass(frozen=True)
class Round:
    """One round of a schedule: its share of the squared budget, and the channels it may use.

    What it is `about`, in a few words, is for those who read a plan.
    """

    share: float
    channels: tuple[Channel, ...]
    about: str = field(default="", compare=False)


def _outside(whole: Any) -> Any:
    """Say which rows of whole numbers are longer than GRID, (k, 1); exactly, as squares are below 2^53.

    A row with what is no number is outside as well, whichever compiler has made the program.
    """
    if on_card(whole):
        squares = (whole * whole).sum(axis=1, keepdims=True)
    else:  # without a copy
        parts = (whole[:, at : at + ALONE] for at in range(0, whole.shape[1], ALONE))
        squares = sum((part[:, None] @ part[:, :, None])[:, 0] for part in parts)
    return ~(squares <= GRID**2)


def _towards_zero(rows: A) -> A:
    """Round rows that are inside the ball towards zero, which leaves them there: one that is not is zero."""
    xp = namespace(rows)
    cut = xp.trunc(rows)
    outside = _outside(cut)
    return xp.where(outside, 0.0, cut) if on_card(rows) or outside.any() else cut


def equal_rounds(count: int, channels: Sequence[Channel]) -> tuple[Round, ...]:
    """Return rounds with equal shares of the squared budget, each of which may use these channels."""
    return (Round(1 / count, tuple(channels)),) * count


def finite_rows(rows: A) -> A:
    """Say which rows have finite numbers only: what is no number is the largest and the smallest of any."""
    xp = namespace(rows)
    return xp.isfinite(xp.amax(rows, axis=1)) & xp.isfinite(xp.amin(rows, axis=1))


@lru_cache(maxsize=8)
def _weights(channel: Channel, xp: ModuleType, device: object) -> Any:
    weights = channel.lift.weights(channel.dim)[0]
    return weights if xp is np else xp.asarray(weights, device=device)


@lru_cache(maxsize=64)
def _one(channel: Channel, count: int) -> int:
    """Return what each of so many ones is in a row on the grid."""
    return int(channel.whole(np.arange(channel.dim)[None] < count)[0, 0])


@lru_cache(maxsize=4)
def _steps(channel: Channel) -> Floats:
    weights, degrees = channel.lift.weights(channel.dim)
    steps = np.asarray(weights * float(GRID) ** -degrees)
    if len(steps) and (steps == steps[0]).all():
        return np.broadcast_to(steps[0], steps.shape)  # one number in memory
    steps.setflags(write=False)
    return steps
