r"""Losses for algorithms that follow gradients, on flat weights and for a whole block of tasks at once.

The loss of a task is the mean over its rows, by weight,

.. math:: \ell(w) = \frac{\sum_n a_n\, \ell(w; x_n, y_n)}{\sum_n a_n},

and 0 where it has none. Rows of a block never mix: data that are not finite spoil the numbers of their own
task only, quietly, and it is for the channel to make them a zero message.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Array, Floats
from cloister.core.errors import InputError
from cloister.core.spec import DataSpec, Target
from cloister.learners.linear.newton import probabilities


class Loss(ABC):
    """A mean loss of flat weights (k, p) over the rows X (k, n, d), y (k, n) with weight (k, n)."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of parameters, p."""

    @property
    def vectors(self) -> int:
        """Number of weight vectors that a row is multiplied by; flat weights have one after the other."""
        return 1

    @property
    def rows(self) -> DataSpec | None:
        """The rows it is for; None if it does not say."""
        return None

    @property
    def squared(self) -> bool:
        """Whether it is half a squared error, so that a ridge has a formula."""
        return False

    @abstractmethod
    def value(self, weights: Floats, X: Floats, y: Array, weight: Floats) -> Floats:
        """Return the mean loss of every task, of shape (k,)."""

    @abstractmethod
    def gradient(self, weights: Floats, X: Floats, y: Array, weight: Floats) -> Floats:
        """Return the gradient of the mean loss, of shape (k, p)."""

    @abstractmethod
    def smoothness(self, X: Floats, weight: Floats) -> Floats:
        """Return a Lipschitz constant of the gradient, of shape (k,)."""

    @abstractmethod
    def lipschitz(self, X: Floats, weight: Floats) -> Floats:
        """Return a Lipschitz constant of the value, of shape (k,); infinite where there is none."""

    @abstractmethod
    def predict(self, weights: Floats, X: Floats) -> Floats:
        """Return expected targets, of shape (k, n), or class probabilities, of shape (k, n, classes)."""


@dataclass(frozen=True)
class LeastSquares(Loss):
    r"""Half the squared error, :math:`\frac12 (y - x^\top w)^2`.

    Examples
    --------
    >>> X, y, weight = np.array([[[1.0], [2.0]]]), np.array([[1.0, 4.0]]), np.ones((1, 2))
    >>> loss = LeastSquares(dim=1)
    >>> loss.value(np.array([[1.0]]), X, y, weight), loss.gradient(np.array([[1.0]]), X, y, weight)
    (array([1.]), array([[-2.]]))
    >>> loss.smoothness(X, weight)
    array([2.5])
    """

    dim: int

    @property
    def size(self) -> int:
        return self.dim

    @property
    def rows(self) -> DataSpec:
        return DataSpec((self.dim,), Target.NUMBER)

    @property
    def squared(self) -> bool:
        return True

    def value(self, weights: Floats, X: Floats, y: Array, weight: Floats) -> Floats:
        with np.errstate(all="ignore"):
            return mean_loss(np.square(y - self.predict(weights, X)) / 2, weight)

    def gradient(self, weights: Floats, X: Floats, y: Array, weight: Floats) -> Floats:
        with np.errstate(all="ignore"):
            residual = row_shares(weight) * (self.predict(weights, X) - y)
            return np.asarray((residual[:, None, :] @ X)[:, 0])

    def smoothness(self, X: Floats, weight: Floats) -> Floats:
        """Return the largest eigenvalue of the mean of :math:`x x^T`."""
        return top_eigenvalue(X, weight)

    def lipschitz(self, X: Floats, weight: Floats) -> Floats:
        """Return infinity: a square has no Lipschitz constant, except for a task without features."""
        return np.where(longest_row(X, weight) == 0, 0.0, np.inf)

    def predict(self, weights: Floats, X: Floats) -> Floats:
        with np.errstate(all="ignore"):
            return np.asarray((X @ weights[:, :, None])[..., 0])


