"""Intervals: how often they hold what they say, and how wide they are; and a summary's standard errors.

Prediction intervals of 95 % on rows held out, of tasks that learn from 4 to 8 rows each (and from 9 to 30),
on six real tables and four made ones: normal, with five features, with a noise of its own in every task,
and with heavy tails (Student's t of 4 degrees of freedom). Public bounds, relation replace, default delta,
seeded noise; widths are means over rows, next to 3.92 times the root mean squared error, which is what an
interval of one width for all that knew the error would take.

Standard errors of `model.summary()` at epsilon 1 and 8: the share of coefficients, over made tables, whose
estimate is within 1.96 of them from the mean that tasks were drawn around.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchmarks import Figures, Table, Tables, Targets
from cloister import datasets
from cloister.core.arrays import Array, Floats
from cloister.estimators import SharedPriorRegressor, SingleTaskRegressor
from harness.cells import track
from harness.sources import data_file

NAME = "intervals"
DATA = ("school.npz",)

REAL = ("school", "exam", "hsb82", "chem97", "bdf", "scotssec")
SIZES = {"4-8": (4, 8), "9-30": (9, 30)}
EPSILONS = (0.0, 0.1, 1.0, 8.0)  # 0: every task alone
SEEDS, TABLES = 3, 40
TASKS, HELD_OUT = 200, 20


@dataclass(frozen=True, eq=False)
class Rows:
    """A table of tasks: columns, targets, task ids, and what is public about them."""

    X: dict[str, Array]
    y: Floats
    task: Array
    bounds: object

    def take(self, which: Array) -> Rows:
        X = {name: column[which] for name, column in self.X.items()}
        return replace(self, X=X, y=self.y[which], task=self.task[which])


def real(name: str) -> Rows:
    data = datasets.load_school(data_file("school.npz")) if name == "school" else datasets.load(name)
    return Rows(dict(data.X), np.asarray(data.y, dtype=np.float64), data.task, data.codebook)


def made(
    rng: np.random.Generator, most: int, features: int = 2, own_noise: bool = False, heavy: bool = False
) -> Rows:
    """Draw tasks around a common mean: intercepts by 3, slopes by .5, and noise of 3."""
    task = np.repeat(np.arange(TASKS), most + HELD_OUT)
    X = np.clip(rng.normal(5, 2, (len(task), features)), 0, 10)
    common = rng.normal(0, 1.5, features)
    slopes = common + 0.5 * rng.normal(size=(TASKS, features))
    scale = 3 * np.exp(0.5 * rng.normal(size=TASKS)) if own_noise else np.full(TASKS, 3.0)
    noise = rng.standard_t(4, len(task)) / np.sqrt(2) if heavy else rng.normal(size=len(task))
    y = (30 + 3 * rng.normal(size=TASKS))[task] + ((X - 5) * slopes[task]).sum(axis=1) + scale[task] * noise
    bounds = {f"x{j}": (0, 10) for j in range(features)} | {"target": (-40, 100)}
    return Rows({f"x{j}": X[:, j] for j in range(features)}, y, task, bounds)


MADE: dict[str, Callable[[np.random.Generator, int], Rows]] = {
    "normal": made,
    "five features": lambda rng, most: made(rng, most, features=5),
    "own noise": lambda rng, most: made(rng, most, own_noise=True),
    "heavy tails": lambda rng, most: made(rng, most, heavy=True),
}


def split(rng: np.random.Generator, task: Array, rows: tuple[int, int]) -> tuple[Array, Array]:
    """Return which rows to learn from, a few of every task that has more, and the others of these tasks."""
    train = np.zeros(len(task), dtype=bool)
    for name in np.unique(task):
        own = rng.permutation(np.flatnonzero(task == name))
        count = int(rng.integers(rows[0], rows[1] + 1))
        if len(own) > count:
            train[own[:count]] = True
    return train, np.isin(task, np.unique(task[train])) & ~train


def held(name: str, size: str, epsilon: float, seed: int) -> tuple[float, float, float]:
    """Return the share of held-out rows within their intervals, the mean width, and the error's width."""
    rng = np.random.default_rng([seed, len(name)])
    table = MADE[name](rng, SIZES[size][1]) if name in MADE else real(name)
    train, test = split(rng, table.task, SIZES[size])
    learn, rest = table.take(train), table.take(test)
    model = SingleTaskRegressor(bounds=table.bounds)
    if epsilon > 0:
        model = SharedPriorRegressor(epsilon=epsilon, bounds=table.bounds, random_state=seed)
    model.fit(learn.X, learn.y, tasks=learn.task)
    lower, upper = model.predict_interval(rest.X, tasks=rest.task)
    error = model.predict(rest.X, tasks=rest.task) - rest.y
    inside = float(np.mean((lower <= rest.y) & (rest.y <= upper)))
    return inside, float(np.mean(upper - lower)), 3.92 * float(np.sqrt(np.mean(error**2)))


