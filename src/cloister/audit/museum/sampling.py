r"""Who takes part: a coin that is no secret, a denominator that is one.

Both exhibits run T rounds of the published loop with one-parameter messages of size 1 and noise of deviation
z on their sum; all others collude, and pool their coins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Floats
from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.channel import Relation
from cloister.privacy.hidden import pld_epsilon
from cloister.privacy.visible import mixture_epsilon

__all__ = ["FixedSizeRounds", "PublicSize", "RealizedSize", "SampledMeans", "sampling_exhibits"]

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
