r"""Bayesian ridge regression, closed form, batched over tasks.

A task's data enter through their Gram matrix only. With prior :math:`w \sim N(m, \sigma^2 P / \lambda)`,
:math:`P = LL'`, and :math:`\sigma^2` inverse-gamma with one prior degree of freedom and scale :math:`s_0`,
everything follows from one eigendecomposition of :math:`L'X'XL` for all :math:`\lambda` at once:

.. math::
    \log p(y \mid \lambda, s_0) = -\tfrac12 \sum_j \log(1 + e_j/\lambda)
        - \tfrac{n+1}{2} \log(s_0 + Q_\lambda) + \tfrac12 \log s_0 + \mathrm{const},
    \qquad Q_\lambda = |y - Xm|^2 - \sum_j \frac{c_j^2}{e_j + \lambda}
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RidgeFit", "Statistics", "ridge_fit", "ridge_weights", "statistics"]

Floats = NDArray[np.float64]
#: Sums beyond this are no data: a task that sends them is treated as empty.
ABSURD = 1e100


@dataclass(frozen=True, eq=False)
class Statistics:
    """What ridge regression needs of a block: X'X and its eigenvectors, X'y, y'y and the number of rows."""

    gram: Floats
    cross: Floats
    square: Floats
    count: Floats
    values: Floats
    vectors: Floats

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the statistics as a state."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]]) -> Statistics:
        """Take the statistics out of a state."""
        return cls(*(arrays[item.name] for item in fields(cls)))


def statistics(X: NDArray[Any], y: NDArray[Any], weight: NDArray[Any]) -> Statistics:
    """Sum up a block; a task whose sums are not finite counts as having no data."""
    with np.errstate(all="ignore"):
        weighted = X * weight[..., None]
        gram = weighted.swapaxes(1, 2) @ X
        cross = (weighted.swapaxes(1, 2) @ y[..., None])[..., 0]
        square, count = (weight * y * y).sum(axis=1), weight.sum(axis=1)
        size = np.abs(gram).max(axis=(1, 2)) + np.abs(cross).max(axis=1) + square + count
        sane = size < ABSURD  # False for NaN too
    gram = np.where(sane[:, None, None], gram, 0.0)
    values, vectors = np.linalg.eigh(gram)
    return Statistics(
        gram,
        np.where(sane[:, None], cross, 0.0),
        np.where(sane, square, 0.0),
        np.where(sane, count, 0.0),
        np.maximum(values, 0.0),
        vectors,
    )


def ridge_weights(stats: Statistics, ridge: float) -> Floats:
    """Return ``argmin |y - Xw|^2 + ridge |w|^2`` for every task.

    Examples
    --------
    >>> block = statistics(np.ones((1, 4, 1)), np.ones((1, 4)), np.ones((1, 4)))
    >>> ridge_weights(block, ridge=1.0).tolist()
    [[0.8]]
    """
    return shrink(stats, ridge, stats.cross)


def shrink(stats: Statistics, ridge: float, vector: Floats) -> Floats:
    """Return ``(X'X + ridge I)^-1 vector`` for every task; one vector each, or one for all."""
    turned = (vector[..., None, :] @ stats.vectors)[..., 0, :]
    return np.asarray((stats.vectors @ (turned / (stats.values + ridge))[..., None])[..., 0])


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """One prior's posterior for every task, over a grid of lambdas, in the prior's eigenbasis.

    Attributes
    ----------
    center : array of shape (d,)
        Prior mean.
    basis : array of shape (tasks, d, d)
        ``L U``: columns map eigen-coordinates to weights.
    solutions : array of shape (tasks, lambdas, d)
        Posterior means in eigen-coordinates.
    spread : array of shape (tasks, lambdas, d)
        Posterior variances in eigen-coordinates, over the noise variance.
    log_evidence : array of shape (tasks, lambdas, scales)
        Log marginal likelihood, up to a constant of the task.
    residual : array of shape (tasks, lambdas)
        The Q of the module's formula.
    """

    center: Floats
    basis: Floats
    solutions: Floats
    spread: Floats
    log_evidence: Floats
    residual: Floats


def _spectrum(stats: Statistics, factor: Floats) -> tuple[Floats, Floats]:
    """Return eigenvalues and eigenvectors of L'X'XL; those of X'X serve every isotropic prior."""
    scale = factor[0, 0]
    if np.array_equal(factor, scale * np.eye(len(factor))):
        return scale**2 * stats.values, stats.vectors
    values, vectors = np.linalg.eigh(factor.T @ stats.gram @ factor)
    return np.maximum(values, 0.0), vectors


def ridge_fit(stats: Statistics, center: Floats, factor: Floats, lambdas: Floats, scales: Floats) -> RidgeFit:
    """Fit the prior N(center, sigma^2 factor factor' / lambda) for all lambdas and noise scales."""
    values, vectors = _spectrum(stats, factor)
    shifted = stats.cross - stats.gram @ center
    rotated = (vectors.swapaxes(1, 2) @ (shifted @ factor)[..., None])[..., 0]
    start = stats.square - (stats.cross + shifted) @ center
    inverse = 1.0 / (values[:, None, :] + lambdas[:, None])
    solutions = rotated[:, None, :] * inverse
    residual = np.maximum(start[:, None] - (rotated[:, None, :] * solutions).sum(axis=2), 0.0)
    volume = np.log1p(values[:, None, :] / lambdas[:, None]).sum(axis=2)
    log_evidence = (
        -0.5 * volume[:, :, None]
        - 0.5 * (stats.count[:, None, None] + 1) * np.log(scales + residual[:, :, None])
        + 0.5 * np.log(scales)
    )
    return RidgeFit(center, factor @ vectors, solutions, inverse, log_evidence, residual)
