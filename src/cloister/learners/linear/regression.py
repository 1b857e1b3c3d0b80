"""Bayesian linear regression as a learner: what a task does at home when its targets are numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloister.arrays import Floats, States
from cloister.channel import Absolute, Channel, Plain
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import log_sum, normal_on_grid, weighed
from cloister.learners.linear.losses import LeastSquares
from cloister.learners.linear.own_ridge import OwnRidge
from cloister.learners.linear.question import (
    Candidates,
    Question,
    Said,
    centred,
    tempered,
    trust_question,
    trusted,
)
from cloister.learners.linear.ridge import RidgeFit, ridge_fit
from cloister.learners.linear.summary import Summary, summary, summary_of

if TYPE_CHECKING:
    from cloister.tasks import Block

__all__ = ["Regression"]


LAMBDAS = np.geomspace(1e-4, 1e2, 19)
#: Grid of the noise variance's prior scale, for targets in [-1, 1].
NOISE_RANGE = (2e-4, 0.5)
NOISE_SCALES = np.geomspace(*NOISE_RANGE, 8)
#: A task alone, in its own units: log weights of the penalties, and the noise variance's prior scales.
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
        scale = Question("scale", channel, unknown, self._lambdas, _usual_lambdas)
        return scale, trust_question(self._trusts)

    @property
    def size(self) -> int:
        return self.dim

    @property
    def loss(self) -> LeastSquares:
        return LeastSquares(self.dim)

    def prepare(self, block: Block) -> States:
        """Sum the block up once, in public and own units: rounds then are matrix-vector products."""
        stats = summary(block.X, block.y, block.weight)
        own = OwnRidge.of(block, self.intercept)
        return stats.decomposed().arrays() | own.arrays()

    def offset(self, states: States, block: Block, point: Floats) -> Floats:
        r"""Return :math:`\arg\min_r |y - X(\nu+r)|^2 + \rho|r|^2`, from the summary alone."""
        return summary_of(states).offset(self.ridge, point)

    def own_weights(self, states: States, block: Block) -> Floats:
        own = _alone(OwnRidge.of(block, self.intercept), {})
        return _mean([own.in_public()], [own.shares])

    def _own_level(self, states: States, block: Block, candidates: Candidates, said: Said) -> Floats:
        """Say the log of the own noise variance, as a point between two ends, weighted by trust in it."""
        own = _alone(OwnRidge.kept(states), {})
        noise = own.rows.unit**2 * _variance(own.rows.count, own.fit, own.shares).sum(axis=1)
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

    def _trusts(self, states: States, block: Block, candidates: Candidates, said: Said) -> Floats:
        """Say how likely the shared priors are, and the own one, by the own evidence: two parts of one."""
        if not candidates:
            return np.zeros((len(block), 2))
        alone = 1 - sum(candidate.weight for candidate in candidates)
        worths = [worth for worth, _ in _public(summary_of(states), candidates, said)[1]]
        shared = log_sum(np.stack(worths, axis=1))
        own = _alone(OwnRidge.kept(states), said).worth + math.log(alone)
        _, chances = weighed(np.stack([shared, own], axis=1))
        return np.where(states["count"][:, None] > 0, chances, 0.0)

    def finish(self, states: States, block: Block, candidates: Candidates, said: Said) -> States:
        """Average over candidates, lambdas and noise scales by the task's own marginal likelihood."""
        candidates = trusted(candidates, said)
        stats, alone = summary_of(states), 1 - sum(candidate.weight for candidate in candidates)
        fits, weighed_fits = _public(stats, candidates, said)
        if alone > 1e-9:
            own = _alone(OwnRidge.of(block, self.intercept), said)
            fits.append(own.in_public())
            weighed_fits.append((own.worth + math.log(alone), own.shares))
        _, chances = weighed(np.stack([worth for worth, _ in weighed_fits], axis=1))
        for chance, (_, shares) in zip(chances.T, weighed_fits, strict=True):
            shares *= chance[:, None, None]
        return _mix(stats.count, fits, [shares for _, shares in weighed_fits])


@dataclass(frozen=True, eq=False, repr=False)
class _Alone:
    """A task's own fits, the weights of penalties and noise scales, and how well all of them foresaw y."""

    rows: OwnRidge
    fit: RidgeFit
    shares: Floats
    worth: Floats

    def in_public(self) -> RidgeFit:
        return self.rows.to_public(self.fit)


