"""Models in two parts: the minimum of equation (23), its limits, and what stays at home."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cloister import Plan, Tasks, check_algorithm, run
from cloister.algorithms import Decomposed, EntrySparse, GroupSparse, LowRank, SquaredNorm, TaskSparse
from cloister.errors import PlanError
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian, NoNoise

M, N, D = 15, 14, 5
SHARED = pytest.mark.parametrize("family", [LowRank, GroupSparse])
OWN = pytest.mark.parametrize("own", [EntrySparse(0.12), TaskSparse(0.25), SquaredNorm(0.3)])


@pytest.fixture(scope="module")
def data():
    """One shared direction on three features; three stray entries."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(M, N, D))
    w = rng.normal(size=(M, 1)) @ (rng.normal(size=(1, D)) * (np.arange(D) < 3))
    w[[2, 7, 11], [4, 3, 4]] = [3.0, -2.0, 4.0]
    return X, np.einsum("knd,kd->kn", X, w) + 0.2 * rng.normal(size=(M, N))


def fit(algorithm, X, y, mechanism=None, seed=0):
    tasks = Tasks.from_list(list(X), list(y))
    return run(Plan(algorithm, mechanism or NoNoise(), n_tasks=len(X)), tasks, random_state=seed)


def safe_step(X):
    return 1 / max(np.linalg.norm(x, 2) ** 2 / len(x) for x in X)


# Plain proximal gradient descent on the stacked d x m matrices P and Q, as in a textbook.


def slope_of(W, X, y):
    return np.einsum("knd,kn->dk", X, np.einsum("knd,dk->kn", X, W) - y) / N


def shared_norm(P, family):
    return np.linalg.norm(P, "nuc") if family is LowRank else np.linalg.norm(P, axis=1).sum()


def own_norm(Q, own):
    if isinstance(own, SquaredNorm):
        return (Q**2).sum()
    return np.abs(Q).sum() if isinstance(own, EntrySparse) else np.linalg.norm(Q, axis=0).sum()


def objective(P, Q, X, y, family, lam, own):
    residual = np.einsum("knd,dk->kn", X, P + Q) - y
    return (residual**2).sum() / (2 * N) + lam * shared_norm(P, family) + own.lam * own_norm(Q, own)


def shrink_shared(P, by, family):
    if family is LowRank:
        U, s, V = np.linalg.svd(P, full_matrices=False)
        return U * np.maximum(s - by, 0) @ V
    rows = np.linalg.norm(P, axis=1, keepdims=True)
    return P * np.maximum(rows - by, 0) / np.maximum(rows, 1e-300)


def shrink_own(Q, by, own):
    if isinstance(own, SquaredNorm):
        return Q / (1 + 2 * by)
    if isinstance(own, EntrySparse):
        return Q - np.clip(Q, -by, by)
    columns = np.linalg.norm(Q, axis=0, keepdims=True)
    return Q * np.maximum(columns - by, 0) / np.maximum(columns, 1e-300)


def minimum(X, y, family, lam, own, iterations):
    """Return P and Q; a step of 1/(2L), because the loss of a sum is twice as curved."""
    step = safe_step(X) / 2
    now = before = np.zeros((2, D, M))
    t = 1
    for _ in range(iterations):
        ahead = now + (t - 1) / (t + 2) * (now - before)
        slope = slope_of(ahead.sum(axis=0), X, y)
        P = shrink_shared(ahead[0] - step * slope, step * lam, family)
        Q = shrink_own(ahead[1] - step * slope, step * own.lam, own)
        new = np.stack([P, Q])
        t = 1 if ((ahead - new) * (new - now)).sum() > 0 else t + 1
        before, now = now, new
    return now


@SHARED
@OWN
def test_without_noise_it_reaches_the_minimum_of_its_objective(data, family, own):
    X, y = data
    lam = 0.5 if family is LowRank else 0.3
    shared = family(LeastSquares(D), lam=lam, clip=100.0, lr=safe_step(X) / 2, rounds=800, warmup=20)
    models = fit(Decomposed(shared, own), X, y).private.models
    P, Q = models["shared"].T, models["own"].T
    best = objective(*minimum(X, y, family, lam, own, 3000), X, y, family, lam, own)
    assert best * (1 - 1e-9) <= objective(P, Q, X, y, family, lam, own) <= best * (1 + 1e-6)
    np.testing.assert_allclose(models["coef"].T, P + Q, atol=1e-14)
    assert np.abs(P).max() > 0.1  # both parts are in use
    assert np.abs(Q).max() > 0.1


