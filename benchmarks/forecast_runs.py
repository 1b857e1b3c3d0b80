"""Runs for `forecast`: losses of subsets of many tables' tasks, alone, without noise, and at five epsilons.

The tables are real ones and two made ones: weights of low rank, and clinics, whose patients differ by clinic
and in one slope. Of each task all training rows are kept, or two fifths of them. Every run is kept as it is,
with all that its plan knows, so that a forecast can be fitted again without it.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks import Figures, Tables, Targets
from benchmarks.prior_accuracy import FILES, TABLES, Learner, loaded, losses, plan_for, synthetic, table
from cloister.core.tasks import Tasks
from cloister.learners import Classification, Regression
from harness.cells import Cells
from harness.sources import data_file

NAME = "forecast-runs"
DATA = (
    "landmine.npz",
    "school.npz",
)

EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0)
SUBSETS = (16, 32, 64, 128, 256, 512, 1024)
#: Share of a task's training rows that is kept.
ROWS = (1.0, 0.4)
#: Tables of other benchmarks: more data for the forecast.
MORE = ("gapminder", "insteval")
#: Made tables, and how many tasks are drawn of each.
MADE = {"low_rank": 320, "clinics": 320}
CLINIC_FEATURES, CLINIC_ROWS = 10, 46
#: The columns of the table of runs; behind them one for each epsilon, with mu and the loss.
COLUMNS = ("data", "tasks", "rows", "weights", "classes", "searched", "alone", "quiet")


def clinics(seed: int, tasks: int = MADE["clinics"]) -> tuple[Tasks, Tasks]:
    """Draw clinics of 20 to 72 patients: common slopes, but own intercepts and an own first slope."""
    rng = np.random.default_rng([seed, tasks])
    sizes = rng.integers(20, 2 * CLINIC_ROWS - 20, tasks)
    task = np.repeat(np.arange(tasks), 2 * sizes)
    X = np.clip(rng.normal(size=(len(task), CLINIC_FEATURES)), -4, 4)
    slopes = rng.normal(size=CLINIC_FEATURES) * 0.1
    own = rng.normal(size=(tasks, 2)) * (0.12, 0.05)
    y = X @ slopes + own[task, 0] + own[task, 1] * X[:, 0] + 0.3 * rng.normal(size=len(task))
    X = np.column_stack([np.ones(len(X)), X / 4]) / math.sqrt(1 + CLINIC_FEATURES)
    made, first = np.clip(y / 3, -1, 1), np.concatenate([np.arange(2 * size) < size for size in sizes])
    return (
        Tasks.from_arrays(X[first], made[first], task[first]),
        Tasks.from_arrays(X[~first], made[~first], task[~first]),
    )


def drawn(name: str, repeat: int) -> tuple[Tasks, Tasks, Learner, object]:
    """Return training and test rows of all tasks, their learner, and their codebook if there is one."""
    if name == "low_rank":
        train, test = synthetic(name, 100 + repeat)
        return train, test, Regression(train.X.shape[1], intercept=False), None
    if name == "clinics":
        train, test = clinics(100 + repeat)
        return train, test, Regression(train.X.shape[1]), None
    tasks, learner = table(name)
    train, test = tasks.split(test=0.3, seed=500 + repeat)
    return train, test, learner, loaded(name).codebook


def measure(job: tuple[str, int, float, int]) -> list[float]:
    """Fit one subset of one data set at every epsilon; return what `COLUMNS` has of it but its data."""
    name, size, rows, repeat = job
    train, test, learner, book = drawn(name, repeat)
    rng = np.random.default_rng([repeat, size, *name.encode()])
    train = train.select(np.sort(rng.permutation(len(train))[:size]))
    if rows < 1:
        train, _ = train.split(test=1 - rows, seed=900 + repeat)
    test = test.select(np.flatnonzero(np.isin(test.ids, train.ids)))
    plans = [plan_for(learner, len(train), epsilon, book=book) for epsilon in (0.0, math.inf, *EPSILONS)]
    lost = [losses(plan, train, test, 0 if i < 2 else repeat)[0] for i, plan in enumerate(plans)]
    kind = float(isinstance(learner, Classification)), float(plans[-1].algorithm.begins(1000) > 0)
    found = [len(train), float(np.median(train.sizes)), learner.size, *kind, *lost[:2]]
    return found + [number for i in range(2, len(plans)) for number in (plans[i].main_rounds[0], lost[i])]


def jobs_for(names: list[str], quick: bool) -> list[tuple[str, int, float, int]]:
    """List subsets: more of the small ones, which vary more and cost less; half as many of classes."""
    jobs = []
    for name in names:
        most = MADE[name] if name in MADE else len(table(name)[0])
        classes = name not in MADE and isinstance(table(name)[1], Classification)
        for size in [size for size in SUBSETS if size < 0.8 * most] + ([most] if most < 2000 else []):
            repeats = 3 if quick else 24 if size <= 128 else 12 if size <= 256 else 6 if size <= 600 else 2
            some = range((repeats + 1) // 2 if classes else repeats)
            jobs += [(name, size, rows, repeat) for rows in ROWS for repeat in some]
    return jobs


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Tables]:
    """Measure every subset.

    Parameters
    ----------
    quick : bool
        Small tables and few subsets.
    cells : Cells
        Finished runs.
    """
    wanted = ["exam", "hsb82", "bdf", "scotssec"] if quick else [*TABLES, *MORE, *MADE]
    names = [name for name in wanted if name not in FILES or data_file(FILES[name]).exists()]
    jobs = jobs_for(names, quick)
    rows = [[*COLUMNS, *(f"ε = {epsilon:g}" for epsilon in EPSILONS)]]
    for job, found in zip(jobs, cells.measured(measure, jobs), strict=True):
        said = [f"{number:.4g}" for number in found]
        pairs = zip(said[len(COLUMNS) - 1 :: 2], said[len(COLUMNS) :: 2], strict=True)
        rows.append([job[0], *said[: len(COLUMNS) - 1], *map(" ".join, pairs)])
    return {"subsets": len(rows) - 1}, {}, {NAME: rows}
