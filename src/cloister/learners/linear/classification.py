"""Bayesian logistic and multinomial regression: what a task does at home when its targets are classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cloister.core.arrays import Floats, States
from cloister.core.channel import Channel
from cloister.core.lifts import Plain
from cloister.learners.home import Home
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import (
    Candidate,
    Posterior,
    evidence_weights,
    log_sum,
    loose_intercept,
    mixture,
    normal_on_grid,
)
from cloister.learners.linear.losses import Softmax
from cloister.learners.linear.own_units import OwnUnits
from cloister.learners.linear.question import (
    Answers,
    Candidates,
    Question,
    centred,
    tempered,
    trust_question,
    trusted,
)
from cloister.learners.linear.softmax import NEGLIGIBLE, LaplaceFit, laplace, mode, posterior

if TYPE_CHECKING:
    from cloister.core.tasks import Block


#: Grid of the prior's variance, for rows of norm at most about 1; in own units, of all slopes together.
VARIANCES = np.geomspace(1e-2, 1e2, 9)
#: Log weights of variances in own units: evidence of few rows asks for less than there is.
OWN_WEIGHTS = normal_on_grid(np.log(VARIANCES), math.log(2.0), 2.0)
#: A task alone: prior deviation of an intercept from the own rates, of a slope's.
OWN_INTERCEPT = 0.5
#: With fewer rows than this a task on its own has its rates and no slopes.
LEAST_ROWS = 4


@dataclass(frozen=True, eq=False, repr=False)
class _Scored:
    """A prior's fit, its evidence times its weight by variance, and the way from its units to public ones."""

    fit: LaplaceFit
    scores: Floats
    to_public: Callable[[Floats, Floats], tuple[Floats, Floats]]


