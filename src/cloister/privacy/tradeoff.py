r"""Trade-off curves: how often a test can be right about one task, for each rate of false alarms.

Somebody tests which of two neighbouring worlds they see. Of a test that raises a false alarm in a share
:math:`\alpha` of cases, a guarantee bounds the share :math:`d(\alpha)` that it detects. That is all that can
be said about tests, and epsilon and delta are a part of it: :math:`(\varepsilon, \delta)` means

.. math:: d(\alpha) \le \min(\delta + e^\varepsilon \alpha,\; 1 - e^{-\varepsilon} (1 - \delta - \alpha)),

two straight lines; a curve is what all pairs that hold leave together. There are two kinds.

- `GaussianCurve`: :math:`d(\alpha) = \Phi(\Phi^{-1}(\alpha) + \mu)`, where Gaussian DP is proven exactly.
- `Envelope`: the least of the lines of a list of pairs. Every pair holds by itself, so the least of their
  lines does, whichever and however many pairs there are; a longer list is only tighter.

*Gaussian DP.* A release is :math:`\mu`-GDP if telling the two neighbouring worlds apart is no easier than
telling :math:`N(0, 1)` from :math:`N(\mu, 1)`. Its exact privacy curve is

.. math::

    \delta(\varepsilon) = \Phi(\mu/2 - \varepsilon/\mu) - e^{\varepsilon}\, \Phi(-\mu/2 - \varepsilon/\mu).

With :math:`a = \mu/2 - \varepsilon/\mu` and Mills' ratio :math:`R(x) = \Phi(-x)/\varphi(x)` this is
:math:`\varphi(a)\,[R(-a) - R(\mu - a)]`, which neither overflows nor cancels: that form is used here.

*Groups.* An owner of k tasks changes them one after the other. The chance of any event grows from
:math:`\alpha` to at most :math:`d(\alpha)` with the first, to :math:`d(d(\alpha))` with the second, and so
on: the curve is iterated. For :math:`\mu`-GDP this is :math:`k\mu`-GDP.

References
----------
Dong, Roth, Su, *Gaussian differential privacy*, arXiv:1905.02383, Corollary 2.13, Propositions 2.5 and 2.12,
Theorem 2.14.
Balle, Wang, *Improving the Gaussian mechanism*, arXiv:1805.06530, equation (6).
Kairouz, Oh, Viswanath, *The composition theorem for differential privacy*, arXiv:1311.0776, Theorem 2.1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike
from scipy.special import erfcinv, erfcx, erfinv, ndtr, ndtri

from cloister.core.arrays import Floats
from cloister.core.errors import InputError

_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)


def delta(mu: float, epsilon: float) -> float:
    """Smallest delta for which ``mu``-GDP implies ``(epsilon, delta)``-DP.

    Parameters
    ----------
    mu : float
        At least 0; infinity means not private at all.
    epsilon : float
        Any real number; below zero it is the hockey-stick divergence at ``exp(epsilon)``.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> round(delta(1.0, 1.0), 6)
    0.126937
    >>> delta(0.0, 0.5), delta(float("inf"), 10.0)
    (0.0, 1.0)
    """
    _check(mu=mu)
    return float(deltas(mu, epsilon))


def deltas(mu: npt.ArrayLike, epsilon: npt.ArrayLike) -> Floats:
    """Compute :func:`delta` for arrays, broadcast against each other.

    Examples
    --------
    >>> deltas(1.0, [0.0, 1.0, 5.0]).round(4)
    array([0.3829, 0.1269, 0.    ])
    """
    m, e = np.broadcast_arrays(np.asarray(mu, dtype=np.float64), np.asarray(epsilon, dtype=np.float64))
    up = np.exp(_log_delta(m, np.abs(e)))
    # H_alpha(P|Q) = 1 - alpha + alpha H_{1/alpha}(Q|P), and the Gaussian pair is symmetric.
    down = np.minimum(e, 0.0)
    return np.asarray(np.where(e >= 0, up, -np.expm1(down) + np.exp(down) * up), dtype=np.float64)


def epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon for which ``mu``-GDP implies ``(epsilon, delta)``-DP; never understated.

    Examples
    --------
    >>> round(epsilon(1.0, 1e-5), 4)
    4.3772
    >>> epsilon(0.0, 1e-5), epsilon(float("inf"), 1e-5)
    (0.0, inf)
    """
    _check(mu=mu, delta=delta)
    if mu == 0 or delta >= 1 or (delta > 0 and math.isfinite(mu) and float(deltas(mu, 0.0)) <= delta):
        return 0.0
    if math.isinf(mu) or delta == 0:
        return math.inf
    # delta(eps) <= Phi(a) <= exp(-a^2/2)/2 for a <= 0, so this epsilon is enough.
    enough = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return boundary(lambda e: _excess(float(deltas(mu, e)), delta), enough, 0.0)


