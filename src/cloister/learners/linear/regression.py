"""Bayesian linear regression as a learner: what a task does at home when its targets are numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloister.arrays import Floats, States
from cloister.channel import Absolute, Channel, Plain
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate, evidence_weights, normal_on_grid, own_candidates
from cloister.learners.linear.losses import LeastSquares
from cloister.learners.linear.question import Candidates, Question, Said, centred, tempered
from cloister.learners.linear.ridge import RidgeFit, ridge_fit
from cloister.learners.linear.summary import Summary, summary, summary_of

if TYPE_CHECKING:
    from cloister.tasks import Block

__all__ = ["Regression"]


LAMBDAS = np.geomspace(1e-4, 1e2, 19)
#: Grid of the noise variance's prior scale, for targets in [-1, 1].
NOISE_RANGE = (2e-4, 0.5)
NOISE_SCALES = np.geomspace(*NOISE_RANGE, 8)


@dataclass(frozen=True)
class Regression(BayesianLearner):
    r"""Linear regression on `dim` features, rows of norm at most about 1, targets in [-1, 1].

    .. math::
        y = Xw + e, \quad e \sim N(0, \sigma^2), \quad w \sim N(m, \sigma^2 P/\lambda)

    Parameters
    ----------
    dim : int
        Number of columns, the intercept's included.
    intercept : bool
        Whether column 0 is an intercept, which may vary more between tasks than slopes do.
    """

    dim: int
    intercept: bool = True

    #: How far a task's weights may lie from the public point before its message is clipped.
    clip = 0.5
    #: Ridge of the weights a task reports.
    ridge = 0.05
    #: Scales of the shared priors: isotropic, with a loose intercept, with a covariance.
    prior_scales = (0.05, 0.02, 0.05)

    @property
    def first(self) -> tuple[Question, ...]:
        unknown = (0.0, math.inf)
        return (Question("level", Channel(2, 1.0, Absolute()), unknown, self._own_level, self._usual_level),)

    @property
    def last(self) -> tuple[Question, ...]:
        channel, unknown = Channel(len(LAMBDAS), 2.0, Plain()), (0.0,) * len(LAMBDAS)
        return (Question("scale", channel, unknown, self._lambdas, _usual_lambdas),)

    @property
    def size(self) -> int:
        return self.dim

    @property
    def loss(self) -> LeastSquares:
        return LeastSquares(self.dim)

    @property
    def own_candidates(self) -> list[Candidate]:
        return own_candidates(self.dim, self.dim, self.intercept, weight=1.0)

    def prepare(self, block: Block) -> States:
        """Sum the block up once; rounds then cost a few matrix-vector products a task."""
        stats = summary(block.X, block.y, block.weight)
        return stats.arrays() | {"inverse": stats.inverse(self.ridge)}

    def offset(self, states: States, block: Block, point: Floats) -> Floats:
        r"""Return :math:`\arg\min_r |y - X(\nu+r)|^2 + \rho|r|^2`, from the summary alone."""
        return summary_of(states).offset(states["inverse"], point)

    def own_weights(self, states: States, block: Block) -> Floats:
        return _mean(*_average(summary_of(states), self.own_candidates, {}))

    def _own_level(self, states: States, block: Block, candidates: Candidates, said: Said) -> Floats:
        """Say the log of the own noise variance, as a point between two ends, weighted by trust in it."""
        stats = summary_of(states)
        fits, weights = _average(stats, self.own_candidates, {})
        noise = sum(_variance(stats, *part).sum(axis=1) for part in zip(fits, weights, strict=True))
        low, high = np.log(NOISE_RANGE)
        level = np.clip((np.log(noise) - low) / (high - low), 0.0, 1.0)
        trust = np.minimum(1.0, states["count"] / 20)
        return np.stack([trust * level, trust * (1 - level)], axis=1)

    def _usual_level(self, value: Floats, noise: float) -> Floats:
        """Return center and sd of the tasks' log noise variance; sd infinite if noise hides it."""
        low, high = np.log(NOISE_RANGE)
        unknown = np.array([0.5 * (low + high), np.inf])
        total = float(value.sum())
        if total <= 0:
            return unknown
        level = min(1.0, max(0.0, float(value[0]) / total))
        error = noise * math.hypot(level, 1 - level) / total * (high - low)
        return np.array([low + level * (high - low), math.hypot(0.7, error)]) if error < 1 else unknown

    def _lambdas(self, states: States, block: Block, candidates: Candidates, said: Said) -> Floats:
        """Say how well each lambda of the shared priors explains the own data: centred log evidence."""
        stats, level = summary_of(states), _level(said)
        shared = [c for c in candidates if c.shared] or candidates
        fits = [ridge_fit(stats, c.mean, c.factor, LAMBDAS, NOISE_SCALES) for c in shared]
        weights = [level + math.log(c.weight) for c in shared]
        joint = np.concatenate(
            [fit.log_evidence + weight for fit, weight in zip(fits, weights, strict=True)], axis=2
        )
        top = joint.max(axis=2, keepdims=True)
        return centred(top[..., 0] + np.log(np.exp(joint - top).sum(axis=2)))

    def finish(self, states: States, block: Block, candidates: Candidates, said: Said) -> States:
        """Average over candidates, lambdas and noise scales by the task's own marginal likelihood."""
        stats = summary_of(states)
        return _mix(stats, *_average(stats, candidates, said))


