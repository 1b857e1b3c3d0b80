"""Bayesian linear regression as a learner: what a task does at home when its targets are numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats, States
from cloister.core.channel import Channel
from cloister.core.lifts import Absolute, Plain
from cloister.learners.home import Home
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import (
    Candidate,
    Posterior,
    chances,
    log_sum,
    mixture,
    normal_on_grid,
    weighed,
)
from cloister.learners.linear.few_rows import (
    own_level_shared_slopes,
    slope_losses,
    too_few,
    with_level,
)
from cloister.learners.linear.home_constants import NUMBER, SCORE, TRUST
from cloister.learners.linear.losses import LeastSquares
from cloister.learners.linear.own_ridge import OWN_LAMBDAS, OwnRidge
from cloister.learners.linear.question import (
    Answers,
    Candidates,
    Question,
    centred,
    relied_on,
    share_and_error,
    tempered,
    trust_question,
    trusted,
    votes,
)
from cloister.learners.linear.residuals import OfNumbers, Residuals
from cloister.learners.linear.ridge import (
    LinearSummary,
    RidgeFit,
    ridge_evidence,
    ridge_fit,
    summary,
    summary_of,
)

if TYPE_CHECKING:
    from cloister.core.tasks import Block


def degrees_of_freedom(count: Floats, fitted: Floats, shared: Floats) -> Floats:
    r"""Return the degrees of freedom of each task's predictive distribution.

    With a shared prior the noise variance has one more than there are rows; a task's own fit of :math:`p`
    effective parameters leaves :math:`n - 1 - p`. Three quarters of either are kept. Where both have a part,
    excesses over the normal, which go with :math:`1/\nu`, are averaged by their weights.

    Parameters
    ----------
    count : array of shape (tasks,)
        Rows n of each task.
    fitted : array of shape (tasks,)
        Effective parameters p of its fit to the own rows alone, without the intercept.
    shared : array of shape (tasks,)
        Weight of the shared priors.

    Examples
    --------
    >>> rows, weight = np.array([0.0, 8.0, 8.0, 8.0]), np.array([1.0, 1.0, 0.5, 0.0])
    >>> degrees_of_freedom(rows, np.full(4, 3.0), weight).round(2).tolist()
    [5.0, 6.75, 4.15, 3.0]
    """
    with_prior = np.maximum(NUMBER.kept * (count + 1), NUMBER.least_freedom)
    with_prior = np.where(count > 0, with_prior, NUMBER.without_rows)
    alone = np.maximum(NUMBER.kept * (count - 1 - fitted), 1.0)
    return np.asarray(1 / (shared / with_prior + (1 - shared) / alone))


#: Grid of lambdas, for features that fill their bounds; tasks are asked how well they are explained by those
#: from one of them on. Who wants a smaller one finds out for itself: few do, and these would speak loudest.
ASKED = np.geomspace(*NUMBER.lambdas)[NUMBER.asked :]
LAMBDAS = np.append(np.geomspace(NUMBER.exact, ASKED[0], NUMBER.asked + 1)[:-1], ASKED)
#: Grid of the noise variance's prior scale, for targets in [-1, 1]; tasks say of what is below their
#: range that it is the lowest, and so the first is as likely as the second, whatever they say.
NOISE_SCALES = np.append(NUMBER.exact, np.geomspace(*NUMBER.noise, NUMBER.noises))
#: A task alone, in its own units: the noise variance's prior scales.
OWN_SCALES = np.geomspace(*NUMBER.own_noises)


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
    clip = NUMBER.clip
    #: Ridge of the weights a task reports.
    ridge = NUMBER.ridge
    #: Scales of the shared priors: isotropic, with a loose intercept, with a covariance.
    prior_scales = (NUMBER.plain, NUMBER.plain, NUMBER.plain)
    #: Tasks often differ by their level alone.
    loose = SCORE.loose
    #: At the usual lambda, twice the noise variance, weights vary around the mean by half of a prior's scale.
    widening = NUMBER.usual_lambda
    #: A prior around the mean in own units gains nothing: targets have been located.
    own_scales = None

    @property
    def residuals(self) -> Residuals:
        return OfNumbers()

    @property
    def first(self) -> tuple[Question, ...]:
        unknown = (0.0, math.inf)
        about, channel = "how large the noise in rows is", Channel(2, 1.0, Absolute())
        return (Question("level", about, channel, unknown, self._own_level, self._usual_level),)

    @property
    def last(self) -> tuple[Question, ...]:
        channel, unknown = Channel(len(ASKED), 2.0, Plain()), (0.0,) * len(ASKED)
        scale = Question("scale", "how far tasks differ", channel, unknown, self._lambdas, _usual_lambdas)
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
        unknown = np.broadcast_to(np.nan, (len(block), len(NOISE_SCALES), len(LAMBDAS)))
        return stats.arrays() | own.arrays() | {"evidence": unknown}

    def weigh(self, home: Home, candidates: Candidates) -> States:
        """Return the log evidence of the shared priors together, by noise scale and lambda.

        Both last questions are about it, and a prior with a covariance takes a decomposition of each task.
        """
        known = home.states["evidence"]
        if candidates and np.isnan(known).any():  # of the whole block: twice gives a task the same bits
            stats, shared, lambdas = summary_of(home.states), _shared(candidates), _lambdas_of(home.states)
            each = np.stack([_evidence(stats, c, lambdas) + math.log(c.weight) for c in shared])
            known = _log_sum_over(0, each).swapaxes(0, 1)
        return {"evidence": known}

    def offset(self, home: Home, point: Floats) -> Floats:
        r"""Return :math:`\arg\min_r |y - X(\nu+r)|^2 + \rho|r|^2`, from the summary alone."""
        return summary_of(home.states).offset(self.ridge, point)

    def own_weights(self, home: Home) -> Floats:
        own = _alone(OwnRidge.of(home.rows, self.intercept), {})
        return _mean([own.in_public()])

    def _own_level(self, home: Home, candidates: Candidates, answers: Answers) -> Floats:
        """Say the log of the own noise variance, as a point between two ends, weighted by trust in it."""
        own = _alone(OwnRidge.kept(home.states), {})
        noise = own.rows.unit**2 * own.shares.variance(own.rows.count, own.fit).sum(axis=1)
        low, high = np.log(NUMBER.noise)
        level = np.clip((np.log(np.maximum(noise, 1e-300)) - low) / (high - low), 0.0, 1.0)
        freedom = np.maximum(home.states["count"] - 1 - own.effective_parameters, 0.0)
        trust = freedom / (1 + freedom)  # the log of a variance with so many is about 1 / freedom too low
        return np.stack([trust * level, trust * (1 - level)], axis=1)

    def _usual_level(self, value: Floats, noise: float) -> Floats:
        """Return center and sd of the tasks' log noise variance; sd infinite if noise hides it."""
        low, high = np.log(NUMBER.noise)
        unknown = np.array([0.5 * (low + high), np.inf])
        total = float(value.sum())
        if total <= 0:
            return unknown
        level, error = share_and_error(float(value[0]), total, noise)
        error *= high - low
        if error >= 1:
            return unknown
        return np.array([low + level * (high - low), math.hypot(TRUST.scale_sd, error)])

    def _lambdas(self, home: Home, candidates: Candidates, answers: Answers) -> Floats:
        """Say how well each lambda of the shared priors explains the own data: centred log evidence."""
        if not candidates:
            return np.zeros((len(home), len(ASKED)))
        evidence = self.weigh(home, candidates)["evidence"]
        return centred(_log_sum_over(1, evidence + _level(answers)[:, None])[:, NUMBER.asked :])

    def _trusts(self, home: Home, candidates: Candidates, answers: Answers) -> Floats:
        """Say how likely the shared priors are, and the own one, by the own evidence: two parts of one.

        Tasks of too few rows say whether a little of the shared slopes would have served them.
        """
        if not candidates:
            return np.zeros((len(home), 2))

        def answer(home: Home, few: int) -> States:
            return {"answer": (self._trust_in_slopes if few else self._trust)(home, candidates, answers)}

        return np.asarray(home.apart(self._few(home), answer)["answer"])

    def _trust_in_slopes(self, home: Home, candidates: Candidates, answers: Answers) -> Floats:
        """Say whether a quarter of the shared slopes around the own mean is better than none."""
        weights = np.array([candidate.weight for candidate in candidates])
        slopes = weights / weights.sum() @ np.stack([candidate.mean for candidate in candidates])
        return votes(*slope_losses(home.rows, slopes, (0.0, TRUST.little)))

    def _trust(self, home: Home, candidates: Candidates, answers: Answers) -> Floats:
        states = home.states
        stats, alone = summary_of(states), 1 - sum(candidate.weight for candidate in candidates)
        evidence, shared = self.weigh(home, candidates)["evidence"], _shared(candidates)
        together = _log_prior(replace(shared[0], weight=1.0), answers)  # alike for all of them
        worths, lambdas = [log_sum(evidence + together.swapaxes(0, 1))], _lambdas_of(states)
        others = [candidate for candidate in candidates if candidate not in shared]
        for one in others:
            weights = _evidence(stats, one, lambdas) + _log_prior(one, answers)
            worths.append(log_sum(weights.swapaxes(0, 1)))
        own = _alone(OwnRidge.kept(states), answers).worth + math.log(alone)
        _, chances = weighed(np.stack([log_sum(np.stack(worths, axis=1)), own], axis=1))
        return np.where(states["count"][:, None] > 0, chances, 0.0)

    def finish(self, home: Home, candidates: Candidates, answers: Answers) -> States:
        """Average over candidates, lambdas and noise scales by the task's own marginal likelihood.

        Tasks of too few rows to tell go by what was heard. If the noise was, candidates' levels are among it:
        they vary by what of targets' spread is not noise.
        """

        def solve(home: Home, few: int) -> States:
            if not few:
                return self._average(home, trusted(candidates, answers), answers)
            heard = relied_on(candidates, answers)
            if heard and _known_level(answers) is not None:
                between = max(0.0, NUMBER.typical**-2 - math.exp(float(answers["level"][0])))
                wide = self.widening * self.dim * between
                heard = [replace(c, factor=with_level(c.factor, wide)) for c in heard]
                return self._average(home, heard, answers)
            return self._level_and_slopes(home, heard, answers)

        return home.apart(self._few(home), solve)

    def _few(self, home: Home) -> NDArray[np.intp]:
        """Return 1 for every task that cannot tell whether it is like the others, and 0 for the rest."""
        return (too_few(home.states["count"]) & self.intercept).astype(np.intp)

    def _level_and_slopes(self, home: Home, candidates: Candidates, answers: Answers) -> States:
        """Average over no slopes and the candidates', around each task's own mean."""
        own = _alone(OwnRidge.at(home, self.intercept), answers)
        models, rest = _mix(own.rows.count, [own.in_public()]), 1 - sum(c.weight for c in candidates)
        weight = np.full(len(home), math.log(rest))
        alone = Posterior(weight, models["coef"], models["covariance"], models["noise"])
        parts = own_level_shared_slopes(home.rows, alone, candidates, self.widening)
        shared = chances(parts)[:, 1:].sum(axis=1)
        return mixture(parts) | {
            "alone": models["coef"],
            "rows": own.rows.count,
            "shared_weight": shared,
            "freedom": degrees_of_freedom(own.rows.count, own.effective_parameters, shared),
        }

    def _average(self, home: Home, candidates: Candidates, answers: Answers) -> States:
        """Average over candidates and the own prior by evidence."""
        states = home.states
        stats, alone = summary_of(states), 1 - sum(candidate.weight for candidate in candidates)
        worths, fits, lambdas = [], [], _lambdas_of(states)
        for candidate in candidates:
            fit = ridge_fit(stats, candidate.mean, candidate.factor, lambdas, NOISE_SCALES)
            worth, shares = _shares(fit.log_evidence + _log_prior(candidate, answers), NOISE_SCALES)
            worths.append(worth + shares.mean(fit.left_out(home.rows)) if candidate.tested else worth)
            fits.append((fit, shares))
        if alone > 1e-9:
            own = _alone(OwnRidge.at(home, self.intercept), answers)
            by_weight = log_sum(np.stack(worths, axis=1)) - math.log(1 - alone) if worths else own.worth
            one_row = self._few(home) * (stats.count <= 1)  # it cannot tell
            tested = any(candidate.tested for candidate in candidates)
            by_itself = np.where(one_row, by_weight, own.worth + own.left_out * tested)
            worths.append(by_itself + math.log(alone))
            fits.append(own.in_public())
        _, parts = weighed(np.stack(worths, axis=1))
        by_fit = zip(fits, parts.T, strict=True)
        models = _mix(stats.count, [(fit, shares.times(chance)) for (fit, shares), chance in by_fit])
        shared = parts[:, : len(candidates)].sum(axis=1)
        has_own = alone > 1e-9
        fitted = own.effective_parameters if has_own else np.zeros(len(home))
        return models | {
            "alone": _mean(fits[-1:]) if has_own else models["coef"],
            "rows": stats.count,
            "shared_weight": shared,
            "freedom": degrees_of_freedom(stats.count, fitted, shared),
        }


