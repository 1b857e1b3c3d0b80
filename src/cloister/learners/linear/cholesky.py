"""Cholesky factors of many small matrices I + A: none can fail, and so none can fail the others."""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dpotri

from cloister.arrays import Floats

__all__ = ["FEW_WEIGHTS", "cholesky", "factor_diagonals", "factors_of", "inverses", "solve"]

#: Up to so many rows, factors of all matrices at once are quicker than one for each.
FEW_WEIGHTS = 32
_ROUNDING = 1e-13  # of a pivot, relative to the diagonal it came from


def cholesky(A: Floats) -> Floats:
    """Lower Cholesky factors of ``I + A`` for positive semi-definite matrices.

    In exact arithmetic every squared pivot is at least 1, since ``I + A`` and all its Schur complements are
    at least ``I``. Where rounding, which is relative to the diagonal, says otherwise, a floor puts it right:
    no matrix can fail, and so none can fail the others. Takes (k, p, p), returns (p, p, k); what is above
    the diagonal is meaningless.
    """
    L = np.array(np.moveaxis(A, 0, -1), order="C")
    least = 1.0 + _ROUNDING * np.diagonal(L).T
    for j in range(len(L)):
        L[j, j] = np.sqrt(np.maximum(L[j, j] + 1.0, least[j]))
        L[j + 1 :, j] /= L[j, j]
        L[j + 1 :, j + 1 :] -= L[j + 1 :, None, j] * L[None, j + 1 :, j]
    return L


def solve(L: Floats, b: Floats) -> Floats:
    """Solve ``L L' x = b`` for factors (p, p, k) and right-hand sides (p, r, k)."""
    x = b.copy()
    for j in range(len(L)):
        x[j] /= L[j, j]
        x[j + 1 :] -= L[j + 1 :, j, None] * x[j]
    for j in reversed(range(len(L))):
        x[j] /= L[j, j]
        x[:j] -= L[j, :j, None] * x[j]  # a sum over tasks' numbers would add up otherwise for a task alone
    return x


def factors_of(A: Floats) -> Floats:
    """Lower Cholesky factors (k, p, p) of ``I + A``, by LAPACK; a matrix that it refuses has its floors."""
    whole = A + np.eye(A.shape[1])
    try:
        return np.asarray(np.linalg.cholesky(whole), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.stack([_factor(one, raised) for one, raised in zip(A, whole, strict=True)])


def _factor(A: Floats, whole: Floats) -> Floats:
    try:
        return np.asarray(np.linalg.cholesky(whole), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.tril(cholesky(A[None])[..., 0])


def factor_diagonals(A: Floats) -> Floats:
    """Diagonals (k, p) of the Cholesky factors of ``I + A``."""
    factors = cholesky(A) if A.shape[1] <= FEW_WEIGHTS else np.moveaxis(factors_of(A), 0, -1)
    return np.ascontiguousarray(np.diagonal(factors))  # added alike for any k


def inverses(A: Floats) -> Floats:
    """Inverses of ``I + A``."""
    k, p, _ = A.shape
    if p <= FEW_WEIGHTS:
        identity = np.repeat(np.eye(p)[:, :, None], k, axis=2)
        return np.moveaxis(solve(cholesky(A), identity), -1, 0)
    inverses = np.empty_like(A)
    for inverse, factor in zip(inverses, factors_of(A), strict=True):
        lower = dpotri(factor, lower=1)[0]
        inverse[:] = np.tril(lower) + np.tril(lower, -1).T
    return inverses
