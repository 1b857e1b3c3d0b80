r"""Releases for attacks, by the code of a real run: many of one sum, or whole transcripts of a plan.

Noise is drawn as a run draws it, by the state that the plan's mechanism begins, in the round that it is for
(`Runs`). Where numbers are drawn one by one, many runs are one, on a channel as wide as all of them. A bare
mechanism at a level of its own (`ReleaseSource`) is for the museum.

Noise that is correlated over rounds hides a task in all of them together, and one release by itself says
little. So the noise of the plan's mechanism is drawn round by round, for many runs side by side on one
wide channel. The claim is that the noise e of the releases is Gaussian with covariance
:math:`\Sigma = \sigma^2 NN'` (:mod:`cloister.privacy.strategies`). The likelihood ratio of two worlds is then
linear in :math:`\Sigma^{-1} e`, and :math:`\Sigma^{-1/2} e` is independent standard normal.

The target takes part in the rounds in which it is most exposed. Of a long run the first rounds are played.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cloister.audit.sensitivity import worst_pair
from cloister.core.arrays import A, Floats, namespace
from cloister.core.channel import Channel
from cloister.core.lifts import Lift, Relation
from cloister.plan.plan import Plan
from cloister.privacy.mechanisms import Mechanism, NoiseState, PerRound
from cloister.privacy.prefix import Correlated
from cloister.privacy.randomness import Randomness, Stream
from cloister.privacy.sampling import Epochs, OnePass


@dataclass(frozen=True)
class Runs:
    """Runs of a plan, side by side and round by round: noise is what the state of a run releases.

    Parameters
    ----------
    plan : Plan
        Its mechanism makes the states.
    states : list of NoiseState
        One for all runs where numbers are drawn one by one, else one each.
    count : int
        How many runs there are.
    """

    plan: Plan
    states: list[NoiseState] = field(repr=False)
    count: int

    @classmethod
    def begin(cls, plan: Plan, source: Randomness, count: int) -> Runs:
        """Return runs before their first round, each of a key that follows from the source."""
        keys = 1 if plan.mechanism.coordinatewise else count
        states = [
            plan.trust.unknown(plan.mechanism, plan.schedule, source.derived("run", n)) for n in range(keys)
        ]
        return cls(plan, states, count)

    def listen(self, channel: Channel, rounds: int = 1) -> None:
        """Let rounds go by in which nothing is asked for."""
        posted = np.zeros(channel.size)
        for state in self.states:
            for _ in range(rounds):
                state.listen(posted)

    def release(self, channel: Channel, *said: tuple[NDArray[Any], NDArray[np.bool_]]) -> list[Floats]:
        """Return the releases of the coming round: for each sum those of the runs in which it is the sum.

        No run has two sums; one that has none goes on to the next round.
        """
        if self.plan.mechanism.coordinatewise:
            return self._together(channel, said)
        out = []
        for total, runs in said:
            made = [self.states[at].release(total, channel) for at in np.flatnonzero(runs)]
            out.append(np.array(made).reshape(len(made), channel.size))
        for at in np.flatnonzero(~np.any([runs for _, runs in said], axis=0)):
            self.states[at].listen(np.zeros(channel.size))
        return out

    def _together(
        self, channel: Channel, said: Sequence[tuple[NDArray[Any], NDArray[np.bool_]]]
    ) -> list[Floats]:
        counts = [int(runs.sum()) for _, runs in said]
        if not sum(counts):
            self.listen(channel)
            return [np.zeros((0, channel.size)) for _ in said]
        wide = replace(channel, lift=repeated(channel.lift, sum(counts)))
        flat = np.concatenate([np.tile(total, n) for (total, _), n in zip(said, counts, strict=True)])
        made = self.states[0].release(flat, wide).reshape(-1, channel.size)
        return np.split(made, np.cumsum(counts)[:-1])


def in_round(
    plan: Plan, source: Randomness, round: int, channel: Channel, total: NDArray[Any], draws: int
) -> Floats:
    """Return the releases of one sum in one round of as many runs, of shape (draws, size)."""
    runs = Runs.begin(plan, source, draws)
    runs.listen(channel, round)
    return runs.release(channel, (total, np.full(draws, True)))[0]


@dataclass(frozen=True)
class ChannelInUse:
    """A channel and the deviation of its noise, with the rounds of a plan that may use it so."""

    channel: Channel
    noise: float
    rounds: tuple[int, ...]


def channels_in_use(plan: Plan) -> list[ChannelInUse]:
    """Return every channel of a plan at every level of noise, in the order of their first rounds."""
    found: dict[tuple[Channel, float], list[int]] = {}
    for t, round in enumerate(plan.rounds):
        for channel in round.channels:
            found.setdefault((channel, plan.unknown_noise(t, channel)), []).append(t)
    return [ChannelInUse(*kind, tuple(rounds)) for kind, rounds in found.items()]


@dataclass(frozen=True)
class ReleaseSource:
    """A bare mechanism with a source of noise, of which no stream is used twice."""

    mechanism: Mechanism
    source: Randomness
    turns: Iterator[int] = field(default_factory=count, repr=False)

    def uniforms(self, size: int) -> Floats:
        """Return fresh uniforms that are not noise, such as coins."""
        return self.stream().uniforms(size)

    def stream(self) -> Stream:
        """Return a fresh stream that is not noise."""
        return self.source.stream("coins", next(self.turns))

    def total(self, channel: Channel, messages: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of the messages as the mechanism takes it."""
        return channel.total(messages, self.mechanism.exact)

    def releases(self, total: NDArray[Any], channel: Channel, noise: float, draws: int) -> Floats:
        """Return independent releases of one sum, of shape (draws, size)."""
        if self.mechanism.coordinatewise and draws:
            wide = replace(channel, lift=repeated(channel.lift, draws))
            flat = self._perturb(np.tile(total, draws), wide, noise)
            return flat.reshape(draws, -1)
        rows = [self._perturb(total, channel, noise) for _ in range(draws)]
        return np.array(rows).reshape(draws, channel.size)

    def _perturb(self, total: NDArray[Any], channel: Channel, noise: float) -> Floats:
        return fresh(self.mechanism).perturb(total, channel, noise, self.source, next(self.turns))


