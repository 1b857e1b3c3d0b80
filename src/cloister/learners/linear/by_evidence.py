"""What learners share whose evidence has no formula: fits by Laplace's method, averaged by evidence."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats, States
from cloister.core.channel import Channel
from cloister.core.errors import InputError
from cloister.core.lifts import Plain
from cloister.core.tasks import Block
from cloister.learners.home import Home
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import (
    Candidate,
    Posterior,
    evidence_weights,
    log_sum,
    mixture,
    normal_on_grid,
    weighed,
)
from cloister.learners.linear.few_rows import too_few
from cloister.learners.linear.home_constants import SCORE, TRUST
from cloister.learners.linear.likelihood import ModesByVariance
from cloister.learners.linear.own_units import OwnUnits
from cloister.learners.linear.question import (
    Answers,
    Candidates,
    Question,
    centred,
    heard,
    relied_on,
    trust_question,
    trusted,
    usual_place,
)
from cloister.learners.linear.softmax import NEGLIGIBLE

#: Grid of the prior's variance, for rows of norm at most about 1; in own units, of all slopes together.
VARIANCES = np.geomspace(*SCORE.variances)
#: A task alone: prior deviation of an intercept from the own rates.
OWN_INTERCEPT = SCORE.level


@dataclass(frozen=True, eq=False, repr=False)
class Scored:
    """What one kind of prior makes of every task.

    Attributes
    ----------
    scores : array of shape (tasks, variances)
        Log evidence of each variance, times the weights of the kind and the variance.
    posterior : callable
        From each task's share of each variance to mean and covariance of its weights, in public units.
    left_out : array of shape (tasks, variances), optional
        Log-likelihood of rows that are left out.
    """

    scores: Floats
    posterior: Callable[[Floats], tuple[Floats, Floats]]
    left_out: Floats | None = None

    @property
    def worth(self) -> Floats:
        """Each task's log evidence and, if it is tested, how well rows that are left out are foreseen."""
        worth = log_sum(self.scores)
        return (
            worth if self.left_out is None else worth + (weighed(self.scores)[1] * self.left_out).sum(axis=1)
        )


