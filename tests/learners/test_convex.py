"""Convex losses as learners: solutions are solutions, and absurd data spoil their own task only."""

from __future__ import annotations

import numpy as np
import pytest

from cloister import Tasks
from cloister.errors import InputError, PlanError
from cloister.learners import EWC, Convex, Descent, ExactSolver, LeastSquares, Logistic, Quadratic, Softmax

D = 5


def block_of(rows, classes=0, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(6, rows, D))
    y = rng.integers(0, classes, (6, rows)) if classes else rng.normal(size=(6, rows))
    return next(Tasks.from_list(list(X), list(y)).blocks())


@pytest.mark.parametrize("rows", [2, 4, 9])  # fewer than columns: by the dual system
@pytest.mark.parametrize(("loss", "classes"), [(LeastSquares(D), 0), (Logistic(D), 2), (Softmax(D, 3), 3)])
def test_a_solution_has_no_slope(loss, classes, rows):
    block, learner = block_of(rows, classes), Convex(loss)
    anchor = np.random.default_rng(1).normal(size=learner.size)
    found = learner.descend(learner.spread(anchor, block), block, ExactSolver(300), 0, anchor, Quadratic(0.1))
    slope = loss.gradient(found, block.X, block.y, block.weight) + 0.1 * (found - anchor)
    assert np.abs(slope).max() < 1e-8


@pytest.mark.parametrize("garbage", [np.inf, np.nan, 1e300, 1e160, 1e30])
@pytest.mark.parametrize("rows", [2, 9])
def test_absurd_rows_stop_nobody(garbage, rows):
    block, learner = block_of(rows), Convex(LeastSquares(D))
    solve = lambda block: learner.descend(  # noqa: E731
        np.zeros((6, D)), block, ExactSolver(), 0, np.zeros(D), Quadratic(0.1)
    )
    clean = solve(block)
    block.X[2] = garbage
    assert np.array_equal(np.delete(solve(block), 2, axis=0), np.delete(clean, 2, axis=0))


def test_refusals():
    block, learner = block_of(3), Convex(LeastSquares(D))
    zeros = np.zeros((6, D))
    with pytest.raises(PlanError, match="batch"):
        learner.descend(zeros, block, Descent(0.1, batch=2), 0)
    with pytest.raises(PlanError, match="EWC"):
        learner.descend(zeros, block, ExactSolver(), 0, np.zeros(D), EWC(1.0))
    with pytest.raises(PlanError, match="needs a penalty"):
        learner.descend(zeros, block, ExactSolver(), 0)
    with pytest.raises(InputError, match="steps"):
        ExactSolver(0)
