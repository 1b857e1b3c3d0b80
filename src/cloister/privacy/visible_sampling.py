r"""Exposure when participation is visible: Gaussian DP, averaged over the task's own coins.

Given who took part when, the rounds of one task compose exactly to :math:`\sqrt{S}`-GDP with
:math:`S = \sum_t a_t \mu_t^2`. The coins do not depend on any data, so seeing them costs nothing and

.. math:: \delta(\varepsilon) = \mathbb{E}_S\, \delta_{\mathrm{GDP}}(\sqrt{S}; \varepsilon)

is exact. The law of :math:`S` is exact too while it has few atoms; a law with many is rounded *up* on a fine
grid. For the owner of several tasks :math:`a_t` is replaced by the square of how many of them took part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from scipy.special import gammaln

from cloister.core.arrays import Floats
from cloister.privacy import tradeoff
from cloister.privacy.statement import ceiling

Atoms: TypeAlias = tuple[Floats, Floats]
Exposure: TypeAlias = tuple[tuple[float, int], ...]
"""Rounds of one task, equal ones together: ``(mu, count)``."""

_RARE = 1e-20  # atoms below this are given up as if they were fatal: their mass is added to delta
_NOISE = 1e-18  # of a Fourier transform in each atom, added to delta too
_ATOMS = 1 << 14
_BINS = 1 << 17
_VALUES = 1024


def binomial(n: int, rate: float) -> tuple[float, ...]:
    """Return the probabilities of 0, ..., n successes.

    Examples
    --------
    >>> binomial(2, 0.5)
    (0.25, 0.5, 0.25)
    """
    if rate >= 1:
        return (0.0,) * n + (1.0,)
    k = np.arange(n + 1)
    choose = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    p = np.exp(choose + k * math.log(rate) + (n - k) * math.log1p(-rate))
    return tuple(float(x) for x in p / p.sum())


def hypergeometric(size: int, drawn: int, total: int) -> tuple[float, ...]:
    """Probabilities that 0, ..., size of ``size`` given tasks are among ``drawn`` of ``total``.

    Examples
    --------
    >>> hypergeometric(1, 1, 4)
    (0.75, 0.25)
    """
    last = min(size, drawn)
    ways = [math.comb(size, k) * math.comb(total - size, drawn - k) for k in range(last + 1)]
    return tuple(w / math.comb(total, drawn) for w in ways)


def mixture_delta(rounds: Exposure, takers: tuple[float, ...], epsilon: float) -> float:
    """Compute delta at ``epsilon``, with visible participation.

    Parameters
    ----------
    rounds : tuple of (float, int)
        GDP parameter of a round in which one task takes part, and how many such rounds there are.
    takers : tuple of float
        Probabilities that 0, 1, ... of the owner's tasks take part in a round.
    epsilon : float
        At least 0.

    Returns
    -------
    float
        Exact, or rounded up.

    Examples
    --------
    >>> mixture_delta(((0.2, 1000),), (0.5, 0.5), 25.0) > mixture_delta(((0.2, 1000),), (0.9, 0.1), 25.0)
    True
    """
    scale, values, weights, lost = _law(rounds, takers)
    mus = scale * np.sqrt(values)
    return min(1.0, float(weights @ tradeoff.deltas(mus, epsilon)) + lost)


def mixture_epsilon(rounds: Exposure, takers: tuple[float, ...], delta: float) -> float:
    """Compute epsilon at ``delta``, with visible participation; never understated.

    Examples
    --------
    >>> round(mixture_epsilon(((0.2, 1000),), (105 / 205, 100 / 205), 1 / 205), 1)
    20.5
    """
    scale, values, weights, lost = _law(rounds, takers)
    if lost >= delta:
        return math.inf
    mus = scale * np.sqrt(values)

    def excess(e: float) -> float:
        got = float(weights @ tradeoff.deltas(mus, e)) + lost
        return math.log(max(got, 1e-300) / delta)

    if excess(0.0) <= 0:
        return 0.0
    enough = tradeoff.epsilon(float(mus.max()), delta - lost)
    while excess(enough) > 0:  # weights may sum to a hair above one
        enough *= 1.001
    return tradeoff.boundary(excess, enough, 0.0, rtol=1e-11)


def clear() -> None:
    """Forget all computed laws.

    Examples
    --------
    >>> clear()
    """
    _shape_law.cache_clear()


def _law(rounds: Exposure, takers: tuple[float, ...]) -> tuple[float, Floats, Floats, float]:
    """Scale, atoms of ``S / scale**2``, their weights, and the mass given up."""
    scale = max((mu for mu, _ in rounds), default=0.0)
    if scale == 0:
        return 0.0, np.zeros(1), np.ones(1), 0.0
    # Only the shape of the budget matters, so that calibration computes the law once.
    shape = tuple((_up((mu / scale) ** 2), n) for mu, n in rounds)
    values, weights, lost = _shape_law(_coarse(shape), takers)
    return scale, values, weights, lost


def _up(ratio: float) -> float:
    """Round a squared ratio up to some twelve digits, so that equal ones stay equal; 1 is the largest."""
    near = round(ratio * (1 + 1e-11), 12)
    return min(1.0, near if near >= ratio * (1 + 5e-13) else ceiling(ratio * (1 + 1.37e-11), 12))


def _coarse(shape: Exposure) -> Exposure:
    """At most a few hundred distinct values, each rounded up."""
    if len(shape) <= _VALUES:
        return shape
    counts: dict[float, int] = {}
    for value, n in shape:
        up = math.ceil(value * _VALUES) / _VALUES
        counts[up] = counts.get(up, 0) + n
    return tuple(sorted(counts.items()))


@lru_cache(maxsize=64)
def _shape_law(shape: Exposure, takers: tuple[float, ...]) -> tuple[Floats, Floats, float]:
    lost = 0.0
    blocks: list[Atoms] = []
    for value, count in shape:
        law, missing = _repeated(takers, count)
        lost += missing
        atoms = np.flatnonzero(law)
        new: Atoms = (value * atoms.astype(np.float64), law[atoms])
        if blocks and len(blocks[-1][0]) * len(atoms) <= _ATOMS:
            old = blocks.pop()
            new = (np.add.outer(old[0], new[0]).ravel(), np.multiply.outer(old[1], new[1]).ravel())
        blocks.append(new)
    if len(blocks) == 1:
        return blocks[0][0], blocks[0][1], lost
    return _on_grid(blocks, max(v for v, _ in shape) * (len(takers) - 1) ** 2, lost)


def _repeated(takers: tuple[float, ...], count: int) -> tuple[Floats, float]:
    """Law of the sum of ``count`` squared numbers of takers, rare atoms dropped, and the mass dropped."""
    if len(takers) == 2:
        law = np.asarray(binomial(count, takers[1]))
    else:
        one = np.zeros((len(takers) - 1) ** 2 + 1)
        one[np.arange(len(takers)) ** 2] = takers
        n = (len(one) - 1) * count + 1
        law = np.maximum(np.fft.irfft(np.fft.rfft(one, n) ** count, n), 0.0)
    law = np.where(law > _RARE, law, 0.0)
    if len(takers) == 2:
        return law, _RARE * len(law)
    return law, max(0.0, 1.0 - float(law.sum())) + _NOISE * len(law)


def _on_grid(blocks: Sequence[Atoms], largest: float, lost: float) -> tuple[Floats, Floats, float]:
    """Sum of independent blocks, each rounded up to a common grid."""
    mean = sum(float(v @ w) for v, w in blocks)
    variance = sum(max(0.0, float(v * v @ w) - float(v @ w) ** 2) for v, w in blocks)
    # Bernstein: beyond this the sum has mass below 1e-18, which wraps around and is charged to delta.
    slack = 18 * math.log(10) * largest / 3
    reach = mean + slack + math.sqrt(slack * slack + 36 * math.log(10) * variance)
    reach = min(reach, sum(float(v.max()) for v, _ in blocks)) + len(blocks) * reach / _BINS
    unit = reach / (_BINS - 1)
    spectrum = np.ones(_BINS // 2 + 1, dtype=np.complex128)
    for values, weights in blocks:
        bins = np.ceil(values / unit * (1 - 1e-12)).astype(np.int64) % _BINS
        spectrum *= np.fft.rfft(np.bincount(bins, weights=weights, minlength=_BINS), _BINS)
    law: Floats = np.maximum(np.fft.irfft(spectrum, _BINS), 0.0)
    law = law.reshape(-1, 4).sum(axis=1)  # four neighbours become the largest of them
    atoms = np.flatnonzero(law > _NOISE)
    unit *= 1 + 1e-12  # what a bin was forgiven above
    return unit * (4 * atoms + 3).astype(np.float64), law[atoms], lost + 1e-18 + _BINS * _NOISE
