r"""The game of joint differential privacy, played against a plan's own code.

The adversary fixes everything but the target task: all other messages, which it knows, and the two messages
the target may send, the pair that moves the sum furthest. A world is drawn: the target *speaks* with one
message, or with the other (silence, under `zero_out`). The plan's own mechanism sums and perturbs, round by
round, with the state that it begins for a run. From the
releases of all rounds the adversary computes the log likelihood ratio of the two worlds under the law that
the mechanism claims: the best test if the claim is true, and a valid one if it is not.

*Participation.* Where coins are visible, rounds in which the target did not take part say nothing. Where they
are hidden, each round is a mixture in either world. Coins come from the plan's own sampling where they are
independent from task to task, else from the law of one task's coins.

*Size.* With Gaussian and with Wishart noise the game is played on a channel of two numbers at most, with the
plan's clip, lift and noise: what a pair of messages gives away lies in the plane they span, so that nothing
is lost. With other noise the channel is that of the plan.

*Lowest bits.* Floating-point noise does not hide them and its guarantee says so; scores are rounded to nine
decimals there. Exact noise gets no such mercy, here and in :mod:`cloister.audit.noise_checks`.

*Correlated noise.* The game is about the whole transcript: see :mod:`cloister.audit.releases`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cloister.audit import releases
from cloister.audit.releases import Runs, in_release_units
from cloister.audit.sensitivity import narrow, worst_pair
from cloister.core.arrays import Floats
from cloister.core.channel import Channel
from cloister.core.errors import PlanError
from cloister.core.lifts import Relation
from cloister.plan.plan import Plan
from cloister.privacy.caveats import FLOATING_POINT
from cloister.privacy.noise import GaussianLaw, Law
from cloister.privacy.randomness import Randomness
from cloister.privacy.sampling import Epochs, Everyone, OnePass, Poisson

Progress = Callable[[int, int], None]

#: The others: enough to be in the way, few enough to be fast. What they say is known and cancels.
_OTHERS = 5
#: Numbers that are drawn in one game at most where one call makes many, and calls where it does not.
_NUMBERS, _CALLS = 4e7, 1e5
#: Coins that are tossed in one game at most, and coins that are held at once.
_COINS, _HELD = 3e8, 1e8
_BATCH = 200_000


@dataclass(frozen=True, eq=False)
class Scores:
    """What the adversary made of many games: log likelihood ratios, larger where the target may speak."""

    silent: Floats = field(repr=False)
    speaking: Floats = field(repr=False)


@dataclass(frozen=True, eq=False)
class _AttackedRound:
    """One round as the adversary sees it: what the sum is in either world, and without the target."""

    channel: Channel
    noise: float
    law: Law
    absent: NDArray[np.generic]
    totals: tuple[NDArray[np.generic], NDArray[np.generic]]

    def ratio(self, releases: Floats, share: float) -> Floats:
        """Return log likelihood ratios of speaking against silence; the target is in with some chance."""
        silent, speaking = (self._world(releases, total, share) for total in self.totals)
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(speaking - silent, nan=0.0, posinf=np.inf, neginf=-np.inf)

    def _world(self, releases: Floats, total: NDArray[np.generic], share: float) -> Floats:
        present = self._log_density(releases, total)
        if share == 1:
            return present
        absent = self._log_density(releases, self.absent)
        return np.asarray(np.logaddexp(math.log(share) + present, math.log1p(-share) + absent))

    def _log_density(self, releases: Floats, total: NDArray[np.generic]) -> Floats:
        return self.law.log_density(releases - in_release_units(self.channel, total))


def choices(plan: Plan) -> int:
    """Return how many different games a plan allows: rounds may declare several channels."""
    return max((len(round.channels) for round in plan.rounds), default=0)


def affordable(plan: Plan, draws: int) -> int:
    """Return how many draws of each world take seconds rather than minutes, at most `draws`."""
    rounds = max(1, len(plan.rounds))
    taken = rounds * plan.sampling.probability(plan.n_tasks, rounds)
    if plan.sampling.hidden:
        taken = rounds
    if plan.mechanism.correlated:
        return releases.affordable(plan, _narrowest(plan.schedule.channel, plan.relation).size, draws)
    if not isinstance(plan.sampling, Everyone):
        draws = int(min(draws, max(1000, _COINS / (2 * rounds))))
    if plan.mechanism.coordinatewise:
        size = max(_narrowed(plan, c).size for r in plan.rounds for c in r.channels)
        size *= plan.trust.parts(plan.n_tasks) if plan.trust.at_home else 1  # a draw for each share
        return int(min(draws, max(1000, _NUMBERS / (2 * taken * size))))
    return int(min(draws, max(1000, _CALLS / (2 * taken))))


def play(
    plan: Plan, source: Randomness, draws: int, *, choice: int = 0, progress: Progress | None = None
) -> Scores:
    """Play many games in each world.

    Parameters
    ----------
    plan : Plan
        Calibrated; what it claims is not used but for the law of its noise.
    source : Randomness
        Of noise and coins.
    draws : int
        Games in each world.
    choice : int
        Which of the channels that a round declares is in use.
    progress : callable, optional
        Called with (parts done, parts in all).

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> from cloister.privacy.randomness import SeededRandomness
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=4), n_tasks=200).calibrate(epsilon=1.0)
    >>> scores = play(plan, SeededRandomness(0), 20_000)
    >>> mu = plan.mechanism.mu  # the scores are N(-mu^2/2, mu^2) and N(mu^2/2, mu^2)
    >>> bool(abs(scores.speaking.mean() - mu**2 / 2) < 0.01 and abs(scores.silent.std() / mu - 1) < 0.02)
    True
    """
    if not (plan.rounds and math.isfinite(plan.mechanism.budget)):
        raise PlanError("A plan to attack must have rounds, with noise. Got one without. Audit another.")
    if plan.mechanism.correlated:
        narrow_channel = _narrowest(plan.schedule.channel, plan.relation)
        worlds = list(releases.scores(plan, source, narrow_channel, draws, progress))
        return _seen(plan, worlds)
    rounds = list(_rounds(plan, source, choice))
    batch = min(_BATCH, max(1000, int(_HELD / len(rounds))))
    parts = -(-draws // batch)
    steps, done = 2 * parts * len(rounds), 0
    worlds = []
    for world in (0, 1):
        scores = []
        for part in range(parts):
            size = min(batch, draws - part * batch)
            score, number = np.zeros(size), world * parts + part
            runs = Runs.begin(plan, source.derived("game", number), size)
            for attacked, rows in zip(rounds, _coins(plan, source, number, size), strict=True):
                _play_round(runs, attacked, world, rows, score)
                done += 1
                if progress is not None:
                    progress(done, steps)
            scores.append(score)
        worlds.append(np.concatenate(scores))
    return _seen(plan, worlds)


def _seen(plan: Plan, worlds: list[Floats]) -> Scores:
    """Return the scores of both worlds, without the lowest bits where they are not claimed to be hidden."""
    if FLOATING_POINT in plan.mechanism.doubts:
        worlds = [np.round(scores, 9) for scores in worlds]
    return Scores(*worlds)


def _play_round(
    runs: Runs, attacked: _AttackedRound, world: int, rows: NDArray[np.bool_], score: Floats
) -> None:
    """Draw a round's releases and add its ratios to the scores; rows say in which games the target is in."""
    plan, total = runs.plan, attacked.totals[world]
    with np.errstate(invalid="ignore"):
        if plan.sampling.hidden:
            share = plan.sampling.probability(plan.n_tasks, len(plan.rounds))
            present, absent = runs.release(attacked.channel, (total, rows), (attacked.absent, ~rows))
            score[rows] += attacked.ratio(present, share)
            score[~rows] += attacked.ratio(absent, share)
        else:
            score[rows] += attacked.ratio(runs.release(attacked.channel, (total, rows))[0], 1.0)
    score[np.isnan(score)] = 0.0  # impossible in both worlds: no law that was claimed


