"""Shares: any k give the secret back, k - 1 fit every secret, and known answers."""

from __future__ import annotations

from contextlib import suppress
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import InputError
from cloister.secure.shamir import COINS, PRIME, SECRET, combined, joined, split, weights


@given(st.binary(min_size=SECRET, max_size=SECRET), st.integers(1, 6), st.randoms(use_true_random=False))
def test_any_k_shares_give_the_secret_back(secret, k, random):
    places = random.sample(range(1, 1000), 8)
    shares = split(secret, k, places, random.randbytes(COINS * (k - 1)))
    for chosen in combinations(places, k):
        assert joined({place: shares[place] for place in chosen}) == secret


def test_the_prime_is_that_of_curve25519():
    assert PRIME == 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFED
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7))


def test_fewer_than_k_shares_fit_every_secret():
    """For each other secret there are coins that give the same k - 1 shares: the map is a bijection."""
    secret, other, places = b"a" * SECRET, b"b" * SECRET, [3, 5, 8]
    coins = np.random.default_rng(0).bytes(2 * COINS)
    shares = split(secret, 3, places, coins)
    # The polynomial through (0, other) and both shares, by Lagrange; its coefficients are the other coins.
    points = {0: other} | {place: shares[place] for place in (3, 5)}
    x = list(points)
    y = [int.from_bytes(points[at], "little") for at in x]
    a0 = y[0]
    d1, d2 = ((y[i] - a0) * pow(x[i], -1, PRIME) % PRIME for i in (1, 2))
    a2 = (d1 - d2) * pow(x[1] - x[2], -1, PRIME) % PRIME
    a1 = (d1 - a2 * x[1]) % PRIME
    again = split(other, 3, places, b"".join(a.to_bytes(COINS, "little") for a in (a2, a1)))
    assert [again[place] == shares[place] for place in places] == [True, True, False]


def test_shares_are_uniform_whatever_the_secret():
    """Two secrets of one bit each give shares whose bits are fair coins: 5.9 deviations, one in 500,000."""
    rng = np.random.default_rng(1)
    for secret in (bytes(SECRET), b"\xff" * SECRET):
        shares = [split(secret, 2, [1, 2], rng.bytes(COINS))[1] for _ in range(4000)]
        bits = np.unpackbits(np.frombuffer(b"".join(shares), np.uint8).reshape(4000, 32), axis=1)
        ones = bits.sum(axis=0, dtype=np.int64)[np.r_[0:248, 249:256]]  # the top bit is 0 below 2^255
        assert np.abs(ones - 2000).max() < 5.9 * np.sqrt(1000)


def test_wrong_and_missing_shares_are_not_the_secret():
    shares = split(b"k" * SECRET, 3, [1, 2, 3, 4], b"c" * 2 * COINS)
    for wrong in (dict(list(shares.items())[:2]), shares | {2: bytes(32)}):
        with suppress(InputError):  # what comes out is an arbitrary number, and mostly too large
            assert joined(wrong) != b"k" * SECRET
    factors = weights([4, 2, 1])
    assert combined(factors, [shares[4], shares[2], shares[1]]) == b"k" * SECRET


@pytest.mark.parametrize(
    "bad",
    [{"threshold": 0}, {"threshold": 4}, {"places": [1, 1, 2]}, {"places": [0, 1, 2]}, {"secret": b"x"}],
)
def test_what_cannot_be_shared_is_refused(bad):
    given = {"secret": b"k" * SECRET, "threshold": 3, "places": [1, 2, 3]} | bad
    coins = b"c" * COINS * max(0, given["threshold"] - 1)
    with pytest.raises(InputError):
        split(given["secret"], given["threshold"], given["places"], coins)