def mu(epsilon: float, delta: float) -> float:
    """Largest mu that is ``(epsilon, delta)``-DP; never overspends.

    The value returned satisfies ``delta(mu(epsilon, d), epsilon) <= d`` in floating point too.

    Examples
    --------
    >>> round(mu(1.0, 1e-5), 6)
    0.268051
    >>> mu(0.0, 0.0), mu(float("inf"), 1e-5)
    (0.0, inf)
    """
    _check(epsilon=epsilon, delta=delta)
    if math.isinf(epsilon) or delta >= 1:
        return math.inf
    if delta == 0:
        return 0.0
    root = math.sqrt(2 * math.log(1 / delta))
    good = 2 * epsilon / (root + math.sqrt(root * root + 2 * epsilon))  # solves m^2/2 + m root = epsilon
    bad = max(2 * good, delta)
    while float(deltas(bad, epsilon)) <= delta:
        good, bad = bad, 2 * bad
    return boundary(lambda m: _excess(float(deltas(m, epsilon)), delta), good, bad)


def mu_of_pure(epsilon: float) -> float:
    r"""Smallest mu for which every purely ``epsilon``-DP release is ``mu``-GDP.

    Telling the worlds of such a release apart is no easier than its trade-off function says, which is made of
    two straight lines: from (0, 1) to the corner (a, a) with :math:`a = 1/(1 + e^\varepsilon)`, and on to
    (1, 0). The curve of ``mu``-GDP is convex, has the same two ends, and passes through that corner for
    :math:`\mu = -2\,\Phi^{-1}(a)`. A convex curve lies below its chords, hence below both lines; with a
    smaller mu it would pass above the corner.

    Parameters
    ----------
    epsilon : float
        At least 0. Above 700 the answer is infinity: no budget allows that.

    Examples
    --------
    >>> round(mu_of_pure(1.0), 6), mu_of_pure(0.0)
    (1.232035, 0.0)
    """
    _check(epsilon=epsilon)
    if epsilon > 700:
        return math.inf
    half = erfinv(math.tanh(epsilon / 2)) if epsilon < 1 else erfcinv(2 / (1 + math.exp(epsilon)))
    return 2 * math.sqrt(2) * float(half)


