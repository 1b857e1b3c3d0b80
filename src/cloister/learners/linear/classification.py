"""Bayesian logistic and multinomial regression: what a task does at home when its targets are classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cloister.arrays import Floats, States
from cloister.channel import Channel, Plain
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import (
    Candidate,
    evidence_weights,
    loose_intercept,
    normal_on_grid,
    own_candidates,
)
from cloister.learners.linear.losses import Softmax
from cloister.learners.linear.question import Candidates, Question, Said, centred, tempered
from cloister.learners.linear.softmax import NEGLIGIBLE, laplace, mode, posterior

if TYPE_CHECKING:
    from cloister.tasks import Block

__all__ = ["Classification"]


#: Grid of the prior's variance, for rows of norm at most about 1.
VARIANCES = np.geomspace(1e-2, 1e2, 9)


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

    #: How far a task's weights may lie from the public point before its message is clipped.
    clip = 2.0
    #: Prior variance of the offset a task reports.
    variance = 10.0
    #: Scales of the shared priors: isotropic, with a loose intercept, with a covariance.
    prior_scales = (1.0, 0.3, 1.0)
    #: Nothing is asked before the mean is known.
    first: ClassVar[tuple[Question, ...]] = ()

    @property
    def last(self) -> tuple[Question, ...]:
        channel = Channel(len(VARIANCES), 2.0, Plain())
        return (Question("scale", channel, (0.0, math.inf), self._variances, self._usual_variance),)

    @property
    def size(self) -> int:
        return (self.classes - 1) * self.dim

    @property
    def loss(self) -> Softmax:
        return Softmax(self.dim, self.classes)

    @property
    def own_candidates(self) -> list[Candidate]:
        return own_candidates(self.size, self.dim, self.intercept, weight=1.0)

    def prepare(self, block: Block) -> States:
        return {}

    def _shape(self, flat: Floats) -> Floats:
        return flat.reshape(*flat.shape[:-1], self.classes - 1, self.dim)

    def _scores(self, block: Block, point: Floats) -> Floats:
        with np.errstate(all="ignore"):  # data that overflow count as no data
            scores: Floats = block.X @ self._shape(point).T
        return scores

    def offset(self, states: States, block: Block, point: Floats) -> Floats:
        """Return the most probable offset from a public point under a wide prior."""
        found = mode(
            block.X, self._scores(block, point), block.y, block.weight, self.variance, classes=self.classes
        )
        return found.reshape(len(block), self.size)

    def own_weights(self, states: States, block: Block) -> Floats:
        weights: Floats = self.finish(states, block, self.own_candidates, {})["coef"]
        return weights

    def _variances(self, states: States, block: Block, candidates: Candidates, said: Said) -> Floats:
        """Say how well each prior variance around the mean explains the own data: centred log evidence."""
        factor = loose_intercept(self.dim, 3.0, self.intercept)
        fit = laplace(
            self._whiten(block, factor),
            self._scores(block, candidates[-1].mean),  # the last is around the mean, if there is one
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

    def finish(self, states: States, block: Block, candidates: Candidates, said: Said) -> States:
        """Average over candidates and prior variances by the task's own Laplace evidence."""
        grid = np.log(VARIANCES)
        flat = np.full(len(grid), -math.log(len(grid)))
        follow = normal_on_grid(grid, *map(float, said["scale"])) if "scale" in said else flat
        fits = [
            laplace(
                self._whiten(block, c.factor),
                self._scores(block, c.mean),
                block.y,
                block.weight,
                VARIANCES,
                classes=self.classes,
            )
            for c in candidates
        ]
        weights = evidence_weights(
            [fit.log_evidence for fit in fits],
            [math.log(c.weight) + (follow if c.shared else flat) for c in candidates],
        )
        coef = np.zeros((len(block), self.size))
        second = np.zeros((len(block), self.size, self.size))
        for candidate, fit, weight in zip(candidates, fits, weights, strict=True):
            total = weight.sum(axis=1)
            share = np.where(total > NEGLIGIBLE, weight.T / np.maximum(total, NEGLIGIBLE), 0.0).T
            inner, spread = posterior(fit, share)
            mean = candidate.mean + (inner.reshape(len(block), 1, -1) @ candidate.factor.T)[:, 0]
            spread = candidate.factor @ spread @ candidate.factor.T
            coef += total[:, None] * mean
            second += total[:, None, None] * (spread + mean[:, :, None] * mean[:, None, :])
        return {"coef": coef, "covariance": second - coef[:, :, None] * coef[:, None, :]}

    def _whiten(self, block: Block, factor: Floats) -> Floats:
        """Return features times a factor's block for one class: candidates treat all classes alike."""
        with np.errstate(all="ignore"):
            return np.asarray(block.X @ factor[: self.dim, : self.dim])
