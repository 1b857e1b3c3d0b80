r"""Shamir's secret sharing over the field of :math:`2^{255} - 19` elements.

A secret is the value at 0 of a polynomial of degree k - 1 with random coefficients; a share is its value at a
public place x = 1, 2, ... Any k shares determine the polynomial, and fewer say nothing of the secret: for
every secret there is one polynomial through them.

References
----------
Shamir, "How to share a secret", Communications of the ACM 22 (1979).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cloister.core.errors import InputError

PRIME = 2**255 - 19
#: Bytes of a secret, which is below the prime; of a share; and coins of a coefficient, 2^-129 from uniform.
SECRET, SHARE, COINS = 31, 32, 48


def split(secret: bytes, threshold: int, places: Sequence[int], coins: bytes) -> dict[int, bytes]:
    """Return a share of a secret for each place, so that `threshold` of them give it back.

    Parameters
    ----------
    secret : bytes
        31 of them.
    threshold : int
        How many shares are needed.
    places : sequence of int
        Different numbers from 1 on.
    coins : bytes
        Secret and uniform, 48 for each coefficient: ``48 * (threshold - 1)``. Never used for another secret.

    Examples
    --------
    >>> shares = split(b"k" * 31, 2, [1, 2, 3], b"c" * 48)
    >>> joined({place: shares[place] for place in (3, 1)})
    b'kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk'
    """
    if len(secret) != SECRET or len(coins) != COINS * (threshold - 1):
        raise InputError(f"A secret to be shared has {SECRET} bytes, and {COINS} coins a coefficient.")
    if not 1 <= threshold <= len(set(places)) == len(places) or min(places) < 1:
        raise InputError(f"{threshold} shares must be needed, of as many different places or more from 1 on.")
    coefficients = [
        int.from_bytes(coins[at : at + COINS], "little") % PRIME for at in range(0, len(coins), COINS)
    ]
    constant, out = int.from_bytes(secret, "little"), {}
    for place in places:
        value = 0
        for coefficient in coefficients:
            value = (value + coefficient) * place % PRIME
        out[place] = ((value + constant) % PRIME).to_bytes(SHARE, "little")
    return out


def weights(places: Sequence[int]) -> list[int]:
    """Return what to multiply the shares of these places by to get the value at 0 (Lagrange)."""
    out = []
    for own in places:
        above = below = 1
        for other in places:
            if other != own:
                above, below = above * other % PRIME, below * (other - own) % PRIME
        out.append(above * pow(below, -1, PRIME) % PRIME)
    return out


def joined(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret that shares are of; of too few, or wrong ones, an arbitrary one, or a refusal."""
    return combined(weights(list(shares)), list(shares.values()))


def combined(factors: Sequence[int], shares: Sequence[bytes]) -> bytes:
    """Return the secret, given the `weights` of the shares' places: of many secrets these are the same."""
    terms = (factor * int.from_bytes(s, "little") for factor, s in zip(factors, shares, strict=True))
    value = sum(terms) % PRIME
    if value >> (8 * SECRET):
        raise InputError("Shares do not fit together: one of them is wrong, or they are too few.")
    return value.to_bytes(SECRET, "little")
