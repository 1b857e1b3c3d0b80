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
from cloister.learners.linear.summary import Decomposed, Spectrum

__all__ = ["RidgeFit", "ridge_evidence", "ridge_fit"]


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
        What a loose intercept adds.
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


def ridge_evidence(
    stats: Decomposed, center: Floats, factor: Floats, lambdas: Floats, scales: Floats
) -> Floats:
    """Return the `log_evidence` of a `ridge_fit`, and nothing else of it.

    Examples
    --------
    >>> from cloister.learners.linear.summary import summary
    >>> block = summary(np.ones((1, 4, 1)), np.ones((1, 4)), np.ones((1, 4)))
    >>> ridge_evidence(block, np.zeros(1), np.eye(1), np.array([1.0]), np.ones(1)).round(3).tolist()
    [[[-2.274]]]
    """
    return _solve(stats, center, factor, lambdas).log_evidence(stats.count, scales)


def ridge_fit(stats: Decomposed, center: Floats, factor: Floats, lambdas: Floats, scales: Floats) -> RidgeFit:
    """Fit the prior N(center, sigma^2 factor factor' / lambda) for all lambdas and noise scales.

    Lambdas have shape (lambdas,) and scales (scales,); where each task has its own, (tasks, lambdas) and
    (scales, tasks).

    Examples
    --------
    >>> from cloister.learners.linear.summary import summary
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
        bump = basis[:, :1] * spread
        if short:  # the intercept's own direction is not among the rows'
            ahead = np.zeros((*basis.shape[:2], 1))
            ahead[:, 0] = 1.0
            basis = np.concatenate([basis, ahead], axis=2)
            none = np.zeros((*spread.shape[:2], 1))
            bump = np.concatenate([bump, none + rest[..., None]], axis=2)
            coordinates, spread = (np.concatenate([part, none], axis=2) for part in (coordinates, spread))
        coordinates += (solved.gain * solved.at_front)[:, :, None] * bump
        bump *= np.sqrt(solved.gain)[:, :, None]
    log_evidence = solved.log_evidence(stats.count, scales)
    return RidgeFit(center, basis, coordinates, spread, prior, rest, bump, log_evidence, solved.residual)


@dataclass(frozen=True, eq=False, repr=False)
class _Solved:
    """What evidence and posterior share.

    Attributes
    ----------
    lams : array of shape (lambdas,) or (tasks, lambdas)
        Lambdas for the spectrum's own prior.
    shares_basis : bool
        Whether the spectrum is that of the data alone, for an isotropic prior or a loose intercept.
    inner : array of shape (tasks, k)
        Targets by coordinates.
    inverse : array of shape (tasks, lambdas, k)
        One over eigenvalue plus lambda.
    volume, residual : arrays of shape (tasks, lambdas)
        Log determinant and Q of the module's first formula.
    gain, at_front : arrays of shape (tasks, lambdas), optional
        The g of the module's second formula, and what it is applied to: the intercept of the posterior mean.
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

    def log_evidence(self, count: Floats, scales: Floats) -> Floats:
        over_grid = scales.reshape(len(scales), -1, 1)
        found = np.log(over_grid + self.residual)
        found *= -0.5 * (count[:, None] + 1)
        found += 0.5 * np.log(over_grid) - 0.5 * self.volume
        return np.asarray(found)


def _solve(stats: Decomposed, center: Floats, factor: Floats, lambdas: Floats) -> _Solved:
    scale, first = (factor[-1, -1], factor[0, 0]) if len(factor) else (1.0, 1.0)
    shares_basis = not len(factor) or (
        first >= scale and np.array_equal(factor, np.diag([first] + [scale] * (len(factor) - 1)))
    )
    spectrum = stats.spectrum(None if shares_basis else factor)
    lams = lambdas / scale**2 if shares_basis else lambdas
    start, inner, along = stats.against(center, spectrum)
    lifted = spectrum.values[:, None, :] + lams[..., None]
    volume = np.log(lifted / lams[..., None]) @ np.ones(lifted.shape[2])
    inverse = np.reciprocal(lifted, out=lifted)
    if not (shares_basis and first > scale):
        taken = at_front = (inverse @ (inner * along)[:, :, None])[..., 0]
        gain = None
    else:  # the rank-one correction of the module's second formula
        kappa, front = 1 - (scale / first) ** 2, spectrum.basis[:, 0]
        sums = inverse @ np.stack([inner * along, inner * front, np.square(front)], axis=2)
        taken, at_front, corner = sums[..., 0], sums[..., 1], sums[..., 2]
        if spectrum.short:
            corner = (1 - corner) / lams
        room = 1 - kappa * lams * corner
        gain = kappa * lams / room
        taken = taken + gain * at_front**2
        volume += np.log(room / (1 - kappa))
    residual = np.maximum(start[:, None] - taken, 0.0)
    return _Solved(spectrum, lams, shares_basis, inner, inverse, volume, residual, gain, at_front)