@dataclass(frozen=True, eq=False, repr=False)
class _Shares:
    """The weight of every lambda in a fit, and the mean noise scale there times that weight."""

    over_lambda: Floats
    scale: Floats

    def times(self, chance: Floats) -> _Shares:
        return _Shares(chance[:, None] * self.over_lambda, chance[:, None] * self.scale)

    def mean(self, values: Floats) -> Floats:
        """Return the mean of each task's values over its lambdas."""
        return np.asarray((self.over_lambda * values).sum(axis=1))

    def variance(self, count: Floats, fit: RidgeFit) -> Floats:
        """Return the expected noise variance by lambda, times the weight of that lambda."""
        return (self.scale + self.over_lambda * fit.residual) / (1 + count[:, None])


#: A posterior over lambdas, and what each of them weighs.
_Weighed: TypeAlias = tuple[RidgeFit, _Shares]


def _shared(candidates: Candidates) -> list[Candidate]:
    """Return the shared priors among the candidates; all of them, if none is."""
    return [c for c in candidates if c.shared] or list(candidates)


def _log_sum_over(axis: int, log_weights: Floats) -> Floats:
    top = log_weights.max(axis=axis, keepdims=True)
    return np.asarray(np.squeeze(top, axis) + np.log(np.exp(log_weights - top).sum(axis=axis)))


