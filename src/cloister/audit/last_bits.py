r"""Exact noise to the last bit: every release is a whole number of steps, and no number is impossible.

A mechanism that says it is exact releases integers times public steps. If what it adds is a float instead,
releases lie between the steps, and the attack on floating point works: some small results cannot be a
message plus noise (:func:`~cloister.audit.museum.floating_point.floating_point_hits`). On steps that are
powers of two an integer is never such a number, so one of them is enough. Neither test convicts by chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Floats
from cloister.audit import streams
from cloister.audit.museum.floating_point import floating_point_hits
from cloister.audit.releases import Curator
from cloister.channel import Channel
from cloister.plan import Plan
from cloister.privacy.randomness import Randomness

__all__ = ["LastBits", "check_last_bits"]


#: Beyond so many steps a double holds hardly anything but whole numbers, and says nothing.
_WHOLE = 2.0**50
_NUMBERS, _KINDS = 40_000, 6


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


def check_last_bits(plan: Plan, source: Randomness, numbers: int = _NUMBERS) -> LastBits | None:
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
        found = streams.between_steps(plan, source, numbers)
        return None if found is None else LastBits(*found, hits=0)
    curator = Curator(plan.mechanism, source)
    kinds = list(dict.fromkeys((c, plan.noise(t, c)) for t, r in enumerate(plan.rounds) for c in r.channels))
    count, between, hits = 0, 0, 0
    for channel, noise in kinds[:_KINDS]:
        total = curator.total(channel, np.zeros((1, channel.dim)))
        draws = max(1, numbers // (len(kinds[:_KINDS]) * channel.size))
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