@dataclass(frozen=True)
class Drawn:
    """A kind of made table for standard errors: tasks, rows of each, and where its features lie."""

    tasks: int
    rows: tuple[int, int]
    spread: float = 2.0
    center: float = 5.0
    features: int = 2
    noise: float = 3.0


KINDS = {
    "300 tasks of 5 to 15 rows": Drawn(300, (5, 15)),
    "100 tasks of 5 to 15 rows": Drawn(100, (5, 15)),
    "1000 tasks of 5 to 15 rows": Drawn(1000, (5, 15)),
    "300 tasks of 3 to 6 rows": Drawn(300, (3, 6)),
    "features off the middle": Drawn(300, (5, 15), 1.0, 8.0),
    "features within a twentieth of the bounds": Drawn(300, (5, 15), 0.5),
    "ten features": Drawn(300, (10, 30), features=10),
    "noise that clips nearly all messages": Drawn(400, (2, 20), 0.9, 7.0, 3, 8.0),
}


def covered(kind: Drawn, epsilon: float, seed: int) -> list[bool] | None:
    """Return which coefficients lie within 1.96 standard errors of the truth; None if there are none."""
    rng = np.random.default_rng([seed, 95])
    task = np.repeat(np.arange(kind.tasks), rng.integers(kind.rows[0], kind.rows[1] + 1, kind.tasks))
    X = np.clip(rng.normal(kind.center, kind.spread, (len(task), kind.features)), 0, 10)
    truth = np.resize([2.0, -1.0, 0.5, 0.0], kind.features)
    slopes = truth + 0.4 * rng.normal(size=(kind.tasks, kind.features))
    y = (30 + 3 * rng.normal(size=kind.tasks))[task] + ((X - 5) * slopes[task]).sum(axis=1)
    y += kind.noise * rng.normal(size=len(task))
    bounds = dict.fromkeys(range(kind.features), (0, 10)) | {"y": (-40, 100)}
    model = SharedPriorRegressor(epsilon=epsilon, bounds=bounds, random_state=seed).fit(X, y, tasks=task)
    found = model.summary().coefficients
    if any(c.std_error is None or c.estimate is None for c in found):
        return None
    true = [30 - 5 * truth.sum(), *truth]
    return [abs(c.estimate - t) < 1.96 * c.std_error for c, t in zip(found, true, strict=True)]  # type: ignore[operator]


def run(quick: bool) -> tuple[Figures, Targets, Tables]:
    """Measure intervals on held-out rows, then standard errors on made tables."""
    seeds, tables = (1, 8) if quick else (SEEDS, TABLES)
    epsilons = (1.0,) if quick else EPSILONS
    there = [name for name in REAL if name != "school" or data_file("school.npz").exists()]
    names = (*there, *MADE)
    cases = [(name, size, epsilon) for name in names for size in SIZES for epsilon in epsilons]
    shown = ["alone" if epsilon == 0 else f"ε = {epsilon:g}" for epsilon in epsilons]
    cells: dict[tuple[str, str], list[str]] = {(name, size): [] for name in names for size in SIZES}
    figures: Figures = {}
    for name, size, epsilon in track(cases, len(cases), "intervals"):
        found = np.mean([held(name, size, epsilon, seed) for seed in range(seeds)], axis=0)
        figures[f"{name}, {size} rows, epsilon {epsilon:g}"] = float(found[0])
        cells[name, size].append(f"{found[0]:.3f}, {found[1]:.1f} ({found[2]:.1f})")
    intervals: Table = [["table, rows of a task", *shown]]
    intervals += [
        [f"{name}, {size}", *row] for size in SIZES for name in names for row in [cells[name, size]]
    ]
    kinds = (1.0,) if quick else (1.0, 8.0)
    errors = [(name, epsilon) for name in KINDS for epsilon in kinds]
    of_kind: dict[str, list[str]] = {name: [] for name in KINDS}
    for name, epsilon in track(errors, len(errors), "standard errors"):
        said = [covered(KINDS[name], epsilon, seed) for seed in range(tables)]
        hits = [hit for one in said if one is not None for hit in one]
        figures[f"standard errors, {name}, epsilon {epsilon:g}"] = float(np.mean(hits))
        without = sum(one is None for one in said)
        of_kind[name].append(f"{np.mean(hits):.3f}" + f" ({without} of {tables} without)" * (without > 0))
    said_errors = [["tables", *(f"ε = {epsilon:g}" for epsilon in kinds)]]
    said_errors += [[name, *row] for name, row in of_kind.items()]
    of_errors = [value for name, value in figures.items() if name.startswith("standard errors")]
    of_rows = [value for name, value in figures.items() if not name.startswith("standard errors")]
    figures |= {"least covered, intervals": min(of_rows), "least covered, standard errors": min(of_errors)}
    figures["mean covered, standard errors"] = float(np.mean(of_errors))
    targets: Targets = {
        "least covered, intervals": (">=", 0.93),
        "least covered, standard errors": (">=", 0.9),
        "mean covered, standard errors": ("<=", 0.97),
    }
    return figures, targets, {NAME: intervals, "standard errors": said_errors}