def _shares(log_weights: Floats, scales: Floats) -> tuple[Floats, _Shares]:
    """Return log sum exp of every task's weights, (scales, tasks, lambdas), and their shares of that sum."""
    top = log_weights.max(axis=0).max(axis=1)
    weights = np.exp(log_weights - top[:, None])
    over_lambda = weights.sum(axis=0)
    weights *= scales.reshape(len(scales), -1, 1)
    total = over_lambda.sum(axis=1)
    return top + np.log(total), _Shares(over_lambda, weights.sum(axis=0)).times(1 / total)


def _evidence(stats: LinearSummary, candidate: Candidate, lambdas: Floats) -> Floats:
    return ridge_evidence(stats, candidate.mean, candidate.factor, lambdas, NOISE_SCALES)


def _lambdas_of(states: States) -> Floats:
    """Return each task's grid of lambdas, (tasks, lambdas): smaller by the square of how narrow features are.

    Slopes on features that fill a tenth of their bounds are ten times as long.
    """
    return np.asarray(LAMBDAS / np.square(OwnRidge.kept(states).narrowness)[:, None])


def _log_prior(candidate: Candidate, answers: Answers) -> Floats:
    """Return the log weights of noise scales and lambdas under a candidate, (scales, 1, lambdas)."""
    over_lambda = np.full((1, 1, len(LAMBDAS)), -math.log(len(LAMBDAS)))
    if candidate.shared:
        over_lambda = normal_on_grid(
            np.log(LAMBDAS), np.log(NUMBER.usual_lambda * NOISE_SCALES)[:, None, None], SCORE.usual_sd
        )
        if "scale" in answers:  # what explains all tasks together
            free = math.log((1 - TRUST.usual) / len(answers["scale"]))
            said = np.logaddexp(answers["scale"] + math.log(TRUST.usual), free)
            over_lambda = over_lambda + np.pad(said, (NUMBER.asked, 0), mode="edge")
            over_lambda -= np.log(np.exp(over_lambda).sum(axis=-1, keepdims=True))
    return np.asarray(over_lambda + (_level(answers)[:, None, None] + math.log(candidate.weight)))


