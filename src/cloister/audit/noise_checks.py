"""Whether noise is what a mechanism says it is: its law, its freshness, its last bits.

*Law.* A release less its sum is held against the claimed law. A game measures what noise hides and is blind
to small changes of scale; this test sees a per cent of it. The claimed law turns noise into numbers that are
uniform and independent if it holds. Tested are their law (Kolmogorov-Smirnov), the scale (chi-square of their
normal scores), neighbouring numbers of a release, the same number in two rounds, and the same number under
two keys (correlation). Matrix noise released as `svec` is GOE noise if all have one scale. Noise that is
correlated over rounds is taken apart first, by the covariance that is claimed for it. Those tests make many
releases by one call. So single releases are made as well, each by a call of its own as in a run: no two
numbers of one, or of one and the next, may be correlated, nor may their sizes.

*Freshness.* Another key must give other noise, as must another round and other numbers of a release. Noise
from a public seed has the right law, and an adversary that does not look it up is none the wiser. But it does
not depend on the run's secret key. So one release is made with several keys, some of them new from the
operating system, over several rounds, and numbers that come again are counted. In one release of many
numbers, those of a generator that begins anew come again at some distance.

*Last bits.* A mechanism that says it is exact releases integers times public steps, and no number is
impossible. If what it adds is a float instead, releases lie between the steps, and the attack on floating
point works: some small results cannot be a message plus noise
(:func:`~cloister.audit.releases.floating_point_hits`). On steps that are powers of two an
integer is never such a number, so one of them is enough. Sums of nothing, odd and even ones, and those of
messages are released, as lowest bits may depend on the sum. Neither test convicts by chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, chdtr, chdtrc, kolmogorov, ndtr, ndtri

from cloister.audit import releases
from cloister.audit.keys import keys_are_secret
from cloister.audit.releases import ChannelInUse, Runs, channels_in_use, in_release_units, in_round, whole
from cloister.core.arrays import Floats
from cloister.core.channel import Channel
from cloister.plan.plan import Plan
from cloister.privacy.noise import GaussianLaw, Law
from cloister.privacy.randomness import Randomness, Stream, SystemRandomness

#: Calls of a mechanism that makes one release a call, and numbers of noise of a channel at least.
_CALLS, _FEWEST = 4000, 4000
#: Numbers of noise that are compared under two keys.
_PAIRED = 20_000
#: Single releases, those of a channel at least, and numbers of one step in each that are looked at; channels
#: that are, and rounds that are gone through for them.
_SINGLE, _FEWEST_SINGLE, _ALONG, _KINDS, _GONE = 1500, 300, 128, 12, 200_000
#: Lowest bits of whole noise: residues that are counted, and steps in a deviation beyond which none are held.
_RESIDUES, _HOLDS, _SAID = 8, 2.0**44, ("something", "nothing")


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
        return _least(list(self.p_values.values()))

    def beside(self, where: str, other: NoiseLaw | None) -> NoiseLaw:
        """Return the tests of both, those of the other under names that say where they come from."""
        if other is None:
            return self
        theirs = {f"{name}, {where}": p for name, p in other.p_values.items()}
        return NoiseLaw({**self.p_values, **theirs}, self.numbers + other.numbers)

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
    kinds = channels_in_use(plan)
    apart = set(_some(len(kinds), _KINDS))
    p_values: dict[str, float] = {}
    count = 0
    for number, kind in enumerate(kinds):
        law, own = plan.mechanism.law(kind.channel, kind.noise), source.derived("kind", number)
        if law is None and not plan.mechanism.exact:
            continue
        drawn = _noise(plan, own, kind, max(_FEWEST, numbers // len(kinds)))
        found = _lowest_bits(kind, drawn) if plan.mechanism.exact else {}
        if law is not None:
            found |= examine(law, *drawn) | {"keys": _keys(plan, own, kind, law, len(kinds))}
            if not plan.mechanism.coordinatewise:  # every release is a call of its own as it is
                found |= along(_scores(law.uniforms(drawn[0]))[:, : 2 * _ALONG])
            elif number in apart:
                found |= along(_single(plan, own, kind, law, max(_FEWEST_SINGLE, _SINGLE // len(kinds))))
        p_values |= {f"{name}, channel {number + 1}": p for name, p in found.items()}
        count += drawn[0].size + drawn[1].size
    for choice in range(max((len(round.channels) for round in plan.rounds), default=0)):
        found = _every_round(plan, source.derived("rounds", choice), choice)
        p_values |= {f"{name}, channel {choice + 1} of each": p for name, p in found.items()}
    return NoiseLaw(p_values, count) if p_values else None


def _every_round(plan: Plan, source: Randomness, choice: int) -> dict[str, float]:
    """Test the scale of noise in each round by itself: the least p-value counts as often as there are rounds.

    Of thousands of rounds some are looked at.
    """
    size = max(c.size for round in plan.rounds for c in round.channels)
    count, looked = -(-_NUMBERS // size), _some(len(plan.rounds), _ROUNDS)
    if not plan.mechanism.coordinatewise:
        count = max(_FEW, min(count, _CALLS // (2 * len(looked))))
    runs, found, seen = Runs.begin(plan, source, count), [], set(looked)
    for t, round in enumerate(plan.rounds):
        channel = round.channels[min(choice, len(round.channels) - 1)]
        law = plan.mechanism.law(channel, plan.unknown_noise(t, channel))
        if t in seen and law is not None:
            total = channel.total(channel.clip * np.eye(channel.dim)[:1], plan.mechanism.exact)
            (made,) = runs.release(channel, (total, np.full(count, True)))
            found.append(_scale(_scores(law.uniforms(made - in_release_units(channel, total)))))
        else:
            runs.listen(channel)
    return {"every round": _least(found)} if found else {}


def _least(p_values: Sequence[float]) -> float:
    """Return the p-value of several tests together (Bonferroni)."""
    return min(1.0, len(p_values) * min(p_values))


def _single(plan: Plan, source: Randomness, kind: ChannelInUse, law: Law, count: int) -> Floats:
    """Return scores of single releases of a crowd, each by a call of its own: two rounds of a run in a row.

    Where the round after the first has another channel, a row has one. Of many numbers some are looked at, of
    each step.
    """
    channel, first = kind.channel, kind.rounds[0]
    rounds = [first, *(t for t in kind.rounds[1:2] if t == first + 1)]
    total = plan.n_tasks * channel.total(channel.clip * np.eye(channel.dim)[:1], plan.mechanism.exact)
    made = []
    for number in range(min(count // len(rounds), max(30, _GONE // (1 + first)))):
        run, everyone = Runs.begin(plan, source.derived("single", number), 1), np.array([True])
        run.listen(channel, first)
        made.append([run.release(channel, (total, everyone))[0][0] for _ in rounds])
    noise = np.array(made) - in_release_units(channel, total)
    looked = np.concatenate([np.flatnonzero(channel.steps == s)[:_ALONG] for s in np.unique(channel.steps)])
    return _scores(np.hstack([law.uniforms(noise[:, t, looked]) for t in range(len(rounds))]))


def along(scores: Floats) -> dict[str, float]:
    """Return p-values of many vectors of scores: no two of their numbers are correlated, nor are their sizes.

    The correlation of two vectors of n independent normals has a law that is known exactly. The largest of
    all pairs counts, as often as there are pairs.

    Examples
    --------
    >>> scores = np.random.default_rng(0).standard_normal((200, 4))
    >>> {name: p > 1e-3 for name, p in along(scores).items()}
    {'numbers of a release': True, 'sizes of them': True}
    >>> along(np.hstack([scores, scores[:, :1] + scores[:, 1:2]]))["numbers of a release"] < 1e-9
    True
    """
    n, width = scores.shape
    if width < 2:
        return {}
    sizes = _scores(np.abs(2 * ndtr(scores) - 1))
    found = {}
    for name, values in (("numbers of a release", scores), ("sizes of them", sizes)):
        unit = values / np.maximum(np.linalg.norm(values, axis=0), 1e-300)
        largest = float(np.abs(np.triu(unit.T @ unit, 1)).max())
        each = float(betainc((n - 1) / 2, 0.5, max(0.0, 1 - largest**2)))
        found[name] = min(1.0, each * width * (width - 1) / 2)
    return found


def _check_streams(plan: Plan, source: Randomness, numbers: int) -> NoiseLaw | None:
    """Test correlated noise: taken apart by its claimed covariance, it is independent standard normal."""
    if not releases.fine(plan):
        return None
    law, found = GaussianLaw(1.0), releases.noise(plan, source, numbers)
    one, two = (found[:, ::2], found[:, 1::2]) if len(found) == 1 else (found[:-1:2], found[1::2])
    size = found.shape[2]
    p_values = examine(law, one.reshape(-1, size), two.reshape(-1, size))
    p_values["every round"] = _least([_scale(row) for row in found])
    keys = (source.derived("key", n) for n in range(2))
    drawn = (_scores(law.uniforms(releases.noise(plan, key, _PAIRED)[0])) for key in keys)
    single = releases.noise_of_single_runs(plan, source, _SINGLE)[:, : 2 * _ALONG]
    return NoiseLaw(p_values | {"keys": _correlation(*drawn)} | along(single), found.size)


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
    out = law_and_scale(np.concatenate(uniforms))
    if together.shape[1] > 1:
        out["neighbours"] = _correlation(together[:, :-1:2], together[:, 1::2])
    return out | {"rounds": _correlation(*scores)}


def law_and_scale(uniforms: Floats) -> dict[str, float]:
    """Return p-values of numbers that are uniform if a law holds: of their law, and of the scale alone."""
    return {"law": _uniformity(uniforms.ravel()), "scale": _scale(_scores(uniforms))}


def _noise(plan: Plan, source: Randomness, kind: ChannelInUse, numbers: int) -> tuple[Floats, Floats]:
    """Return noise of many runs: in the first round of a kind, of a crowd, and in the last, of nothing.

    A kind of one round takes other runs for its second.
    """
    channel, rounds = kind.channel, (kind.rounds[0], kind.rounds[-1])
    draws = max(1, numbers // (2 * channel.size))
    if not plan.mechanism.coordinatewise:
        draws = min(draws, _CALLS // 2)
    some = channel.clip * (2 * source.stream("messages").uniforms(3 * channel.dim).reshape(3, -1) - 1)
    said, nothing = (channel.total(m, plan.mechanism.exact) for m in (some, np.zeros_like(some)))
    said = said * max(1, plan.n_tasks // len(some))
    runs, everyone = Runs.begin(plan, source, draws), np.full(draws, True)
    runs.listen(channel, rounds[0])
    (first,) = runs.release(channel, (said, everyone))
    if rounds[0] == rounds[1]:
        second = in_round(plan, source.derived("again"), rounds[1], channel, nothing, draws)
    else:
        runs.listen(channel, rounds[1] - rounds[0] - 1)
        (second,) = runs.release(channel, (nothing, everyone))
    return first - in_release_units(channel, said), second - in_release_units(channel, nothing)


def _lowest_bits(kind: ChannelInUse, drawn: Sequence[Floats]) -> dict[str, float]:
    """Return p-values of exact noise in steps, modulo a few: every residue is as likely, whatever the sum."""
    steps = kind.channel.steps
    if kind.noise > _HOLDS * float(steps.min()):  # a double does not hold its lowest bits
        return {}
    residues = [np.rint(noise / steps).astype(np.int64).ravel() % _RESIDUES for noise in drawn]
    counts = [np.bincount(found, minlength=_RESIDUES) for found in residues]
    chi = [float(((c - c.mean()) ** 2).sum() / c.mean()) for c in counts]
    return {
        f"lowest bits of {name}": float(chdtrc(_RESIDUES - 1, x)) for name, x in zip(_SAID, chi, strict=True)
    }


def _keys(plan: Plan, source: Randomness, kind: ChannelInUse, law: Law, kinds: int) -> float:
    """Test that the noise of the same round under two keys has nothing in common."""
    drawn = (
        _noise(plan, source.derived("key", n), kind, max(_FEWEST, _PAIRED // kinds))[0] for n in range(2)
    )
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
#: Numbers of one release that are compared with those that follow; rounds that are compared with each other,
#: and numbers in each of them at least.
_WIDE, _ROUNDS, _ROW = 2**13, 256, 8


@dataclass(frozen=True)
class Freshness:
    """Whether noise is other noise under another key, in another round, and in other numbers of a release.

    `secret` says whether keys themselves could be made again by others.
    """

    keys: bool
    rounds: bool
    numbers: bool
    secret: bool = True

    @property
    def breach(self) -> bool:
        return not (self.keys and self.rounds and self.numbers and self.secret)


def check_freshness(plan: Plan, source: Randomness) -> Freshness:
    """Compare noise on the channel of the first round: of several keys, and of the rounds of one run.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> from cloister.privacy.randomness import SeededRandomness
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=2), n_tasks=100).calibrate(epsilon=1.0)
    >>> check_freshness(plan, SeededRandomness(0))
    Freshness(keys=True, rounds=True, numbers=True, secret=True)
    """
    new = (SystemRandomness().sampled_by(source.sampler) for _ in range(2))
    sources = (source, source.derived("other key"), *new)
    drawn = [_releases(plan, one) for one in sources]
    keys = all(_differ(one, two) for one, two in combinations(drawn, 2))
    rounds = all(_differ(*pair) for one in drawn for pair in _lagged(one))
    wide = _wide(plan, source)
    numbers = all(_differ(*pair) for pair in _lagged(wide, 3 * len(wide) // 4))
    return Freshness(keys, rounds, numbers, keys_are_secret())


def _releases(plan: Plan, source: Randomness) -> Floats:
    """Return what one sum becomes in rounds of some runs, of shape (rounds, numbers); or what makes it up."""
    channel, rounds = plan.rounds[0].channels[0], len(plan.rounds)
    if plan.mechanism.correlated:
        played = releases.rounds_played(plan)
        apart = releases.noise(plan, source, max(_NUMBERS, _ROW * played * channel.size))
        return np.round(apart.reshape(played, -1), 6)
    total = channel.total(channel.clip * np.eye(channel.dim)[:1], plan.mechanism.exact)
    count = -(-_NUMBERS // channel.size)
    runs, looked = Runs.begin(plan, source, count), set(_some(rounds, _ROUNDS))
    made = []
    for t in range(rounds):
        if t in looked:
            made += runs.release(channel, (total, np.full(count, True)))
        else:
            runs.listen(channel)
    return np.array(made).reshape(len(made), -1)


def _some(count: int, most: int) -> list[int]:
    """Return so many of the first numbers at most: those at both ends, and some between, evenly apart."""
    if count <= most:
        return list(range(count))
    ends = most // 3
    between = np.linspace(ends, count - ends, most - 2 * ends, endpoint=False).astype(int).tolist()
    return [*range(ends), *between, *range(count - ends, count)]


def _wide(plan: Plan, source: Randomness) -> Floats:
    """Return the noise of one release of many numbers; nothing where it is not made number by number."""
    if plan.mechanism.correlated or not plan.mechanism.coordinatewise:
        return np.zeros(0)
    channel = plan.rounds[0].channels[0]
    nothing = channel.total(np.zeros((1, channel.dim)), plan.mechanism.exact)
    return in_round(plan, source, 0, channel, nothing, -(-_WIDE // channel.size)).ravel()


def _lagged(made: Floats, most: int | None = None) -> Iterator[tuple[Floats, Floats]]:
    """Yield releases beside those of 1, 2, ... rounds later, or numbers beside those that follow."""
    yield from ((made[lag:], made[:-lag]) for lag in range(1, len(made) if most is None else most + 1))


def _differ(one: Floats, two: Floats) -> bool:
    """Say whether hardly a number is the same: in every row, where there are several."""
    return bool((np.mean(one == two, axis=-1) < _MOST).all())


_LATTICE_NUMBERS, _FEW = 40_000, 4


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
    >>> found.numbers > 30_000, found.breach
    (True, False)
    """
    if not plan.mechanism.exact:
        return None
    if plan.mechanism.correlated:
        found = releases.between_steps(plan, source, numbers)
        return None if found is None else LastBits(*found, hits=0)
    kinds = channels_in_use(plan)
    count, between, hits = 0, 0, 0
    for number, kind in enumerate(kinds):
        channel = kind.channel
        sums = _sums(channel, source.stream("sums", number))
        for turn, total in enumerate(sums):
            draws = max(_FEW, numbers // (len(kinds) * len(sums) * channel.size))
            key, t = source.derived(f"bits of {number}", turn), kind.rounds[turn % len(kind.rounds)]
            released = in_round(plan, key, t, channel, total, draws)
            count += released.size
            between += int(np.count_nonzero(~whole(released, channel.steps)))
            hits += _impossible(released, channel) if not total.any() else 0
    return LastBits(count, between, hits)


def _sums(channel: Channel, stream: Stream) -> list[NDArray[np.int64]]:
    """Return sums of every kind: of nothing, of one step in each number, and of what tasks may say."""
    nothing = np.zeros(channel.size, dtype=np.int64)
    said = channel.clip * (2 * stream.uniforms(3 * channel.dim).reshape(3, -1) - 1)
    one, several = channel.whole_sum(channel.rows(said[:1])), channel.whole_sum(channel.rows(said))
    odd = np.where(several % 2 == 0, several + 1, several)
    return [nothing, nothing + 1, nothing - 1, one, several, odd, 2 * several]


def _impossible(released: Floats, channel: Channel) -> int:
    """Count releases of nothing that cannot be a message plus a float, where no integer could be one."""
    mantissas, exponents = np.frexp(channel.steps)
    tested = released[:, (mantissas == 0.5) & (exponents > -40)]
    return sum(
        int(releases.floating_point_hits(tested, v).sum()) for v in (1.0, 1 / 3, 1 / np.sqrt(channel.dim))
    )
