"""Whether forecasts of what a run keeps of the noise-free gain hold, on data sets not used to fit them.

Random subsets of the tasks of real tables (and of one synthetic problem), with all of their training rows or
with two fifths of them, are fitted alone, without noise and at five epsilons. What a run keeps is
(alone - private) / (alone - no noise), at most 1: more is luck on the test rows. Runs where even the
noise-free prior gains less than 2 % say nothing and are left out.

The band is to hold four of five runs of a data set that it has not seen. Data sets differ, so it spans the
middle 92 % of the runs near each rho, every data set counting the same; runs up to an octave away count, the
less the farther, as the band is interpolated. It is fitted without a data set and scored on it, with the
usual rows of a task for a public guess. The last rows are the band of all, for
``cloister.plan.forecast.BAND``.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from benchmarks import Figures, Table, Targets
from benchmarks.prior_accuracy import (
    FILES,
    TABLES,
    Learner,
    loaded,
    losses,
    plan_for,
    synthetic,
    table,
)
from cloister.learners import Classification, Regression
from cloister.plan.forecast import BAND, band_at
from harness.cells import Cells
from harness.sources import data_file

NAME = "forecast"
DATA = (
    "landmine.npz",
    "school.npz",
)

EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0)
SUBSETS = (16, 32, 64, 128, 256, 512, 1024)
#: Share of a task's training rows that is kept.
ROWS = (1.0, 0.4)
KNOTS = tuple(rho for rho, _, _ in BAND)
#: Tables of another benchmark: more data for the band.
MORE = ("gapminder", "insteval")
#: Two targets of one table would vouch for each other.
SAME = {"chem97_high": "chem97"}
LEAST_GAIN = 0.02
#: A data set with fewer runs that gain anything has nothing to say.
LEAST_RUNS = 30
#: Share of the pooled runs beyond either end of the band.
BEYOND = 0.04
Band = tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Kept:
    """What one run kept, and its signal over noise by the forecast."""

    name: str
    rho: float
    share: float


def measure(job: tuple[str, int, float, int]) -> list[tuple[str, float, float]]:
    """Fit one subset of one data set at every epsilon; return what each run gives for `Kept`."""
    name, size, rows, repeat = job
    learner: Learner
    book = None
    if name == "low_rank":
        train, test = synthetic(name, 100 + repeat)
        learner = Regression(train.X.shape[1], intercept=False)
    else:
        (tasks, learner), book = table(name), loaded(name).codebook
        train, test = tasks.split(test=0.3, seed=500 + repeat)
    rng = np.random.default_rng([repeat, size, *name.encode()])
    train = train.select(np.sort(rng.permutation(len(train))[:size]))
    if rows < 1:
        train, _ = train.split(test=1 - rows, seed=900 + repeat)
    test = test.select(np.flatnonzero(np.isin(test.ids, train.ids)))
    alone, _ = losses(plan_for(learner, len(train), 0.0), train, test, 0)
    quiet, _ = losses(plan_for(learner, len(train), math.inf, book=book), train, test, 0)
    if alone - quiet < LEAST_GAIN * alone:
        return []
    kept = []
    for epsilon in EPSILONS:
        plan = plan_for(learner, len(train), epsilon, book=book)
        share = (alone - losses(plan, train, test, repeat)[0]) / (alone - quiet)
        kept.append((name, plan.forecast(float(np.median(train.sizes))).rho, min(share, 1.0)))
    return kept


def jobs_for(names: list[str], quick: bool) -> list[tuple[str, int, float, int]]:
    """List subsets: more of the small ones, which vary more and cost less; half as many of classes."""
    jobs = []
    for name in names:
        most = 320 if name == "low_rank" else len(table(name)[0])
        classes = name != "low_rank" and isinstance(table(name)[1], Classification)
        for size in [size for size in SUBSETS if size < 0.8 * most] + ([most] if most < 2000 else []):
            repeats = 3 if quick else 8 if size <= 256 else 3 if size <= 600 else 1
            some = range((repeats + 1) // 2 if classes else repeats)
            jobs += [(name, size, rows, repeat) for rows in ROWS for repeat in some]
    return jobs


def fit_band(runs: list[Kept], knots: tuple[float, ...] = KNOTS) -> Band:
    """Return (rho, low, high) at each knot: quantiles of the runs near it, monotone, rounded outwards."""
    shares = np.array([run.share for run in runs])
    names = np.array([run.name for run in runs])
    order = np.argsort(shares)
    found = []
    for knot in knots:
        near = np.maximum(0.0, 1 - np.abs(np.log2([run.rho / knot for run in runs])))
        for name in set(names):
            near[names == name] /= max(float(near[names == name].sum()), 1e-9)
        mass = np.cumsum(near[order]) / near.sum()
        found.append([shares[order][np.searchsorted(mass, level)] for level in (BEYOND, 1 - BEYOND)])
    low, high = np.maximum.accumulate(np.array(found), axis=0).T
    low, high = np.floor(20 * low + 1e-9) / 20, np.minimum(np.ceil(20 * high - 1e-9) / 20, 1.0)
    return tuple(zip(knots, low.tolist(), high.tolist(), strict=True))


def position(runs: list[Kept], band: Band) -> tuple[float, float, float]:
    """Return which shares of the runs lie below, in and above the band."""
    limits = [band_at(run.rho, band) for run in runs]
    below = np.mean([run.share < low for run, (low, _) in zip(runs, limits, strict=True)])
    above = np.mean([run.share > high for run, (_, high) in zip(runs, limits, strict=True)])
    return float(below), float(1 - below - above), float(above)


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Table]:
    """Fit the band without each data set in turn, and score it there.

    Parameters
    ----------
    quick : bool
        Small tables and few subsets.
    cells : Cells
        Finished runs.
    """
    wanted = ["exam", "hsb82", "bdf", "scotssec"] if quick else [*TABLES, *MORE, "low_rank"]
    missing = [name for name in wanted if name in FILES and not data_file(FILES[name]).exists()]
    jobs = jobs_for([name for name in wanted if name not in missing], quick)
    runs = [Kept(*kept) for subset in cells.measured(measure, jobs) for kept in subset]
    count = Counter(kept.name for kept in runs)
    runs = [kept for kept in runs if count[kept.name] >= LEAST_RUNS]
    rows = [["data", "runs", "below the band", "inside", "above"]]
    inside, undecided = {}, []
    for name in dict.fromkeys(kept.name for kept in runs):
        group = SAME.get(name, name)
        others = [kept for kept in runs if SAME.get(kept.name, kept.name) != group]
        here = [kept for kept in runs if kept.name == name]
        band = fit_band(others)
        parts = position(here, band)
        inside[name] = parts[1]
        undecided.append(position([kept for kept in here if 4 <= kept.rho <= 32], band)[1])
        rows.append([name, str(len(here)), *(f"{part:.0%}" for part in parts)])
    rows += [[name, "", "", f"not measured: no {data_file(FILES[name])}", ""] for name in missing]
    empty = [name for name in wanted if name not in (*inside, *missing)]
    rows += [[name, str(count[name]), "", "left out: hardly a gain to keep", ""] for name in empty]
    whole = fit_band(runs)
    rows += [[f"rho {rho:g}", "", f"{low:.2f}", "to", f"{high:.2f}"] for rho, low, high in whole]
    figures = {
        "coverage": float(np.mean(list(inside.values()))),
        "coverage_of_worst_set": min(inside.values()),
        "coverage_at_rho_4_to_32": float(np.mean(undecided)),
        "coverage_of_shipped_band": position(runs, BAND)[1],
        "coverage_of_shipped_band_on_worst_set": min(
            position([kept for kept in runs if kept.name == name], BAND)[1] for name in inside
        ),
        "mean_width": float(np.mean([high - low for _, low, high in whole])),
        "mean_width_from_rho_32": float(np.mean([high - low for rho, low, high in whole if rho >= 32])),
        "runs": len(runs),
    }
    return figures, {"coverage": (">=", 0.8), "coverage_of_worst_set": (">=", 0.75)}, rows