def boundary(excess: Callable[[float], float], good: float, bad: float, rtol: float = 1e-14) -> float:
    """Find where ``excess`` changes sign and return the last point on the good side.

    Bracketing by Chandrupatla's method: inverse quadratic steps where they are trustworthy, halving
    elsewhere. The answer always satisfies ``excess(answer) <= 0``, so it never overspends.

    Parameters
    ----------
    excess : callable
        At most 0 at ``good`` and above 0 at ``bad``; monotone in between, jumps allowed.
    good, bad : float
        The bracket, in either order.
    rtol : float, default=1e-14
        Relative width of the bracket at which to stop.

    Returns
    -------
    float
        A point where ``excess`` is at most 0, next to the sign change.

    Examples
    --------
    >>> round(boundary(lambda x: x * x - 2, 1.0, 2.0), 12)
    1.414213562373
    """
    a, b = bad, good
    fa, fb = excess(bad), excess(good)
    if fb > 0:
        raise InputError(f"boundary needs excess(good) <= 0. Got {fb!r} at {good!r}. Widen the bracket.")
    step = 0.5
    for _ in range(200):
        x = a + step * (b - a)
        fx = excess(x)
        if (fx > 0) == (fa > 0):
            c, fc, a, fa = a, fa, x, fx
        else:
            c, fc, b, fb, a, fa = b, fb, a, fa, x, fx
        width = abs(b - a)
        least = rtol * max(abs(a), abs(b))
        if width <= least:
            break
        step = _chandrupatla((a, b, c), (fa, fb, fc), least / width)
    return a if fa <= 0 else b


def _chandrupatla(x: tuple[float, float, float], f: tuple[float, float, float], least: float) -> float:
    """Next step, as a fraction of the way from ``x[0]`` to ``x[1]``."""
    (a, b, c), (fa, fb, fc) = x, f
    step = 0.5
    if fb != fc and c != b:
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        if phi * phi < xi and (1 - phi) ** 2 < 1 - xi:
            step = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
    return min(max(step, 0.5 * least), 1 - 0.5 * least)


def _excess(value: float, target: float) -> float:
    """Sign of ``value - target``, on a log scale that root finding likes."""
    if value <= target:
        return min(0.0, math.log(max(value, 1e-300) / target))
    return max(5e-324, math.log(value / target))


def _mills(x: Floats) -> Floats:
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)), dtype=np.float64)


