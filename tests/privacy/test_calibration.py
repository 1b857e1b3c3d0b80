"""Calibration: noise for an epsilon that is never overspent; and which deltas mean something."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.errors import PlanError
from cloister.privacy import tradeoff
from cloister.privacy.accounting import (
    calibrate,
    check_delta,
    default_delta,
    price,
)
from cloister.privacy.events import Cost, GaussianEvent
from cloister.privacy.sampling import Everyone, FixedSize, OnePass, Poisson, Sampling

INF = math.inf
SAMPLINGS: list[Sampling] = [Everyone(), OnePass(), FixedSize(41), Poisson(0.2), Poisson(0.2, hidden=True)]


def one_round(mu: float) -> Cost:
    return Cost((GaussianEvent(mu),), Everyone(), 205)


@given(
    log_epsilon=st.floats(-1.5, 1.5),
    log_delta=st.floats(-7, -2.4),
    rounds=st.integers(1, 300),
    sampling=st.sampled_from(SAMPLINGS),
    relation=st.sampled_from(["zero_out", "replace"]),
    power=st.sampled_from([0.0, 0.5]),
)
@settings(deadline=None, max_examples=25)
def test_calibration_round_trip_never_overspends(
    log_epsilon, log_delta, rounds, sampling, relation, power
) -> None:
    epsilon, delta = 10**log_epsilon, 10**log_delta
    shares = (1 + np.arange(rounds) // 50) ** power
    shares = shares / math.sqrt(float(shares @ shares))

    def cost_of(mu: float) -> Cost:
        silence = 1.0 if relation == "zero_out" else 0.5
        events = tuple(GaussianEvent(float(mu * s), float(silence * mu * s)) for s in shares)
        return Cost(events, sampling, 205, relation)

    mu = calibrate(cost_of, epsilon, delta)
    assert epsilon * (1 - 1.01e-4) <= price(cost_of(mu), delta).epsilon <= epsilon


def test_calibration_is_the_closed_form_where_there_is_one() -> None:
    exact = tradeoff.mu(2.0, 1e-5)
    shares = np.arange(1, 31) ** 0.7
    shares /= math.sqrt(float(shares @ shares))
    everyone = calibrate(
        lambda mu: Cost(tuple(GaussianEvent(mu * s) for s in shares), Everyone(), 9), 2.0, 1e-5
    )
    one_pass = calibrate(
        lambda mu: Cost(tuple(GaussianEvent(mu * s) for s in shares), OnePass(), 9), 2.0, 1e-5
    )
    assert everyone == pytest.approx(exact, rel=1e-11)
    assert one_pass == pytest.approx(exact / shares.max(), rel=1e-11)


def test_calibration_follows_a_number_of_rounds_that_depends_on_the_budget() -> None:
    def cost_of(mu: float) -> Cost:
        rounds = min(20, max(4, round(8 * mu)))  # each round at full price: the price jumps with it
        return Cost((GaussianEvent(mu / 3),) * rounds, Poisson(0.5), 205)

    mu = calibrate(cost_of, 3.0, 1e-4)
    assert price(cost_of(mu), 1e-4).epsilon <= 3.0
    assert price(cost_of(mu * 1.001), 1e-4).epsilon > 3.0 * (1 - 2e-4)


def test_calibration_edges() -> None:
    assert calibrate(lambda mu: one_round(mu), INF, 1e-5) == INF
    with pytest.raises(PlanError, match="epsilon must be above 0"):
        calibrate(lambda mu: one_round(mu), 0.0, 1e-5)
    with pytest.raises(PlanError, match="cost_of"):
        calibrate(lambda mu: one_round(5.0), 1.0, 1e-5)


# ------------------------------------------------------------------ delta


def test_default_delta() -> None:
    assert default_delta(205) == pytest.approx(3.4e-4, rel=0.01)
    assert default_delta(1000) == pytest.approx(3.2e-5, rel=0.02)
    assert default_delta(10**4) == pytest.approx(1e-6)
    assert default_delta(10) == pytest.approx(1 / 100)
    for m in (1, 2, 50, 10**6):
        assert check_delta(default_delta(m), m) == default_delta(m)


def test_meaningless_deltas_are_refused() -> None:
    with pytest.raises(PlanError, match="publishing one random task's data whole satisfies"):
        check_delta(0.01, 205)
    for delta in (0.0, -1.0, math.nan):
        with pytest.raises(PlanError, match="delta must be above 0"):
            check_delta(delta, 205)
    for delta in (0.0, 1.0):
        with pytest.raises(PlanError, match=r"delta must be in \(0, 1\)"):
            price(one_round(0.1), delta)
