r"""Lower bounds on epsilon, and on mu, that are proven from what an adversary sees of many games.

Differential privacy says of every event E and both orders of the two worlds that
:math:`P(E) \le e^\varepsilon Q(E) + \delta`, hence

.. math:: \varepsilon \ge \log\frac{P(E) - \delta}{Q(E)}.

The event, a tail of the scores, is chosen on one part of the scores. On the rest the counts X of P and Y of Q
are independent binomials, and p-values :math:`u_1 = P_p(X \ge x)`, :math:`u_2 = P_q(Y \le y)` are exact for
any (p, q). With :math:`z_i = \Phi^{-1}(1 - u_i)` a pair is refuted if :math:`w_1 z_1 + w_2 z_2` is too
large, for weights with :math:`w_1^2 + w_2^2 = 1` that come from the first part, or if one :math:`z_i` alone
is far too large. The bound is the smallest epsilon of a pair that is not refuted; two Clopper-Pearson limits
at half the error each would give away more.

*Gaussian DP.* At a small delta the events that show epsilon are too rare to be counted. But a claim of
:math:`\mu`-GDP is one of the whole curve, and says of every event that
:math:`\mu \ge \Phi^{-1}(P(E)) - \Phi^{-1}(Q(E))`: one point refutes every smaller mu, and points in the
middle are measured best. What mu means at a delta holds of what is Gaussian DP, as is claimed.

References
----------
Clopper, Pearson, *The use of confidence or fiducial limits*, Biometrika 1934. Stouffer et al., *The American
soldier*, 1949 (sums of z). Jagielski, Ullman, Oprea, *Auditing differentially private machine learning*,
arXiv:2006.07709 (lower bounds from many runs).
Nasr et al., *Tight auditing of differentially private machine learning*, arXiv:2302.07956 (one point of mu).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from scipy.special import betainccinv, betaincinv, ndtr, ndtri

from cloister.core.arrays import Floats
from cloister.core.errors import InputError
from cloister.privacy.statement import rounded_down, rounded_up

#: Share of the scores on which the event is chosen.
_CHOICE = 0.2
#: Share of the error that is set aside for each z alone.
_ASIDE = 0.05
#: Standard errors of the first part that are taken off an estimate there, lest luck choose the event.
_CAUTION = 1.5
#: Events that promise less than the best by this share, or by this much, are as good.
_NEARLY = 0.1
_CANDIDATES = 400
#: Takes shares in both worlds, and how many scores they are of, and will be measured on.
_Promise = Callable[[Floats, Floats, int, int], tuple[Floats, Floats]]
_POINTS = 25
_LEAST = 10


@dataclass(frozen=True)
class TestPoint:
    """How often one test errs, with limits that hold for all points of a curve at once.

    Parameters
    ----------
    false_alarm, missed : float
        Measured shares: the test says *speaking* in silence, or *silent* when the task spoke.
    false_alarm_limits, missed_limits : tuple of float
        Lower and upper confidence limits.
    """

    false_alarm: float
    missed: float
    false_alarm_limits: tuple[float, float]
    missed_limits: tuple[float, float]


@dataclass(frozen=True)
class Bound:
    """What was measured: epsilon is at least this much, with this confidence.

    Parameters
    ----------
    epsilon : float
        The lower bound; 0 if nothing was found.
    delta, confidence : float
        What it was asked for.
    event : str
        The event that shows it.
    hits, false_hits : tuple of int
        How often it happened, and of how many, in the world where it is likelier and in the other.
    curve : tuple of Point
        The measured trade-off curve; its limits hold together with the same confidence.
    """

    epsilon: float
    delta: float
    confidence: float
    event: str
    hits: tuple[int, int]
    false_hits: tuple[int, int]
    curve: tuple[TestPoint, ...] = field(repr=False)

    def __str__(self) -> str:
        return (
            f"epsilon >= {rounded_down(self.epsilon)} at delta {rounded_up(self.delta)}, with "
            f"{self.confidence:.4g} confidence"
        )


@dataclass(frozen=True)
class MuBound:
    """What was measured of a Gaussian curve: no smaller mu can be claimed, with this confidence.

    Parameters
    ----------
    mu : float
        The lower bound; 0 if nothing was found.
    confidence : float
        What it was asked for.
    event, hits, false_hits
        As of a `Bound`.
    """

    mu: float
    confidence: float
    event: str
    hits: tuple[int, int]
    false_hits: tuple[int, int]


@dataclass(frozen=True)
class _Event:
    """A tail of the scores, in which world it is likelier, and the weight of that world's z."""

    threshold: float
    above: bool
    speaking: bool
    weight: float = 0.5

    def count(self, scores: Floats) -> tuple[int, int]:
        """Return how many scores are in the tail, of how many."""
        inside = scores >= self.threshold if self.above else scores <= self.threshold
        return int(np.count_nonzero(inside)), len(scores)

    def __str__(self) -> str:
        sign = ">=" if self.above else "<="
        return f"score {sign} {self.threshold:.6g}, likelier when {'speaking' if self.speaking else 'silent'}"


