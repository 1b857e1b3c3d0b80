r"""Model-protected multi-task learning: a noisy covariance of models, and proximal steps at home.

Each round tasks say their models, clipped to a ball of radius K; the noisy sum of outer products is turned in
public into one matrix M that says which directions tasks share; each task projects its model by M and takes
a gradient step on its own data. Without noise this is accelerated proximal gradient descent on

.. math:: \min_W \sum_i f_i(w_i) + \lambda\,g(W),

with the trace norm for `LowRank` and the l2,1 norm for `GroupSparse`, because both proximal operators need
W only through :math:`WW'`. With several classes a task has a weight vector for each but the reference:
columns of W side by side, so that a subspace, or features, are common to all tasks and all classes.

Round t has a budget :math:`\epsilon_t` that grows like :math:`t^\alpha` or :math:`Q^{-t}` (section 4.5).
Noise is inversely proportional to it, so under Gaussian DP :math:`\mu_t` is proportional to
:math:`\epsilon_t`, and a round's share of the squared budget is :math:`\mu_t^2 / \sum_s \mu_s^2`: exact,
where the paper's composition bound is not.

References
----------
J. Liang, Z. Liu, J. Zhou, X. Jiang, C. Zhang and F. Wang, "Model-protected multi-task learning",
arXiv:1809.06546, Algorithms 1 to 3, Proposition 1 and Theorem 6. Its Wishart noise is not private: with
chance :math:`1 - e^{-\epsilon}` a release is one that the neighbour cannot make. Symmetric Gaussian noise
with a public shift stands in its place, and less of it is needed.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from cloister.algorithms.bases import LossAlgorithm
from cloister.algorithms.mean_regularized import project
from cloister.core.arrays import Array, Floats, Public, States
from cloister.core.channel import Channel, Round
from cloister.core.errors import PlanError
from cloister.core.lifts import Diagonal, Lift, Outer, SumOfOuters, SumOfSquares, unsvec
from cloister.learners.linear.losses import Loss
from cloister.plan.algorithm import Budget

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


class Allocation(Protocol):
    """Shares of the squared budget, round by round."""

    def shares(self, rounds: int) -> tuple[float, ...]:
        """Return one share a round; they sum to 1."""


@dataclass(frozen=True)
class PowerBudget:
    """Budgets that change like t^alpha: grow with alpha > 0, stay even at 0, shrink below.

    Examples
    --------
    >>> PowerBudget(0.5).shares(3)
    (0.16666666666666666, 0.3333333333333333, 0.5)
    """

    alpha: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.alpha):
            raise PlanError(f"alpha must be finite. Got {self.alpha}.")

    def shares(self, rounds: int) -> tuple[float, ...]:
        """Return shares proportional to t^(2 alpha)."""
        return _normalised(2 * self.alpha * np.log(np.arange(1, rounds + 1)))


@dataclass(frozen=True)
class GeometricBudget:
    """Budgets that change like Q^-t: grow with Q < 1, stay even at 1, shrink above.

    Examples
    --------
    >>> [round(share, 4) for share in GeometricBudget(0.5).shares(3)]
    [0.0476, 0.1905, 0.7619]
    """

    q: float

    def __post_init__(self) -> None:
        if not 0 < self.q < math.inf:
            raise PlanError(f"Q must be > 0 and finite. Got {self.q}.")

    def shares(self, rounds: int) -> tuple[float, ...]:
        """Return shares proportional to Q^(-2 t)."""
        return _normalised(-2 * math.log(self.q) * np.arange(1, rounds + 1))


def _normalised(log_weights: NDArray[np.floating[Any]]) -> tuple[float, ...]:
    weights = np.exp(log_weights - log_weights.max())
    if not weights.min() > 0:
        raise PlanError(
            f"Every round needs a share of the budget, and some of these {len(weights)} get none: "
            "use fewer rounds or a flatter allocation."
        )
    return tuple(float(share) for share in weights / weights.sum())


#: Chance that noise makes a shifted covariance indefinite in any of the rounds.
SHIFT_FAILS = 1e-3


@dataclass(frozen=True)
class ModelProtected(LossAlgorithm):
    r"""The framework (Algorithm 1): which numbers of WW' are released, and how they become M, is left open.

    Its public half (`schedule`, `open`, `channel`, `update`) knows nothing of what tasks do at home, so an
    algorithm with another local step holds a `LowRank` or `GroupSparse` and hands that half on to it, as
    `Decomposed` does.

    Parameters
    ----------
    loss : LeastSquares, Logistic or Softmax
        What a task minimises; a mean over its rows.
    lam : float
        Strength of the shared penalty. Under sampling with rate p the sum is over the tasks that take part,
        and lam acts like :math:`\lambda/\sqrt p`.
    clip : float
        Radius K that models are clipped to; public.
    rounds, lr : int, float
        Releases, and the step size, at most 1 over the loss's smoothness.
    accelerated : bool
        Nesterov's momentum.
    strong : float
        Adds ``strong/2 |w|^2`` to every task's loss and uses what strong convexity offers.
    allocation : Power or Geometric, optional
        How the budget is shared over rounds; by default the paper's best (Theorem 6; under pure DP, as with
        `L2Laplace`, Theorem 11).
    warmup : int
        Local steps of the single-task fit that tasks start from; free.
    averaged : bool
        Return the average of the iterates rather than the last one.
    shift : float
        Which part of the public shift that keeps a noisy covariance positive to apply. 1 makes large noise
        single-task learning; less keeps more of the signal where noise is faint. Post-processing: free.
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
    shift: float = 1.0

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.warmup < 0:
            raise PlanError(f"rounds must be >= 1 and warmup >= 0. Got {self.rounds} and {self.warmup}.")
        if not 0 <= self.shift < math.inf:
            raise PlanError(f"shift must be >= 0 and finite. Got {self.shift}.")
        if not (0 <= self.lam < math.inf and 0 < self.lr < math.inf and 0 <= self.strong < 1 / self.lr):
            raise PlanError(
                "lam must be >= 0, lr > 0 (both finite) and strong in [0, 1/lr). "
                f"Got lam={self.lam}, lr={self.lr}, strong={self.strong}."
            )

    @property
    @abstractmethod
    def lift(self) -> Lift:
        """Which numbers of the covariance of clipped models are released (Step 4)."""

    @abstractmethod
    def shared_matrix(self, total: Floats, noise: float) -> Floats:
        """Return M from the noisy sum and its noise's deviation, both in the models' units (Step 6)."""

    # Public: what is said, and what becomes of it.

    def shares(self, pure: bool = False) -> tuple[float, ...]:
        """Return each round's share of the squared budget (Step 1).

        By Theorem 6; by Theorem 11 where releases are purely private, so that epsilons add up and not their
        squares.
        """
        if self.allocation is not None:
            return self.allocation.shares(self.rounds)
        ratio = self.strong * self.lr  # mu / L
        if ratio == 0:
            alpha = 2 / 3 if pure else 2 / 5
            return PowerBudget(alpha if self.accelerated else 0.0).shares(self.rounds)
        rate = 1 - math.sqrt(ratio) if self.accelerated else (1 - ratio) ** 2
        return GeometricBudget(rate ** (1 / 3 if pure else 1 / 5)).shares(self.rounds)

    def momentum(self, t: int) -> float:
        """Return beta_t of round t = 1, 2, ... (section 4.5)."""
        if not self.accelerated:
            return 0.0
        if self.strong == 0:
            return (t - 1) / (t + 2)
        root = math.sqrt(self.strong * self.lr)
        return (1 - root) / (1 + root)

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        return tuple(Round(share, (self._channel,)) for share in self.shares(budget.pure))

    @property
    def _channel(self) -> Channel:
        return Channel(self.loss.size, self.clip, self.lift)

    def start(self) -> Public:
        return {"matrix": np.eye(self.features)}

    @property
    def features(self) -> int:
        """Number of rows of W."""
        return self.loss.size // self.loss.vectors

    def channel(self, board: BoardView) -> Channel:
        return self._channel

    def update(self, release: Release, board: BoardView) -> Public:
        unit = self.clip**2
        return {"matrix": self.shared_matrix(unit * release.value, unit * release.noise)}

    # Private: proximal gradient steps at home.

    def init(self, block: Block, board: BoardView) -> States:
        """Start from the single-task fit, W(0)."""
        weights = self.alone(block)
        clipped, nothing = project(weights, self.clip), np.zeros_like(weights)
        return {"weights": weights, "shared": clipped, "sum": nothing, "count": np.zeros((len(block), 1))}

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        if board.rounds:
            shared = self.keep_shared(states["weights"], board)
            ahead = self.look_ahead(shared, states["shared"], board)
            states = {
                "weights": self.descend(ahead, self.gradient(ahead, block)),
                "shared": shared,
                "sum": states["sum"] + shared,
                "count": states["count"] + 1,
            }
        return states["weights"], states

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        shared = self.keep_shared(states["weights"], board)
        return {"coef": (states["sum"] + shared) / (states["count"] + 1) if self.averaged else shared}

    def model_without_data(self, board: BoardView) -> States:
        """Return the model of a task without data: zero, because only directions are shared."""
        return {"coef": np.zeros((1, self.loss.size))}

    def alone(self, block: Block) -> Floats:
        """Return `warmup` accelerated gradient steps from zero on each task's own loss."""
        previous = weights = np.zeros((len(block), self.loss.size))
        for step in range(1, self.warmup + 1):
            ahead = weights + (step - 1) / (step + 2) * (weights - previous)
            previous, weights = weights, self.descend(ahead, self.gradient(ahead, block))
        return weights

    def keep_shared(self, weights: Floats, board: BoardView) -> Floats:
        """Return M times the clipped models (Step 9 of Algorithm 2): the proximal operator of the penalty."""
        with np.errstate(over="ignore", invalid="ignore"):  # data that overflow spoil their own task only
            vectors = project(weights, self.clip).reshape(len(weights), self.loss.vectors, -1)
            kept = vectors @ board["matrix"]  # task by task, lest bits depend on how many there are
            return np.asarray(kept.reshape(weights.shape))

    def look_ahead(self, now: Floats, before: Floats, board: BoardView) -> Floats:
        """Return where momentum leads (Step 10)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return now + self.momentum(board.rounds) * (now - before)

    def gradient(self, weights: Floats, block: Block) -> Floats:
        return self.loss.gradient(weights, block.X, block.y, block.weight)

    def descend(self, weights: Floats, gradient: Floats) -> Floats:
        """Take a gradient step (Step 11) on the loss and the ridge of strength `strong`."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(weights - self.lr * (gradient + self.strong * weights))

    def _kept(self, squares: Floats) -> Floats:
        """Return max(0, 1 - lr lam / sqrt(.)): what the proximal operator keeps of each direction."""
        return np.maximum(0.0, 1 - self.lr * self.lam / np.sqrt(np.maximum(squares, 1e-300)))


