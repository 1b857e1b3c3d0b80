"""Models that are drawn towards the public mean of all: averaged once, or round by round.

`ModelAveraging` has one release of clipped models, and their noisy mean is everyone's model. In
`MeanRegularized` tasks and the mean follow each other round by round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithms.bases import LossAlgorithm
from cloister.core.arrays import Array, Floats, Public, States
from cloister.core.channel import Channel, Round, equal_rounds
from cloister.core.errors import PlanError
from cloister.core.lifts import Plain
from cloister.learners.linear.losses import Loss
from cloister.plan.algorithm import Budget

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


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

    def model_without_data(self, board: BoardView) -> States:
        return {"coef": board["mean"][None, :]}


@dataclass(frozen=True)
class MeanRegularized(LossAlgorithm):
    r"""Every task in every round: projected models, noisy mean, local steps towards it.

    .. math::
        \min_{w_1..w_m,\,\bar w}\ \sum_k \left( f_k(w_k) + \tfrac{\lambda}{2}\,|w_k - \bar w|^2 \right),
        \qquad |w_k| \le B

    Parameters
    ----------
    loss : LeastSquares, Logistic or Softmax
        What a task minimises; means over its rows.
    lam : float
        Penalty on the distance from the mean. 0 is single-task learning; at ``lam = 1/lr`` with one step a
        round every task restarts from the mean, as in federated averaging, but for the gradient, which is
        that at its own last model.
    clip : float
        Radius B of the ball all models live in; public.
    rounds, steps, lr : int, int, float
        Releases, local gradient steps between them, and their size.
    finetune, finetune_lr : int, float
        Local steps after the last release, and their size, by default `lr`; free. As printed (lines 10 to
        12), they do not project: a model that is no longer told may leave the ball.
    batch : int, optional
        Rows in a local minibatch, drawn by the task's own counter-based randomness; all rows by default.

    Privacy
    -------
    A task's message is its model, projected to the ball: sensitivity B (zero-out) or 2B (replace) of the
    sum. The mean starts from public zeros, never from models trained at home.

    References
    ----------
    Hu, Wu and Smith, "Private multi-task learning: formulation and applications to federated learning",
    arXiv:2108.12978, and its convex form with full participation (Algorithm 1).
    """

    loss: Loss
    lam: float = 0.1
    clip: float = 1.0
    rounds: int = 10
    steps: int = 5
    lr: float = 0.5
    finetune: int = 0
    batch: int | None = None
    finetune_lr: float | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.steps < 1:
            raise PlanError(f"rounds and steps must be at least 1. Got {self.rounds} and {self.steps}.")
        if not (self.lam >= 0 and self.lr > 0 and self.lam * self.lr <= 1):
            raise PlanError(
                f"lam must be >= 0, lr > 0 and lam * lr <= 1, lest steps overshoot the mean. "
                f"Got lam={self.lam} and lr={self.lr}."
            )
        if self.finetune < 0 or not 0 < self._last_lr < np.inf or self.lam * self._last_lr > 1:
            raise PlanError(
                "finetune must be >= 0, and finetune_lr > 0 with lam * finetune_lr <= 1. "
                f"Got {self.finetune} and {self.finetune_lr}."
            )

    @property
    def _last_lr(self) -> float:
        return self.lr if self.finetune_lr is None else self.finetune_lr

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        return equal_rounds(self.rounds, [self._channel])

    @property
    def _channel(self) -> Channel:
        return Channel(self.loss.size, self.clip, Plain())

    def start(self) -> Public:
        return {"mean": np.zeros(self.loss.size)}

    def channel(self, board: BoardView) -> Channel:
        return self._channel

    def init(self, block: Block, board: BoardView) -> States:
        return {"weights": np.repeat(board["mean"][None, :], len(block), axis=0)}

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        weights = states["weights"]
        for step in range(self.steps):
            weights = project(self._step(weights, block, board, step, self.lr), self.clip)
        return weights, {"weights": weights}

    def update(self, release: Release, board: BoardView) -> Public:
        return {"mean": self.clip * release.value / release.denominator}

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        weights = states["weights"]
        for step in range(self.finetune):
            weights = self._step(weights, block, board, step, self._last_lr)
        return {"coef": weights}

    def model_without_data(self, board: BoardView) -> States:
        return {"coef": board["mean"][None, :]}

    def _step(self, weights: Floats, block: Block, board: BoardView, step: int, lr: float) -> Floats:
        """Take one step against the gradient of the loss and the penalty on the distance from the mean."""
        gradient = self.loss.gradient(weights, block.X, block.y, self._rows(block, board.rounds, step))
        with np.errstate(over="ignore", invalid="ignore"):  # data that overflow spoil their own task only
            return np.asarray(weights - lr * (gradient + self.lam * (weights - board["mean"])))

    def _rows(self, block: Block, round: int, step: int) -> Floats:
        """Return row weights: all rows, or a minibatch of the task's own choosing."""
        weight: Floats = block.weight
        if self.batch is None:
            return weight
        draws = np.where(weight > 0, block.uniforms(round * self.steps + step), np.inf)
        return np.where(np.argsort(np.argsort(draws, axis=1), axis=1) < self.batch, weight, 0.0)


def project(weights: Floats, radius: float) -> Floats:
    """Project each row to the ball of this radius."""
    with np.errstate(over="ignore", invalid="ignore"):
        norm = np.sqrt((weights * weights).sum(axis=1, keepdims=True))
        return np.where(norm > radius, weights * (radius / np.maximum(norm, radius)), weights)