def _rounds(plan: Plan, source: Randomness, choice: int) -> Iterator[_AttackedRound]:
    made: dict[tuple[Channel, float], _AttackedRound] = {}
    for t, round in enumerate(plan.rounds):
        channel = _narrowed(plan, round.channels[min(choice, len(round.channels) - 1)])
        noise = plan.unknown_noise(t, channel)
        if (channel, noise) not in made:
            uniforms = source.stream("others", len(made)).uniforms(_OTHERS * channel.dim)
            made[channel, noise] = _attacked(plan, uniforms, channel, noise)
        yield made[channel, noise]


def _attacked(plan: Plan, uniforms: Floats, channel: Channel, noise: float) -> _AttackedRound:
    one, other = worst_pair(channel, plan.relation)
    others = 2 * channel.clip * (uniforms.reshape(_OTHERS, -1) - 0.5)
    absent, speaking, silent = (
        channel.total(np.vstack([others, *[row[None]] * plan.unit.group]), plan.mechanism.exact)
        for row in (np.zeros_like(one), one, other)
    )
    law = plan.mechanism.law(channel, noise) or GaussianLaw(noise)
    return _AttackedRound(channel, noise, law, absent, (silent, speaking))


def _narrowed(plan: Plan, channel: Channel) -> Channel:
    """Return the channel on which the game is played."""
    dim = plan.mechanism.smallest_dim
    if dim is None:
        return channel
    return _narrowest(channel, plan.relation) if dim == 1 else narrow(channel, dim)


@lru_cache(maxsize=64)
def _narrowest(channel: Channel, relation: Relation) -> Channel:
    """Return a channel of one number if a pair can move it as far as one of two numbers."""
    line, plane = narrow(channel, 1), narrow(channel, 2)
    reach = [
        float(np.linalg.norm(np.subtract(*(part.total(row[None]) for row in worst_pair(part, relation)))))
        for part in (line, plane)
    ]
    return line if reach[0] >= reach[1] * (1 - 1e-9) else plane


def _coins(plan: Plan, source: Randomness, number: int, draws: int) -> Iterator[NDArray[np.bool_]]:
    """Yield, round by round, in which of so many games the target takes part."""
    rounds, sampling, stream = len(plan.rounds), plan.sampling, source.stream("coins", number)
    if isinstance(sampling, (Everyone, Poisson)):  # coins of different tasks are independent: the real ones
        yield from sampling.draw(stream.numbered, draws, rounds)
        return
    if isinstance(sampling, (OnePass, Epochs)):  # the real rounds of tasks at random
        target = (plan.n_tasks * source.stream("target", number).uniforms(draws)).astype(np.int64)
        yield from sampling.draw(stream.numbered, plan.n_tasks, rounds)[:, target]
        return
    chance = sampling.probability(plan.n_tasks, rounds)
    yield from (stream.uniforms(draws) < chance for _ in range(rounds))
