r"""The trade-off curve: how often a test can be right about one task, for each rate of false alarms.

Somebody tests which of two neighbouring worlds they see. Of a test that raises a false alarm in a share
:math:`\alpha` of cases, a guarantee bounds the share :math:`d(\alpha)` that it detects. That is all that can
be said about tests, and epsilon and delta are a part of it: :math:`(\varepsilon, \delta)` means

.. math:: d(\alpha) \le \min(\delta + e^\varepsilon \alpha,\; 1 - e^{-\varepsilon} (1 - \delta - \alpha)),

two straight lines; a curve is what all pairs that hold leave together. There are two kinds.

- `GaussianCurve`: :math:`d(\alpha) = \Phi(\Phi^{-1}(\alpha) + \mu)`, where Gaussian DP is proven exactly.
- `Envelope`: the least of the lines of a list of pairs. Every pair holds by itself, so the least of their
  lines does, whichever and however many pairs there are; a longer list is only tighter.

*Groups.* An owner of k tasks changes them one after the other. The chance of any event grows from
:math:`\alpha` to at most :math:`d(\alpha)` with the first, to :math:`d(d(\alpha))` with the second, and so
on: the curve is iterated. For :math:`\mu`-GDP this is :math:`k\mu`-GDP.

References
----------
Kairouz, Oh, Viswanath, *The composition theorem for differential privacy*, arXiv:1311.0776, Theorem 2.1.
Dong, Roth, Su, *Gaussian differential privacy*, arXiv:1905.02383, Propositions 2.5 and 2.12, Theorem 2.14.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from cloister.arrays import Floats
from cloister.errors import InputError

__all__ = ["FALSE_ALARMS", "Envelope", "GaussianCurve", "TradeOff", "curve_from_dict"]

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
