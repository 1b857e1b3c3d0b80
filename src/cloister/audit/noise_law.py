"""Is the noise what the mechanism says it is? A release less its sum, against the claimed law.

A game measures what noise hides and is blind to small changes of scale; this test sees a per cent of it. The
claimed law turns noise into numbers that are uniform and independent if it holds. Tested are their law
(Kolmogorov-Smirnov), the scale (chi-square of their normal scores), neighbouring numbers of a release, the
same number in two rounds, and the same number under two keys (correlation). Matrix noise released as `svec`
is GOE noise if all have one scale. Noise that is correlated over rounds is taken apart first, by the
covariance that is claimed for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
from scipy.special import chdtr, chdtrc, kolmogorov, ndtr, ndtri

from cloister.arrays import Floats
from cloister.audit import streams
from cloister.audit.releases import Curator, in_release_units
from cloister.channel import Channel
from cloister.plan import Plan
from cloister.privacy.laws import GaussianLaw, Law
from cloister.privacy.randomness import Randomness

__all__ = ["NoiseLaw", "check_noise", "examine"]


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
    curator = Curator(plan.mechanism, source)
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
    if not streams.fine(plan):
        return None
    law, found = GaussianLaw(1.0), streams.noise(plan, source, numbers)
    one, two = (found[:, ::2], found[:, 1::2]) if len(found) == 1 else (found[:-1:2], found[1::2])
    size = found.shape[2]
    p_values = examine(law, one.reshape(-1, size), two.reshape(-1, size))
    keys = (source.derived("key", n) for n in range(2))
    drawn = (_scores(law.uniforms(streams.noise(plan, key, _PAIRED)[0])) for key in keys)
    return NoiseLaw(p_values | {"keys": _correlation(*drawn)}, found.size)


def examine(law: Law, one: Floats, two: Floats) -> dict[str, float]:
    """Return p-values of noise of shape (releases, size) in one round and as much in another.

    Examples
    --------
    >>> from cloister.privacy.laws import GaussianLaw
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


def _noise(curator: Curator, channel: Channel, noise: float, numbers: int) -> tuple[Floats, Floats]:
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


def _keys(curator: Curator, channel: Channel, noise: float, law: Law) -> float:
    """Test that the noise of the same rounds under two keys has nothing in common."""
    keys = (curator.source.derived("key", n) for n in range(2))
    drawn = (_noise(Curator(curator.mechanism, key), channel, noise, _PAIRED)[0] for key in keys)
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
