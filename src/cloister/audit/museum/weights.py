"""Denominators that the data choose: sample counts, and messages that are thrown away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cloister.arrays import Floats
from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.audit.museum.noise import Shipped
from cloister.channel import Channel, Relation
from cloister.privacy import gaussian_dp

__all__ = ["SampleCounts", "ShippedMean", "Surviving", "WeightedMean", "weight_exhibits"]


class Weights(Protocol):
    """What each message counts for in the mean."""

    def mean(self, messages: Floats, rows: Floats) -> Floats:
        """Return the weighted mean of messages, of shape (tasks, d), from tasks with so many rows."""


@dataclass(frozen=True)
class SampleCounts:
    """Weight by the number of rows, as federated averaging does."""

    def mean(self, messages: Floats, rows: Floats) -> Floats:
        return np.asarray(rows @ messages / rows.sum())


@dataclass(frozen=True)
class Surviving:
    """Drop messages that are not finite; divide by how many are left."""

    def mean(self, messages: Floats, rows: Floats) -> Floats:
        return np.asarray(messages[np.isfinite(messages).all(axis=1)].mean(axis=0))


@dataclass(frozen=True)
class WeightedMean:
    """One round: messages of length at most 1, a mean of them, noise of deviation `noise` over their number.

    Parameters
    ----------
    weights : Weights
        How the mean is taken.
    noise : float
        Deviation of the noise relative to one message in an unweighted sum.
    rows : float
        How many rows the task has; each of the others has 10.
    others : float
        What the others say in every coordinate; they collude.
    tasks, dim : int
        Sizes.
    """

    weights: Weights
    noise: float
    rows: float = 10.0
    others: float = 0.0
    tasks: int = 10
    dim: int = 3

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return how far the mean is along the task's message from where silence would leave it."""
        message = np.eye(self.dim)[0]
        deviation = self.noise / self.tasks
        released = self._mean(speaking * message) + deviation * rng.standard_normal((count, self.dim))
        return np.asarray((released - self._mean(0 * message)) @ message)

    def _mean(self, message: Floats) -> Floats:
        messages = all_messages(message, self.others, self.tasks)
        return self.weights.mean(messages, np.array([self.rows] + [10.0] * (self.tasks - 1)))


@dataclass(frozen=True)
class ShippedMean:
    """The library's own sum and noise, over the public number of tasks; what is not finite counts as zero.

    Parameters
    ----------
    noise : float
        Deviation of the noise relative to one message.
    others : float
        What the others say in every coordinate.
    tasks, dim : int
        Sizes.
    """

    noise: float
    others: float = 0.0
    tasks: int = 10
    dim: int = 3

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return how far the mean is along the task's message from where silence would leave it."""
        message = np.eye(self.dim)[0]
        messages = all_messages(speaking * message, self.others, self.tasks)
        sums = Shipped().releases(messages, self.noise, count, rng)
        silent = Channel(self.dim).total(all_messages(0 * message, self.others, self.tasks))
        return np.asarray((sums - silent) @ message / self.tasks)


def all_messages(message: Floats, others: float, tasks: int) -> Floats:
    """Return all messages: the task's own, and what the others say in every coordinate."""
    return np.vstack([message, np.full((tasks - 1, len(message)), others)])


def weight_exhibits(epsilon: float = 1.0, delta: float = 1e-3) -> tuple[Exhibit, ...]:
    """Return sample-count weights and dropped messages, both with noise set for equal weights."""
    noise = 1 / gaussian_dp.mu(epsilon, delta)
    claim = Claim(epsilon, delta, Relation.ZERO_OUT)
    counts = Exhibit(
        name="sample-counts",
        title="a mean weighted by sample counts, with noise for equal weights",
        claim=claim,
        source="PMTL's code: weights n_k / sum n_j, accounted with z = sigma q / gamma",
        story="A task with n_k of the rows moves the mean by n_k / sum n_j, not by 1/q. Here one task of "
        "ten has 200 rows and the others 10 each: 6.9 times what the noise was set for. Others who "
        "report no rows leave it with all the weight; and the weights themselves are data.",
        attack=WeightedMean(SampleCounts(), noise, rows=200.0),
        repaired=Repaired("our sum: equal weights", claim, ShippedMean(noise)),
    )
    dropped = Exhibit(
        name="dropped-messages",
        title="messages that are not finite are dropped, and the rest averaged",
        claim=claim,
        source="PMTL's code: updates with NaN or infinity are dropped and change the denominator",
        story="Nine of ten tasks send NaN. The mean is then the last task's message alone, with noise set "
        "for a tenth of it. Joint privacy promises protection from exactly such others.",
        attack=WeightedMean(Surviving(), noise, others=float("nan")),
        repaired=Repaired(
            "our sum: what is not finite counts as zero", claim, ShippedMean(noise, others=float("nan"))
        ),
    )
    return (counts, dropped)
