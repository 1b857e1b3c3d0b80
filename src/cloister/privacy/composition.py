r"""Composition and groups in closed form, for guarantees that are known only as numbers.

Where the mechanism is known, its own accounting is tighter; these hold for every mechanism.

References
----------
Kairouz, Oh, Viswanath, *The composition theorem for differential privacy*, arXiv:1311.0776, Theorem 3.5.
Vadhan, *The complexity of differential privacy*, 2017, Lemma 2.2 (groups).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cloister.errors import InputError

__all__ = ["composition_bound", "composition_delta", "group_privacy", "published_group_privacy"]


def composition_bound(epsilons: Sequence[float], delta: float) -> float:
    r"""Epsilon at ``delta`` of releases that are purely ``epsilons``-DP, each chosen after the ones before.

    The smallest of three bounds, with :math:`A = \sum_t \epsilon_t \tanh(\epsilon_t/2)` and
    :math:`Q = \sum_t \epsilon_t^2`:

    .. math::
        \sum_t \epsilon_t, \quad A + \sqrt{2Q\log(1/\delta)}, \quad A + \sqrt{2Q\log(e + \sqrt Q/\delta)}.

    Parameters
    ----------
    epsilons : sequence of float
        Price of each release, at least 0.
    delta : float
        In [0, 1). At 0 only the sum holds.

    Returns
    -------
    float
        Epsilon of all of them together.

    References
    ----------
    Paper "Privacy-preserving multi-task learning" (MP-MTL), Definition 7, from Kairouz et al., Theorem 3.5.

    Examples
    --------
    >>> round(composition_bound([0.1] * 100, 1e-5), 4)
    5.2981
    >>> composition_bound([0.5, 0.25], 0.0)
    0.75
    """
    if not all(epsilon >= 0 for epsilon in epsilons) or not 0 <= delta < 1:
        raise InputError(f"Epsilons must be at least 0 and delta in [0, 1). Got delta = {delta!r}.")
    total = math.fsum(epsilons)
    if delta == 0 or math.isinf(total):
        return total
    drift = math.fsum(epsilon * math.tanh(epsilon / 2) for epsilon in epsilons)
    squares = math.fsum(epsilon * epsilon for epsilon in epsilons)
    smaller = min(math.log(1 / delta), math.log(math.e + math.sqrt(squares) / delta))
    return min(total, drift + math.sqrt(2 * squares * smaller))


def composition_delta(epsilons: Sequence[float], epsilon: float) -> float:
    """Delta at ``epsilon``: the inverse of :func:`composition_bound`, rounded up.

    Examples
    --------
    >>> delta = composition_delta([0.1] * 100, 5.3)
    >>> 0.99e-5 < delta < 1e-5, composition_bound([0.1] * 100, delta) <= 5.3
    (True, True)
    >>> composition_delta([0.5, 0.25], 0.75), composition_delta([0.5, 0.25], 0.01)
    (0.0, 1.0)
    """
    total = composition_bound(epsilons, 0.0)
    if total <= epsilon:
        return 0.0
    drift = math.fsum(each * math.tanh(each / 2) for each in epsilons)
    squares = math.fsum(each * each for each in epsilons)
    if math.isinf(total) or epsilon <= drift:
        return 1.0
    log = (epsilon - drift) ** 2 / (2 * squares) * (1 - 1e-12)
    first = math.exp(-log)
    second = math.sqrt(squares) / (math.exp(min(log, 700.0)) - math.e) if log > 1.1 else 1.0
    return min(1.0, min(first, second) * (1 + 1e-12))


def group_privacy(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    r"""Guarantee for ``size`` units that change at once, from that of one.

    The epsilons add up, and
    :math:`\delta (1 + e^\epsilon + \ldots + e^{(n-1)\epsilon}) = \delta (e^{n\epsilon}-1)/(e^\epsilon-1)`.

    Parameters
    ----------
    epsilon, delta : float
        Guarantee of one unit.
    size : int
        Units in the group; a public number.

    Returns
    -------
    tuple of float
        Epsilon and delta of the group; a delta of 1 promises nothing.

    Examples
    --------
    >>> epsilon, delta = group_privacy(0.5, 1e-6, 2)
    >>> epsilon, round(1e6 * delta, 3)
    (1.0, 2.649)
    """
    _check_group(epsilon, delta, size)
    if epsilon == 0:
        return 0.0, min(1.0, size * delta)
    # (e^{n eps} - 1) / (e^eps - 1), with the largest factor taken out lest it overflow.
    steps = math.expm1(-size * epsilon) / math.expm1(-epsilon)
    return size * epsilon, _scaled(delta, (size - 1) * epsilon, steps)


def published_group_privacy(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    r"""Guarantee of a group as MP-MTL prints it, :math:`(n\epsilon, n e^{n\epsilon}\delta)`: never tighter.

    References
    ----------
    Paper "Privacy-preserving multi-task learning" (MP-MTL), Proposition 3.

    Examples
    --------
    >>> epsilon, delta = published_group_privacy(0.5, 1e-6, 2)
    >>> epsilon, round(1e6 * delta, 3)
    (1.0, 5.437)
    """
    _check_group(epsilon, delta, size)
    return size * epsilon, _scaled(delta, size * epsilon, size)


def _scaled(delta: float, exponent: float, factor: float) -> float:
    """Return delta * factor * exp(exponent), at most 1."""
    if delta == 0:
        return 0.0
    logarithm = math.log(delta) + math.log(factor) + exponent
    return min(1.0, math.exp(min(logarithm, 0.0) * (1 - 4e-16)))  # rounded up, as a bound should be


def _check_group(epsilon: float, delta: float, size: int) -> None:
    if not (0 <= epsilon < math.inf and 0 <= delta <= 1 and size >= 1):
        raise InputError(
            "A group needs a finite epsilon >= 0, a delta in [0, 1] and at least one unit. "
            f"Got {epsilon!r}, {delta!r} and {size!r}."
        )
