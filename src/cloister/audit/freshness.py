"""Is noise fresh? Another key must give other noise, as must another round and other numbers of a release.

Noise from a public seed has the right law, and an adversary that does not look it up is none the wiser. But
it does not depend on the run's secret key. So one release is made with several keys, some of them new from
the operating system, over several rounds, and numbers that come again are counted. In one release of many
numbers, those of a generator that begins anew come again at some distance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from cloister.arrays import Floats
from cloister.audit import streams
from cloister.audit.releases import Curator, fresh
from cloister.channel import Channel
from cloister.plan import Plan
from cloister.privacy.randomness import Randomness, SystemRandomness

__all__ = ["Freshness", "check_freshness"]


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
        return np.round(streams.noise(plan, source, _NUMBERS).reshape(streams.rounds_played(plan), -1), 6)
    total = channel.total(channel.clip * np.eye(channel.dim)[:1], mechanism.exact)
    rounds = max(2, -(-_NUMBERS // channel.size))
    return np.array([fresh(mechanism).perturb(total, channel, noise, source, t) for t in range(rounds)])


def _wide(plan: Plan, channel: Channel, source: Randomness) -> Floats:
    """Return the noise of one release of many numbers; nothing where it is not made number by number."""
    mechanism = plan.mechanism
    if mechanism.correlated or not mechanism.coordinatewise:
        return np.zeros(0)
    nothing = channel.total(np.zeros((1, channel.dim)), mechanism.exact)
    made = Curator(mechanism, source).releases(
        nothing, channel, plan.noise(0, channel), -(-_WIDE // channel.size)
    )
    return made.ravel()


def _lagged(releases: Floats, most: int) -> Iterator[tuple[Floats, Floats]]:
    """Yield releases beside those of 1, 2, ... rounds later, or numbers beside those that follow."""
    yield from ((releases[lag:], releases[:-lag]) for lag in range(1, most + 1))


def _differ(one: Floats, two: Floats) -> bool:
    return float(np.mean(one == two)) < _MOST
