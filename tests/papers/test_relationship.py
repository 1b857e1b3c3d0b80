"""What MP-MTL is compared with: relationship learning, with noise for a row, and what a task then pays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cloister import Tasks
from cloister.errors import InputError
from cloister.privacy.accountants import composition_bound, group_privacy, published_group_privacy
from papers.mpmtl.instance_level import aggregation_scale, instance_budget, round_budgets
from papers.mpmtl.relationship import Relationship, dp_mtrl, laplace_ball, mtrl

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


def test_identity_relationship_is_ridge_and_a_learned_one_lowers_the_objective(tasks):
    weights, _ = mtrl(tasks, Relationship(lam=0.02, coupling=0.03), np.eye(M))
    np.testing.assert_allclose(weights, own_ridge(tasks, 0.05), rtol=1e-6, atol=1e-8)

    def objective(rounds):
        w, omega = mtrl(tasks, Relationship(lam=0.02, coupling=0.03, rounds=rounds))
        assert np.trace(omega) == pytest.approx(M)
        owner = np.repeat(np.arange(M), tasks.sizes)
        residual = tasks.y - np.einsum("nd,nd->n", tasks.X, w[owner])
        loss = (residual**2 / (2 * tasks.sizes[owner])).sum()
        nuclear = np.linalg.norm(w, "nuc")  # min over Omega of tr(W' Omega^-1 W) is nuclear^2 / m
        return loss + 0.01 * (w**2).sum() + 0.015 * nuclear**2 / M

    values = [objective(rounds) for rounds in (1, 3, 10)]
    assert values[0] > values[1] > values[2]


def test_dp_mtrl_adds_the_noise_that_it_claims_for_a_row(tasks):
    """One round is ridge plus noise of length Gamma(d) times 2 L / (n lam) over the budget."""
    penalty = Relationship(coupling=0.05, rounds=1)
    exact, _ = mtrl(tasks, penalty)
    residual = np.abs(tasks.y - np.einsum("nd,nd->n", tasks.X, np.repeat(exact, tasks.sizes, axis=0)))
    row = 2 * np.maximum.reduceat(residual, tasks.offsets[:-1]) / (tasks.sizes * 0.05)
    draws = [dp_mtrl(tasks, penalty, [0.2], seed).weights - exact for seed in range(50)]
    lengths = np.linalg.norm(draws, axis=2) / (row / 0.2)
    assert stats.kstest(lengths.ravel(), stats.gamma(D).cdf).pvalue > 1e-3
    twice = dp_mtrl(tasks, penalty, [0.1, 0.1]).weights  # the relationship is now learned from noise
    assert np.linalg.norm(twice - exact) > np.linalg.norm(draws[0])
    with pytest.raises(InputError, match="coupling > 0"):
        Relationship(coupling=0.0)


def test_the_quiet_reading_is_as_quiet_as_it_says(tasks):
    """Every weight has Laplace noise of scale 2 L / (n^2 lam) over the budget."""
    penalty = Relationship(coupling=0.05, rounds=1)
    runs = [dp_mtrl(tasks, penalty, [0.2], seed, quiet=True) for seed in range(50)]
    residual = np.abs(tasks.y - np.einsum("nd,nd->n", tasks.X, np.repeat(runs[0].exact, tasks.sizes, axis=0)))
    scale = 2 * np.maximum.reduceat(residual, tasks.offsets[:-1]) / (tasks.sizes**2 * 0.05 * 0.2)
    drawn = np.array([one.weights - one.exact for one in runs]) / scale[:, None]
    assert stats.kstest(drawn.ravel(), stats.laplace.cdf).pvalue > 1e-3


@given(st.floats(1e-3, 10), st.floats(1e-12, 1e-2), st.integers(1, 60))
def test_proposition_3_is_never_below_the_generic_conversion(epsilon, delta, size):
    sharp = group_privacy(epsilon / size, delta, size)
    rounder = published_group_privacy(epsilon / size, delta, size)
    assert sharp[0] == rounder[0]
    assert sharp[1] <= rounder[1] * (1 + 1e-12)
    budgets = [instance_budget(epsilon, delta, size, published=flag) for flag in (False, True)]
    assert budgets[1][1] <= budgets[0][1] * (1 + 1e-12)
    for back, budget in zip((group_privacy, published_group_privacy), budgets, strict=True):
        np.testing.assert_allclose(back(*budget, size), (epsilon, delta), rtol=1e-9)


def test_rounds_spend_the_whole_budget_and_keep_their_shape():
    shape = np.arange(1, 51) ** 0.4
    budgets = np.array(round_budgets(2.0, 1e-3, shape))
    assert 2.0 * (1 - 1e-12) <= composition_bound(budgets.tolist(), 1e-3) <= 2.0
    np.testing.assert_allclose(budgets / budgets[0], shape)


def test_aggregation_pays_for_every_row_of_a_task():
    sizes = [10, 20, 40]
    row = aggregation_scale(1.0, sizes, lam=0.5, group=1)
    assert row == pytest.approx(2 / (10 * 3 * 0.5))
    assert aggregation_scale(1.0, sizes, lam=0.5) == pytest.approx(40 * row)
    lengths = np.linalg.norm(laplace_ball(np.random.default_rng(0), np.full(4000, 0.5), (4000, 3)), axis=1)
    assert stats.kstest(lengths, stats.gamma(3, scale=0.5).cdf).pvalue > 1e-3
    with pytest.raises(InputError, match="epsilon must be > 0"):
        aggregation_scale(0.0, sizes, lam=0.5)
