r"""Bayesian regression of ordered classes: a cumulative logit with one slope vector and K - 1 ordered cuts.

.. math:: P(y \ge j) = \sigma(s - c_j), \qquad s = x^\top w, \quad 0 = c_1 < c_2 < \dots < c_{K-1}

A task's weights are :math:`w`, the intercept's included, and the logarithms of the increments
:math:`\delta_j = c_{j+1} - c_j`, as multiples of :math:`1/\sqrt d` beside those of classes that are all as
likely: any numbers are ordered cuts, noisy ones too. That is :math:`d + K - 2` numbers, where as many classes
without an order have :math:`d (K - 1)`.

The curvature is the expected one, which is never negative; the likelihood is not concave in the increments.
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
    """Ordered classes whose score and whose increments' logarithms are linear functions of coordinates."""

    tolerance: ClassVar[float] = 1e-6  # with the expected curvature steps shrink by a factor at a time

    X: Floats  # (k, n, p)
    offset: Floats  # (k, n)
    y: Integers  # (k, n)
    weight: Floats  # (k, n)
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
        return cls(
            np.where(keep[:, :, None], X, 0.0),
            np.where(keep, offset, 0.0),
            np.where(keep, y, 0.0).astype(np.int64),
            np.where(keep, weight, 0.0),
            np.broadcast_to(base, (k, most - 1)),
            np.broadcast_to(turn, (k, most - 1, p)),
        )

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.X), self.X.shape[2]

    def take(self, tasks: Integers) -> Self:
        X, offset, y, weight = self.X[tasks], self.offset[tasks], self.y[tasks], self.weight[tasks]
        return type(self)(X, offset, y, weight, self.base[tasks], self.turn[tasks])

    def value(self, u: Floats) -> Floats:
        log_odds, steps = self._at(u)
        return self._value(log_odds, steps)

    def slope(self, u: Floats) -> Slope:
        log_odds, steps = self._at(u)
        slopes = self._slopes(log_odds, steps)  # (k, n, K, 1 + K - 2)
        own = np.take_along_axis(slopes, self.y[:, :, None, None], axis=2)[:, :, 0]
        own *= -self.weight[:, :, None]
        shares = class_shares(log_odds) * self.weight[:, :, None]
        spread = (slopes * shares[:, :, :, None]).swapaxes(2, 3) @ slopes  # (k, n, 1 + e, 1 + e)
        X, turn = self.X, self.turn
        gradient = (own[:, None, :, 0] @ X)[:, 0] + (own[:, :, 1:].sum(axis=1)[:, None] @ turn)[:, 0]
        mixed = spread[:, :, 0, 1:].swapaxes(1, 2) @ X  # (k, e, p)
        curvature = (X * spread[:, :, 0, :1]).swapaxes(1, 2) @ X
        both = turn.swapaxes(1, 2) @ mixed
        curvature += both + both.swapaxes(1, 2)
        curvature += turn.swapaxes(1, 2) @ spread[:, :, 1:, 1:].sum(axis=1) @ turn
        return Slope(self._value(log_odds, steps), gradient, curvature)

    def reach(self, step: Floats) -> Floats:
        change = np.abs(self.X @ step[:, :, None])[:, :, 0]
        longest = np.where(self.weight > 0, change, 0.0).max(axis=1, initial=0.0)
        return np.asarray(longest + np.abs(self.turn @ step[:, :, None])[:, :, 0].sum(axis=1))

    def _at(self, u: Floats) -> tuple[Floats, Floats]:
        scores = self.offset + (self.X @ u[:, :, None])[:, :, 0]
        logs = self.base + (self.turn @ u[:, :, None])[:, :, 0]
        steps = np.exp(np.clip(logs, -FARTHEST, FARTHEST))
        return at_least(scores, np.broadcast_to(steps[:, None], (*scores.shape, steps.shape[1]))), steps

    def _value(self, log_odds: Floats, steps: Floats) -> Floats:
        """P(y = j) is the product of P(y >= j), P(y <= j) and, of a class between, 1 - exp(-increment)."""
        above = _with_zero(np.logaddexp(0.0, -log_odds), first=True)
        below = _with_zero(np.logaddexp(0.0, log_odds), first=False)
        between = np.zeros((len(steps), 1, above.shape[2]))
        between[:, 0, 1:-1] = -np.log(-np.expm1(-steps))
        each = np.take_along_axis(above + below + between, self.y[:, :, None], axis=2)[:, :, 0]
        return np.asarray((self.weight * each).sum(axis=1))

    def _slopes(self, log_odds: Floats, steps: Floats) -> Floats:
        """Return how the log-probability of each class changes with the score, and with each increment."""
        lower = _with_zero(expit(-log_odds), first=True)
        upper = -_with_zero(expit(log_odds), first=False)
        found = np.zeros((*lower.shape, 1 + steps.shape[1]))
        found[..., 0] = lower + upper
        for i in range(steps.shape[1]):  # the increment above class i + 1 moves all cuts beyond it
            step = steps[:, i, None]
            found[:, :, i + 2 :, i + 1] = -step[:, :, None] * found[:, :, i + 2 :, 0]
            away = step / np.maximum(np.expm1(step), 1e-300)
            found[:, :, i + 1, i + 1] = away - step * upper[:, :, i + 1]
        return found


def _with_zero(values: Floats, *, first: bool) -> Floats:
    """Return values of K - 1 cuts as values of K classes: the first has none below, the last none above."""
    zero = np.zeros_like(values[..., :1])
    return np.concatenate([zero, values] if first else [values, zero], axis=-1)


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

    def alone(self, home: Home, weight: float) -> Scored:
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
            return np.asarray(own.value(weights) / np.maximum(own.weight.sum(axis=1), 1e-300))

    def gradient(self, weights: Floats, X: Floats, y: Array, weight: Floats) -> Floats:
        with np.errstate(all="ignore"):
            own = self._likelihood(X, y, weight)
            total = np.maximum(own.weight.sum(axis=1), 1e-300)
            return np.asarray(own.slope(weights).gradient / total[:, None])

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
