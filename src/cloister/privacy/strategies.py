r"""Ways to spread noise over rounds: what is measured, how far one task can move it, and the noise on sums.

A strategy measures :math:`w = Cx + Z` instead of the rounds' sums :math:`x`: Z is fresh noise, and what is
released is decoded from w. If a task takes part in the rounds :math:`\pi` and moves each by at most
:math:`\Delta` in l2 norm, it moves w by at most :math:`\Delta \sqrt{1'(C'C)_{\pi\pi}1}` where C has no
negative entry (Cauchy-Schwarz, term by term), and by exactly that if it says the same in all of them.

*Toeplitz.* :math:`w_t = \sum_j c_j x_{t-j}`. With :math:`c_k = c_{k-1}(2k-1)/(2k)` both C and the noise of
prefix sums are square roots of the matrix of ones below the diagonal. Where c is non-negative and does not
increase, :math:`(C'C)_{ij}`, i <= j, is :math:`\sum_{m < n - j} c_m c_{m+j-i}`: it falls with j and with
j - i. So of all patterns with gaps of at least b, the earliest and densest, 0, b, 2b, ..., moves w furthest.

*Tree.* Each node of a binary tree over the rounds is measured once, when its last round is over. A prefix is
a sum of left children; only those are needed, unless each node is estimated from its children as well.

*Buffers.* A few decaying sums stand in place of a long memory. The square root's coefficients are moments,
:math:`c_j = \frac1\pi \int_0^1 \theta^{j-1} \sqrt{\theta/(1-\theta)} \,d\theta`. The trapezoidal rule in
:math:`s = \log(-\log\theta)`, where the integrand is smooth and decays at both ends, makes of them sums
:math:`c_j \approx \sum_i \omega_i \theta_i^{j-1}`, so that k decaying sums
:math:`S_i \leftarrow \theta_i S_i + x_t` are all the memory it takes. What is left of the integral near
:math:`\theta = 1` looks constant over the rounds of a run, and goes to the slowest buffer.

References
----------
Fichtenberger, Henzinger, Upadhyay, *Constant matters*, arXiv:2202.11205: the square root.
Kalinin, Lampert, *Banded square root matrix factorization*, arXiv:2405.13763: bands, several participations.
Honaker, *Efficient use of differentially private binary trees*, 2015: the estimate from below.
Dvijotham, McMahan, Pillutla, Steinke, Thakurta, *Efficient and near-optimal noise generation for streaming
differential privacy*, arXiv:2404.16706: such matrices; they choose the numbers by optimisation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats, Integers
from cloister.core.errors import PlanError

#: More than all rounding of a sum of a million non-negative terms.
ROUNDED_UP = 1 + 1e-9


class Strategy(Protocol):
    """What is measured over the rounds of a run, in units of the noise on one measurement."""

    def __hash__(self) -> int: ...

    @property
    def rounds(self) -> int:
        """How many rounds there are."""

    @property
    def deviations(self) -> Floats:
        """Standard deviation of the noise of each release."""

    @property
    def prefix_deviations(self) -> Floats:
        """Standard deviation of the noise of each running total of releases."""

    def sensitivities(self, passes: int) -> Floats:
        """Return how far a task moves the measurements, for each slot: `passes` rounds, equally far apart.

        Slot i takes part in round i and every ``rounds / passes`` rounds later; rounded up.
        """

    def first(self, rounds: int) -> Strategy:
        """Return what is measured up to a round: the same, whatever follows."""

    def encoder(self) -> Floats:
        """Return C, one row a measurement."""

    def decoder(self) -> Floats:
        """Return the matrix that turns the noise of measurements into that of releases."""


def square_root(count: int) -> Floats:
    """Return the first coefficients of (1 - x)^(-1/2).

    Examples
    --------
    >>> square_root(4).tolist()
    [1.0, 0.5, 0.375, 0.3125]
    """
    k = np.arange(1, count)
    return np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])


@dataclass(frozen=True, eq=False)
class LowerToeplitz:
    """Weighted sums of the latest rounds, the same weights in every round.

    Parameters
    ----------
    coefficients : array
        The first is 1; none is negative and none is larger than the one before.
    rounds : int
        As many or more.

    Examples
    --------
    >>> strategy = LowerToeplitz(square_root(1024), 1024)
    >>> round(float(strategy.sensitivities(passes=1)[0] * strategy.prefix_deviations.max()), 2)
    3.27
    """

    coefficients: Floats
    rounds: int

    def __post_init__(self) -> None:
        c = self.coefficients
        if not (c[0] == 1 and c[-1] >= 0 and (np.diff(c) <= 0).all() and len(c) <= self.rounds):
            raise PlanError(
                "Toeplitz coefficients must begin with 1 and never increase, one a round at most. "
                f"Got {len(c)} for {self.rounds} rounds, from {c[0]:g} to {c[-1]:g}."
            )

    @cached_property
    def inverse(self) -> Floats:
        later = self.coefficients[1:]
        out = np.zeros(self.rounds)
        out[0] = 1.0
        for t in range(1, self.rounds):
            past = out[max(0, t - len(later)) : t][::-1]
            out[t] = -(later[: len(past)] @ past)
        return out

    @cached_property
    def deviations(self) -> Floats:
        """Standard deviation of the noise of each release."""
        return np.sqrt(np.cumsum(self.inverse**2))

    @cached_property
    def prefix_deviations(self) -> Floats:
        """Standard deviation of the noise of each running total."""
        return np.sqrt(np.cumsum(np.cumsum(self.inverse) ** 2))

    def sensitivity(self, times: int, separation: int) -> float:
        """Return the largest change by a task that takes part so often at most, with such gaps at least.

        Examples
        --------
        >>> round(LowerToeplitz(square_root(4), 16).sensitivity(times=4, separation=4), 2)
        2.44
        >>> round(LowerToeplitz(square_root(16), 16).sensitivity(times=4, separation=4), 2)
        3.72
        """
        return float(self._moved(times, separation, slots=1)[0])

    def sensitivities(self, passes: int) -> Floats:
        """Return the change for each slot; the first is the largest."""
        return self._moved(passes, self.rounds // passes, self.rounds // passes)

    def _moved(self, times: int, gap: int, slots: int) -> Floats:
        """Return the norms of what a task moves that takes part every `gap` rounds, from each slot on."""
        first = np.zeros(self.rounds)
        for start in range(0, min(times * gap, self.rounds), gap):
            part = self.coefficients[: self.rounds - start]
            first[start : start + len(part)] += part
        squares = np.cumsum(first**2)  # a later slot is the first, cut off at the end
        return np.sqrt(squares[::-1][:slots]) * ROUNDED_UP

    def first(self, rounds: int) -> LowerToeplitz:
        return LowerToeplitz(self.coefficients[:rounds], min(rounds, self.rounds))

    def encoder(self) -> Floats:
        return _lower(np.pad(self.coefficients, (0, self.rounds - len(self.coefficients))))

    def decoder(self) -> Floats:
        return _lower(self.inverse)


@dataclass(frozen=True)
class BinaryTree:
    """Sums over the nodes of a binary tree: every node that is needed, once, when it is complete.

    Parameters
    ----------
    rounds : int
        Leaves.
    honaker : bool
        Measure right children too, and estimate a node from its own measurement and from those of its
        children, each weighted by its precision.

    Examples
    --------
    >>> naive, better = BinaryTree(256), BinaryTree(256, honaker=True)
    >>> [round(float(t.sensitivities(1).max() * t.prefix_deviations.max()), 2) for t in (naive, better)]
    [8.49, 6.57]
    """

    rounds: int
    honaker: bool = False

    @property
    def height(self) -> int:
        """How many levels have a complete node."""
        return self.rounds.bit_length()

    @property
    def variances(self) -> Floats:
        """Variance of the estimate of a node at each level; also the weight of its own measurement."""
        out = np.ones(self.height)
        for level in range(1, self.height if self.honaker else 0):
            out[level] = 2 * out[level - 1] / (1 + 2 * out[level - 1])
        return out

    @cached_property
    def deviations(self) -> Floats:
        """Standard deviation of the noise of each release: it depends on how many nodes end there."""
        variances, by_level = self.variances, np.ones(self.height)
        own, left = np.zeros(self.height), np.zeros(self.height)
        own[0] = 1.0
        for level in range(1, self.height):
            # A node's estimate less the left children that it replaces.
            weight = variances[level]
            own, left = (1 - weight) * own, (1 - weight) * left
            own[level], left[:level] = weight, left[:level] - weight
            by_level[level] = math.sqrt(own @ own + (left**2) @ variances)
        return np.asarray(by_level[self.levels])

    @property
    def levels(self) -> NDArray[np.int64]:
        """Level of the largest node that ends with each round."""
        t = np.arange(1, self.rounds + 1)
        return np.asarray(np.log2(t & -t).astype(np.int64))

    @cached_property
    def prefix_deviations(self) -> Floats:
        """Standard deviation of the noise of each running total: one node for each binary digit."""
        t = np.arange(1, self.rounds + 1)
        digits = t[:, None] >> np.arange(self.height) & 1
        return np.sqrt(digits @ self.variances)

    def sensitivities(self, passes: int) -> Floats:
        """Return the change for each slot: the root of the sum of squared visits to nodes."""
        gap = self.rounds // passes
        squares, slots = np.zeros(gap), np.arange(gap)
        for level in range(self.height):
            nodes = (slots[:, None] + gap * np.arange(passes)) >> level
            visits = np.ones(nodes.shape)  # number of the visit to its node
            for k in range(1, passes):
                visits[:, k] += visits[:, k - 1] * (nodes[:, k] == nodes[:, k - 1])
            squares += ((2 * visits - 1) * self._measured(nodes, level)).sum(axis=1)
        return np.sqrt(squares) * ROUNDED_UP

    def _measured(self, nodes: NDArray[np.int64], level: int) -> NDArray[np.bool_]:
        complete = (nodes + 1) << level <= self.rounds
        return complete if self.honaker else complete & (nodes % 2 == 0)

    def measured(self) -> list[tuple[int, int]]:
        """Return all measurements as (last round, level), in the order in which they are made."""
        lowest = (0 if self.honaker else level for level in self.levels)
        return [(t, at) for t, low in enumerate(lowest) for at in range(low, int(self.levels[t]) + 1)]

    def first(self, rounds: int) -> BinaryTree:
        return BinaryTree(min(rounds, self.rounds), self.honaker)

    def encoder(self) -> Floats:
        out = np.zeros((len(self.measured()), self.rounds))
        for row, (last, level) in zip(out, self.measured(), strict=True):
            row[last + 1 - 2**level : last + 1] = 1.0
        return out

    def decoder(self) -> Floats:
        """Return the weights of measurements in each release."""
        measured, variances = self.measured(), self.variances
        prefixes = np.zeros((self.rounds + 1, len(measured)))
        node = np.zeros(len(measured))
        for column, (last, level) in enumerate(measured):
            own = np.eye(len(measured))[column]
            if self.honaker and level:
                left = prefixes[last + 1 - 2 ** (level - 1)] - prefixes[last + 1 - 2**level]
                node = variances[level] * own + (1 - variances[level]) * (left + node)
            else:
                node = own
            if level == self.levels[last]:
                prefixes[last + 1] = prefixes[last + 1 - 2**level] + node
        return np.diff(prefixes, axis=0)


def _lower(column: Floats) -> Floats:
    lag = np.subtract.outer(np.arange(len(column)), np.arange(len(column)))
    return np.where(lag >= 0, column[np.abs(lag)], 0.0)


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
