"""Prices that are reckoned once more: as claimed where they can be, none where they cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloister import Plan
from cloister.algorithms import LowRank, MeanRegularized, SharedPrior
from cloister.audit.price import reckon
from cloister.learners import LeastSquares, Regression
from cloister.mechanisms import BLT, Gaussian, L2Laplace, Toeplitz, Tree
from cloister.sampling import Epochs, FixedSize, InOrder, OnePass, Poisson

MEAN = Plan(MeanRegularized(LeastSquares(3), rounds=12), n_tasks=100)
JOINT = Plan(SharedPrior(Regression(3)), n_tasks=100)
PLANS = {
    "everyone": MEAN,
    "zero-out": replace(MEAN, relation="zero_out"),
    "matrices": Plan(LowRank(LeastSquares(3), rounds=3), n_tasks=100),
    "shares that differ": JOINT,
    "coins that may be seen": replace(MEAN, sampling=Poisson(0.3)),
    "coins and shares": replace(JOINT, sampling=Poisson(0.3)),
    "sets of a size": replace(JOINT, sampling=FixedSize(7)),
    "one pass": replace(MEAN, sampling=OnePass()),
    "in order": replace(MEAN, sampling=InOrder()),
    "passes": replace(MEAN, sampling=Epochs(3)),
    "banded, in passes": replace(MEAN, mechanism=Toeplitz(), sampling=Epochs(3)),
    "a tree": replace(MEAN, mechanism=Tree()),
    "buffers": replace(MEAN, mechanism=BLT()),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_exact_price_is_found_without_an_accountant(name):
    plan = PLANS[name].calibrate(1.0)
    own, other, detected = reckon(plan, {plan.delta: plan.guarantee.epsilon})
    for one in (own, other):
        assert 0.9999 < one.least / one.claimed < 1 + 1e-6, one
    assert 0.7 < detected.least / detected.claimed < 1 + 1e-6
    assert not any(one.breach for one in (own, other, detected))


def test_a_little_less_is_convicted():
    plan = MEAN.calibrate(1.0)
    own, *_ = reckon(plan, {plan.delta: 0.9999 * plan.guarantee.epsilon})
    assert own.breach


def test_nothing_is_reckoned_of_hidden_coins_and_other_noise():
    for plan in (replace(MEAN, sampling=Poisson(0.3, hidden=True)), replace(MEAN, mechanism=L2Laplace())):
        assert reckon(plan.calibrate(1.0), {0.1: 0.0}) == ()
    coarse = replace(MEAN, mechanism=Gaussian(1e7))  # on so few steps noise is visibly no Gaussian
    assert reckon(coarse, {0.1: 0.0}) == ()
