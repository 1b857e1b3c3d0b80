r"""Bayesian regression of counts with a log link: Poisson, or with a spread beyond it.

A count has the mean :math:`\mu = e^s` of its score s and the variance :math:`\mu + \phi \mu^2` (negative
binomial; Poisson for :math:`\phi = 0`),

.. math:: \log p(y \mid s) = y s' - (y + r) \log(1 + e^{s'}) + \text{const}, \qquad
    s' = s - \log r, \quad r = 1 / \phi.

Gradient and curvature in the score are bounded and its third derivative is no larger than the second, so that
no count and no start can make Newton's method fail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammaln

from cloister.core.arrays import Floats, Integers, States
from cloister.core.channel import Channel
from cloister.core.errors import InputError
from cloister.core.lifts import Plain
from cloister.learners.home import Home
from cloister.learners.linear.average import Candidate, loose_intercept, normal_on_grid, weighed
from cloister.learners.linear.by_evidence import (
    OWN_INTERCEPT,
    VARIANCES,
    EvidenceLearner,
    Scored,
    own_design,
    product,
    scored_around,
)
from cloister.learners.linear.home_constants import SCORE, TRUST
from cloister.learners.linear.likelihood import Likelihood, Slope, find_mode, modes_by_variance
from cloister.learners.linear.losses import PoissonLoss, middle_of
from cloister.learners.linear.own_units import OwnUnits
from cloister.learners.linear.question import Answers, Candidates, Question, centred, usual_place

if TYPE_CHECKING:
    from cloister.core.tasks import Block

#: Grid of the spread beyond Poisson; the first is Poisson but for rounding.
SPREADS = np.array(SCORE.spreads)
#: What a task thinks of them before anyone is asked: log weights.
USUAL_SPREADS = np.full(len(SPREADS), -math.log(len(SPREADS)))
#: Beyond these, numbers are no data.
_ABSURD, _MOST = 1e100, 1e15


@dataclass(frozen=True, eq=False, repr=False)
class CountRows(Likelihood):
    """Counts whose score is an offset and a linear function of coordinates."""

    X: Floats  # (k, n, p)
    offset: Floats  # (k, n)
    y: Floats  # (k, n)
    weight: Floats  # (k, n)
    spread: Floats  # (k,)
    constant: Floats  # (k,), minus what of the log-likelihood does not depend on scores

    @classmethod
    def of(cls, X: Floats, offset: Floats, block: Block, spread: Floats) -> CountRows:
        """Zero padding, and every row of a task with a value that is not finite, absurd or no count."""
        y, weight, there = block.y, block.weight, block.weight > 0
        with np.errstate(invalid="ignore"):  # NaN fails every comparison
            sane = (np.abs(X) <= _ABSURD).all(axis=2) & (np.abs(offset) <= _ABSURD)
            sane &= (y >= 0) & (y <= _MOST) & (weight <= _ABSURD)
            keep = there & (sane | ~there).all(axis=1, keepdims=True)
        y = np.where(keep, y, 0.0)
        r, weight = 1 / spread[:, None], np.where(keep, weight, 0.0)
        constant = (weight * (gammaln(y + r) - gammaln(r) - gammaln(y + 1))).sum(axis=1)
        X, offset = np.where(keep[:, :, None], X, 0.0), np.where(keep, offset, 0.0)
        return cls(X, offset, y, weight, spread, -constant)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.X), self.X.shape[2]

    def take(self, tasks: Integers) -> Self:
        parts = (self.X, self.offset, self.y, self.weight, self.spread, self.constant)
        return type(self)(*(part[tasks] for part in parts))

    def value(self, u: Floats) -> Floats:
        return self._value(self._shifted(u))

    def slope(self, u: Floats) -> Slope:
        shifted, size = self._shifted(u), (self.y + 1 / self.spread[:, None]) * self.weight
        chance = expit(shifted)
        gradient = size * chance - self.weight * self.y
        curved = size * chance * expit(-shifted)
        X = self.X
        return Slope(
            self._value(shifted),
            (gradient[:, None, :] @ X)[:, 0],
            (X * curved[:, :, None]).swapaxes(1, 2) @ X,
        )

    def reach(self, step: Floats) -> Floats:
        change = np.abs(self.X @ step[:, :, None])[:, :, 0]
        return np.asarray(np.where(self.weight > 0, change, 0.0).max(axis=1, initial=0.0))

    def _shifted(self, u: Floats) -> Floats:
        scores = self.offset + (self.X @ u[:, :, None])[:, :, 0]
        return np.asarray(scores + np.log(self.spread)[:, None])

    def _value(self, shifted: Floats) -> Floats:
        each = (self.y + 1 / self.spread[:, None]) * np.logaddexp(0.0, shifted) - self.y * shifted
        return np.asarray((self.weight * each).sum(axis=1) + self.constant)


@dataclass(frozen=True)
class CountRegression(EvidenceLearner):
    r"""Regression of counts with a log link on `dim` features, rows of norm at most about 1.

    .. math:: E(y) = e^{c + o + x^\top w}, \qquad \operatorname{Var}(y) = \mu + \phi \mu^2

    with the public middle :math:`c = \frac12 \log(1 + \text{most})` of the possible counts and an offset o,
    the logarithm of the row's exposure. The spread beyond Poisson, :math:`\phi`, is each task's own: by the
    evidence of its rows and, once tasks were asked, by what is usual among them.

    Parameters
    ----------
    dim : int
        Number of columns with a weight, the intercept's included.
    most : float
        The largest count that is publicly possible.
    exposure : bool
        Whether rows have one more column, the last: the offset.
    intercept : bool
        Whether column 0 is an intercept, which may vary more between tasks than slopes do.
    """

    dim: int
    most: float = SCORE.most
    exposure: bool = False
    intercept: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.most <= _MOST:
            raise InputError(f"most must be a number of at least 1, and at most {_MOST:g}. Got {self.most}.")

    #: Slopes change the logarithm of a mean by half of it, about.
    usual = SCORE.usual_count

    @property
    def first(self) -> tuple[Question, ...]:  # type: ignore[override]
        channel = Channel(len(SPREADS), 2.0, Plain())
        about = "how much counts vary beyond Poisson"
        return (Question("spread", about, channel, (0.0, math.inf), _spread_evidence, _usual_spread),)

    @property
    def size(self) -> int:
        return self.dim

    @property
    def columns(self) -> int:
        return self.dim + self.exposure

    @property
    def clip(self) -> float:
        """How far a task's weights may lie from the public point before its message is clipped."""
        return 2.0

    @property
    def variance(self) -> float:
        """Prior variance of the offset a task reports: wider, a mean of few rows with zeros is too low."""
        return 3.0

    @property
    def loss(self) -> PoissonLoss:
        return PoissonLoss(self.dim, self.most, self.exposure)

    def prepare(self, block: Block) -> States:
        """Return the own evidence of each spread beyond Poisson, of a usual prior variance."""
        own, middle = _Own.of(self, block, np.zeros(self.dim)), len(VARIANCES) // 2
        evidence = np.empty((len(block), len(SPREADS)))
        for i, spread in enumerate(SPREADS):
            rows = own.rows(np.full(len(block), spread))
            evidence[:, i] = modes_by_variance(rows, own.variances[middle : middle + 1]).log_evidence[:, 0]
        return {"spreads": evidence}

    def offset(self, home: Home, point: Floats) -> Floats:
        """Return the most probable offset from a public point under a wide prior."""
        return find_mode(self._rows(home, np.eye(self.dim), point), self.variance)

    def variance_evidence(self, home: Home, mean: Floats) -> Floats:
        factor = math.sqrt(self.prior_scales[1]) * loose_intercept(self.dim, self.loose, self.intercept)
        rows = self._rows(home, factor, mean)
        return modes_by_variance(rows, VARIANCES).log_evidence

    def around(self, home: Home, candidate: Candidate, follow: Floats) -> Scored:
        if candidate.own_level:
            return self._own_level(home, candidate.mean, math.log(candidate.weight))
        block = home.rows
        factor: Floats = candidate.factor
        if candidate.own_units:
            units = OwnUnits.of(block.X[:, :, : self.dim], block.weight, self.intercept)
            design, factor = own_design(units) @ factor, units.back @ factor
        else:
            design = product(block.X[:, :, : self.dim], factor)
        rows = CountRows.of(design, self._scores(block, candidate.mean), block, _spreads(home.states))
        return scored_around(modes_by_variance(rows, VARIANCES), candidate, factor, follow)

    def kinds(self, candidates: Candidates) -> Candidates:
        """Take a prior in own units for one of levels and slopes or, as likely, of slopes alone.

        A mean of levels has far to go between wide bounds, and a prior as wide as what is left of the way
        would be as wide in its slopes. Then each task has its own level, as it has alone.
        """
        found = []
        for one in candidates:
            halves = [
                replace(one, weight=one.weight / 2),
                replace(one, weight=one.weight / 2, own_level=True),
            ]
            found += halves if one.own_units and self.intercept and self.dim > 1 else [one]
        return found

    def alone(self, home: Home, weight: float, *, tested: bool = False) -> Scored:
        """Fit each task in its own units, from its own smoothed rate: slopes over a grid of variances.

        The intercept's prior is worth one row, around the own rate, which half a count is added to: with no
        slopes, and for a task that never counted anything, this is what it predicts.
        """
        return self._own_level(home, np.zeros(self.dim), math.log(weight))

    def _own_level(self, home: Home, point: Floats, weight: float) -> Scored:
        """Fit each task's slopes in its own units around public ones, from its own rate given these."""
        own = _Own.of(self, home.rows, point)
        fit = modes_by_variance(own.rows(_spreads(home.states)), own.variances)

        def to_public(share: Floats) -> tuple[Floats, Floats]:
            inner, spread = fit.posterior(share)
            if self.intercept:
                inner[:, 0] += own.level / OWN_INTERCEPT
            turn = own.back
            return point + (turn @ inner[:, :, None])[:, :, 0], turn @ spread @ turn.swapaxes(1, 2)

        log_evidence = fit.log_evidence + self.own_variance_weights(own.few) + weight
        if self.intercept:
            log_evidence -= 0.5 * np.log1p(own.total)[:, None]
        return Scored(log_evidence, to_public)

    def finish(self, home: Home, candidates: Candidates, answers: Answers) -> States:
        home = self._asked(home, answers)
        return super().finish(home, candidates, answers) | {"spread": _spreads(home.states)}

    def _trusts(self, home: Home, candidates: Candidates, answers: Answers) -> Floats:
        return super()._trusts(self._asked(home, answers), candidates, answers)

    def _variances(self, home: Home, candidates: Candidates, answers: Answers) -> Floats:
        return super()._variances(self._asked(home, answers), candidates, answers)

    def _asked(self, home: Home, answers: Answers) -> Home:
        """Return tasks that know what spread is usual."""
        usual = answers.get("spread", np.array([0.0, math.inf]))
        if not np.isfinite(usual[1]):
            return home
        weights = normal_on_grid(np.arange(float(len(SPREADS))), *map(float, usual))
        return home.knowing({"spreads": home.states["spreads"] + weights - USUAL_SPREADS})

    def _scores(self, block: Block, point: Floats) -> Floats:
        """Return the scores of rows at a public point, offsets included."""
        scores = product(block.X[:, :, : self.dim], point)
        if self.exposure:
            scores = scores + block.X[:, :, self.dim]
        return scores + middle_of(self.most)

    def _rows(self, home: Home, factor: Floats, mean: Floats) -> CountRows:
        block = home.rows
        design = product(block.X[:, :, : self.dim], factor)
        return CountRows.of(design, self._scores(block, mean), block, _spreads(home.states))


