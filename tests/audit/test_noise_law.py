"""Noise of the right law is accepted, noise of two thirds or three halves of it is not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from cloister import Plan
from cloister.algorithms import FeatureRelevance, LowRank, MeanRegularized, SharedPrior
from cloister.audit.noise_checks import check_noise, examine
from cloister.core.lifts import svec
from cloister.learners import LeastSquares
from cloister.learners.linear.classification import Classification
from cloister.learners.linear.regression import Regression
from cloister.mechanisms import Gaussian, L2Laplace, Wishart
from cloister.privacy.mechanisms import grid_noise
from cloister.privacy.noise import GaussianLaw, WishartLaw
from cloister.privacy.randomness import SeededRandomness

LOSS, ALIKE = LeastSquares(4), Classification(3, 4, alike=True)
PLANS = {
    "exact": Plan(MeanRegularized(LOSS, rounds=2), Gaussian(), n_tasks=100),
    "floating": Plan(MeanRegularized(LOSS, rounds=2), Gaussian(exact=False), n_tasks=100),
    "matrix": Plan(LowRank(LOSS, rounds=2), Gaussian(), n_tasks=100),
    "joint": Plan(SharedPrior(Regression(4)), Gaussian(), n_tasks=100),
    "relevance": Plan(
        SharedPrior(Classification(3, 4, alike=True), FeatureRelevance()), Gaussian(), n_tasks=100
    ),
    "laplace": Plan(MeanRegularized(LOSS, rounds=2), L2Laplace(), n_tasks=100),
    "one number": Plan(MeanRegularized(LeastSquares(1), rounds=2), L2Laplace(), n_tasks=100),
    "wishart": Plan(LowRank(LOSS, rounds=2), Wishart(), n_tasks=100),
}


def louder(mechanism, factor):
    """Return the mechanism with noise of another scale than it says."""
    kind = type(mechanism)

    class Other(kind):
        def perturb(self, total, channel, noise, source, round):
            return kind.perturb(self, total, channel, factor * noise, source, round)

    return Other(**{name: getattr(mechanism, name) for name in mechanism.__dataclass_fields__})


@pytest.mark.parametrize("name", PLANS)
def test_noise_of_its_own_law_is_accepted(name):
    """A false alarm has probability 1e-3 for each plan."""
    plan = PLANS[name].calibrate(1.0)
    assert check_noise(plan, SeededRandomness(0), numbers=40_000).p_value > 1e-3


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
@pytest.mark.parametrize("name", PLANS)
def test_noise_of_another_scale_is_rejected(name, factor):
    plan = PLANS[name].calibrate(1.0)
    broken = Plan(plan.algorithm, louder(plan.mechanism, factor), n_tasks=100)
    assert check_noise(broken, SeededRandomness(0), numbers=40_000).p_value < 1e-6


@dataclass(frozen=True)
class Stuck(Gaussian):
    """Noise that is the same in every round, whatever it is added to."""

    def perturb(self, total, channel, noise, source, round):
        return channel.steps * (total + grid_noise(noise, channel.steps, source.stream("noise", 0)))


def test_the_same_noise_in_two_rounds_is_rejected():
    plan = Plan(MeanRegularized(LOSS, rounds=2), Stuck(1.0), n_tasks=100)
    found = check_noise(plan, SeededRandomness(0), numbers=2000)
    assert found.p_value < 1e-6
    assert found.worst.startswith("rounds")


def test_shared_numbers_and_other_laws_are_rejected():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((2, 4000, 2))
    assert examine(GaussianLaw(1.0), *noise[:, :, [0, 0]])["neighbours"] < 1e-6
    assert examine(GaussianLaw(1.0), *rng.laplace(scale=2**-0.5, size=(2, 4000, 2)))["law"] < 1e-6
    # A symmetric matrix with one variance on and off the diagonal is not GOE noise.
    upper = np.triu(rng.standard_normal((2, 4000, 3, 3)))
    matrix = upper + np.triu(upper, 1).swapaxes(-1, -2)
    assert examine(GaussianLaw(1.0), *svec(matrix))["scale"] < 1e-6


def test_a_wishart_matrix_that_is_not_positive_is_impossible():
    law = WishartLaw(scale=1.0, freedom=5.0, dim=2)
    bad = svec(np.array([[[-6.0, 0.0], [0.0, 1.0]]]))
    assert law.log_density(bad)[0] == -np.inf
    assert (law.uniforms(bad) == 0).all()
