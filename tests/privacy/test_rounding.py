"""Which way numbers are rounded that a price or a budget rests on."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from cloister import Ledger
from cloister.errors import BudgetError
from cloister.ledger.accounts import Balance
from cloister.ledger.charges import Account
from cloister.privacy import chi_square_pld, hidden_sampling, tradeoff, visible_sampling
from cloister.privacy.accounting import calibrate, price
from cloister.privacy.events import Cost, GaussianEvent
from cloister.privacy.noise import ROUNDING, integer_deviation
from cloister.privacy.sampling import Everyone, Poisson
from cloister.privacy.statement import ceiling, per_hundred, percent, rounded_down, rounded_up


def test_quiet_rounds_beside_a_loud_one_have_their_price() -> None:
    """One round of mu 10^6 that nearly nobody is in, and 10,000 of .5: each squared ratio is 2.5e-13."""
    loud, quiet, n, rate, delta = 1e6, 0.5, 10_000, 1e-5, 1e-4
    events = (GaussianEvent(loud),) + (GaussianEvent(quiet),) * n
    found = price(Cost(events, Poisson(rate), n_tasks=1000), delta).epsilon
    takes = range(1, 15)
    shares = [tradeoff.delta(quiet * math.sqrt(k), found) * binom.pmf(k, n, rate) for k in takes]
    assert rate + (1 - rate) * math.fsum(shares) <= delta
    assert found == pytest.approx(1.474, abs=1e-3)


@given(st.floats(-15, 0), st.floats(0, 1))
def test_squared_ratios_are_rounded_up(size: float, mantissa: float) -> None:
    ratio = min(1.0, 10**size * (1 + mantissa))
    up = visible_sampling._up(ratio)
    assert ratio <= up <= ratio * (1 + 3e-11) + 1e-12


def test_squared_ratios_of_one_shape_stay_equal_whatever_the_scale() -> None:
    shapes = ((1.0, 0.5, 0.1), (1.0, 1 / 3, 1e-7))
    for shape in shapes:
        scaled = {
            tuple(visible_sampling._up((mu * scale / (max(shape) * scale)) ** 2) for mu in shape)
            for scale in np.geomspace(1e-3, 1e3, 500)
        }
        assert len(scaled) == 1


def test_many_different_rounds_are_gathered_upwards() -> None:
    rng = np.random.default_rng(0)
    mus = np.sort(rng.uniform(1e-9, 1, 5000) ** 3)
    for before, after in (
        (mus, visible_sampling._coarse(tuple((float(mu), 1) for mu in mus))),
        (mus, hidden_sampling._side(tuple((float(mu), float(mu), 1) for mu in mus), 0)),
        (mus, [(s, n) for _, s, n in chi_square_pld._coarse(tuple((9.0, float(mu), 1) for mu in mus))]),
    ):
        rounded = np.repeat(*map(np.array, zip(*sorted(after), strict=True)))
        assert len(set(rounded)) <= 1025
        assert (rounded >= before).all()


def test_sums_on_a_grid_are_never_below_the_true_ones() -> None:
    """Also where values are whole numbers of the grid's unit, but for a rounding error."""
    rng = np.random.default_rng(1)
    blocks = []
    for values in (rng.uniform(0, 1, 30), np.arange(30.0), 1e-6 * np.arange(40.0)):
        weights = rng.uniform(0.1, 1, len(values))
        blocks.append((values, weights / weights.sum()))
    sums, mass = np.zeros(1), np.ones(1)
    for values, weights in blocks:
        sums, mass = np.add.outer(sums, values).ravel(), np.multiply.outer(mass, weights).ravel()
    found, law, lost = visible_sampling._on_grid(blocks, 30.0, 0.0)
    for at in np.quantile(sums, np.linspace(0, 1, 200)):
        above = math.fsum(mass[sums >= at])
        assert math.fsum(law[found >= at]) + lost >= above * (1 - 1e-12)