def _log_delta(m: Floats, e: Floats) -> Floats:
    """Log of delta for ``e >= 0``, every entry of ``m`` and ``e``."""
    live = (m > 0) & np.isfinite(m) & np.isfinite(e)
    mm, ee = np.where(live, m, 1.0), np.where(live, e, 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        a = mm / 2 - ee / mm
        near = np.minimum(a, 5.0)
        # The difference R(-a) - R(mu-a) is the integral of 1 - x R(x); two Gauss points when mu is small.
        shift = mm * (0.5 - math.sqrt(1 / 12))
        left, right = shift - near, mm - shift - near
        small = mm * (1 - 0.5 * (left * _mills(left) + right * _mills(right)))
        gap = np.where(mm < 3e-3, small, _mills(-near) - _mills(mm - near))
        low = np.log(np.maximum(gap, 0.0)) - near * near / 2 - _LOG_ROOT_2PI
        far = np.maximum(a, 5.0)
        lost = ndtr(-far) + np.exp(-far * far / 2 - _LOG_ROOT_2PI) * _mills(np.maximum(mm - far, 0.0))
        high = np.log1p(-np.minimum(lost, 1.0))
    out = np.where(a < 5.0, low, high)
    out = np.where(live, out, -np.inf)
    return np.asarray(np.where(np.isinf(m) & np.isfinite(e), 0.0, out), dtype=np.float64)


def _check(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise InputError(f"{name} must be at least 0. Got {value!r}. Pass a non-negative number.")
        if name == "delta" and value > 1:
            raise InputError(f"delta is a probability, at most 1. Got {value!r}. Pass something like 1e-5.")


#: The rate of false alarms that detection rates are told for, unless another is asked for.
FALSE_ALARMS = 0.05


class TradeOff(ABC):
    """An upper bound on what any test can do."""

    @abstractmethod
    def detected(self, false_alarms: ArrayLike) -> Floats:
        """Return the largest share of cases that a test with such false alarms can detect."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return plain values that strict JSON can hold."""

    def missed(self, false_alarms: ArrayLike) -> Floats:
        """Return the trade-off function: the least share of cases that such a test must miss."""
        return 1.0 - self.detected(false_alarms)

    def detection(self, false_alarms: float = FALSE_ALARMS, tasks: int = 1) -> float:
        """Return the detection rate of the best test at a rate of false alarms.

        Parameters
        ----------
        false_alarms : float, default=0.05
            In [0, 1]; guessing detects as much.
        tasks : int, default=1
            How many tasks change at once: those that a person has rows in, or that one owner has.
        """
        if not 0 <= false_alarms <= 1:
            raise InputError(f"false_alarms must be in [0, 1]. Got {false_alarms!r}. Use 0.05.")
        if isinstance(tasks, bool) or int(tasks) != tasks or tasks < 1:
            raise InputError(f"tasks must be a whole number of at least 1. Got {tasks!r}.")
        rate = np.asarray(false_alarms, dtype=np.float64)
        for _ in range(int(tasks)):
            rate = self.detected(rate)
            if rate >= 1:
                break
        return float(rate)


@dataclass(frozen=True)
class GaussianCurve(TradeOff):
    r"""The curve of exact Gaussian DP: no test does better than one of N(0, 1) against N(mu, 1).

    Parameters
    ----------
    mu : float
        At least 0 and finite.

    Examples
    --------
    >>> curve = GaussianCurve(0.2653)
    >>> round(curve.detection(), 4), round(curve.detection(false_alarms=0.01), 4)
    (0.0839, 0.0196)
    >>> round(curve.detection(tasks=2), 4) == round(GaussianCurve(2 * 0.2653).detection(), 4)
    True
    """

    mu: float

    def __post_init__(self) -> None:
        if not 0 <= self.mu < math.inf:
            raise InputError(f"mu must be at least 0 and finite. Got {self.mu!r}.")

    def detected(self, false_alarms: ArrayLike) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(ndtr(ndtri(np.asarray(false_alarms, dtype=np.float64)) + self.mu))

    def to_dict(self) -> dict[str, Any]:
        return {"mu": self.mu}


@dataclass(frozen=True)
class Envelope(TradeOff):
    """The curve of a list of guarantees that all hold.

    Parameters
    ----------
    points : tuple of (float, float)
        Pairs of epsilon and delta. Without any, nothing is promised.

    Examples
    --------
    >>> one = Envelope(((1.0, 1e-5),))
    >>> round(one.detection(), 4), Envelope(((1.0, 1e-5), (0.4, 0.0077))).detection() < one.detection()
    (0.1359, True)
    >>> Envelope(()).detection()
    1.0
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        for epsilon, delta in self.points:
            if not (0 <= epsilon < math.inf and 0 <= delta <= 1):
                raise InputError(
                    f"A point of a curve is a finite epsilon >= 0 and a delta in [0, 1]. Got {epsilon!r} and "
                    f"{delta!r}."
                )

    def detected(self, false_alarms: ArrayLike) -> Floats:
        alarms = np.asarray(false_alarms, dtype=np.float64)
        best = np.ones_like(alarms)
        for epsilon, delta in self.points:
            if epsilon < 700:  # beyond, the line is above 1 for all numbers but 0
                best = np.minimum(best, math.exp(epsilon) * alarms + delta)
            best = np.minimum(best, 1 - math.exp(-epsilon) * (1 - delta - alarms))
        return np.asarray(best)

    def to_dict(self) -> dict[str, Any]:
        return {"points": [list(point) for point in self.points]}


def curve_from_dict(values: Mapping[str, Any]) -> TradeOff:
    """Read what `TradeOff.to_dict` wrote.

    Examples
    --------
    >>> curve_from_dict({"mu": 0.5}), curve_from_dict({"points": [[1.0, 0.0]]})
    (GaussianCurve(mu=0.5), Envelope(points=((1.0, 0.0),)))
    """
    try:
        if set(values) == {"mu"}:
            return GaussianCurve(float(values["mu"]))
        if set(values) == {"points"}:
            return Envelope(tuple((float(epsilon), float(delta)) for epsilon, delta in values["points"]))
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
    raise InputError(f"A curve must have a mu, or points of epsilon and delta. Got {values!r}.")