@dataclass(frozen=True)
class Classification(BayesianLearner):
    """Logistic (two classes) or multinomial regression on `dim` features, rows of norm at most about 1.

    Parameters
    ----------
    dim : int
        Number of columns, the intercept's included.
    classes : int
        Number of classes; targets are 0, 1, ... and class 0 is the reference.
    intercept : bool
        Whether column 0 is an intercept, which may vary more between tasks than slopes do.
    """

    dim: int
    classes: int = 2
    intercept: bool = True

    #: Nothing is asked before the mean is known.
    first: ClassVar[tuple[Question, ...]] = ()
    #: Intercepts vary this many times as much between tasks as slopes do, where they may.
    loose = 30.0
    #: At a variance of 1, the middle of their grid, weights vary around the mean by a prior's scale.
    widening = 1.0

    @property
    def last(self) -> tuple[Question, ...]:
        channel = Channel(len(VARIANCES), 2.0, Plain())
        scale = Question(
            "scale", "how far tasks differ", channel, (0.0, math.inf), self._variances, self._usual_variance
        )
        return scale, trust_question(self._trusts)

    @property
    def size(self) -> int:
        return (self.classes - 1) * self.dim

    @property
    def clip(self) -> float:
        """How far a task's weights may lie from the public point before its message is clipped.

        Rows of norm 1 have the smaller numbers the more columns there are, and scores the longer weights;
        with several classes each has its own.
        """
        return 2.0 if self.classes == 2 else 2.0 * math.sqrt(self.size)

    @property
    def variance(self) -> float:
        """Prior variance of the offset a task reports."""
        return 10.0 * self._stretch

    @property
    def prior_scales(self) -> tuple[float, float, float]:
        return self._stretch, 0.3 * self._stretch, self._stretch

    @property
    def own_scales(self) -> tuple[float, float]:
        return 0.2, 1 / max(1, self.dim - int(self.intercept))

    @property
    def _stretch(self) -> float:
        """What variances of weights grow by with the number of columns; two classes were measured without."""
        return 1.0 if self.classes == 2 else max(1.0, self.dim / 4)

    @property
    def loss(self) -> Softmax:
        return Softmax(self.dim, self.classes)

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
        block = home.rows
        found = mode(
            block.X, self._scores(block, point), block.y, block.weight, self.variance, classes=self.classes
        )
        return found.reshape(len(block), self.size)

    def own_weights(self, home: Home) -> Floats:
        weights: Floats = self.finish(home, (), {})["coef"]
        return weights

    def _variances(self, home: Home, candidates: Candidates, answers: Answers) -> Floats:
        """Say how well each prior variance around the mean explains the own data: centred log evidence."""
        block = home.rows
        factor = math.sqrt(self._stretch) * loose_intercept(self.dim, 3.0, self.intercept)
        fit = laplace(
            self._whiten(block, factor),
            self._scores(block, candidates[-1].mean if candidates else np.zeros(self.size)),
            block.y,
            block.weight,
            VARIANCES,
            classes=self.classes,
        )
        return centred(fit.log_evidence)

    def _usual_variance(self, value: Floats, noise: float) -> Floats:
        """Return center and sd of the log variance that explains the tasks best."""
        mass, grid = np.exp(tempered(value, noise)), np.log(VARIANCES)
        center = float(mass @ grid)
        return np.array([center, max(0.7, math.sqrt(float(mass @ (grid - center) ** 2)))])

    def finish(self, home: Home, candidates: Candidates, answers: Answers) -> States:
        """Average over candidates, prior variances and the own prior by the task's own Laplace evidence."""
        block = home.rows
        fits = self._fits(block, trusted(candidates, answers), answers)
        worth = np.stack([log_sum(part.scores) for part in fits], axis=1)
        (chances,) = evidence_weights([worth], [np.zeros(1)])
        parts = []
        for part, chance, log_evidence in zip(fits, chances.T, worth.T, strict=True):
            (share,) = evidence_weights([part.scores], [np.zeros(1)])
            found = posterior(part.fit, np.where((chance > NEGLIGIBLE)[:, None], share, 0.0))
            parts.append(Posterior(log_evidence, *part.to_public(*found)))
        shared = chances[:, : len(candidates)].sum(axis=1)
        return mixture(parts) | {"rows": block.weight.sum(axis=1), "shared_weight": shared}

    def _trusts(self, home: Home, candidates: Candidates, answers: Answers) -> Floats:
        """Say how likely the shared priors are, and the own one, by the own evidence: two parts of one."""
        block = home.rows
        if not candidates:
            return np.zeros((len(block), 2))
        *shared, own = (log_sum(part.scores) for part in self._fits(block, candidates, answers))
        both = np.stack([log_sum(np.stack(shared, axis=1)), own], axis=1)
        (chances,) = evidence_weights([both], [np.zeros(1)])
        return np.where(block.weight.sum(axis=1, keepdims=True) > 0, chances, 0.0)

    def _fits(self, block: Block, candidates: Candidates, answers: Answers) -> list[_Scored]:
        """Fit each task with every candidate and, with the weight that they leave, alone."""
        own = 1 - sum(candidate.weight for candidate in candidates)
        fits = [self._around(block, candidate, answers) for candidate in candidates]
        return fits + ([self._alone(block, own)] if own > 1e-9 else [])

    def _around(self, block: Block, candidate: Candidate, answers: Answers) -> _Scored:
        """Fit each task with a public prior."""
        if candidate.own_units:
            return self._in_own_units(block, candidate)
        grid = np.log(VARIANCES)
        follow = np.full(len(grid), -math.log(len(grid)))
        if candidate.shared and "scale" in answers:
            follow = normal_on_grid(grid, *map(float, answers["scale"]))
        X, scores = self._whiten(block, candidate.factor), self._scores(block, candidate.mean)
        fit = laplace(X, scores, block.y, block.weight, VARIANCES, classes=self.classes)

        def to_public(inner: Floats, spread: Floats) -> tuple[Floats, Floats]:
            mean = candidate.mean + (inner.reshape(len(block), 1, -1) @ candidate.factor.T)[:, 0]
            return mean, candidate.factor @ spread @ candidate.factor.T

        return _Scored(fit, fit.log_evidence + follow + math.log(candidate.weight), to_public)

    def _in_own_units(self, block: Block, candidate: Candidate) -> _Scored:
        """Fit each task around the public mean, its differences from it in the task's own units."""
        units = OwnUnits.of(block.X, block.weight, self.intercept)
        factor, scores = candidate.factor[: self.dim, : self.dim], self._scores(block, candidate.mean)
        X = units.design @ factor
        fit = laplace(X, scores, block.y, units.weight, VARIANCES, classes=self.classes)

        def to_public(inner: Floats, spread: Floats) -> tuple[Floats, Floats]:
            away = inner.reshape(len(block), self.classes - 1, -1) @ (units.back @ factor).swapaxes(1, 2)
            turn = _of_every_class(units.back @ factor, self.classes - 1)
            coef = candidate.mean + away.reshape(len(block), self.size)
            return coef, turn @ spread @ turn.swapaxes(1, 2)

        return _Scored(fit, fit.log_evidence + OWN_WEIGHTS + math.log(candidate.weight), to_public)

    def _alone(self, block: Block, weight: float = 1.0) -> _Scored:
        """Fit each task in its own units, from its own smoothed rates: slopes over a grid of variances.

        The intercepts' priors are worth one row, around the own rates: with no slopes, and for a task of one
        class, these are what it predicts.
        """
        units = OwnUnits.of(block.X, block.weight, self.intercept)
        few, q = units.total < LEAST_ROWS, self.classes - 1
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
        fit = laplace(X, scores, block.y, units.weight, variances, classes=self.classes)

        def to_public(inner: Floats, spread: Floats) -> tuple[Floats, Floats]:
            weights = np.array(inner.reshape(len(block), q, -1))
            if self.intercept:
                weights[:, :, 0] += offset / OWN_INTERCEPT
            turn = _of_every_class(back, q)
            coef = (weights @ back.swapaxes(1, 2)).reshape(len(block), self.size)
            return coef, turn @ spread @ turn.swapaxes(1, 2)

        log_evidence = fit.log_evidence + OWN_WEIGHTS + worth[:, None]
        log_evidence[:, 1:] = np.where(few[:, None], -np.inf, log_evidence[:, 1:])
        return _Scored(fit, log_evidence, to_public)

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