def _usual_lambdas(value: Floats, noise: float) -> Floats:
    """Return log weights of lambdas by the evidence of all tasks, as much of it as is not noise."""
    square = max(float(value @ value), 1e-300)
    return tempered(max(0.0, 1 - (len(value) - 1) * noise**2 / square) * value, noise)


def _level(said: Said) -> Floats:
    """Return the log weights of the noise scales: around what tasks said, or all alike."""
    if "level" in said and np.isfinite(said["level"][1]):
        return normal_on_grid(np.log(NOISE_SCALES), *map(float, said["level"]))
    return np.full(len(NOISE_SCALES), -math.log(len(NOISE_SCALES)))


def _average(stats: Summary, candidates: Candidates, said: Said) -> tuple[list[RidgeFit], list[Floats]]:
    """Fit every candidate, and weigh its lambdas and noise scales by evidence."""
    level = _level(said)
    follow = normal_on_grid(np.log(LAMBDAS), np.log(2 * NOISE_SCALES)[:, None], 1.5).T
    if "scale" in said:  # what explains all tasks together
        follow = follow + said["scale"][:, None]
        follow -= np.log(np.exp(follow).sum(axis=0))
    follow = follow + level
    flat = np.full((len(LAMBDAS), 1), -math.log(len(LAMBDAS))) + level
    fits = [ridge_fit(stats, c.mean, c.factor, LAMBDAS, NOISE_SCALES) for c in candidates]
    weights = evidence_weights(
        [fit.log_evidence for fit in fits],
        [math.log(c.weight) + (follow if c.shared else flat) for c in candidates],
    )
    return fits, weights


def _variance(stats: Summary, fit: RidgeFit, joint: Floats) -> Floats:
    """Return the expected noise variance by lambda, times the weight of that lambda."""
    total = (joint * (NOISE_SCALES + fit.residual[:, :, None])).sum(axis=2)
    return np.asarray(total / (1 + stats.count[:, None]))


def _mean(fits: list[RidgeFit], weights: list[Floats]) -> Floats:
    mean = np.zeros(fits[0].solutions[:, 0].shape)
    for fit, joint in zip(fits, weights, strict=True):
        over_lambda = joint.sum(axis=2)
        mean += over_lambda.sum(axis=1)[:, None] * fit.center
        mean += (over_lambda[:, None, :] @ fit.solutions)[:, 0]
    return mean


def _mix(stats: Summary, fits: list[RidgeFit], weights: list[Floats]) -> States:
    """Match the first two moments of the mixture of posteriors."""
    coef = _mean(fits, weights)
    covariance = np.zeros((*coef.shape, coef.shape[1]))
    noise = np.zeros(len(coef))
    for fit, joint in zip(fits, weights, strict=True):
        variance = _variance(stats, fit, joint)
        noise += variance.sum(axis=1)
        away = fit.solutions + (fit.center - coef)[:, None, :]
        covariance += (joint.sum(axis=2)[:, :, None] * away).swapaxes(1, 2) @ away
        spread = variance[:, None, :] @ fit.spread
        covariance += (fit.basis * spread) @ fit.basis.swapaxes(1, 2)
        if fit.bump is not None:
            covariance += (variance[:, :, None] * fit.bump).swapaxes(1, 2) @ fit.bump
        if fit.prior is not None:
            covariance += (variance * fit.rest).sum(axis=1)[:, None, None] * fit.prior
    return {"coef": coef, "covariance": covariance, "noise": noise}
