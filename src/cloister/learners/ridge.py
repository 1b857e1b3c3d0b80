r"""Bayesian ridge regression, closed form, batched over tasks.

A task's data enter through their Gram matrix only. With prior :math:`w \sim N(m, \sigma^2 P / \lambda)`,
:math:`P = LL'`, and :math:`\sigma^2` inverse-gamma with one prior degree of freedom and scale :math:`s_0`,
everything follows from one eigendecomposition of :math:`L'X'XL` for all :math:`\lambda` at once:

.. math::
    \log p(y \mid \lambda, s_0) = -\tfrac12 \sum_j \log(1 + e_j/\lambda)
        - \tfrac{n+1}{2} \log(s_0 + Q_\lambda) + \tfrac12 \log s_0 + \mathrm{const},
    \qquad Q_\lambda = |y - Xm|^2 - \sum_j \frac{c_j^2}{e_j + \lambda}

Isotropic priors share the eigenvectors of :math:`X'X`, and so do those with a loose intercept,
:math:`P = s^2(I + (v-1) e_0 e_0')`: with :math:`\lambda' = \lambda/s^2` and :math:`\kappa = 1 - 1/v`,

.. math::
    (X'X + \lambda P^{-1})^{-1} = B + g\, B e_0 e_0' B, \qquad B = (X'X + \lambda' I)^{-1},
    \qquad g = \frac{\kappa\lambda'}{1 - \kappa\lambda'\, e_0' B e_0}
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RidgeFit", "Statistics", "ridge_fit", "ridge_inverse", "ridge_weights", "statistics"]

Floats = NDArray[np.float64]
#: Sums beyond this are no data: a task that sends them is treated as empty.
ABSURD = 1e100
#: A ridge smaller than this share of the trace would be lost in rounding, and the inverse with it.
LEAST_RIDGE = 1e-10


@dataclass(frozen=True, eq=False, repr=False)
class Statistics:
    """What ridge regression needs of a block: X'X, X'y, y'y and the number of rows."""

    gram: Floats
    cross: Floats
    square: Floats
    count: Floats

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the statistics as a state."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]]) -> Statistics:
        """Take the statistics out of a state."""
        return cls(*(arrays[item.name] for item in fields(cls)))

    @cached_property
    def spectrum(self) -> tuple[Floats, Floats]:
        """Eigenvalues and eigenvectors of X'X."""
        return _spectrum(self.gram)


def statistics(X: NDArray[Any], y: NDArray[Any], weight: NDArray[Any]) -> Statistics:
    """Sum up a block; a task whose sums are not finite counts as having no data."""
    with np.errstate(all="ignore"):
        weighted = X * weight[..., None]
        gram = weighted.swapaxes(1, 2) @ X
        cross = (weighted.swapaxes(1, 2) @ y[..., None])[..., 0]
        square, count = (weight * y * y).sum(axis=1), weight.sum(axis=1)
        size = np.abs(gram).max(axis=(1, 2)) + np.abs(cross).max(axis=1) + square + count
        sane = size < ABSURD  # False for NaN too
    return Statistics(
        np.where(sane[:, None, None], gram, 0.0),
        np.where(sane[:, None], cross, 0.0),
        np.where(sane, square, 0.0),
        np.where(sane, count, 0.0),
    )


def ridge_inverse(stats: Statistics, ridge: float) -> Floats:
    """Return ``(X'X + ridge I)^-1`` for every task; no data can make one fail, and so fail the others."""
    diagonal = np.arange(stats.gram.shape[1])
    lifted = stats.gram.copy()
    trace = lifted[:, diagonal, diagonal].sum(axis=1, keepdims=True)
    lifted[:, diagonal, diagonal] += np.maximum(ridge, LEAST_RIDGE * trace)
    return np.asarray(np.linalg.inv(lifted), dtype=np.float64)


def ridge_weights(stats: Statistics, ridge: float) -> Floats:
    """Return ``argmin |y - Xw|^2 + ridge |w|^2`` for every task.

    Examples
    --------
    >>> block = statistics(np.ones((1, 4, 1)), np.ones((1, 4)), np.ones((1, 4)))
    >>> ridge_weights(block, ridge=1.0).tolist()
    [[0.8]]
    """
    return np.asarray((ridge_inverse(stats, ridge) @ stats.cross[..., None])[..., 0])


@dataclass(frozen=True, eq=False, repr=False)
class RidgeFit:
    """One prior's posterior for every task, over a grid of lambdas, in the prior's eigenbasis.

    Attributes
    ----------
    center : array of shape (d,)
        Prior mean.
    basis : array of shape (tasks, d, d)
        Columns map eigen-coordinates to weights.
    solutions : array of shape (tasks, lambdas, d)
        Posterior means in eigen-coordinates.
    spread : array of shape (tasks, lambdas, d)
        Posterior variances in eigen-coordinates, over the noise variance.
    bump : array of shape (tasks, lambdas, d), optional
        A vector whose outer product the posterior covariance has on top.
    log_evidence : array of shape (tasks, lambdas, scales)
        Log marginal likelihood, up to a constant of the task.
    residual : array of shape (tasks, lambdas)
        The Q of the module's formula.
    """

    center: Floats
    basis: Floats
    solutions: Floats
    spread: Floats
    bump: Floats | None
    log_evidence: Floats
    residual: Floats


def _spectrum(gram: Floats) -> tuple[Floats, Floats]:
    values, vectors = np.linalg.eigh(gram)
    return np.maximum(values, 0.0), vectors


def ridge_fit(stats: Statistics, center: Floats, factor: Floats, lambdas: Floats, scales: Floats) -> RidgeFit:
    """Fit the prior N(center, sigma^2 factor factor' / lambda) for all lambdas and noise scales."""
    scale, first = factor[-1, -1], factor[0, 0]
    loose = first >= scale and np.array_equal(factor, np.diag([first] + [scale] * (len(factor) - 1)))
    shifted = stats.cross - stats.gram @ center
    if loose:
        (values, basis), lams = stats.spectrum, lambdas / scale**2
    else:
        values, vectors = _spectrum(factor.T @ stats.gram @ factor)
        basis, lams = factor @ vectors, lambdas
    rotated = (basis.swapaxes(1, 2) @ shifted[..., None])[..., 0]
    inverse = 1.0 / (values[:, None, :] + lams[:, None])
    solutions = rotated[:, None, :] * inverse
    volume = np.log1p(values[:, None, :] / lams[:, None]).sum(axis=2)
    bump = None
    if loose and first > scale:  # the rank-one correction of the module's last formula
        kappa, intercept = 1 - (scale / first) ** 2, basis[:, None, 0, :]
        bump = intercept * inverse
        room = 1 - kappa * lams * (intercept * bump).sum(axis=2)
        gain = kappa * lams / room
        solutions += (gain * (intercept * solutions).sum(axis=2))[:, :, None] * bump
        volume += np.log(room / (1 - kappa))
        bump *= np.sqrt(gain)[:, :, None]
    start = stats.square - (stats.cross + shifted) @ center
    residual = np.maximum(start[:, None] - (rotated[:, None, :] * solutions).sum(axis=2), 0.0)
    log_evidence = (
        -0.5 * volume[:, :, None]
        - 0.5 * (stats.count[:, None, None] + 1) * np.log(scales + residual[:, :, None])
        + 0.5 * np.log(scales)
    )
    return RidgeFit(center, basis, solutions, inverse, bump, log_evidence, residual)
