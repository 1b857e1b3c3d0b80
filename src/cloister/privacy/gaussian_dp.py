r"""Exact Gaussian differential privacy: one number, ``mu``, and the curve it stands for.

A release is :math:`\mu`-GDP if telling the two neighbouring worlds apart is no easier than telling
:math:`N(0, 1)` from :math:`N(\mu, 1)`. Its exact privacy curve is

.. math::

    \delta(\varepsilon) = \Phi(\mu/2 - \varepsilon/\mu) - e^{\varepsilon}\, \Phi(-\mu/2 - \varepsilon/\mu).

With :math:`a = \mu/2 - \varepsilon/\mu` and Mills' ratio :math:`R(x) = \Phi(-x)/\varphi(x)` this is
:math:`\varphi(a)\,[R(-a) - R(\mu - a)]`, which neither overflows nor cancels: that form is used here.

References
----------
Dong, Roth, Su, *Gaussian differential privacy*, arXiv:1905.02383, Corollary 2.13.
Balle, Wang, *Improving the Gaussian mechanism*, arXiv:1805.06530, equation (6).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import erfcinv, erfcx, erfinv, ndtr

from cloister.arrays import Floats
from cloister.errors import InputError

__all__ = ["boundary", "delta", "deltas", "epsilon", "mu", "mu_of_pure"]

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
