"""The numbers that tasks choose by at home: a frozen dataclass a kind of target.

See `cloister.algorithms.constants` for those of what tasks share, and for the rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloister.core.origin import derived, tuned

#: How well intervals cover, and how wide they are.
INTERVALS = "intervals"


@dataclass(frozen=True)
class TrustConstants:
    """How far a task relies on what others share."""

    few: int = derived(4, "rows that level, one slope and spread can be held against: three fit any")
    doubts: float = tuned(1.5, "errors of an answer that caution allows for, either way", "family-harm, harm")
    little: float = tuned(0.25, "part of shared slopes that few rows are asked about; step of blends", "harm")
    least: float = tuned(0.03, "weight of the own prior, or of the shared ones, once tasks were asked")
    usual: float = tuned(0.9, "part of tasks that are like the others, until they say otherwise")
    scale_sd: float = tuned(0.7, "deviation of the log of a usual scale between tasks, at least")


@dataclass(frozen=True)
class NumberConstants:
    """What tasks whose targets are numbers make of their rows."""

    clip: float = tuned(0.5, "longest offset of weights that is told")
    ridge: float = tuned(0.05, "of the weights that are told")
    plain: float = tuned(0.05, "variance of weights around the mean, in noise variances over lambda")
    usual_lambda: float = derived(2.0, "noise variances: weights then vary by half of the prior's scale")
    lambdas: tuple[float, float, int] = tuned((1e-5, 1e2, 19), "grid that tasks are asked about: 3 to 18")
    asked: int = tuned(3, "first of it: who needs a smaller one finds out, and would speak loudest")
    narrow: float = tuned(0.3, "deviation of features, in half-widths, below which slopes are longer", "harm")
    narrowest: float = derived(1e-3, "as narrow as columns are made by the widest bounds that are sensible")
    noise: tuple[float, float] = tuned((2e-4, 0.5), "range of the noise variance that tasks tell")
    noises: int = derived(8, "steps of it: about half decades")
    exact: float = tuned(1e-7, "noise variance of tables without noise, for those who find out", "harm")
    typical: float = derived(3.0, "typical distances in a unit of targets: 99.7 % of normal ones are within")
    own_lambdas: tuple[float, float, int] = derived(
        (1e-3, 1e3, 13), "half decades from no ridge to no slope: rows count 1 each in own units"
    )
    own_noises: tuple[float, float, int] = derived(
        (1e-6, 1.0, 9), "from a thousandth of the targets' own deviation to all of it"
    )
    own_power: float = tuned(0.25, "of the noise variance in its prior, with rows to spare", "harm")
    kept: float = tuned(0.75, "of degrees of freedom: choosing takes the rest", INTERVALS)
    without_rows: float = tuned(5.0, "degrees of freedom of a task without rows", INTERVALS)
    least_freedom: float = derived(3.0, "degrees of freedom with a variance, at least")


@dataclass(frozen=True)
class ScoreConstants:
    """What tasks make of their rows whose targets are classes, ordered classes or counts."""

    variances: tuple[float, float, int] = tuned((1e-2, 1e2, 9), "grid of prior variances, for rows of norm 1")
    clip: float = tuned(2.0, "longest offset of scores' weights that is told")
    clip_alike: float = tuned(1.0, "the same, where several classes are told alike", "classes")
    slopes: float = tuned(0.3, "variance of slopes of scores, in the prior in which levels vary more")
    loose: float = tuned(30.0, "times more that levels vary in it, of numbers too")
    columns: float = tuned(
        4.0, "columns from which on scores of several classes have longer weights", "classes"
    )
    told: float = tuned(10.0, "prior variance of the offset that is told, for classes")
    level: float = derived(0.5, "deviation of an own level: worth one row, whose curvature is 1/4 at most")
    usual_sd: float = tuned(2.0, "deviation of logarithms of variances and of lambda", "harm")
    own_level: float = tuned(0.2, "variance of levels around the mean, in own units")
    usual_count: float = tuned(0.2, "variance of all slopes together in own units, for counts", "outcomes")
    spreads: tuple[float, ...] = tuned(
        (1e-6, 0.002, 0.01, 0.04, 0.15, 0.5, 2.0), "grid of the variance beyond Poisson", "outcomes"
    )
    most: float = derived(100.0, "largest count of learners that are made by hand: codebooks say theirs")


@dataclass(frozen=True)
class ResidualConstants:
    """What records say of their targets, seen from a public point."""

    clip: float = tuned(1.25, "deviations of residuals that are told", "records, record-harm")
    narrowest: float = derived(0.01, "deviation of residuals, in clips, below which none is told from none")
    spreads: int = derived(200, "deviations that are tried: steps of 3 %")
    exact: float = derived(1e-4, "part of the residuals' square that is left at least: a hundredth of them")
    usual: float = derived(0.7, "deviation of the log of tasks' noise variances, as where tasks tell theirs")
    scores: float = derived(3.3, "variance of scores of classes beforehand: that of the logistic law")
    rarest: float = derived(0.01, "mean square of residuals, of a class of one row in a hundred")
    passes: int = derived(10, "steps after which what is expected of classes is linear where weights are")
    misfit: float = derived(0.2, "part of it that is wrong for rows of zeros and ones, taken for normal")
    reach: float = derived(4.0, "deviations of a normal beyond which nearly nothing of it is")
    nodes: int = derived(81, "values for it: steps of a tenth of its deviation")


TRUST = TrustConstants()
NUMBER = NumberConstants()
SCORE = ScoreConstants()
RESIDUAL = ResidualConstants()
#: All of them.
HOME = (TRUST, NUMBER, SCORE, RESIDUAL)
