r"""A few decaying sums in place of a long memory: buffered linear Toeplitz matrices.

The square root's coefficients are moments, :math:`c_j = \frac1\pi \int_0^1 \theta^{j-1}
\sqrt{\theta/(1-\theta)} \,d\theta`. The trapezoidal rule in :math:`s = \log(-\log\theta)`, where the
integrand is smooth and decays at both ends, makes of them sums :math:`c_j \approx \sum_i \omega_i
\theta_i^{j-1}`, so that k decaying sums :math:`S_i \leftarrow \theta_i S_i + x_t` are all the memory it
takes. What is left of the integral near :math:`\theta = 1` looks constant over the rounds of a run, and goes
to the slowest buffer.

References
----------
Dvijotham, McMahan, Pillutla, Steinke, Thakurta, *Efficient and near-optimal noise generation for streaming
differential privacy*, arXiv:2404.16706: such matrices; they choose the numbers by optimisation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from cloister.arrays import Floats, Integers
from cloister.privacy.strategies import LowerToeplitz

__all__ = ["SCALE_BITS", "Buffered", "Buffers", "buffers_for"]


#: Decays and weights are whole numbers of 2^-30.
SCALE_BITS = 30
#: Nodes of the rule this far apart cost less than a thousandth of the error.
_SPACING = 2.0


@dataclass(frozen=True, eq=False)
class Buffers:
    """Decays and weights, as whole numbers of 2^-30."""

    decays: Integers
    weights: Integers

    @property
    def theta(self) -> Floats:
        return np.asarray(self.decays * 2.0**-SCALE_BITS, dtype=np.float64)

    @property
    def omega(self) -> Floats:
        return np.asarray(self.weights * 2.0**-SCALE_BITS, dtype=np.float64)

    def coefficients(self, count: int) -> Floats:
        """Return the first coefficients: 1, then sums of decaying powers."""
        out, power = np.ones(count), self.omega
        for j in range(1, count):
            out[j] = power.sum()
            power = power * self.theta
        return out

    def drift(self, rounds: int) -> float:
        """Bound how far rounding moves a weighted sum off, in units of the last place.

        Two neighbouring runs round each buffer by half a unit a round, that is apart by one at most; what a
        buffer has gathered counts by its weight, and is rounded once more.
        """
        gathered = np.minimum(rounds, 1 / (1 - self.theta))
        return float((self.omega * gathered + 1).sum()) * (1 + 1e-9)


class Buffered(LowerToeplitz):
    """The strategy of some buffers; its inverse takes as many steps as there are rounds."""

    def __init__(self, buffers: Buffers, rounds: int) -> None:
        super().__init__(buffers.coefficients(rounds), rounds)
        object.__setattr__(self, "buffers", buffers)

    buffers: Buffers

    @cached_property
    def inverse(self) -> Floats:
        theta, omega = self.buffers.theta, self.buffers.omega
        out, state = np.zeros(self.rounds), np.zeros(len(theta))
        for t in range(self.rounds):
            out[t] = (t == 0) - omega @ state
            state = theta * state + out[t]
        return out


@lru_cache(maxsize=32)
def buffers_for(rounds: int, count: int | None = None) -> Buffers:
    """Return buffers that stand for the square root over so many rounds.

    Examples
    --------
    >>> strategy = Buffered(buffers_for(1024), 1024)  # the square root's is 3.273
    >>> round(float(strategy.sensitivities(1)[0] * strategy.prefix_deviations.max()), 3)
    3.273
    >>> len(strategy.buffers.decays)
    5
    """
    reach = 3 + math.log(rounds)  # from the fastest buffer to one that hardly decays in all rounds
    number = math.ceil(reach / _SPACING) if count is None else count
    spacing = reach / number
    s = 1.6 - spacing * np.arange(1, number + 1)
    u = np.exp(s)
    omega = spacing / math.pi * u * np.exp(-1.5 * u) / np.sqrt(-np.expm1(-u))
    omega[-1] += 2 / math.pi * math.exp((s[-1] - spacing / 2) / 2)
    decays, weights = (np.rint(x * 2.0**SCALE_BITS).astype(np.int64) for x in (np.exp(-u), omega))
    return Buffers(np.minimum(decays, 2**SCALE_BITS - 1), weights)
