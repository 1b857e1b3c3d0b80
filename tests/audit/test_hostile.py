"""Mechanisms that lie: each is convicted by the auditor, and for the right reason."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cloister import Plan
from cloister.algorithms import LowRank, MeanRegularized, SharedPrior
from cloister.audit import audit, audit_mechanism
from cloister.audit.noise_checks import check_freshness, check_last_bits, check_noise
from cloister.channel import Channel, MeanAndOuter, Outer, Plain
from cloister.learners import LeastSquares, Regression
from cloister.mechanisms import Gaussian, L2Laplace, Wishart
from cloister.privacy.randomness import SeededRandomness, normals

SOURCE = SeededRandomness(0)
MEAN = MeanRegularized(LeastSquares(8), rounds=4)
HONEST = [
    Plan(MEAN, n_tasks=200),
    Plan(MeanRegularized(LeastSquares(1), rounds=1), n_tasks=200),
    Plan(LowRank(LeastSquares(3), rounds=2), n_tasks=200),
    Plan(SharedPrior(Regression(3)), n_tasks=200),
]


@dataclass(frozen=True)
class SaysExact(Gaussian):
    """Floating-point noise on an integer sum that says it is exact."""

    def perturb(self, total, channel, noise, source, round):
        return channel.steps * total + noise * normals(source.stream("noise", round).uniforms(total.size))


@dataclass(frozen=True)
class PublicSeed(Gaussian):
    """Noise of the right law, from a seed that is written in the code."""

    def perturb(self, total, channel, noise, source, round):
        return super().perturb(total, channel, noise, SeededRandomness(10), round)


@dataclass(frozen=True)
class EveryOther(Gaussian):
    """The noise of a round again in the next one."""

    def perturb(self, total, channel, noise, source, round):
        return super().perturb(total, channel, noise, source, round // 2)


@pytest.mark.parametrize(
    "epsilon", [0.01, *(pytest.param(usual, marks=pytest.mark.slow) for usual in (1.0, 1e3)), 1e9]
)
@pytest.mark.parametrize("plan", HONEST)
def test_exact_noise_stands_at_every_level(plan, epsilon):
    """False alarms: none in the last bits, 1e-30 for numbers that come again, 1e-3 for the noise law."""
    plan = plan.calibrate(epsilon)
    bits = check_last_bits(plan, SOURCE)
    assert (bits.between, bits.hits) == (0, 0)
    assert bits.numbers > 30_000
    assert not check_freshness(plan, SOURCE).breach
    law = check_noise(plan, SOURCE, numbers=20_000)
    assert (law is None and epsilon > 1e6) or law.p_value > 1e-3  # on few steps of a grid no law is known


def test_both_tests_of_the_last_bits_see_floats():
    plan = Plan(MEAN, SaysExact(1.0), n_tasks=200)
    bits = check_last_bits(plan, SOURCE)
    assert bits.between > 0.99 * bits.numbers
    assert bits.hits > 100
    for honest in (Gaussian(1.0, exact=False), L2Laplace(1.0)):
        assert check_last_bits(Plan(MEAN, honest, n_tasks=200), SOURCE) is None


def test_noise_of_a_single_number_is_compared_over_rounds():
    plan = Plan(MeanRegularized(LeastSquares(1), rounds=2), L2Laplace(1.0), n_tasks=200)
    assert not check_freshness(plan, SOURCE).breach
    stuck = Plan(plan.algorithm, EveryOther(1.0), n_tasks=200)
    found = check_freshness(stuck, SOURCE)
    assert found.keys
    assert not found.rounds


@pytest.mark.parametrize("epsilon", [1e-4, 1e6, 1e11])
@pytest.mark.parametrize("relation", ["replace", "zero_out"])
def test_any_budget_can_be_audited(epsilon, relation):
    """The six verdicts are all right with probability 1 - 6e-4."""
    plan = Plan(MEAN, n_tasks=200, relation=relation).calibrate(epsilon)
    assert not audit(plan, draws=2000, confidence=0.9999, random_state=0).convicted


@pytest.mark.parametrize(
    ("mechanism", "lift", "convicted"),
    [
        (Gaussian(0.5), MeanAndOuter(0.5), False),
        (L2Laplace(0.5), Plain(), False),
        (Wishart(mu=0.5), Outer(), False),
        (SaysExact(0.5), Outer(), True),
        (PublicSeed(0.5), Plain(), True),
    ],
)
def test_a_bare_mechanism_can_be_audited(mechanism, lift, convicted):
    """A false alarm has probability 1e-4 each."""
    channel = Channel(3, lift=lift)
    found = audit_mechanism(
        mechanism, channel, n_tasks=100, relation="zero_out", draws=2000, confidence=0.9999, random_state=0
    )
    assert found.convicted is convicted
    assert found.guarantee.relation == "zero_out"
    assert found.isolation.holds is None
