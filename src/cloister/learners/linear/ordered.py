r"""Bayesian regression of ordered classes: a cumulative logit with one slope vector and K - 1 ordered cuts.

.. math:: P(y \ge j) = \sigma(s - c_j), \qquad s = x^\top w, \quad 0 = c_1 < c_2 < \dots < c_{K-1}

A task's weights are :math:`w`, the intercept's included, and the logarithms of the increments
:math:`\delta_j = c_{j+1} - c_j`, as multiples of :math:`1/\sqrt d` beside those of classes that are all as
likely: any numbers are ordered cuts, noisy ones too. That is :math:`d + K - 2` numbers, where as many classes
without an order have :math:`d (K - 1)`.

The likelihood is concave in score and cuts (Pratt, JASA 76, 1981), and not in the increments' logarithms. So
its curvature is that in the former, and what the latter bend where that is more: it is never negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from scipy.special import expit, logit

from cloister.core.arrays import Array, Floats, Integers, States
from cloister.core.cuts import FARTHEST, at_least, class_shares, ordered_steps, usual_cuts
from cloister.core.errors import InputError
from cloister.core.spec import DataSpec, Target
from cloister.core.tasks import Block
from cloister.learners.home import Home
from cloister.learners.linear.average import Candidate, loose_intercept
from cloister.learners.linear.by_evidence import (
    OWN_INTERCEPT,
    VARIANCES,
    EvidenceLearner,
    Scored,
    by_class,
    check_class_weight,
    own_design,
    product,
    scored_around,
)
from cloister.learners.linear.home_constants import TRUST
from cloister.learners.linear.likelihood import Likelihood, Slope, find_mode, modes_by_variance
from cloister.learners.linear.losses import Loss, longest_row
from cloister.learners.linear.own_units import OwnUnits

#: Beyond these, numbers are no data.
_ABSURD = 1e100


@dataclass(frozen=True, eq=False, repr=False)
class OrderedRows(Likelihood):
    r"""Ordered classes whose score and whose increments' logarithms are linear functions of coordinates.

    With the log-odds :math:`a = s - c_y` of a row's class or more, and :math:`\delta` the increment above it,

    .. math:: -\log P(y) = \log(1 + e^{-a}) + \log(1 + e^{a - \delta}) - \log(1 - e^{-\delta}),

    without the first term for the first class, and with the first alone for the last. That is convex in a and
    all increments.
    """

    tolerance: ClassVar[float] = 1e-6  # where the curvature is not all, steps shrink by a factor at a time

    X: Floats  # (k, n, p)
    offset: Floats  # (k, n)
    lowest: Floats  # (k, n): weights of rows of all classes but the first
    highest: Floats  # (k, n): and but the last
    below: Floats  # (k, n, K - 2): 1 for each increment below the row's class
    above: Floats  # (k, n, K - 2): 1 for the one above it, if there is one
    base: Floats  # (k, K - 2)
    turn: Floats  # (k, K - 2, p)

    @classmethod
    def of(cls, X: Floats, offset: Floats, block: Block, base: Floats, turn: Floats) -> OrderedRows:
        """Zero padding, and every row of a task with a value that is not finite, absurd or no class."""
        (k, _, p), most = X.shape, base.shape[-1] + 1
        y, weight, there = block.y, block.weight, block.weight > 0
        with np.errstate(invalid="ignore"):  # NaN fails every comparison
            sane = (np.abs(X) <= _ABSURD).all(axis=2) & (np.abs(offset) <= _ABSURD)
            sane &= (y >= 0) & (y <= most) & (y == np.floor(y)) & (weight <= _ABSURD)
            keep = there & (sane | ~there).all(axis=1, keepdims=True)
        y, weight, place = np.where(keep, y, 0.0), np.where(keep, weight, 0.0), np.arange(1, most)
        return cls(
            np.where(keep[:, :, None], X, 0.0),
            np.where(keep, offset, 0.0),
            np.where(y > 0, weight, 0.0),
            np.where(y < most, weight, 0.0),
            (y[:, :, None] > place).astype(np.float64),
            (y[:, :, None] == place).astype(np.float64),
            np.broadcast_to(base, (k, most - 1)),
            np.broadcast_to(turn, (k, most - 1, p)),
        )

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.X), self.X.shape[2]

    @property
    def total(self) -> Floats:
        """The weight of each task's rows."""
        return np.asarray(np.maximum(self.lowest, self.highest).sum(axis=1))

    def take(self, tasks: Integers) -> Self:
        parts = self.X, self.offset, self.lowest, self.highest, self.below, self.above, self.base, self.turn
        return type(self)(*(part[tasks] for part in parts))

    def value(self, u: Floats) -> Floats:
        return self._value(*self._at(u))

    def slope(self, u: Floats) -> Slope:
        here, further, steps = self._at(u)
        up = self.highest * expit(further)
        down, bent = self.lowest * expit(-here), up * expit(-further)
        curved = down * expit(here) + bent
        rest = steps / np.maximum(np.expm1(steps), 1e-300)  # minus how -log(1 - exp(-increment)) falls
        between = (self.lowest[:, None, :] @ self.above)[:, 0]  # weights of rows below each increment
        falls = ((up - down)[:, None, :] @ self.below + up[:, None, :] @ self.above)[:, 0] * steps
        falls += between * rest  # minus the gradient in the increments' logarithms
        gradient = ((up - down)[:, None, :] @ self.X - falls[:, None, :] @ self.turn)[:, 0]
        moved = steps[:, :, None] * self.turn
        X, own = self.X - self.below @ moved, self.above * bent[:, :, None]
        mixed = X.swapaxes(1, 2) @ (own @ moved)
        inside = own.sum(axis=1) * steps**2 + between * rest * (steps + rest) + np.maximum(-falls, 0.0)
        curvature = (X * curved[:, :, None]).swapaxes(1, 2) @ X - mixed - mixed.swapaxes(1, 2)
        curvature += self.turn.swapaxes(1, 2) @ (inside[:, :, None] * self.turn)
        return Slope(self._value(here, further, steps), gradient, curvature)

    def reach(self, step: Floats) -> Floats:
        change = np.abs(self.X @ step[:, :, None])[:, :, 0]
        there = self.lowest + self.highest > 0
        longest = np.where(there, change, 0.0).max(axis=1, initial=0.0)
        return np.asarray(longest + np.abs(self.turn @ step[:, :, None])[:, :, 0].sum(axis=1))

    def _at(self, u: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the log-odds of each row's class or more, and of a higher one; and the increments."""
        logs = self.base + (self.turn @ u[:, :, None])[:, :, 0]
        steps = np.exp(np.clip(logs, -FARTHEST, FARTHEST))
        here = self.offset + (self.X @ u[:, :, None] - self.below @ steps[:, :, None])[:, :, 0]
        return here, here - (self.above @ steps[:, :, None])[:, :, 0], steps

    def _value(self, here: Floats, further: Floats, steps: Floats) -> Floats:
        each = self.lowest * _softplus(-here) + self.highest * _softplus(further)
        between = (self.lowest[:, None, :] @ self.above)[:, 0]
        return np.asarray(each.sum(axis=1) - (between * np.log(-np.expm1(-steps))).sum(axis=1))


def _softplus(x: Floats) -> Floats:
    return np.asarray(np.maximum(x, 0.0) + np.log(1 + np.exp(-np.abs(x))))


@dataclass(frozen=True)
class OrderedClassification(EvidenceLearner):
    """Cumulative logit of ordered classes, on rows of norm at most about 1.

    Parameters
    ----------
    width : int
        Number of columns, the intercept's included.
    classes : int
        Number of classes, in order from 0; three at least.
    intercept : bool
        Whether column 0 is an intercept, which may vary more between tasks than slopes do.
    class_weight : tuple of float, optional
        How many rows a row of each class counts as; public.
    """

    width: int
    classes: int = 3
    intercept: bool = True
    class_weight: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.classes < 3:
            raise InputError(
                f"Ordered classes must be three at least. Got {self.classes}. Of two, one is all."
            )
        check_class_weight(self.class_weight, self.classes)

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.width + self.classes - 2

    @property
    def size(self) -> int:
        return self.dim

    @property
    def columns(self) -> int:
        return self.width

    @property
    def clip(self) -> float:
        """How far a task's weights may lie from the public point before its message is clipped."""
        return 2.0

    @property
    def variance(self) -> float:
        """Prior variance of the offset a task reports."""
        return 3.0

    @property
    def loss(self) -> OrderedLoss:
        return OrderedLoss(self.width, self.classes)

    def prepare(self, block: Block) -> States:
        return {}

    def offset(self, home: Home, point: Floats) -> Floats:
        """Return the most probable offset from a public point under a wide prior."""
        return find_mode(
            self._rows(by_class(home.rows, self.class_weight), np.eye(self.dim), point), self.variance
        )

    def variance_evidence(self, home: Home, mean: Floats) -> Floats:
        factor = math.sqrt(self.prior_scales[1]) * loose_intercept(self.dim, self.loose, self.intercept)
        return modes_by_variance(
            self._rows(by_class(home.rows, self.class_weight), factor, mean), VARIANCES
        ).log_evidence

    def around(self, home: Home, candidate: Candidate, follow: Floats) -> Scored:
        block, factor = by_class(home.rows, self.class_weight), np.asarray(candidate.factor)
        if candidate.own_units:
            units = OwnUnits.of(block.X, block.weight, self.intercept)
            rows = self._around(block, own_design(units) @ factor[: self.width], factor, candidate.mean)
            factor = self._wider(units.back) @ factor
        else:
            rows = self._rows(block, factor, candidate.mean)
        return scored_around(modes_by_variance(rows, VARIANCES), candidate, factor, follow)

    def alone(self, home: Home, weight: float, *, tested: bool = False) -> Scored:
        """Fit each task in its own units, from its own smoothed rates: slopes over a grid of variances.

        The cuts' priors are worth one row, around the own rates: with no slopes, and for a task of one class,
        these are what it predicts.
        """
        block, e = by_class(home.rows, self.class_weight), self.classes - 2
        units = OwnUnits.of(block.X, block.weight, self.intercept)
        few, unit = units.total < TRUST.few, np.full(self.dim, 1.0)
        design = np.where(few[:, None, None], 0.0, units.design)
        level, logs = self._own_cuts(block, units.weight)
        unit[self.width :] = OWN_INTERCEPT * math.sqrt(self.width)
        if self.intercept:
            design[..., 0] = np.where(units.weight > 0, 1.0, 0.0)
            unit[0] = OWN_INTERCEPT
        else:
            level = np.full(len(block), usual_cuts(self.classes)[0])
        design = np.concatenate([design, np.zeros((*block.y.shape, e))], axis=2) * unit
        turn = np.eye(self.dim)[self.width :] * unit / math.sqrt(self.width)
        scores = np.broadcast_to(level[:, None], block.y.shape)
        fit = modes_by_variance(
            OrderedRows.of(design, scores, block, logs, turn), VARIANCES / max(1, units.rows.shape[2])
        )
        start = np.zeros((len(block), self.dim))
        start[:, 0] = (level - usual_cuts(self.classes)[0]) * self.intercept
        start[:, self.width :] = (logs - usual_cuts(self.classes)[1]) * math.sqrt(self.width)
        back = self._wider(units.back)

        def to_public(share: Floats) -> tuple[Floats, Floats]:
            inner, spread = fit.posterior(share)
            turned = back * unit
            coef = (back @ (start + inner * unit)[:, :, None])[:, :, 0]
            return coef, turned @ spread @ turned.swapaxes(1, 2)

        log_evidence = fit.log_evidence + self.own_variance_weights(few) + math.log(weight)
        log_evidence -= 0.5 * (e + self.intercept) * np.log1p(units.total)[:, None]
        return Scored(log_evidence, to_public)

    def _own_cuts(self, block: Block, weight: Floats) -> tuple[Floats, Floats]:
        """Return each task's score and logarithms of increments at its rates, half a row added to each."""
        counts = (weight[:, None, :] @ (block.y[..., None] == np.arange(self.classes)))[:, 0] + 0.5
        more = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1]
        log_odds = logit(more[:, 1:] / more[:, :1])
        return log_odds[:, 0], np.log(log_odds[:, :-1] - log_odds[:, 1:])

    def _rows(self, block: Block, factor: Floats, mean: Floats) -> OrderedRows:
        return self._around(block, product(block.X, factor[: self.width]), factor, mean)

    def _around(self, block: Block, design: Floats, factor: Floats, mean: Floats) -> OrderedRows:
        start, logs = usual_cuts(self.classes)
        root = math.sqrt(self.width)
        base, turn = logs + mean[self.width :] / root, factor[self.width :] / root
        return OrderedRows.of(design, start + product(block.X, mean[: self.width]), block, base, turn)

    def _wider(self, back: Floats) -> Floats:
        """Return a way from own units to public ones, with the increments, which have no units."""
        found = np.zeros((len(back), self.dim, self.dim))
        found[:] = np.eye(self.dim)
        found[:, : self.width, : self.width] = back
        return found


