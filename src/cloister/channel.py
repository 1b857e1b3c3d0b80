r"""Channels: the public promise about a message, and its exact sensitivity.

A task's message is clipped to a ball first and lifted afterwards; the lifted set is smaller than a ball
of its own, which is why the order matters and why the numbers below are not ``2 * clip``.
All lifts work in units of the clip: ``u`` with :math:`|u| \le 1`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import A, Floats, Integers, namespace
from cloister.errors import InputError, PlanError

__all__ = [
    "Absolute",
    "Channel",
    "Diagonal",
    "Grouped",
    "Lift",
    "MeanAndOuter",
    "MeanAndSquares",
    "Outer",
    "Plain",
    "Relation",
    "Round",
    "SumOfOuters",
    "SumOfSquares",
]


#: Fixed point: steps in one clip. Products of two numbers, added over EXACT_ROWS rows, stay below 2^53.
GRID, EXACT_ROWS = 2**18, 2**17


class Relation(StrEnum):
    """Who counts as a neighbour: one task's data replaced by any other, or its messages by zeros."""

    REPLACE = "replace"
    ZERO_OUT = "zero_out"

    @property
    def other(self) -> Relation:
        return Relation.ZERO_OUT if self is Relation.REPLACE else Relation.REPLACE


class Lift(Protocol):
    """What is summed, as a function of the unit-ball vector u."""

    def weights(self, dim: int) -> tuple[Floats, Integers]:
        """Return each lifted number's weight, and its degree in u."""

    def sums(self, units: A) -> A:
        """Return the sums over rows of the lifted numbers, weights left out: whole for whole u.

        In 64-bit floating point, by what arrays of NumPy and tensors of torch both can do.
        """

    def sensitivity(self, relation: Relation) -> float:
        """Return the largest l2 change of the sum when one task changes."""


@dataclass(frozen=True)
class Plain:
    r"""The message as it is: :math:`u`. Sensitivity 1 (zero-out), 2 (replace; :math:`u' = -u`)."""

    def weights(self, dim: int) -> tuple[Floats, Integers]:
        return np.ones(dim), np.full(dim, 1)

    def sums(self, units: A) -> A:
        return namespace(units).sum(units, axis=0)

    def sensitivity(self, relation: Relation) -> float:
        return 2.0 if relation == Relation.REPLACE else 1.0


@dataclass(frozen=True)
class Absolute:
    r"""Entrywise :math:`|u|`: a non-negative message. Sensitivity 1, :math:`\sqrt2` (:math:`e_1, e_2`).

    For non-negative x, y in the unit ball :math:`|x-y|^2 = |x|^2 + |y|^2 - 2 x'y \le 2`.
    """

    def weights(self, dim: int) -> tuple[Floats, Integers]:
        return np.ones(dim), np.full(dim, 1)

    def sums(self, units: A) -> A:
        return namespace(units).sum(abs(units), axis=0)

    def sensitivity(self, relation: Relation) -> float:
        return math.sqrt(2) if relation == Relation.REPLACE else 1.0


@dataclass(frozen=True)
class Outer:
    r"""The outer product :math:`uu'`, as `svec`. Sensitivity 1, :math:`\sqrt2` (orthogonal u, u').

    Isotropic noise on `svec` coordinates is GOE noise on the matrix: variance :math:`s^2` on the
    diagonal and :math:`s^2/2` off it.
    """

    def weights(self, dim: int) -> tuple[Floats, Integers]:
        scale = _triangle(dim)[2]
        return scale, np.full(scale.size, 2)

    def sums(self, units: A) -> A:
        i, j, _ = _triangle(units.shape[1])
        return (units.T @ units)[i, j]

    def sensitivity(self, relation: Relation) -> float:
        return math.sqrt(2) if relation == Relation.REPLACE else 1.0


@dataclass(frozen=True)
class Diagonal:
    r"""The squares :math:`u_j^2`, the diagonal of uu'. Sensitivity 1, :math:`\sqrt2` (:math:`e_1, e_2`).

    Squares are non-negative with l2 norm at most :math:`|u|^2 \le 1`: the bound of `Absolute` applies.
    """

    def weights(self, dim: int) -> tuple[Floats, Integers]:
        return np.ones(dim), np.full(dim, 2)

    def sums(self, units: A) -> A:
        return namespace(units).sum(units * units, axis=0)

    def sensitivity(self, relation: Relation) -> float:
        return math.sqrt(2) if relation == Relation.REPLACE else 1.0


