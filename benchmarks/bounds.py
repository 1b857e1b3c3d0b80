"""What a codebook's width costs: a table of schools in four codebooks, sensors at 296 K in bounds 0-1000.

Absences in 150 schools are log-normal, with eight features of an office's table, and 70 % of rows to learn
from; R² over all rows held out. Sensors have about eight rows each; squared error over scikit-learn's. Alone
is ours (`single`) and scikit-learn's, which knows no bounds: StandardScaler and RidgeCV on each task's own
rows. Everything at its defaults, six draws, seeded noise.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from benchmarks import Figures, Table, Targets
from benchmarks.harm import alone_numbers
from benchmarks.harm_tables import Floats, Index
from cloister.core.arrays import Array
from cloister.estimators import SharedPriorRegressor, SingleTaskRegressor
from cloister.tables.codebook import Codebook
from harness.cells import Cells

NAME = "bounds"

Limits = dict[str, object]

LANGUAGES = ("Deutsch", "Türkçe", "العربية", "other")
SCHOOL_LIMITS: Limits = {
    "age": (10, 21),
    "gender": ["F", "M", "X"],
    "free_meals": [0, 1],
    "prior_score": (0, 100),
    "language": list(LANGUAGES),
    "siblings": (0, 12),
    "distance_km": (0, 100),
    "track": ["A", "B", "C"],
}
SENSOR_LIMITS: Limits = {"load": (0, 1), "outside": (-60, 60)}
#: Codebook, epsilon: R² at least.
SCHOOL_GOALS = {"0-200": 0.38, "0-60": 0.41, "log1p": 0.63, "0-1000": 0.38}
#: Epsilon: squared error over scikit-learn's at most.
SENSOR_GOALS = {0.05: 1.0, 0.2: 1.0, 1.0: 0.7, 8.0: 0.65, math.inf: 0.63}
#: R² may be this much below alone.
SLACK = 0.01


@dataclass(frozen=True)
class Problem:
    """A table with its public limits, and which rows are learnt from."""

    columns: dict[str, Array]
    y: Floats
    task: Index
    train: Array
    limits: Limits

    def rows(self, at: Array) -> dict[str, Array]:
        """Return some rows of the features."""
        return {name: values[at] for name, values in self.columns.items()}

    def score(self, predicted: Floats) -> tuple[float, float]:
        """Return squared error and R² over the rows held out."""
        held = self.y[~self.train]
        error = float(np.square(held - predicted).mean())
        return error, 1 - error / float(held.var())


def schools(seed: int) -> Problem:
    """Draw days absent: log-normal within a school, lower for higher prior scores, at a school's own rate."""
    rng, m = np.random.default_rng([1, seed]), 150
    task = np.repeat(np.arange(m), rng.integers(8, 60, m))
    n = len(task)
    score = rng.normal(55, 15, n).clip(0, 100)
    meals = rng.random(n) < 0.25
    level, slope = rng.normal(0, 0.35, m)[task], rng.normal(0.5, 0.15, m)[task]
    days = np.exp(1 + level - slope * (score - 55) / 15 + 0.3 * meals + 0.4 * rng.normal(size=n))
    columns = {
        "age": rng.normal(15.5, 0.8, n).clip(13, 19),
        "gender": rng.choice(["F", "M", "X"], n, p=[0.5, 0.48, 0.02]),
        "free_meals": meals.astype(int),
        "prior_score": np.where(rng.random(n) < 0.02, 55.0, score),  # missing ones by a public constant
        "language": rng.choice(LANGUAGES, n, p=[0.7, 0.15, 0.1, 0.05]),
        "siblings": rng.poisson(1.2, n),
        "distance_km": np.where(rng.random(n) < 0.05, 5.0, rng.lognormal(1, 0.8, n)).clip(0, 100),
        "track": rng.choice(["A", "B", "C"], n),
    }
    train = rng.random(n) < 0.7
    train[np.r_[0, np.flatnonzero(np.diff(task)) + 1]] = True  # every school has a row to learn from
    return Problem(columns, days.clip(0, 200).round(1), task, train, SCHOOL_LIMITS)