def lower_bound(silent: Floats, speaking: Floats, delta: float, confidence: float = 0.95) -> Bound:
    """Bound epsilon from below by independent scores of the two worlds.

    Parameters
    ----------
    silent, speaking : array of shape (draws,)
        What the adversary made of independent releases in each world; infinities are allowed. Larger should
        mean more like `speaking`: a log likelihood ratio is best. No law is assumed.
    delta : float
        At least 0, below 1.
    confidence : float, default=0.95
        Probability, whatever the mechanism, that the bound is not above the true epsilon.

    Returns
    -------
    Bound
        With the event that shows it. Both tails are tried in both orders of the worlds; that choice is
        paid for by making it on a fifth of the scores, which is not used again.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> silent, speaking = rng.laplace(size=100_000), 1 + rng.laplace(size=100_000)  # epsilon = 1
    >>> 0.95 < lower_bound(silent, speaking, delta=0.0).epsilon <= 1
    True
    >>> lower_bound(silent, silent[::-1], delta=1e-3).epsilon < 0.02
    True
    """
    silent, speaking = _scores(silent, "silent"), _scores(speaking, "speaking")
    if not (0 <= delta < 1 and 0 < confidence < 1):
        raise InputError(
            f"delta must be in [0, 1) and confidence in (0, 1). Got {delta!r} and {confidence!r}. "
            "Use 1e-5 and 0.95."
        )
    event, hits, false_hits = _measured(silent, speaking, partial(_promise, delta))
    p, q = _not_refuted(hits, false_hits, 1 - confidence, event.weight)
    excess = np.maximum(p - delta, 0.0)
    least = float(np.divide(excess, q, out=np.zeros_like(q), where=excess > 0).min())
    epsilon = math.log(least) if least > 0 else 0.0
    (silent, silent_rest), (speaking, speaking_rest) = map(_parted, (silent, speaking))
    curve = _curve(silent_rest, speaking_rest, _candidates(silent, speaking, _POINTS), 1 - confidence)
    return Bound(max(0.0, epsilon), delta, confidence, str(event), hits, false_hits, curve)


def lower_mu(silent: Floats, speaking: Floats, confidence: float = 0.95) -> MuBound:
    """Bound the mu of a Gaussian trade-off curve from below, by scores as for `lower_bound`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> found = lower_mu(rng.normal(size=100_000), rng.normal(0.3, size=100_000))
    >>> 0.28 < found.mu <= 0.3
    True
    """
    silent, speaking = _scores(silent, "silent"), _scores(speaking, "speaking")
    event, hits, false_hits = _measured(silent, speaking, _promise_mu)
    p, q = _not_refuted(hits, false_hits, 1 - confidence, event.weight)
    return MuBound(max(0.0, float((ndtri(p) - ndtri(q)).min())), confidence, str(event), hits, false_hits)


def clopper_pearson(count: int, trials: int, error: float) -> tuple[float, float]:
    """Return one-sided limits of a probability: each fails with probability `error` at most.

    Examples
    --------
    >>> [round(limit, 4) for limit in clopper_pearson(0, 1000, 0.05)]  # the rule of three
    [0.0, 0.003]
    """
    low = float(betaincinv(count, trials - count + 1, error)) if count else 0.0
    high = float(betainccinv(count + 1, trials - count, error)) if count < trials else 1.0
    return low, high


def _scores(values: Floats, world: str) -> Floats:
    scores = np.asarray(values, dtype=np.float64).ravel()
    if len(scores) < _LEAST or np.isnan(scores).any():
        raise InputError(
            f"A bound needs at least {_LEAST} scores of each world and no NaN. "
            f"Got {len(scores)} scores of the {world} world, {int(np.isnan(scores).sum())} of them NaN."
        )
    return scores


