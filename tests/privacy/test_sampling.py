"""Sampling: frequencies, denominators, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cloister.errors import PlanError
from cloister.privacy.sampling import Epochs, Everyone, FixedSize, OnePass, Poisson, Sampling

ALL: list[Sampling] = [Everyone(), Poisson(0.3), Poisson(0.3, hidden=True), FixedSize(3), OnePass()]
ALL += [Epochs(1)]


def coins(seed: int = 0):
    return np.random.default_rng(seed).random


@pytest.mark.parametrize("sampling", ALL, ids=str)
def test_contract(sampling: Sampling) -> None:
    assert isinstance(sampling, Sampling)
    drawn = sampling.draw(coins(), 10, 5)
    assert drawn.shape == (5, 10)
    assert drawn.dtype == np.bool_
    assert sampling.denominator(10, 5) == pytest.approx(10 * sampling.probability(10, 5))
    assert sampling.describe()
    assert "\n" not in sampling.describe()
    assert hash(sampling) == hash(sampling)


@pytest.mark.parametrize("sampling", ALL, ids=str)
def test_every_task_is_in_every_round_as_often_as_promised(sampling: Sampling) -> None:
    n, rounds, repeats = 7, 4, 4000
    source = coins(1)
    share = sum(sampling.draw(source, n, rounds).astype(float) for _ in range(repeats)) / repeats
    p = sampling.probability(n, rounds)
    assert np.abs(share - p).max() <= 5 * np.sqrt(p * (1 - p) / repeats) + 1e-12


def test_poisson_coins_are_independent() -> None:
    drawn = Poisson(0.3).draw(coins(2), 2, 40000).astype(float)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.025
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.025


def test_fixed_size_draws_every_subset_equally() -> None:
    drawn = FixedSize(2).draw(coins(3), 4, 24000)
    assert (drawn.sum(axis=1) == 2).all()
    counts = [int((drawn[:, list(pair)].all(axis=1)).sum()) for pair in itertools.combinations(range(4), 2)]
    assert np.abs(np.array(counts) - 4000).max() < 5 * np.sqrt(4000)


@pytest.mark.parametrize(("n", "rounds"), [(12, 4), (13, 4), (3, 5), (1, 1)])
def test_one_pass_is_balanced_and_complete(n: int, rounds: int) -> None:
    drawn = OnePass().draw(coins(4), n, rounds)
    assert (drawn.sum(axis=0) == 1).all()
    sizes = drawn.sum(axis=1)
    assert sizes.max() - sizes.min() <= 1


def test_one_pass_has_no_favourite_round() -> None:
    source = coins(5)
    larger = sum(OnePass().draw(source, 5, 4).sum(axis=1) for _ in range(4000)) / 4000
    assert np.abs(larger - 1.25).max() < 0.035


def test_denominators_are_public_numbers() -> None:
    assert Everyone().denominator(205, 10) == 205
    assert Poisson(0.2).denominator(205, 10) == pytest.approx(41)
    assert FixedSize(100).denominator(205, 10) == 100
    assert OnePass().denominator(205, 10) == 20.5


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_rates_outside_the_unit_interval_are_refused(rate: float) -> None:
    with pytest.raises(PlanError, match=r"Poisson rate must be in \(0, 1\]\. Got"):
        Poisson(rate)


def test_fixed_size_refusals() -> None:
    with pytest.raises(PlanError, match="whole number >= 1"):
        FixedSize(0)
    with pytest.raises(
        PlanError, match=r"colluders who know all other coins learn the last one.*Use Poisson"
    ):
        FixedSize(5, hidden=True)
    with pytest.raises(PlanError, match="at most the number of tasks"):
        FixedSize(5).draw(coins(), 4, 2)


def test_phrases() -> None:
    assert Everyone().describe() == "every task takes part in every round"
    assert "asserted to be hidden from everyone but the curator" in Poisson(0.25, hidden=True).describe()
    assert "may be seen" in Poisson(0.25).describe()
    assert "0.25" in Poisson(0.25).describe()
    assert "100 tasks" in FixedSize(100).describe()
