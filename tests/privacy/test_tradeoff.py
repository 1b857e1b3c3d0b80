"""Trade-off curves: against other people's numbers, an own inversion, and the tests that attain them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from cloister import Plan
from cloister.algorithms import MeanRegularized
from cloister.errors import InputError, PlanError
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian, L2Laplace, NoNoise, Toeplitz
from cloister.privacy import tradeoff as gaussian_dp
from cloister.privacy.accountants import GaussianDP
from cloister.privacy.accounting import default_delta, price, tradeoff
from cloister.privacy.events import Cost, GammaEvent, GaussianEvent, PureEvent
from cloister.privacy.sampling import Epochs, Everyone, FixedSize, OnePass, Poisson
from cloister.privacy.tradeoff import Envelope, GaussianCurve

ALARMS = (0.001, 0.01, 0.05, 0.2, 0.5, 0.9)


def gaussian(mu: float, rounds: int, sampling, relation="zero_out") -> Cost:
    return Cost((GaussianEvent(mu),) * rounds, sampling, 1000, relation)


# --- numbers that are known ------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_tasks", "epsilon", "rate"), [(2410, 1.0, 0.084), (200, 4.0, 0.303)])
def test_rates_that_were_printed_too_high(n_tasks: int, epsilon: float, rate: float) -> None:
    """13.6 % and 98.3 % is what epsilon and delta alone say of these two."""
    plan = Plan(MeanRegularized(LeastSquares(3), rounds=4), n_tasks=n_tasks).calibrate(epsilon=epsilon)
    assert plan.guarantee.detection() == pytest.approx(rate, abs=5e-4)
    assert plan.guarantee.mu == pytest.approx(gaussian_dp.mu(epsilon, default_delta(n_tasks)), rel=1e-3)
    alone = Envelope(((epsilon, plan.guarantee.delta),)).detection()
    assert alone > 1.5 * rate


@pytest.mark.parametrize(("mu", "rounds", "rate"), [(1.0, 50, 0.1), (0.2, 1000, 0.5), (3.0, 20, 0.2)])
def test_hidden_coins_against_riskcal_and_gdpnum(mu: float, rounds: int, rate: float) -> None:
    pytest.importorskip("riskcal")
    gdpnum = pytest.importorskip("gdpnum")
    from dp_accounting.pld import privacy_loss_distribution
    from riskcal.analysis import get_beta_from_pld

    one = privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu, sampling_prob=rate, value_discretization_interval=1e-3
    )
    pld = one.self_compose(rounds)
    converter = gdpnum.PLDConverter(pld)
    curve = tradeoff(gaussian(mu, rounds, Poisson(rate, hidden=True)), delta=1e-5)
    for alarms in ALARMS:
        ours = curve.detection(alarms)
        assert ours == pytest.approx(1 - float(get_beta_from_pld(pld, alpha=alarms)), abs=1e-3)
        theirs = np.interp(alarms, converter.alphas_symm, converter.betas_symm)
        assert ours == pytest.approx(1 - float(theirs), abs=1e-3)
        assert ours >= 1 - float(theirs) - 2e-5  # ours is rounded up; theirs is within its grid


@pytest.mark.parametrize("mu", [0.1, 0.2653, 1.0, 4.0])
def test_gaussian_dp_against_riskcal(mu: float) -> None:
    riskcal = pytest.importorskip("riskcal")
    for alarms in ALARMS:
        beta = float(riskcal.analysis.get_beta_from_gdp(mu=mu, alpha=alarms))
        assert GaussianCurve(mu).detection(alarms) == pytest.approx(1 - beta, abs=1e-9)


# --- an inversion of one's own ---------------------------------------------------------------------------


EPSILONS = np.linspace(0, 12, 1201)


def inverted(deltas, alarms: float) -> float:
    """Return the largest power that a curve of delta over EPSILONS leaves."""
    first = np.exp(EPSILONS) * alarms + deltas
    second = 1 - np.exp(-EPSILONS) * (1 - deltas - alarms)
    return float(min(first.min(), second.min(), 1.0))


@pytest.mark.parametrize("mu", [0.27, 1.1])
def test_gaussian_dp_against_an_inversion(mu: float) -> None:
    deltas = gaussian_dp.deltas(mu, EPSILONS)
    for alarms in ALARMS:
        assert GaussianCurve(mu).detection(alarms) == pytest.approx(inverted(deltas, alarms), abs=1e-4)


@pytest.mark.parametrize("sampling", [Poisson(0.2), FixedSize(300)])
def test_visible_coins_against_an_inversion(sampling) -> None:
    cost = gaussian(0.5, 12, sampling)
    deltas = np.array([GaussianDP().delta(cost, float(epsilon)) for epsilon in EPSILONS])
    curve = tradeoff(cost, delta=1e-5)
    for alarms in ALARMS:
        assert curve.detection(alarms) == pytest.approx(inverted(deltas, alarms), abs=1e-3)


def test_visible_coins_against_the_best_test() -> None:
    """Who sees the coins knows mu: over two rounds, the likelihood ratio decides at one common threshold."""
    rate, mu = 0.3, 1.5
    mus, weights = np.array([0.0, mu, mu * 2**0.5]), np.array([0.49, 0.42, 0.09])
    thresholds = np.linspace(-4, 6, 2001)[:, None]
    at = np.where(mus > 0, thresholds / np.maximum(mus, 1e-9) + mus / 2, np.where(thresholds < 0, -9, 9))
    alarms, power = ndtr(-at) @ weights, ndtr(mus - at) @ weights
    curve = tradeoff(gaussian(mu, 2, Poisson(rate)), delta=1e-5)
    assert np.all(power <= curve.detected(alarms) + 1e-12)
    inside = (alarms > 0.01) & (alarms < 0.5) & (np.abs(thresholds[:, 0]) > 1e-9)
    gap = curve.detected(alarms)[inside] - power[inside]
    assert gap.min() < 1e-3  # it is attained, but on the chord where thresholds cross 0


# --- bounds, whatever the noise --------------------------------------------------------------------------


@given(mu=st.floats(0.01, 8), epsilon=st.floats(0, 12), alarms=st.floats(1e-6, 0.999))
def test_no_gaussian_test_beats_epsilon_and_delta(mu: float, epsilon: float, alarms: float) -> None:
    one = Envelope(((epsilon, gaussian_dp.delta(mu, epsilon)),))
    assert GaussianCurve(mu).detection(alarms) <= one.detection(alarms) + 1e-12


def test_randomised_response_attains_the_bound() -> None:
    told = Envelope(((math.log(19), 0.0),))  # truth with probability .95: false alarms .05, hits .95
    assert told.detection() == pytest.approx(0.95)
    assert tradeoff(Cost((PureEvent(math.log(19)),), Everyone(), 9), delta=0.0).detection() == pytest.approx(
        0.95
    )


def test_many_small_pure_rounds_are_almost_gaussian() -> None:
    """A hundred answers of randomised response: what counts is how many are true, which is binomial."""
    epsilon, rounds = 0.1, 100
    cost = Cost((PureEvent(epsilon),) * rounds, Everyone(), 1000)
    curve = tradeoff(cost, delta=1e-5)
    truth = 1 / (1 + math.exp(-epsilon))
    rng = np.random.default_rng(0)
    power = (rng.binomial(rounds, truth, 100_000) >= 59).mean()
    alarms = (rng.binomial(rounds, 1 - truth, 100_000) >= 59).mean()
    assert power + 0.01 < curve.detection(float(alarms)) < 0.36  # six deviations of 100,000 games
    assert curve.detection() < 0.36  # the sum of epsilons and advanced composition alone: 0.69


@pytest.mark.parametrize(
    ("cost", "mu"),
    [
        (gaussian(0.3, 4, Everyone()), 0.6),
        (gaussian(0.3, 4, OnePass()), 0.3),
        (gaussian(0.3, 4, Epochs(2)), 0.3 * 2**0.5),
        (gaussian(0.3, 4, Poisson(1.0, hidden=True)), 0.6),
        (gaussian(0.0, 4, Everyone()), 0.0),
    ],
)
def test_where_no_coin_is_tossed_the_curve_is_gaussian(cost: Cost, mu: float) -> None:
    curve = tradeoff(cost, delta=1e-5)
    assert isinstance(curve, GaussianCurve)
    assert curve.mu == pytest.approx(mu)


@pytest.mark.parametrize(
    "cost",
    [
        gaussian(0.6, 30, Poisson(0.1, hidden=True)),
        Cost((GaussianEvent(0.6, 0.3),) * 30, Poisson(0.1, hidden=True), 1000, "replace"),
        gaussian(0.6, 30, Poisson(0.1)),
        Cost((GammaEvent(300, 2.0),) * 10, Everyone(), 320, "replace"),
        Cost((PureEvent(0.2),) * 10, Everyone(), 320),
    ],
)
def test_every_pair_of_a_curve_is_proven(cost: Cost) -> None:
    curve = tradeoff(cost, delta=1e-3)
    assert isinstance(curve, Envelope)
    assert (price(cost, 1e-3).epsilon, 1e-3) in curve.points
    for epsilon, delta in curve.points[1:-1:12]:
        proven = price(cost, delta).epsilon if delta > 0 else price(cost, 0.0).epsilon
        loose = gaussian_dp.epsilon(math.sqrt(10) * gaussian_dp.mu_of_pure(0.2), delta)
        assert min(proven, loose) <= epsilon * (1 + 1e-3) + 1e-3
    assert curve.detection(0.05) <= Envelope(((price(cost, 1e-3).epsilon, 1e-3),)).detection(0.05)
    rates = curve.detected(np.linspace(0, 1, 50))
    assert np.all(np.diff(rates) >= 0)
    assert np.all(np.diff(rates, 2) <= 1e-9)  # concave: mixing two tests is a test
    assert np.all(rates >= np.linspace(0, 1, 50) - 1e-12)


def test_what_is_not_private_has_no_curve() -> None:
    assert tradeoff(gaussian(math.inf, 1, Everyone()), delta=1e-5) is None
    bare = Plan(MeanRegularized(LeastSquares(3)), NoNoise(), n_tasks=50).guarantee
    assert (bare.curve, bare.detection(), bare.mu) == (None, 1.0, None)
    drowned = gaussian(1e3, 1000, Poisson(0.5, hidden=True))  # no grid holds it: as if coins were visible
    assert tradeoff(drowned, delta=1e-3).detection() == pytest.approx(1.0)


def test_of_several_costs_the_worst_counts() -> None:
    small, large = gaussian(0.3, 5, Everyone()), gaussian(0.3, 10, Everyone())
    assert tradeoff(small, large, delta=1e-5) == tradeoff(large, delta=1e-5)
    hidden, visible = (gaussian(0.9, 6, Poisson(0.2, hidden=h)) for h in (True, False))
    both = tradeoff(hidden, visible, delta=1e-4)
    for alarms in ALARMS:
        worst = max(tradeoff(cost, delta=1e-4).detection(alarms) for cost in (hidden, visible))
        assert worst - 2e-3 <= both.detection(alarms) <= worst + 2e-3
        assert both.detection(alarms) >= tradeoff(hidden, delta=1e-4).detection(alarms) - 1e-3


# --- groups ----------------------------------------------------------------------------------------------


@given(mu=st.floats(0, 3), tasks=st.integers(1, 6), alarms=st.floats(1e-4, 0.9))
def test_a_group_is_mu_times_as_exposed(mu: float, tasks: int, alarms: float) -> None:
    expected = ndtr(ndtri(alarms) + tasks * mu)
    assert GaussianCurve(mu).detection(alarms, tasks) == pytest.approx(expected, abs=1e-9)


def test_a_group_of_a_pure_guarantee_has_its_multiple() -> None:
    one, three = Envelope(((0.5, 0.0),)), Envelope(((1.5, 0.0),))
    for alarms in (0.001, 0.01, 0.05):
        assert one.detection(alarms, tasks=3) == pytest.approx(three.detection(alarms))


# --- calibration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "sampling", "relation"),
    [
        (Gaussian(), Everyone(), "replace"),
        (Gaussian(), Poisson(0.2, hidden=True), "zero_out"),
        (Gaussian(), FixedSize(40), "replace"),
        (Toeplitz(), OnePass(), "replace"),
        (L2Laplace(), Everyone(), "zero_out"),
    ],
)
def test_noise_is_found_for_a_risk(mechanism, sampling, relation) -> None:
    algorithm = MeanRegularized(LeastSquares(2), rounds=8)
    plan = Plan(algorithm, mechanism, sampling, n_tasks=200, relation=relation)
    found = plan.calibrate(detection=0.10)
    assert 0.0999 < found.guarantee.detection() <= 0.10
    rare = plan.calibrate(detection=0.03, false_alarms=0.01, delta=1e-4)
    assert 0.0299 < rare.guarantee.detection(0.01) <= 0.03
    assert rare.delta == 1e-4


def test_a_risk_that_is_none_is_refused() -> None:
    plan = Plan(MeanRegularized(LeastSquares(2), rounds=2), n_tasks=200)
    for target in ({}, {"epsilon": 1.0, "detection": 0.1}):
        with pytest.raises(PlanError, match="one target"):
            plan.calibrate(**target)
    for rates in ((0.05, 0.05), (1.0, 0.05), (0.1, 0.0), (math.nan, 0.05)):
        with pytest.raises(PlanError, match="detection must be above false_alarms"):
            plan.calibrate(detection=rates[0], false_alarms=rates[1])
    for wrong in ({"false_alarms": 1.5}, {"tasks": 0}, {"tasks": 1.5}, {"false_alarms": math.nan}):
        with pytest.raises(InputError, match="must be"):
            GaussianCurve(1.0).detection(**wrong)