class EvidenceLearner(BayesianLearner):
    """A learner that fits every candidate prior at each of `VARIANCES` and averages by Laplace evidence."""

    #: Nothing is asked before the mean is known.
    first: ClassVar[tuple[Question, ...]] = ()
    #: Intercepts vary this many times as much between tasks as slopes do, where they may.
    loose = SCORE.loose
    #: At a variance of 1, the middle of their grid, weights vary around the mean by a prior's scale.
    widening = 1.0
    #: Usual variance of scores in own units, by all slopes together: few rows ask for less than there is.
    usual = 1.0

    @property
    def variance_weights(self) -> Floats:
        """Log weights of variances in own units."""
        return normal_on_grid(np.log(VARIANCES), math.log(self.usual), SCORE.usual_sd)

    def own_variance_weights(self, few: NDArray[np.bool_]) -> Floats:
        """Return them for each task; one of few rows has no slopes, that variances are of."""
        without = np.where(np.arange(len(VARIANCES)) > 0, -np.inf, 0.0)
        return np.where(few[:, None], without, self.variance_weights)

    @property
    def last(self) -> tuple[Question, ...]:
        channel = Channel(len(VARIANCES), 2.0, Plain())
        scale = Question(
            "scale", "how far tasks differ", channel, (0.0, math.inf), self._variances, _usual_variance
        )
        return scale, trust_question(self._trusts)

    @property
    def prior_scales(self) -> tuple[float, float, float]:
        return 1.0, SCORE.slopes, 1.0

    @property
    def own_scales(self) -> tuple[float, float]:
        return SCORE.own_level, 1 / max(1, self.dim - int(self.intercept))

    @abstractmethod
    def variance_evidence(self, home: Home, mean: Floats) -> Floats:
        """Return the log evidence of each of `VARIANCES` around a public mean, (tasks, variances)."""

    @abstractmethod
    def around(self, home: Home, candidate: Candidate, follow: Floats) -> Scored:
        """Fit each task with a public prior; `follow` are log weights of its variances."""

    @abstractmethod
    def alone(self, home: Home, weight: float, *, tested: bool = False) -> Scored:
        """Fit each task in its own units, with a prior of its own; `tested` as candidates are."""

    def own_weights(self, home: Home) -> Floats:
        weights: Floats = self.finish(home, (), {})["coef"]
        return weights

    def finish(self, home: Home, candidates: Candidates, answers: Answers) -> States:
        """Average over candidates, prior variances and the own prior by the task's own Laplace evidence.

        Candidates weigh as much as the board says (`rely`), which is all that tasks of few rows can go by.
        """

        def solve(home: Home, few: int) -> States:
            asked = "trust" in answers
            weighed = self.rely(candidates, answers, few=bool(few)) if asked else candidates
            return self._average(home, weighed, answers)

        return home.apart(too_few(home.rows.weight.sum(axis=1)).astype(np.intp), solve)

    def rely(self, candidates: Candidates, answers: Answers, *, few: bool) -> list[Candidate]:
        """Weigh candidates by what others said of them or, where that was not heard, by what was.

        Tasks of too few rows to tell take them where a majority is beyond doubt, and not otherwise.
        """
        if few:
            return relied_on(candidates, answers)
        return trusted(candidates, answers) if math.isfinite(answers["trust"][1]) else heard(candidates)

    def _average(self, home: Home, candidates: Candidates, answers: Answers) -> States:
        """Average over candidates, prior variances and the own prior by evidence."""
        fits = self._fits(home, candidates, answers)
        worth = np.stack([part.worth for part in fits], axis=1)
        (chances,) = evidence_weights([worth], [np.zeros(1)])
        parts = []
        for part, chance, log_evidence in zip(fits, chances.T, worth.T, strict=True):
            (share,) = evidence_weights([part.scores], [np.zeros(1)])
            found = part.posterior(np.where((chance > NEGLIGIBLE)[:, None], share, 0.0))
            parts.append(Posterior(log_evidence, *found))
        shared = chances[:, : len(self.kinds(candidates))].sum(axis=1)
        return mixture(parts) | {"rows": home.rows.weight.sum(axis=1), "shared_weight": shared}

    def _variances(self, home: Home, candidates: Candidates, answers: Answers) -> Floats:
        """Say how well each prior variance around the mean explains the own data: centred log evidence."""
        mean = candidates[-1].mean if candidates else np.zeros(self.size)
        return centred(self.variance_evidence(home, mean))

    def _trusts(self, home: Home, candidates: Candidates, answers: Answers) -> Floats:
        """Say how likely the shared priors are, and the own one, by the own evidence: two parts of one."""
        if not candidates:
            return np.zeros((len(home), 2))
        *shared, own = (log_sum(part.scores) for part in self._fits(home, candidates, answers))
        both = np.stack([log_sum(np.stack(shared, axis=1)), own], axis=1)
        (chances,) = evidence_weights([both], [np.zeros(1)])
        return np.where(home.rows.weight.sum(axis=1, keepdims=True) > 0, chances, 0.0)

    def _fits(self, home: Home, candidates: Candidates, answers: Answers) -> list[Scored]:
        """Fit each task with every candidate and, with the weight that they leave, alone."""
        own = 1 - sum(candidate.weight for candidate in candidates)
        kinds = self.kinds(candidates)
        follow = [self._follow(one, answers) for one in kinds]
        found = self.around_all(home, kinds, follow)
        if own <= 1e-9:
            return found
        return [*found, self.alone(home, own, tested=any(one.tested for one in kinds))]

    def around_all(self, home: Home, candidates: Candidates, follow: list[Floats]) -> list[Scored]:
        """Fit each task with each public prior."""
        return [self.around(home, *one) for one in zip(candidates, follow, strict=True)]

    def kinds(self, candidates: Candidates) -> Candidates:
        """Return the priors that candidates stand for: by default these."""
        return candidates

    def _follow(self, candidate: Candidate, answers: Answers) -> Floats:
        """Return log weights of a candidate's variances: as tasks said, for shared ones, or all alike."""
        if candidate.own_units:
            return self.variance_weights
        if candidate.shared and "scale" in answers:
            return normal_on_grid(np.log(VARIANCES), *map(float, answers["scale"]))
        return np.full(len(VARIANCES), -math.log(len(VARIANCES)))


def product(X: Floats, right: Floats) -> Floats:
    with np.errstate(all="ignore"):  # data that overflow count as no data
        return np.asarray(X @ right)


def own_design(units: OwnUnits) -> Floats:
    """Return rows in own units; of tasks of few rows, whose spreads say nothing, the level alone."""
    few = (units.total < TRUST.few)[:, None, None]
    level = np.arange(units.design.shape[2]) == (-1 if units.front is None else 0)
    return np.where(few & ~level, 0.0, units.design)


def scored_around(fit: ModesByVariance, candidate: Candidate, factor: Floats, follow: Floats) -> Scored:
    """Return what a fit around a public mean makes of tasks, by the way from its coordinates to weights."""

    def to_public(share: Floats) -> tuple[Floats, Floats]:
        inner, spread = fit.posterior(share)
        away = (factor @ inner[:, :, None])[:, :, 0]
        return candidate.mean + away, factor @ spread @ np.swapaxes(factor, -1, -2)

    return Scored(fit.log_evidence + follow + math.log(candidate.weight), to_public)


def check_class_weight(weights: tuple[float, ...] | None, classes: int) -> None:
    """Refuse weights that are not one positive number a class."""
    if weights is not None and (len(weights) != classes or not all(0 < w < math.inf for w in weights)):
        raise InputError(f"class_weight must be {classes} numbers > 0, one for each class. Got {weights}.")


def by_class(block: Block, weights: tuple[float, ...] | None) -> Block:
    """Return the rows, each of which counts as many as its class says."""
    if weights is None:
        return block
    with np.errstate(invalid="ignore"):
        place = np.clip(np.nan_to_num(block.y), 0, len(weights) - 1).astype(np.intp)
    return replace(block, weight=block.weight * np.array(weights)[place])


def _usual_variance(value: Floats, noise: float) -> Floats:
    """Return center and sd of the log variance that explains the tasks best."""
    return usual_place(value, noise, np.log(VARIANCES))
