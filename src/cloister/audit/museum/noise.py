"""How noise gets onto a sum: as floats, from a generator that all know, or by the library's own mechanism."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from cloister.arrays import Floats
from cloister.audit.releases import repeated
from cloister.channel import Channel, Lift, Plain
from cloister.privacy.mechanisms import Gaussian
from cloister.privacy.randomness import SystemRandomness

__all__ = ["Naive", "Release", "Reseeded", "Shipped"]

_SEED = 10  # of the published code


class Release(Protocol):
    """A way to release a sum of messages with Gaussian noise."""

    def releases(self, messages: Floats, deviation: float, count: int, rng: np.random.Generator) -> Floats:
        """Return `count` noisy sums of messages, of shape (tasks, dim) and length 1 at most."""


@dataclass(frozen=True)
class Naive:
    """The sum plus floats."""

    def releases(self, messages: Floats, deviation: float, count: int, rng: np.random.Generator) -> Floats:
        total = messages.sum(axis=0)
        return np.asarray(total + deviation * rng.standard_normal((count, len(total))))


@dataclass(frozen=True)
class Reseeded:
    """Floats from a Mersenne Twister that is seeded each time with the same, published seed."""

    def releases(self, messages: Floats, deviation: float, count: int, rng: np.random.Generator) -> Floats:
        """Return noisy sums; the noise is the same in every call."""
        return Naive().releases(messages, deviation, count, np.random.Generator(np.random.MT19937(_SEED)))


@dataclass(frozen=True)
class Shipped:
    """The library's own `Gaussian`, with a fresh key: its sum, its noise."""

    exact: bool = True

    def releases(self, messages: Floats, deviation: float, count: int, rng: np.random.Generator) -> Floats:
        return self.sums(np.broadcast_to(messages, (count, *messages.shape)), Plain(), deviation, rng)

    def sums(self, messages: Floats, lift: Lift, deviation: float, rng: np.random.Generator) -> Floats:
        """Return the noisy sum of each run's messages, in one call of the mechanism.

        Parameters
        ----------
        messages : array of shape (runs, tasks, dim)
            Messages, of length 1 at most.
        lift : Lift
            What is summed.
        deviation : float
            Of the noise on each number.
        rng : numpy.random.Generator
            For the key.
        """
        mechanism, runs = Gaussian(1.0, self.exact), len(messages)
        channel = Channel(messages.shape[2], lift=lift)
        different = messages[:1] if messages.strides[0] == 0 else messages  # if all are the same, one
        totals = np.array([channel.total(one, self.exact) for one in different])
        wide = replace(channel, lift=repeated(lift, runs))
        flat = np.broadcast_to(totals, (runs, channel.size)).ravel()
        noisy = mechanism.perturb(flat, wide, deviation, SystemRandomness(rng.bytes(32)), 0)
        return noisy.reshape(runs, channel.size)