@dataclass(frozen=True)
class MeanAndOuter:
    r"""Mean and second moment in one message, :math:`[\sqrt a\,u, \sqrt{1-a}\,\mathrm{svec}(uu')]`.

    Sensitivity 1 under zero-out (attained at :math:`|u|=1`). Under replace its square is
    :math:`D_2(a) = 2 + a^2 / (2(1-a))` for :math:`a \le 2/3` and :math:`4a` above, attained by two unit
    vectors at cosine :math:`c = \max(-1, -a/(2(1-a)))`: one joint clip is cheaper than any split of
    the budget between two releases.
    """

    a: float

    def __post_init__(self) -> None:
        if not 0 < self.a < 1:
            raise PlanError(
                f"The share a of the mean must be in (0, 1). Got {self.a}. Use Plain() or Outer()."
            )

    def weights(self, dim: int) -> tuple[Floats, Integers]:
        (ones, first), (scale, second) = Plain().weights(dim), Outer().weights(dim)
        weights = [math.sqrt(self.a) * ones, math.sqrt(1 - self.a) * scale]
        return np.concatenate(weights), np.concatenate([first, second])

    def sums(self, units: A) -> A:
        both = [Plain().sums(units), Outer().sums(units)]
        return namespace(units).concatenate(both)

    def sensitivity(self, relation: Relation) -> float:
        if relation == Relation.ZERO_OUT:
            return 1.0
        return math.sqrt(2 + self.a**2 / (2 * (1 - self.a)) if self.a <= 2 / 3 else 4 * self.a)


@dataclass(frozen=True)
class SumOfOuters:
    r"""Of several vectors, :math:`u = (u_1, \ldots, u_q)`, the sum :math:`\sum_c u_c u_c'`, as `svec`.

    Several classes have a weight vector each; a subspace of features is common to all. Sensitivity 1,
    :math:`\sqrt2` (:math:`u_1 = e_1, e_2` and no other): the sum is positive semi-definite with trace
    :math:`|u|^2 \le 1`, hence of Frobenius norm 1 at most, and two such matrices have an inner product of 0
    at least. With one vector it is `Outer`.
    """

    vectors: int

    def __post_init__(self) -> None:
        _check_vectors(self.vectors)

    def weights(self, dim: int) -> tuple[Floats, Integers]:
        return Outer().weights(_width(dim, self.vectors))

    def sums(self, units: A) -> A:
        return Outer().sums(_one_by_one(units, self.vectors))

    def sensitivity(self, relation: Relation) -> float:
        return Outer().sensitivity(relation)


@dataclass(frozen=True)
class SumOfSquares:
    r"""Of several vectors, each feature's :math:`\sum_c u_{cj}^2`: the diagonal of `SumOfOuters`.

    Sensitivity 1, :math:`\sqrt2` (:math:`u_1 = e_1, e_2` and no other): numbers that are not negative and add
    up to :math:`|u|^2 \le 1`, so that the bound of `Absolute` applies. With one vector it is `Diagonal`.
    """

    vectors: int

    def __post_init__(self) -> None:
        _check_vectors(self.vectors)

    def weights(self, dim: int) -> tuple[Floats, Integers]:
        return Diagonal().weights(_width(dim, self.vectors))

    def sums(self, units: A) -> A:
        return Diagonal().sums(_one_by_one(units, self.vectors))

    def sensitivity(self, relation: Relation) -> float:
        return Diagonal().sensitivity(relation)


