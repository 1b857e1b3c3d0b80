"""A common subspace of the tasks' weights, from one round in which each says its own direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithms.structures.noisy_covariance import compose, edge, factor_of, lifted, spikes
from cloister.arrays import Array, Floats, Public, States
from cloister.channel import Channel, Outer
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate
from cloister.lifts import unsvec

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView, Release
    from cloister.tasks import Block

__all__ = ["Subspace", "unit_length"]


def unit_length(weights: Floats) -> Floats:
    return np.asarray(weights / np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), 1e-300))


@dataclass(frozen=True)
class Subspace:
    """Tasks say the outer product of their own direction: for weights in a common subspace, mean useless."""

    buys_scale = False
    several_classes = False
    groups = None
    for_groups = None
    start_from = None

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return 1

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        return (Channel(learner.size, 1.0, Outer()),)

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        return self.channels(learner)[0]

    def start(self, learner: BayesianLearner) -> Public:
        return {"moment": np.zeros((learner.size, learner.size)), "noise": np.zeros(())}

    def message(self, learner: BayesianLearner, states: States, block: Block, board: BoardView) -> Array:
        """Return each task's unit-normalised own weights: nothing is clipped."""
        return unit_length(learner.own_weights(states, block))

    def update(self, learner: BayesianLearner, release: Release, board: BoardView) -> Public:
        m = release.denominator
        return {"moment": unsvec(release.value / m, learner.size), "noise": np.array(release.noise / m)}

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        return np.zeros(learner.size)

    def prior_on(self, learner: BayesianLearner, board: BoardView) -> None:
        return None

    def candidates(self, learner: BayesianLearner, board: BoardView) -> list[Candidate]:
        """Return shrunk covariances mixed with identity, and unshrunk ones lifted by the noise's edge."""
        dim, noise, total = learner.size, float(board["noise"]), board["moment"]
        kept, vectors = spikes(total, noise)
        raised = edge(noise, dim)
        matrices = [compose(kept, vectors, r) for r in (0.003, 0.01, 0.03, 0.1, 0.3) if kept.any()]
        matrices += [lifted(total, raised), lifted(total, raised / 2)]
        zero, weight = np.zeros(dim), 1.0 / (1 + len(matrices))
        return [Candidate(weight, zero, factor_of(m), False) for m in matrices]
