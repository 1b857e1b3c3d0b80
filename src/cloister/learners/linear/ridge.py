r"""Bayesian ridge regression, closed form, batched over tasks.

A task's data enter through their Gram matrix only, or, where rows are fewer than columns, through the rows
themselves. With prior :math:`w \sim N(m, \sigma^2 P / \lambda)`,
:math:`P = LL'`, and :math:`\sigma^2` inverse-gamma with one prior degree of freedom and scale :math:`s_0`,
everything follows from one eigendecomposition of :math:`L'X'XL` for all :math:`\lambda` at once:

.. math::
    \log p(y \mid \lambda, s_0) = -\tfrac12 \sum_j \log(1 + e_j/\lambda)
        - \tfrac{n+1}{2} \log(s_0 + Q_\lambda) + \tfrac12 \log s_0 + \mathrm{const},
    \qquad Q_\lambda = |y - Xm|^2 - \sum_j \frac{c_j^2}{e_j + \lambda}

Isotropic priors share the eigenvectors of :math:`X'X`, and so do those that are wider along one direction
:math:`e_0`, such as the intercept's, :math:`P = s^2(I + (v-1) e_0 e_0')`: with
:math:`\lambda' = \lambda/s^2` and :math:`\kappa = 1 - 1/v`,

.. math::
    (X'X + \lambda P^{-1})^{-1} = B + g\, B e_0 e_0' B, \qquad B = (X'X + \lambda' I)^{-1},
    \qquad g = \frac{\kappa\lambda'}{1 - \kappa\lambda'\, e_0' B e_0}

With fewer rows than columns the same :math:`e_j` are the eigenvalues of :math:`XPX'`, with eigenvectors
:math:`u_j`, and nothing larger than the rows is decomposed:

.. math::
    (X'X + \lambda P^{-1})^{-1} = \tfrac1\lambda P - \sum_j \frac{b_j b_j'}{\lambda(e_j + \lambda)},
    \qquad b_j = PX'u_j, \qquad c_j^2 = e_j\,(u_j'(y - Xm))^2

Both forms give the same posterior.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cloister.core.arrays import Array, Floats, States

if TYPE_CHECKING:
    from cloister.core.tasks import Block

#: Sums beyond this are no data: a task that sends them is treated as empty.
ABSURD = 1e100
#: A ridge smaller than this share of the trace would be lost in rounding, and the inverse with it.
LEAST_RIDGE = 1e-10
#: Deviations of a prior that differ by no more than this part are the same but for rounding.
ROUNDING = 1e-12


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


class RidgeStatistics(Protocol):
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


class LinearSummary(RidgeStatistics, Protocol):
    """What there is to know of a block for linear regression, in one of two forms."""

    def arrays(self) -> States:
        """Return the summary as a state."""

    def offset(self, ridge: float, point: Floats) -> Floats:
        """Return ``argmin |y - X(point + r)|^2 + ridge |r|^2`` for every task.

        No data can make one task fail, and so fail the others.
        """


@dataclass(frozen=True, eq=False, repr=False)
class Statistics:
    """X'X, X'y, y'y and the number of rows: all of a block that has no fewer rows than columns.

    X'X is ``vectors @ diag(values) @ vectors.T``, and `along` is ``vectors.T @ X'y``.
    """

    values: Floats
    vectors: Floats
    along: Floats
    square: Floats
    count: Floats

    def arrays(self) -> States:
        return _arrays(self)

    @classmethod
    def of(cls, gram: Floats, cross: Floats, square: Floats, count: Floats) -> Statistics:
        values, vectors = _eigen(gram)
        return cls(values, vectors, (vectors.swapaxes(1, 2) @ cross[..., None])[..., 0], square, count)

    def offset(self, ridge: float, point: Floats) -> Floats:
        """Return the ridge solution seen from a point, by two matrix-vector products."""
        along = (self.along - self.values * self._turned(point)) / _lifted(self.values, ridge)
        return np.asarray((self.vectors @ along[..., None])[..., 0])

    def _turned(self, point: Floats) -> Floats:
        return np.asarray(self.vectors.swapaxes(1, 2) @ point)

    def spectrum(self, factor: Floats | None) -> Spectrum:
        """Decompose ``factor' X'X factor``."""
        if factor is None:
            return Spectrum(self.values, self.vectors)
        half = np.ascontiguousarray(factor.T) @ (self.vectors * np.sqrt(self.values)[:, None, :])
        values, vectors = _eigen(half @ half.swapaxes(1, 2))
        return Spectrum(values, factor @ vectors)

    def against(self, center: Floats, spectrum: Spectrum) -> tuple[Floats, Floats, Floats]:
        """Rotate X'(y - X center); the basis has unit length in the prior's own."""
        turned = self._turned(center)
        rotated = shifted = self.along - self.values * turned
        if spectrum.basis is not self.vectors:
            rotated = self.vectors @ shifted[..., None]
            rotated = (spectrum.basis.swapaxes(1, 2) @ rotated)[..., 0]
        return self.square - ((self.along + shifted) * turned).sum(axis=1), rotated, rotated


@dataclass(frozen=True, eq=False, repr=False)
class RowSummary:
    """Rows and targets, times the root of their weight: all of a block with fewer rows than columns.

    XX' is ``vectors @ diag(values) @ vectors.T``.
    """

    rows: Floats
    target: Floats
    count: Floats
    values: Floats
    vectors: Floats

    def arrays(self) -> States:
        return _arrays(self)

    def offset(self, ridge: float, point: Floats) -> Floats:
        """Return the ridge solution seen from a point, as X' times a vector over rows."""
        right = self.target - self.rows @ point
        dual = (self.vectors.swapaxes(1, 2) @ right[..., None])[..., 0] / _lifted(self.values, ridge)
        return np.asarray((self.rows.swapaxes(1, 2) @ (self.vectors @ dual[..., None]))[..., 0])

    @cached_property
    def _plain(self) -> Spectrum:
        return Spectrum(self.values, self.rows.swapaxes(1, 2) @ self.vectors, True, self.vectors)

    def spectrum(self, factor: Floats | None) -> Spectrum:
        """Decompose ``X factor factor' X'``."""
        if factor is None:
            return self._plain
        spread_rows = self.rows @ (factor @ factor.T)
        values, vectors = _eigen(self.rows @ spread_rows.swapaxes(1, 2))
        return Spectrum(values, spread_rows.swapaxes(1, 2) @ vectors, True, vectors)

    def against(self, center: Floats, spectrum: Spectrum) -> tuple[Floats, Floats, Floats]:
        """Rotate y - X center; the basis has length e in the prior's own."""
        assert spectrum.rows is not None
        residual = self.target - self.rows @ center
        rotated = (spectrum.rows.swapaxes(1, 2) @ residual[..., None])[..., 0]
        return (residual**2).sum(axis=1), rotated, spectrum.values * rotated


