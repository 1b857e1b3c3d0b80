r"""Chi-square noise: exact privacy curves, composed as privacy loss distributions.

A number that is 0 in silence and ``shift`` with a task's data is released with noise :math:`G \sim \chi^2_k`.
With :math:`c = k/2 - 1` the log likelihood ratio of data against silence at ``x`` is

.. math:: L(x) = c \log(1 - \mathrm{shift}/x) + \mathrm{shift}/2, \qquad x > \mathrm{shift},

and :math:`-\infty` below, where no data could have led. It increases with x, so that both curves are
differences of two gamma functions at the point where L crosses epsilon:

- ``remove``, data against silence: bounded by ``shift / 2``;
- ``add``, silence against data: infinite with probability :math:`P(G < \mathrm{shift})`. No epsilon pays
  for that atom; it stays in delta.

For :math:`k > 2` the noise is log-concave, hence a smaller shift never costs more, and tests by a threshold
are the best. Curves are laid on a grid and rounded up; replacement goes through silence.

References
----------
Doroshenko et al., *Connect the dots*, arXiv:2207.04380, Algorithm 1. Zhu, Dong, Wang, arXiv:2106.08567,
Theorem 10 (composition of dominating pairs).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv, gammaln

from cloister.core.arrays import Floats
from cloister.privacy.events import RelationName
from cloister.privacy.hidden_sampling import PrivacyLoss, convolve, two_steps, two_steps_delta

Shifts: TypeAlias = tuple[tuple[float, float, int], ...]
"""Rounds of one task, equal ones together: ``(degrees, shift, count)``."""
Direction: TypeAlias = Literal["remove", "add"]

_TAIL = 1e-20  # mass a round, at either end, that is rounded up to the next loss or to infinity
_LARGEST = 2000.0  # losses beyond this count as infinite
_POINTS = 2e5
_DISTINCT = 128


def gamma_epsilon(rounds: Shifts, relation: RelationName, delta: float) -> float:
    """Epsilon at ``delta``; infinity where impossible outputs alone are likelier than that.

    Examples
    --------
    >>> round(gamma_epsilon(((300.0, 2.0, 10),), "zero_out", 1e-3), 3)
    0.652
    >>> gamma_epsilon(((2.5, 2.0, 10),), "zero_out", 1e-3)
    inf
    """
    rounds = _coarse(rounds)
    if _impossible(rounds) >= min(delta, 0.5):
        return math.inf
    remove, add = _pair(rounds)
    if relation == "replace":
        return two_steps(remove, add, delta=delta)
    return max(float(loss.epsilon(np.asarray(delta))) for loss in (remove, add))


def gamma_delta(rounds: Shifts, relation: RelationName, epsilon: float) -> float:
    """Delta at ``epsilon``, as :func:`gamma_epsilon`.

    Examples
    --------
    >>> gamma_delta(((300.0, 2.0, 10),), "zero_out", 0.653) < 1e-3
    True
    """
    rounds = _coarse(rounds)
    if _impossible(rounds) >= 0.5:
        return 1.0
    remove, add = _pair(rounds)
    if relation == "replace":
        return min(1.0, two_steps_delta(remove, add, epsilon=epsilon))
    return min(1.0, max(float(loss.delta(np.asarray(epsilon))) for loss in (remove, add)))


def curve(degrees: float, shift: float, direction: Direction, epsilon: Floats) -> Floats:
    """Hockey-stick divergence of one round at every ``epsilon``, of either sign.

    Examples
    --------
    >>> curve(4.0, 1.0, "remove", np.array([0.0, 0.5])).round(4)  # no loss above shift / 2
    array([0.182, 0.   ])
    >>> round(float(curve(4.0, 1.0, "add", np.array([50.0]))[0]), 4)  # P(G < 1)
    0.0902
    """
    half = degrees / 2
    ratio = epsilon if direction == "remove" else -epsilon
    crossed = ratio < shift / 2
    rise = np.where(crossed, (shift / 2 - ratio) / (half - 1), 1.0)
    above = shift / np.expm1(np.minimum(rise, 600.0))  # L crosses the ratio at shift + above
    if direction == "remove":
        beyond = np.exp(np.minimum(epsilon, shift / 2)) * gammaincc(half, (above + shift) / 2)
        value = np.where(crossed, gammaincc(half, above / 2) - beyond, 0.0)
    else:
        # A lower bound where the function underflows: all of it is subtracted.
        logs = half * np.log(above / 2) - above / 2 - gammaln(half + 1)
        below = gammainc(half, above / 2)
        logs = np.where(below > 1e-250, np.log(np.maximum(below, 1e-250)), logs)
        within = gammainc(half, (above + shift) / 2) - np.exp(np.minimum(epsilon + logs, 0.0))
        value = np.where(crossed, within, -np.expm1(np.minimum(epsilon, 0.0)))
    return np.asarray(value, dtype=np.float64)


@lru_cache(maxsize=32)
def _pair(rounds: Shifts) -> tuple[PrivacyLoss, PrivacyLoss]:
    """Compose from data to silence, and from silence to data."""
    return _compose(rounds, "remove"), _compose(rounds, "add")


def _compose(rounds: Shifts, direction: Direction) -> PrivacyLoss:
    ends = [_ends(degrees, shift, direction) for degrees, shift, _ in rounds]
    count = sum(n for _, _, n in rounds)
    # A round's loss deviates by about shift / sqrt(2 degrees), as the Gaussian of the same variance.
    variance = sum(n * shift * shift / (2 * degrees) for degrees, shift, n in rounds)
    fine = 0.02 * math.sqrt(variance / count)
    reach = variance / 2 + 10 * math.sqrt(variance)
    step = min(max(fine, max([reach, *(high - low for low, high in ends)]) / _POINTS), 0.1)

    def grid(degrees: float, shift: float, low: float, high: float) -> tuple[int, Floats]:
        first, last = math.floor(low / step), math.ceil(high / step) + 1
        values = curve(degrees, shift, direction, step * np.arange(first, last + 1, dtype=np.float64))
        return first, np.minimum.accumulate(np.clip(values, 0.0, 1.0))

    return convolve(
        step,
        ((*grid(degrees, shift, *end), n) for (degrees, shift, n), end in zip(rounds, ends, strict=True)),
    )


def _ends(degrees: float, shift: float, direction: Direction) -> tuple[float, float]:
    """Smallest and largest loss of a round, rare ones aside."""
    half = degrees / 2
    far = 2 * float(gammainccinv(half, _TAIL))
    if direction == "remove":
        near = 2 * float(gammaincinv(half, _TAIL))
        return max(-_LARGEST, _ratio(half, shift, near)), _ratio(half, shift, far)
    # A thousandth more than what is impossible anyway.
    near = 2 * float(gammaincinv(half, 1.001 * float(gammainc(half, shift / 2)) + _TAIL))
    return -_ratio(half, shift, far - shift), min(_LARGEST, -_ratio(half, shift, near - shift))


def _ratio(half: float, shift: float, above: float) -> float:
    """Log likelihood ratio at ``shift + above``."""
    return shift / 2 - (half - 1) * math.log1p(shift / max(above, 1e-300))


def _impossible(rounds: Shifts) -> float:
    """Bound the probability of an output in silence that data could not have led to."""
    return sum(n * float(gammainc(degrees / 2, shift / 2)) for degrees, shift, n in rounds)


def _coarse(rounds: Shifts) -> Shifts:
    """Not too many different rounds, each rounded up."""
    if len(rounds) <= _DISTINCT:
        return rounds
    unit = max(shift for _, shift, _ in rounds) / _DISTINCT
    counts: dict[tuple[float, float], int] = {}
    for degrees, shift, n in rounds:
        key = (degrees, max(shift, math.ceil(shift / unit) * unit))
        counts[key] = counts.get(key, 0) + n
    return tuple((degrees, shift, n) for (degrees, shift), n in sorted(counts.items()))
