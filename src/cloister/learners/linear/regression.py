"""Bayesian linear regression as a learner: what a task does at home when its targets are numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cloister.arrays import Floats, States
from cloister.channel import Absolute, Channel, Plain
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import (
    Posterior,
    evidence_weights,
    log_sum,
    mixture,
    normal_on_grid,
)
from cloister.learners.linear.losses import LeastSquares
from cloister.learners.linear.own_units import OwnUnits
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
#: A task alone, in its own units: penalties, the last of which leaves no slope, with their log weights, and
#: the grid of the noise variance's prior scale.
OWN_LAMBDAS = np.append(np.geomspace(1e-3, 1e3, 13), 1e12)
OWN_LAMBDA_WEIGHTS = np.log(np.append(np.full(13, 0.95 / 13), 0.05))
OWN_SCALES = np.geomspace(1e-6, 1.0, 9)
#: With fewer rows than this a task on its own has a mean and no slopes.
LEAST_ROWS = 4


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

    def prepare(self, block: Block) -> States:
        """Sum the block up once; rounds then cost a few matrix-vector products a task."""
        stats = summary(block.X, block.y, block.weight)
        return stats.arrays() | {"inverse": stats.inverse(self.ridge)}

    def offset(self, states: States, block: Block, point: Floats) -> Floats:
        r"""Return :math:`\arg\min_r |y - X(\nu+r)|^2 + \rho|r|^2`, from the summary alone."""
        return summary_of(states).offset(states["inverse"], point)

    def own_weights(self, states: States, block: Block) -> Floats:
        return self._alone(block, {}).coef

    def _own_level(self, states: States, block: Block, candidates: Candidates, said: Said) -> Floats:
        """Say the log of the own noise variance, as a point between two ends, weighted by trust in it."""
        noise = self._alone(block, {}).noise
        assert noise is not None
        low, high = np.log(NOISE_RANGE)
        level = np.clip((np.log(np.maximum(noise, 1e-300)) - low) / (high - low), 0.0, 1.0)
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
        if not shared:
            return np.zeros((len(block), len(LAMBDAS)))
        fits = [ridge_fit(stats, c.mean, c.factor, LAMBDAS, NOISE_SCALES) for c in shared]
        weights = [level + math.log(c.weight) for c in shared]
        joint = np.concatenate(
            [fit.log_evidence + weight for fit, weight in zip(fits, weights, strict=True)], axis=2
        )
        top = joint.max(axis=2, keepdims=True)
        return centred(top[..., 0] + np.log(np.exp(joint - top).sum(axis=2)))

    def finish(self, states: States, block: Block, candidates: Candidates, said: Said) -> States:
        """Average over candidates, lambdas and noise scales by the task's own marginal likelihood."""
        own = 1 - sum(candidate.weight for candidate in candidates)
        parts = [_public(summary_of(states), candidates, said)] if candidates else []
        if own > 1e-9:
            alone = self._alone(block, said)
            parts.append(replace(alone, log_evidence=alone.log_evidence + math.log(own)))
        return mixture(parts)

    def _alone(self, block: Block, said: Said) -> Posterior:
        """Fit each task in its own units: ridge regression over a grid of penalties, and no slopes at all.

        Penalties are weighed by evidence times the likelihood of leaving one row out: either alone is fooled
        more often by few rows. The intercept has a prior worth one row, around the own mean; the noise scale
        follows what tasks said of it, or is free in own units.
        """
        units = OwnUnits.of(block.X, block.weight, self.intercept)
        y = np.where(units.weight > 0, block.y, 0.0)
        total = np.where(units.total > 0, units.total, 1.0)
        center = (units.weight * y).sum(axis=1) / total if self.intercept else np.zeros(len(block))
        away = np.where(units.weight > 0, y - center[:, None], 0.0)
        scale = np.sqrt((units.weight * away**2).sum(axis=1) / total)
        scale = np.where(scale > 1e-9 * np.abs(y).max(axis=1, initial=0.0), scale, 1.0)
        stats = summary(units.rows, away / scale[:, None], units.weight)
        heard = _heard(said)
        scales, level = OWN_SCALES, _own_level(units)
        if heard is not None:
            scales, level = NOISE_SCALES / scale[:, None, None] ** 2, heard
        width = units.rows.shape[2]
        fit = ridge_fit(stats, np.zeros(width), np.eye(width), OWN_LAMBDAS, scales)
        joint = fit.log_evidence + OWN_LAMBDA_WEIGHTS[:, None] + level
        joint[:, :-1] = np.where((units.total < LEAST_ROWS)[:, None, None], -np.inf, joint[:, :-1])
        worth = log_sum(joint) - units.total * np.log(scale)
        if self.intercept:
            worth -= 0.5 * np.log1p(units.total)
        (weights,) = evidence_weights(
            [joint], [_left_out(stats, fit, units, away / scale[:, None], self.intercept)[..., None]]
        )
        found = _mix(stats, [fit], [weights])
        return self._to_public(units, center, scale, found, worth)

    def _to_public(
        self, units: OwnUnits, center: Floats, scale: Floats, found: Posterior, worth: Floats
    ) -> Posterior:
        assert found.noise is not None
        coef, covariance = found.coef, found.covariance
        if self.intercept:  # put what the mean of the rows says in front
            coef = np.column_stack([center / scale, coef])
            inner, covariance = covariance, np.zeros((len(coef), coef.shape[1], coef.shape[1]))
            covariance[:, 1:, 1:] = inner
            covariance[:, 0, 0] = found.noise / (1 + units.total)
        turn = scale[:, None, None] * units.back
        coef = (turn @ coef[..., None])[..., 0]
        return Posterior(worth, coef, turn @ covariance @ turn.swapaxes(1, 2), scale**2 * found.noise)


