"""The numbers that searches, shared priors and stacking choose by: a frozen dataclass a stage.

Each says where it comes from. What is *derived* follows from the sentence; to change it needs another one.
What is *tuned* was chosen by measuring: on made tables, and on splits of real ones other than those that are
scored. Who changes one measures again, by the benchmarks that it names, and says so in the page about shared
priors. A test holds that there are no other numbers in the modules that use these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cloister.core.origin import derived, tuned

#: The test of how often standard errors cover.
COVERAGE = "tests/app/test_run_summary.py"


@dataclass(frozen=True)
class SearchConstants:
    """Where targets and features are."""

    places: int = derived(2, "rounds that look for the place: bins of bins tell a thousandth of the bounds")
    bins: int = tuned(32, "bins of a round", "bounds, harm")
    significant: float = derived(3.5, "noise has such a window, 1 to 8 of 32 bins wide, in 2 % of rounds")
    windows: tuple[int, ...] = derived((1, 2, 4, 8), "octaves up to a quarter of the bins")
    spread: float = tuned(2.0, "deviations, where tasks were heard and their spread is one of few octaves")
    most: float = tuned(0.1, "largest share of the squared budget")
    clear: float = derived(15.0, "deviations of all tasks in one bin: a fourth of them still stand 3.5 out")
    nothing: float = derived(1e-6, "share of the budget where nothing could be heard: next to none")
    even: float = derived(math.sqrt(3), "typical distances in half the width of what is spread evenly")
    half: float = tuned(2.0, "a prior's features had better fill half of their unit", "bounds, harm")


@dataclass(frozen=True)
class HistogramConstants:
    """Where columns are, by histograms of records."""

    bins: int = derived(64, "bins between the bounds, all in one round: twice those of a search of three")
    clear: float = derived(5.0, "deviations: noise in 64 bins of 100 columns has such a one in 1 of 500 runs")
    peak: float = derived(0.3, "part of the records in the fullest bins: of a normal two bins wide, or so")
    legible: float = tuned(8.0, "deviations that such a bin had better stand out", "records, record-harm")
    full: float = derived(0.1, "part of the records in a usual bin, whose sampling is noise too")
    fewest: float = tuned(0.06, "least share of the squared budget", "records, record-harm")
    most: float = tuned(0.25, "largest share", "records, record-harm")
    hopeless: float = derived(0.5, "share beyond which more than half would go into units")
    fewer: float = derived(2.0, "errors by which a count must be below a bound to be believed")
    least: float = derived(0.02, "part of the records in a spike, or beside spikes: less moves no deviation")
    least_mass: float = derived(0.05, "part that a normal is fitted to at least: less is lost in noise")
    off_middle: float = derived(0.5, "deviation of places from the bounds' middle, in half-widths")
    rare: float = derived(0.2, "least deviation of an indicator: of one in 25 records")
    finest: int = derived(12, "half octaves: spreads from half the bounds' half down to a bin or so")
    octaves: float = derived(2.0, "half octaves that spreads differ by from column to column")


@dataclass(frozen=True)
class BudgetConstants:
    """How many rounds, and what of the budget questions have."""

    questions: float = tuned(0.06, "share of the squared budget for questions; 10 to 30 % are no better")
    rounds: float = tuned(1.5, "rounds for each root of what the mean stands out by")
    fewest: int = tuned(4, "rounds at least")
    most: int = tuned(20, "rounds at most, and without noise")


@dataclass(frozen=True)
class MeanConstants:
    """Where tasks' weights lie on average, from offsets seen from moving points."""

    usual: float = tuned(0.4, "slope of offsets against the point, before anything is released")
    usual_sd: float = tuned(0.15, "its deviation")
    least: float = derived(0.1, "least slope: two deviations below the usual one; 2 % by chance")
    far: float = derived(1.0, "clips between start and mean, beforehand: no offset is longer")
    curved: float = tuned(0.35, "what a round from a clip away is wrong by: clipping bends the line")
    steps: int = derived(8, "repetitions until it stays")
    finest: float = tuned(1e-3, "noise in clips that is not told from a line which is not quite one")
    surprise: float = tuned(1.0, "deviations above pure noise at which a mean starts to move")
    surprise_later: float = derived(3.0, "where an earlier run's mean would be left: 1 in 700 by chance")
    longest: float = derived(4.0, "squared length of noise, in clips: twice that of any offset")
    shrinkage: float = tuned(0.5, "part of James and Stein's factor; all of it costs more than it brings")
    moving: float = tuned(0.6, "share of the mean in a joint message while it moves")
    standing: float = tuned(0.15, "and while it stands")


