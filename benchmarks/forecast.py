"""Whether forecasts of what a run keeps of the noise-free gain hold, on data sets not used to fit them.

Fitted to the runs that `forecast-runs` has kept: nothing is run. What a run keeps is
(alone - private) / (alone - no noise), at most 1: more is luck on the test rows. Where even the noise-free
prior gains less than 5 % there is hardly a gain to keep: such runs are left out.

The band is to hold four of five runs of a data set that it has not seen. Data sets differ, so it is the
shortest interval with 88 % of the runs near each rho, every data set counting the same; runs up to an octave
away count, the less the farther, as the band is interpolated. It is fitted without a data set and scored on
it, with the usual rows of a task for a public guess. The last rows are the band of all, for
``cloister.plan.forecast.BAND``. How wide it is, on average over runs, stands beside `BEFORE`, the band of
until November 2026, on the same runs and by the rho of then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks import Figures, Table, Targets
from cloister.core.arrays import Floats
from cloister.plan.forecast import BAND, SEARCH, Band, band_at, rows_of_classes, signal_to_noise
from harness import catalog

NAME = "forecast"
PATHS = ("src/cloister/plan/forecast.py",)
DATA = ("benchmarks/results/forecast-runs.json",)

KNOTS = tuple(rho for rho, *_ in BAND)
#: Two targets of one table would vouch for each other.
SAME = {"chem97_high": "chem97"}
LEAST_GAIN = 0.05
#: A data set with fewer runs that gain anything has nothing to say.
LEAST_RUNS = 30
#: Share of the pooled runs that the band holds.
HOLDS = 0.88
#: What a run keeps at least if joining has paid: less is rounding, or next to nothing.
PAID = 0.005
#: The most that is said of the chance of a gain.
SUREST = 0.99
BEFORE: Band = (
    (2.0, -0.3, 1.0, 0.0),
    (4.0, -0.15, 1.0, 0.0),
    (8.0, 0.0, 1.0, 0.0),
    (16.0, 0.2, 1.0, 0.0),
    (32.0, 0.45, 1.0, 0.0),
    (64.0, 0.6, 1.0, 0.0),
    (128.0, 0.85, 1.0, 0.0),
)


@dataclass(frozen=True)
class Kept:
    """What one run kept, its signal over noise by the forecast, and by that of before."""

    name: str
    rho: float
    rho_before: float
    share: float


def kept_runs() -> list[Kept]:
    """Return what every run that was measured has kept of a gain that is worth it."""
    record = catalog.record("forecast-runs")
    if record is None:
        raise FileNotFoundError(
            "No record forecast-runs: python -m benchmarks forecast-runs --keep makes it."
        )
    found = []
    for name, *row in record["tables"]["forecast-runs"][1:]:
        tasks, rows, weights, classes, searched, alone, quiet = map(float, row[:7])
        if alone - quiet < LEAST_GAIN * alone:
            continue
        for pair in row[7:]:
            mu, private = map(float, pair.split())
            share = min((alone - private) / (alone - quiet), 1.0)
            rhos = []
            for counted in (weights + SEARCH * searched, weights):
                telling = rows_of_classes(int(counted), rows) if classes else rows
                rhos.append(signal_to_noise(int(tasks), mu, int(counted), telling))
            found.append(Kept(name, *rhos, share))
    names = [kept.name for kept in found]
    return [kept for kept in found if names.count(kept.name) >= LEAST_RUNS]


def fit_band(runs: list[Kept], knots: tuple[float, ...] = KNOTS) -> Band:
    """Return (rho, low, high, pays) at each knot, by the runs near it: monotone, and rounded outwards."""
    shares, names = np.array([run.share for run in runs]), np.array([run.name for run in runs])
    logs, order = np.log2([run.rho for run in runs]), np.argsort(shares)
    found = []
    for knot in knots:
        near = np.maximum(0.0, 1 - np.abs(logs - np.log2(knot)))
        for name in set(names):
            near[names == name] /= max(float(near[names == name].sum()), 1e-9)
        near /= near.sum()
        found.append([*shortest(shares[order], near[order]), float(near[shares > PAID].sum())])
    low, high, pays = np.maximum.accumulate(np.array(found), axis=0).T
    low, high = np.floor(20 * low + 1e-9) / 20, np.minimum(np.ceil(20 * high - 1e-9) / 20, 1.0)
    pays = np.minimum(np.floor(100 * pays) / 100, SUREST)
    return tuple(zip(knots, low.tolist(), high.tolist(), pays.tolist(), strict=True))


def shortest(values: Floats, mass: Floats) -> tuple[float, float]:
    """Return the ends of the shortest interval with `HOLDS` of the mass of sorted values."""
    before = np.concatenate([[0.0], np.cumsum(mass)])
    ends = np.searchsorted(before, before[:-1] + HOLDS - 1e-12)
    reached = ends <= len(values)
    first = int(np.argmin(np.where(reached, values[np.minimum(ends, len(values)) - 1] - values, np.inf)))
    return float(values[first]), float(values[ends[first] - 1])


def position(
    runs: list[Kept], band: Band, rho: Callable[[Kept], float] = lambda run: run.rho
) -> tuple[float, float, float, float]:
    """Return which shares of the runs lie below, in and above the band, and its mean width there."""
    low, high, _ = np.array([band_at(rho(run), band) for run in runs]).T
    shares = np.array([run.share for run in runs])
    below, above = float(np.mean(shares < low)), float(np.mean(shares > high))
    return below, 1 - below - above, above, float(np.mean(high - low))


def run(quick: bool) -> tuple[Figures, Targets, Table]:
    """Fit the band without each data set in turn, and score it there.

    Parameters
    ----------
    quick : bool
        Makes no difference: nothing is run.
    """
    runs = kept_runs()
    rows = [["data", "runs", "below the band", "inside", "above"]]
    inside, widths, before = {}, [], []
    for name in dict.fromkeys(kept.name for kept in runs):
        group = SAME.get(name, name)
        others = [kept for kept in runs if SAME.get(kept.name, kept.name) != group]
        here = [kept for kept in runs if kept.name == name]
        *parts, width = position(here, fit_band(others))
        inside[name] = parts[1]
        widths.append(width)
        before.append(position(here, BEFORE, lambda run: run.rho_before))
        rows.append([name, str(len(here)), *(f"{part:.0%}" for part in parts)])
    whole = fit_band(runs)
    rows += [
        [f"rho {rho:g}", f"{pays:.2f}", f"{low:.2f}", "to", f"{high:.2f}"] for rho, low, high, pays in whole
    ]
    figures = {
        "coverage": float(np.mean(list(inside.values()))),
        "coverage_of_worst_set": min(inside.values()),
        "coverage_before": float(np.mean([one[1] for one in before])),
        "mean_width": float(np.mean(widths)),
        "mean_width_before": float(np.mean([one[3] for one in before])),
        "width_over_before": float(np.mean(widths) / np.mean([one[3] for one in before])),
        "runs": len(runs),
    }
    targets = {
        "coverage": (">=", 0.8),
        "coverage_of_worst_set": (">=", 0.75),
        "width_over_before": ("<=", 2 / 3),
    }
    return figures, targets, rows