def fresh(mechanism: Mechanism) -> PerRound:
    """Return a mechanism that is not `correlated` as what it then is: noise that is fresh in every round."""
    return cast("PerRound", mechanism)


def in_release_units(channel: Channel, total: NDArray[Any]) -> Floats:
    """Return a sum as it would be released without noise: integers times their steps, or as it is."""
    whole = np.issubdtype(total.dtype, np.integer)
    return np.asarray(channel.steps * total if whole else total, dtype=np.float64)


def released_total(mechanism: Mechanism, channel: Channel, messages: NDArray[Any]) -> Floats:
    """Return the sum of messages, by the mechanism's own code, as it would be released without noise."""
    return in_release_units(channel, channel.total(messages, mechanism.exact))


#: Beyond so many steps a double holds hardly anything but whole numbers, and says nothing.
_WHOLE = 2.0**50


def whole(released: Floats, steps: Floats) -> NDArray[np.bool_]:
    """Say which numbers are a whole number of steps, rounded once.

    Examples
    --------
    >>> whole(np.array([0.3 * 7, np.nextafter(0.3 * 7, 3.0)]), np.array([0.3, 0.3])).tolist()
    [True, False]
    """
    with np.errstate(invalid="ignore", over="ignore"):
        count = np.rint(released / steps)
        return np.asarray((released == steps * count) | (np.abs(count) >= _WHOLE))


def repeated(lift: Lift, times: int) -> Lift:
    """Return a lift many times over, so that one call of a mechanism makes many releases."""
    return _Repeated(lift, times)


@dataclass(frozen=True)
class _Repeated(Lift):
    """A lift, many times over: the channel of many releases side by side."""

    lift: Lift
    times: int

    def weights(self, dim: int) -> tuple[Floats, NDArray[np.int64]]:
        weights, degrees = self.lift.weights(dim)
        return np.tile(weights, self.times), np.tile(degrees, self.times)

    def sums(self, units: A) -> A:
        tiled: A = namespace(units).tile(self.lift.sums(units), (self.times,))
        return tiled

    def sensitivity(self, relation: Relation) -> float:
        return self.lift.sensitivity(relation)