@dataclass(frozen=True)
class PopulationConstants:
    """How far off the mean may be."""

    on: float = tuned(0.7, "deviation of the response on its diagonal, as a part of it", COVERAGE)
    off: float = tuned(0.6, "of the others, over the root of their number", COVERAGE)
    steepest: float = derived(0.95, "a response of 1 would be told from one that has no deviation")


@dataclass(frozen=True)
class CovarianceConstants:
    """What of a noisy covariance is signal."""

    surprise: float = derived(2.0, "deviations of a chi square above its mean: noise has more in 2.5 %")
    mix: float = tuned(0.01, "identity in a prior at least, and least eigenvalue of a raised one")
    mixes: tuple[float, ...] = derived(
        (0.003, 0.01, 0.03, 0.1, 0.3), "of a subspace that is told alone: half decades, tasks weigh them"
    )
    thresholds: tuple[float, ...] = derived(
        (0.0, 1.0), "deviations of noise: none and one, beside the largest of all"
    )


@dataclass(frozen=True)
class WeightConstants:
    """What shared priors weigh before a task looks at its rows."""

    even: float = derived(0.5, "where all of the mean is noise: nothing speaks for either side")
    by_class: float = tuned(0.4, "for classes: of the one in own units, and of relevant features")
    zero: float = tuned(0.2, "for several classes: of the one around zero")
    group: float = tuned(0.8, "part of the shared ones that goes to a group's mean", "groups")
    relevance: float = tuned(2 / 3, "share of the mean in a message with squares", "classes")
    least_relevance: float = tuned(0.03, "least variance of a feature's prior, of an average of 1", "classes")


@dataclass(frozen=True)
class PooledConstants:
    """Where weights lie, by all records together."""

    looks: int = tuned(3, "rounds; one loses a tenth to a third, five gain nothing", "records, record-harm")
    least: float = tuned(0.05, "least eigenvalue of moments, of their mean", "records, record-harm")
    signal: float = derived(0.01, "part of the noise's variance that is taken for signal at least")
    unfound: float = derived(0.5, "deviation of targets that nobody looks for: half of their bounds' half")
    widths: tuple[tuple[float, float], ...] = derived(
        ((1.0, 0.8), (0.001, 0.2)), "how wide slopes are before they are told, and how likely: wide, or none"
    )
    chance: float = derived(0.025, "how rarely rows vary by so much less than all do, by chance: two errors")
    shared: float = tuned(0.7, "of shared priors' weight: nobody asks how many they serve", "record-harm")
    levels: tuple[float, ...] = tuned(
        (0.03, 1.0), "how levels vary, of the targets' variance", "records, record-harm"
    )
    slopes: tuple[float, ...] = tuned(
        (0.2, 2.0), "how scores vary, of what they have in common", "records, record-harm"
    )


@dataclass(frozen=True)
class GroupConstants:
    """Whether groups are asked, and how far they differ."""

    most_noise: float = tuned(
        0.4, "noise of a group's offset in the end, in clips, if it is asked for", "groups"
    )
    deviations: float = derived(2.0, "of pure noise, taken off the spread between groups: 2 % by chance")
    share: float = derived(
        0.5, "of the common slot: the noise variances of two slots then have the least sum"
    )
    message: float = derived(
        0.25, "squared length of a message, in clips, if nobody tells it: of half a clip"
    )
    unsure: float = derived(2.0, "log deviation from which a grid of scales says nothing: all alike have 3")


@dataclass(frozen=True)
class StackingConstants:
    """How far tasks rely on a shared model beside their own."""

    folds: int = tuned(5, "parts of a task's rows, each held out once", "family-harm")
    clear: float = tuned(0.03, "error of the answer that is small enough", "family-harm")
    useless: float = derived(0.5, "error of a share that says nothing: as far as from the middle to an end")
    nothing: float = derived(1e-6, "share of the budget where nothing could be heard: next to none")
    surest: float = derived(0.99, "most that a prior expects: a beta distribution has no mean of 1")


SEARCH = SearchConstants()
HISTOGRAM = HistogramConstants()
BUDGET = BudgetConstants()
MEAN = MeanConstants()
POPULATION = PopulationConstants()
COVARIANCE = CovarianceConstants()
WEIGHTS = WeightConstants()
POOLED = PooledConstants()
GROUPS = GroupConstants()
STACKING = StackingConstants()
#: All of them, by stage.
STAGES = (SEARCH, HISTOGRAM, BUDGET, MEAN, POPULATION, COVARIANCE, WEIGHTS, POOLED, GROUPS, STACKING)
