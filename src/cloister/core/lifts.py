r"""Lifts: what is summed of a clipped message, and how far one task can move the sum.

A message is clipped to a ball first and lifted afterwards; the lifted set is smaller than a ball of its own,
which is why the order matters and why the numbers below are not ``2 * clip``. All lifts work in units of the
clip: ``u`` with :math:`|u| \le 1`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import A, Floats, Integers, namespace
from cloister.core.errors import InputError, PlanError


class Relation(StrEnum):
    """Who counts as a neighbour: one task's data replaced by any other, or its messages by zeros."""

    REPLACE = "replace"
    ZERO_OUT = "zero_out"

    @property
    def other(self) -> Relation:
        return Relation.ZERO_OUT if self is Relation.REPLACE else Relation.REPLACE


class Lift(ABC):
    """What is summed, as a function of the unit-ball vector u."""

    @abstractmethod
    def weights(self, dim: int) -> tuple[Floats, Integers]:
        """Return each lifted number's weight, and its degree in u."""

    @abstractmethod
    def sums(self, units: A) -> A:
        """Return the sums over rows of the lifted numbers, weights left out: whole for whole u.

        In 64-bit floating point, by what arrays of NumPy and tensors of torch both can do.
        """

    @abstractmethod
    def sensitivity(self, relation: Relation) -> float:
        """Return the largest l2 change of the sum when one task changes."""

    def second_moment(self, total: Floats, dim: int) -> Floats | None:
        """Return the sum of :math:`uu'` that a released sum holds beside the mean; None if it holds none."""
        return None

    def places(self, count: int, groups: Integers | None) -> Integers:
        """Return where each of so many tasks is summed, given their groups: all of them in one place."""
        return np.zeros(count, dtype=np.int64)

    def placed_sums(self, units: A, places: Integers) -> A:
        """Return the sums of tasks in their places."""
        return self.sums(units)


@dataclass(frozen=True)
class Plain(Lift):
    r"""The message as it is: :math:`u`. Sensitivity 1 (zero-out), 2 (replace; :math:`u' = -u`)."""

    def weights(self, dim: int) -> tuple[Floats, Integers]:
        return np.ones(dim), np.full(dim, 1)

    def sums(self, units: A) -> A:
        return namespace(units).sum(units, axis=0)

    def sensitivity(self, relation: Relation) -> float:
        return 2.0 if relation == Relation.REPLACE else 1.0


@dataclass(frozen=True)
class Absolute(Lift):
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
class Outer(Lift):
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
class Diagonal(Lift):
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
class MeanAndOuter(Lift):
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

    def second_moment(self, total: Floats, dim: int) -> Floats:
        return unsvec(total[dim:], dim) / math.sqrt(1 - self.a)

    def sensitivity(self, relation: Relation) -> float:
        if relation == Relation.ZERO_OUT:
            return 1.0
        return math.sqrt(2 + self.a**2 / (2 * (1 - self.a)) if self.a <= 2 / 3 else 4 * self.a)


@dataclass(frozen=True)
class SumOfOuters(Lift):
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
class SumOfSquares(Lift):
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
class MeanAndSquares(Lift):
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
class Grouped(Lift):
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

    def places(self, count: int, groups: Integers | None) -> Integers:
        """Return each task's group; refuse one that has none, which would be summed somewhere else."""
        if groups is None:
            return np.zeros(count, dtype=np.int64)
        if groups.shape != (count,) or ((groups < 0) | (groups >= self.groups)).any():
            raise InputError(
                f"Every message must be of a task in one of the plan's {self.groups} groups. "
                "Label all tasks on the roster."
            )
        return groups

    def placed_sums(self, units: A, places: Integers) -> A:
        linear = np.flatnonzero(self._linear(units.shape[1]))
        order = np.argsort(places, kind="stable")
        ends = np.searchsorted(places[order], np.arange(1, self.groups))
        said: list[A] = [self.lift.sums(units)]
        for members in np.split(order, ends):
            said.append(self.lift.sums(units[members])[linear])
        return namespace(units).concatenate(said)

    def sensitivity(self, relation: Relation) -> float:
        return self.lift.sensitivity(relation)


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