def summary(X: Array, y: Array, weight: Array) -> LinearSummary:
    """Sum a block up in the smaller form; a task whose numbers are not finite counts as having no data.

    Examples
    --------
    >>> tall, wide = (summary(np.ones((1, 4, d)), np.ones((1, 4)), np.ones((1, 4))) for d in (1, 5))
    >>> tall.offset(1.0, np.zeros(1)).tolist()
    [[0.8]]
    >>> type(wide).__name__, wide.offset(1.0, np.zeros(5)).sum().round(3).item()
    ('RowSummary', 0.952)
    """
    if X.shape[1] >= X.shape[2]:
        return statistics(X, y, weight)
    with np.errstate(all="ignore"):
        root = np.sqrt(weight)
        rows, target, count = X * root[..., None], y * root, weight.sum(axis=1)
        size = np.square(rows).sum(axis=(1, 2)) + np.square(target).sum(axis=1) + count
        sane = size < ABSURD  # False for NaN too
    rows = np.where(sane[:, None, None], rows, 0.0)
    spectrum = _eigen(rows @ rows.swapaxes(1, 2))
    return RowSummary(rows, np.where(sane[:, None], target, 0.0), np.where(sane, count, 0.0), *spectrum)


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
    return Statistics.of(
        np.where(sane[:, None, None], gram, 0.0),
        np.where(sane[:, None], cross, 0.0),
        np.where(sane, square, 0.0),
        np.where(sane, count, 0.0),
    )


def summary_of(arrays: States) -> LinearSummary:
    if "gram" in arrays:  # a state that an older version saved
        return Statistics.of(*(arrays[name] for name in ("gram", "cross", "square", "count")))
    kind: type[Statistics] | type[RowSummary] = Statistics if "along" in arrays else RowSummary
    return kind(*(arrays[item.name] for item in fields(kind)))


def _arrays(summed: Statistics | RowSummary) -> States:
    return {item.name: getattr(summed, item.name) for item in fields(summed)}


def _lifted(values: Floats, ridge: float) -> Floats:
    """Return the eigenvalues of matrices with a ridge, or a larger one that is not lost in rounding."""
    return np.asarray(values + np.maximum(ridge, LEAST_RIDGE * values.sum(axis=1, keepdims=True)))


def _eigen(matrix: Floats) -> tuple[Floats, Floats]:
    values, vectors = np.linalg.eigh(matrix)
    return np.maximum(values, 0.0), vectors