@dataclass(frozen=True)
class MeanAndSquares:
    r"""Mean and every feature's square in one message, :math:`[\sqrt a\,u, \sqrt{1-a}\,(\sum_c u_{cj}^2)_j]`.

    Sensitivities are those of `MeanAndOuter`, 1 and :math:`D(a)^{1/2}`. Let :math:`x_j` be the length of
    feature j's numbers :math:`(u_{cj})_c`, and :math:`y_j` that of another message v. Then
    :math:`u'v \ge -x'y`, so that the squared change is at most

    .. math:: a\,|x + y|^2 + (1-a) \sum_j (x_j^2 - y_j^2)^2 \le a\,|x + y|^2 + (1-a)\,\|xx' - yy'\|_F^2,

    which is the squared change of `MeanAndOuter` between x and -y, both in the unit ball. It is attained by
    :math:`u_1 = (\cos t, \sin t)`, :math:`v_1 = -(\sin t, \cos t)`, :math:`\sin 2t = \min(1, a/(2(1-a)))`.

    For :math:`a \ge 2/3` the replace sensitivity is :math:`2\sqrt a`: the mean is as precise as it would be
    on its own, and the squares are free. Under zero-out the mean pays for them.
    """

    a: float
    vectors: int

    def __post_init__(self) -> None:
        MeanAndOuter(self.a)
        _check_vectors(self.vectors)

    def weights(self, dim: int) -> tuple[Floats, Integers]:
        (ones, first), (scale, second) = Plain().weights(dim), SumOfSquares(self.vectors).weights(dim)
        weights = [math.sqrt(self.a) * ones, math.sqrt(1 - self.a) * scale]
        return np.concatenate(weights), np.concatenate([first, second])

    def sums(self, units: A) -> A:
        both = [Plain().sums(units), SumOfSquares(self.vectors).sums(units)]
        return namespace(units).concatenate(both)

    def sensitivity(self, relation: Relation) -> float:
        return MeanAndOuter(self.a).sensitivity(relation)


def _check_vectors(vectors: int) -> None:
    if vectors < 1:
        raise PlanError(f"A message must have at least one vector. Got vectors={vectors}.")


