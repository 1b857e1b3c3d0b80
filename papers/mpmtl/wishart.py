"""Algorithms 2 and 3 of MP-MTL with the noise that the paper publishes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cloister import Plan
from cloister.algorithms import GroupSparse, LowRank
from cloister.channel import Channel
from cloister.core.arrays import Floats
from cloister.core.lifts import svec
from cloister.mechanisms import NoNoise
from cloister.privacy.randomness import Randomness, normals
from papers.mpmtl.instance_level import round_budgets


def paper_delta(n_tasks: int) -> float:
    """Return 1 / (m log m), the paper's choice."""
    return 1 / (n_tasks * math.log(n_tasks))


@dataclass(frozen=True)
class PublishedWishart(NoNoise):
    """The noise that the paper publishes, in units of the clip: W_d(d + 1, I / (2 epsilon_t)). NOT PRIVATE.

    A neighbour cannot make what it makes with chance 1 - exp(-epsilon_t), so its price is infinite, as the
    price of silence is. No shift is needed, because it is positive; hence it says that its deviation is 0.
    """

    epsilons: tuple[float, ...]
    dim: int

    def perturb(
        self, total: Floats, channel: Channel, noise: float, source: Randomness, round: int
    ) -> Floats:
        """Add the noise, or its diagonal where only that is released."""
        count = (self.dim + 1) * self.dim
        root = normals(source.stream("noise", round).uniforms(count)).reshape(self.dim + 1, self.dim)
        matrix = root.T @ root / (2 * self.epsilons[round])
        return total + (np.diag(matrix) if total.size == self.dim else svec(matrix))


def published_plan(algorithm: LowRank | GroupSparse, n_tasks: int, epsilon: float) -> Plan:
    """Return an algorithm with the noise and the composition of the paper (Definition 7). NOT PRIVATE."""
    delta = paper_delta(n_tasks)
    budgets = round_budgets(epsilon, delta, np.sqrt(algorithm.shares()))
    return Plan(algorithm, PublishedWishart(budgets, algorithm.features), n_tasks=n_tasks, delta=delta)
