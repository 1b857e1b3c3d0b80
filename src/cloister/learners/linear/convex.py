r"""Convex losses as learners: what a network can do, done by NumPy for a block of linear models.

So that one algorithm serves both: see `ClientLearner`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cloister.core.arrays import Array, Floats, States
from cloister.core.errors import PlanError
from cloister.core.spec import DataSpec
from cloister.learners.descent import FOLDS, ExactSolver, Solver, StepSolver, require_solver
from cloister.learners.learner import ClientLearner, Part
from cloister.learners.linear.losses import Loss
from cloister.learners.penalties import Quadratic

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.learners.penalties import Penalty


#: The weakest ridge of a closed form, relative to the trace: no matrix is singular then, whatever the data.
SMALLEST = 1e-12


@dataclass(frozen=True)
class Convex(ClientLearner):
    """A loss of `cloister.learners.linear.losses` as a learner; starts at zero.

    Parameters
    ----------
    loss : LeastSquares, Logistic or Softmax
        The mean loss of a task.

    Notes
    -----
    It takes `ExactSolver`, and `Descent`, `Adam` and their like without minibatches; the only penalty it
    knows is `Quadratic`.

    Examples
    --------
    >>> from cloister import Tasks
    >>> from cloister.learners import LeastSquares
    >>> block = next(Tasks.from_list([[[1.0]], [[1.0]]], [[2.0], [4.0]]).blocks())
    >>> learner, zero = Convex(LeastSquares(1)), np.zeros(1)
    >>> learner.descend(learner.spread(zero, block), block, ExactSolver(), 0, zero, Quadratic(1.0)).tolist()
    [[1.0], [2.0]]
    """

    loss: Loss

    @property
    def size(self) -> int:
        return self.loss.size

    @property
    def rows(self) -> DataSpec | None:
        return self.loss.rows

    def start(self) -> Floats:
        return np.zeros(self.size)

    def spread(self, mean: Floats, block: Block, states: States | None = None) -> Floats:
        return np.repeat(np.asarray(mean, dtype=np.float64)[None, :], len(block), axis=0)

    def descend(
        self,
        weights: Floats,
        block: Block,
        solver: Solver,
        round: int,
        anchor: Floats | None = None,
        penalty: Penalty | None = None,
        part: Part = Part.ALL,
        linear: Floats | None = None,
    ) -> Floats:
        self.check_solver(solver, penalty)
        lam = _strength(penalty)
        towards = np.zeros(self.size) if anchor is None else np.asarray(anchor, dtype=np.float64)
        with np.errstate(all="ignore"):  # data that overflow spoil their own task only
            if not solver.to_the_end:
                return self._steps(weights, block, solver, round, towards, lam, linear)
            if linear is not None:
                raise PlanError("ExactSolver knows no linear term. Use Descent with many steps.")
            return self._solve(weights, block, solver, towards, lam)

    def gradient(self, weights: Floats, block: Block) -> Floats:
        with np.errstate(all="ignore"):
            return self.loss.gradient(weights, block.X, block.y, block.weight)

    def losses(self, weights: Floats, block: Block) -> Floats:
        return self.loss.value(weights, block.X, block.y, block.weight)

    def folds(self, block: Block, count: int) -> list[tuple[Block, Block]]:
        draws = np.where(block.weight > 0, block.uniforms(FOLDS), 2.0)
        part = draws.argsort(axis=1).argsort(axis=1) % count
        return [
            tuple(replace(block, weight=block.weight * keep) for keep in (part != i, part == i))  # type: ignore[misc]
            for i in range(count)
        ]

    def predict(self, weights: Floats, X: Array) -> Floats:
        return self.loss.predict(weights, X)

    def check_solver(self, solver: Solver, penalty: Penalty | None) -> None:
        """Refuse minibatches, penalties other than `Quadratic`, and `ExactSolver` without a penalty."""
        require_solver(solver)
        lam = _strength(penalty)
        if solver.batch is not None:
            raise PlanError("Convex losses take all rows in every step. Leave the solver's batch out.")
        if solver.to_the_end and not 0 < lam < math.inf:
            raise PlanError(
                f"ExactSolver needs a penalty, Quadratic(lam) with lam > 0. Got {penalty}; or use Descent."
            )

    def _gradient(self, weights: Floats, block: Block, anchor: Floats, lam: float) -> Floats:
        gradient = self.loss.gradient(weights, block.X, block.y, block.weight)
        return np.asarray(gradient + lam * (weights - anchor))

    def _steps(
        self,
        weights: Floats,
        block: Block,
        solver: StepSolver,
        round: int,
        anchor: Floats,
        lam: float,
        linear: Floats | None,
    ) -> Floats:
        kept = tuple(np.zeros_like(weights) for _ in range(solver.slots))
        for rate, *corrections in solver.timetable(round, solver.count(1)).tolist():
            gradient = self._gradient(weights, block, anchor, lam)
            (gradient,) = solver.shortened((gradient if linear is None else gradient + linear,))
            direction, kept = solver.direction(weights, gradient, kept, corrections)
            weights = weights - rate * direction
        return weights

    def _solve(
        self, weights: Floats, block: Block, solver: ExactSolver, anchor: Floats, lam: float
    ) -> Floats:
        if self.loss.squared:
            return self._ridge(block, anchor, lam)
        rate = (1 / (self.loss.smoothness(block.X, block.weight) + lam))[:, None]
        root = np.sqrt(lam * rate)
        momentum = (1 - root) / (1 + root)
        previous = weights
        for _ in range(solver.steps):
            ahead = weights + momentum * (weights - previous)
            previous, weights = weights, ahead - rate * self._gradient(ahead, block, anchor, lam)
        return np.asarray(weights)

    def _ridge(self, block: Block, anchor: Floats, lam: float) -> Floats:
        """Return anchor - (S'S + lam)^-1 S'e, and NaN for data that are not finite.

        S and e are rows and errors at the anchor, times the roots of their shares. Where rows are fewer than
        columns it is S'(SS' + lam)^-1 e.
        """
        total = block.weight.sum(axis=1, keepdims=True)
        roots = np.sqrt(block.weight / np.where(total == 0, 1.0, total))
        S = block.X * roots[..., None]
        e = (block.X @ anchor - block.y) * roots
        S_t = S.swapaxes(1, 2)
        dual = S.shape[1] < self.size
        gram, right = (S @ S_t, e[..., None]) if dual else (S_t @ S, S_t @ e[..., None])
        finite = np.asarray(np.isfinite(gram).all(axis=(1, 2)) & np.isfinite(right).all(axis=(1, 2)))
        gram, right = (np.where(finite[:, None, None], array, 0.0) for array in (gram, right))
        ridge = np.maximum(lam, SMALLEST * np.trace(gram, axis1=1, axis2=2))[:, None, None]
        way = np.linalg.solve(gram + ridge * np.eye(gram.shape[1]), right)
        return np.where(finite[:, None], anchor - (S_t @ way if dual else way)[..., 0], np.nan)


def _strength(penalty: Penalty | None) -> float:
    """Return the strength of a quadratic penalty, 0 for none; refuse any other."""
    if penalty is None:
        return 0.0
    if not isinstance(penalty, Quadratic):
        raise PlanError(f"Convex losses know the penalty Quadratic only. Got {type(penalty).__name__}.")
    return penalty.lam