@dataclass(frozen=True, eq=False, repr=False)
class _Own:
    """Each task's rows in its own units, from its own smoothed rate at a public point."""

    block: Block
    design: Floats
    scores: Floats
    level: Floats
    back: Floats
    total: Floats
    few: NDArray[np.bool_]
    variances: Floats

    @classmethod
    def of(cls, learner: CountRegression, block: Block, point: Floats) -> _Own:
        units = OwnUnits.of(block.X[:, :, : learner.dim], block.weight, learner.intercept)
        few = units.total < TRUST.few
        design, back = np.where(few[:, None, None], 0.0, units.design), units.back
        scores, level = learner._scores(block, point), np.zeros(len(block))
        if learner.intercept:
            design[..., 0] = np.where(units.weight > 0, OWN_INTERCEPT, 0.0)
            back[..., 0] *= OWN_INTERCEPT
            with np.errstate(all="ignore"):  # data that are not finite count as no data
                there = block.weight > 0
                counted = np.where(there, block.weight * block.y, 0.0).sum(axis=1)
                expected = np.where(there, block.weight * np.exp(scores), 0.0).sum(axis=1)
                level = np.log(counted + 0.5) - np.log(np.where(expected > 0, expected, 1.0))
            level = np.where(np.isfinite(level), level, 0.0)
            scores = scores + level[:, None]
        variances = VARIANCES / max(1, units.rows.shape[2])
        return cls(block, design, scores, level, back, units.total, few, variances)

    def rows(self, spread: Floats) -> CountRows:
        return CountRows.of(self.design, self.scores, self.block, spread)


def _spreads(states: States) -> Floats:
    """Return each task's spread beyond Poisson: the mean by its own evidence, and by what is usual."""
    _, shares = weighed(states["spreads"] + USUAL_SPREADS)
    return np.asarray((shares * SPREADS).sum(axis=1))


def _spread_evidence(home: Home, candidates: Candidates, answers: Answers) -> Floats:
    return centred(home.states["spreads"])


def _usual_spread(value: Floats, noise: float) -> Floats:
    """Return center and deviation of the usual place in `SPREADS`; none if noise hides it."""
    count = len(value) - 1  # the answers are centred
    if float(np.square(value - value.mean()).sum()) <= (count + 2 * math.sqrt(2 * count)) * noise**2:
        return np.array([0.0, math.inf])
    return usual_place(value, noise, np.arange(float(len(SPREADS))))
