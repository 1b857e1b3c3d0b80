"""What of a noisy covariance is signal, as factors of candidate priors: post-processing, hence free."""

from __future__ import annotations

import math

import numpy as np

from cloister.algorithms.constants import COVARIANCE
from cloister.core.arrays import Floats, Integers


def significant(matrix: Floats, noise: float) -> bool:
    """Say whether a noisy symmetric matrix differs from a multiple of the identity beyond GOE noise."""
    dim = len(matrix)
    freedom = dim * (dim + 1) / 2 - 1
    if freedom < 1:
        return False
    excess = np.linalg.norm(matrix - np.trace(matrix) / dim * np.eye(dim)) ** 2
    least = noise**2 * freedom * (1 + COVARIANCE.surprise * math.sqrt(2 / freedom))
    return bool(excess >= least and excess > 0)


def edge(noise: float, dim: int) -> float:
    """Return the largest eigenvalue that GOE noise alone typically has."""
    return noise * math.sqrt(2 * dim)


def spikes(matrix: Floats, noise: float) -> tuple[Floats, Floats]:
    r"""Return what of the eigenvalues stands out of GOE noise, and the eigenvectors.

    Beyond the noise's edge :math:`2A`, :math:`A = s\sqrt{d/2}`, an eigenvalue l over the median b becomes
    :math:`\sqrt{(l-b)^2 - 4A^2}`; all others become 0.
    """
    dim = len(matrix)
    values, vectors = np.linalg.eigh(matrix)
    base = float(np.median(values))
    over = np.maximum(values - min(max(base, 0.0), 1 / dim), 0.0)
    return np.sqrt(np.maximum(over**2 - edge(noise, dim) ** 2, 0.0)), vectors


def leak(kept: Floats, noise: float) -> float:
    r"""Return which share of the spikes' variance lies outside their eigenvectors, which noise has turned.

    Of a spike :math:`\theta` beyond the noise's edge 2A, the eigenvector holds :math:`1 - A^2/\theta^2`;
    what `spikes` keeps of it is :math:`\theta - A^2/\theta`.
    """
    half = edge(noise, len(kept)) / 2
    theta = (kept + np.sqrt(kept**2 + 4 * half**2))[kept > 0] / 2
    return float((half**2 / theta).sum() / theta.sum()) if len(theta) else 0.0


def compose(values: Floats, vectors: Floats, mix: float = 0.0) -> Floats:
    """Return the matrix with these eigenvalues, scaled to trace d and mixed with the identity."""
    dim, total = len(values), float(values.sum())
    scaled = values * dim / total if total > 0 else np.ones(dim)
    return (vectors * ((1 - mix) * scaled + mix)) @ vectors.T


def lifted(matrix: Floats, lift: float) -> Floats:
    """Return a noisy matrix raised by a multiple of the identity, so that noise leaves it positive."""
    values, vectors = np.linalg.eigh(matrix)
    floor = max(COVARIANCE.mix * lift, 1e-6 * float(np.abs(values).max()), 1e-300)
    return compose(np.maximum(values + lift, floor), vectors)


def factor_of(matrix: Floats) -> Floats:
    """Return a factor L with LL' equal to a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 1e-12)))


def support(matrix: Floats, noise: float) -> Floats:
    """Return what of the diagonal stands out: over the median, beyond the largest of d noises."""
    over = np.diag(matrix) - np.median(np.diag(matrix))
    return np.where(over > math.sqrt(2 * math.log(max(len(matrix), 2))) * noise, np.maximum(over, 0.0), 0.0)


def covariance_factors(matrix: Floats, noise: float) -> list[Floats]:
    """Return the candidate factors that a noisy covariance supports; none if nothing in it is significant.

    Spikes on top of what the trace leaves over, spikes mixed with as much identity as leaked out of them,
    the whole matrix raised by the noise's edge; and the coordinates that stand out, for tasks
    with a common support.
    """
    candidates = []
    if significant(matrix, noise):
        kept, vectors = spikes(matrix, noise)
        left = max(float(np.trace(matrix)) - float(kept.sum()), 0.0) / len(matrix)
        candidates += [
            compose(kept + left, vectors, mix=COVARIANCE.mix),
            compose(kept, vectors, max(leak(kept, noise), COVARIANCE.mix)),
            lifted(matrix, edge(noise, len(matrix))),
        ]
    chosen = support(matrix, noise)
    if chosen.any():
        candidates.append(compose(chosen, np.eye(len(matrix)), mix=COVARIANCE.mix))
    return [factor_of(candidate) for candidate in candidates]


def only(factor: Floats, varying: tuple[int, ...] | None) -> Floats:
    """Return the factor of a covariance of these weights alone; of all, if none are named."""
    if varying is None:
        return factor
    return np.where(np.isin(np.arange(len(factor)), varying)[:, None], factor, 0.0)


def widened(factor: Floats, noise: float) -> Floats:
    """Return the factor of a covariance to which so much is added in every direction.

    By the roots: a singular covariance and little noise may sum, rounded, to what has no Cholesky factor.
    """
    if noise == 0:
        return factor
    both = np.concatenate([factor.T, math.sqrt(noise) * np.eye(len(factor))])
    upper = np.linalg.qr(both).R
    return np.asarray(upper.T * np.where(np.diag(upper) < 0, -1.0, 1.0))


def placed(factor: Floats, own: tuple[Integers, ...], size: int) -> Floats:
    """Return the factor of a covariance of all weights, which is zero but for these."""
    whole = np.zeros((size, size))
    whole[own] = factor
    return whole
