r"""A lower bound on epsilon from one run, of which every task is a canary.

The run has many canary tasks. Every canary tosses a coin: with heads it says one thing, with tails its
neighbour. Who sees the billboard guesses as many coins as it dares. If the run is
:math:`(\varepsilon, \delta)`-private, r guesses of m are right at least v times with probability at most

.. math:: P(W \ge v) + 2m\delta \max_{1 \le i \le v} \frac{P(v - i \le W < v)}{i},
    \qquad W \sim \mathrm{Bin}\left(r, \frac{e^\varepsilon}{1 + e^\varepsilon}\right).

One run is cheap and the bound is loose: at the right noise it is about a third of epsilon. It finds what is
badly wrong in a deployment, where many runs cannot be had.

References
----------
Steinke, Nasr, Jagielski, *Privacy auditing with one (1) training run*, arXiv:2305.08846, Theorem 5.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, expit, log_ndtr, ndtri

from cloister.audit.releases import Runs
from cloister.core.arrays import Floats
from cloister.core.channel import Channel
from cloister.core.errors import InputError
from cloister.core.lifts import Plain, Relation
from cloister.plan.plan import Plan
from cloister.privacy.randomness import Randomness

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
