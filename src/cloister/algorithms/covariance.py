r"""Model-protected multi-task learning: a noisy covariance of models, and proximal steps at home.

Each round tasks say their models, clipped to a ball of radius K; the noisy sum of outer products is turned in
public into one matrix M that says which directions tasks share; each task projects its model by M and takes
a gradient step on its own data. Without noise this is proximal gradient descent on

.. math:: \min_W \sum_i f_i(w_i) + \lambda\,g(W),

with the trace norm for `LowRank` and the l2,1 norm for `GroupSparse`, because both proximal operators need
W only through :math:`WW'`.

References
----------
Paper "Privacy-preserving multi-task learning" (MP-MTL), Algorithms 1 to 4 and Theorem 6. Its Wishart noise
is not private; symmetric Gaussian noise with a public shift stands in its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cloister.algorithms.allocation import Allocation, Geometric, Power
from cloister.algorithms.mean import project
from cloister.channel import Channel, Diagonal, Lift, Outer, Round, unsvec
from cloister.errors import PlanError
from cloister.learners.losses import Loss

if TYPE_CHECKING:
    from cloister.billboard import Billboard, Release
    from cloister.tasks import Block

__all__ = ["GroupSparse", "LowRank", "ModelProtected"]

Floats = NDArray[np.float64]
States = dict[str, NDArray[Any]]

#: Chance that noise makes a shifted covariance indefinite in any of the rounds.
SHIFT_FAILS = 1e-3


@dataclass(frozen=True)
class ModelProtected:
    """The framework (Algorithm 1); `LowRank` and `GroupSparse` say what is released and what M is.

    Parameters
    ----------
    loss : LeastSquares or Logistic
        What a task minimises; a mean over its rows.
    lam : float
        Strength of the shared penalty.
    clip : float
        Radius K that models are clipped to; public.
    rounds, lr : int, float
        Releases, and the step size, at most 1 over the loss's smoothness.
    accelerated : bool
        Nesterov's momentum.
    strong : float
        Adds ``strong/2 |w|^2`` to every task's loss and uses what strong convexity offers.
    allocation : Power or Geometric, optional
        How the budget is shared over rounds; by default the paper's best (Theorem 6).
    warmup : int
        Local steps of the single-task fit that tasks start from; free.
    averaged : bool
        Return the average of the iterates rather than the last one.
    """

    loss: Loss
    lam: float = 0.1
    clip: float = 1.0
    rounds: int = 20
    lr: float = 1.0
    accelerated: bool = True
    strong: float = 0.0
    allocation: Allocation | None = None
    warmup: int = 100
    averaged: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.warmup < 0:
            raise PlanError(f"rounds must be >= 1 and warmup >= 0. Got {self.rounds} and {self.warmup}.")
        if not (self.lam >= 0 and self.lr > 0 and 0 <= self.strong < 1 / self.lr):
            raise PlanError(
                "lam must be >= 0, lr > 0 and strong in [0, 1/lr). "
                f"Got lam={self.lam}, lr={self.lr}, strong={self.strong}."
            )

    @property
    def _lift(self) -> Lift:
        raise PlanError("ModelProtected is a framework. Use LowRank or GroupSparse.")

    def _shared_matrix(self, total: Floats, noise: float) -> Floats:
        """Turn the noisy sum, in the models' units, into M."""
        raise PlanError("ModelProtected is a framework. Use LowRank or GroupSparse.")

    def shares(self) -> tuple[float, ...]:
        """Return each round's share of the squared budget."""
        if self.allocation is not None:
            return self.allocation.shares(self.rounds)
        ratio = self.strong * self.lr
        if ratio == 0:
            return Power(0.4 if self.accelerated else 0.0).shares(self.rounds)
        slow = (1 - math.sqrt(ratio)) ** 0.2 if self.accelerated else (1 - ratio) ** 0.4
        return Geometric(slow).shares(self.rounds)

    def momentum(self, t: int) -> float:
        """Return beta_t of round t = 1, 2, ..."""
        if not self.accelerated:
            return 0.0
        if self.strong == 0:
            return (t - 1) / (t + 2)
        root = math.sqrt(self.strong * self.lr)
        return (1 - root) / (1 + root)

    def schedule(self, n_tasks: int, mu: float) -> tuple[Round, ...]:
        """Return rounds on one channel, with the budget allocated over them."""
        return tuple(Round(share, (self._channel,)) for share in self.shares())

    @property
    def _channel(self) -> Channel:
        return Channel(self.loss.size, self.clip, self._lift)

    def open(self) -> dict[str, NDArray[Any]]:
        """Start with nothing shared."""
        return {"matrix": np.eye(self.loss.size)}

    def channel(self, board: Billboard) -> Channel:
        """Return the one channel."""
        return self._channel

    def init(self, block: Block, board: Billboard) -> States:
        """Fit every task on its own."""
        start = np.zeros((len(block), self.loss.size))
        previous, weights = start, start
        for step in range(1, self.warmup + 1):
            ahead = weights + (step - 1) / (step + 2) * (weights - previous)
            previous, weights = weights, self._descend(ahead, block)
        return {"weights": weights, "shared": project(weights, self.clip), "sum": np.zeros_like(weights)}

    def _descend(self, weights: Floats, block: Block) -> Floats:
        slope = self.loss.gradient(weights, block.X, block.y, block.weight)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(weights - self.lr * (slope + self.strong * weights))

    def send(self, states: States, block: Block, board: Billboard) -> tuple[NDArray[Any], States]:
        """Say the model: the single-task fit at first, then the result of a proximal gradient step."""
        if board.rounds:
            states = self._step(states, block, board)
        return states["weights"], states

    def _step(self, states: States, block: Block, board: Billboard) -> States:
        shared = self._share(states, board)
        ahead = shared + self.momentum(board.rounds) * (shared - states["shared"])
        return {"weights": self._descend(ahead, block), "shared": shared, "sum": states["sum"] + shared}

    def _share(self, states: States, board: Billboard) -> Floats:
        """Project the clipped models by the shared matrix."""
        return np.asarray(project(states["weights"], self.clip) @ board["matrix"])

    def digest(self, release: Release, board: Billboard) -> dict[str, NDArray[Any]]:
        """Post the shared matrix."""
        unit = self.clip**2
        return {"matrix": self._shared_matrix(unit * release.value, unit * release.noise)}

    def finish(self, states: States, block: Block, board: Billboard) -> States:
        """Project once more; return the last or the average model."""
        shared = self._share(states, board)
        return {"coef": (states["sum"] + shared) / board.rounds if self.averaged else shared}

    def _threshold(self, squares: Floats) -> Floats:
        """Return max(0, 1 - lr lam / sqrt(.)): what the proximal operator keeps of a direction."""
        return np.maximum(0.0, 1 - self.lr * self.lam / np.sqrt(np.maximum(squares, 1e-300)))


