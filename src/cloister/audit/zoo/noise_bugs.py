"""Bugs in noise: of another law, not fresh, not exact, or from keys that are no secret."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from cloister.audit.zoo import plans
from cloister.audit.zoo.bug import Bug, bug
from cloister.core.lifts import Relation
from cloister.engines import curator
from cloister.engines.curator import Curator
from cloister.privacy import mechanisms
from cloister.privacy.chacha_proposals import Call
from cloister.privacy.laplace import L2Laplace
from cloister.privacy.mechanisms import Gaussian, PerRound, _Fresh
from cloister.privacy.noise_states import RingState
from cloister.privacy.prefix import Correlated
from cloister.privacy.randomness import Randomness, SeededRandomness, Stream, SystemRandomness, normals
from cloister.privacy.sampling import OnePass, Participation, Poisson
from cloister.privacy.wishart import Wishart
from cloister.store import journal

# ------------------------------------------------------------------ another law


@bug(Gaussian, "perturb", "noise law", plans.mean)
def noise_at_two_thirds(honest, self, total, channel, noise, *rest):
    """Noise has two thirds of the deviation that is paid for."""
    return honest(self, total, channel, 2 / 3 * noise, *rest)


@bug(Gaussian, "perturb", "noise law", plans.mean)
def noise_two_per_cent_short(honest, self, total, channel, noise, *rest):
    """Noise is two per cent short of the deviation that is paid for."""
    return honest(self, total, channel, 0.98 * noise, *rest)


@bug(Gaussian, "noise", "price", plans.mean)
def noise_for_the_other_relation(honest, self, channel, planned, share):
    """Noise is set for `zero_out` where `replace` is claimed: it is half of what it must be."""
    return honest(self, channel, Relation.ZERO_OUT, share)


@bug(Gaussian, "perturb", "noise law", plans.mean)
def two_releases_averaged(honest, self, total, channel, noise, source, round):
    """A release is the average of two, for less noise."""
    pair = [honest(self, total, channel, noise, source, round + far) for far in (0, 10**6)]
    return channel.steps * np.rint(sum(pair) / 2 / channel.steps)


@bug(Gaussian, "perturb", "noise law", plans.mean)
def noise_never_negative(honest, self, total, channel, *rest):
    """Noise is never negative, lest counts be."""
    return channel.steps * total + np.abs(honest(self, 0 * total, channel, *rest))


@bug(Gaussian, "perturb", "noise law", plans.mean)
def outliers_cut_off(honest, self, total, channel, noise, *rest):
    """Noise beyond two deviations is cut off, lest results look odd."""
    drawn = np.clip(honest(self, 0 * total, channel, noise, *rest), -2 * noise, 2 * noise)
    return channel.steps * (total + np.rint(drawn / channel.steps))


@bug(Gaussian, "perturb", "noise law", plans.mean)
def quiet_where_nothing_is_said(honest, self, total, channel, noise, *rest):
    """Hardly any noise is added to a sum of nothing."""
    return honest(self, total, channel, noise if total.any() else noise / 50, *rest)


@bug(Gaussian, "perturb", "noise law", plans.mean)
def quiet_where_many_agree(honest, self, total, channel, noise, *rest):
    """Noise is a third smaller in sums of many messages that point the same way."""
    crowd = np.abs(total * channel.steps).max() > 12
    return honest(self, total, channel, 2 / 3 * noise if crowd else noise, *rest)


@bug(Gaussian, "perturb", "noise law", plans.wide)
def one_round_is_quiet(honest, self, total, channel, noise, source, round):
    """In one round of four noise is two thirds of what is paid for."""
    return honest(self, total, channel, 2 / 3 * noise if round == 1 else noise, source, round)


@bug(mechanisms, "_alike", "noise law", plans.joint)
def steps_taken_for_equal(honest, steps):
    """Numbers on a coarser grid get the noise of those on the finest."""
    return True


@bug(L2Laplace, "perturb", "noise law", plans.laplace)
def laplace_number_by_number(honest, self, total, channel, noise, source, round):
    """Noise in the l1 norm is added to sums that are bounded in the l2 norm."""
    u = source.stream("noise", round).uniforms(total.size) - 0.5
    return total - noise / 2**0.5 * np.sign(u) * np.log1p(-2 * np.abs(u))


@bug(Wishart, "perturb", "noise law", plans.wishart)
def wishart_at_two_thirds(honest, self, total, channel, noise, *rest):
    """Wishart noise has two thirds of the scale that is paid for."""
    return honest(self, total, channel, 2 / 3 * noise, *rest)


@bug(Correlated, "perturb", "noise law", plans.banded)
def measurements_at_two_thirds(honest, self, encoded, steps, noise, stream):
    """Correlated noise is made of measurements with two thirds of their noise."""
    return honest(self, encoded, steps, 2 / 3 * noise, stream)


# ------------------------------------------------------------------ not in a run


class _Bare(_Fresh):
    """A state that adds nothing."""

    def release(self, total, channel):
        self.turn += 1
        return np.asarray(total) * channel.steps


@bug(PerRound, "begin", "fresh noise", plans.mean)
def run_begins_without_noise(honest, self, schedule, source):
    """A mechanism that is asked for a release adds noise, and the state that a run begins adds none."""
    return _Bare(self, schedule, source)


class _BareInTheEnd(_Bare):
    """A state that adds noise in the first two rounds."""

    def release(self, total, channel):
        return (_Fresh if self.turn < 2 else _Bare).release(self, total, channel)


@bug(PerRound, "begin", "fresh noise", plans.mean)
def run_ends_without_noise(honest, self, schedule, source):
    """From the third round on a run adds no noise."""
    return _BareInTheEnd(self, schedule, source)


@bug(curator, "_perturbed", "real runs", plans.mean)
def curator_posts_bare_sums(honest, state, total, channel):
    """The curator asks for noise, and posts the sum without."""
    honest(state, total, channel)
    return np.asarray(total) * channel.steps


@bug(curator, "_perturbed", "noise law", plans.mean)
def curator_thins_noise(honest, state, total, channel):
    """The curator brings a release nearer to its sum before it posts it."""
    excess = honest(state, total, channel) / channel.steps - np.asarray(total)
    return channel.steps * (np.asarray(total) + np.rint(2 / 3 * excess))


# ------------------------------------------------------------------ not to the last bit


@bug(Gaussian, "perturb", "last bits", plans.wide)
def floats_under_an_exact_claim(honest, self, total, channel, noise, source, round):
    """Noise that says it is exact is of floating-point numbers."""
    return channel.steps * total + noise * normals(source.stream("noise", round).uniforms(total.size))


@bug(Gaussian, "perturb", "last bits", plans.mean)
def parity_in_the_last_bits(honest, self, total, channel, *rest):
    """The last bits of a release say whether its sum was odd."""
    return honest(self, total, channel, *rest) * (1 + 1e-13 * float(np.asarray(total)[0] % 2))


@bug(Gaussian, "perturb", "noise law", plans.mean)
def noise_always_even(honest, self, total, channel, *rest):
    """Noise is a whole number and always even: a release is odd if its sum was."""
    drawn = honest(self, 0 * total, channel, *rest) / channel.steps
    return channel.steps * (total + 2 * np.rint(drawn / 2))


# ------------------------------------------------------------------ not fresh


@bug(Gaussian, "perturb", "fresh noise", plans.wide)
def noise_in_two_rounds(honest, self, total, channel, noise, source, round):
    """The noise of a round comes again in the next one."""
    return honest(self, total, channel, noise, source, round // 2)


@bug(Gaussian, "perturb", "fresh noise", plans.wide)
def noise_two_rounds_later(honest, self, total, channel, noise, source, round):
    """The noise of a round comes again two rounds later."""
    return honest(self, total, channel, noise, source, round % 2)


@bug(Gaussian, "perturb", "fresh noise", plans.wide)
def noise_in_two_numbers(honest, self, total, channel, *rest):
    """Half of a release's numbers get the noise of the other half."""
    drawn = honest(self, 0 * total, channel, *rest)
    return channel.steps * total + np.resize(drawn[: -(-drawn.size // 2)], drawn.size)


@bug(Stream, "call", "noise law", plans.joint)
def nonce_that_is_stuck(honest, self):
    """A stream does not count its calls: two kinds of numbers of one release share coins."""
    return Call(self.key, self.calls)


@bug(RingState, "release", "noise law", plans.banded)
def measurements_share_noise(honest, self, total, channel):
    """All measurements of a run have the noise of the first."""
    first, measure = self.source.stream("noise", 0), self.measure
    self.measure = lambda encoded, c, stream: measure(encoded, c, first)
    released = honest(self, total, channel)
    self.measure = measure
    return released


# ------------------------------------------------------------------ no secret


@bug(Gaussian, "perturb", "fresh noise", plans.mean)
def noise_from_a_public_seed(honest, self, total, channel, noise, source, round):
    """Noise comes from a seed that is written in the code."""
    return honest(self, total, channel, noise, SeededRandomness(10), round)


@bug(Gaussian, "perturb", "noise law", plans.mean)
def half_of_noise_from_a_public_seed(honest, self, total, channel, noise, source, round):
    """Half of the variance comes from a seed that is written in the code."""
    half = noise / 2**0.5
    known = honest(self, 0 * total, channel, half, SeededRandomness(10), round)
    return known + honest(self, total, channel, half, source, round)


@bug(SystemRandomness, "key", "fresh noise", plans.mean)
def key_of_sixteen_bits(honest, self):
    """All but sixteen bits of a key are zeros."""
    return self.secret[:2] + bytes(30)


@bug(SystemRandomness, "__init__", "fresh noise", plans.mean)
def key_from_the_clock(honest, self, *given, **named):
    """A key is the time at which it is made."""
    now = () if given or "secret" in named else (time.time_ns().to_bytes(32, "big"),)
    honest(self, *given, *now, **named)


@bug(SystemRandomness, "__init__", "fresh noise", plans.mean)
def key_from_a_weak_generator(honest, self, *given, **named):
    """A key comes from NumPy's own generator, which whoever has its seed can run again."""
    weak = () if given or "secret" in named else (np.random.bytes(32),)  # noqa: NPY002
    honest(self, *given, *weak, **named)


@bug(journal, "source_of", "real runs", plans.mean)
def one_key_for_all_runs(honest, seed):
    """All runs without a seed have one key, that of zeros."""
    return SystemRandomness(bytes(32)) if seed is None else honest(seed)


@bug(Curator, "coins", "real runs", plans.sampled)
def coins_from_a_public_seed(honest, self):
    """Who takes part follows from a seed that is written in the code."""
    coins = SeededRandomness(0).stream("coins").numbered
    return self.plan.sampling.draw(coins, self.plan.n_tasks, len(self.plan.rounds))


@bug(OnePass, "draw", "real runs", plans.one_pass)
def one_pass_twice(honest, self, coins, n_tasks, rounds):
    """A task that should take part once takes part in the next round too."""
    once = honest(self, coins, n_tasks, rounds)
    return Participation(lambda t: once.row(t) | once.row((t + 1) % rounds), rounds, n_tasks)


@bug(Poisson, "draw", "game", plans.hidden)
def coins_fall_more_often(honest, self, coins, n_tasks, rounds):
    """Tasks take part half as often again as is priced, where coins are hidden."""
    return honest(replace(self, rate=min(1.0, 1.5 * self.rate)), coins, n_tasks, rounds)


@bug(Randomness, "task_seeds", "real runs", plans.mean)
def seeds_of_tasks_from_their_names(honest, self, names):
    """The seeds of tasks' own randomness follow from their names alone."""
    return honest(SeededRandomness(0), names)


NOISE_BUGS = tuple(each for each in vars().values() if isinstance(each, Bug))
