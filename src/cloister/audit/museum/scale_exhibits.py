"""Exhibits about the scale of noise: upside down in Algorithm 5, or set for a tree with too few leaves.

The first is noise that tasks add themselves, the second noise on prefix sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from cloister.audit.fixtures import PublishedLaplace, PublishedWishart
from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.audit.releases import ReleaseSource, repeated
from cloister.core.arrays import Floats
from cloister.core.channel import Channel, equal_rounds
from cloister.core.lifts import Relation
from cloister.privacy import tradeoff
from cloister.privacy.laplace import L2Laplace
from cloister.privacy.mechanisms import Schedule
from cloister.privacy.prefix import Tree
from cloister.privacy.randomness import SystemRandomness
from cloister.privacy.sampling import OnePass


class TaskNoise(Protocol):
    """Noise that a task adds to its own model."""

    def noisy(self, model: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Return `count` noisy models."""


@dataclass(frozen=True)
class GammaLength:
    """A uniform direction and a Gamma length of some scale."""

    scale: float

    def noisy(self, model: Floats, count: int, rng: np.random.Generator) -> Floats:
        direction = rng.standard_normal((count, len(model)))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        return np.asarray(model + direction * rng.gamma(len(model), self.scale, (count, 1)))


@dataclass(frozen=True)
class ShippedLaplace:
    """The library's own `L2Laplace` at an epsilon: one release of one message."""

    epsilon: float

    def noisy(self, model: Floats, count: int, rng: np.random.Generator) -> Floats:
        mechanism, channel = L2Laplace(self.epsilon), Channel(len(model))
        curator = ReleaseSource(mechanism, SystemRandomness(rng.bytes(32)))
        total, noise = curator.total(channel, model[None]), mechanism.noise(channel, Relation.REPLACE, 1.0)
        return curator.releases(total, channel, noise, count)


@dataclass(frozen=True)
class NoisyTask:
    r"""A task adds noise of density :math:`\propto e^{-|b|/s}` to its model; others see a noisy covariance.

    They know what they said themselves and subtract it. The task's model is one of two orthogonal ones, of
    length 1, so the difference of the first two diagonal entries tells.

    Parameters
    ----------
    noise : TaskNoise
        How the task adds it.
    dim : int
        Parameters of a model.
    curator : float
        Epsilon of the curator's own noise, on top; what is claimed of the task's noise does not depend on it.
    """

    noise: TaskNoise
    dim: int = 2
    curator: float = 20.0

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return the difference of the first two variances."""
        model = np.eye(self.dim)[0 if speaking else 1]
        noisy_models = self.noise.noisy(model, count, rng)
        noise = PublishedWishart(self.curator).draw(np.zeros((self.dim, self.dim)), rng, count)
        seen = noisy_models[:, :, None] * noisy_models[:, None, :] + noise
        return np.asarray(seen[:, 0, 0] - seen[:, 1, 1])


def local_noise_exhibits(epsilon: float = 0.5) -> tuple[Exhibit, ...]:
    """Return Algorithm 5 at an epsilon_dp."""
    claim = Claim(epsilon, 0.0, Relation.REPLACE)
    published = PublishedLaplace(epsilon)
    return (
        Exhibit(
            name="inverted-density",
            title="a noise density with epsilon upside down",
            claim=claim,
            source="MP-MTL, supplement, Algorithm 5, Step 4, and Proposition 4",
            story="The printed density falls like exp(-2K|b|/epsilon): less epsilon means less noise, and "
            "two models 2K apart differ by a factor of exp(4K^2/epsilon). The density that is meant "
            "falls like exp(-epsilon|b|/2K).",
            attack=NoisyTask(GammaLength(published.scale)),
            repaired=Repaired(
                "our Laplace: the density the right way up", claim, NoisyTask(ShippedLaplace(epsilon))
            ),
        ),
    )


_RUNS = 2_000  # at a time


def height(leaves: int) -> int:
    """Return how many nodes of a binary tree over so many leaves contain the first one.

    Examples
    --------
    >>> [height(leaves) for leaves in (1, 3, 255)]
    [1, 2, 8]
    """
    return math.ceil(math.log2(leaves + 1))


@dataclass(frozen=True)
class PrefixSums:
    """Tree aggregation over tasks that come one by one, each saying one number of size 1 at most.

    Every prefix sum is released. The first task is in the sums of 1, 2, 4, ... tasks, each of which is a node
    of the tree with noise of its own; the score is their total.
    """

    deviation: float
    tasks: int = 255

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return the total of the sums that are single nodes, less what the others said."""
        parts = [min(_RUNS, count - start) for start in range(0, count, _RUNS)]
        return np.concatenate([self._draw(speaking, part, rng) for part in parts])

    def _draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        messages = np.full(self.tasks, 0.5)
        messages[0] = speaking
        sums = np.cumsum(messages) + self._noise(count, rng)
        others = np.cumsum(messages) - speaking
        powers = 2 ** np.arange(height(self.tasks)) - 1
        return np.asarray((sums - others)[:, powers].sum(axis=1))

    def _noise(self, count: int, rng: np.random.Generator) -> Floats:
        """Return the noise of every prefix: one node for each binary digit of its length."""
        noise, lengths = np.zeros((count, self.tasks)), np.arange(1, self.tasks + 1)
        for level in range(height(self.tasks)):
            nodes = self.deviation * rng.standard_normal((count, self.tasks >> level))
            used = (lengths >> level) & 1 == 1
            noise[:, used] += nodes[:, (lengths[used] >> level) - 1]
        return noise


@dataclass(frozen=True)
class ShippedTree:
    """The same attack on the library's own tree."""

    mu: float
    tasks: int = 255

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return the total of the sums that are single nodes, less what the others said."""
        channel = Channel(1)
        schedule = Schedule(equal_rounds(self.tasks, [channel]), OnePass(), self.tasks, Relation.ZERO_OUT)
        state = Tree(self.mu, exact=False).begin(schedule, SystemRandomness(rng.bytes(32)))
        wide = replace(channel, lift=repeated(channel.lift, count))
        messages = np.full(self.tasks, 0.5)
        messages[0] = speaking
        score, total = np.zeros(count), np.zeros(count)
        for t, message in enumerate(messages):
            total += state.release(np.full(count, message), wide)
            if t + 1 in 2 ** np.arange(height(self.tasks)):
                score += total - (messages[: t + 1].sum() - speaking)
        return score


def tree_exhibits(epsilon: float = 1.0, delta: float = 1e-3, rows: int = 3) -> tuple[Exhibit, ...]:
    """Return a tree whose noise is set for the rows of a task instead of the tasks."""
    mu, claim = tradeoff.mu(epsilon, delta), Claim(epsilon, delta, Relation.ZERO_OUT)
    broken = PrefixSums(math.sqrt(height(rows)) / mu)
    return (
        Exhibit(
            name="short-tree",
            title="a tree of tasks with noise for the rows of one task",
            claim=claim,
            source="meta-learning appendix, Algorithm 4 and Theorems 10 and 12: InitializeTree(n, ...), "
            "with n rows a task where K tasks are meant",
            story="A task is in as many nodes as the tree over tasks is high. Noise that is set for the "
            "height of a tree over the rows of one task, log(n + 1) instead of log(K + 1), is too "
            "little: here 2 levels are paid for and 8 are there. Theorem 10 also loses a square root, "
            "on the safe side, which hides this as printed; here the square root is restored and the "
            "noise priced exactly.",
            attack=broken,
            repaired=Repaired("the library's Tree, set for a tree over tasks", claim, ShippedTree(mu)),
            draws=100_000,
        ),
    )