@SHARED
@OWN
def test_its_steps_are_the_papers(data, family, own):
    """Algorithm 4 by hand, Steps 4 to 16, for six rounds from P = Q = 0."""
    X, y = data
    lr, lam = safe_step(X) / 2, 0.2
    P = Q = P_hat = Q_hat = np.zeros((D, M))
    for t in range(1, 7):
        P_before, Q_before = P_hat, Q_hat
        P_hat, Q_hat = shrink_shared(P, lr * lam, family), shrink_own(Q, lr * own.lam, own)
        beta = (t - 1) / (t + 2)
        P_ahead, Q_ahead = P_hat + beta * (P_hat - P_before), Q_hat + beta * (Q_hat - Q_before)
        slope = slope_of(P_ahead + Q_ahead, X, y)
        P, Q = P_ahead - lr * slope, Q_ahead - lr * slope
    shared = family(LeastSquares(D), lam=lam, clip=100.0, lr=lr, rounds=6, warmup=0)
    models = fit(Decomposed(shared, own), X, y).private.models
    np.testing.assert_allclose(models["shared"].T, P_hat, atol=1e-10)
    np.testing.assert_allclose(models["own"].T, Q_hat, atol=1e-10)


def test_the_minimum_meets_its_optimality_conditions(data):
    """Equation (23): the slope is a subgradient of both norms, a certificate that needs no solver."""
    X, y = data
    shared = LowRank(LeastSquares(D), lam=0.5, clip=100.0, lr=safe_step(X) / 2, rounds=800)
    models = fit(Decomposed(shared, EntrySparse(0.12)), X, y).private.models
    P, Q = models["shared"].T, models["own"].T
    slope = slope_of(P + Q, X, y)
    assert np.linalg.norm(slope, 2) <= 0.5 * (1 + 1e-4)
    assert np.abs(slope).max() <= 0.12 * (1 + 1e-4)
    assert -(slope * P).sum() == pytest.approx(0.5 * np.linalg.norm(P, "nuc"), rel=1e-4)
    assert -(slope * Q).sum() == pytest.approx(0.12 * np.abs(Q).sum(), rel=1e-4)


def test_a_step_as_long_as_the_papers_diverges(data):
    """With momentum and a step of 1/L for both parts at once, twice what their joint curvature allows."""
    X, y = data
    for lr, diverges in ((safe_step(X), True), (safe_step(X) / 2, False)):
        shared = LowRank(LeastSquares(D), lam=0.01, clip=1e6, lr=lr, rounds=300, warmup=0)
        models = fit(Decomposed(shared, SquaredNorm(0.01)), X, y).private.models
        assert (np.abs(models["coef"]).max() > 1e4) == diverges
        assert np.abs(fit(shared, X, y).private.models["coef"]).max() < 100  # fine for one part alone


@SHARED
@pytest.mark.parametrize("own", [EntrySparse(1e9), TaskSparse(1e9), SquaredNorm(1e14)])
@pytest.mark.parametrize("options", [{}, {"strong": 0.05}, {"averaged": True}, {"accelerated": False}])
def test_with_no_room_for_its_own_part_it_is_the_shared_algorithm(data, family, own, options):
    X, y = data
    shared = family(LeastSquares(D), lam=0.4, clip=2.0, lr=safe_step(X) / 2, rounds=25, **options)
    for mechanism in (NoNoise(), Gaussian(3.0)):
        both = fit(Decomposed(shared, own), X, y, mechanism)
        alone = fit(shared, X, y, mechanism)
        np.testing.assert_allclose(both.private.models["coef"], alone.private.models["coef"], atol=1e-9)
        np.testing.assert_allclose(both.board["matrix"], alone.board["matrix"], atol=1e-9)


def test_it_starts_from_the_single_task_fit_once_not_twice(data):
    X, y = data
    shared = LowRank(LeastSquares(D), lam=0.0, clip=100.0, lr=safe_step(X) / 2, rounds=1, warmup=500)
    coef = fit(Decomposed(shared, EntrySparse(0.1)), X, y).private.models["coef"]
    alone = [np.linalg.lstsq(x, t, rcond=None)[0] for x, t in zip(X, y, strict=True)]
    np.testing.assert_allclose(coef, alone, atol=1e-4)


