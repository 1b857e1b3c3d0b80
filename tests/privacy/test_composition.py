"""Composition of pure guarantees, and groups: values by hand, order, and what is known to be optimal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from cloister.errors import InputError
from cloister.privacy.accountants import composition_bound, group_privacy, published_group_privacy

EPSILONS = st.lists(st.floats(0, 3), min_size=1, max_size=30)
DELTAS = st.floats(-12, -0.01).map(lambda x: 10**x)


def optimal_delta(epsilon: float, rounds: int, total: float) -> float:
    """Delta at ``total`` of so many pure epsilons: randomised response attains it (arXiv:1311.0776, 3.3)."""
    lies = np.arange(rounds + 1)
    mass = binom.pmf(lies, rounds, 1 / (1 + math.exp(epsilon)))
    return float(mass @ np.maximum(0.0, -np.expm1(np.minimum(0.0, total - (rounds - 2 * lies) * epsilon))))


@pytest.mark.parametrize(
    ("epsilons", "delta", "expected"),
    [
        ([0.5, 0.25], 0.0, 0.75),  # no delta: the sum
        ([1.0], 1e-5, 1.0),  # one round: the sum
        # A = 100 * 0.1 * tanh(0.05) = 0.499584; Q = 1; sqrt(2 log(1e5)) = 4.798526
        ([0.1] * 100, 1e-5, 5.298110),
        # A = 100 * 0.01 * tanh(0.005) = 0.00499996; Q = 0.01; log(e + 10) = 2.543 is below log(100) = 4.605
        ([0.01] * 100, 0.01, 0.00499996 + math.sqrt(0.02 * 2.5430404)),
        # A = 10 (0.2 tanh 0.1 + 0.4 tanh 0.2) = 0.988837; Q = 2; sqrt(4 log 1000) = 5.256522: the sum is less
        ([0.2, 0.4] * 10, 1e-3, 6.0),
        # A = 9.888373; Q = 20; sqrt(40 log 1000) = 16.622581
        ([0.2, 0.4] * 100, 1e-3, 26.510954),
    ],
)
def test_values_by_hand(epsilons, delta, expected):
    assert composition_bound(epsilons, delta) == pytest.approx(expected, rel=1e-6)


@given(EPSILONS, DELTAS)
def test_it_is_the_smallest_of_the_three(epsilons, delta):
    drift = sum(e * (math.exp(e) - 1) / (math.exp(e) + 1) for e in epsilons)
    squares = sum(e * e for e in epsilons)
    second = drift + math.sqrt(2 * squares * math.log(1 / delta))
    third = drift + math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / delta))
    expected = min(sum(epsilons), second, third)
    assert composition_bound(epsilons, delta) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(EPSILONS, DELTAS, st.integers(0, 29), st.floats(0, 1))
def test_more_is_more_expensive(epsilons, delta, which, more):
    base = composition_bound(epsilons, delta)
    slack = 1e-12 * (1 + base)
    changed = list(epsilons)
    changed[which % len(changed)] += more
    assert composition_bound(changed, delta) >= base - slack
    assert composition_bound([*epsilons, more], delta) >= base - slack
    assert composition_bound(epsilons, delta / 2) >= base - slack
    assert composition_bound(epsilons, 0.0) >= base - slack


@given(st.floats(0.01, 3), st.integers(1, 200), DELTAS)
@settings(deadline=None)
def test_it_never_promises_more_than_the_optimum(epsilon, rounds, delta):
    total = composition_bound([epsilon] * rounds, delta)
    assert optimal_delta(epsilon, rounds, total) <= delta * (1 + 1e-9) + 1e-13


@given(st.floats(0.01, 5), DELTAS)
def test_one_round_is_never_below_its_optimum(epsilon, delta):
    """T = 1: (epsilon, 0) gives (log(e^eps - delta (1 + e^eps)), delta), and nothing better."""
    optimum = math.log(max(1.0, math.exp(epsilon) - delta * (1 + math.exp(epsilon))))
    assert composition_bound([epsilon], delta) >= optimum - 1e-12


@pytest.mark.parametrize(
    ("epsilons", "delta"), [([-0.1], 0.1), ([math.nan], 0.1), ([1.0], -0.1), ([1.0], 1.0)]
)
def test_nonsense_is_refused(epsilons, delta):
    with pytest.raises(InputError, match=r"at least 0 and delta in \[0, 1\)"):
        composition_bound(epsilons, delta)


# ------------------------------------------------------------------ groups


def test_groups_by_hand():
    assert group_privacy(0.5, 1e-6, 1) == (0.5, pytest.approx(1e-6, rel=1e-12))
    epsilon, delta = group_privacy(1.0, 1e-6, 3)
    assert (epsilon, delta) == (3.0, pytest.approx(1e-6 * (1 + math.e + math.e**2), rel=1e-12))
    assert published_group_privacy(1.0, 1e-6, 3)[1] == pytest.approx(3e-6 * math.e**3, rel=1e-12)
    assert group_privacy(0.0, 1e-3, 4) == (0.0, 4e-3)
    assert group_privacy(1.0, 0.0, 1000) == (1000.0, 0.0)
    assert group_privacy(1.0, 1e-6, 1000) == (1000.0, 1.0)


@given(st.floats(0, 20), DELTAS, st.integers(1, 500))
def test_the_published_conversion_is_never_tighter(epsilon, delta, size):
    ours, theirs = group_privacy(epsilon, delta, size), published_group_privacy(epsilon, delta, size)
    assert ours[0] == theirs[0]
    assert delta * (1 - 1e-12) <= ours[1] <= theirs[1] * (1 + 1e-12)


@given(st.floats(0.01, 2), DELTAS, st.integers(1, 12))
def test_one_more_unit_is_one_more_step(epsilon, delta, size):
    """H(P, R) <= H(P, Q) + e^eps H(Q, R): delta_{n+1} = delta + e^eps delta_n."""
    step = delta + math.exp(epsilon) * group_privacy(epsilon, delta, size)[1]
    assert group_privacy(epsilon, delta, size + 1)[1] == pytest.approx(min(1.0, step), rel=1e-9)


@pytest.mark.parametrize("values", [(-1.0, 0.1, 1), (1.0, 1.1, 1), (1.0, 0.1, 0), (math.inf, 0.1, 1)])
def test_groups_of_nothing_are_refused(values):
    for convert in (group_privacy, published_group_privacy):
        with pytest.raises(InputError, match="at least one unit"):
            convert(*values)
