"""Averaging: one release of clipped models, and their noisy mean is everyone's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithm import Budget
from cloister.algorithms.bases import LossAlgorithm
from cloister.arrays import Array, Floats, Public, States
from cloister.channel import Channel, Plain, Round
from cloister.errors import PlanError
from cloister.learners.linear.losses import Loss

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView, Release
    from cloister.tasks import Block

__all__ = ["ModelAveraging"]


@dataclass(frozen=True)
class ModelAveraging(LossAlgorithm):
    r"""Each task fits its own regularised model; all use the noisy average of them.

    .. math::
        \hat w_k = \arg\min_w f_k(w) + \tfrac{\lambda}{2}|w|^2, \qquad
        \bar w = \frac1m \left( \sum_k \mathrm{Clip}_K(\hat w_k) + \text{noise} \right)

    The paper protects one row of one task, by noise for the sensitivity :math:`2/(n_{\min} m \lambda)` of the
    average; see `aggregation_scale` for what that takes to protect a task. Here the task is protected
    directly: a clipped model moves the sum by at most 2K, however many rows are behind it.

    Parameters
    ----------
    loss : LeastSquares, Logistic or Softmax
        What a task minimises; a mean over its rows.
    lam : float
        Strength of each task's own ridge; more than 0.
    clip : float
        Radius K that models are clipped to; public.
    steps : int
        Accelerated gradient steps of the local fit; its step size is the task's own and stays at home.

    Privacy
    -------
    One task is protected. Its one message is its clipped model: sensitivity K (zero-out) or 2K (replace) of
    the sum. The model all tasks end with is the release itself, so it may be published.

    References
    ----------
    M. Pathak, S. Rane and B. Raj, "Multiparty differential privacy via aggregation of locally trained
    classifiers", NeurIPS 2010, section 3 (DP-AGGR), with the task as the unit of privacy.

    Examples
    --------
    >>> from cloister import Plan, Tasks, run
    >>> from cloister.learners import LeastSquares
    >>> from cloister.mechanisms import NoNoise
    >>> tasks = Tasks.from_list([[[1.0]], [[1.0]]], [[2.0], [4.0]])
    >>> plan = Plan(ModelAveraging(LeastSquares(1), lam=1.0, clip=5.0), NoNoise(), n_tasks=2)
    >>> run(plan, tasks).private.models["coef"].round(6).tolist()
    [[1.5], [1.5]]
    """

    loss: Loss
    lam: float = 0.1
    clip: float = 1.0
    steps: int = 200

    def __post_init__(self) -> None:
        if not 0 < self.lam < np.inf or self.steps < 1:
            raise PlanError(
                f"lam must be > 0 and finite, steps at least 1. Got lam={self.lam}, steps={self.steps}."
            )

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        return (Round(1.0, (self._channel,)),)

    @property
    def _channel(self) -> Channel:
        return Channel(self.loss.size, self.clip, Plain())

    def start(self) -> Public:
        return {"mean": np.zeros(self.loss.size)}

    def channel(self, board: BoardView) -> Channel:
        return self._channel

    def init(self, block: Block, board: BoardView) -> States:
        return {"weights": self._fit(block)}

    def _fit(self, block: Block) -> Floats:
        """Follow Nesterov's method for strongly convex functions, at each task's own pace."""
        lr = (1 / (self.loss.smoothness(block.X, block.weight) + self.lam))[:, None]
        root = np.sqrt(self.lam * lr)
        momentum = (1 - root) / (1 + root)
        weights = previous = np.zeros((len(block), self.loss.size))
        with np.errstate(over="ignore", invalid="ignore"):  # data that overflow spoil their own task only
            for _ in range(self.steps):
                ahead = weights + momentum * (weights - previous)
                gradient = self.loss.gradient(ahead, block.X, block.y, block.weight) + self.lam * ahead
                previous, weights = weights, ahead - lr * gradient
        return np.asarray(weights)

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        return states["weights"], states

    def update(self, release: Release, board: BoardView) -> Public:
        return {"mean": self.clip * release.value / release.denominator}

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        return {"coef": np.repeat(board["mean"][None, :], len(block), axis=0)}

    def newcomer(self, board: BoardView) -> States:
        return {"coef": board["mean"][None, :]}