#: Rounds that are played at most, other tasks, and steps of the grid below which noise is not Gaussian.
_ROUNDS, _OTHERS, _FINE = 256, 5, 4000
#: Rounds of runs that are made one by one.
_ALONE = 4
#: Numbers drawn, and multiplied, in a game at most; numbers held at once.
_NUMBERS, _PRODUCTS, _HELD = 4e7, 1e10, 1e7
#: Rounds in which measurements are to be whole numbers; how far floating point may be off in them. Decoding
#: and encoding four rounds rounds less than 32 times, each time by 2^-53 of the largest number at most.
_WHOLE_ROUNDS, _ROUNDING, _BETWEEN = 4, 32 * 2.0**-53, 0.1


def rounds_played(plan: Plan) -> int:
    """Return how many rounds of a plan are played: the first, of a long run."""
    return min(_ROUNDS, len(plan.rounds))


def fine(plan: Plan) -> bool:
    """Say whether integer noise is fine enough to look Gaussian."""
    mechanism = _mechanism(plan)
    return not mechanism.exact or mechanism.level(plan.schedule) >= _FINE * plan.schedule.channel.steps.max()


def affordable(plan: Plan, size: int, draws: int) -> int:
    """Return how many draws of each world take seconds rather than minutes, at most `draws`."""
    rounds = rounds_played(plan)
    return int(min(draws, max(1000, min(_NUMBERS, _PRODUCTS / rounds) / (2 * rounds * size))))


