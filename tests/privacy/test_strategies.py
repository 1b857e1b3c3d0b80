"""Strategies against brute force: every pattern of participation, every matrix, every running total."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.errors import PlanError
from cloister.privacy.strategies import BinaryTree, Buffered, LowerToeplitz, buffers_for, square_root


def patterns(rounds, times, separation):
    """Yield every set of at most `times` rounds with gaps of at least `separation`."""
    for count in range(1, times + 1):
        for found in itertools.combinations(range(rounds), count):
            if all(b - a >= separation for a, b in itertools.pairwise(found)):
                yield list(found)


def moved(encoder, pattern):
    return float(np.linalg.norm(encoder[:, pattern].sum(axis=1)))


def toeplitz(rounds, bands=None):
    return LowerToeplitz(square_root(min(bands or rounds, rounds)), rounds)


def all_of(rounds):
    return [
        toeplitz(rounds),
        toeplitz(rounds, 4),
        BinaryTree(rounds),
        BinaryTree(rounds, honaker=True),
        Buffered(buffers_for(rounds), rounds),
        Buffered(buffers_for(rounds, 2), rounds),
    ]


@pytest.mark.parametrize(("times", "separation"), [(1, 1), (2, 3), (3, 5), (4, 4), (16, 1), (5, 2)])
@pytest.mark.parametrize("rounds", [1, 7, 12, 16])
def test_the_earliest_pattern_is_the_worst_of_all(rounds, times, separation):
    """Brute force over all patterns for square root, bands and buffers."""
    for strategy in (toeplitz(rounds), toeplitz(rounds, 4), Buffered(buffers_for(rounds, 3), rounds)):
        encoder = strategy.encoder()
        if times < 16:
            worst = max(moved(encoder, p) for p in patterns(rounds, times, separation))
        else:  # all subsets: entries are not negative, so that all rounds are the worst
            worst = moved(encoder, list(range(rounds)))
        found = strategy.sensitivity(times, separation)
        assert worst <= found <= worst * (1 + 1e-8)


@pytest.mark.parametrize("rounds", [1, 6, 12, 16])
def test_slots_move_measurements_as_far_as_their_columns_do(rounds):
    for strategy in all_of(rounds):
        encoder = strategy.encoder()
        assert encoder.min() >= 0
        for passes in (k for k in range(1, rounds + 1) if rounds % k == 0):
            gap = rounds // passes
            known = [moved(encoder, list(range(slot, rounds, gap))) for slot in range(gap)]
            np.testing.assert_allclose(strategy.sensitivities(passes), known, rtol=1e-8)
            assert (strategy.sensitivities(passes) >= known).all()


@settings(max_examples=60, deadline=None)
@given(
    rounds=st.integers(1, 16),
    which=st.integers(0, 5),
    seed=st.integers(0, 2**32 - 1),
    replace=st.booleans(),
    data=st.data(),
)
def test_no_messages_move_further_and_some_move_as_far(rounds, which, seed, replace, data):
    """Messages of norm 1 against others or against silence: within the bound; the same one always: on it."""
    strategy = all_of(rounds)[which]
    passes = data.draw(st.sampled_from([k for k in range(1, rounds + 1) if rounds % k == 0]))
    slot = data.draw(st.integers(0, rounds // passes - 1))
    present = np.arange(rounds) % (rounds // passes) == slot
    rng = np.random.default_rng(seed)

    def unit():
        rows = rng.normal(size=(rounds, 3))
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    one, other = unit(), -unit() if replace else np.zeros((rounds, 3))
    bound = (2 if replace else 1) * strategy.sensitivities(passes)[slot]
    assert np.linalg.norm(strategy.encoder() @ (present[:, None] * (one - other))) <= bound * (1 + 1e-12)
    same = np.tile(one[:1], (rounds, 1))
    tight = present[:, None] * (2 * same if replace else same)
    assert np.linalg.norm(strategy.encoder() @ tight) >= bound * (1 - 1e-8)


@pytest.mark.parametrize("rounds", [1, 2, 3, 8, 13, 16, 31])
def test_decoding_inverts_encoding_and_deviations_are_those_of_the_matrices(rounds):
    for strategy in all_of(rounds):
        encoder, decoder = strategy.encoder(), strategy.decoder()
        np.testing.assert_allclose(decoder @ encoder, np.eye(rounds), atol=1e-9)
        np.testing.assert_allclose(strategy.deviations, np.linalg.norm(decoder, axis=1), rtol=1e-9)
        prefixes = np.cumsum(decoder, axis=0)
        np.testing.assert_allclose(strategy.prefix_deviations, np.linalg.norm(prefixes, axis=1), rtol=1e-9)
        early = strategy.first(max(1, rounds // 2)).decoder()
        np.testing.assert_allclose(
            early @ early.T, (decoder @ decoder.T)[: len(early), : len(early)], atol=1e-9
        )


def error(strategy, passes=1):
    """Largest deviation of a running total where a task is hidden with mu = 1."""
    return float(strategy.sensitivities(passes).max() * strategy.prefix_deviations.max())


def test_the_errors_that_the_literature_gives():
    """Square root: (1/2 + ...) / pi closed form; tree: sqrt(levels * digits); Honaker's by recursion."""
    assert error(toeplitz(1024)) == pytest.approx(float((square_root(1024) ** 2).sum()), rel=1e-6)
    assert error(toeplitz(1024)) == pytest.approx(3.27, abs=0.005)
    assert error(LowerToeplitz(np.ones(1), 1024)) == pytest.approx(32)  # one band: independent noise
    assert error(BinaryTree(1024)) == pytest.approx(math.sqrt(11 * 10))
    assert error(BinaryTree(256)) == pytest.approx(math.sqrt(9 * 8))
    assert error(BinaryTree(256, honaker=True)) == pytest.approx(6.57, abs=0.01)
    assert error(toeplitz(1024, 64)) == pytest.approx(5.85, abs=0.01)
    for rounds in (10, 1024, 20_000):
        assert error(Buffered(buffers_for(rounds), rounds)) < 1.001 * float((square_root(rounds) ** 2).sum())


def test_with_four_participations_bands_beat_the_others():
    banded, whole, tree, better = toeplitz(16, 4), toeplitz(16), BinaryTree(16), BinaryTree(16, honaker=True)
    found = [float(s.sensitivities(4).max()) for s in (banded, whole, tree, better)]
    assert found == pytest.approx([2.44, 3.715, math.sqrt(30), 6.0], abs=0.001)
    assert found[0] == pytest.approx(2 * float(np.linalg.norm(square_root(4))))  # rounds never meet
    assert error(banded, 4) < error(whole, 4) < error(better, 4) < error(tree, 4)


def test_coefficients_that_grow_are_refused():
    for wrong in ([1.0, 0.5, 0.6], [0.5, 0.25], [1.0, 0.5, -0.1]):
        with pytest.raises(PlanError, match="never increase"):
            LowerToeplitz(np.array(wrong), 3)