@dataclass(frozen=True, eq=False, repr=False)
class RidgeFit:
    """One prior's posterior for every task, over a grid of lambdas.

    Attributes
    ----------
    center : array of shape (d,)
        Prior mean.
    basis, coordinates : arrays of shapes (tasks, d, k) and (tasks, lambdas, k)
        Posterior means, seen from the center, are ``basis @ coordinates``.
    spread : array of shape (tasks, lambdas, k)
        The posterior covariance over the noise variance is ``basis @ diag(spread) @ basis.T``, plus
        ``rest * prior``, plus the outer product of ``basis @ bump``.
    prior, rest : arrays of shapes (d, d) or (tasks, d, d) and (lambdas,), optional
        What the prior adds where rows are fewer than columns.
    bump : array of shape (tasks, lambdas, k), optional
        What a direction adds along which the prior is wider.
    log_evidence : array of shape (scales, tasks, lambdas)
        Log marginal likelihood, up to a constant of the task.
    residual : array of shape (tasks, lambdas)
        The Q of the module's formula.
    """

    center: Floats
    basis: Floats
    coordinates: Floats
    spread: Floats
    prior: Floats | None
    rest: Floats
    bump: Floats | None
    log_evidence: Floats
    residual: Floats

    @property
    def solutions(self) -> Floats:
        """Posterior means, seen from the center: (tasks, lambdas, d)."""
        return self.coordinates @ self.basis.swapaxes(1, 2)

    def left_out(self, block: Block) -> Floats:
        r"""Return the log-likelihood of every row under a fit to the others: one number a task and lambda.

        A residual is larger by :math:`1/(1-h)` if its row is left out, h being its leverage; the variance is
        that of all such residuals. Rows that are no data foresee nothing.
        """
        with np.errstate(all="ignore"):
            along = block.X @ self.basis
            residual = (block.y - block.X @ self.center)[..., None] - along @ self.coordinates.swapaxes(1, 2)
            leverage = np.square(along) @ self.spread.swapaxes(1, 2)
            if self.bump is not None:
                leverage += np.square(along @ self.bump.swapaxes(1, 2))
            if self.prior is not None:
                prior = ((block.X @ self.prior) * block.X).sum(axis=2)
                leverage += prior[..., None] * np.atleast_2d(self.rest)[:, None]
            found = likelihood_left_out(block.weight, residual, leverage)
        return np.where(np.isfinite(found), found, 0.0)


def ridge_evidence(
    stats: RidgeStatistics, center: Floats, factor: Floats, lambdas: Floats, scales: Floats
) -> Floats:
    """Return the `log_evidence` of a `ridge_fit`, and nothing else of it.

    Examples
    --------
    >>> from cloister.learners.linear.ridge import summary
    >>> block = summary(np.ones((1, 4, 1)), np.ones((1, 4)), np.ones((1, 4)))
    >>> ridge_evidence(block, np.zeros(1), np.eye(1), np.array([1.0]), np.ones(1)).round(3).tolist()
    [[[-2.274]]]
    """
    return _solve(stats, center, factor, lambdas).log_evidence(stats.count, scales)


def ridge_fit(
    stats: RidgeStatistics, center: Floats, factor: Floats, lambdas: Floats, scales: Floats
) -> RidgeFit:
    """Fit the prior N(center, sigma^2 factor factor' / lambda) for all lambdas and noise scales.

    Lambdas have shape (lambdas,) and scales (scales,); where each task has its own, (tasks, lambdas) and
    (scales, tasks).

    Examples
    --------
    >>> from cloister.learners.linear.ridge import summary
    >>> block = summary(np.ones((1, 4, 1)), np.ones((1, 4)), np.ones((1, 4)))
    >>> fit = ridge_fit(block, np.zeros(1), np.eye(1), np.array([1.0, 4.0]), np.ones(1))
    >>> fit.solutions.ravel().tolist()
    [0.8, 0.5]
    """
    solved = _solve(stats, center, factor, lambdas)
    basis, short, lams = solved.spectrum.basis, solved.spectrum.short, solved.lams
    coordinates, spread = solved.inner[:, None, :] * solved.inverse, solved.inverse
    prior, rest, bump = None, np.zeros_like(lams), None
    if short:  # the module's last formula
        prior = np.eye(len(factor)) if solved.shares_basis else factor @ factor.T
        rest, spread = 1 / lams, -spread / lams[..., None]
    if solved.gain is not None:
        bump = solved.front[:, None] * spread
        if short:  # the direction is not among the rows'
            ahead = np.broadcast_to(solved.direction[:, None], (*basis.shape[:2], 1))
            basis = np.concatenate([basis, ahead], axis=2)
            none = np.zeros((*spread.shape[:2], 1))
            bump = np.concatenate([bump, none + rest[..., None]], axis=2)
            coordinates, spread = (np.concatenate([part, none], axis=2) for part in (coordinates, spread))
        coordinates += (solved.gain * solved.at_front)[:, :, None] * bump
        bump *= np.sqrt(solved.gain)[:, :, None]
    log_evidence = solved.log_evidence(stats.count, scales)
    return RidgeFit(center, basis, coordinates, spread, prior, rest, bump, log_evidence, solved.residual)