@final
@dataclass(frozen=True)
class LowRank(ModelProtected):
    r"""Trace-norm regularised tasks (Algorithm 2): models in a common subspace.

    .. math::
        \min_W \sum_i f_i(w_i) + \lambda\,\|W\|_*, \qquad M = U \max(0, 1 - \eta\lambda\Lambda^{-1/2})\,U'

    Parameters
    ----------
    loss, lam, clip, rounds, lr, accelerated, strong, allocation, warmup, averaged, shift
        As for the framework, `ModelProtected`.

    Privacy
    -------
    One task is protected. Releases :math:`\sum_i w_i w_i'`, with several classes
    :math:`\sum_i \sum_c w_{ic} w_{ic}'`, with :math:`|w_i| \le K` each round: Frobenius
    sensitivity :math:`K^2` (zero-out) or :math:`\sqrt2 K^2` (replace), with GOE noise of deviation s; the
    Gaussian-DP parameters of the rounds add up in squares. A public shift
    :math:`s(\sqrt{2d} + \sqrt{2\log(2T/\beta)})` keeps the covariance positive, but for chance
    :math:`\beta`, so that large noise gives M close to I: single-task learning, as in Proposition 1.

    References
    ----------
    arXiv:1809.06546, Algorithm 2 and equation (7), with Gaussian instead of Wishart noise.

    Examples
    --------
    >>> from cloister import Plan, Tasks, run
    >>> from cloister.learners import LeastSquares
    >>> from cloister.mechanisms import NoNoise
    >>> targets = np.array([[3.0, 0.0], [2.0, 0.1], [1.0, -0.1]])  # nearly along one direction
    >>> tasks = Tasks.from_list([np.sqrt(2) * np.eye(2)] * 3, list(np.sqrt(2) * targets))
    >>> plan = Plan(LowRank(LeastSquares(2), lam=0.5, clip=10.0, rounds=30), NoNoise(), n_tasks=3)
    >>> run(plan, tasks).private.models["coef"].round(2).tolist()
    [[2.6, 0.02], [1.73, 0.01], [0.87, 0.01]]
    """

    @property
    def lift(self) -> Lift:
        return Outer() if self.loss.vectors == 1 else SumOfOuters(self.loss.vectors)

    def shared_matrix(self, total: Floats, noise: float) -> Floats:
        """Shift, decompose and shrink the covariance (Steps 6 to 8)."""
        dim = self.features
        edge = math.sqrt(2 * dim) + math.sqrt(2 * math.log(2 * self.rounds / SHIFT_FAILS))
        values, vectors = np.linalg.eigh(unsvec(total, dim))
        return np.asarray((vectors * self._kept(values + self.shift * noise * edge)) @ vectors.T)


