"""The auditor's only call of a mechanism: many independent releases of one sum, by the code of a real run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import A, Floats, namespace
from cloister.channel import Channel, Lift, Relation
from cloister.privacy.mechanisms import Mechanism, PerRound
from cloister.privacy.randomness import Randomness, Stream

__all__ = ["Curator", "fresh", "in_release_units", "released_total", "repeated"]


@dataclass(frozen=True)
class Curator:
    """A mechanism with a source of noise, of which no stream is used twice."""

    mechanism: Mechanism
    source: Randomness
    turns: Iterator[int] = field(default_factory=count, repr=False)

    def uniforms(self, size: int) -> Floats:
        """Return fresh uniforms that are not noise, such as coins."""
        return self.stream().uniforms(size)

    def stream(self) -> Stream:
        """Return a fresh stream that is not noise."""
        return self.source.stream("coins", next(self.turns))

    def total(self, channel: Channel, messages: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of the messages as the mechanism takes it."""
        return channel.total(messages, self.mechanism.exact)

    def releases(self, total: NDArray[Any], channel: Channel, noise: float, draws: int) -> Floats:
        """Return independent releases of one sum, of shape (draws, size)."""
        if self.mechanism.coordinatewise and draws:
            wide = replace(channel, lift=repeated(channel.lift, draws))
            flat = self._perturb(np.tile(total, draws), wide, noise)
            return flat.reshape(draws, -1)
        rows = [self._perturb(total, channel, noise) for _ in range(draws)]
        return np.array(rows).reshape(draws, channel.size)

    def _perturb(self, total: NDArray[Any], channel: Channel, noise: float) -> Floats:
        return fresh(self.mechanism).perturb(total, channel, noise, self.source, next(self.turns))


def fresh(mechanism: Mechanism) -> PerRound:
    """Return a mechanism that is not `correlated` as what it then is: noise that is fresh in every round."""
    return cast("PerRound", mechanism)


def in_release_units(channel: Channel, total: NDArray[Any]) -> Floats:
    """Return a sum as it would be released without noise: integers times their steps, or as it is."""
    whole = np.issubdtype(total.dtype, np.integer)
    return np.asarray(channel.steps * total if whole else total, dtype=np.float64)


def released_total(mechanism: Mechanism, channel: Channel, messages: NDArray[Any]) -> Floats:
    """Return the sum of messages, by the mechanism's own code, as it would be released without noise."""
    return in_release_units(channel, channel.total(messages, mechanism.exact))


def repeated(lift: Lift, times: int) -> Lift:
    """Return a lift many times over, so that one call of a mechanism makes many releases."""
    return _Repeated(lift, times)


@dataclass(frozen=True)
class _Repeated(Lift):
    """A lift, many times over: the channel of many releases side by side."""

    lift: Lift
    times: int

    def weights(self, dim: int) -> tuple[Floats, NDArray[np.int64]]:
        weights, degrees = self.lift.weights(dim)
        return np.tile(weights, self.times), np.tile(degrees, self.times)

    def sums(self, units: A) -> A:
        tiled: A = namespace(units).tile(self.lift.sums(units), (self.times,))
        return tiled

    def sensitivity(self, relation: Relation) -> float:
        return self.lift.sensitivity(relation)
