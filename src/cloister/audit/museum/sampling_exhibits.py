"""Exhibits about who takes part, and about denominators: coins that are no secret, sizes that are.

*Coins.* Two exhibits run T rounds of the published loop with one-parameter messages of size 1 and noise of
deviation z on their sum; all others collude, and pool their coins.

*Denominators* that the data choose: sample counts, and messages that are thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.audit.museum.noise_exhibits import Shipped
from cloister.core.arrays import Floats
from cloister.core.channel import Channel
from cloister.core.lifts import Relation
from cloister.privacy import tradeoff
from cloister.privacy.hidden_sampling import pld_epsilon
from cloister.privacy.visible_sampling import mixture_epsilon

_RUNS = 5_000  # at a time


@dataclass(frozen=True)
class FixedSizeRounds:
    """Two of m tasks are drawn for each round, without replacement; the others say nothing.

    Whoever pools the coins of all others knows the last one: the score is the log likelihood ratio of the
    rounds in which the task took part.
    """

    tasks: int = 20
    rounds: int = 100
    noise: float = 4.0

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        runs = [self._draw(speaking, len(part), rng) for part in _parts(count)]
        return np.concatenate(runs)

    def _draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        shape = (count, self.rounds)
        one = rng.integers(self.tasks, size=shape)
        two = (one + rng.integers(1, self.tasks, size=shape)) % self.tasks
        chosen = (one == 0) | (two == 0)
        means = speaking * chosen / 2 + self.noise / 2 * rng.standard_normal(shape)  # what is broadcast
        others = (one != 0).astype(int) + (two != 0)  # what the others know
        inferred = others == 1
        return np.asarray((inferred * (2 * means - 0.5)).sum(axis=1) / self.noise**2)


@dataclass(frozen=True)
class SampledMeans:
    """Each task tosses a coin that stays secret; others say 1 and the task says -1, or nothing.

    The score is the log likelihood ratio, given who else took part.

    Parameters
    ----------
    size : RealizedSize or PublicSize
        What a round's sum is divided by, and whether a silent task counts.
    tasks, rounds, rate, noise
        The plan; noise is that of the sum, so a mean gets ``noise / (rate * tasks)``.
    """

    size: RealizedSize | PublicSize
    tasks: int = 20
    rounds: int = 10
    rate: float = 0.1
    noise: float = 1.0

    @property
    def expected(self) -> float:
        return self.rate * self.tasks

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        others = rng.binomial(self.tasks - 1, self.rate, (count, self.rounds))
        coins = rng.random((count, self.rounds)) < self.rate
        without, with_it = self.size.means(others, self.expected)
        deviation = self.noise / self.expected
        means = np.where(speaking & coins, with_it, without) + deviation * rng.standard_normal(coins.shape)
        moved = with_it - without
        exponent = moved * (means - without - moved / 2) / deviation**2
        return np.asarray(np.log1p(self.rate * np.expm1(exponent)).sum(axis=1))


@dataclass(frozen=True)
class RealizedSize:
    """Divide by how many took part; a round in which nobody did posts zero."""

    def means(self, others: NDArray[np.int64], expected: float) -> tuple[Floats, Floats]:
        """Return means without and with the task's -1, where so many others say 1."""
        return np.asarray(others / np.maximum(1, others)), np.asarray((others - 1) / (others + 1))


@dataclass(frozen=True)
class PublicSize:
    """Divide by how many were expected; who says nothing says zero."""

    def means(self, others: NDArray[np.int64], expected: float) -> tuple[Floats, Floats]:
        return np.asarray(others / expected), np.asarray((others - 1) / expected)


def _parts(count: int) -> list[range]:
    return [range(start, min(start + _RUNS, count)) for start in range(0, count, _RUNS)]


def sampling_exhibits(delta: float = 0.01) -> tuple[Exhibit, ...]:
    """Return fixed-size sampling under amplified accounting, and realised denominators."""
    return (_fixed_size(delta), _realized(delta))


def _fixed_size(delta: float) -> Exhibit:
    attack = FixedSizeRounds()
    rate, mu = 2 / attack.tasks, 1 / attack.noise
    amplified = pld_epsilon(((mu, mu, attack.rounds),), rate, "zero_out", 1, delta)
    visible = mixture_epsilon(((mu, attack.rounds),), (1 - rate, rate), delta)
    claim = Claim(amplified, delta, Relation.ZERO_OUT)
    return Exhibit(
        name="fixed-size-sampling",
        title="amplification by sampling a fixed number of tasks",
        claim=claim,
        source="PMTL (ICLR 2022 submission), Theorems 1 and 2 with |S_t| = q; its code's accountant",
        story="Amplification needs a coin that the adversary does not know. If the number of tasks in a "
        "round is fixed, the others, who may collude under joint privacy, know from their own coins "
        "whether the last task took part. What they see is then not amplified at all.",
        attack=attack,
        repaired=Repaired(
            "the same run, priced for visible participation", replace(claim, epsilon=visible), attack
        ),
        draws=100_000,
    )


def _realized(delta: float) -> Exhibit:
    broken = SampledMeans(RealizedSize())
    mu = 1 / broken.noise
    epsilon = pld_epsilon(((mu, mu, broken.rounds),), broken.rate, "zero_out", 1, delta)
    claim = Claim(epsilon, delta, Relation.ZERO_OUT)
    return Exhibit(
        name="realised-size",
        title="a sum divided by how many really took part",
        claim=claim,
        source="PMTL, Algorithm 1, line 8, and equation (6): 1/|S_t|, under the Poisson sampling that its "
        "accountant assumes",
        story="With n others in a round a task moves the mean by up to 2/(n + 1), not by 1 over the "
        "expected size that the noise was set for: the denominator is data too. Rounds with few tasks "
        "tell too much.",
        attack=broken,
        repaired=Repaired("a public denominator", claim, replace(broken, size=PublicSize())),
        draws=100_000,
    )


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
    noise = 1 / tradeoff.mu(epsilon, delta)
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
