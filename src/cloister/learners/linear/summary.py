r"""What ridge regression needs of a block, in the smaller of two forms: Gram matrices, or rows as they are.

Both decompose a prior's covariance :math:`P = LL'` against a task's data and give the same posterior: the
Gram form by the eigenvectors of :math:`L'X'XL`, the row form by those of :math:`XPX'`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from cloister.arrays import Array, Floats, States

__all__ = ["Decomposed", "Rows", "Spectrum", "Statistics", "Summary", "statistics", "summary", "summary_of"]

#: Sums beyond this are no data: a task that sends them is treated as empty.
ABSURD = 1e100
#: A ridge smaller than this share of the trace would be lost in rounding, and the inverse with it.
LEAST_RIDGE = 1e-10


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum:
    """A prior's eigenvalues and directions for every task.

    Attributes
    ----------
    values : array of shape (tasks, k)
        The eigenvalues.
    basis : array of shape (tasks, d, k)
        Columns that map coordinates to weights: Lv for an eigenvector v of the Gram form, PX'u for an
        eigenvector u of the row form.
    short : bool
        Whether it is of the row form: the posterior covariance is then the prior's less what the rows tell.
    rows : array of shape (tasks, rows, k), optional
        The eigenvectors u of the row form.
    """

    values: Floats
    basis: Floats
    short: bool = False
    rows: Floats | None = None


class Decomposed(Protocol):
    """What ridge regression needs of a block once it is summed up."""

    @property
    def count(self) -> Floats:
        """The number of rows of each task; the sum of their weights, if they have any."""

    def spectrum(self, factor: Floats | None) -> Spectrum:
        """Decompose for the prior with this factor of its covariance; None is the identity."""

    def against(self, center: Floats, spectrum: Spectrum) -> tuple[Floats, Floats, Floats]:
        """Return ``|y - X center|^2``, X'(y - X center) by coordinates, and the same along the basis.

        ``basis @ (coordinates / (values + lambda))`` is the posterior mean less the center, and the sum of
        ``coordinates * along / (values + lambda)`` is what it takes off the square.
        """


class Summary(Decomposed, Protocol):
    """What there is to know of a block for linear regression, in one of two forms."""

    def arrays(self) -> States:
        """Return the summary as a state."""

    def decomposed(self) -> Summary:
        """Return the same with its plain spectrum, which need not be made again from its `arrays`."""

    def offset(self, ridge: float, point: Floats) -> Floats:
        """Return ``argmin |y - X(point + r)|^2 + ridge |r|^2`` for every task.

        No data can make one task fail, and so fail the others.
        """


@dataclass(frozen=True, eq=False, repr=False)
class Statistics:
    """X'X, X'y, y'y and the number of rows: all of a block that has no fewer rows than columns.

    If it is decomposed, X'X is ``vectors @ diag(values) @ vectors.T``.
    """

    gram: Floats
    cross: Floats
    square: Floats
    count: Floats
    values: Floats | None = None
    vectors: Floats | None = None

    def arrays(self) -> States:
        return _arrays(self)

    def decomposed(self) -> Statistics:
        values, vectors = _eigen(self.gram)
        return replace(self, values=values, vectors=vectors)

    def offset(self, ridge: float, point: Floats) -> Floats:
        """Return the ridge solution seen from a point, by three matrix-vector products."""
        return _ridge_solution(self._plain.values, self._plain.basis, self.cross - self.gram @ point, ridge)

    @cached_property
    def _plain(self) -> Spectrum:
        if self.values is None or self.vectors is None:
            return Spectrum(*_eigen(self.gram))
        return Spectrum(self.values, self.vectors)

    def spectrum(self, factor: Floats | None) -> Spectrum:
        """Decompose ``factor' X'X factor``."""
        if factor is None:
            return self._plain
        values, vectors = _eigen(factor.T @ self.gram @ factor)
        return Spectrum(values, factor @ vectors)

    def against(self, center: Floats, spectrum: Spectrum) -> tuple[Floats, Floats, Floats]:
        """Rotate X'(y - X center); the basis has unit length in the prior's own."""
        shifted = self.cross - self.gram @ center
        rotated = (spectrum.basis.swapaxes(1, 2) @ shifted[..., None])[..., 0]
        return self.square - ((self.cross + shifted) * center).sum(axis=1), rotated, rotated


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Rows and targets, times the root of their weight: all of a block with fewer rows than columns.

    If it is decomposed, XX' is ``vectors @ diag(values) @ vectors.T``.
    """

    rows: Floats
    target: Floats
    count: Floats
    values: Floats | None = None
    vectors: Floats | None = None

    def arrays(self) -> States:
        return _arrays(self)

    def decomposed(self) -> Rows:
        values, vectors = _eigen(self.rows @ self.rows.swapaxes(1, 2))
        return replace(self, values=values, vectors=vectors)

    def offset(self, ridge: float, point: Floats) -> Floats:
        """Return the ridge solution seen from a point, as X' times a vector over rows."""
        plain = self._plain
        assert plain.rows is not None
        dual = _ridge_solution(plain.values, plain.rows, self.target - self.rows @ point, ridge)
        return np.asarray((self.rows.swapaxes(1, 2) @ dual[..., None])[..., 0])

    @cached_property
    def _plain(self) -> Spectrum:
        if self.values is None or self.vectors is None:
            return self._decompose(self.rows)
        return Spectrum(self.values, self.rows.swapaxes(1, 2) @ self.vectors, True, self.vectors)

    def spectrum(self, factor: Floats | None) -> Spectrum:
        """Decompose ``X factor factor' X'``."""
        return self._plain if factor is None else self._decompose(self.rows @ (factor @ factor.T))

    def _decompose(self, spread_rows: Floats) -> Spectrum:
        values, vectors = _eigen(self.rows @ spread_rows.swapaxes(1, 2))
        return Spectrum(values, spread_rows.swapaxes(1, 2) @ vectors, True, vectors)

    def against(self, center: Floats, spectrum: Spectrum) -> tuple[Floats, Floats, Floats]:
        """Rotate y - X center; the basis has length e in the prior's own."""
        assert spectrum.rows is not None
        residual = self.target - self.rows @ center
        rotated = (spectrum.rows.swapaxes(1, 2) @ residual[..., None])[..., 0]
        return (residual**2).sum(axis=1), rotated, spectrum.values * rotated


