"""One run: the p-value is the exact binomial without delta, and the bound is valid."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from cloister import Plan
from cloister.algorithms import LowRank, MeanRegularized
from cloister.audit.one_run import one_run, one_run_epsilon, one_run_p_value
from cloister.errors import InputError
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian
from cloister.privacy.randomness import SeededRandomness
from cloister.sampling import Poisson


def plan_of(mu=None, **changes):
    plan = Plan(MeanRegularized(LeastSquares(3), rounds=1), Gaussian(mu), n_tasks=1000, delta=1e-5, **changes)
    return plan.calibrate(1.99) if mu is None else plan


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_without_delta_it_is_the_binomial_tail(epsilon):
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    for correct in (0, 1, 40, 80):
        assert one_run_p_value(200, 80, correct, epsilon, 0.0) == pytest.approx(
            binom.sf(correct - 1, 80, chance), rel=1e-9
        )


def test_the_share_of_delta_is_the_steepest_mean_slope():
    """The formula of the paper, computed term by term."""
    m, r, v, epsilon, delta = 300, 60, 50, 1.0, 1e-4
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    tail = [binom.sf(v - i - 1, r, chance) for i in range(v + 1)]
    slope = max((tail[i] - tail[0]) / i for i in range(1, v + 1))
    assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(tail[0] + 2 * m * delta * slope)


def test_more_right_guesses_say_more_and_delta_says_less():
    found = [one_run_epsilon(500, 100, correct, 1e-5) for correct in (50, 70, 90, 100)]
    assert found == sorted(found)
    assert found[0] == 0
    assert one_run_epsilon(500, 100, 90, 1e-3) < one_run_epsilon(500, 100, 90, 0.0)
    assert one_run_epsilon(500, 0, 0, 0.0) == 0


def test_bounds_of_randomised_response_are_valid():
    """epsilon 1, 400 bounds at 90 %: more than 60 above 1 has probability 1e-3."""
    rng = np.random.default_rng(0)
    correct = rng.binomial(300, math.e / (1 + math.e), 400)
    found = np.array([one_run_epsilon(300, 300, int(v), 0.0, 0.9) for v in correct])
    assert np.count_nonzero(found > 1) <= 60
    assert np.median(found) > 0.7


def test_right_noise_is_acquitted_and_a_tenth_of_it_is_not():
    """1000 canaries against silence at epsilon 1.99: a median near 0.58, 20 seeds at 99.75 % each."""
    plan = plan_of(relation="zero_out")
    found = [one_run(plan, SeededRandomness(seed), 1 - 0.05 / 20).epsilon for seed in range(20)]
    assert max(found) <= 1.99
    usual = [one_run(plan, SeededRandomness(seed)).epsilon for seed in range(20)]
    assert np.median(usual) == pytest.approx(0.58, abs=0.25)
    loud = plan_of(mu=10 * plan.mechanism.mu, relation="zero_out")
    assert one_run(loud, SeededRandomness(0)).epsilon > 1.99


def test_it_plays_with_sampling_and_replacement():
    for sampling in (Poisson(0.5), Poisson(0.5, hidden=True)):
        plan = Plan(MeanRegularized(LeastSquares(3), rounds=4), Gaussian(), sampling, n_tasks=300).calibrate(
            4.0
        )
        run = one_run(plan, SeededRandomness(0))
        assert 0.1 < run.epsilon <= 4.0
        assert run.canaries == 300


def test_many_rounds_have_fewer_canaries(monkeypatch):
    monkeypatch.setattr("cloister.audit.one_run._SENT", 5e6)  # as 2000 rounds are to 5e8
    crowd = MeanRegularized(LeastSquares(3), rounds=20)
    run = one_run(Plan(crowd, Gaussian(0.5), n_tasks=2000), SeededRandomness(0))
    assert run.canaries == 500
    seldom = one_run(Plan(crowd, Gaussian(0.5), Poisson(0.01), n_tasks=2000), SeededRandomness(0))
    assert seldom.canaries == 1000


def test_it_says_where_it_cannot_play():
    assert one_run(Plan(LowRank(LeastSquares(3)), n_tasks=50).calibrate(1.0), SeededRandomness(0)) is None
    with pytest.raises(InputError, match="Right guesses"):
        one_run_p_value(10, 5, 6, 1.0, 0.0)
