r"""Bayesian ridge regression, closed form, batched over tasks.

A task's data enter through their Gram matrix only, or, where rows are fewer than columns, through the rows
themselves. With prior :math:`w \sim N(m, \sigma^2 P / \lambda)`,
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

With fewer rows than columns the same :math:`e_j` are the eigenvalues of :math:`XPX'`, with eigenvectors
:math:`u_j`, and nothing larger than the rows is decomposed:

.. math::
    (X'X + \lambda P^{-1})^{-1} = \tfrac1\lambda P - \sum_j \frac{b_j b_j'}{\lambda(e_j + \lambda)},
    \qquad b_j = PX'u_j, \qquad c_j^2 = e_j\,(u_j'(y - Xm))^2
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloister.arrays import Floats
from cloister.learners.linear.summary import Summary

__all__ = ["RidgeFit", "ridge_fit"]


@dataclass(frozen=True, eq=False, repr=False)
class RidgeFit:
    """One prior's posterior for every task, over a grid of lambdas.

    Attributes
    ----------
    center : array of shape (d,)
        Prior mean.
    solutions : array of shape (tasks, lambdas, d)
        Posterior means, seen from the center.
    basis, spread : arrays of shapes (tasks, d, k) and (tasks, lambdas, k)
        The posterior covariance over the noise variance is ``basis @ diag(spread) @ basis.T``, plus
        ``rest * prior``, plus the outer product of `bump`.
    prior, rest : arrays of shapes (d, d) and (lambdas,), optional
        What the prior adds where rows are fewer than columns.
    bump : array of shape (tasks, lambdas, d), optional
        What a loose intercept adds.
    log_evidence : array of shape (tasks, lambdas, scales)
        Log marginal likelihood, up to a constant of the task.
    residual : array of shape (tasks, lambdas)
        The Q of the module's formula.
    scales : array of shape (scales,) or (tasks, 1, scales)
        The noise scales.
    """

    center: Floats
    solutions: Floats
    basis: Floats
    spread: Floats
    prior: Floats | None
    rest: Floats
    bump: Floats | None
    log_evidence: Floats
    residual: Floats
    scales: Floats


def ridge_fit(stats: Summary, center: Floats, factor: Floats, lambdas: Floats, scales: Floats) -> RidgeFit:
    """Fit the prior N(center, sigma^2 factor factor' / lambda) for all lambdas and noise scales.

    Examples
    --------
    >>> from cloister.learners.linear.summary import summary
    >>> block = summary(np.ones((1, 4, 1)), np.ones((1, 4)), np.ones((1, 4)))
    >>> ridge_fit(block, np.zeros(1), np.eye(1), np.array([1.0, 4.0]), np.ones(1)).solutions.ravel().tolist()
    [0.8, 0.5]
    """
    scale, first = (factor[-1, -1], factor[0, 0]) if len(factor) else (1.0, 1.0)
    loose = not len(factor) or (
        first >= scale and np.array_equal(factor, np.diag([first] + [scale] * (len(factor) - 1)))
    )
    spectrum = stats.spectrum(None if loose else factor)
    lams = lambdas / scale**2 if loose else lambdas
    start, inner, along = stats.against(center, spectrum)
    inverse = 1.0 / (spectrum.values[:, None, :] + lams[:, None])
    solutions = (inner[:, None, :] * inverse) @ spectrum.basis.swapaxes(1, 2)
    taken = ((inner * along)[:, None, :] * inverse).sum(axis=2)
    volume = np.log1p(spectrum.values[:, None, :] / lams[:, None]).sum(axis=2)
    prior, rest, spread = None, np.zeros_like(lams), inverse
    if spectrum.rows is not None:  # the module's last formula
        prior = np.eye(len(factor)) if loose else factor @ factor.T
        rest, spread = 1 / lams, -inverse / lams[:, None]
    bump = None
    if loose and first > scale:  # the rank-one correction of the module's second formula
        kappa = 1 - (scale / first) ** 2
        bump = (spectrum.basis[:, None, 0, :] * spread) @ spectrum.basis.swapaxes(1, 2)
        bump[:, :, 0] += rest
        room = 1 - kappa * lams * bump[:, :, 0]
        gain = kappa * lams / room
        taken += gain * solutions[:, :, 0] ** 2
        solutions += (gain * solutions[:, :, 0])[:, :, None] * bump
        volume += np.log(room / (1 - kappa))
        bump *= np.sqrt(gain)[:, :, None]
    residual = np.maximum(start[:, None] - taken, 0.0)
    log_evidence = (
        -0.5 * volume[:, :, None]
        - 0.5 * (stats.count[:, None, None] + 1) * np.log(scales + residual[:, :, None])
        + 0.5 * np.log(scales)
    )
    return RidgeFit(
        center, solutions, spectrum.basis, spread, prior, rest, bump, log_evidence, residual, scales
    )
