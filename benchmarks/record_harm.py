"""Does joining by record ever harm? Against learning alone: 79 kinds of institutions.

Alone is our own single-task model or scikit-learn's RidgeCV, whichever is the better on average. A cell fails
if the lower end of a one-sided 95 % t interval of the mean log ratio of excesses, corrected for the number of
cells, is above 2 %. Of a gain of 15 % or more it is counted how much epsilon 1 keeps, by Q: the number of
records times mu over that of weights, and with own noise over the root of the number of institutions. The
grid was fixed before anything was tuned; constants were then chosen on other seeds of the same laws. How many
cells fail is counted again on ten more seeds, with which nobody has chosen anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from scipy.stats import t as student

from benchmarks import Figures, Tables, Targets
from benchmarks.record_tables import GRID, Classes, Institutions
from benchmarks.records import drawn_once, grouped, mean_error
from harness.cells import Cells

NAME = "record-harm"

EPSILONS, SEEDS, QUICK_SEEDS = (1.0, math.inf), range(10), range(2)
#: Looked at after everything was chosen.
FRESH, QUICK_FRESH = range(200, 210), range(200, 202)
#: A cell may be worse by this part, and a gain of this part or more is one of which a share may be kept.
LIMIT, GAIN = 0.02, 0.15
#: What is to be kept of it, from a Q and up to another.
HEARD = ((20, 35, 0.5), (60, math.inf, 0.85))


def measure(job: tuple[int, int]) -> dict[str, float]:
    """Draw a cell of the grid once."""
    return drawn_once(GRID[job[0]], job[1], EPSILONS)


def measure_fresh(job: tuple[int, int]) -> dict[str, float]:
    """Draw a cell once more, without own noise."""
    return drawn_once(GRID[job[0]], job[1], EPSILONS, own=False)


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Tables]:
    """Measure the grid; `quick` takes two seeds and every eighth cell."""
    seeds, step = (QUICK_SEEDS, 8) if quick else (SEEDS, 1)
    jobs = [(i, seed) for seed in seeds for i in range(0, len(GRID), step)]
    figures, targets, tables = summarised(grouped([i for i, _ in jobs], cells.measured(measure, jobs)))
    jobs = [(i, seed) for seed in (QUICK_FRESH if quick else FRESH) for i in range(0, len(GRID), step)]
    again = grouped([i for i, _ in jobs], cells.measured(measure_fresh, jobs))
    harms = [harm(outcomes, len(again)) for outcomes in again.values()]
    figures["fresh seeds failed"] = sum(bound > LIMIT for _, bound, _ in harms)
    figures["fresh seeds worst percent"] = 100 * max(worse for worse, *_ in harms)
    targets["fresh seeds failed"] = ("<=", 0)
    return figures, targets, tables


def harm(outcomes: list[dict[str, float]], cells: int) -> tuple[float, float, list[str]]:
    """Return the part by which a cell is worse than alone, at least and on average, and what it has."""
    means = {way: fmean(one[way] for one in outcomes) for way in outcomes[0]}
    best = min(("single", "ridge"), key=means.__getitem__)
    mean, error = mean_error([math.log(one["1"] / one[best]) for one in outcomes])
    bound = math.expm1(mean - float(student.ppf(1 - 0.05 / cells, len(outcomes) - 1)) * error)
    shown = [f"{means['Q']:.0f}", *(f"{1000 * means[way]:.1f}" for way in (best, "1", "inf"))]
    return means["1"] / means[best] - 1, bound, shown


def summarised(
    found: dict[int, list[dict[str, float]]], grid: Sequence[Institutions | Classes] = GRID
) -> tuple[Figures, Targets, Tables]:
    """Return how many cells of a grid are worse than alone, and what is kept of gains."""
    head = [
        "institutions",
        "Q",
        "alone",
        "epsilon 1",
        "no noise",
        "more than alone, %",
        "at least, %",
        "kept",
    ]
    lines, kept, own_noise, failed = [], [], [], 0
    for index, outcomes in found.items():
        means = {way: fmean(one[way] for one in outcomes) for way in outcomes[0]}
        best = min(("single", "ridge"), key=means.__getitem__)
        worse, bound, numbers = harm(outcomes, len(found))
        gain = means[best] - means["inf"]
        failed += bound > LIMIT
        share = (means[best] - means["1"]) / gain if gain > LIMIT * means[best] else math.nan
        if gain > GAIN * means[best]:
            kept.append((means["Q"], share))
        if gain > GAIN * means[best] and "silo" in means:
            silo = (means[best] - means["silo"]) / gain
            own_noise.append((means["Q"] / math.sqrt(GRID[index].count), silo))
        lines.append((worse, [*numbers, f"{100 * worse:.1f}", f"{100 * bound:.1f}", f"{share:.2f}"], index))
    lines.sort(reverse=True)
    figures: Figures = {
        "grid cells": len(lines),
        "grid failed": failed,
        "grid worst percent": 100 * lines[0][0],
    }
    figures["grid mean above 2 percent"] = sum(worse > LIMIT for worse, *_ in lines)
    targets: Targets = {"grid failed": ("<=", 0)}
    for name, shares, less in (("kept", kept, 0.0), ("kept with own noise", own_noise, 0.1)):
        figures |= by_heard(name, shares)
        targets |= {f"{name} at Q {low} to {high:g}": (">=", goal - less) for low, high, goal in HEARD}
    return figures, targets, {"grid": [head, *([grid[index].label, *line] for _, line, index in lines)]}


def by_heard(name: str, shares: list[tuple[float, float]]) -> Figures:
    """Return the median share that is kept of a gain, by how well the mean is heard."""
    there = {(low, high): [share for Q, share in shares if low <= Q < high] for low, high, _ in HEARD}
    return {f"{name} at Q {low} to {high:g}": median(one) for (low, high), one in there.items() if one}