def scores(
    plan: Plan, source: Randomness, channel: Channel, draws: int, progress: Callable[[int, int], None] | None
) -> Iterator[Floats]:
    """Yield log likelihood ratios: of many runs in which the target is silent, then of those it speaks in."""
    others = channel.clip * (2 * source.stream("others").uniforms(_OTHERS * channel.dim) - 1)
    rows = others.reshape(_OTHERS, -1)
    exact, pair = _mechanism(plan).exact, worst_pair(channel, plan.relation)
    speaking, silent, absent = (channel.total(np.vstack([rows, row]), exact) for row in (*pair, 0 * rows[0]))
    present = _exposed(plan, source)
    root = covariance_root(plan)
    known = in_release_units(channel, absent)
    moved = [np.outer(present, in_release_units(channel, total) - known) for total in (silent, speaking)]
    shifts = [np.linalg.solve(root, one) for one in moved]
    batch = max(1, min(draws, int(_HELD / (len(present) * channel.size))))
    parts = -(-draws // batch)
    for world, total in enumerate((silent, speaking)):
        totals, found = np.where(present[:, None], total, absent), []
        for part in range(parts):
            key = _other(source, world * parts + part)
            seen = _transcripts(plan, key, channel, totals, min(batch, draws - part * batch))
            noise_apart = _apart(root, seen - known)
            ratio = np.einsum("tds,ts->d", noise_apart, shifts[1] - shifts[0])
            found.append(ratio - ((shifts[1] ** 2).sum() - (shifts[0] ** 2).sum()) / 2)
            if progress is not None:
                progress(world * parts + part + 1, 2 * parts)
        yield np.concatenate(found)


def noise(plan: Plan, source: Randomness, numbers: int) -> Floats:
    """Return noise taken apart, of shape (rounds, draws, size): standard normal if it is as claimed.

    In every second round something is said.
    """
    mechanism, channel, rounds = _mechanism(plan), plan.schedule.channel, rounds_played(plan)
    messages = channel.clip * np.eye(channel.dim)[: min(3, channel.dim)]
    totals = np.array([channel.total((t % 2) * messages, mechanism.exact) for t in range(rounds)])
    draws = max(2, numbers // (rounds * channel.size))
    seen = _transcripts(plan, source, channel, totals, draws)
    return _apart(
        covariance_root(plan), seen - np.array([in_release_units(channel, t) for t in totals])[:, None]
    )


def noise_of_single_runs(plan: Plan, source: Randomness, calls: int) -> Floats:
    """Return noise taken apart of runs on a channel as wide as their own, of shape (runs, numbers)."""
    mechanism, channel = _mechanism(plan), plan.schedule.channel
    rounds = min(_ALONE, rounds_played(plan))
    nothing = channel.total(np.zeros((1, channel.dim)), mechanism.exact)
    totals, root = np.tile(nothing, (rounds, 1)), covariance_root(plan)[:rounds, :rounds]
    runs = (_transcripts(plan, _other(source, n), channel, totals, 1)[:, 0] for n in range(calls // rounds))
    return np.array([_apart(root, seen).ravel() for seen in runs])


def between_steps(plan: Plan, source: Randomness, numbers: int) -> tuple[int, int] | None:
    """Return how many measurements were looked at, and how many are not whole numbers of their steps.

    Measurements are computed from releases. None where releases do not say them, or where floating point
    cannot hold them well enough to tell.
    """
    mechanism, channel = _mechanism(plan), plan.schedule.channel
    strategy = mechanism.strategy(plan.schedule).first(_WHOLE_ROUNDS)
    encoder = strategy.encoder()
    if len(encoder) != strategy.rounds:
        return None
    nothing = channel.total(np.zeros((1, channel.dim)), mechanism.exact)
    draws = max(1, numbers // (strategy.rounds * channel.size))
    seen = _transcripts(plan, source, channel, np.tile(nothing, (strategy.rounds, 1)), draws)
    released = seen / (channel.steps * 2.0 ** -mechanism.bits(plan.schedule))
    if float(np.abs(released).max()) * _ROUNDING > _BETWEEN:
        return None
    measured = np.einsum("mt,tds->mds", encoder, released)
    return measured.size, int(np.count_nonzero(np.abs(measured - np.rint(measured)) > 2 * _BETWEEN))


def _mechanism(plan: Plan) -> Correlated:
    """Return the mechanism of a plan whose noise is `correlated` as what it is."""
    return cast("Correlated", plan.mechanism)


def _exposed(plan: Plan, source: Randomness) -> NDArray[np.bool_]:
    """Say in which of the rounds that are played the target takes part: a task of the most exposed slot.

    In one pass or several it is one that is really drawn, with all rounds that it is drawn for.
    """
    passes, rounds, played = plan.schedule.passes, len(plan.rounds), rounds_played(plan)
    slot = int(_mechanism(plan).strategy(plan.schedule).sensitivities(passes).argmax())
    if isinstance(plan.sampling, (OnePass, Epochs)):
        drawn = plan.sampling.draw(source.stream("target").numbered, plan.n_tasks, rounds)
        for target in np.flatnonzero(drawn[slot])[:1]:
            return np.array([drawn[t, target] for t in range(played)])
    return np.asarray(np.arange(played) % (rounds // passes) == slot)


def covariance_root(plan: Plan) -> Floats:
    """Return a lower triangular root of the claimed covariance of the releases."""
    mechanism = _mechanism(plan)
    decoder = mechanism.strategy(plan.schedule).first(rounds_played(plan)).decoder()
    return np.asarray(mechanism.level(plan.schedule) * np.linalg.cholesky(decoder @ decoder.T))


def apart(plan: Plan, noise: Floats) -> Floats:
    """Return correlated noise of a run's first rounds taken apart: standard normal if it is as claimed."""
    return _apart(covariance_root(plan)[: len(noise), : len(noise)], noise)


def _apart(root: Floats, seen: Floats) -> Floats:
    return np.asarray(np.linalg.solve(root, seen.reshape(len(seen), -1))).reshape(seen.shape)


def _transcripts(
    plan: Plan, source: Randomness, channel: Channel, totals: NDArray[np.generic], draws: int
) -> Floats:
    """Return the releases of many runs with the same sums, of shape (rounds, draws, size)."""
    wide = replace(channel, lift=repeated(channel.lift, draws))
    state = plan.mechanism.begin(plan.schedule, source)
    return np.array([state.release(np.tile(t, draws), wide).reshape(draws, channel.size) for t in totals])


def _other(source: Randomness, number: int) -> Randomness:
    return source.derived("stream", number)


def floating_point_hits(values: Floats, v: float) -> NDArray[np.bool_]:
    """Say which released numbers cannot be v plus double-precision noise, rounded.

    Parameters
    ----------
    values : array
        Released numbers, in the units of v, less nothing: the others' sum is zero.
    v : float
        What the task is suspected of having said in each of these coordinates.

    Examples
    --------
    >>> floating_point_hits(np.array([0.25, 2.0**-60]), v=1 / 3)
    array([False,  True])
    """
    exponent = math.frexp(v)[1] - 1
    steps = np.ldexp(values, 53 - exponent)  # in units of 2^(e-1-52); exact
    return np.asarray((np.abs(values) < 2.0 ** (exponent - 2)) & (steps != np.rint(steps)))