@dataclass(frozen=True)
class OrderedLoss(Loss):
    """Log-loss of ordered classes by a cumulative logit.

    Examples
    --------
    >>> loss, one = OrderedLoss(width=1, classes=4), np.ones((1, 1, 1))
    >>> loss.predict(np.zeros((1, 3)), one).round(3)
    array([[[0.25, 0.25, 0.25, 0.25]]])
    """

    width: int
    classes: int = 3

    @property
    def size(self) -> int:
        return self.width + self.classes - 2

    @property
    def rows(self) -> DataSpec:
        return DataSpec((self.width,), Target.CLASS, self.classes)

    def value(self, weights: Floats, X: Floats, y: Array, weight: Floats) -> Floats:
        with np.errstate(all="ignore"):
            own = self._likelihood(X, y, weight)
            return np.asarray(own.value(weights) / np.maximum(own.total, 1e-300))

    def gradient(self, weights: Floats, X: Floats, y: Array, weight: Floats) -> Floats:
        with np.errstate(all="ignore"):
            own = self._likelihood(X, y, weight)
            return np.asarray(own.slope(weights).gradient / np.maximum(own.total, 1e-300)[:, None])

    def smoothness(self, X: Floats, weight: Floats) -> Floats:
        """Return infinity: increments are exponentials."""
        return np.where(longest_row(X, weight) == 0, 0.0, np.inf)

    def lipschitz(self, X: Floats, weight: Floats) -> Floats:
        """Return infinity: increments are exponentials."""
        return np.where(longest_row(X, weight) == 0, 0.0, np.inf)

    def predict(self, weights: Floats, X: Floats) -> Floats:
        with np.errstate(all="ignore"):
            start, logs = usual_cuts(self.classes)
            scores = start + (X @ weights[:, : self.width, None])[..., 0]
            steps = ordered_steps(weights[:, self.width :], self.width, logs)
            return class_shares(at_least(scores, np.broadcast_to(steps[:, None], (*scores.shape, len(logs)))))

    def _likelihood(self, X: Floats, y: Array, weight: Floats) -> OrderedRows:
        start, logs = usual_cuts(self.classes)
        k = len(X)
        block = Block(np.arange(k), X, y, weight, np.zeros(k, np.uint64))
        wide = np.concatenate([X, np.zeros((*X.shape[:2], len(logs)))], axis=2)
        turn = np.eye(self.size)[self.width :] / math.sqrt(self.width)
        return OrderedRows.of(wide, np.full(X.shape[:2], start), block, logs, turn)
