r"""Models in two parts: one that tasks share, and one that is a task's own and never leaves it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from cloister.algorithms.covariance import ModelProtected
from cloister.core.arrays import Array, Floats, States
from cloister.core.errors import PlanError
from cloister.plan.algorithm import Algorithm, Wrapper

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.store.billboard import BoardView


class OwnPenalty(ABC):
    """A penalty on Q that is a sum over tasks, by its proximal operator: each task's is its own affair."""

    @abstractmethod
    def shrink(self, rows: Floats, lr: float) -> Floats:
        """Return the rows q that minimise ``|q - row|^2 / (2 lr) + penalty(q)``."""


@final
@dataclass(frozen=True)
class EntrySparse(OwnPenalty):
    r"""Few entries of a task's own: :math:`\lambda \|Q\|_1`.

    Examples
    --------
    >>> EntrySparse(1.0).shrink(np.array([[3.0, -0.4]]), lr=0.5).tolist()
    [[2.5, -0.0]]
    """

    lam: float

    def __post_init__(self) -> None:
        _check_strength(self.lam)

    def shrink(self, rows: Floats, lr: float) -> Floats:
        return np.sign(rows) * np.maximum(0.0, np.abs(rows) - lr * self.lam)


@final
@dataclass(frozen=True)
class TaskSparse(OwnPenalty):
    r"""Few tasks with anything of their own: :math:`\lambda \sum_i |q_i|`.

    Examples
    --------
    >>> TaskSparse(1.0).shrink(np.array([[3.0, 4.0], [0.1, 0.2]]), lr=0.5).round(6).tolist()
    [[2.7, 3.6], [0.0, 0.0]]
    """

    lam: float

    def __post_init__(self) -> None:
        _check_strength(self.lam)

    def shrink(self, rows: Floats, lr: float) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            return np.asarray(rows * np.maximum(0.0, 1 - lr * self.lam / np.maximum(norms, 1e-300)))


@final
@dataclass(frozen=True)
class SquaredNorm(OwnPenalty):
    r"""A little of its own for every task: :math:`\lambda \|Q\|_F^2`.

    Examples
    --------
    >>> SquaredNorm(0.5).shrink(np.array([[3.0, -1.0]]), lr=1.0).tolist()
    [[1.5, -0.5]]
    """

    lam: float

    def __post_init__(self) -> None:
        _check_strength(self.lam)

    def shrink(self, rows: Floats, lr: float) -> Floats:
        return rows / (1 + 2 * lr * self.lam)


@final
@dataclass(frozen=True)
class Decomposed(Wrapper):
    r"""Shared structure with exceptions (Algorithm 4): W = P + Q, and only P is ever spoken of.

    .. math:: \min_{P, Q} \sum_i f_i(p_i + q_i) + \lambda_1\,g(P) + \lambda_2\,h(Q)

    Parameters
    ----------
    shared : LowRank or GroupSparse
        Penalty on P, and everything else: loss, clip, rounds, allocation. Its step ``lr`` must be at most 1
        over *twice* the loss's smoothness, because P and Q move together; its ``strong`` is a ridge on each.
    own : EntrySparse, TaskSparse or SquaredNorm
        Penalty on Q: entries, whole tasks, or small throughout.

    Privacy
    -------
    One task is protected. What leaves, its bound and its price are those of `shared`, with p in place of w;
    q stays at home. A model comes with its parts, ``shared`` and ``own``.

    Notes
    -----
    Where the paper's listing slips, this is what it means: it starts from P = W, Q = 0 (Step 2 starts both
    from W, which doubles the models); the noise goes on the covariance of this round (Step 6 has that of the
    last); what is projected is the clipped p (Steps 4 and 10 swap hats); the step is half as long.

    References
    ----------
    arXiv:1809.06546, Algorithm 4, equation (23) and Remark 4.

    Examples
    --------
    >>> from cloister import Plan, Tasks, run
    >>> from cloister.algorithms import LowRank
    >>> from cloister.learners import LeastSquares
    >>> from cloister.mechanisms import NoNoise
    >>> targets = np.array([[3.0, 0.0], [2.0, 0.0], [1.0, 4.0]])  # the last has an entry of its own
    >>> tasks = Tasks.from_list([np.sqrt(2) * np.eye(2)] * 3, list(np.sqrt(2) * targets))
    >>> shared = LowRank(LeastSquares(2), lam=1.0, clip=10.0, rounds=60, lr=0.5)
    >>> done = run(Plan(Decomposed(shared, EntrySparse(0.7)), NoNoise(), n_tasks=3), tasks)
    >>> done.model(2)["own"].round(2).tolist()
    [0.0, 3.24]
    """

    shared: ModelProtected
    own: OwnPenalty

    def __post_init__(self) -> None:
        if not isinstance(self.shared, ModelProtected):
            raise PlanError(f"shared must be LowRank or GroupSparse. Got {type(self.shared).__name__}.")
        if not isinstance(self.own, OwnPenalty):
            raise PlanError(
                f"own must be EntrySparse, TaskSparse or SquaredNorm. Got {type(self.own).__name__}."
            )

    @property
    def inner(self) -> Algorithm:
        return self.shared

    def around(self, inner: Algorithm) -> Decomposed:
        """Refuse: what is inside is told apart by more than the seven functions."""
        raise PlanError("Decomposed holds a LowRank or a GroupSparse. Build it anew.")

    def model_without_data(self, board: BoardView) -> States:
        """Return the model of a task without data: zero, because only directions are shared."""
        model = self.shared.model_without_data(board)
        return model | {"shared": model["coef"], "own": model["coef"]}

    def init(self, block: Block, board: BoardView) -> States:
        """Start from the single-task fit, all of it shared (Step 2)."""
        states = self.shared.init(block, board)
        nothing = np.zeros_like(states["weights"])
        return {**states, "own_weights": nothing, "own": nothing}

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        if board.rounds:
            shared, own = self._parts(states, board)  # Steps 10 and 11
            ahead = self.shared.look_ahead(shared, states["shared"], board)
            own_ahead = self.shared.look_ahead(own, states["own"], board)
            gradient = self.shared.gradient(ahead + own_ahead, block)  # one gradient serves both parts
            states = {
                "weights": self.shared.descend(ahead, gradient),
                "own_weights": self.shared.descend(own_ahead, gradient),
                "shared": shared,
                "own": own,
                "sum": states["sum"] + shared + own,
                "count": states["count"] + 1,
            }
        return states["weights"], states

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        shared, own = self._parts(states, board)
        coef = shared + own
        if self.shared.averaged:
            coef = (states["sum"] + coef) / (states["count"] + 1)
        return {"coef": coef, "shared": shared, "own": own}

    def _parts(self, states: States, board: BoardView) -> tuple[Floats, Floats]:
        shared = self.shared.keep_shared(states["weights"], board)
        return shared, self.own.shrink(states["own_weights"], self.shared.lr)


def _check_strength(lam: float) -> None:
    if not 0 <= lam < math.inf:
        raise PlanError(f"lam must be >= 0 and finite. Got {lam}. Use LowRank or GroupSparse alone for no Q.")
