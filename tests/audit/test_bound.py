"""Lower bounds are valid for laws of every kind, and close to the truth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cloister import Plan
from cloister.algorithms import MeanRegularized
from cloister.audit.bound import clopper_pearson, lower_bound, lower_mu
from cloister.audit.fixtures import PublishedWishart
from cloister.audit.game import play
from cloister.audit.zoo.plans import records
from cloister.errors import InputError
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian
from cloister.privacy import tradeoff
from cloister.privacy.randomness import SeededRandomness

MU = tradeoff.mu(1.0, 3e-3)
TOLD = math.e / (1 + math.e)

#: Worlds whose epsilon is 1 at some delta: draws of one world, by whether the task speaks.
LAWS = {
    "gaussian": (3e-3, lambda rng, speaks, n: rng.standard_normal(n) + MU * speaks),
    "laplace": (0.0, lambda rng, speaks, n: rng.laplace(size=n) + speaks),
    "atoms": (0.0, lambda rng, speaks, n: (rng.random(n) < (TOLD if speaks else 1 - TOLD)).astype(float)),
}


@pytest.mark.parametrize("law", ["gaussian", "laplace", "atoms"])
@pytest.mark.parametrize("turned", [False, True])
def test_bounds_are_valid(law, turned):
    """200 bounds at 90 % on 400 scores a world: more than 33 above the truth has probability 4e-4."""
    delta, draw = LAWS[law]
    rng, above, found = np.random.default_rng(1), 0, []
    for _ in range(200):
        silent, speaking = (draw(rng, speaks, 400) for speaks in (False, True))
        scores = (-speaking, -silent) if turned else (silent, speaking)
        found.append(lower_bound(*scores, delta, confidence=0.9).epsilon)
        above += found[-1] > 1
    assert above <= 33
    assert np.mean(found) > 0.05  # it says something


def test_worlds_that_are_the_same_are_not_told_apart():
    """200 bounds at 90 %: more than 33 above 0 has probability 4e-4."""
    rng = np.random.default_rng(2)
    found = [lower_bound(*rng.standard_normal((2, 400)), 0.0, confidence=0.9).epsilon for _ in range(200)]
    assert np.count_nonzero(found) <= 33


@pytest.mark.parametrize("mu", [0.0, 0.3, 2.0])
def test_bounds_on_mu_are_valid(mu):
    """200 bounds at 90 %, as above; at a thousand scores they are near what is true."""
    rng = np.random.default_rng(3)
    shift = np.array([[0.0], [mu]])
    found = [lower_mu(*(shift + rng.standard_normal((2, 1000))), 0.9).mu for _ in range(200)]
    assert np.count_nonzero(np.array(found) > mu) <= 33
    assert np.mean(found) > mu - 0.2


@pytest.mark.parametrize(("loud", "convicted"), [(1.0, False), (0.9, True)])
def test_a_curve_is_measured_where_events_are_too_rare_to_count(loud, convicted):
    """A record's epsilon of 1 at delta 1e-6: at least 0.8 is shown; a tenth too little noise is too."""
    plan = replace(records(), delta=1e-6).calibrate(1.0)
    quieter = replace(plan, mechanism=Gaussian(plan.guarantee.mu / loud))
    scores = play(quieter, SeededRandomness(0), 200_000)
    found = lower_mu(scores.silent, scores.speaking)
    assert (found.mu > plan.guarantee.mu) == convicted
    assert tradeoff.epsilon(found.mu, 1e-6) > 0.8


@pytest.mark.parametrize("exact", [True, False])
def test_one_gaussian_release_is_measured_to_85_per_cent(exact):
    """epsilon 1 at delta 3e-4, 2 million draws in all; some 2 % of seeds would miss the target."""
    algorithm = MeanRegularized(LeastSquares(3), rounds=1)
    plan = Plan(algorithm, Gaussian(exact=exact), n_tasks=200, delta=3e-4).calibrate(1.0)
    scores = play(plan, SeededRandomness(0), 1_000_000)
    bound = lower_bound(scores.silent, scores.speaking, 3e-4)
    assert 0.85 < bound.epsilon <= 1.0


def test_both_directions_are_found():
    """An event that is impossible in one world is found whichever world that is."""
    rng = np.random.default_rng(3)
    speaking = rng.exponential(size=20_000)
    silent = rng.exponential(size=20_000) - 1
    silent[silent < 0] = -np.inf  # the ratio of likelihoods where no speaker can be
    for scores in ((silent, speaking), (speaking, silent), (-speaking, -silent), (-silent, -speaking)):
        bound = lower_bound(*scores, 1e-3)
        assert 7 < bound.epsilon < math.inf  # log(0.63 * 16000 / 3) = 8.1
        assert bound.false_hits[0] == 0


def test_impossible_outputs_of_the_published_wishart_noise():
    """Its delta is 1 - 1/e whatever the epsilon: at delta 0.1 the bound grows with the number of draws."""
    mechanism, rng = PublishedWishart(1.0), np.random.default_rng(4)
    message = np.array([1.0, 0.0, 0.0])
    worlds = [mechanism.draw(total, rng, 20_000) for total in (np.zeros((3, 3)), np.outer(message, message))]
    scores = [-mechanism.impossible(w, np.zeros((3, 3)), message).astype(float) for w in worlds]
    assert lower_bound(*scores, 0.1).epsilon > 7
    assert lower_bound(*scores, 0.7).epsilon == 0


def test_infinite_scores_and_bad_ones():
    infinite = np.repeat([-np.inf, 0.0, np.inf], 400)
    assert lower_bound(infinite, infinite, 0.0).epsilon == 0
    with pytest.raises(InputError, match="no NaN"):
        lower_bound(np.full(20, np.nan), np.zeros(20), 0.0)
    with pytest.raises(InputError, match="at least 10 scores"):
        lower_bound(np.zeros(3), np.zeros(20), 0.0)
    with pytest.raises(InputError, match="delta must be"):
        lower_bound(np.zeros(20), np.zeros(20), 1.0)


def test_the_measured_curve_holds_the_true_one():
    """Limits of 25 points and more together at 95 %: the true Gaussian curve is between them."""
    rng = np.random.default_rng(5)
    bound = lower_bound(rng.standard_normal(50_000), 1 + rng.standard_normal(50_000), 1e-3)
    assert len(bound.curve) >= 25
    for point in bound.curve:
        best = gaussian_dp_missed(1.0, point.false_alarm_limits)
        assert best[1] <= point.missed_limits[1]
        assert point.missed_limits[0] <= best[0]


def gaussian_dp_missed(mu, false_alarms):
    from scipy.special import ndtr, ndtri

    return ndtr(ndtri(1 - np.array(false_alarms)) - mu)


def test_clopper_pearson_is_exact():
    from scipy.stats import binom

    low, high = clopper_pearson(7, 50, 0.05)
    assert binom.sf(6, 50, low) == pytest.approx(0.05)
    assert binom.cdf(7, 50, high) == pytest.approx(0.05)
    assert clopper_pearson(50, 50, 0.05)[1] == 1.0
