"""Sampling: frequencies, denominators, refusals."""

from __future__ import annotations

import itertools
import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from cloister.errors import PlanError
from cloister.privacy.randomness import SeededRandomness
from cloister.privacy.sampling import Epochs, Everyone, FixedSize, InOrder, OnePass, Poisson, Sampling

ALL: list[Sampling] = [Everyone(), Poisson(0.3), Poisson(0.3, hidden=True), FixedSize(3), OnePass()]
ALL += [Epochs(1)]


def coins(seed: int = 0):
    return SeededRandomness(seed).stream("coins").numbered


@pytest.mark.parametrize("sampling", ALL, ids=str)
def test_contract(sampling: Sampling) -> None:
    assert isinstance(sampling, Sampling)
    drawn = np.asarray(sampling.draw(coins(), 10, 5))
    assert drawn.shape == (5, 10)
    assert drawn.dtype == np.bool_
    assert sampling.denominator(10, 5) == pytest.approx(10 * sampling.probability(10, 5))
    assert sampling.describe()
    assert "\n" not in sampling.describe()
    assert hash(sampling) == hash(replace(sampling))  # equal ones are one key, in caches of prices


@pytest.mark.parametrize("sampling", ALL, ids=str)
def test_every_task_is_in_every_round_as_often_as_promised(sampling: Sampling) -> None:
    n, rounds, repeats = 7, 4, 4000
    tables = (np.asarray(sampling.draw(coins(seed), n, rounds), dtype=float) for seed in range(repeats))
    share = sum(tables) / repeats
    p = sampling.probability(n, rounds)
    assert np.abs(share - p).max() <= 5 * np.sqrt(p * (1 - p) / repeats) + 1e-12


def test_poisson_coins_are_independent() -> None:
    drawn = np.asarray(Poisson(0.3).draw(coins(2), 2, 40000), dtype=float)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.025
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.025


def test_fixed_size_draws_every_subset_equally() -> None:
    drawn = np.asarray(FixedSize(2).draw(coins(3), 4, 24000))
    assert (drawn.sum(axis=1) == 2).all()
    counts = [int((drawn[:, list(pair)].all(axis=1)).sum()) for pair in itertools.combinations(range(4), 2)]
    assert np.abs(np.array(counts) - 4000).max() < 5 * np.sqrt(4000)


@pytest.mark.parametrize(("n", "rounds"), [(12, 4), (13, 4), (3, 5), (1, 1)])
def test_one_pass_is_balanced_and_complete(n: int, rounds: int) -> None:
    drawn = np.asarray(OnePass().draw(coins(4), n, rounds))
    assert (drawn.sum(axis=0) == 1).all()
    sizes = drawn.sum(axis=1)
    assert sizes.max() - sizes.min() <= 1


def test_one_pass_has_no_favourite_round() -> None:
    larger = sum(np.sum(OnePass().draw(coins(seed), 5, 4), axis=1) for seed in range(4000)) / 4000
    assert np.abs(larger - 1.25).max() < 0.035


@pytest.mark.parametrize(
    ("n", "rounds", "sizes"), [(12, 4, [3] * 4), (11, 4, [3, 3, 3, 2]), (3, 5, [1, 1, 1, 0, 0])]
)
def test_in_order_the_first_come_first_and_the_last_round_takes_who_is_left(n, rounds, sizes) -> None:
    drawn = np.asarray(InOrder().draw(coins(4), n, rounds))
    assert drawn.sum(axis=1).tolist() == sizes
    assert (drawn.sum(axis=0) == 1).all()
    assert (np.diff(drawn.argmax(axis=0)) >= 0).all()
    assert InOrder().denominator(n, rounds) == max(sizes)


def by_definition(sampling: Sampling, source, n: int, rounds: int):
    """Draw the whole table at once, each handful of uniforms after the other."""
    table = np.zeros((rounds, n), dtype=bool)
    if isinstance(sampling, OnePass | Epochs):
        order, names = np.argsort(source.uniforms(n)), np.argsort(source.uniforms(rounds))
        table[names[np.arange(n) % rounds], order] = True
        return table
    for t in range(rounds):
        uniforms = np.zeros(n) if isinstance(sampling, Everyone) else source.uniforms(n)
        ranks = np.argsort(np.argsort(uniforms))
        table[t] = ranks < sampling.size if isinstance(sampling, FixedSize) else uniforms < 0.3
    return table


@pytest.mark.parametrize("sampling", ALL, ids=str)
def test_a_row_at_a_time_is_the_whole_table(sampling: Sampling) -> None:
    """In any order, for some tasks only, after a pickle: always the table that is drawn in one go."""
    lazy = sampling.draw(coins(8), 11, 7)
    dense = by_definition(sampling, SeededRandomness(8).stream("coins"), 11, 7)
    np.testing.assert_array_equal(lazy, dense)
    for t in (6, 0, 3, 3, -1):
        np.testing.assert_array_equal(lazy[t], dense[t])
    np.testing.assert_array_equal(list(pickle.loads(pickle.dumps(lazy))), dense)
    for tasks in ([4, 1], np.arange(11) > 5, slice(2, 9, 3)):
        np.testing.assert_array_equal(lazy[:, tasks], dense[:, tasks])
        np.testing.assert_array_equal(lazy[:, tasks][5], dense[5, tasks])
    assert (lazy[2, 3], lazy[:, 3].tolist(), len(lazy)) == (dense[2, 3], dense[:, 3].tolist(), 7)
    np.testing.assert_array_equal(lazy[2:4], dense[2:4])
    with pytest.raises(IndexError):
        lazy[7]


def test_a_long_table_is_never_there_as_a_whole() -> None:
    tracemalloc.start()
    table = OnePass().draw(coins(), 100_000, 100_000)
    assert sum(int(table[t].sum()) for t in range(0, 100_000, 1000)) == 100
    assert tracemalloc.get_traced_memory()[1] < 1e7  # the whole has 1e10 bytes
    tracemalloc.stop()


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
