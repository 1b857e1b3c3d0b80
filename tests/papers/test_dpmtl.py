"""Theorems of mean-regularised learning: prices against independent ones, and what a recursion allows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cloister.privacy import tradeoff
from papers.dpmtl import theorem_2, theorem_3
from papers.figure import Options


@pytest.mark.parametrize(
    ("epsilon", "delta", "ratio"), [(1.0, 1 / 205, 4.38), (8.0, 1e-5, 2.83), (0.1, 1e-3, 6.04)]
)
def test_the_stated_noise_is_so_many_times_what_is_needed(epsilon, delta, ratio):
    """Worked out beforehand, from the curve delta(mu, epsilon) alone."""
    found = theorem_2.measure({"epsilon": epsilon, "delta": delta}, Options())
    assert found["ratio"] == pytest.approx(ratio, abs=0.01)


def test_the_stated_noise_has_its_price():
    """From the theorem's sigma and the sensitivity 2B/m of a mean, over T rounds."""
    epsilon, delta, m, rounds, ball = 1.0, 1e-5, 50, 7, 3.0
    sigma = 8 * ball * math.sqrt(rounds * math.log(1 / delta)) / (epsilon * m)
    assert theorem_2.stated_mu(epsilon, delta) == pytest.approx(math.sqrt(rounds) * 2 * ball / m / sigma)
    true = theorem_2.measure({"epsilon": epsilon, "delta": delta}, Options())["true"]
    assert tradeoff.delta(theorem_2.stated_mu(epsilon, delta), true) == pytest.approx(delta, rel=1e-6)
    assert true == pytest.approx(0.244, abs=1e-3)


def test_the_recursion_stays_at_its_fixed_point():
    found = theorem_3.recursion()
    assert found["allowed"][-1] == pytest.approx(math.sqrt(theorem_3.GAMMA / theorem_3.CURVE), rel=1e-3)
    assert found["bound"][-1] < 0.1 * found["allowed"][-1]


def test_the_gap_is_from_a_lower_bound_and_falls_without_noise():
    tasks = theorem_3.drawn(0, 30)
    block = next(tasks.blocks([np.arange(30)]))
    largest = np.linalg.eigvalsh(np.einsum("mnd,mne->mde", block.X, block.X) / 20)[:, -1]
    assert np.median(largest) < theorem_3.SMOOTH
    gaps = [theorem_3.gap(tasks, theorem_3.NoNoise(), rounds, 0) for rounds in (1, 8, 64)]
    assert gaps[0] > gaps[1] > gaps[2] > 0