def _usual_lambdas(value: Floats, noise: float) -> Floats:
    """Return log weights of lambdas by the evidence of all tasks, as much of it as is not noise."""
    square = max(float(value @ value), 1e-300)
    return tempered(max(0.0, 1 - (len(value) - 1) * noise**2 / square) * value, noise)


def _own_level(units: OwnUnits) -> Floats:
    """Return the log weights of noise scales in own units: small ones are unlikely.

    The more so where there are as many features as rows, so that any targets could be fitted exactly.
    """
    power = np.where(units.total > units.rows.shape[2] + 1, 0.25, 1.0)[:, None, None]
    weights = power * np.log(OWN_SCALES)
    return np.asarray(weights - np.log(np.exp(weights).sum(axis=2, keepdims=True)))


def _heard(said: Said) -> Floats | None:
    """Return the log weights of the noise scales around what tasks said, if it was heard."""
    if "level" in said and np.isfinite(said["level"][1]):
        return normal_on_grid(np.log(NOISE_SCALES), *map(float, said["level"]))
    return None


def _level(said: Said) -> Floats:
    """Return the log weights of the noise scales: around what tasks said, or all alike."""
    heard = _heard(said)
    return np.full(len(NOISE_SCALES), -math.log(len(NOISE_SCALES))) if heard is None else heard


def _left_out(stats: Summary, fit: RidgeFit, units: OwnUnits, y: Floats, intercept: bool) -> Floats:
    r"""Return, for each penalty, the log-likelihood of every row under a fit to the others, (tasks, lambdas).

    A residual is larger by :math:`1/(1-h)` if its row is left out, h being its leverage; the variance is
    that of all such residuals. A weight counts as so many rows.
    """
    spectrum, total = stats.spectrum(None), np.where(units.total > 0, units.total, 1.0)[:, None, None]
    squares, kept = np.square(units.rows @ spectrum.basis), 1 / (spectrum.values[:, :, None] + OWN_LAMBDAS)
    if spectrum.rows is not None:  # its basis is longer than the prior's own by the root of an eigenvalue
        kept = kept / np.maximum(spectrum.values, 1e-300)[:, :, None]
    leverage = squares @ kept + (1 / total if intercept else 0.0)
    residual = y[..., None] - units.rows @ fit.solutions.swapaxes(1, 2)
    left_out = np.square(residual / np.maximum(1 - leverage, 1e-10))
    mean = (units.weight[:, None, :] @ left_out)[:, 0] / total[:, 0]
    return np.asarray(-0.5 * units.total[:, None] * np.log(mean + 1e-12))


def _public(stats: Summary, candidates: Candidates, said: Said) -> Posterior:
    """Fit every candidate, and weigh its lambdas and noise scales by evidence."""
    level = _level(said)
    follow = normal_on_grid(np.log(LAMBDAS), np.log(2 * NOISE_SCALES)[:, None], 1.5).T
    if "scale" in said:  # what explains all tasks together
        follow = follow + said["scale"][:, None]
        follow -= np.log(np.exp(follow).sum(axis=0))
    follow = follow + level
    flat = np.full((len(LAMBDAS), 1), -math.log(len(LAMBDAS))) + level
    fits = [ridge_fit(stats, c.mean, c.factor, LAMBDAS, NOISE_SCALES) for c in candidates]
    evidence = [fit.log_evidence for fit in fits]
    priors = [math.log(c.weight) + (follow if c.shared else flat) for c in candidates]
    worth = log_sum(np.stack([log_sum(e + p) for e, p in zip(evidence, priors, strict=True)], axis=1))
    return replace(_mix(stats, fits, evidence_weights(evidence, priors)), log_evidence=worth)


def _variance(stats: Summary, fit: RidgeFit, joint: Floats) -> Floats:
    """Return the expected noise variance by lambda, times the weight of that lambda."""
    total = (joint * (fit.scales + fit.residual[:, :, None])).sum(axis=2)
    return np.asarray(total / (1 + stats.count[:, None]))


def _mean(fits: list[RidgeFit], weights: list[Floats]) -> Floats:
    mean = np.zeros(fits[0].solutions[:, 0].shape)
    for fit, joint in zip(fits, weights, strict=True):
        over_lambda = joint.sum(axis=2)
        mean += over_lambda.sum(axis=1)[:, None] * fit.center
        mean += (over_lambda[:, None, :] @ fit.solutions)[:, 0]
    return mean


def _mix(stats: Summary, fits: list[RidgeFit], weights: list[Floats]) -> Posterior:
    """Match the first two moments of the mixture of posteriors; what it is worth is left open."""
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
    return Posterior(np.zeros(len(coef)), coef, covariance, noise)
