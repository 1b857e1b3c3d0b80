"""Mean-regularised learning: its limits are other algorithms, its fixed point is its objective's minimum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cloister import Plan, Tasks, run
from cloister.algorithms import MeanRegularized
from cloister.algorithms.mean_regularized import project
from cloister.errors import PlanError
from cloister.learners import LeastSquares, Logistic
from cloister.mechanisms import Gaussian, NoNoise

M, N, D = 12, 8, 3


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(M, N, D))
    y = np.einsum("knd,kd->kn", X, rng.normal(0.5, 0.5, (M, D))) + 0.1 * rng.normal(size=(M, N))
    return X, y, Tasks.from_list(list(X), list(y))


def slope(X, y, w):
    return np.einsum("knd,kn->kd", X, np.einsum("knd,kd->kn", X, w) - y) / X.shape[1]


def fit(tasks, mechanism=None, **parameters):
    algorithm = MeanRegularized(LeastSquares(D), **parameters)
    return run(Plan(algorithm, mechanism or NoNoise(), n_tasks=M), tasks, random_state=0)


def test_without_pull_it_is_single_task_projected_gradient_descent(data):
    X, y, tasks = data
    loud = Gaussian(1e-3)  # the board is nothing but noise, and nobody listens
    found = fit(tasks, loud, lam=0.0, clip=0.8, rounds=7, steps=3, finetune=4, lr=0.1).private.models["coef"]
    w = np.zeros((M, D))
    for _ in range(7 * 3):
        w = w - 0.1 * slope(X, y, w)
        w *= np.minimum(1, 0.8 / np.linalg.norm(w, axis=1))[:, None]
    assert np.isclose(np.linalg.norm(w, axis=1), 0.8).any()  # the ball mattered
    for _ in range(4):  # fine-tuning may leave it
        w = w - 0.1 * slope(X, y, w)
    np.testing.assert_allclose(found, w, rtol=1e-11)


def test_with_full_pull_every_round_starts_from_the_mean(data):
    """At lam = 1/lr a task keeps nothing of its model but the slope there; the first round is FedAvg's."""
    X, y, tasks = data
    board = fit(tasks, lam=10.0, lr=0.1, clip=50.0, rounds=5, steps=1).board
    mean, w = np.zeros(D), np.zeros((M, D))
    for t in range(5):
        w = mean - 0.1 * slope(X, y, w)
        mean = w.mean(axis=0)
        np.testing.assert_allclose(board.before(t + 1)["mean"], mean, rtol=1e-10, atol=1e-12)
    federated = -0.1 * slope(X, y, np.zeros((M, D))).mean(axis=0)
    np.testing.assert_allclose(board.before(1)["mean"], federated, rtol=1e-10)


@pytest.mark.parametrize("lam", [0.05, 0.5, 2.0])
def test_without_noise_it_reaches_the_minimum_of_its_objective(data, lam):
    """Sum of quadratics: the minimum solves one linear system in all weights and the mean."""
    X, y, tasks = data
    gram = np.einsum("kni,knj->kij", X, X) / N
    cross = np.einsum("kni,kn->ki", X, y) / N
    pulls = np.linalg.inv(gram + lam * np.eye(D))  # w_k = pull_k (cross_k + lam mean), mean = average of w_k
    inner = np.einsum("kij,kj->ki", pulls, cross).mean(axis=0)
    mean = np.linalg.solve(np.eye(D) - lam * pulls.mean(axis=0), inner)
    best = np.einsum("kij,kj->ki", pulls, cross + lam * mean)
    done = fit(tasks, lam=lam, clip=100.0, rounds=300, steps=40, lr=0.2)
    np.testing.assert_allclose(done.board["mean"], mean, atol=1e-6)
    np.testing.assert_allclose(done.private.models["coef"], best, atol=1e-6)


