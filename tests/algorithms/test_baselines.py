"""What sharing is compared with: baselines are something else in a limit; prices are what they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import Ridge

from cloister import Plan, Tasks, check_algorithm, run
from cloister.algorithms import ModelAveraging
from cloister.algorithms.baselines import l1_logistic, lasso, pooled_ridge, ridge
from cloister.errors import PlanError
from cloister.learners import LeastSquares, Logistic
from cloister.mechanisms import Gaussian, NoNoise

M, D = 12, 4


@pytest.fixture(scope="module")
def tasks():
    """Ragged tasks whose weights lie along two directions."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(6, 15, M)
    weights = rng.normal(size=(M, 2)) @ rng.normal(size=(2, D))
    X = [rng.normal(size=(n, D)) / 2 for n in sizes]
    return Tasks.from_list(
        X, [x @ w + 0.3 * rng.normal(size=len(x)) for x, w in zip(X, weights, strict=True)]
    )


def own_ridge(tasks, lam):
    """Closed form of mean squared error / 2 + lam/2 |w|^2."""
    found = []
    for start, stop in zip(tasks.offsets[:-1], tasks.offsets[1:], strict=True):
        X, y = tasks.X[start:stop], tasks.y[start:stop]
        found.append(np.linalg.solve(X.T @ X / len(y) + lam * np.eye(D), X.T @ y / len(y)))
    return np.array(found)


def test_without_noise_averaged_is_the_mean_of_own_models(tasks):
    plan = Plan(ModelAveraging(LeastSquares(D), lam=0.05, clip=100.0, steps=400), NoNoise(), n_tasks=M)
    found = run(plan, tasks).private.models["coef"]
    np.testing.assert_allclose(found, np.tile(own_ridge(tasks, 0.05).mean(axis=0), (M, 1)), rtol=1e-8)


def test_averaged_keeps_the_contract():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)) / 2
    check_algorithm(
        ModelAveraging(Logistic(3), steps=20), Tasks.from_arrays(X, rng.random(60) < 0.5, np.arange(60) % 9)
    )
    with pytest.raises(PlanError, match="lam must be > 0"):
        ModelAveraging(LeastSquares(1), lam=0.0)


@pytest.mark.parametrize(("relation", "sensitivity"), [("replace", 2.0), ("zero_out", 1.0)])
def test_the_posted_average_has_the_noise_of_its_price(relation, sensitivity):
    dim = 300
    silent = Tasks.from_arrays(np.zeros((M, dim)), np.zeros(M), np.arange(M))  # nothing to say but zero
    plan = Plan(
        ModelAveraging(LeastSquares(dim), clip=3.0, steps=1), Gaussian(0.5), n_tasks=M, relation=relation
    )
    noise = np.concatenate([run(plan, silent, random_state=seed).board["mean"] for seed in range(5)])
    assert stats.kstest(noise, stats.norm(scale=sensitivity * 3.0 / (0.5 * M)).cdf).pvalue > 1e-3


def test_single_task_and_pooled_regression_agree_with_scikit_learn(tasks):
    """With one penalty to choose from there is nothing to choose."""
    first = slice(*tasks.offsets[:2])
    expected = Ridge(0.3, fit_intercept=False).fit(tasks.X[first], tasks.y[first]).coef_
    for own in (False, True):
        np.testing.assert_allclose(ridge(tasks, own, [0.3])[0], expected, rtol=1e-8)
    together = Ridge(0.3, fit_intercept=False).fit(tasks.X, tasks.y).coef_
    np.testing.assert_allclose(pooled_ridge(tasks, [0.3]), np.tile(together, (M, 1)), rtol=1e-8)
    assert not lasso(tasks, True, [10.0]).any()  # all is shrunk away
    np.testing.assert_allclose(lasso(tasks, False, [1e-9]), own_ridge(tasks, 0.0), rtol=0.02, atol=0.02)


def test_penalties_are_chosen_by_held_out_rows():
    """Pure noise wants a large penalty, a clean line a small one; each task sees only its own choice."""
    rng = np.random.default_rng(0)
    X, truth = rng.normal(size=(2, 14, 8)), np.arange(1.0, 9.0)
    y = np.stack([rng.normal(size=14), X[1] @ truth])
    both = Tasks.from_list(list(X), list(y))
    for method, grid in ((ridge, [1e-3, 1e4]), (lasso, [1e-4, 5.0])):
        own = method(both, True, grid)
        assert np.abs(own[0]).max() < 0.02, method
        np.testing.assert_allclose(own[1], truth, rtol=0.02)
        np.testing.assert_allclose(method(both.select([1]), True, grid)[0], own[1])
        assert np.abs(method(both, False, grid)[0]).max() > 0.02  # the common choice suits the clean task


def test_l1_logistic_is_that_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(1)
    X, task = rng.normal(size=(150, 4)), np.repeat(np.arange(3), [40, 50, 60])
    y = (X[:, 0] - 0.5 * X[:, 1] + rng.logistic(size=150) > 0).astype(int)
    tasks = Tasks.from_arrays(X, y, task)
    for lam in (0.002, 0.05):
        found = l1_logistic(tasks, lambdas=[lam])
        for k in range(3):
            own = task == k
            exact = LogisticRegression(
                C=1 / (lam * own.sum()),
                l1_ratio=1.0,
                solver="saga",
                fit_intercept=False,
                tol=1e-8,
                max_iter=50_000,
            ).fit(X[own], y[own])
            np.testing.assert_allclose(found[k], exact.coef_[0], atol=2e-4)


def test_l1_logistic_chooses_by_log_loss():
    rng = np.random.default_rng(2)
    X, task = rng.normal(size=(400, 3)), np.arange(400) % 4
    tasks = Tasks.from_arrays(X, rng.uniform(size=400) < 1 / (1 + np.exp(-2 * X[:, 0])), task)
    lambdas = [0.4, 0.01]  # the first leaves nothing
    assert np.abs(l1_logistic(tasks, lambdas=lambdas)[:, 0]).min() > 1
    assert not l1_logistic(tasks, lambdas=lambdas[:1]).any()