@dataclass(frozen=True)
class LowRank(ModelProtected):
    r"""Trace-norm regularised tasks (Algorithm 2): models in a common subspace.

    Privacy
    -------
    Releases :math:`\sum_i w_i w_i'` with :math:`|w_i| \le K`: Frobenius sensitivity :math:`K^2` (zero-out) or
    :math:`\sqrt2 K^2` (replace), with GOE noise of deviation s. A public shift
    :math:`s(\sqrt{2d} + \sqrt{2\log(2T/\beta)})` keeps the covariance positive, but for chance
    :math:`\beta`, so that loud noise gives M close to I: single-task learning.
    """

    @property
    def _lift(self) -> Lift:
        return Outer()

    def _shared_matrix(self, total: Floats, noise: float) -> Floats:
        dim = self.loss.size
        shift = noise * (math.sqrt(2 * dim) + math.sqrt(2 * math.log(2 * self.rounds / SHIFT_FAILS)))
        values, vectors = np.linalg.eigh(unsvec(total, dim))
        return np.asarray((vectors * self._threshold(values + shift)) @ vectors.T)


@dataclass(frozen=True)
class GroupSparse(ModelProtected):
    r"""Tasks with l2,1-regularised weights (Algorithm 3): a common support.

    Privacy
    -------
    Releases only the diagonal, :math:`\sum_i w_{ij}^2`: l2 sensitivity :math:`K^2` (zero-out) or
    :math:`\sqrt2 K^2` (replace), with d noises instead of d(d+1)/2 and a public shift of
    :math:`s\sqrt{2\log(2dT/\beta)}`.
    """

    @property
    def _lift(self) -> Lift:
        return Diagonal()

    def _shared_matrix(self, total: Floats, noise: float) -> Floats:
        shift = noise * math.sqrt(2 * math.log(2 * len(total) * self.rounds / SHIFT_FAILS))
        return np.diag(self._threshold(total + shift))
