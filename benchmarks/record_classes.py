"""Two classes by record: what `records` and `record-harm` measure of them, in log-losses.

Alone is our own single-task classifier or scikit-learn's LogisticRegressionCV. Generated institutions are
scored by how much longer their chances describe fresh rows than the true ones (in nats a row), real tables by
the mean over institutions of log-losses. All was fixed before anything was tried on it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from benchmarks.harm import alone_classes
from benchmarks.record_sources import CLASS_SOURCES, Floats, Index, loaded, split
from benchmarks.record_tables import Classes, Drawn, Institutions, alike, draw_classes
from cloister import Unit
from cloister.estimators import SharedPriorClassifier, SingleTaskClassifier

DELTA, PART = 1e-6, 0.15
#: Generated institutions beside those of numbers.
MADE = {
    "10 x 1000 x 20": Classes(Institutions("goal", alike(0.05), 10, (1000, 1000), 20)),
    "30 x 200 x 20": Classes(Institutions("goal", alike(0.05), 30, (200, 200), 20)),
    "10 x 30-3000 x 20, smaller half": Classes(Institutions("goal", alike(0.05), 10, (30, 3000), 20)),
}


def fitted(
    bounds: object, epsilon: float, X: object, y: Floats, task: Index, seed: int
) -> SharedPriorClassifier:
    """Fit with records as unit."""
    unit = Unit.record(rows=len(y))
    model = SharedPriorClassifier(bounds=bounds, epsilon=epsilon, delta=DELTA, unit=unit, random_state=seed)
    return model.fit(X, y, tasks=task)


def by_task(values: Floats, task: Index) -> Floats:
    return np.array([values[task == one].mean() for one in np.unique(task)])


def excess(drawn: Drawn, told: Floats, smaller: bool = False) -> float:
    """Return the mean over institutions of the divergence of what was told from the chances."""
    p, q = drawn.expected, np.clip(told, 1e-12, 1 - 1e-12)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(p > 0, p * np.log(p / q), 0.0) + np.where(
            p < 1, (1 - p) * np.log((1 - p) / (1 - q)), 0.0
        )
    means, sizes = by_task(each, drawn.fresh_task), np.bincount(drawn.task)
    return float(means[np.argsort(sizes)[: len(sizes) // 2]].mean() if smaller else means.mean())


def drawn_once(
    given: Classes, seed: int, epsilons: Sequence[float], smaller: bool = False
) -> dict[str, float]:
    """Draw institutions once; return their excess alone, by scikit-learn, and joined at each epsilon."""
    drawn, found = draw_classes(given, seed), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        single = SingleTaskClassifier(bounds=drawn.bounds).fit(drawn.X, drawn.y, tasks=drawn.task)
        found["single"] = excess(drawn, _chance(single, drawn.fresh, drawn.fresh_task), smaller)
        logistic = np.empty(len(drawn.fresh))
        for one in np.unique(drawn.task):
            own, at = drawn.task == one, drawn.fresh_task == one
            logistic[at] = alone_classes(drawn.X[own], drawn.y[own].astype(np.intp), drawn.fresh[at], 2)[:, 1]
        found["ridge"] = excess(drawn, logistic, smaller)
        for epsilon in epsilons:
            model = fitted(drawn.bounds, epsilon, drawn.X, drawn.y, drawn.task, seed)
            found[f"{epsilon:g}"] = excess(drawn, _chance(model, drawn.fresh, drawn.fresh_task), smaller)
            if epsilon == 1.0:
                mu = float(model.guarantee_.mu or math.inf)
                found["Q"] = len(drawn.y) * mu / (given.scores.features + 1)
    return found


def table_once(name: str, seed: int, epsilons: Sequence[float]) -> dict[str, float]:
    """Split a table once; return log-losses alone, joined by records, and joined by institutions."""
    rows, bounds = loaded(name), CLASS_SOURCES[name].columns
    train, test = split(rows, PART, seed)
    second = list(bounds.values())[-1][1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = {"alone": SingleTaskClassifier(bounds=bounds).fit(train.X, train.y, tasks=train.task)}
        models["by task"] = SharedPriorClassifier(bounds=bounds, epsilon=1.0, random_state=seed).fit(
            train.X, train.y, tasks=train.task
        )
        models |= {f"{e:g}": fitted(bounds, e, train.X, train.y, train.task, seed) for e in epsilons}
        told = {way: _chance(model, test.X, test.task, second) for way, model in models.items()}
    losses = {
        way: -np.log(np.clip(np.where(test.y == second, q, 1 - q), 1e-12, None)) for way, q in told.items()
    }
    return {way: fmean(by_task(each, test.task)) for way, each in losses.items()}


def _chance(
    model: SharedPriorClassifier | SingleTaskClassifier, X: object, task: Index, second: object = 1
) -> Floats:
    at = int(np.flatnonzero(model.classes_ == second)[0])
    return np.asarray(model.predict_proba(X, tasks=task)[:, at])