@final
@dataclass(frozen=True)
class GroupSparse(ModelProtected):
    r"""Tasks with l2,1-regularised weights (Algorithm 3): a common support.

    .. math:: \min_W \sum_i f_i(w_i) + \lambda \sum_j \|W_{j\cdot}\|_2

    Parameters
    ----------
    loss, lam, clip, rounds, lr, accelerated, strong, allocation, warmup, averaged, shift
        As for the framework, `ModelProtected`.

    Privacy
    -------
    One task is protected. Releases only the diagonal, :math:`\sum_i w_{ij}^2` (with several classes
    :math:`\sum_i \sum_c w_{icj}^2`): l2 sensitivity :math:`K^2`
    (zero-out) or :math:`\sqrt2 K^2` (replace), with d noises instead of the d(d+1)/2 of the paper, which
    perturbs the whole covariance and reads its diagonal. The public shift is
    :math:`s\sqrt{2\log(2dT/\beta)}`.

    References
    ----------
    arXiv:1809.06546, Algorithm 3 and equation (8), with Gaussian instead of Wishart noise.

    Examples
    --------
    >>> from cloister import Plan, Tasks, run
    >>> from cloister.learners import LeastSquares
    >>> from cloister.mechanisms import NoNoise
    >>> targets = np.array([[3.0, 0.2], [-2.0, 0.1], [1.0, -0.1]])  # the first feature matters
    >>> tasks = Tasks.from_list([np.sqrt(2) * np.eye(2)] * 3, list(np.sqrt(2) * targets))
    >>> plan = Plan(GroupSparse(LeastSquares(2), lam=0.5, clip=10.0, rounds=30), NoNoise(), n_tasks=3)
    >>> run(plan, tasks).private.models["coef"].round(2).tolist()
    [[2.6, 0.0], [-1.73, 0.0], [0.87, 0.0]]
    """

    @property
    def lift(self) -> Lift:
        return Diagonal() if self.loss.vectors == 1 else SumOfSquares(self.loss.vectors)

    def shared_matrix(self, total: Floats, noise: float) -> Floats:
        """Shift and shrink the rows' squared norms (Steps 6 and 7)."""
        edge = math.sqrt(2 * math.log(2 * len(total) * self.rounds / SHIFT_FAILS))
        return np.diag(self._kept(total + self.shift * noise * edge))