@pytest.mark.parametrize("takers", [(0.7, 0.3), (0.6, 0.3, 0.1)])
def test_mass_that_is_dropped_is_added_to_delta(takers: tuple[float, ...]) -> None:
    law, lost = visible_sampling._repeated(takers, 3000)
    assert lost > 0
    assert math.fsum(law) + lost >= 1 - 2e-12
    if len(takers) == 2:
        dropped = sum(binom.pmf(k, 3000, takers[1]) for k in np.flatnonzero(law == 0))
        assert dropped <= lost


@pytest.mark.parametrize(("n", "rate", "error"), [(100, 0.1, 1e-12), (10_000, 0.01, 1e-10)])
def test_probabilities_of_taking_part_are_the_nearest(n: int, rate: float, error: float) -> None:
    """Not rounded up: relative errors were at most 2e-9 for a million rounds, against 60 digits."""
    found, p = visible_sampling.binomial(n, rate), Fraction(rate)
    for k in range(0, int(3 * n * rate), max(1, int(n * rate) // 4)):
        exact = math.comb(n, k) * p**k * (1 - p) ** (n - k)
        assert abs(Fraction(found[k]) / exact - 1) < error


@given(st.floats(0.001, 20), st.floats(-12, -1))
def test_what_is_searched_for_ends_on_the_affordable_side(mu: float, log_delta: float) -> None:
    delta = 10**log_delta
    epsilon = tradeoff.epsilon(mu, delta)
    assert tradeoff.delta(mu, epsilon) <= delta
    assert tradeoff.delta(tradeoff.mu(epsilon, delta), epsilon) <= delta


def test_a_calibrated_budget_never_costs_more_than_was_asked_for() -> None:
    def cost_of(mu: float) -> Cost:
        return Cost((GaussianEvent(mu / 5),) * 20 + (GaussianEvent(mu / 50),) * 5, Poisson(0.2), 500)

    for epsilon in (0.1, 1.0, 7.0):
        assert price(cost_of(calibrate(cost_of, epsilon, 1e-5)), 1e-5).epsilon <= epsilon


@given(st.floats(0, 1e15))
def test_integer_noise_is_rounded_up(deviation: float) -> None:
    exact = Fraction(deviation) ** 2 + ROUNDING**2
    assert Fraction(integer_deviation(deviation)) ** 2 >= exact


@given(st.floats(1e-300, 1e300), st.integers(1, 6))
def test_printed_bounds_are_on_the_safe_side(value: float, digits: int) -> None:
    assert Decimal(repr(ceiling(value, digits))) >= Decimal(repr(value))
    assert Decimal(rounded_up(value, digits)) >= Decimal(repr(value))
    assert Decimal(rounded_down(value, digits)) <= Decimal(repr(value))


@given(st.floats(1e-12, 1))
def test_printed_shares_are_rounded_up(share: float) -> None:
    assert Fraction(per_hundred(share)) >= Fraction(Decimal(repr(share))) * 100
    assert float(percent(share).split()[0]) >= 100 * share * (1 - 1e-15)


def test_a_budget_forgives_rounding_and_nothing_else() -> None:
    account = Account("tasks", 1.0, 1e-5)
    for parts in (3, 7, 1000):
        mu = account.mu / math.sqrt(parts)
        balance = Balance(account, ())
        for number in range(parts):
            cost = Cost((GaussianEvent(mu),), Everyone(), 50)
            balance = Balance(account, (*balance.charges, balance.next("p", cost, run=str(number))))
    over = Cost((GaussianEvent(account.mu * (1 + 1e-11)),), Everyone(), 50)
    with pytest.raises(BudgetError):
        Balance(account, ()).next("p", over, run="7")


def test_what_is_spent_is_printed_up_and_what_remains_down() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-5)
    ledger.charge("first", Cost((GaussianEvent(0.2),), Everyone(), 50))
    with pytest.raises(BudgetError) as refused:
        ledger.charge("again", Cost((GaussianEvent(0.2),), Everyone(), 50))
    assert f"{rounded_up(ledger.spent, 3)} is spent" in str(refused.value)
    assert f"epsilon = {rounded_up(tradeoff.epsilon(0.2 * math.sqrt(2), 1e-5), 3)} in all" in str(
        refused.value
    )