def _alone(rows: OwnRidge, said: Said) -> _Alone:
    """Fit each task in its own units: ridge regression over a grid of penalties, and no slopes at all.

    Penalties are weighed by evidence times the likelihood of leaving one row out: either alone is fooled
    more often by few rows. The intercept has a prior worth one row, around the own mean; the noise scale
    follows what tasks said of it, or is free in own units.
    """
    heard = _heard(said)
    if heard is None:
        scales, level = OWN_SCALES, _own_level(rows)
    else:
        scales, level = NOISE_SCALES / rows.unit[:, None, None] ** 2, heard
    fit = rows.fit(scales)
    joint = fit.log_evidence + (OWN_LAMBDA_WEIGHTS[:, None] + level)
    joint[:, :-1] = np.where((rows.count < LEAST_ROWS)[:, None, None], -np.inf, joint[:, :-1])
    worth = log_sum(joint) - rows.count * np.log(rows.unit)
    if rows.front is not None:
        worth -= 0.5 * np.log1p(rows.count)
    joint += rows.left_out[..., None]
    return _Alone(rows, fit, weighed(joint)[1], worth)


def _usual_lambdas(value: Floats, noise: float) -> Floats:
    """Return log weights of lambdas by the evidence of all tasks, as much of it as is not noise."""
    square, freedom = max(float(value @ value), 1e-300), len(value) - 1
    heard = square > (freedom + 2 * math.sqrt(2 * freedom)) * noise**2
    return tempered((1 - freedom * noise**2 / square if heard else 0.0) * value, noise)


def _own_level(rows: OwnRidge) -> Floats:
    """Return the log weights of noise scales in own units: small ones are unlikely.

    The more so where there are as many features as rows, so that any targets could be fitted exactly.
    """
    power = np.where(rows.count > rows.scale.shape[1] + 1, 0.25, 1.0)[:, None, None]
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


def _public(
    stats: Summary, candidates: Candidates, said: Said
) -> tuple[list[RidgeFit], list[tuple[Floats, Floats]]]:
    """Fit every candidate; return what each fit is worth, and the shares of its lambdas and scales."""
    level = _level(said)
    follow = normal_on_grid(np.log(LAMBDAS), np.log(2 * NOISE_SCALES)[:, None], 1.5).T
    if "scale" in said:  # what explains all tasks together
        follow = follow + said["scale"][:, None]
        follow -= np.log(np.exp(follow).sum(axis=0))
    follow = follow + level
    flat = np.full((len(LAMBDAS), 1), -math.log(len(LAMBDAS))) + level
    fits = [ridge_fit(stats, c.mean, c.factor, LAMBDAS, NOISE_SCALES) for c in candidates]
    priors = [math.log(c.weight) + (follow if c.shared else flat) for c in candidates]
    return fits, [weighed(fit.log_evidence + prior) for fit, prior in zip(fits, priors, strict=True)]


def _variance(count: Floats, fit: RidgeFit, joint: Floats) -> Floats:
    """Return the expected noise variance by lambda, times the weight of that lambda."""
    total = (joint * (fit.scales + fit.residual[:, :, None])).sum(axis=2)
    return np.asarray(total / (1 + count[:, None]))


def _mean(fits: list[RidgeFit], weights: list[Floats]) -> Floats:
    mean = np.zeros(fits[0].basis.shape[:2])
    for fit, joint in zip(fits, weights, strict=True):
        over_lambda = joint.sum(axis=2)
        mean += over_lambda.sum(axis=1)[:, None] * fit.center
        mean += (fit.basis @ (over_lambda[:, None, :] @ fit.coordinates).swapaxes(1, 2))[..., 0]
    return mean


def _mix(count: Floats, fits: list[RidgeFit], weights: list[Floats]) -> States:
    """Match the first two moments of the mixture of posteriors."""
    coef = _mean(fits, weights)
    covariance, noise = np.zeros((*coef.shape, coef.shape[1])), np.zeros(len(coef))
    away, parts = np.empty((len(coef), len(fits), coef.shape[1])), np.empty((len(coef), len(fits)))
    for i, (fit, joint) in enumerate(zip(fits, weights, strict=True)):
        variance, over_lambda = _variance(count, fit, joint), joint.sum(axis=2)
        noise += variance.sum(axis=1)
        parts[:, i] = over_lambda.sum(axis=1)
        share = over_lambda / np.maximum(parts[:, i, None], 1e-300)
        middle = share[:, None, :] @ fit.coordinates
        away[:, i] = (fit.basis @ middle.swapaxes(1, 2))[..., 0] + (fit.center - coef)
        vectors, heights = fit.coordinates - middle, over_lambda
        if fit.bump is not None:
            vectors = np.concatenate([vectors, fit.bump], axis=1)
            heights = np.concatenate([heights, variance], axis=1)
        inside = (heights[:, :, None] * vectors).swapaxes(1, 2) @ vectors
        at = np.arange(inside.shape[1])
        inside[:, at, at] += (variance[:, None, :] @ fit.spread)[:, 0]
        covariance += fit.basis @ inside @ fit.basis.swapaxes(1, 2)
        if fit.prior is not None:
            covariance += (variance * fit.rest).sum(axis=1)[:, None, None] * fit.prior
    covariance += (parts[:, :, None] * away).swapaxes(1, 2) @ away
    return {"coef": coef, "covariance": covariance, "noise": noise}