@pytest.mark.parametrize(("relation", "sensitivity"), [("replace", 2.0), ("zero_out", 1.0)])
def test_the_posted_mean_has_the_noise_of_its_price(relation, sensitivity):
    """Sd on the mean is Delta B sqrt(T) / (mu m): chi-square band of 5 sd over 4000 numbers."""
    tasks = Tasks.from_arrays(np.zeros((M, 400)), np.zeros(M), np.arange(M))  # nothing to say but zero
    algorithm = MeanRegularized(LeastSquares(400), clip=3.0, rounds=10)
    plan = Plan(algorithm, Gaussian(0.5), n_tasks=M, relation=relation)
    board = run(plan, tasks, random_state=0).board
    noise = np.array([(r.value * 3.0 / M) for r in board.releases])
    expected = sensitivity * 3.0 * math.sqrt(10) / (0.5 * M)
    assert noise.std() == pytest.approx(expected, rel=5 / math.sqrt(2 * noise.size))
    np.testing.assert_allclose(board["mean"], noise[-1], rtol=1e-12)  # memoryless: nothing accumulates


def test_it_starts_from_public_zeros(data):
    _, _, tasks = data
    board = fit(tasks).board.before(0)
    assert set(board.records[0].public) == {"mean"}
    assert not board["mean"].any()


def test_messages_are_clipped_though_states_are_not():
    """Huge data: models stay in the ball, a spoilt task stays at home and is zero in the sum."""
    X = np.ones((3, 2, 1))
    X[1], X[2] = 1e200, 1e308
    tasks = Tasks.from_list(list(X), list(X[..., 0]))
    algorithm = MeanRegularized(LeastSquares(1), clip=0.5, rounds=2)
    done = run(Plan(algorithm, NoNoise(), n_tasks=3), tasks)
    assert np.isfinite(done.board["mean"]).all()
    assert np.abs(done.board["mean"]).max() <= 0.5
    assert done.private.rejected_messages == 4
    assert done.private.models["coef"][0, 0] == pytest.approx(0.5)


def test_minibatches_are_the_tasks_own():
    """A batch as large as the task is all of it; a smaller one is another path, the same in any company."""
    rng = np.random.default_rng(0)
    tasks = Tasks.from_list(list(rng.normal(size=(M, N, D))), list(rng.normal(size=(M, N))))
    whole = fit(tasks, rounds=2, steps=2, lr=0.1).private.models["coef"]
    same = fit(tasks, rounds=2, steps=2, lr=0.1, batch=N).private.models["coef"]
    np.testing.assert_array_equal(whole, same)
    small = fit(tasks, rounds=2, steps=2, lr=0.1, batch=3, lam=0.0).private.models["coef"]
    assert not np.allclose(whole, small)
    few = tasks.select([7, 2])
    algorithm = MeanRegularized(LeastSquares(D), rounds=2, steps=2, lr=0.1, batch=3, lam=0.0)
    alone = run(Plan(algorithm, NoNoise(), n_tasks=2), few, random_state=0).private.models["coef"]
    np.testing.assert_allclose(alone, small[[7, 2]], rtol=1e-12)


def test_projection():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [np.nan, 1.0]])
    found = project(rows, 1.0)
    np.testing.assert_allclose(found[:3], [[0.6, 0.8], [0.3, 0.4], [0, 0]], rtol=1e-15)
    assert np.isnan(found[3]).any()


@pytest.mark.parametrize(
    "wrong",
    [{"rounds": 0}, {"steps": 0}, {"lam": -1.0}, {"lr": 0.0}, {"lam": 3.0, "lr": 0.5}, {"lam": math.nan}],
)
def test_parameters_that_make_no_sense_are_refused(wrong):
    with pytest.raises(PlanError, match="must be"):
        MeanRegularized(Logistic(2), **wrong)


def test_fine_tuning_is_as_printed():
    """Lines 10 to 12 of the paper: a step size of its own, and no projection, worked out by hand.

    One task, one row, x = 1 and y = 4. One round of one step of size 1 from 0: 0 - (0 - 4) = 4, projected to
    1; that is the mean too. Then two steps of size 1/4 with lam = 1/2: 1 - ((1 - 4) + 0) / 4 = 7/4, and
    7/4 - ((7/4 - 4) + (7/4 - 1) / 2) / 4 = 71/32.
    """
    algorithm = MeanRegularized(
        LeastSquares(1), lam=0.5, clip=1.0, rounds=1, steps=1, lr=1.0, finetune=2, finetune_lr=0.25
    )
    done = run(Plan(algorithm, NoNoise(), n_tasks=1), Tasks.from_list([[[1.0]]], [[4.0]]))
    assert done.board["mean"][0] == pytest.approx(1.0, rel=1e-12)
    assert done.private.models["coef"][0, 0] == pytest.approx(71 / 32, rel=1e-12)