@dataclass(frozen=True)
class Logistic(Loss):
    r"""Logistic loss of targets 0 and 1, :math:`\log(1 + e^s) - y s` with the score :math:`s = x^\top w`.

    Its derivative in the score is at most 1 and its curvature at most 1/4.

    Examples
    --------
    >>> X, y, weight = np.array([[[1.0], [2.0]]]), np.array([[1.0, 0.0]]), np.ones((1, 2))
    >>> loss = Logistic(dim=1)
    >>> loss.value(np.zeros((1, 1)), X, y, weight).round(3), loss.gradient(np.zeros((1, 1)), X, y, weight)
    (array([0.693]), array([[0.25]]))
    >>> loss.smoothness(X, weight), loss.lipschitz(X, weight)
    (array([0.625]), array([2.]))
    """

    dim: int

    @property
    def size(self) -> int:
        return self.dim

    @property
    def rows(self) -> DataSpec:
        return DataSpec((self.dim,), Target.CLASS, 2)

    def value(self, weights: Floats, X: Floats, y: Array, weight: Floats) -> Floats:
        with np.errstate(all="ignore"):
            scores = (X @ weights[:, :, None])[..., 0]
            return mean_loss(np.logaddexp(0.0, scores) - y * scores, weight)

    def gradient(self, weights: Floats, X: Floats, y: Array, weight: Floats) -> Floats:
        with np.errstate(all="ignore"):
            residual = row_shares(weight) * (self.predict(weights, X) - y)
            return np.asarray((residual[:, None, :] @ X)[:, 0])

    def smoothness(self, X: Floats, weight: Floats) -> Floats:
        """Return a quarter of the largest eigenvalue of the mean of :math:`x x^T`."""
        return top_eigenvalue(X, weight) / 4

    def lipschitz(self, X: Floats, weight: Floats) -> Floats:
        """Return the length of the longest row."""
        return longest_row(X, weight)

    def predict(self, weights: Floats, X: Floats) -> Floats:
        with np.errstate(all="ignore"):
            scores = (X @ weights[:, :, None])[..., 0]
            return np.asarray(np.exp(-np.logaddexp(0.0, -scores)))


@dataclass(frozen=True)
class Softmax(Loss):
    r"""Cross-entropy of class indexes, :math:`\log(1 + \sum_c e^{s_c}) - s_y` with :math:`s_c = x^\top w_c`.

    Class 0 is the reference, :math:`s_0 = 0`; the flat weights are those of classes 1, 2, ... one after
    the other. Two classes are `Logistic`. With more, the gradient in the scores is at most
    :math:`\sqrt 2` and the curvature at most 1/2.

    Examples
    --------
    >>> X, y, weight = np.ones((1, 1, 1)), np.array([[1]]), np.ones((1, 1))
    >>> loss = Softmax(dim=1, classes=3)
    >>> loss.gradient(np.zeros((1, loss.size)), X, y, weight).round(3)
    array([[-0.667,  0.333]])
    """

    dim: int
    classes: int

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise InputError(f"classes must be at least 2. Got {self.classes}.")

    @property
    def size(self) -> int:
        return self.dim * (self.classes - 1)

    @property
    def vectors(self) -> int:
        return self.classes - 1

    @property
    def rows(self) -> DataSpec:
        return DataSpec((self.dim,), Target.CLASS, self.classes)

    def value(self, weights: Floats, X: Floats, y: Array, weight: Floats) -> Floats:
        with np.errstate(all="ignore"):
            scores = self._scores(weights, X)
            top = np.maximum(scores.max(axis=-1), 0.0)
            total = np.exp(-top) + np.exp(scores - top[..., None]).sum(axis=-1)
            chosen = np.where(self._one_hot(y), scores, 0.0).sum(axis=-1)
            return mean_loss(top + np.log(total) - chosen, weight)

    def gradient(self, weights: Floats, X: Floats, y: Array, weight: Floats) -> Floats:
        with np.errstate(all="ignore"):
            residual = self.predict(weights, X)[..., 1:] - self._one_hot(y)
            residual *= row_shares(weight)[..., None]
            return np.asarray((residual.swapaxes(1, 2) @ X).reshape(len(X), self.size))

    def smoothness(self, X: Floats, weight: Floats) -> Floats:
        """Return half (with two classes a quarter) of the largest eigenvalue of the mean of :math:`x x^T`."""
        return top_eigenvalue(X, weight) / (4 if self.classes == 2 else 2)

    def lipschitz(self, X: Floats, weight: Floats) -> Floats:
        r"""Return the length of the longest row, times :math:`\sqrt 2` with more than two classes."""
        return longest_row(X, weight) * (1 if self.classes == 2 else math.sqrt(2))

    def predict(self, weights: Floats, X: Floats) -> Floats:
        with np.errstate(all="ignore"):
            return probabilities(self._scores(weights, X))

    def _scores(self, weights: Floats, X: Floats) -> Floats:
        return np.asarray(X @ weights.reshape(len(X), self.classes - 1, self.dim).swapaxes(1, 2))

    def _one_hot(self, y: Array) -> NDArray[np.bool_]:
        return np.asarray(y[..., None] == np.arange(1, self.classes))


