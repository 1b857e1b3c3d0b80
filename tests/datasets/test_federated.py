"""FedProx's synthetic data has its published law, and Dirichlet partitions theirs.

Statistical tests have fixed seeds; their limits are five to six standard errors, a false alarm in a million.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from cloister.datasets import dirichlet, fedprox, fedprox_iid
from cloister.errors import InputError


def test_sizes_are_fifty_and_a_lognormal():
    more = fedprox_iid(n_tasks=1000, dim=1, classes=2, seed=1).sizes - 50
    assert more.min() >= 0
    for most in (7, 54, 403):
        share = norm.cdf((np.log(most + 1) - 4) / 2)  # at most 7 after rounding down: less than 8 before
        assert np.mean(more <= most) == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / 1000))


def test_features_have_the_published_variances():
    X = fedprox_iid(n_tasks=30, seed=2).X
    assert X.shape[1] == 60
    expected = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(np.mean(X**2, axis=0), expected, rtol=6 * np.sqrt(2 / len(X)))


def test_beta_is_the_standard_deviation_of_the_tasks_centres():
    tasks = fedprox(alpha=0.0, beta=2.0, n_tasks=400, dim=10, classes=2, seed=3)
    centres = [block.mean() for block in np.split(tasks.X, tasks.offsets[1:-1])]
    # The mean over ten features of N(B, 1); what the rows add is less than a thousandth.
    assert np.var(centres) == pytest.approx(4 + 1 / 10, rel=6 * np.sqrt(2 / 400))


def test_alpha_changes_no_label():
    without, much = (fedprox(alpha, beta=1.0, n_tasks=10, seed=4) for alpha in (0.0, 5.0))
    np.testing.assert_array_equal(without.X, much.X)
    np.testing.assert_array_equal(without.y, much.y)


def test_one_model_serves_all_tasks_only_if_they_are_alike():
    """Labels are noiseless, so a linear model that is right scores nearly 1."""

    def accuracy_elsewhere(tasks):
        home, away = tasks.select(np.arange(20)), tasks.select(np.arange(20, 30))
        return LogisticRegression(C=1e3, max_iter=2000).fit(home.X, home.y).score(away.X, away.y)

    assert accuracy_elsewhere(fedprox_iid(n_tasks=30, dim=5, classes=3, seed=5)) > 0.95
    unlike = fedprox(alpha=0.0, beta=0.0, n_tasks=30, dim=5, classes=3, seed=5)
    assert accuracy_elsewhere(unlike) < 0.8
    largest = unlike.select([int(unlike.sizes.argmax())])
    alone = LogisticRegression(C=1e3, max_iter=2000).fit(largest.X, largest.y)
    assert alone.score(largest.X, largest.y) > 0.95


@pytest.mark.parametrize("make", [lambda n: fedprox(1.0, 1.0, n, seed=6), lambda n: fedprox_iid(n, seed=6)])
def test_a_task_depends_on_the_seed_and_its_number_only(make):
    few, many = make(3), make(7)
    np.testing.assert_array_equal(many.select([0, 1, 2]).X, few.X)
    np.testing.assert_array_equal(many.select([0, 1, 2]).y, few.y)
    assert not np.array_equal(few.only(0).X[:50], few.only(1).X[:50])


def test_a_partition_deals_every_row_once():
    y = np.random.default_rng(0).integers(0, 10, 5000)
    tasks = dirichlet(np.arange(5000)[:, None, None], y, n_tasks=20, concentration=0.3, seed=1, min_rows=30)
    assert (len(tasks), tasks.X.shape) == (20, (5000, 1, 1))
    rows = tasks.X[:, 0, 0]
    np.testing.assert_array_equal(np.sort(rows), np.arange(5000))
    np.testing.assert_array_equal(tasks.y, y[rows])
    assert tasks.sizes.min() >= 30
    again, other = (dirichlet(y[:, None], y, 20, 0.3, seed, 30) for seed in (1, 2))
    np.testing.assert_array_equal(again.sizes, tasks.sizes)
    assert not np.array_equal(other.sizes, tasks.sizes)


@pytest.mark.parametrize("concentration", [0.5, 5.0])
def test_shares_of_a_class_are_dirichlet(concentration):
    classes, n_tasks, rows = 2000, 5, 50
    y = np.repeat(np.arange(classes), rows)
    tasks = dirichlet(y[:, None], y, n_tasks, concentration, seed=2)
    share = np.bincount(tasks.only(0).y, minlength=classes) / rows
    variance = 0.2 * 0.8 / (n_tasks * concentration + 1)
    assert share.mean() == pytest.approx(0.2, abs=5 * np.sqrt(variance / classes))
    # Excess kurtosis is below 1; rounding to whole rows adds at most 1/6 of a squared row.
    assert share.var() == pytest.approx(variance, rel=5 * np.sqrt(3 / classes), abs=0.17 / rows**2)


def test_rows_are_shuffled_within_a_class():
    tasks = dirichlet(np.arange(1000), np.zeros(1000, dtype=int), 2, 1000.0, seed=3)
    # Two halves of 0..999 in random order: a mean has standard error 9.1.
    assert tasks.only(0).X.mean() == pytest.approx(499.5, abs=5 * 10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fedprox(-1.0, 0.0), "alpha must be a finite number >= 0. Got -1.0"),
        (lambda: fedprox(0.0, np.nan), "beta must be a finite number >= 0. Got nan"),
        (lambda: fedprox_iid(n_tasks=0), "n_tasks must be at least 1. Got 0"),
        (lambda: dirichlet([[1.0]], [0], 1, 0.0), "concentration must be a finite number > 0. Got 0.0"),
        (lambda: dirichlet([[1.0], [2.0]], [0.5, 1.0], 1, 1.0), "whole numbers, not measurements"),
        (lambda: dirichlet(np.zeros((9, 1)), [0] * 9, 10, 1.0), "No partition of 9 rows into 10 tasks"),
        (lambda: dirichlet(np.zeros((9, 1)), [0] * 9, 3, 1e-3), "Raise the concentration"),
    ],
)
def test_impossible_requests_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
