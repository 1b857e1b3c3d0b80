"""States of correlated noise: what the curator remembers of past sums, and what everybody knows anyway.

Each has a *secret* memory of sums, as whole numbers where noise is exact, and a *public* one that is computed
from posted releases and nothing else. A round's measurement is made of the secret memory, gets fresh noise,
and is decoded with the public memory. So a release is a function of its measurement and of earlier releases,
rounding included. When a run goes on, the public memory is filled with what was posted, and the secret one
with what the run's journal kept of it, row by row (`changed`, `restore`): no task sends a second time, and
no noise is drawn a second time. Rows are overwritten: a long run needs no more room than a short one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Array, Floats, Integers
from cloister.core.channel import Channel
from cloister.privacy.randomness import Randomness, Stream
from cloister.privacy.strategies import SCALE_BITS, BinaryTree, Buffers


class TaskSum(Protocol):
    """The sum of a round's lifted messages: an array, or one that is still being computed. Private.

    Whole numbers where noise is exact, else floats. `numpy.asarray` waits for it, so who adds noise looks at
    the numbers last.
    """

    @property
    def size(self) -> int:
        """How many numbers it has; known before they are."""

    def __array__(self) -> NDArray[Any]:
        """Return the numbers, once they are there."""


@dataclass(frozen=True, eq=False, repr=False)
class NoisySum:
    """A sum of messages to which their tasks have added noise: a `TaskSum` that nobody adds more to.

    Attributes
    ----------
    values : int64 array
        In steps of the channel's grid.
    shares : int
        Of how many tasks messages and noise are in it; public, as the noise in the release follows from it.
    """

    values: Integers
    shares: int

    @property
    def size(self) -> int:
        return self.values.size

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.values if dtype is None else self.values.astype(dtype)

    def __repr__(self) -> str:
        return f"NoisySum({self.size} numbers of {self.shares} tasks)"


class ReadRow(Protocol):
    """Reads a row of the secret memory back as it was kept."""

    def __call__(self, row: int, since: int) -> bytes:
        """Return the bytes of a row that has not changed since round `since` was over (counted from 1)."""


class Measure(Protocol):
    """Adds noise to what is measured, and returns it in units of the clip."""

    def __call__(self, encoded: Array, channel: Channel, stream: Stream) -> Floats:
        """Return a measurement."""


@dataclass
class RingState:
    """Remembers the sums, and the releases, of the last rounds: as many as there are bands.

    Parameters
    ----------
    weights : array
        Coefficients as they encode: whole numbers where noise is exact.
    coefficients : array
        The same as they decode: the first is 1.
    """

    weights: Array
    coefficients: Floats
    measure: Measure
    source: Randomness
    turn: int = 0
    secret: Array = field(default_factory=lambda: np.zeros((0, 0)), repr=False)
    public: Floats = field(default_factory=lambda: np.zeros((0, 0)), repr=False)
    fresh: set[int] = field(default_factory=set, repr=False)

    @property
    def rows(self) -> int:
        return len(self.weights)

    def release(self, total: TaskSum, channel: Channel) -> Floats:
        self._add(np.asarray(total))
        ages = (self.turn - np.arange(len(self.secret))) % len(self.secret)
        encoded = np.einsum("i,ij->j", self.weights[ages], self.secret)  # twice as fast as a matrix product
        past = np.where(ages == 0, 0.0, self.coefficients[ages])
        measured = self.measure(encoded, channel, self.source.stream("noise", self.turn))
        released = measured - past @ self.public
        self._post(released)
        return released

    def recall(self, total: TaskSum, posted: Floats) -> None:
        self._add(np.asarray(total))
        self._post(posted)

    def listen(self, posted: Floats) -> None:
        self._make(posted.size)
        self._post(posted)

    def changed(self) -> dict[int, Array]:
        rows, self.fresh = {row: self.secret[row] for row in sorted(self.fresh)}, set()
        return rows

    def restore(self, read: ReadRow) -> None:
        for round in range(max(0, self.turn - self.rows), self.turn):
            row = round % self.rows
            self.secret[row] = np.frombuffer(read(row, round + 1), self.secret.dtype)

    def _make(self, size: int) -> None:
        if not self.secret.size:
            self.secret = np.zeros((self.rows, size), dtype=self.weights.dtype)
            self.public = np.zeros((self.rows, size))

    def _add(self, total: Array) -> None:
        self._make(total.size)
        self.secret[self.turn % self.rows] = total
        self.fresh.add(self.turn % self.rows)

    def _post(self, released: Floats) -> None:
        self.public[self.turn % self.rows] = released
        self.turn += 1


@dataclass
class BufferState:
    """Remembers a few decaying sums.

    Parameters
    ----------
    buffers : Buffers
        Decays and weights.
    bits : int, optional
        Bits after the point of the secret memory, which holds whole numbers; None for floating point.
    """

    buffers: Buffers
    bits: int | None
    measure: Measure
    source: Randomness
    turn: int = 0
    secret: Array = field(default_factory=lambda: np.zeros((0, 0)), repr=False)
    public: Floats = field(default_factory=lambda: np.zeros((0, 0)), repr=False)

    @property
    def rows(self) -> int:
        return len(self.buffers.decays)

    def release(self, total: TaskSum, channel: Channel) -> Floats:
        scaled = self._scaled(np.asarray(total))
        if self.bits is None:
            encoded = scaled + self.buffers.omega @ self.secret
        else:
            encoded = scaled + _times(self.buffers.weights, self.secret).sum(axis=0)
        measured = self.measure(encoded, channel, self.source.stream("noise", self.turn))
        released = measured - self.buffers.omega @ self.public
        self._decay(scaled)
        self._post(released)
        return released

    def recall(self, total: TaskSum, posted: Floats) -> None:
        self._decay(self._scaled(np.asarray(total)))
        self._post(posted)

    def listen(self, posted: Floats) -> None:
        self._make(posted.size)
        self._post(posted)

    def changed(self) -> dict[int, Array]:
        return dict(enumerate(self.secret))

    def restore(self, read: ReadRow) -> None:
        for row in range(self.rows):
            self.secret[row] = np.frombuffer(read(row, self.turn), self.secret.dtype)

    def _make(self, size: int) -> None:
        if not self.secret.size:
            self.secret = np.zeros((self.rows, size), dtype=np.float64 if self.bits is None else np.int64)
            self.public = np.zeros((self.rows, size))

    def _scaled(self, total: Array) -> Array:
        self._make(total.size)
        return total if self.bits is None else total << self.bits

    def _decay(self, scaled: Array) -> None:
        if self.bits is None:
            self.secret = scaled + self.buffers.theta[:, None] * self.secret
        else:
            self.secret = scaled + _times(self.buffers.decays, self.secret)

    def _post(self, released: Floats) -> None:
        self.public = self.buffers.theta[:, None] * self.public + released
        self.turn += 1


@dataclass(frozen=True, eq=False, repr=False)
class _LeftChild:
    """A complete node that waits for its sibling: its secret sum, and the public total before it."""

    level: int
    total: Array
    before: Floats


@dataclass
class TreeState:
    """Remembers one complete node for each binary digit of the number of rounds so far."""

    tree: BinaryTree
    dtype: str
    measure: Measure
    source: Randomness
    turn: int = 0
    waiting: list[_LeftChild] = field(default_factory=list, repr=False)
    running: Floats | None = field(default=None, repr=False)
    fresh: set[int] = field(default_factory=set, repr=False)

    @property
    def rows(self) -> int:
        return len(self.tree.variances)

    def release(self, total: TaskSum, channel: Channel) -> Floats:
        """Return the next round's release: the running total's estimate less the one before."""
        total = np.asarray(total)
        running = self._running(total.size)
        top, stream = int(self.tree.levels[self.turn]), self.source.stream("noise", self.turn)
        node, before, after = total, running, running
        for level in range(top + 1):
            if level:
                sibling = self.waiting[-level]
                node, before = sibling.total + node, sibling.before
            if level == top or self.tree.honaker:
                own, weight = self.measure(node, channel, stream), self.tree.variances[level]
                after = before + weight * own + (1 - weight) * (after - before)
        released = np.asarray(after - running)
        self._turn(total, released)
        return released

    def recall(self, total: TaskSum, posted: Floats) -> None:
        total = np.asarray(total)
        self._running(total.size)
        self._turn(total, posted)

    def listen(self, posted: Floats) -> None:
        self._running(posted.size)
        self._turn(np.zeros(posted.size, dtype=self.dtype), posted)

    def changed(self) -> dict[int, Array]:
        rows = {node.level: node.total for node in self.waiting if node.level in self.fresh}
        self.fresh = set()
        return rows

    def restore(self, read: ReadRow) -> None:
        for at, node in enumerate(self.waiting):
            kept = read(node.level, self.turn >> node.level << node.level)  # when it was complete
            self.waiting[at] = replace(node, total=np.frombuffer(kept, self.dtype))
        self.fresh = set()

    def _running(self, size: int) -> Floats:
        if self.running is None:
            self.running = np.zeros(size)
        return self.running

    def _turn(self, total: Array, released: Floats) -> None:
        assert self.running is not None
        node = _LeftChild(0, np.array(total), self.running)  # a copy: an engine may use its own again
        while self.waiting and self.waiting[-1].level == node.level:
            left = self.waiting.pop()
            node = _LeftChild(node.level + 1, left.total + node.total, left.before)
        self.waiting.append(node)
        self.fresh.add(node.level)
        self.running = self.running + released
        self.turn += 1


def _times(fractions: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return fractions (of 2^30) of rows of whole numbers, rounded to the nearest; nothing overflows."""
    column = fractions[:, None]
    high, low = values >> SCALE_BITS, values & (2**SCALE_BITS - 1)
    return np.asarray(column * high + ((column * low + 2 ** (SCALE_BITS - 1)) >> SCALE_BITS))