def summary(X: Array, y: Array, weight: Array) -> Summary:
    """Sum a block up in the smaller form; a task whose numbers are not finite counts as having no data.

    Examples
    --------
    >>> tall, wide = (summary(np.ones((1, 4, d)), np.ones((1, 4)), np.ones((1, 4))) for d in (1, 5))
    >>> tall.offset(1.0, np.zeros(1)).tolist()
    [[0.8]]
    >>> type(wide).__name__, wide.offset(1.0, np.zeros(5)).sum().round(3).item()
    ('Rows', 0.952)
    """
    if X.shape[1] >= X.shape[2]:
        return statistics(X, y, weight)
    with np.errstate(all="ignore"):
        root = np.sqrt(weight)
        rows, target, count = X * root[..., None], y * root, weight.sum(axis=1)
        size = np.square(rows).sum(axis=(1, 2)) + np.square(target).sum(axis=1) + count
        sane = size < ABSURD  # False for NaN too
    return Rows(
        np.where(sane[:, None, None], rows, 0.0),
        np.where(sane[:, None], target, 0.0),
        np.where(sane, count, 0.0),
    )


def statistics(X: Array, y: Array, weight: Array) -> Statistics:
    """Sum up a block by its Gram matrices, whatever its shape."""
    with np.errstate(all="ignore"):
        weighted = X * weight[..., None]
        gram = weighted.swapaxes(1, 2) @ X
        cross = (weighted.swapaxes(1, 2) @ y[..., None])[..., 0]
        square, count = (weight * y * y).sum(axis=1), weight.sum(axis=1)
        size = np.abs(gram).max(axis=(1, 2), initial=0.0) + np.abs(cross).max(axis=1, initial=0.0)
        size += square + count
        sane = size < ABSURD  # False for NaN too
    return Statistics(
        np.where(sane[:, None, None], gram, 0.0),
        np.where(sane[:, None], cross, 0.0),
        np.where(sane, square, 0.0),
        np.where(sane, count, 0.0),
    )


def summary_of(arrays: States) -> Summary:
    kind: type[Statistics] | type[Rows] = Statistics if "gram" in arrays else Rows
    return kind(*(arrays.get(item.name) for item in fields(kind)))  # type: ignore[arg-type]


def _arrays(summed: Statistics | Rows) -> States:
    found = {item.name: getattr(summed, item.name) for item in fields(summed)}
    return {name: array for name, array in found.items() if array is not None}


def _ridge_solution(values: Floats, vectors: Floats, right: Floats, ridge: float) -> Floats:
    """Solve ``(matrix + ridge I) x = right`` in the matrices' eigenvectors."""
    lifted = values + np.maximum(ridge, LEAST_RIDGE * values.sum(axis=1, keepdims=True))
    along = (vectors.swapaxes(1, 2) @ right[..., None])[..., 0] / lifted
    return np.asarray((vectors @ along[..., None])[..., 0])


def _eigen(matrix: Floats) -> tuple[Floats, Floats]:
    values, vectors = np.linalg.eigh(matrix)
    return np.maximum(values, 0.0), vectors