def _width(dim: int, vectors: int) -> int:
    return -(-dim // vectors)


def _one_by_one(units: A, vectors: int) -> A:
    """Return the vectors of all messages, one a row; what the last of a message lacks is zero."""
    missing: int = -units.shape[1] % vectors
    whole = namespace(units).concatenate([units, *[0 * units[:, :1]] * missing], axis=1) if missing else units
    return whole.reshape(len(units) * vectors, _width(units.shape[1], vectors))


@dataclass(frozen=True)
class Grouped:
    r"""A lift whose mean is said twice: to all tasks in a common slot, and to the task's group in its own.

    Of the numbers :math:`l(u)` that are linear in the message (the mean of `MeanAndOuter`, all of `Plain`) a
    task in group g says :math:`[\sqrt b\, l(u),\ 0, \ldots, \sqrt{1-b}\, l(u), \ldots, 0]`, one slot a
    group; all others it says once, as before. The curator puts it there, by the label on the roster.

    Parameters
    ----------
    lift : Lift
        What is said without groups.
    groups : int
        How many there are.
    share : float
        The share b of the common slot.

    Privacy
    -------
    Sensitivity is that of the lift inside, under either relation. A task's label is public and the same in
    both worlds, so that both messages u and v of it lie in the same slots, and

    .. math::
        b\,|l(u) - l(v)|^2 + (1-b)\,|l(u) - l(v)|^2 = |l(u) - l(v)|^2 .

    Whatever pair is the worst for the lift inside is so here, hence the bound is attained. That a task moves
    to another *group* is not covered: it would empty one slot and fill another.

    Notes
    -----
    The common slot is not the sum of the groups' slots, which would hold the noise of all of them: whoever
    combines the two knows the common mean at :math:`b + (1-b)/G` of the precision it has without groups.
    """

    lift: Lift
    groups: int
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.groups < 1 or not 0 < self.share < 1:
            raise PlanError(
                "There must be 1 group or more, and a share in (0, 1) for the common slot. Got "
                f"{self.groups} and {self.share}. Use the lift itself where nothing is said to groups."
            )
        if not self._linear(1).any():
            raise PlanError(
                f"{self.lift} says no mean that groups could have. Use Plain() or MeanAndOuter()."
            )

    def _linear(self, dim: int) -> NDArray[np.bool_]:
        return np.asarray(self.lift.weights(dim)[1] == 1)

    def weights(self, dim: int) -> tuple[Floats, Integers]:
        weights, degrees = self.lift.weights(dim)
        linear = self._linear(dim)
        common = np.where(linear, math.sqrt(self.share), 1.0) * weights
        slots = np.tile(math.sqrt(1 - self.share) * weights[linear], self.groups)
        return np.concatenate([common, slots]), np.concatenate([degrees, np.full(slots.size, 1)])

    def sums(self, units: A) -> A:
        """Return the sums where all tasks are in the first group."""
        return self.placed_sums(units, np.zeros(len(units), dtype=np.int64))

    def placed_sums(self, units: A, groups: Integers) -> A:
        """Return the sums of tasks in these groups."""
        linear = np.flatnonzero(self._linear(units.shape[1]))
        order = np.argsort(groups, kind="stable")
        ends = np.searchsorted(groups[order], np.arange(1, self.groups))
        said: list[A] = [self.lift.sums(units)]
        for members in np.split(order, ends):
            said.append(self.lift.sums(units[members])[linear])
        return namespace(units).concatenate(said)

    def sensitivity(self, relation: Relation) -> float:
        return self.lift.sensitivity(relation)


@dataclass(frozen=True)
class Channel:
    """What may leave a task in one round: `dim` numbers, clipped to `clip`, then lifted.

    Privacy
    -------
    The engine sends nothing but ``total(messages)``: `lifted_sum` of `rows` (or, for
    floating-point noise, of `units`). A row that is not finite counts as zero. Values on
    the billboard are in units of the clip.

    Examples
    --------
    >>> channel = Channel(2, clip=0.5, lift=Plain())
    >>> channel.total(np.array([[3.0, 4.0], [np.nan, 1.0]])).round(6).tolist()
    [0.6, 0.8]
    >>> channel.sensitivity(Relation.REPLACE)
    2.0
    """

    dim: int
    clip: float = 1.0
    lift: Lift = field(default_factory=Plain)

    def __post_init__(self) -> None:
        if not (0 < self.clip < math.inf):
            raise PlanError(
                f"clip must be > 0 and finite. Got {self.clip}. Use NoNoise() for a non-private run."
            )
        if self.dim < 1:
            raise PlanError(f"A message must have at least one number. Got dim={self.dim}.")

    @property
    def size(self) -> int:
        """How many numbers a release on this channel has."""
        return len(self.lift.weights(self.dim)[0])

    @property
    def steps(self) -> Floats:
        """What one unit of a sum of whole rows stands for in each number of a release, in clips."""
        return _steps(self)

    def sensitivity(self, relation: Relation) -> float:
        """Return the exact l2 sensitivity of the sum, in units of the clip."""
        return self.lift.sensitivity(Relation(relation))

    def units(self, messages: A) -> A:
        """Clip each row to the ball and divide by the clip: norms are at most 1, rounding included."""
        xp = namespace(messages)
        rows = xp.asarray(messages, dtype=xp.float64).reshape(len(messages), self.dim)
        largest = xp.amax(abs(rows), axis=1, keepdims=True)  # divided out first, lest squares overflow
        finite = xp.isfinite(largest)
        rows, largest = xp.where(finite, rows, 0.0), xp.where(finite, largest, 0.0)
        scaled = rows / xp.where(largest > 0, largest, 1.0)
        length = xp.sqrt((scaled * scaled).sum(axis=1, keepdims=True))
        slack = 1 + (self.dim + 8) * 2.0**-52  # more than all the rounding around it
        with np.errstate(over="ignore"):
            inside = largest / self.clip * length * slack <= 1
        return rows / xp.where(inside, 1.0, largest) / xp.where(inside, self.clip, length * slack)

    def rows(self, messages: A) -> A:
        """Return each task's message as it leaves: clipped, on the grid, whole numbers of norm at most GRID.

        A row is rounded to the grid, and towards zero if its whole norm would leave the ball otherwise. It
        is lifted after rounding, so that the exact sensitivity holds for the rounded sum as well.
        """
        xp = namespace(messages)
        rows = self.units(messages) * GRID
        whole = xp.round(rows)
        whole = xp.where(_outside(whole), xp.trunc(rows), whole)
        whole = xp.where(_outside(whole), 0.0, whole)  # cannot be: what is not bounded does not leave
        return xp.asarray(whole, dtype=xp.int64)

    def check_rows(self, rows: A) -> None:
        """Refuse rows that `rows` cannot have made: what a curator asks of rows made elsewhere, exactly.

        Examples
        --------
        >>> channel = Channel(2, clip=0.5)
        >>> channel.check_rows(channel.rows(np.array([[3.0, 4.0]])))
        >>> channel.check_rows(np.array([[GRID, 1]]))
        Traceback (most recent call last):
        ...
        cloister.errors.InputError: Row 0 is longer than its channel allows. Make rows with Channel.rows.
        """
        xp = namespace(rows)
        if rows.ndim != 2 or rows.shape[1] != self.dim or rows.dtype != xp.int64:
            raise InputError(
                f"Rows must be 64-bit integers of shape (tasks, {self.dim}). Got {rows.dtype} of shape "
                f"{tuple(rows.shape)}. Make them with Channel.rows."
            )
        beyond = xp.any((rows > GRID) | (rows < -GRID), axis=1)  # the rest has squares that cannot overflow
        bad = beyond | _outside(xp.asarray(rows, dtype=xp.float64))[:, 0]
        if bad.any():
            first = int(np.flatnonzero(np.asarray(bad.tolist()))[0])
            raise InputError(f"Row {first} is longer than its channel allows. Make rows with Channel.rows.")

    def lifted_sum(self, rows: A, groups: Integers | None = None) -> A:
        """Return the sum over tasks of lifted rows: exact and whole for `rows`, in clips for `units`.

        A sum of whole rows times `steps` is in units of the clip. It is made of parts below 2^53, which
        floating point adds without error in any order, on any device. `groups` has the position of each
        task's public group, for a `Grouped` lift; by default all are in the first.
        """
        xp, places = namespace(rows), self._placed(len(rows), groups)
        if rows.dtype == xp.int64:
            parts = (slice(at, at + EXACT_ROWS) for at in range(0, max(1, len(rows)), EXACT_ROWS))
            sums = (self._sums(xp.asarray(rows[part], dtype=xp.float64), places[part]) for part in parts)
            return sum(xp.asarray(part, dtype=xp.int64) for part in sums)
        return _weights(self, xp, None if xp is np else rows.device) * self._sums(rows, places)

    def _placed(self, count: int, groups: Integers | None) -> Integers:
        """Return every row's group; refuse a row that has none, which would be summed somewhere else."""
        if groups is None or not isinstance(self.lift, Grouped):
            return np.zeros(count, dtype=np.int64)
        if groups.shape != (count,) or ((groups < 0) | (groups >= self.lift.groups)).any():
            raise InputError(
                f"Every message must be of a task in one of the plan's {self.lift.groups} groups. "
                "Label all tasks on the roster."
            )
        return groups

    def _sums(self, units: A, groups: Integers) -> A:
        if isinstance(self.lift, Grouped):
            return self.lift.placed_sums(units, groups)
        return self.lift.sums(units)

    def total(self, messages: A, exact: bool = False, groups: Integers | None = None) -> A:
        """Return the sum over tasks of the clipped, then lifted messages: whole numbers if `exact`."""
        return self.lifted_sum(self.rows(messages) if exact else self.units(messages), groups)


@dataclass(frozen=True)
class Round:
    """One round of a schedule: its share of the squared budget, and the channels it may use."""

    share: float
    channels: tuple[Channel, ...]


def _outside(whole: Any) -> Any:
    """Say which rows of whole numbers are longer than GRID, (k, 1); exactly, as squares are below 2^53."""
    return (whole * whole).sum(axis=1, keepdims=True) > GRID**2


def equal_rounds(count: int, channels: Sequence[Channel]) -> tuple[Round, ...]:
    return (Round(1 / count, tuple(channels)),) * count


def finite_rows(rows: A) -> A:
    return namespace(rows).isfinite(rows).all(axis=1)


@lru_cache(maxsize=8)
def _weights(channel: Channel, xp: ModuleType, device: object) -> Any:
    weights = channel.lift.weights(channel.dim)[0]
    return weights if xp is np else xp.asarray(weights, device=device)


@lru_cache(maxsize=4)
def _steps(channel: Channel) -> Floats:
    weights, degrees = channel.lift.weights(channel.dim)
    steps = np.asarray(weights * float(GRID) ** -degrees)
    steps.setflags(write=False)
    return steps


@lru_cache(maxsize=64)
def _triangle(dim: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    i, j = np.triu_indices(dim)
    return i, j, np.where(i == j, 1.0, math.sqrt(2))


def svec(matrix: Floats) -> Floats:
    """Return the upper triangle of a symmetric matrix, off-diagonals times sqrt(2): an isometry."""
    i, j, scale = _triangle(matrix.shape[-1])
    return np.asarray(matrix[..., i, j] * scale)


def unsvec(vector: Floats, dim: int) -> Floats:
    """Invert `svec`."""
    i, j, scale = _triangle(dim)
    matrix = np.zeros((*vector.shape[:-1], dim, dim))
    matrix[..., i, j] = vector / scale
    matrix[..., j, i] = matrix[..., i, j]
    return matrix
