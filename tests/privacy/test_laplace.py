"""Laplace noise on the l2 ball: its law and its price.

Random tests have fixed seeds; thresholds are put where a right implementation fails with probability below
1e-5 a test.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from cloister import Ledger, Plan, Tasks, replay, run
from cloister.algorithms import LowRank, MeanRegularized
from cloister.channel import Absolute, Channel, Outer, Plain, Relation
from cloister.errors import BudgetError, InputError, PlanError
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian, L2Laplace
from cloister.privacy.accountants import PureDP
from cloister.privacy.accounting import price
from cloister.privacy.events import Cost, PureEvent
from cloister.privacy.randomness import SeededRandomness
from cloister.sampling import Everyone, FixedSize, OnePass, Poisson


@pytest.fixture(scope="module", params=[1, 2, 7])
def drawn(request):
    """Noise of 5000 rounds over its scale: share 1/4, level 0.8, sensitivity 2."""
    channel, source = Channel(request.param), SeededRandomness(2)
    mechanism, total = L2Laplace(0.8), np.arange(float(request.param))
    noise = mechanism.noise(channel, Relation.REPLACE, 0.25)
    scale = 2.0 / (0.8 * 0.5)
    return (
        np.array([mechanism.perturb(total, channel, noise, source, t) - total for t in range(5000)]) / scale
    )


def test_the_length_has_a_gamma_law(drawn):
    """KS accepts the priced scale (false alarm 1e-5), rejects 2/3 and 3/2 of it."""
    dim = drawn.shape[1]
    for scale, holds in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        p = stats.kstest(np.linalg.norm(drawn, axis=1) / scale, stats.gamma(dim).cdf).pvalue
        assert p > 1e-5 if holds else p < 1e-12


def test_the_direction_is_uniform_and_independent_of_the_length(drawn):
    """A coordinate of a uniform direction, squared, is Beta(1/2, (d-1)/2); signs are even: 5 sd."""
    dim, length = drawn.shape[1], np.linalg.norm(drawn, axis=1)
    unit = drawn / length[:, None]
    assert np.abs(np.sign(unit).mean(axis=0)).max() < 5 / math.sqrt(len(unit))
    if dim == 1:
        return
    for i in range(dim):
        assert stats.kstest(unit[:, i] ** 2, stats.beta(0.5, (dim - 1) / 2).cdf).pvalue > 1e-6
        assert abs(np.corrcoef(unit[:, i], length)[0, 1]) < 5 / math.sqrt(len(unit))
    if dim == 2:
        angle = np.arctan2(unit[:, 1], unit[:, 0]) / (2 * math.pi) + 0.5
        assert stats.kstest(angle, "uniform").pvalue > 1e-6


def test_what_the_board_calls_noise_is_the_deviation_of_a_coordinate(drawn):
    """Variance dim + 1 in units of the squared scale; 6 % is more than 5 sd of the heaviest tail here."""
    dim = drawn.shape[1]
    assert drawn.var() == pytest.approx(dim + 1, rel=0.06 if dim > 1 else 0.2)
    assert len(np.unique(drawn[:, 0])) == len(drawn)


@pytest.mark.parametrize("lift", [Plain(), Absolute(), Outer()], ids=repr)
def test_the_loss_is_bounded_by_the_price_and_attains_it(lift):
    """Log densities at random outputs, under both relations."""
    rng, channel = np.random.default_rng(5), Channel(3, lift=lift)
    for relation in Relation:
        scale = L2Laplace(0.6).noise(channel, Relation.REPLACE, 1.0) / math.sqrt(channel.size + 1)
        worst = channel.sensitivity(relation)
        plan_price = 0.6 * worst / channel.sensitivity(Relation.REPLACE)
        for _ in range(200):
            rows = rng.standard_normal((2, 1, 3)) * 3
            one, two = channel.total(rows[0]), channel.total(rows[1])
            two = two if relation == Relation.REPLACE else 0 * two
            output = rng.standard_normal(channel.size) * 4
            loss = (np.linalg.norm(output - two) - np.linalg.norm(output - one)) / scale
            assert abs(loss) <= plan_price + 1e-12
        assert worst / scale == pytest.approx(plan_price, rel=1e-12)


# ------------------------------------------------------------------ price


def test_rounds_compose_by_the_better_bound():
    few, many = (Cost((PureEvent(0.1),) * n, Everyone(), 100) for n in (3, 300))
    assert price(few, 1e-4).epsilon == pytest.approx(0.3)
    expected = 300 * 0.1 * math.tanh(0.05) + math.sqrt(2 * 3 * math.log(1e4))
    assert price(many, 1e-4).epsilon == pytest.approx(expected)
    assert price(many, 1e-4).accountant == "composition of pure DP"
    assert price(Cost((PureEvent(0.0),) * 2, Everyone(), 100), 1e-4).epsilon == 0.0


def test_delta_and_epsilon_are_inverse():
    cost = Cost((PureEvent(0.1),) * 300, Everyone(), 100)
    for delta in (1e-2, 1e-5, 1e-9):
        epsilon = PureDP().epsilon(cost, delta)
        assert PureDP().delta(cost, epsilon) == pytest.approx(delta, rel=1e-6)
    assert PureDP().delta(cost, 30.1) == 0.0
    assert PureDP().delta(cost, 0.1) == 1.0
    assert PureDP().delta(Cost((PureEvent(math.inf),), Everyone(), 100), 5.0) == 1.0
    assert PureDP().epsilon(Cost((PureEvent(math.inf),), Everyone(), 100), 1e-3) == math.inf


@pytest.mark.parametrize("sampling", [Poisson(0.2), Poisson(0.2, hidden=True), FixedSize(10)])
def test_sampling_is_priced_as_if_all_took_part(sampling):
    events = tuple(PureEvent(x) for x in (0.1, 0.7, 0.3))
    assert price(Cost(events, sampling, 100), 1e-9).epsilon == pytest.approx(1.1)
    assert price(Cost(events, OnePass(), 100), 1e-9).epsilon == pytest.approx(0.7)


@pytest.mark.parametrize("relation", ["zero_out", "replace"])
@pytest.mark.parametrize("algorithm", [MeanRegularized(LeastSquares(3), rounds=9), LowRank(LeastSquares(3))])
def test_calibration_never_overspends(algorithm, relation):
    for epsilon in (0.1, 1.0, 20.0):
        plan = Plan(algorithm, L2Laplace(), n_tasks=200, relation=relation).calibrate(epsilon)
        assert epsilon * (1 - 1e-3) < plan.guarantee.epsilon <= epsilon
        assert (plan.guarantee.other_epsilon < epsilon) == (relation == "replace")
        assert Plan.from_toml(plan.to_toml()) == plan


def test_gaussian_noise_is_quieter_in_many_dimensions():
    def noise(mechanism, dim):
        plan = Plan(MeanRegularized(LeastSquares(dim), rounds=1), mechanism, n_tasks=500).calibrate(1.0)
        return plan.noise(0, plan.rounds[0].channels[0])

    assert noise(L2Laplace(), 1) < noise(Gaussian(), 1)
    assert noise(L2Laplace(), 30) > noise(Gaussian(), 30)


def test_the_forecast_hears_the_louder_noise():
    algorithm = MeanRegularized(LeastSquares(8), rounds=4)
    laplace, gaussian = (Plan(algorithm, m, n_tasks=200).forecast() for m in (L2Laplace(0.5), Gaussian(0.5)))
    assert laplace.rho == pytest.approx(gaussian.rho / 3, rel=1e-9)


def test_a_run_and_its_replay():
    rng = np.random.default_rng(0)
    tasks = Tasks.from_arrays(rng.uniform(-1, 1, (60, 3)), rng.uniform(-1, 1, 60), np.arange(60) % 20)
    plan = Plan(MeanRegularized(LeastSquares(3), rounds=3), L2Laplace(), n_tasks=20).calibrate(2.0)
    done = run(plan, tasks, random_state=0)
    plan.check(done.board)
    again = replay(plan, done.board, tasks, seeds=done.private.seeds)
    np.testing.assert_array_equal(again["coef"], done.private.models["coef"])
    with pytest.raises(BudgetError, match="Nothing has left any task"):
        run(plan, tasks, ledger=Ledger(0.1, 1e-3))


def test_nonsense_is_refused():
    for mu in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(PlanError, match="mu must be > 0 and finite"):
            L2Laplace(mu)
    with pytest.raises(PlanError, match=r"Call plan\.calibrate"):
        _ = L2Laplace().budget
    with pytest.raises(InputError, match="epsilon must be at least 0"):
        PureEvent(-0.1)
