"""Bayesian logistic and multinomial regression: what a task does at home when its targets are classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloister.core.arrays import Floats, States
from cloister.learners.home import Home
from cloister.learners.linear.average import Candidate, loose_intercept
from cloister.learners.linear.by_evidence import (
    OWN_INTERCEPT,
    VARIANCES,
    EvidenceLearner,
    Scored,
    by_class,
    check_class_weight,
)
from cloister.learners.linear.home_constants import SCORE, TRUST
from cloister.learners.linear.losses import Softmax
from cloister.learners.linear.newton import mixed, unmixed
from cloister.learners.linear.own_units import OwnUnits
from cloister.learners.linear.question import Answers, Candidates, heard, trusted
from cloister.learners.linear.residuals import OfTwoClasses, Residuals
from cloister.learners.linear.softmax import laplace, mode, posterior

if TYPE_CHECKING:
    from cloister.core.tasks import Block


@dataclass(frozen=True)
class Classification(EvidenceLearner):
    """Logistic (two classes) or multinomial regression on `dim` features, rows of norm at most about 1.

    Parameters
    ----------
    dim : int
        Number of columns, the intercept's included.
    classes : int
        Number of classes; targets are 0, 1, ... and class 0 is the reference.
    intercept : bool
        Whether column 0 is an intercept, which may vary more between tasks than slopes do.
    class_weight : tuple of float, optional
        How many rows a row of each class counts as; public.
    alike : bool, optional
        Whether tasks tell of several classes alike, in coordinates in which the prior is isotropic, and half
        as far. Weights against class 0 give most of a clipped message to what that one differs by from all
        others. Earlier plans do not say it, and their tasks tell those.
    """

    dim: int
    classes: int = 2
    intercept: bool = True
    class_weight: tuple[float, ...] | None = None
    alike: bool | None = None

    def __post_init__(self) -> None:
        check_class_weight(self.class_weight, self.classes)

    @property
    def size(self) -> int:
        return (self.classes - 1) * self.dim

    @property
    def clip(self) -> float:
        """How far a task's weights may lie from the public point before its message is clipped.

        Rows of norm 1 have the smaller numbers the more columns there are, and scores the longer weights;
        with several classes each has its own.
        """
        if self.classes == 2:
            return SCORE.clip
        return (SCORE.clip_alike if self.alike else SCORE.clip) * math.sqrt(self.size)

    @property
    def variance(self) -> float:
        """Prior variance of the offset a task reports."""
        return SCORE.told * self._stretch

    @property
    def prior_scales(self) -> tuple[float, float, float]:
        return self._stretch, SCORE.slopes * self._stretch, self._stretch

    @property
    def _stretch(self) -> float:
        """What variances of weights grow by with the number of columns; two classes were measured without."""
        return 1.0 if self.classes == 2 else max(1.0, self.dim / SCORE.columns)

    @property
    def loss(self) -> Softmax:
        return Softmax(self.dim, self.classes)

    @property
    def residuals(self) -> Residuals | None:
        """Two classes have them: with weights of classes, rows of some would say more than others'."""
        if self.classes > 2 or self.class_weight is not None:
            return None
        return OfTwoClasses(self.intercept)

    def prepare(self, block: Block) -> States:
        return {}

    def _shape(self, flat: Floats) -> Floats:
        return flat.reshape(*flat.shape[:-1], self.classes - 1, self.dim)

    def _scores(self, block: Block, point: Floats) -> Floats:
        with np.errstate(all="ignore"):  # data that overflow count as no data
            scores: Floats = block.X @ self._shape(point).T
        return scores

    def offset(self, home: Home, point: Floats) -> Floats:
        """Return the most probable offset from a public point under a wide prior."""
        block = by_class(home.rows, self.class_weight)
        found = mode(
            block.X, self._scores(block, point), block.y, block.weight, self.variance, classes=self.classes
        )
        return (unmixed(found) if self.alike else found).reshape(len(block), self.size)

    def weights_of(self, told: Floats) -> Floats:
        if not self.alike:
            return told
        return mixed(told.reshape(-1, self.classes - 1, self.dim)).reshape(told.shape)

    def variance_evidence(self, home: Home, mean: Floats) -> Floats:
        block = by_class(home.rows, self.class_weight)
        factor = math.sqrt(self._stretch) * loose_intercept(self.dim, SCORE.loose, self.intercept)
        X, scores = self._whiten(block, factor), self._scores(block, mean)
        fit = laplace(X, scores, block.y, block.weight, VARIANCES, classes=self.classes)
        return fit.log_evidence

    def around(self, home: Home, candidate: Candidate, follow: Floats) -> Scored:
        block = by_class(home.rows, self.class_weight)
        if candidate.own_units:
            return self._in_own_units(block, candidate, follow)
        X, scores = self._whiten(block, candidate.factor), self._scores(block, candidate.mean)
        tested = candidate.tested
        fit = laplace(X, scores, block.y, block.weight, VARIANCES, classes=self.classes, tested=tested)

        def to_public(share: Floats) -> tuple[Floats, Floats]:
            inner, spread = posterior(fit, share)
            mean = candidate.mean + (inner.reshape(len(block), 1, -1) @ candidate.factor.T)[:, 0]
            return mean, candidate.factor @ spread @ candidate.factor.T

        return Scored(fit.log_evidence + follow + math.log(candidate.weight), to_public, fit.left_out)

    def around_all(self, home: Home, candidates: Candidates, follow: list[Floats]) -> list[Scored]:
        """Fit a single task with all priors at once, as if it were several tasks: that is quicker."""
        if len(home) != 1 or any(one.own_units for one in candidates) or not candidates:
            return super().around_all(home, candidates, follow)
        block, count = by_class(home.rows, self.class_weight), len(candidates)
        X = np.concatenate([self._whiten(block, one.factor) for one in candidates])
        scores = np.concatenate([self._scores(block, one.mean) for one in candidates])
        y, weight = (np.repeat(part, count, axis=0) for part in (block.y, block.weight))
        tested = any(one.tested for one in candidates)
        fit = laplace(X, scores, y, weight, VARIANCES, classes=self.classes, tested=tested)

        def scored(at: int, candidate: Candidate) -> Scored:
            def to_public(share: Floats) -> tuple[Floats, Floats]:
                inner, spread = posterior(fit, np.where(np.arange(count)[:, None] == at, share, 0.0))
                mean = candidate.mean + inner[at].reshape(1, -1) @ candidate.factor.T
                return mean, candidate.factor @ spread[[at]] @ candidate.factor.T

            scores = fit.log_evidence[[at]] + follow[at] + math.log(candidate.weight)
            return Scored(scores, to_public, None if fit.left_out is None else fit.left_out[[at]])

        return [scored(at, one) for at, one in enumerate(candidates)]

    def _in_own_units(self, block: Block, candidate: Candidate, follow: Floats) -> Scored:
        """Fit each task around the public mean, its differences from it in the task's own units."""
        units = OwnUnits.of(block.X, block.weight, self.intercept)
        factor, scores = candidate.factor[: self.dim, : self.dim], self._scores(block, candidate.mean)
        X = units.design @ factor
        few, slopes = units.total < TRUST.few, slice(int(self.intercept), None)  # they know no own units
        X[:, :, slopes] = np.where(few[:, None, None], 0.0, X[:, :, slopes])
        fit = laplace(X, scores, block.y, units.weight, VARIANCES, classes=self.classes)

        def to_public(share: Floats) -> tuple[Floats, Floats]:
            inner, spread = posterior(fit, share)
            away = inner.reshape(len(block), self.classes - 1, -1) @ (units.back @ factor).swapaxes(1, 2)
            turn = _of_every_class(units.back @ factor, self.classes - 1)
            coef = candidate.mean + away.reshape(len(block), self.size)
            return coef, turn @ spread @ turn.swapaxes(1, 2)

        return Scored(fit.log_evidence + follow + math.log(candidate.weight), to_public)

    def alone(self, home: Home, weight: float, *, tested: bool = False) -> Scored:
        """Fit each task in its own units, from its own smoothed rates: slopes over a grid of variances.

        The intercepts' priors are worth one row, around the own rates: with no slopes, and for a task of one
        class, these are what it predicts.
        """
        block = by_class(home.rows, self.class_weight)
        units = OwnUnits.of(block.X, block.weight, self.intercept)
        few, q = units.total < TRUST.few, self.classes - 1
        X, offset = np.where(few[:, None, None], 0.0, units.design), np.zeros((len(block), q))
        back = units.back
        worth = np.full(len(block), math.log(weight))
        if self.intercept:
            X[..., 0] = np.where(units.weight > 0, OWN_INTERCEPT, 0.0)
            back[..., 0] *= OWN_INTERCEPT
            counts = (units.weight[:, None, :] @ (block.y[..., None] == np.arange(self.classes)))[:, 0]
            odds = np.log(counts + 0.5)
            offset = odds[:, 1:] - odds[:, :1]
            worth -= 0.5 * q * np.log1p(units.total)
        variances = VARIANCES / max(1, units.rows.shape[2])
        scores = np.broadcast_to(offset[:, None, :], (*block.y.shape, q))
        fit = laplace(X, scores, block.y, units.weight, variances, classes=self.classes, tested=tested)

        def to_public(share: Floats) -> tuple[Floats, Floats]:
            inner, spread = posterior(fit, share)
            weights = np.array(inner.reshape(len(block), q, -1))
            if self.intercept:
                weights[:, :, 0] += offset / OWN_INTERCEPT
            turn = _of_every_class(back, q)
            coef = (weights @ back.swapaxes(1, 2)).reshape(len(block), self.size)
            return coef, turn @ spread @ turn.swapaxes(1, 2)

        scores = fit.log_evidence + self.own_variance_weights(few) + worth[:, None]
        return Scored(scores, to_public, fit.left_out)

    def rely(self, candidates: Candidates, answers: Answers, *, few: bool) -> list[Candidate]:
        """Weigh candidates by what others said; those of few rows by what was heard, if these were not."""
        unheard = math.isinf(answers["trust"][1])
        return heard(candidates) if few and unheard else trusted(candidates, answers)

    def _whiten(self, block: Block, factor: Floats) -> Floats:
        """Return features times a factor's block for one class: candidates treat all classes alike."""
        with np.errstate(all="ignore"):
            return np.asarray(block.X @ factor[: self.dim, : self.dim])


def _of_every_class(turn: Floats, q: int) -> Floats:
    """Repeat each task's (d, d) matrix along the diagonal, once for each class but the reference."""
    k, d, _ = turn.shape
    out = np.zeros((k, q, d, q, d))
    for c in range(q):
        out[:, c, :, c] = turn
    return out.reshape(k, q * d, q * d)
