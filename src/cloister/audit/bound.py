r"""Lower bounds on epsilon that are proven from what an adversary sees: of many games, or of a single run.

*Many games.* Differential privacy says of every event E and both orders of the two worlds that
:math:`P(E) \le e^\varepsilon Q(E) + \delta`, hence

.. math:: \varepsilon \ge \log\frac{P(E) - \delta}{Q(E)}.

The event, a tail of the scores, is chosen on one part of the scores. On the rest the counts X of P and Y of Q
are independent binomials, and p-values :math:`u_1 = P_p(X \ge x)`, :math:`u_2 = P_q(Y \le y)` are exact for
any (p, q). With :math:`z_i = \Phi^{-1}(1 - u_i)` a pair is refuted if :math:`w_1 z_1 + w_2 z_2` is too
large, for weights with :math:`w_1^2 + w_2^2 = 1` that come from the first part, or if one :math:`z_i` alone
is far too large. The bound is the smallest epsilon of a pair that is not refuted; two Clopper-Pearson limits
at half the error each would give away more.

*A single run* has many canary tasks. Every canary tosses a coin: with heads it says one thing, with tails its
neighbour. Who sees the billboard guesses as many coins as it dares. If the run is
:math:`(\varepsilon, \delta)`-private, r guesses of m are right at least v times with probability at most

.. math:: P(W \ge v) + 2m\delta \max_{1 \le i \le v} \frac{P(v - i \le W < v)}{i},
    \qquad W \sim \mathrm{Bin}\left(r, \frac{e^\varepsilon}{1 + e^\varepsilon}\right).

One run is cheap and the bound is loose: at the right noise it is about a third of epsilon. It finds what is
badly wrong in a deployment, where many runs cannot be had.

References
----------
Clopper, Pearson, *The use of confidence or fiducial limits*, Biometrika 1934. Stouffer et al., *The American
soldier*, 1949 (sums of z). Jagielski, Ullman, Oprea, *Auditing differentially private machine learning*,
arXiv:2006.07709 (lower bounds from many runs).
Steinke, Nasr, Jagielski, *Privacy auditing with one (1) training run*, arXiv:2305.08846, Theorem 5.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, betainccinv, betaincinv, expit, log_ndtr, ndtr, ndtri

from cloister.audit.releases import Runs
from cloister.core.arrays import Floats
from cloister.core.channel import Channel
from cloister.core.errors import InputError
from cloister.core.lifts import Plain, Relation
from cloister.plan.plan import Plan
from cloister.privacy.randomness import Randomness
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
    (silent_choice, silent_rest), (speaking_choice, speaking_rest) = map(_parted, (silent, speaking))
    rest = min(len(silent_rest), len(speaking_rest))
    event = _choose(silent_choice, speaking_choice, delta, rest)
    likely, other = (speaking_rest, silent_rest) if event.speaking else (silent_rest, speaking_rest)
    hits, false_hits = event.count(likely), event.count(other)
    epsilon = _refute(hits, false_hits, delta, 1 - confidence, event.weight)
    thresholds = _candidates(silent_choice, speaking_choice, _POINTS)
    curve = _curve(silent_rest, speaking_rest, thresholds, 1 - confidence)
    return Bound(max(0.0, epsilon), delta, confidence, str(event), hits, false_hits, curve)


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


def _choose(silent: Floats, speaking: Floats, delta: float, rest: int) -> _Event:
    """Choose the event that promises the largest bound on `rest` other scores of each world."""
    thresholds = _candidates(silent, speaking, _CANDIDATES)
    best, promise = _Event(float(thresholds[0]), above=True, speaking=True), -math.inf
    few = min(len(silent), len(speaking))
    for above in (True, False):
        shares = [_share(scores, thresholds, above) for scores in (silent, speaking)]
        for numerator in (True, False):
            value, weight = _promise(shares[numerator], shares[not numerator], few, delta, rest)
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


def _promise(likely: Floats, other: Floats, few: int, delta: float, rest: int) -> tuple[Floats, Floats]:
    """Return what each event promises: its estimate less the errors of estimate and measurement; and w1."""
    p, q = np.maximum(likely, 0.5 / few), np.maximum(other, 0.5 / few)
    excess = np.maximum(p - delta, 1e-300)
    ours = np.sqrt(p * (1 - p) + 0.5 / few) / excess  # of one draw, as is the next
    theirs = np.sqrt(q * (1 - q) + 0.5 / few) / q
    spread = np.hypot(ours, theirs)
    estimate, error = np.log(excess / q), spread * (1.7 / math.sqrt(rest) + _CAUTION / math.sqrt(few))
    value = np.where(estimate > error, estimate - error, estimate / error - 1)  # at least the clearest one
    return value, np.clip(ours / spread, 0.02, 0.9998)


def _refute(
    hits: tuple[int, int], false_hits: tuple[int, int], delta: float, error: float, weight: float
) -> float:
    """Return the smallest epsilon of a pair of probabilities that the counts do not refute.

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
        return 0.0
    low, high = betaincinv(x, n - x + 1, ndtr(-first)), betainccinv(y + 1, m - y, ndtr(-second))
    excess = np.maximum(low[1:] - delta, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        least = float(np.where(excess > 0, excess / high[:-1], 0.0).min())
    return math.log(least) if least > 0 else 0.0


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


_MOST_CANARIES = 1000
#: Numbers that canaries send in all rounds together, at most.
_SENT = 5e8


@dataclass(frozen=True)
class OneRunBound:
    """What one run gave away: so many coins guessed right, hence epsilon is at least so much."""

    epsilon: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    correct: int


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bound the probability of so many right guesses under a guarantee.

    Examples
    --------
    >>> round(one_run_p_value(100, 100, 75, epsilon=0.0, delta=0.0), 9)  # fair coins: P(Bin(100, 1/2) >= 75)
    2.82e-07
    >>> round(one_run_p_value(1000, 100, 90, epsilon=1.0, delta=1e-5), 5)
    0.00084
    """
    if not 0 <= correct <= guesses <= canaries:
        raise InputError(
            "Right guesses are some of the guesses, and those of the canaries. "
            f"Got {correct} of {guesses} of {canaries}."
        )
    if correct == 0:
        return 1.0
    chance = 1 / (1 + math.exp(-min(epsilon, 700.0)))
    i = np.arange(1, correct + 1)
    below = float(bdtr(correct - 1, guesses, chance))  # P(W < v)
    further = np.where(i < correct, bdtr(np.maximum(correct - i - 1, 0), guesses, chance), 0.0)
    spread = float(((below - further) / i).max())
    return min(1.0, float(bdtrc(correct - 1, guesses, chance)) + 2 * canaries * delta * spread)


def one_run_epsilon(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Return the largest epsilon that so many right guesses refute; 0 if none.

    Examples
    --------
    >>> round(one_run_epsilon(1000, 1000, 650, delta=0.0), 3)
    0.508
    """
    error = 1 - confidence
    low, high = 0.0, 50.0
    if guesses == 0 or one_run_p_value(canaries, guesses, correct, low, delta) > error:
        return 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        refuted = one_run_p_value(canaries, guesses, correct, middle, delta) <= error
        low, high = (middle, high) if refuted else (low, middle)
    return low


def one_run(plan: Plan, source: Randomness, confidence: float = 0.95) -> OneRunBound | None:
    """Run a plan's releases once with canaries for tasks, each on a number of its own, and guess their coins.

    Only rounds that may use a `Plain` channel are looked at; None if there are none, or if noise is not
    drawn for each number by itself. The channel is as wide as there are canaries.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> from cloister.privacy.randomness import SeededRandomness
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=4), n_tasks=1000).calibrate(epsilon=2.0)
    >>> one_run(plan, SeededRandomness(0)).epsilon <= 2.0
    True
    """
    assert plan.delta is not None
    canaries = _canaries(plan)
    rounds = list(_plain_rounds(plan, canaries))
    if not rounds or not plan.mechanism.coordinatewise:
        return None
    heads = source.stream("heads").uniforms(canaries) < 0.5
    score = _one_run_scores(plan, source, rounds, heads)
    reach = math.sqrt(sum((channel.sensitivity(plan.relation) / noise) ** 2 for _, channel, noise in rounds))
    guesses = _how_many(canaries, reach, plan.delta, confidence)
    sure = np.argsort(-np.abs(score), kind="stable")[:guesses]
    correct = int(((score[sure] > 0) == heads[sure]).sum())
    epsilon = one_run_epsilon(canaries, guesses, correct, plan.delta, confidence)
    return OneRunBound(epsilon, plan.delta, confidence, canaries, guesses, correct)


def _canaries(plan: Plan) -> int:
    """Return how many canaries there are: fewer where each has to speak in thousands of rounds."""
    rounds = max(1, len(plan.rounds))
    taken = rounds * plan.sampling.probability(plan.n_tasks, rounds)
    return max(1, min(plan.n_tasks, _MOST_CANARIES, int(math.sqrt(_SENT / taken))))


def _plain_rounds(plan: Plan, canaries: int) -> Iterator[tuple[int, Channel, float]]:
    for t, round in enumerate(plan.rounds):
        for channel in round.channels:
            if channel.lift == Plain():
                wide = Channel(canaries, channel.clip, channel.lift)
                yield t, wide, plan.unknown_noise(t, wide)
                break


def _one_run_scores(
    plan: Plan, source: Randomness, rounds: list[tuple[int, Channel, float]], heads: NDArray[np.bool_]
) -> Floats:
    """Return how much each canary seems to have tossed heads: above 0, or below."""
    tails = 0.0 if plan.relation == Relation.ZERO_OUT else -1.0
    sent = np.where(heads, 1.0, tails)
    coins = plan.sampling.draw(source.stream("coins").numbered, len(heads), len(plan.rounds))
    score, one, turn = np.zeros(len(heads)), Runs.begin(plan, source, 1), 0
    for t, channel, noise in rounds:
        one.listen(channel, t - turn)
        turn = t + 1
        took_part = coins[t]
        taking = np.flatnonzero(took_part)
        messages = np.zeros((len(taking), len(heads)))
        messages[np.arange(len(taking)), taking] = channel.clip * sent[taking]
        total = channel.total(messages, plan.mechanism.exact)
        release = one.release(channel, (total, np.array([True])))[0][0]
        seen = 1.0 if plan.sampling.hidden else took_part
        score += seen * (release - (1 + tails) / 2) / noise**2
    return score


def _how_many(canaries: int, reach: float, delta: float, confidence: float) -> int:
    """Choose how many coins to guess: what would pay best if noise were as claimed, known before the run."""
    best, most = max(1, canaries // 3), 0.0
    for share in (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0):
        guesses = max(1, round(share * canaries))
        beyond = -float(ndtri(share / 2)) * math.hypot(1, reach / 2)  # about: scores are a mixture of two
        right, wrong = log_ndtr(reach / 2 - beyond), log_ndtr(-reach / 2 - beyond)
        correct = round(guesses * float(expit(right - wrong)))
        epsilon = one_run_epsilon(canaries, guesses, correct, delta, confidence)
        if epsilon > most:
            best, most = guesses, epsilon
    return best