@SHARED
def test_an_anomalous_task_ends_in_its_own_part(family):
    """Tasks along one direction and one that points elsewhere: its difference is its own, and only its."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(20, 30, D))
    w = rng.uniform(0.5, 1.5, size=(20, 1)) * np.eye(D)[0]
    w[13] = 3 * np.eye(D)[3]
    y = np.einsum("knd,kd->kn", X, w) + 0.1 * rng.normal(size=(20, 30))
    shared = family(LeastSquares(D), lam=2.0, clip=10.0, lr=safe_step(X) / 2, rounds=600)
    models = fit(Decomposed(shared, TaskSparse(0.9)), X, y).private.models
    size = np.linalg.norm(models["own"], axis=1)
    assert size[13] > 1.5
    np.testing.assert_array_equal(np.delete(size, 13), 0)
    assert np.linalg.norm(models["shared"][13]) < 0.2
    assert np.abs(models["own"][13]).argmax() == 3
    plain = fit(shared, X, y).private.models["coef"]
    assert np.linalg.norm(models["coef"][13] - w[13]) < np.linalg.norm(plain[13] - w[13])


def test_stray_entries_end_in_the_own_part(data):
    X, y = data
    shared = LowRank(LeastSquares(D), lam=0.8, clip=100.0, lr=safe_step(X) / 2, rounds=600)
    own = fit(Decomposed(shared, EntrySparse(0.3)), X, y).private.models["own"]
    assert sorted(zip(*np.nonzero(np.abs(own) > 1.0), strict=True)) == [(2, 4), (7, 3), (11, 4)]


@SHARED
def test_only_the_shared_part_leaves(data, family):
    """What is said has the channel, bound and price of the shared part; q never is in a message."""
    X, y = data
    shared = family(LeastSquares(D), lam=0.4, clip=1.5, lr=safe_step(X) / 2, rounds=6)
    both = Decomposed(shared, EntrySparse(0.1))
    plan, plain = (Plan(a, n_tasks=M).calibrate(1.0) for a in (both, shared))
    assert plan.rounds == plain.rounds
    assert plan.mechanism == plain.mechanism
    assert str(plan.guarantee) == str(plain.guarantee)
    block = next(Tasks.from_list(list(X), list(y)).blocks())
    board = fit(both, X, y).board
    states = both.init(block, board.before(0))
    for t in range(6):
        message, states = both.send(states, block, board.before(t))
        np.testing.assert_array_equal(message, states["weights"])
    assert np.abs(states["own"]).max() > 0
    hidden = states | {"own_weights": 7 + 0 * states["own_weights"], "own": 7 + 0 * states["own"]}
    at_once = both.init(block, board.before(0)) | {k: hidden[k] for k in ("own_weights", "own")}
    first, _ = both.send(at_once, block, board.before(0))
    np.testing.assert_array_equal(first, shared.init(block, board.before(0))["weights"])


@SHARED
@OWN
def test_it_keeps_the_contract_of_an_algorithm(family, own):
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 9, 15)
    tasks = Tasks.from_list([rng.normal(size=(n, 3)) for n in sizes], [rng.normal(size=n) for n in sizes])
    shared = family(LeastSquares(3), lam=0.2, clip=2.0, rounds=4, lr=0.05, warmup=10, averaged=True)
    check_algorithm(Decomposed(shared, own), tasks)
    plan = Plan(Decomposed(shared, own), n_tasks=15).calibrate(1.0)
    assert Plan.from_toml(plan.to_toml()) == plan


@pytest.mark.parametrize("kind", [EntrySparse, TaskSparse, SquaredNorm])
@pytest.mark.parametrize("wrong", [-0.1, math.inf, math.nan])
def test_strengths_that_make_no_sense_are_refused(kind, wrong):
    with pytest.raises(PlanError, match="lam must be"):
        kind(wrong)


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(PlanError, match="shared must be LowRank or GroupSparse"):
        Decomposed(EntrySparse(0.1), EntrySparse(0.1))
    with pytest.raises(PlanError, match="own must be"):
        Decomposed(LowRank(LeastSquares(2)), LeastSquares(2))
