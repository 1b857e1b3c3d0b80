r"""The law that a mechanism claims for its noise: a density to attack with, and uniforms to test it by.

* Gaussian: independent coordinates. The discrete Gaussian is compared with the Gaussian it stands for, from
  which it cannot be told above some thousand steps of the grid; below them it is larger than claimed.
* Laplace on the ball: density :math:`e^{-|b|/s}`, a Gamma length and a uniform direction.
* Wishart, less its mean: by Bartlett the Cholesky factor has independent entries, normal below the diagonal
  and roots of chi-squares on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import betainc, gammainc, ndtr

from cloister.arrays import Floats
from cloister.lifts import unsvec

__all__ = ["GaussianLaw", "LaplaceLaw", "Law", "WishartLaw"]


#: Steps of the grid below which integer noise is visibly not a Gaussian of the claimed deviation.
FINE = 4000


class Law(Protocol):
    """What the noise of a release is said to be."""

    def log_density(self, noise: Floats) -> Floats:
        """Return the log density of each row, up to a constant; minus infinity where it cannot be."""

    def uniforms(self, noise: Floats) -> Floats:
        """Return numbers that are independent and uniform if the law holds, some for each row."""


@dataclass(frozen=True)
class GaussianLaw:
    """Independent normal coordinates.

    Examples
    --------
    >>> GaussianLaw(2.0).uniforms(np.array([[0.0, 2.0]])).round(4).tolist()
    [[0.5, 0.8413]]
    """

    deviation: float

    def log_density(self, noise: Floats) -> Floats:
        return np.asarray(-0.5 * ((noise / self.deviation) ** 2).sum(axis=1))

    def uniforms(self, noise: Floats) -> Floats:
        return np.asarray(ndtr(noise / self.deviation))


@dataclass(frozen=True)
class LaplaceLaw:
    """A Gamma length and a uniform direction.

    Examples
    --------
    >>> LaplaceLaw(1.0).uniforms(np.array([[0.0, 1.0]])).round(4).tolist()  # of the length, of the direction
    [[0.2642, 0.5]]
    """

    scale: float

    def log_density(self, noise: Floats) -> Floats:
        return np.asarray(-np.linalg.norm(noise, axis=1) / self.scale)

    def uniforms(self, noise: Floats) -> Floats:
        """Return one for the length and one for the first coordinate of the direction."""
        size, length = noise.shape[1], np.linalg.norm(noise, axis=1)
        of_length = gammainc(size, length / self.scale)
        if size == 1:  # the direction is a sign: of both together one uniform is left
            signed = np.where(noise[:, 0] > 0, 1 - 0.5 * np.exp(-length / self.scale), 0.5 - 0.5 * of_length)
            return np.asarray(signed[:, None])
        cosine = noise[:, 0] / np.where(length > 0, length, 1.0)
        of_direction = betainc((size - 1) / 2, (size - 1) / 2, (1 + cosine) / 2)
        return np.stack([of_length, of_direction], axis=1)


@dataclass(frozen=True)
class WishartLaw:
    """A Wishart matrix of some scale and degrees of freedom less its mean, as svec.

    Examples
    --------
    >>> law = WishartLaw(scale=1.0, freedom=4.0, dim=1)
    >>> law.uniforms(np.array([[-0.6433]])).round(3).tolist(), law.log_density(np.array([[-4.5]])).tolist()
    ([[0.5]], [-inf])
    """

    scale: float
    freedom: float
    dim: int

    def log_density(self, noise: Floats) -> Floats:
        """Return the log density; it is minus infinity where the matrix is not positive."""
        matrix = self._matrix(noise)
        values = np.linalg.eigvalsh(matrix)
        positive = values[:, 0] > 0
        logs = np.log(np.where(positive[:, None], values, 1.0)).sum(axis=1)
        inside = 0.5 * (self.freedom - self.dim - 1) * logs - 0.5 * values.sum(axis=1)
        return np.where(positive, inside, -np.inf)

    def uniforms(self, noise: Floats) -> Floats:
        """Return one for each entry of the Cholesky factor; 0 where there is none."""
        matrix = self._matrix(noise)
        positive = np.linalg.eigvalsh(matrix)[:, 0] > 0
        factor = np.linalg.cholesky(np.where(positive[:, None, None], matrix, np.eye(self.dim)))
        on, below = np.arange(self.dim), np.tril_indices(self.dim, -1)
        chi = gammainc((self.freedom - on) / 2, factor[:, on, on] ** 2 / 2)
        out = np.concatenate([chi, ndtr(factor[:, below[0], below[1]])], axis=1)
        return np.where(positive[:, None], out, 0.0)

    def _matrix(self, noise: Floats) -> Floats:
        return unsvec(noise, self.dim) / self.scale + self.freedom * np.eye(self.dim)