def _parted(scores: Floats) -> tuple[Floats, Floats]:
    """Split into scores to choose the event on, and scores to measure it on."""
    cut = max(_LEAST // 2, int(_CHOICE * len(scores)))
    return scores[:cut], scores[cut:]


def _candidates(silent: Floats, speaking: Floats, count: int) -> Floats:
    """Return thresholds that are close to each other in both tails, by rank among all scores."""
    pooled = np.sort(np.concatenate([silent, speaking]))
    ranks = np.unique(np.geomspace(1, len(pooled), count).astype(np.intp)) - 1
    return np.unique(np.concatenate([pooled[ranks], pooled[::-1][ranks]]))


def _measured(
    silent: Floats, speaking: Floats, promise: _Promise
) -> tuple[_Event, tuple[int, int], tuple[int, int]]:
    """Choose an event on the first part of the scores; count it on the rest, where it is likelier and not."""
    (silent_choice, silent_rest), (speaking_choice, speaking_rest) = map(_parted, (silent, speaking))
    rest = min(len(silent_rest), len(speaking_rest))
    event = _choose(silent_choice, speaking_choice, rest, promise)
    likely, other = (speaking_rest, silent_rest) if event.speaking else (silent_rest, speaking_rest)
    return event, event.count(likely), event.count(other)


def _choose(silent: Floats, speaking: Floats, rest: int, promised: _Promise) -> _Event:
    """Choose the event that promises the largest bound on `rest` other scores of each world."""
    thresholds = _candidates(silent, speaking, _CANDIDATES)
    best, promise = _Event(float(thresholds[0]), above=True, speaking=True), -math.inf
    few = min(len(silent), len(speaking))
    for above in (True, False):
        shares = [_share(scores, thresholds, above) for scores in (silent, speaking)]
        for numerator in (True, False):
            value, weight = promised(shares[numerator], shares[not numerator], few, rest)
            if value.max() > promise:
                promise, at = float(value.max()), _middle(value)
                best = _Event(float(thresholds[at]), above, numerator, float(weight[at]))
    return best


def _middle(value: Floats) -> int:
    """Return the middle one of the events that promise nearly as much as the best, which has luck as well."""
    near = np.flatnonzero(value >= value.max() - _NEARLY * min(1.0, abs(value.max())))
    return int(near[len(near) // 2])


def _share(scores: Floats, thresholds: Floats, above: bool) -> Floats:
    """Return the share of scores at or beyond each threshold."""
    ordered = np.sort(scores)
    beyond = (
        len(ordered) - np.searchsorted(ordered, thresholds, side="left")
        if above
        else np.searchsorted(ordered, thresholds, side="right")
    )
    return np.asarray(beyond / len(ordered), dtype=np.float64)


def _promise(delta: float, likely: Floats, other: Floats, few: int, rest: int) -> tuple[Floats, Floats]:
    """Return what each event promises of epsilon, less the errors of choice and measurement; and w1."""
    p, q = np.maximum(likely, 0.5 / few), np.maximum(other, 0.5 / few)
    excess = np.maximum(p - delta, 1e-300)
    ours = np.sqrt(p * (1 - p) + 0.5 / few) / excess  # of one draw, as is the next
    theirs = np.sqrt(q * (1 - q) + 0.5 / few) / q
    return _less_errors(np.log(excess / q), ours, theirs, few, rest)


def _promise_mu(likely: Floats, other: Floats, few: int, rest: int) -> tuple[Floats, Floats]:
    """Return what each event promises of mu, as `_promise` does of epsilon."""
    p, q = (np.clip(share, 0.5 / few, 1 - 0.5 / few) for share in (likely, other))
    x, y = ndtri(p), ndtri(q)
    ours, theirs = (np.sqrt(s * (1 - s) * 2 * np.pi) * np.exp(z**2 / 2) for s, z in ((p, x), (q, y)))
    return _less_errors(x - y, ours, theirs, few, rest)


def _less_errors(
    estimate: Floats, ours: Floats, theirs: Floats, few: int, rest: int
) -> tuple[Floats, Floats]:
    """Return estimates less their errors, by the deviations of one draw of either world."""
    spread = np.hypot(ours, theirs)
    error = spread * (1.7 / math.sqrt(rest) + _CAUTION / math.sqrt(few))
    value = np.where(estimate > error, estimate - error, estimate / error - 1)  # at least the clearest one
    return value, np.clip(ours / spread, 0.02, 0.9998)


def _not_refuted(
    hits: tuple[int, int], false_hits: tuple[int, int], error: float, weight: float
) -> tuple[Floats, Floats]:
    """Return pairs of probabilities, one of which is no further apart than the closest that are not refuted.

    On the border :math:`w_1 z_1 + w_2 z_2 = z`: p falls with :math:`z_1` and q with it, through :math:`z_2`.
    So the border is cut in cells, and each is bounded by the worse end for p and the worse end for q.
    """
    aside = -float(ndtri(_ASIDE * error))
    level = -float(ndtri((1 - 2 * _ASIDE) * error))
    other = math.sqrt(1 - weight**2)
    lowest = max((level - other * aside) / weight, -8.0)
    first = np.linspace(min(lowest, aside), aside, 400)
    second = np.minimum((level - weight * first) / other, aside)
    second[0] = aside  # all that lies before the first cell
    (x, n), (y, m) = hits, false_hits
    if x == 0 or y == m:
        return np.full(1, 0.5), np.full(1, 0.5)
    low, high = betaincinv(x, n - x + 1, ndtr(-first)), betainccinv(y + 1, m - y, ndtr(-second))
    return np.asarray(low[1:]), np.asarray(high[:-1])


def _curve(silent: Floats, speaking: Floats, thresholds: Floats, error: float) -> tuple[TestPoint, ...]:
    """Measure the test *score >= threshold* at each threshold, all limits together at this error."""
    each = error / (4 * len(thresholds))

    def point(threshold: float) -> TestPoint:
        event = _Event(threshold, above=True, speaking=True)
        alarms, missed = event.count(silent)[0], len(speaking) - event.count(speaking)[0]
        return TestPoint(
            alarms / len(silent),
            missed / len(speaking),
            clopper_pearson(alarms, len(silent), each),
            clopper_pearson(missed, len(speaking), each),
        )

    return tuple(point(float(t)) for t in thresholds)
