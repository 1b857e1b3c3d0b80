"""Which subspace or coordinates the tasks' weights have in common, from one round of their directions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithms.constants import COVARIANCE
from cloister.algorithms.prior.noisy_covariance import compose, edge, factor_of, lifted, spikes
from cloister.algorithms.prior.structure import Structure
from cloister.core.arrays import Array, Floats, Public
from cloister.core.channel import Channel
from cloister.core.lifts import Absolute, Outer, unsvec
from cloister.learners.home import Home
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


def unit_length(weights: Floats) -> Floats:
    return np.asarray(weights / np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), 1e-300))


@dataclass(frozen=True)
class Subspace(Structure):
    """Tasks say the outer product of their own direction: for weights in a common subspace, mean useless."""

    about = "directions of weights"
    buys_scale = False

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return 1

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        return (Channel(learner.size, 1.0, Outer()),)

    def start(self, learner: BayesianLearner) -> Public:
        return {"moment": np.zeros((learner.size, learner.size)), "noise": np.zeros(())}

    def message(self, learner: BayesianLearner, home: Home, board: BoardView) -> Array:
        """Return each task's unit-normalised own weights: nothing is clipped."""
        return unit_length(learner.own_weights(home))

    def update(self, learner: BayesianLearner, release: Release, board: BoardView) -> Public:
        m = release.denominator
        return {"moment": unsvec(release.value / m, learner.size), "noise": np.array(release.noise / m)}

    def candidates(self, learner: BayesianLearner, located: int | None, board: BoardView) -> list[Candidate]:
        """Return shrunk covariances mixed with identity, and unshrunk ones lifted by the noise's edge."""
        dim, noise, total = learner.size, float(board["noise"]), board["moment"]
        kept, vectors = spikes(total, noise)
        raised = edge(noise, dim)
        matrices = [compose(kept, vectors, r) for r in COVARIANCE.mixes if kept.any()]
        matrices += [lifted(total, raised), lifted(total, raised / 2)]
        zero, weight = np.zeros(dim), 1.0 / (1 + len(matrices))
        return [Candidate(weight, zero, factor_of(m), False) for m in matrices]


@dataclass(frozen=True)
class Support(Structure):
    """Tasks say how much of their own direction lies on each coordinate: for a common support."""

    about = "directions of weights"
    buys_scale = False

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return 1

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        return (Channel(learner.size, 1.0, Absolute()),)

    def start(self, learner: BayesianLearner) -> Public:
        return {"size": np.zeros(learner.size), "noise": np.zeros(())}

    def message(self, learner: BayesianLearner, home: Home, board: BoardView) -> Array:
        return unit_length(learner.own_weights(home))

    def update(self, learner: BayesianLearner, release: Release, board: BoardView) -> Public:
        return {"size": release.value, "noise": np.array(release.noise)}

    def candidates(self, learner: BayesianLearner, located: int | None, board: BoardView) -> list[Candidate]:
        """Return diagonal priors at three thresholds."""
        dim, noise = learner.size, float(board["noise"])
        above = board["size"] - np.median(board["size"])
        diagonals = []
        for threshold in (*COVARIANCE.thresholds, math.sqrt(2 * math.log(max(dim, 2)))):
            kept = np.where(above > threshold * noise, np.maximum(above, 0.0) ** 2, 0.0)
            if kept.sum() > 0:
                diagonals.append(np.sqrt(np.maximum(kept * dim / kept.sum(), 1e-6)))
        zero, weight = np.zeros(dim), 1.0 / (1 + len(diagonals))
        return [Candidate(weight, zero, np.diag(d), False) for d in diagonals]
