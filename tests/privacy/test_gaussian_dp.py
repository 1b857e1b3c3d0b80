"""Gaussian DP: exactness against 60 digits, inverses that never overspend, edges."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.errors import InputError
from cloister.privacy import tradeoff as gdp

INF = math.inf
mus = st.floats(1e-6, 1e3)
log_deltas = st.floats(-14, -0.5)


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("mu", [1e-6, 1e-4, 2.9e-3, 3.1e-3, 0.01, 0.3, 1.0, 5.0, 10.0, 30.0, 1e3])
@pytest.mark.parametrize("quantile", [-20.0, -5.1, -4.9, -1.0, 0.0, 1.0, 4.0, 12.0, 30.0])
def test_delta_is_exact(mu: float, quantile: float) -> None:
    epsilon = max(0.0, mu * (mu / 2 + quantile))
    assert gdp.delta(mu, epsilon) == pytest.approx(float(exact_delta(mu, epsilon)), rel=1e-10, abs=0)


def test_delta_below_zero_epsilon_is_the_same_curve() -> None:
    for mu, epsilon in [(0.5, -0.3), (2.0, -4.0), (0.01, -0.001)]:
        assert gdp.delta(mu, epsilon) == pytest.approx(float(exact_delta(mu, epsilon)), rel=1e-10)


def test_known_values() -> None:
    # Noise multiplier 2 under replacement: mu = 1.
    assert gdp.epsilon(1.0, 1e-5) == pytest.approx(4.377, abs=5e-4)
    assert gdp.delta(1.0, 0.0) == pytest.approx(math.erf(1 / (2 * math.sqrt(2))), rel=1e-14)


def test_edges() -> None:
    assert gdp.delta(0.0, 0.0) == 0
    assert gdp.delta(INF, 1e4) == 1
    assert gdp.delta(1.0, INF) == 0
    assert gdp.delta(1e3, 1e4) == 1
    assert gdp.delta(1e-6, 1e4) == 0
    assert gdp.epsilon(0.0, 1e-5) == 0
    assert gdp.epsilon(INF, 1e-5) == INF
    assert gdp.epsilon(1.0, 0.0) == INF
    assert gdp.epsilon(1.0, 1.0) == 0
    assert gdp.epsilon(1e-6, 1e-6) == 0  # total variation is below delta already
    assert gdp.mu(INF, 1e-5) == INF
    assert gdp.mu(1.0, 0.0) == 0
    assert gdp.mu(1.0, 1.0) == INF
    assert 0 < gdp.mu(0.0, 1e-5) < 2.6e-5


@pytest.mark.parametrize(
    "call", [lambda: gdp.delta(-1, 1), lambda: gdp.mu(1, 2), lambda: gdp.mu(math.nan, 0.1)]
)
def test_nonsense_is_refused(call) -> None:
    with pytest.raises(InputError, match="Got"):
        call()


@given(mu=mus, log_delta=log_deltas)
@settings(deadline=None, max_examples=60)
def test_epsilon_is_enough_and_hardly_more(mu: float, log_delta: float) -> None:
    delta = 10**log_delta
    epsilon = gdp.epsilon(mu, delta)
    assert gdp.delta(mu, epsilon) <= delta
    if epsilon > 0:
        assert gdp.delta(mu, epsilon * (1 - 1e-9)) > delta * (1 - 1e-6)


@given(log_epsilon=st.floats(-6, 4), log_delta=log_deltas)
@settings(deadline=None, max_examples=60)
def test_mu_never_overspends_and_is_largest(log_epsilon: float, log_delta: float) -> None:
    epsilon, delta = 10**log_epsilon, 10**log_delta
    mu = gdp.mu(epsilon, delta)
    assert gdp.delta(mu, epsilon) <= delta
    assert gdp.delta(mu * (1 + 1e-9), epsilon) > delta * (1 - 1e-6)


@given(mu=st.floats(0.01, 20), scale=st.floats(1.001, 3), epsilon=st.floats(0, 50))
@settings(deadline=None, max_examples=60)
def test_delta_grows_with_mu_and_falls_with_epsilon(mu: float, scale: float, epsilon: float) -> None:
    here = gdp.delta(mu, epsilon)
    assert gdp.delta(mu * scale, epsilon) >= here * (1 - 1e-12)
    assert gdp.delta(mu, epsilon + scale) <= here * (1 + 1e-12)


@given(fraction=st.floats(1e-3, 1), log_delta=st.floats(-9, -1))
@settings(deadline=None, max_examples=80)
def test_published_closed_forms_are_safe_in_their_range(fraction: float, log_delta: float) -> None:
    """DPMTL's sigma gives mu = eps / (4 sqrt(L)), PMTL's mu = eps / (2 sqrt(L)): valid for eps <= 2 L."""
    delta = 10**log_delta
    big_l = math.log(1 / delta)
    epsilon = 2 * big_l * fraction
    assert gdp.epsilon(epsilon / (4 * math.sqrt(big_l)), delta) <= epsilon
    assert gdp.epsilon(epsilon / (2 * math.sqrt(big_l)), delta) <= epsilon


@pytest.mark.parametrize(
    ("delta", "ratios"),
    [
        (1 / 205, [7.68, 5.09, 4.38, 3.77, 3.21, 2.67]),
        (1e-3, [6.04, 4.56, 4.08, 3.64, 3.19, 2.74]),
        (1e-5, [4.41, 3.86, 3.64, 3.40, 3.14, 2.83]),
        (1e-6, [4.10, 3.69, 3.52, 3.33, 3.11, 2.85]),
    ],
)
def test_how_much_the_published_closed_form_wastes(delta: float, ratios: list[float]) -> None:
    epsilons = [0.1, 0.5, 1, 2, 4, 8]
    got = [gdp.mu(e, delta) * 4 * math.sqrt(math.log(1 / delta)) / e for e in epsilons]
    assert got == pytest.approx(ratios, abs=0.006)


def test_boundary_survives_a_jump() -> None:
    found = gdp.boundary(lambda x: -1.0 if x < math.pi else 5.0, 0.0, 100.0)
    assert found < math.pi
    assert found == pytest.approx(math.pi, rel=1e-12)
    with pytest.raises(InputError, match="bracket"):
        gdp.boundary(lambda x: 1.0, 0.0, 1.0)


def test_vector_agrees_with_scalar() -> None:
    m = np.array([0.0, 0.001, 0.5, 3.0, INF])
    e = np.array([0.0, 0.5, 2.0, -1.0])
    grid = gdp.deltas(m[:, None], e)
    assert grid.shape == (5, 4)
    assert grid.tolist() == [[gdp.delta(a, b) for b in e] for a in m]
