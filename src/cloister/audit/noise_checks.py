"""Whether noise is what a mechanism says it is: its law, its freshness, its last bits.

*Law.* A release less its sum is held against the claimed law. A game measures what noise hides and is blind
to small changes of scale; this test sees a per cent of it. The claimed law turns noise into numbers that are
uniform and independent if it holds. Tested are their law (Kolmogorov-Smirnov), the scale (chi-square of their
normal scores), neighbouring numbers of a release, the same number in two rounds, and the same number under
two keys (correlation). Matrix noise released as `svec` is GOE noise if all have one scale. Noise that is
correlated over rounds is taken apart first, by the covariance that is claimed for it.

*Freshness.* Another key must give other noise, as must another round and other numbers of a release. Noise
from a public seed has the right law, and an adversary that does not look it up is none the wiser. But it does
not depend on the run's secret key. So one release is made with several keys, some of them new from the
operating system, over several rounds, and numbers that come again are counted. In one release of many
numbers, those of a generator that begins anew come again at some distance.

*Last bits.* A mechanism that says it is exact releases integers times public steps, and no number is
impossible. If what it adds is a float instead, releases lie between the steps, and the attack on floating
point works: some small results cannot be a message plus noise
(:func:`~cloister.audit.museum.noise_exhibits.floating_point_hits`). On steps that are powers of two an
integer is never such a number, so one of them is enough. Neither test convicts by chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc, kolmogorov, ndtr, ndtri

from cloister.audit import releases
from cloister.audit.museum.noise_exhibits import floating_point_hits
from cloister.audit.releases import ReleaseSource, fresh, in_release_units
from cloister.core.arrays import Floats
from cloister.core.channel import Channel
from cloister.plan.plan import Plan
from cloister.privacy.noise import GaussianLaw, Law
from cloister.privacy.randomness import Randomness, SystemRandomness

#: Kinds of releases that are looked at, and calls of a mechanism that makes one release a call.
_KINDS, _CALLS = 8, 4000
#: Numbers of noise that are compared under two keys.
_PAIRED = 20_000


@dataclass(frozen=True)
class NoiseLaw:
    """How well noise agrees with its claimed law.

    Parameters
    ----------
    p_values : mapping of str to float
        Of each test; each is below a level with that probability if the law holds.
    numbers : int
        How many numbers of noise were looked at.
    """

    p_values: Mapping[str, float]
    numbers: int

    @property
    def p_value(self) -> float:
        """Of all tests together (Bonferroni)."""
        return min(1.0, len(self.p_values) * min(self.p_values.values()))

    @property
    def worst(self) -> str:
        return min(self.p_values, key=self.p_values.__getitem__)


def check_noise(plan: Plan, source: Randomness, numbers: int = 200_000) -> NoiseLaw | None:
    """Test the noise of a plan's releases, on its own channels; None if no law of it is known here.

    Examples
    --------
    >>> from cloister.algorithms import LowRank
    >>> from cloister.learners import LeastSquares
    >>> from cloister.privacy.randomness import SeededRandomness
    >>> plan = Plan(LowRank(LeastSquares(4), rounds=2), n_tasks=100).calibrate(epsilon=1.0)
    >>> found = check_noise(plan, SeededRandomness(0), numbers=20_000)
    >>> found.numbers, found.p_value > 1e-3
    (20000, True)
    """
    if plan.mechanism.correlated:
        return _check_streams(plan, source, numbers)
    curator = ReleaseSource(plan.mechanism, source)
    kinds = {(c, plan.noise(t, c)) for t, round in enumerate(plan.rounds) for c in round.channels}
    chosen = list(islice(sorted(kinds, key=lambda kind: (kind[0].size, kind[1])), _KINDS))
    p_values: dict[str, float] = {}
    count = 0
    for number, (channel, noise) in enumerate(chosen):
        law = plan.mechanism.law(channel, noise)
        if law is None:
            continue
        drawn = _noise(curator, channel, noise, numbers // len(chosen))
        found = examine(law, *drawn) | {"keys": _keys(curator, channel, noise, law)}
        p_values |= {f"{name}, channel {number + 1}": p for name, p in found.items()}
        count += drawn[0].size + drawn[1].size
    return NoiseLaw(p_values, count) if p_values else None


def _check_streams(plan: Plan, source: Randomness, numbers: int) -> NoiseLaw | None:
    """Test correlated noise: taken apart by its claimed covariance, it is independent standard normal."""
    if not releases.fine(plan):
        return None
    law, found = GaussianLaw(1.0), releases.noise(plan, source, numbers)
    one, two = (found[:, ::2], found[:, 1::2]) if len(found) == 1 else (found[:-1:2], found[1::2])
    size = found.shape[2]
    p_values = examine(law, one.reshape(-1, size), two.reshape(-1, size))
    keys = (source.derived("key", n) for n in range(2))
    drawn = (_scores(law.uniforms(releases.noise(plan, key, _PAIRED)[0])) for key in keys)
    return NoiseLaw(p_values | {"keys": _correlation(*drawn)}, found.size)


def examine(law: Law, one: Floats, two: Floats) -> dict[str, float]:
    """Return p-values of noise of shape (releases, size) in one round and as much in another.

    Examples
    --------
    >>> from cloister.privacy.noise import GaussianLaw
    >>> noise = np.random.default_rng(0).standard_normal((2, 5000, 2))
    >>> {name: p > 1e-3 for name, p in examine(GaussianLaw(1.0), *noise).items()}
    {'law': True, 'scale': True, 'neighbours': True, 'rounds': True}
    >>> examine(GaussianLaw(1.05), *noise)["scale"] < 1e-6
    True
    """
    uniforms = [law.uniforms(noise) for noise in (one, two)]
    scores = [_scores(u) for u in uniforms]
    together = np.concatenate(scores)
    out = {"law": _uniformity(np.concatenate(uniforms).ravel()), "scale": _scale(together)}
    if together.shape[1] > 1:
        out["neighbours"] = _correlation(together[:, :-1:2], together[:, 1::2])
    return out | {"rounds": _correlation(*scores)}


def _noise(curator: ReleaseSource, channel: Channel, noise: float, numbers: int) -> tuple[Floats, Floats]:
    """Return the noise of as many releases in one round, of something, and in another, of nothing."""
    draws = max(1, numbers // (2 * channel.size))
    if not curator.mechanism.coordinatewise:
        draws = min(draws, _CALLS // 2)
    some = channel.clip * np.eye(channel.dim)[: min(3, channel.dim)]
    totals = [curator.total(channel, messages) for messages in (some, np.zeros_like(some))]
    first, second = (
        curator.releases(total, channel, noise, draws) - in_release_units(channel, total) for total in totals
    )
    return first, second


def _keys(curator: ReleaseSource, channel: Channel, noise: float, law: Law) -> float:
    """Test that the noise of the same rounds under two keys has nothing in common."""
    keys = (curator.source.derived("key", n) for n in range(2))
    drawn = (_noise(ReleaseSource(curator.mechanism, key), channel, noise, _PAIRED)[0] for key in keys)
    return _correlation(*(_scores(law.uniforms(one)) for one in drawn))


def _scores(uniforms: Floats) -> Floats:
    return np.asarray(ndtri(np.clip(uniforms, 1e-300, 1 - 2.0**-53)))


def _uniformity(values: Floats) -> float:
    """Kolmogorov-Smirnov against the uniform law; the asymptotic p-value, with Stephens' correction."""
    ordered, n = np.sort(values), len(values)
    steps = np.arange(n + 1) / n
    distance = max(float((steps[1:] - ordered).max()), float((ordered - steps[:-1]).max()))
    return float(kolmogorov((math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance))


def _scale(scores: Floats) -> float:
    """Two-sided chi-square test of unit variance."""
    n, total = scores.size, float((scores**2).sum())
    return min(1.0, 2 * float(min(chdtr(n, total), chdtrc(n, total))))


def _correlation(one: Floats, two: Floats) -> float:
    """Two-sided normal test that products of independent scores have mean zero and variance one."""
    width = min(one.shape[1], two.shape[1])
    products = one[:, :width] * two[:, :width]
    return 2 * float(ndtr(-abs(products.sum()) / math.sqrt(products.size)))


#: Numbers that are compared, and the share of equal ones that is too many. The least integer noise has
#: deviation 5: two draws are equal with probability 0.06, a third of 256 with probability below 1e-30.
_NUMBERS, _MOST = 512, 0.3
#: Numbers of one release that are compared with those that follow.
_WIDE = 2**13


@dataclass(frozen=True)
class Freshness:
    """Whether noise is other noise under another key, in another round, and in other numbers of a release."""

    keys: bool
    rounds: bool
    numbers: bool

    @property
    def breach(self) -> bool:
        return not (self.keys and self.rounds and self.numbers)


def check_freshness(plan: Plan, source: Randomness) -> Freshness:
    """Compare the noise of a plan's first release under several keys and in several rounds.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> from cloister.privacy.randomness import SeededRandomness
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=2), n_tasks=100).calibrate(epsilon=1.0)
    >>> check_freshness(plan, SeededRandomness(0))
    Freshness(keys=True, rounds=True, numbers=True)
    """
    channel = plan.rounds[0].channels[0]
    new = (SystemRandomness().sampled_by(source.sampler) for _ in range(2))
    sources = (source, source.derived("other key"), *new)
    drawn = [_releases(plan, channel, one) for one in sources]
    keys = all(_differ(one, two) for one, two in combinations(drawn, 2))
    rounds = all(_differ(*pair) for one in drawn for pair in _lagged(one, len(one) // 2))
    wide = _wide(plan, channel, source)
    return Freshness(keys, rounds, all(_differ(*pair) for pair in _lagged(wide, 3 * len(wide) // 4)))


def _releases(plan: Plan, channel: Channel, source: Randomness) -> Floats:
    """Return releases of one sum in consecutive rounds, of shape (rounds, size); or what makes them up."""
    mechanism, noise = plan.mechanism, plan.noise(0, channel)
    if mechanism.correlated:
        return np.round(releases.noise(plan, source, _NUMBERS).reshape(releases.rounds_played(plan), -1), 6)
    total = channel.total(channel.clip * np.eye(channel.dim)[:1], mechanism.exact)
    rounds = max(2, -(-_NUMBERS // channel.size))
    return np.array([fresh(mechanism).perturb(total, channel, noise, source, t) for t in range(rounds)])


def _wide(plan: Plan, channel: Channel, source: Randomness) -> Floats:
    """Return the noise of one release of many numbers; nothing where it is not made number by number."""
    mechanism = plan.mechanism
    if mechanism.correlated or not mechanism.coordinatewise:
        return np.zeros(0)
    nothing = channel.total(np.zeros((1, channel.dim)), mechanism.exact)
    made = ReleaseSource(mechanism, source).releases(
        nothing, channel, plan.noise(0, channel), -(-_WIDE // channel.size)
    )
    return made.ravel()


def _lagged(releases: Floats, most: int) -> Iterator[tuple[Floats, Floats]]:
    """Yield releases beside those of 1, 2, ... rounds later, or numbers beside those that follow."""
    yield from ((releases[lag:], releases[:-lag]) for lag in range(1, most + 1))


def _differ(one: Floats, two: Floats) -> bool:
    return float(np.mean(one == two)) < _MOST


#: Beyond so many steps a double holds hardly anything but whole numbers, and says nothing.
_WHOLE = 2.0**50
_LATTICE_NUMBERS, _CHECKED_KINDS = 40_000, 6


@dataclass(frozen=True)
class LastBits:
    """What the lowest bits of releases gave away.

    Parameters
    ----------
    numbers : int
        Released numbers that were looked at.
    between : int
        Those that are no whole number of steps.
    hits : int
        Those that cannot be a message that was not sent plus double-precision noise.
    """

    numbers: int
    between: int
    hits: int

    @property
    def breach(self) -> bool:
        """Whether the noise is not made of integers."""
        return self.between + self.hits > 0


def check_last_bits(plan: Plan, source: Randomness, numbers: int = _LATTICE_NUMBERS) -> LastBits | None:
    """Look at the lowest bits of a plan's releases; None if its noise does not claim to be exact.

    Where noise is correlated over rounds it is what was measured that is whole; None if releases do not say
    what that was.

    Examples
    --------
    >>> from cloister.algorithms import LowRank
    >>> from cloister.learners import LeastSquares
    >>> from cloister.privacy.randomness import SeededRandomness
    >>> plan = Plan(LowRank(LeastSquares(4), rounds=2), n_tasks=100).calibrate(epsilon=1.0)
    >>> found = check_last_bits(plan, SeededRandomness(0))
    >>> found.numbers, found.breach
    (40000, False)
    """
    if not plan.mechanism.exact:
        return None
    if plan.mechanism.correlated:
        found = releases.between_steps(plan, source, numbers)
        return None if found is None else LastBits(*found, hits=0)
    curator = ReleaseSource(plan.mechanism, source)
    kinds = list(dict.fromkeys((c, plan.noise(t, c)) for t, r in enumerate(plan.rounds) for c in r.channels))
    count, between, hits = 0, 0, 0
    for channel, noise in kinds[:_CHECKED_KINDS]:
        total = curator.total(channel, np.zeros((1, channel.dim)))
        draws = max(1, numbers // (len(kinds[:_CHECKED_KINDS]) * channel.size))
        released = curator.releases(total, channel, noise, draws)
        count += released.size
        between += int(np.count_nonzero(~whole(released, channel.steps)))
        hits += _impossible(released, channel)
    return LastBits(count, between, hits)


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


def _impossible(released: Floats, channel: Channel) -> int:
    """Count releases of nothing that cannot be a message plus a float, where no integer could be one."""
    mantissas, exponents = np.frexp(channel.steps)
    tested = released[:, (mantissas == 0.5) & (exponents > -40)]
    return sum(int(floating_point_hits(tested, v).sum()) for v in (1.0, 1 / 3, 1 / np.sqrt(channel.dim)))