def sensors(seed: int) -> Problem:
    """Draw temperatures of 200 sensors around 296 K: 12 rows each, of which 70 % to learn from.

    Ten fresh rows stand for each that is held out, so that tasks weigh as in a split, with less luck.
    """
    rng, m = np.random.default_rng([2, seed]), 200
    learnt = rng.binomial(12, 0.7, m).clip(1)
    kept, fresh = np.repeat(np.arange(m), learnt), np.repeat(np.arange(m), 10 * (12 - learnt))
    task = np.concatenate([kept, fresh])
    n = len(task)
    load, outside = rng.uniform(size=n), rng.normal(10, 6, n).clip(-30, 45)
    y = 296 + 0.8 * rng.normal(size=m)[task] + 1.5 * load + 0.03 * outside + 0.3 * rng.normal(size=n)
    return Problem({"load": load, "outside": outside}, y, task, np.arange(n) < len(kept), SENSOR_LIMITS)


@dataclass(frozen=True)
class Case:
    """A problem in a codebook: the target's bounds, and what is done to it before."""

    draw: Callable[[int], Problem]
    bounds: tuple[float, float]
    transform: Callable[[Floats], Floats] = np.asarray


CASES = {
    "0-200": Case(schools, (0, 200)),
    "0-60": Case(schools, (0, 60)),
    "log1p": Case(schools, (0, math.log1p(200)), np.log1p),
    "0-1000": Case(schools, (0, 1000)),
    "sensors": Case(sensors, (0, 1000)),
}
EPSILONS = tuple(SENSOR_GOALS)


def measure(job: tuple[str, int]) -> dict[str, tuple[float, float]]:
    """Return squared error and R² of every method, on one draw."""
    name, seed = job
    case = CASES[name]
    data = case.draw(seed)
    data = Problem(data.columns, case.transform(data.y), data.task, data.train, data.limits)
    book = Codebook.from_mapping({**data.limits, "y": case.bounds}, list(data.columns), target="y")
    units, y, task = book.user_columns(data.columns), data.y, data.task
    at, asked = data.train, ~data.train
    found = {"scikit-learn": alone_numbers(units[at], y[at], task[at], units[asked], task[asked])}
    models = {"single": SingleTaskRegressor(bounds=book)} | {
        f"eps{epsilon:g}": SharedPriorRegressor(bounds=book, epsilon=epsilon, random_state=seed)
        for epsilon in EPSILONS
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for label, model in models.items():
            model.fit(data.rows(at), y[at], tasks=task[at])
            found[label] = np.asarray(model.predict(data.rows(asked), tasks=task[asked]))
    return {label: data.score(predicted) for label, predicted in found.items()}


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Table]:
    """Measure every codebook.

    Parameters
    ----------
    quick : bool
        Two draws instead of six.
    """
    jobs = [(name, seed) for name in CASES for seed in range(2 if quick else 6)]
    found: dict[str, list[dict[str, tuple[float, float]]]] = {name: [] for name in CASES}
    for (name, _), scores in zip(jobs, cells.measured(measure, jobs), strict=True):
        found[name].append(scores)
    labels = list(found["sensors"][0])
    figures: Figures = {}
    shown = {"scikit-learn": "scikit-learn alone", "single": "`SingleTask`", "epsinf": "no noise"}
    rows = [["codebook", "score", *(shown.get(label, f"ε = {label[3:]}") for label in labels)]]
    for name, draws in found.items():
        if name == "sensors":
            values = {k: [one[k][0] / one["scikit-learn"][0] for one in draws] for k in labels}
        else:
            values = {k: [one[k][1] for one in draws] for k in labels}
            best = max(fmean(values["scikit-learn"]), fmean(values["single"]))
            figures[f"{name}_worst_below_alone"] = best - min(fmean(values[f"eps{e:g}"]) for e in EPSILONS)
        figures |= {f"{name}_{k}": fmean(v) for k, v in values.items()}
        row = [f"{fmean(v):.3f} ± {stdev(v) / math.sqrt(len(v)):.3f}" for v in values.values()]
        rows.append([name, "error ratio" if name == "sensors" else "R²", *row])
    return figures, goals(), rows


def goals() -> Targets:
    """Return what the figures should be."""
    targets: Targets = {f"{name}_eps1": (">=", goal) for name, goal in SCHOOL_GOALS.items()}
    targets |= {f"{name}_worst_below_alone": ("<=", SLACK) for name in SCHOOL_GOALS}
    return targets | {f"sensors_eps{epsilon:g}": ("<=", goal) for epsilon, goal in SENSOR_GOALS.items()}
