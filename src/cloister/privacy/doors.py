"""The doors of correlated noise: what the curator remembers of past sums, and what everybody knows anyway.

Each has a *secret* memory of sums, as whole numbers where noise is exact, and a *public* one that is computed
from posted releases and nothing else. A round's measurement is made of the secret memory, gets fresh noise,
and is decoded with the public memory. So a release is a function of its measurement and of earlier releases,
rounding included. When a run goes on, the public memory is filled with what was posted: no noise is drawn a
second time, even if sums come out differently in their last bits on another device. They are sums of clipped
messages all the same, so that one task moves a measurement no further than the proof allows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Array, Floats
from cloister.channel import Channel
from cloister.privacy.buffers import SCALE_BITS, Buffers
from cloister.privacy.randomness import Randomness, Stream
from cloister.privacy.strategies import BinaryTree

__all__ = ["BufferDoor", "Measure", "RingDoor", "TreeDoor"]


class Measure(Protocol):
    """Adds noise to what is measured, and returns it in units of the clip."""

    def __call__(self, encoded: Array, channel: Channel, stream: Stream) -> Floats:
        """Return a measurement."""


@dataclass
class RingDoor:
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

    def release(self, total: Array, channel: Channel) -> Floats:
        """Return the next round's release."""
        self._hear(total)
        ages = (self.turn - np.arange(len(self.secret))) % len(self.secret)
        encoded = np.einsum("i,ij->j", self.weights[ages], self.secret)  # twice as fast as a matrix product
        past = np.where(ages == 0, 0.0, self.coefficients[ages])
        measured = self.measure(encoded, channel, self.source.stream("noise", self.turn))
        released = measured - past @ self.public
        self._post(released)
        return released

    def recall(self, total: Array, channel: Channel, posted: Floats) -> None:
        """Take in a round whose release is posted."""
        self._hear(total)
        self._post(posted)

    def _hear(self, total: Array) -> None:
        total = np.asarray(total)
        if not self.secret.size:
            self.secret = np.zeros((len(self.weights), total.size), dtype=self.weights.dtype)
            self.public = np.zeros((len(self.weights), total.size))
        self.secret[self.turn % len(self.secret)] = total

    def _post(self, released: Floats) -> None:
        self.public[self.turn % len(self.public)] = released
        self.turn += 1


@dataclass
class BufferDoor:
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

    def release(self, total: Array, channel: Channel) -> Floats:
        """Return the next round's release."""
        said = self._scaled(total)
        if self.bits is None:
            encoded = said + self.buffers.omega @ self.secret
        else:
            encoded = said + _times(self.buffers.weights, self.secret).sum(axis=0)
        measured = self.measure(encoded, channel, self.source.stream("noise", self.turn))
        released = measured - self.buffers.omega @ self.public
        self._turn(said, released)
        return released

    def recall(self, total: Array, channel: Channel, posted: Floats) -> None:
        """Take in a round whose release is posted."""
        self._turn(self._scaled(total), posted)

    def _scaled(self, total: Array) -> Array:
        total = np.asarray(total)
        if not self.secret.size:
            shape = (len(self.buffers.decays), total.size)
            self.secret = np.zeros(shape, dtype=np.float64 if self.bits is None else np.int64)
            self.public = np.zeros(shape)
        return total if self.bits is None else total << self.bits

    def _turn(self, said: Array, released: Floats) -> None:
        theta = self.buffers.theta[:, None]
        self.secret = said + (
            theta * self.secret if self.bits is None else _times(self.buffers.decays, self.secret)
        )
        self.public = theta * self.public + released
        self.turn += 1


@dataclass(frozen=True, eq=False, repr=False)
class _LeftChild:
    """A complete node that waits for its sibling: its secret sum, and the public total before it."""

    level: int
    total: Array
    before: Floats


@dataclass
class TreeDoor:
    """Remembers one complete node for each binary digit of the number of rounds so far."""

    tree: BinaryTree
    measure: Measure
    source: Randomness
    turn: int = 0
    waiting: list[_LeftChild] = field(default_factory=list, repr=False)
    running: Floats | None = field(default=None, repr=False)

    def release(self, total: Array, channel: Channel) -> Floats:
        """Return the next round's release: the running total's estimate less the one before."""
        running = self._running(total)
        top, stream = int(self.tree.levels[self.turn]), self.source.stream("noise", self.turn)
        node, before, after = np.asarray(total), running, running
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

    def recall(self, total: Array, channel: Channel, posted: Floats) -> None:
        """Take in a round whose release is posted."""
        self._running(total)
        self._turn(total, posted)

    def _running(self, total: Array) -> Floats:
        if self.running is None:
            self.running = np.zeros(np.asarray(total).size)
        return self.running

    def _turn(self, total: Array, released: Floats) -> None:
        assert self.running is not None
        node = _LeftChild(0, np.array(total), self.running)  # a copy: an engine may use its own again
        while self.waiting and self.waiting[-1].level == node.level:
            left = self.waiting.pop()
            node = _LeftChild(node.level + 1, left.total + node.total, left.before)
        self.waiting.append(node)
        self.running = self.running + released
        self.turn += 1


def _times(fractions: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return fractions (of 2^30) of rows of whole numbers, rounded to the nearest; nothing overflows."""
    column = fractions[:, None]
    high, low = values >> SCALE_BITS, values & (2**SCALE_BITS - 1)
    return np.asarray(column * high + ((column * low + 2 ** (SCALE_BITS - 1)) >> SCALE_BITS))