@dataclass(frozen=True)
class PoissonLoss(Loss):
    r"""Poisson loss of counts, :math:`e^s - y s`, a straight line beyond the score of the largest count.

    The score is :math:`x^\top w`, the middle of what is possible and, if rows have one more column for the
    logarithm of their exposure, that.

    Examples
    --------
    >>> loss, one = PoissonLoss(dim=1, most=3.0), np.ones((1, 1))
    >>> loss.predict(np.zeros((1, 1)), one[None]), loss.gradient(np.zeros((1, 1)), one[None], 2 * one, one)
    (array([[2.]]), array([[0.]]))
    """

    dim: int
    most: float = 100.0
    exposure: bool = False

    @property
    def size(self) -> int:
        return self.dim

    @property
    def rows(self) -> DataSpec:
        return DataSpec((self.dim + self.exposure,), Target.COUNT)

    def value(self, weights: Floats, X: Floats, y: Array, weight: Floats) -> Floats:
        with np.errstate(all="ignore"):
            scores = self._scores(weights, X)
            top = np.minimum(scores, math.log(self.most))
            return mean_loss(np.exp(top) * (1 + scores - top) - y * scores, weight)

    def gradient(self, weights: Floats, X: Floats, y: Array, weight: Floats) -> Floats:
        with np.errstate(all="ignore"):
            residual = row_shares(weight) * (self.predict(weights, X) - y)
            return np.asarray((residual[:, None, :] @ X[:, :, : self.dim])[:, 0])

    def smoothness(self, X: Floats, weight: Floats) -> Floats:
        """Return the largest count times the largest eigenvalue of the mean of :math:`x x^T`."""
        return self.most * top_eigenvalue(X[:, :, : self.dim], weight)

    def lipschitz(self, X: Floats, weight: Floats) -> Floats:
        """Return the largest count times the length of the longest row."""
        return self.most * longest_row(X[:, :, : self.dim], weight)

    def predict(self, weights: Floats, X: Floats) -> Floats:
        with np.errstate(all="ignore"):
            return np.asarray(np.exp(np.minimum(self._scores(weights, X), math.log(self.most))))

    def _scores(self, weights: Floats, X: Floats) -> Floats:
        scores = (X[:, :, : self.dim] @ weights[:, :, None])[..., 0] + middle_of(self.most)
        return np.asarray(scores + X[:, :, self.dim] if self.exposure else scores)


def middle_of(most: float) -> float:
    """Return the logarithm of a count in the middle of what is possible."""
    return 0.5 * math.log1p(most)


def row_shares(weight: Floats) -> Floats:
    """Return weights that sum to 1 over the rows of a task, or are all 0."""
    total = weight.sum(axis=1, keepdims=True)
    return weight / np.where(total == 0, 1.0, total)


def mean_loss(losses: Floats, weight: Floats) -> Floats:
    return np.asarray((row_shares(weight) * losses).sum(axis=1))


def longest_row(X: Floats, weight: Floats) -> Floats:
    """Return the length of the longest row of each task; infinite for data that are not finite."""
    with np.errstate(all="ignore"):
        lengths = np.sqrt(np.square(X).sum(axis=2))
        longest = np.where(weight == 0, 0.0, lengths).max(axis=1, initial=0.0)
    return np.where(np.isnan(longest), np.inf, longest)


def top_eigenvalue(X: Floats, weight: Floats) -> Floats:
    """Return the largest eigenvalue of the mean of ``x x'``; infinite for data that are not finite."""
    with np.errstate(all="ignore"):
        gram = (X * row_shares(weight)[..., None]).swapaxes(1, 2) @ X
    finite = np.asarray(np.isfinite(gram).all(axis=(1, 2)))
    # One matrix that is not finite would fail the decomposition of all.
    values = np.linalg.eigvalsh(np.where(finite[:, None, None], gram, 0.0))
    return np.where(finite, np.maximum(values[:, -1], 0.0), np.inf)
