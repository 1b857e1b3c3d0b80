r"""Hidden Poisson sampling: privacy loss distributions on a grid, convolved by dp_accounting.

One round, for a task that takes part with probability :math:`p` and whose coin nobody else sees, is the pair

.. math:: A_\mu = (1-p)\,N(0,1) + p\,N(\mu,1) \quad\text{and}\quad N(0,1).

*Zero-out.* The pair, in this order (``remove``) or the other (``add``), dominates a round for every state of
the task and every past, so :math:`T` rounds are dominated by its :math:`T`-fold product.

*Replace.* Two proven bounds; the smaller one is reported.

- *Through silence*: from the data to silence, from silence to the other data. By the triangle inequality of
  the hockey stick, :math:`\delta(\varepsilon_1 + \varepsilon_2) \le \delta_{remove}(\varepsilon_1) +
  e^{\varepsilon_1} \delta_{add}(\varepsilon_2)`, both for the whole composition, at ``mu`` against silence.
- *Both ways*: advanced joint convexity bounds one round of the replace pair by the ``remove`` curve of
  :math:`A_\mu` for :math:`\varepsilon \ge 0` and hence by the ``add`` curve below, at ``mu`` for
  replacement. Composition needs the whole curve: its upper half alone, which is the pair
  :math:`(A_\mu, N)`, does *not* dominate products. The pair that has both halves does.

The curve of a round in closed form is :math:`p\,\delta_{GDP}(\mu; \log(1 + (e^\varepsilon - 1)/p))`.

*The owner of several tasks*: the coins of a round add up to a binomial count, and the mixture has one
component for each count (all messages aligned is the worst case). Zero-out, and replace through silence.

References
----------
Zhu, Dong, Wang, *Optimal accounting of differential privacy via characteristic function*,
arXiv:2106.08567, Theorems 10 and 11. Balle, Barthe, Gaboardi, arXiv:1807.01647, Theorem 2. Doroshenko et
al., *Connect the dots*, arXiv:2207.04380, Algorithm 1. Lebeda, Regehr, Kamath, Steinke, *Avoiding pitfalls
for privacy accounting of subsampled mechanisms under composition*, arXiv:2405.20769. Choquette-Choo et al.,
*Privacy amplification for matrix mechanisms*, arXiv:2310.15526 (mixtures of Gaussians).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtr

from cloister.core.arrays import Floats
from cloister.privacy import tradeoff
from cloister.privacy.events import RelationName
from cloister.privacy.visible_sampling import Exposure, binomial

Sampled: TypeAlias = tuple[tuple[float, float, int], ...]
"""Rounds of one task, equal ones together: ``(mu, mu against silence, count)``."""
Kind: TypeAlias = Literal["remove", "add", "both"]

_TAIL = 9.7  # normal quantile beyond which mass (1.5e-22 a round) is treated as an infinite loss
_TRUNCATE = 1e-15
_DISTINCT = 128


@dataclass(frozen=True, eq=False)
class PrivacyLoss:
    """A composed privacy loss distribution, kept as its curve: delta at ``step * (first + i)``.

    Beyond the grid delta is ``infinite``; from epsilon = ``limit`` on it is 0.
    """

    step: float
    first: int
    curve: Floats
    infinite: float
    limit: float = math.inf

    def delta(self, epsilon: Floats) -> Floats:
        """Curve at any epsilon: linear in exp(epsilon) between grid points."""
        place = epsilon / self.step - self.first
        left = np.clip(np.floor(place), 0, len(self.curve) - 2).astype(np.int64)
        share = np.expm1(np.clip(place - left, 0.0, 1.0) * self.step) / math.expm1(self.step)
        value = self.curve[left] + share * (self.curve[left + 1] - self.curve[left])
        value = np.where(place > len(self.curve) - 1, self.infinite, value)
        value = np.where(epsilon >= self.limit, 0.0, np.where(place < 0, 1.0, value))
        return np.asarray(value, dtype=np.float64)

    def epsilon(self, delta: Floats) -> Floats:
        """Smallest epsilon >= 0 whose delta is at most ``delta``; infinity where there is none."""
        right = np.searchsorted(-self.curve, -delta)  # first grid point that is good enough
        inner = np.clip(right, 1, len(self.curve) - 1)
        above, below = self.curve[inner - 1], self.curve[inner]
        share = np.clip((above - delta) / np.maximum(above - below, 1e-300), 0.0, 1.0)
        value = self.step * (self.first + inner - 1) + np.log1p(share * math.expm1(self.step))
        value = np.where(right == 0, self.step * self.first, value)
        value = np.where(right == len(self.curve), np.inf, np.maximum(value, 0.0))
        return np.asarray(np.minimum(value, self.limit), dtype=np.float64)


def pld_epsilon(rounds: Sampled, rate: float, relation: RelationName, size: int, delta: float) -> float:
    """Epsilon at ``delta`` for the owner of ``size`` tasks; infinity where numbers drown in rounding noise.

    Examples
    --------
    >>> round(pld_epsilon(((0.2, 0.2, 1000),), 100 / 205, "zero_out", 1, 1 / 205), 1)
    12.1
    >>> round(pld_epsilon(((0.4, 0.2, 1000),), 100 / 205, "replace", 1, 1 / 205), 1)
    34.0
    """
    target = np.asarray(delta)
    if relation == "zero_out":
        pair = _pair(_side(rounds, 0), rate, size)
        return max(float(loss.epsilon(target)) for loss in pair)
    direct, silence = _worth(rounds, rate, size)
    best = math.inf
    if silence:
        best = two_steps(*_fine_pair(_side(rounds, 1), rate, size), delta=delta)
    if size == 1 and (direct or math.isinf(best)):
        best = min(best, float(_both(_side(rounds, 0), rate).epsilon(target)))
    return best


def pld_delta(rounds: Sampled, rate: float, relation: RelationName, size: int, epsilon: float) -> float:
    """Delta at ``epsilon``, as :func:`pld_epsilon`.

    Examples
    --------
    >>> pld_delta(((0.2, 0.2, 1000),), 100 / 205, "zero_out", 1, 12.13) < 1 / 205
    True
    """
    target = np.asarray(epsilon)
    if relation == "zero_out":
        pair = _pair(_side(rounds, 0), rate, size)
        return min(1.0, max(float(loss.delta(target)) for loss in pair))
    best = two_steps_delta(*_fine_pair(_side(rounds, 1), rate, size), epsilon=epsilon)
    return min(best, float(_both(_side(rounds, 0), rate).delta(target))) if size == 1 else best


def feasible(rounds: Sampled, rate: float, size: int) -> bool:
    """Whether the loss is small enough to be laid out on a grid.

    Examples
    --------
    >>> feasible(((0.2, 0.2, 1000),), 0.5, 1), feasible(((1e3, 1e3, 1000),), 0.5, 1)
    (True, False)
    """
    small = size <= 100 and size * math.log1p(-rate) > -500
    return small and all(_reach(_side(rounds, i), rate, size) < 2e4 for i in (0, 1))


def clear() -> None:
    """Forget all computed distributions.

    Examples
    --------
    >>> clear()
    """
    for cache in (_pair, _fine_pair, _both):
        cache.cache_clear()


def two_steps(remove: PrivacyLoss, add: PrivacyLoss, *, delta: float) -> float:
    """Epsilon from data to other data, by way of silence.

    Examples
    --------
    >>> loss = PrivacyLoss(0.5, 0, np.array([0.2, 0.1, 0.0]), 0.0)
    >>> round(two_steps(loss, loss, delta=1e-9), 6)
    2.0
    """
    first = _splits(remove)
    rest = delta - remove.delta(first)
    first, rest = first[rest > 0], rest[rest > 0]
    # Every split of epsilon is a proof; take the best.
    return float(np.min(first + add.epsilon(rest * np.exp(-first)), initial=math.inf))


def two_steps_delta(remove: PrivacyLoss, add: PrivacyLoss, *, epsilon: float) -> float:
    """Delta at ``epsilon``, as :func:`two_steps`."""
    first = _splits(remove)
    first = first[first <= epsilon]
    return float(np.min(remove.delta(first) + np.exp(first) * add.delta(epsilon - first), initial=1.0))


def _splits(loss: PrivacyLoss) -> Floats:
    """Return some thousand epsilons, from 0 to the end of the curve."""
    top = min(loss.step * (loss.first + len(loss.curve) - 1), 600.0)
    return np.linspace(0.0, max(top, 0.0), 5000)


def _worth(rounds: Sampled, rate: float, size: int) -> tuple[bool, bool]:
    """Guess which of the two bounds for ``replace`` can win, so as not to compute a hopeless one."""
    if size > 1:
        return False, True
    direct = math.sqrt(_moments(_side(rounds, 0), rate, 1)[1])
    silence = 2 * math.sqrt(_moments(_side(rounds, 1), rate, 1)[1])
    return direct < 1.3 * silence, silence < 1.5 * direct


def _side(rounds: Sampled, index: int) -> Exposure:
    """Take mu for replacement (0) or against silence (1); not too many different ones, rounded up."""
    mus = [(r[index], r[2]) for r in rounds if r[index] > 0]
    if len(mus) > _DISTINCT:
        unit = max(mu for mu, _ in mus) / _DISTINCT
        mus = [(max(mu, math.ceil(mu / unit) * unit), n) for mu, n in mus]
    counts: dict[float, int] = {}
    for mu, n in mus:
        counts[float(mu)] = counts.get(float(mu), 0) + n
    return tuple(sorted(counts.items()))


@lru_cache(maxsize=32)
def _pair(rounds: Exposure, rate: float, size: int) -> tuple[PrivacyLoss, PrivacyLoss]:
    """Compose from data to silence, and from silence to data."""
    takers = binomial(size, rate)
    return _compose(rounds, takers, "remove"), _compose(rounds, takers, "add")


@lru_cache(maxsize=32)
def _fine_pair(rounds: Exposure, rate: float, size: int) -> tuple[PrivacyLoss, PrivacyLoss]:
    """As :func:`_pair`, with an upper tail from silence to data that is accurate far below 1e-15."""
    remove, add = _pair(rounds, rate, size)
    add = _lower(add, _compose(rounds, binomial(size, rate), "add", tilt=1.0))
    # Silence is never less likely than P(nobody takes part) times any other output.
    limit = -size * math.log1p(-rate) * sum(n for _, n in rounds)
    return remove, replace(add, limit=limit)


@lru_cache(maxsize=32)
def _both(rounds: Exposure, rate: float) -> PrivacyLoss:
    return _compose(rounds, binomial(1, rate), "both")


def _compose(rounds: Exposure, takers: tuple[float, ...], kind: Kind, tilt: float = 0.0) -> PrivacyLoss:
    step = _step(rounds, takers)
    return convolve(step, ((*_curve(mu, takers, step, kind), count) for mu, count in rounds), tilt)


def convolve(step: float, rounds: Iterable[tuple[int, Floats, int]], tilt: float = 0.0) -> PrivacyLoss:
    """Compose rounds; whatever is cut off or drowns in rounding noise becomes an infinite loss.

    A round is ``(low, curve, count)``: its hockey-stick curve at ``step * (low + i)``, and how often. A tilt
    multiplies the mass at a loss l by exp(tilt l) while it is convolved, so that rounding noise, which has
    the size of the largest mass, does not cover the upper tail.
    """
    from dp_accounting.pld import common
    from scipy.signal import fftconvolve

    first, mass, scale, noise, infinite = 0, np.ones(1), 0.0, 0.0, 0.0
    for low, curve, count in rounds:
        _, one, cut = _dots(low, curve, step)
        weights = one * np.exp(tilt * step * (low + np.arange(len(one))))
        total = float(weights.sum()) if tilt else 1.0
        weights = weights / total
        with np.errstate(over="ignore"):  # some of the orders tried for the truncation bound overflow
            shift, many = common.self_convolve(weights, count, _TRUNCATE) if count > 1 else (0, weights)
        mass = fftconvolve(mass, many) if len(mass) > 1 else np.asarray(many) * mass
        # Negative mass shows how large the noise of the Fourier transform is.
        noise += 3 * _TRUNCATE + 2 * float(-np.minimum(mass, 0.0).sum())
        infinite += cut * count
        mass = np.maximum(mass, 0.0)
        keep = len(mass) - int(np.searchsorted(np.cumsum(mass[::-1]), _TRUNCATE))
        skip = min(int(np.searchsorted(np.cumsum(mass), _TRUNCATE)), keep - 1)
        first, mass = first + low * count + shift + skip, mass[skip:keep]
        scale += count * math.log(total)
    # Where this is cut at exp(40) the noise alone exceeds 1.
    back = np.exp(np.minimum(scale - tilt * step * (first + np.arange(len(mass))), 40.0))
    return _finish(step, first, mass * back, noise * back + infinite)


def _finish(step: float, first: int, mass: Floats, noise: Floats) -> PrivacyLoss:
    """Curve of a loss distribution: the sum over larger losses l of mass(l) (1 - exp(epsilon - l))."""
    from scipy.signal import lfilter

    # curve[j] = e^-h curve[j+1] + (1 - e^-h) mass above j: positive terms only, nothing cancels.
    above = np.concatenate([[0.0], np.cumsum(mass[::-1])[:-1]])
    curve = lfilter([-math.expm1(-step)], [1.0, -math.exp(-step)], above)[::-1] + noise
    return PrivacyLoss(step, first, np.asarray(np.minimum(curve, 1.0), dtype=np.float64), float(noise[-1]))


def _lower(one: PrivacyLoss, two: PrivacyLoss) -> PrivacyLoss:
    """Smaller of two valid curves on the same grid, point by point."""
    first = min(one.first, two.first)
    size = max(loss.first + len(loss.curve) for loss in (one, two)) - first
    best = np.ones(size)
    for loss in (one, two):
        start = loss.first - first
        full = np.concatenate([np.ones(start), loss.curve])
        full = np.append(full, np.full(size - len(full), loss.infinite))
        best = np.minimum(best, full)
    return PrivacyLoss(one.step, first, best, min(one.infinite, two.infinite))


def _dots(low: int, curve: Floats, step: float) -> tuple[int, Floats, float]:
    """Connect the dots: the discrete loss whose curve passes through the given points, and the rest."""
    fall = -np.diff(curve)
    upper = np.append(1 - curve[0], fall / -math.expm1(-step))
    lower = np.append(fall / math.expm1(step), 0.0)
    return low, np.maximum(upper - lower, 0.0), float(curve[-1])


def _curve(mu: float, takers: tuple[float, ...], step: float, kind: Kind) -> tuple[int, Floats]:
    """Hockey-stick curve of one round, from the grid point ``low`` on."""
    most = (len(takers) - 1) * mu
    far = math.ceil(float(_loss(np.asarray(most + _TAIL), mu, takers)) / step) + 1
    near = math.ceil(-math.log(takers[0]) / step) + 1  # the loss is never below log P(nobody)
    low, high = -(near if kind == "remove" else far), near if kind == "add" else far
    e: Floats = step * np.arange(low, high + 1, dtype=np.float64)
    if kind == "remove":
        curve = _remove(mu, takers, e)
    else:
        curve = _add(mu, takers, e)
        if kind == "both":
            curve = np.where(e >= 0, _remove(mu, takers, np.maximum(e, 0.0)), curve)
    return low, np.minimum.accumulate(np.clip(curve, 0.0, 1.0))


def _remove(mu: float, takers: tuple[float, ...], e: Floats) -> Floats:
    """Curve of the pair (mixture, silence), for epsilon of either sign."""
    inside = e > math.log1p((takers[0] - 1) * (1 - 1e-12))
    safe = np.where(inside, e, 0.0)
    if len(takers) == 2:
        value = takers[1] * tradeoff.deltas(mu, _unmixed(safe, takers[1]))
    else:
        x = _threshold(mu, takers, safe)
        value = -np.exp(safe + log_ndtr(-x))  # of an owner of many tasks, exp(safe) alone overflows
        for k, weight in enumerate(takers):
            value = value + weight * ndtr(k * mu - x)
    return np.asarray(np.where(inside, value, -np.expm1(np.minimum(e, 0.0))), dtype=np.float64)


def _add(mu: float, takers: tuple[float, ...], e: Floats) -> Floats:
    """Curve of the pair (silence, mixture), for epsilon of either sign."""
    # H_alpha(P|Q) = 1 - alpha + alpha H_{1/alpha}(Q|P): exact for small losses, poor for large ones.
    near = np.minimum(e, 1.0)
    mirrored = -np.expm1(near) + np.exp(near) * _remove(mu, takers, -near)
    inside = (e >= 1.0) & (np.exp(-np.maximum(e, 0.0)) > takers[0] * (1 + 1e-12))
    if not inside.any():
        return np.asarray(np.where(e < 1.0, mirrored, 0.0), dtype=np.float64)
    x = _threshold(mu, takers, -e[inside])
    far = np.zeros_like(e)
    far[inside] = ndtr(x)
    for k, weight in enumerate(takers):
        far[inside] -= weight * np.exp(e[inside]) * ndtr(x - k * mu)
    return np.asarray(np.where(e < 1.0, mirrored, far), dtype=np.float64)


def _loss(x: Floats, mu: float, takers: tuple[float, ...]) -> Floats:
    """Log likelihood ratio of the mixture against silence at ``x``."""
    k = mu * np.arange(len(takers))
    terms = x[..., None] * k - k * k / 2 + np.log(np.maximum(takers, 1e-300))
    return np.asarray(logsumexp(terms, axis=-1), dtype=np.float64)


def _threshold(mu: float, takers: tuple[float, ...], e: Floats) -> Floats:
    """Where the loss of a round crosses ``e``: it increases with x."""
    if len(takers) == 2:
        return np.asarray(_unmixed(e, takers[1]) / mu + mu / 2, dtype=np.float64)
    low, high = np.full_like(e, -60.0 - 1 / mu), np.full_like(e, 60.0 + len(takers) * mu + 1 / mu)
    for _ in range(60):
        x = (low + high) / 2
        up = _loss(x, mu, takers) < e
        low, high = np.where(up, x, low), np.where(up, high, x)
    return np.asarray((low + high) / 2, dtype=np.float64)


def _unmixed(e: Floats, rate: float) -> Floats:
    """Return log(1 + (exp(e) - 1) / rate), also where exp(e) overflows."""
    near = np.log1p(np.expm1(np.minimum(e, 40.0)) / rate)
    return np.asarray(np.where(e > 40.0, e - math.log(rate), near), dtype=np.float64)


def _moments(rounds: Exposure, rate: float, size: int) -> tuple[float, float]:
    """Rough mean and variance of the total loss."""
    mean = variance = 0.0
    for mu, n in rounds:
        chi = (rate * size) ** 2 * math.expm1(min(mu * mu, 500.0))
        most = rate * size * mu * mu
        mean += n * min(chi, most * size) / 2
        variance += n * min(chi, most * size * (1 + mu * mu * size / 4))
    return mean, variance


def _reach(rounds: Exposure, rate: float, size: int) -> float:
    mean, variance = _moments(rounds, rate, size)
    single = max(((size * mu) ** 2 / 2 + _TAIL * size * mu for mu, _ in rounds), default=0.0)
    return mean + 10 * math.sqrt(variance) + single


def _step(rounds: Exposure, takers: tuple[float, ...]) -> float:
    """Grid step: connecting dots inflates the variance of a round by step**2/6, so this costs about 5e-5."""
    if not rounds:
        return 1e-3
    size = len(takers) - 1
    rate = 1 - takers[0] ** (1 / size)
    _, variance = _moments(rounds, rate, size)
    fine = 0.02 * math.sqrt(variance / sum(n for _, n in rounds))
    points = 2e5 if size == 1 else 3e4
    return min(max(fine, _reach(rounds, rate, size) / points), 0.1)
