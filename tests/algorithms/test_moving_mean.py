"""The noise that a public mean is said to have is the noise it has, wherever tasks pull it."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.algorithms.prior.mean import (
    estimate_root,
    initial_mean,
    shared_candidates,
    update_mean,
)
from cloister.algorithms.prior.noisy_covariance import widened
from cloister.core.findings import EarlierPrior
from cloister.learners import Classification, Regression

DIM, NOISE, ROUNDS, DRAWS = 5, 0.15, 6, 500


class Told:
    """A board of nothing but public arrays, after each round."""

    def __init__(self, *arrays):
        self.arrays, self.rounds = arrays, len(arrays) - 1

    def __getitem__(self, name):
        return self.arrays[-1][name]

    def before(self, number):
        return Told(*self.arrays[: number + 1])


def ended(told, start=None):
    """Return where the mean ends, and its variance on the board, if tasks' mean offset is `told(point)`."""
    rng, learner = np.random.default_rng(0), Regression(DIM)
    means, variances = [], []
    for _ in range(DRAWS):
        board = Told(initial_mean(DIM, start))
        for _ in range(ROUNDS):
            g = told(board["mean"]) + NOISE * rng.normal(size=DIM)
            board = Told(*board.arrays, update_mean(learner, g, NOISE, 1.0, board))
        means.append(board["mean"])
        variances.append(float(board["variance"]))
    return np.array(means), np.array(variances)


@pytest.mark.parametrize("start", [None, EarlierPrior((3.0,) + (0.0,) * (DIM - 1), 1e-4)])
def test_noise_of_a_mean_that_all_tasks_pull_one_way_adds_up(start):
    """Clipped offsets along one coordinate say nothing of the others, where all noise stays.

    The empirical variance of 4 x 500 numbers is within 20 % but once in 10^9 runs.
    """
    means, variances = ended(lambda point: np.eye(DIM)[0], start)
    assert 0.7 < variances.mean() / means[:, 1:].var() < 1.5


@pytest.mark.parametrize("response", [0.4, 0.7, 1.0])
def test_noise_of_a_mean_that_tasks_put_right_averages_out(response):
    """Tasks around 0.3, who move by a part of what the point does: less is left than one round's noise."""
    target, clip = 0.3 * np.eye(DIM)[0], Regression(DIM).clip
    means, variances = ended(lambda point: response * (target - point) / clip)
    assert 0.7 < variances.mean() / means[:, 1:].var() < 2.0
    assert means[:, 1:].var() < 0.6 * (clip * NOISE / response) ** 2
    np.testing.assert_allclose(means.mean(axis=0), target, atol=0.02)  # 7 standard errors and more


def test_loud_noise_moves_a_mean_by_less():
    """By what was heard over the usual answer to a move, or hardly at all: with the variance that leaves."""
    start, heard = np.zeros((1, 3)), np.array([[0.5, 0.0, 0.0]])
    (quiet, loud), variances = zip(
        *(estimate_root(0.5, start, np.zeros(1), heard, np.array([v])) for v in (1e-6, 1.0)), strict=True
    )
    assert quiet[0] == pytest.approx(0.5 / 0.4, rel=1e-3)
    assert 0.01 < loud[0] < 0.1
    assert variances[1] < 0.01 * 1.0 / 0.4**2


def test_a_mean_far_away_is_reached():
    """At 4 clips, seen by tasks that differ by one: the six rounds go beyond what six clips' steps need."""
    target, clip = 2.0 * np.eye(DIM)[0], Regression(DIM).clip

    def told(point):
        away = (target - point) / clip
        return away / np.sqrt(1 + away @ away)

    means, variances = ended(told)
    np.testing.assert_allclose(means.mean(axis=0), target, atol=0.05)
    assert 0.7 < variances.mean() / means[:, 1:].var() < 2.5


@pytest.mark.parametrize(("learner", "added"), [(Regression(3), 0.04), (Classification(3), 0.02)])
def test_noise_in_the_mean_is_added_to_every_prior_around_it(learner, added):
    """In every direction alike, also where a covariance says that tasks hardly differ; own units apart."""
    mean, factor = np.array([0.5, 1.0, -1.0]), np.diag([1.0, 2.0, 0.01])
    exact, noisy = (
        shared_candidates(
            learner, mean, [factor], False, initial_mean(3, None) | {"variance": np.array(variance)}
        )
        for variance in (0.0, 0.02)
    )
    assert len(exact) == len(noisy) == 3
    public = [(a, b) for a, b in zip(exact, noisy, strict=True) if not a.own_units]
    assert len(public) >= 2
    for before, after in public:
        wider = after.factor @ after.factor.T - before.factor @ before.factor.T
        np.testing.assert_allclose(wider, added * np.eye(3), atol=1e-12)


def test_priors_that_are_the_same_are_one_with_the_weight_of_all():
    """A covariance without a direction is the identity, however it is turned; what is close to it is not."""
    learner, mean = Regression(3), np.array([0.5, 1.0, -1.0])
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3))).Q
    board = initial_mean(3, None) | {"variance": np.array(0.02)}
    factors = [turn, turn.T, np.diag([1.0, 1.0, 1.0 + 1e-9])]
    found = shared_candidates(learner, mean, factors, False, board)
    apart = shared_candidates(learner, mean, [np.diag([1.0, 1.0, 2.0])], False, board)
    plain, loose, close = found
    assert [len(found), len(apart)] == [3, 3]
    assert plain.weight == pytest.approx(apart[0].weight + 2 / 3 * apart[2].weight, rel=1e-12)
    assert loose.weight == pytest.approx(apart[1].weight, rel=1e-12)
    assert close.weight == pytest.approx(apart[2].weight / 3, rel=1e-12)


@pytest.mark.parametrize(("dim", "noise"), [(3, 0.02), (30, 1e-16), (100, 1e-15), (100, 1e-300)])
def test_hardly_any_noise_is_added_to_a_covariance_of_few_directions(dim, noise):
    """A sum of squares that rounds to no covariance at all, and would have no Cholesky factor."""
    few = np.random.default_rng(0).normal(size=(dim, 2))
    factor = widened(few @ few.T, noise)
    right = few @ few.T @ few @ few.T + noise * np.eye(dim)
    np.testing.assert_allclose(factor @ factor.T, right, atol=1e-13 * np.abs(right).max())
    assert (np.diag(factor) > 0).all()
    assert (np.triu(factor, 1) == 0).all()
