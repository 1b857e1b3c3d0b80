"""An algorithm of somebody's own, in a file of their own: ridge regressions pulled towards a noisy mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import cloister as cl


@dataclass(frozen=True)
class ShrunkenRidge(cl.algorithms.Algorithm):
    """Each task tells its own ridge weights, clipped, once; then it solves again around their noisy mean."""

    dim: int
    clip: float = 1.0
    ridge: float = 2.0

    type_id = "ward-7/shrunken-ridge/1"

    def schedule(self, n_tasks, budget):
        return (cl.channel.Round(1.0, (cl.channel.Channel(self.dim, self.clip),)),)

    def start(self):
        return {"mean": np.zeros(self.dim)}

    def channel(self, board):
        return cl.channel.Channel(self.dim, self.clip)

    def init(self, block, board):
        return {"coef": self._solved(block, np.zeros(self.dim))}

    def send(self, states, block, board):
        return states["coef"], states

    def update(self, release, board):
        return {"mean": self.clip * release.value / release.denominator}

    def finish(self, states, block, board):
        return {"coef": self._solved(block, board["mean"])}

    def model_without_data(self, board):
        return {"coef": board["mean"][None]}

    def _solved(self, block, towards):
        with np.errstate(all="ignore"):  # absurd data spoil their own task, and nobody need hear of it
            weighted = block.weight[:, :, None] * block.X
            gram = np.swapaxes(weighted, 1, 2) @ block.X + self.ridge * np.eye(self.dim)
            target = (weighted * block.y[:, :, None]).sum(axis=1) + self.ridge * towards
            return np.stack([_solve(g, t) for g, t in zip(gram, target, strict=True)])


def _solve(gram, target):
    try:
        return np.linalg.solve(gram, target)
    except np.linalg.LinAlgError:
        return np.full(target.shape, np.nan)
