r"""What a record says of its target beside its row: how far that is from what a public point expects.

It is one value a kind of target. With the score :math:`s = x^\top w` and the expectation :math:`h(s)`, sums
of rows times residuals from a point :math:`\nu` are about

.. math:: \sum_n x_n r_n \approx \sum_n x_n \left( h(x_n^\top \omega) - h(x_n^\top \nu) \right).

Numbers expect the score itself, so that this is linear in :math:`\omega`. Where it is not, rows are taken for
normal: then :math:`E\, x\, h(x^\top w)` is the mean of rows times that of h, and their covariance times w and
the mean slope of h (Stein's lemma), all of it a function of public moments.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.special import expit, ndtr

from cloister.core.arrays import Array, Floats
from cloister.learners.linear.home_constants import RESIDUAL, SCORE
from cloister.learners.linear.question import Answers


class Linear(NamedTuple):
    """What a record's part of a score is about: ``share * moments @ (weights - at) - gap``.

    It is wrong by numbers of the variance `unsure`.
    """

    share: float
    at: Floats
    gap: Floats | float = 0.0
    unsure: float = 0.0


class Residuals(ABC):
    """What records say of targets of one kind."""

    #: How often what is expected is made linear, each time nearer to where weights are.
    passes: ClassVar[int] = 1

    @abstractmethod
    def variance(self, target: float) -> float:
        """Return the variance of scores beforehand, if targets' deviation is thought to be `target`."""

    @abstractmethod
    def rows(self, X: Array) -> Floats:
        """Return rows as they are told: of length 1 at most."""

    @abstractmethod
    def residual(self, X: Array, y: Array, point: Floats, clip: float) -> Floats:
        """Return residuals from a public point, within the clip."""

    @abstractmethod
    def clip(self, level: float, variance: float) -> float:
        """Return how large a residual may be, by how far they spread; a level of 0 if nobody knows yet."""

    @abstractmethod
    def level(self, square: float, clip: float) -> float:
        """Return the deviation of residuals whose mean square, in clips, is this."""

    @abstractmethod
    def left(self, level: float, explained: float) -> float:
        """Return it as seen from a point that explains so much more of its square."""

    @abstractmethod
    def linear(self, point: Floats, clip: float, level: float, around: Floats, moments: Floats) -> Linear:
        """Return what a score from a point is about near some weights, by public moments of rows."""

    @abstractmethod
    def step(self, around: Floats, mean: Floats, moments: Floats) -> Floats:
        """Return where to make it linear next, if the mean seemed to be there from around here."""

    @abstractmethod
    def answers(self, level: float) -> Answers:
        """Return what tasks at home hear of the residuals, and of how far they differ."""


class OfNumbers(Residuals):
    r"""Numbers: :math:`\mathrm{clip}_c(y - x^\top\nu)`, the clip a little over the residuals' deviation."""

    def variance(self, target: float) -> float:
        return target**2

    def rows(self, X: Array) -> Floats:
        """Return them as they are: in the units found they have been made shorter with their targets."""
        return np.asarray(X)

    def residual(self, X: Array, y: Array, point: Floats, clip: float) -> Floats:
        return np.asarray(np.clip(y - (X * point).sum(axis=-1), -clip, clip))

    def clip(self, level: float, variance: float) -> float:
        return float(RESIDUAL.clip * (level or math.sqrt(variance)))

    def level(self, square: float, clip: float) -> float:
        return clip * spread_in_clips(square)

    def left(self, level: float, explained: float) -> float:
        return math.sqrt(max(level**2 - explained, RESIDUAL.exact * level**2))

    def linear(self, point: Floats, clip: float, level: float, around: Floats, moments: Floats) -> Linear:
        return Linear(float(1 - 2 * ndtr(-clip / level)), point)

    def step(self, around: Floats, mean: Floats, moments: Floats) -> Floats:
        return mean

    def answers(self, level: float) -> Answers:
        return {"level": np.array([2 * math.log(level), RESIDUAL.usual])}


class OfTwoClasses(Residuals):
    r"""Two classes: :math:`y - h(x^\top\nu)`, h being logistic, with all of a row and not what of it is told.

    It is 1 at most by itself, and a half from zero, where the first look is from: no residual is clipped.
    Rows longer than 1 are made shorter after it, which leaves it without a bias at the mean.

    Parameters
    ----------
    intercept : bool
        Whether column 0 is constant: rows then lie around a mean, and not around zero.
    """

    passes = RESIDUAL.passes

    def __init__(self, intercept: bool = True) -> None:
        self.intercept = intercept

    def variance(self, target: float) -> float:
        return RESIDUAL.scores

    def rows(self, X: Array) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            length = np.sqrt(np.square(X).sum(axis=-1, keepdims=True))
            return np.asarray(X / np.where(np.isfinite(length), np.maximum(length, 1.0), np.nan))

    def residual(self, X: Array, y: Array, point: Floats, clip: float) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.clip(y - expit((X * point).sum(axis=-1)), -clip, clip))

    def clip(self, level: float, variance: float) -> float:
        """Return 1, or a half for the first look: from zero, where either class is expected by half."""
        return 1.0 if level else 0.5

    def level(self, square: float, clip: float) -> float:
        return math.sqrt(min(max(clip**2 * square, RESIDUAL.rarest), 0.5**2))

    def left(self, level: float, explained: float) -> float:
        return level

    def linear(self, point: Floats, clip: float, level: float, around: Floats, moments: Floats) -> Linear:
        before, _ = self._expected(point, moments)
        now, slope = self._expected(around, moments)
        unsure = RESIDUAL.misfit**2 * float(np.square(now - before).mean())
        return Linear(slope, around, before - now, unsure)

    def step(self, around: Floats, mean: Floats, moments: Floats) -> Floats:
        """Return a point on the way: a step that changes scores by more than 1 is made shorter."""
        away = mean - around
        change = math.sqrt(float(away @ moments @ away))
        return around + away * (math.log1p(change) / change if change > 1 else 1.0)

    def answers(self, level: float) -> Answers:
        return {"scale": np.array([0.0, SCORE.usual_sd])}

    def _expected(self, weights: Floats, moments: Floats) -> tuple[Floats, float]:
        """Return the mean of a row times what is expected of it, and the mean slope of that in scores."""
        middle = self.intercept * moments[0] / math.sqrt(moments[0, 0])
        level, both = float(middle @ weights), moments @ weights
        spread = math.sqrt(max(float(weights @ both) - level**2, 0.0))
        expected = expit(level + spread * NODES)
        slope = float(SHARES @ (expected * (1 - expected)))
        return float(SHARES @ expected) * middle + slope * (both - level * middle), slope


#: A normal, by so many of its values and what each of them weighs.
NODES = np.linspace(-RESIDUAL.reach, RESIDUAL.reach, RESIDUAL.nodes)
SHARES = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()


def spread_in_clips(square: float) -> float:
    """Return the deviation of normal residuals, in clips, whose mean square is this after clipping.

    Examples
    --------
    >>> round(spread_in_clips(0.45), 2), round(spread_in_clips(-1.0), 2)
    (0.85, 0.01)
    """
    spreads = np.geomspace(RESIDUAL.narrowest, 2, RESIDUAL.spreads)
    limits = 1 / spreads
    beyond, density = 2 * ndtr(-limits), np.exp(-(limits**2) / 2) / math.sqrt(2 * math.pi)
    inside = spreads**2 * (1 - beyond - 2 * limits * density)
    return float(np.interp(square, inside + beyond, spreads))