@dataclass(frozen=True, eq=False, repr=False)
class _Alone:
    """A task's own fits, the weights of penalties and noise scales, and how well all of them foresaw y.

    `left_out` is the log-likelihood of rows that are left out, under fits weighed by evidence alone: what
    has chosen a penalty would flatter it.
    """

    rows: OwnRidge
    fit: RidgeFit
    shares: _Shares
    worth: Floats
    left_out: Floats

    def in_public(self) -> _Weighed:
        square = self.rows.unit[:, None] ** 2
        return self.rows.to_public(self.fit), replace(self.shares, scale=square * self.shares.scale)

    @property
    def effective_parameters(self) -> Floats:
        values = self.rows.values[:, :, None]
        used = (values / (values + OWN_LAMBDAS)).sum(axis=1)
        return self.shares.mean(used)


def _alone(rows: OwnRidge, answers: Answers) -> _Alone:
    """Fit each task in its own units: ridge regression over a grid of penalties, and no slopes at all.

    Penalties are weighed by evidence times the likelihood of leaving one row out: either alone is fooled
    more often by few rows. The intercept has a prior worth one row, around the own mean; the noise scale
    mostly follows what tasks answered about it, or is free in own units.
    """
    known = _known_level(answers)
    if known is None:
        scales, level = OWN_SCALES, _own_level(rows)
    else:
        usual, free = NOISE_SCALES[:, None] / rows.unit**2, np.tile(OWN_SCALES[:, None], len(rows.unit))
        scales = np.concatenate([usual, free])
        usual = np.tile(known[:, None] + math.log(TRUST.usual), len(rows.unit))
        level = np.concatenate([usual, _own_level(rows) + math.log(1 - TRUST.usual)])
    fit = rows.fit(scales)
    joint = fit.log_evidence + (level[:, :, None] - math.log(len(OWN_LAMBDAS)))
    joint[..., :-1] = np.where((rows.count < TRUST.few)[:, None], -np.inf, joint[..., :-1])
    worth = log_sum(joint.swapaxes(0, 1)) - rows.count * np.log(rows.unit)
    if rows.front is not None:
        worth -= 0.5 * np.log1p(rows.count)
    left_out = _shares(joint, scales)[1].mean(rows.left_out) - rows.count * np.log(rows.unit)
    joint += rows.left_out
    return _Alone(rows, fit, _shares(joint, scales)[1], worth, left_out)