def likelihood_left_out(weight: Floats, residual: Floats, leverage: Floats) -> Floats:
    """Return the log-likelihood of rows by their residuals if left out, normal with these' own variance."""
    count = weight.sum(axis=1)[:, None]
    square = np.square(residual / np.maximum(1 - leverage, 1e-10))
    mean = (weight[:, None, :] @ square)[:, 0] / np.where(count > 0, count, 1.0)
    return np.asarray(-0.5 * count * np.log(mean + 1e-12))


@dataclass(frozen=True, eq=False, repr=False)
class _Solved:
    """What evidence and posterior share.

    Attributes
    ----------
    lams : array of shape (lambdas,) or (tasks, lambdas)
        Lambdas for the spectrum's own prior.
    shares_basis : bool
        Whether the spectrum is that of the data alone, for a prior that is isotropic but for a direction.
    inner : array of shape (tasks, k)
        Targets by coordinates.
    inverse : array of shape (tasks, lambdas, k)
        One over eigenvalue plus lambda.
    volume, residual : arrays of shape (tasks, lambdas)
        Log determinant and Q of the module's first formula.
    gain, at_front : arrays of shape (tasks, lambdas), optional
        The g of the module's second formula, and what it is applied to: the posterior mean along e0.
    direction, front : arrays of shapes (d,) and (tasks, k)
        The e0 of that formula, in public coordinates and along the basis.
    """

    spectrum: Spectrum
    lams: Floats
    shares_basis: bool
    inner: Floats
    inverse: Floats
    volume: Floats
    residual: Floats
    gain: Floats | None
    at_front: Floats
    direction: Floats
    front: Floats

    def log_evidence(self, count: Floats, scales: Floats) -> Floats:
        over_grid = scales.reshape(len(scales), -1, 1)
        found = np.log(over_grid + self.residual)
        found *= -0.5 * (count[:, None] + 1)
        found += 0.5 * np.log(over_grid) - 0.5 * self.volume
        return np.asarray(found)


def _solve(stats: RidgeStatistics, center: Floats, factor: Floats, lambdas: Floats) -> _Solved:
    isotropic = _isotropic_but_one(factor)
    shares_basis = isotropic is not None
    scale, first, direction = isotropic or (1.0, 1.0, np.zeros(len(factor)))
    spectrum = stats.spectrum(None if shares_basis else factor)
    lams = lambdas / scale**2
    start, inner, along = stats.against(center, spectrum)
    lifted = spectrum.values[:, None, :] + lams[..., None]
    volume = np.log(lifted / lams[..., None]) @ np.ones(lifted.shape[2])
    inverse, gain, front = np.reciprocal(lifted, out=lifted), None, np.zeros(0)
    if first == scale:
        taken = at_front = (inverse @ (inner * along)[:, :, None])[..., 0]
    else:  # the rank-one correction of the module's second formula
        kappa, front = 1 - (scale / first) ** 2, direction @ spectrum.basis
        sums = inverse @ np.stack([inner * along, inner * front, np.square(front)], axis=2)
        taken, at_front, corner = sums[..., 0], sums[..., 1], sums[..., 2]
        if spectrum.short:
            corner = (1 - corner) / lams
        room = 1 - kappa * lams * corner
        gain = kappa * lams / room
        taken = taken + gain * at_front**2
        volume += np.log(room / (1 - kappa))
    residual = np.maximum(start[:, None] - taken, 0.0)
    ahead = direction, front
    return _Solved(spectrum, lams, shares_basis, inner, inverse, volume, residual, gain, at_front, *ahead)


def _isotropic_but_one(factor: Floats) -> tuple[float, float, Floats] | None:
    """Return a prior's deviation, that along the one direction in which it is larger, and the direction.

    None for any other prior. A covariance that was heard often is one: few of its eigenvalues stand out.
    """
    if not len(factor):
        return 1.0, 1.0, np.zeros(0)
    scale, first = float(factor[-1, -1]), float(factor[0, 0])
    if first >= scale and np.array_equal(factor, np.diag([first] + [scale] * (len(factor) - 1))):
        return scale, first, np.eye(1, len(factor))[0]
    directions, deviations, _ = np.linalg.svd(factor)
    least = float(deviations[-1])
    if deviations[1] - least > ROUNDING * least:
        return None
    alike = deviations[0] - least <= ROUNDING * least
    return least, least if alike else float(deviations[0]), directions[:, 0]