def _usual_lambdas(value: Floats, noise: float) -> Floats:
    """Return log weights of lambdas by the evidence of all tasks, as much of it as is not noise."""
    square, freedom = max(float(value @ value), 1e-300), len(value) - 1
    significant = square > (freedom + 2 * math.sqrt(2 * freedom)) * noise**2
    return tempered((1 - freedom * noise**2 / square if significant else 0.0) * value, noise)


def _own_level(rows: OwnRidge) -> Floats:
    """Return the log weights of noise scales in own units: small ones are unlikely.

    The more so where there are as many features as rows, so that any targets could be fitted exactly.
    """
    power = np.where(rows.count > rows.scale.shape[1] + 1, NUMBER.own_power, 1.0)
    weights = power * np.log(OWN_SCALES)[:, None]
    return np.asarray(weights - np.log(np.exp(weights).sum(axis=0)))


def _known_level(answers: Answers) -> Floats | None:
    """Return the log weights of the noise scales around what tasks answered, if that is known."""
    if "level" in answers and np.isfinite(answers["level"][1]):
        return normal_on_grid(
            np.log(np.maximum(NOISE_SCALES, NUMBER.noise[0])), *map(float, answers["level"])
        )
    return None


def _level(answers: Answers) -> Floats:
    """Return the log weights of the noise scales: around what tasks answers, or all alike."""
    known = _known_level(answers)
    return np.full(len(NOISE_SCALES), -math.log(len(NOISE_SCALES))) if known is None else known


def _mean(fits: list[_Weighed]) -> Floats:
    mean = np.zeros(fits[0][0].basis.shape[:2])
    for fit, shares in fits:
        mean += shares.over_lambda.sum(axis=1)[:, None] * fit.center
        mean += (fit.basis @ (shares.over_lambda[:, None, :] @ fit.coordinates).swapaxes(1, 2))[..., 0]
    return mean


def _mix(count: Floats, fits: list[_Weighed]) -> States:
    """Match the first two moments of the mixture of posteriors."""
    tasks, size = fits[0][0].basis.shape[:2]
    covariance, noise = np.zeros((tasks, size, size)), np.zeros(tasks)
    places, parts = np.empty((tasks, len(fits), size)), np.empty((tasks, len(fits)))
    for i, (fit, shares) in enumerate(fits):
        variance, over_lambda = shares.variance(count, fit), shares.over_lambda
        noise += variance.sum(axis=1)
        parts[:, i] = over_lambda.sum(axis=1)
        middle = (over_lambda / np.maximum(parts[:, i, None], 1e-300))[:, None] @ fit.coordinates
        places[:, i] = (fit.basis @ middle.swapaxes(1, 2))[..., 0] + fit.center
        vectors, heights = fit.coordinates - middle, over_lambda
        if fit.bump is not None:
            vectors = np.concatenate([vectors, fit.bump], axis=1)
            heights = np.concatenate([heights, variance], axis=1)
        inside = (heights[:, :, None] * vectors).swapaxes(1, 2) @ vectors
        np.einsum("tkk->tk", inside)[...] += (variance[:, None, :] @ fit.spread)[:, 0]
        covariance += fit.basis @ inside @ fit.basis.swapaxes(1, 2)
        if fit.prior is not None:
            covariance += (variance * fit.rest).sum(axis=1)[:, None, None] * fit.prior
    coef = (parts[:, None] @ places)[:, 0]
    away = places - coef[:, None]
    covariance += (parts[:, :, None] * away).swapaxes(1, 2) @ away
    return {"coef": coef, "covariance": covariance, "noise": noise}
