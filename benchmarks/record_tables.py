"""Generated institutions for `records`: few tasks of many rows, whose best prediction of a row is known.

Laws, sizes and seeds were fixed before anything was tuned on them. Every law returns what is to be expected
of a fresh row, so that a loss is the excess over the noise and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Index = NDArray[np.intp]
#: From a generator, the institution of each row, their number and that of features to features, expected
#: targets and deviations of the noise.
Law = Callable[[np.random.Generator, Index, int, int], tuple[Floats, Floats, Floats]]

#: Rows of each institution that its model is asked about.
FRESH = 400


@dataclass(frozen=True)
class Institutions:
    """A law, so many institutions with rows between two numbers (even in the log), and how wide bounds are.

    Bounds reach `wide` deviations of each column to either side of somewhere in the column.
    """

    name: str
    law: Law
    count: int
    rows: tuple[int, int]
    features: int
    wide: float = 10.0
    noise: float = 1.0

    @property
    def label(self) -> str:
        low, high = self.rows
        rows = f"{low}" if low == high else f"{low}-{high}"
        return f"{self.name}, {self.count} x {rows} x {self.features}"


@dataclass(frozen=True, eq=False)
class Drawn:
    """Rows of all institutions, fresh rows of each with what is to be expected of them, and public bounds."""

    X: Floats
    y: Floats
    task: Index
    fresh: Floats
    expected: Floats
    fresh_task: Index
    bounds: dict[int | str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Classes:
    """Institutions whose scores, so many times as large and higher, are log-odds of a 1."""

    scores: Institutions
    steep: float = 1.5
    shift: float = 0.0

    @property
    def label(self) -> str:
        odd = [f"{self.steep:g} as steep"] * (self.steep != 1.5) + [f"shift {self.shift:g}"] * bool(
            self.shift
        )
        return ", ".join([self.scores.label, *odd])


def draw(given: Institutions, seed: int) -> Drawn:
    """Draw the rows of all institutions, with columns in units and at places of their own."""
    rng = np.random.default_rng([seed, *given.label.encode()])
    low, high = np.log(given.rows)
    sizes = np.exp(rng.uniform(low, high, given.count)).round().astype(np.intp)
    task = np.concatenate(
        [np.repeat(np.arange(given.count), sizes), np.repeat(np.arange(given.count), FRESH)]
    )
    X, expected, noise = given.law(rng, task, given.count, given.features)
    y = expected + noise * given.noise * rng.normal(size=len(task))
    unit, place = np.exp(rng.uniform(-1, 1, given.features)), rng.uniform(-3, 3, given.features)
    X = X * unit + place
    n, reach = int(sizes.sum()), given.wide
    bounds: dict[int | str, tuple[float, float]] = {
        j: (float(place[j] - reach * unit[j]), float(place[j] + reach * unit[j]))
        for j in range(given.features)
    }
    bounds["y"] = (-reach, reach)
    return Drawn(X[:n], y[:n].clip(*bounds["y"]), task[:n], X[n:], expected[n:], task[n:], bounds)


def draw_classes(given: Classes, seed: int) -> Drawn:
    """Draw institutions whose targets are 0 or 1; what is to be expected of a fresh row is a chance of 1."""
    numbers = draw(given.scores, seed)
    rng = np.random.default_rng([seed, 2, *given.label.encode()])
    scores = np.random.default_rng([seed, *given.scores.label.encode()])  # the same law, without its noise
    sizes = np.bincount(numbers.task)
    both = np.concatenate([numbers.task, numbers.fresh_task])
    scores.uniform(size=len(sizes))  # the draws of the sizes
    _, expected, _ = given.scores.law(scores, both, given.scores.count, given.scores.features)
    chance = 1 / (1 + np.exp(-(given.steep * expected + given.shift)))
    y = (rng.random(len(numbers.y)) < chance[: len(numbers.y)]) * 1.0
    bounds = {name: limits for name, limits in numbers.bounds.items() if name != "y"} | {"y": [0, 1]}
    return replace(numbers, y=y, expected=chance[len(y) :], bounds=bounds)


def _correlated(rng: np.random.Generator, count: int, d: int) -> Floats:
    root = np.linalg.cholesky(0.4 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d))))
    return np.asarray(rng.normal(size=(count, d)) @ root.T)


def _common(rng: np.random.Generator, d: int) -> Floats:
    """Draw weights that make a score of variance 1 of correlated features."""
    weights = rng.normal(size=d)
    moment = 0.4 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    return np.asarray(weights / np.sqrt(weights @ moment @ weights))


def _levels(rng: np.random.Generator, m: int) -> Floats:
    return np.asarray(np.sqrt(0.3) * rng.normal(size=m))


def alike(between: float) -> Law:
    """Slopes around common ones: between institutions a part `between` of the noise's variance."""

    def law(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats, Floats]:
        X = _correlated(rng, len(task), d)
        weights = _common(rng, d) + np.sqrt(between / d) * rng.normal(size=(m, d))
        return X, (X * weights[task]).sum(axis=1) + _levels(rng, m)[task], np.ones(len(task))

    return law


def few_vary(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats, Floats]:
    """Slopes of two features differ, by as much as the noise; all others are common."""
    X, weights = _correlated(rng, len(task), d), np.tile(_common(rng, d), (m, 1))
    weights[:, :2] += np.sqrt(0.5) * rng.normal(size=(m, 2))
    return X, (X * weights[task]).sum(axis=1) + _levels(rng, m)[task], np.ones(len(task))


def unrelated(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats, Floats]:
    """Institutions have nothing in common."""
    X, weights = _correlated(rng, len(task), d), np.array([_common(rng, d) for _ in range(m)])
    return X, (X * weights[task]).sum(axis=1) + _levels(rng, m)[task], np.ones(len(task))


def one_differs(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats, Floats]:
    """One institution's slopes are the opposite of everybody else's."""
    X, weights = _correlated(rng, len(task), d), np.tile(_common(rng, d), (m, 1))
    weights[0] *= -1
    return X, (X * weights[task]).sum(axis=1) + _levels(rng, m)[task], np.ones(len(task))


def places_differ(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats, Floats]:
    """Each institution's rows are somewhere else, and its level goes against where."""
    places = rng.normal(size=(m, d))
    X = 0.5 * _correlated(rng, len(task), d) + places[task]
    levels = -1.5 * places @ _common(rng, d)
    return X, X @ _common(rng, d) + levels[task], np.ones(len(task))


def spikes_and_tails(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats, Floats]:
    """Columns with zeros, rare ones and long tails; noise of a few very large values."""
    X = _correlated(rng, len(task), d)
    X[:, 0::4] *= rng.random(X[:, 0::4].shape) < 0.3
    X[:, 1::4] = (rng.random(X[:, 1::4].shape) < 0.1) * 1.0
    X[:, 2::4] = np.exp(X[:, 2::4]) / 4
    weights = _common(rng, d) + np.sqrt(0.05 / d) * rng.normal(size=(m, d))
    large = np.where(rng.random(len(task)) < 0.03, 3.0, 0.8)
    return X, (X * weights[task]).sum(axis=1) + _levels(rng, m)[task], large


def useless(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats, Floats]:
    """Features that say nothing."""
    return _correlated(rng, len(task), d), _levels(rng, m)[task], np.ones(len(task))


def curved(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats, Floats]:
    """Add a sine and a kink: no linear model is right."""
    X = _correlated(rng, len(task), d)
    expected = np.sin(2 * X[:, 0]) + np.abs(X[:, 1]) + X[:, 2:] @ _common(rng, d - 2)
    return X, expected + _levels(rng, m)[task], np.full(len(task), 0.5)


SIZES = (
    (5, 50),
    (5, 200),
    (5, 1000),
    (10, 50),
    (10, 200),
    (10, 1000),
    (30, 50),
    (30, 200),
    (30, 1000),
    (100, 50),
)
#: Institutions whose slopes are alike, and less so.
REGULAR = tuple(
    Institutions(f"between {between:g}", alike(between), m, (n, n), d)
    for d in (5, 20, 50)
    for m, n in SIZES
    for between in (0.05, 0.5)
    if not (d == 50 and m * n > 10_000)
)
UNEQUAL = tuple(Institutions("unequal", alike(0.05), m, (30, 3000), 20) for m in (5, 10, 30))
ODD = tuple(
    Institutions(law.__name__.replace("_", " "), law, m, (60, 600), 10)
    for law in (few_vary, unrelated, one_differs, places_differ, spikes_and_tails, useless, curved)
    for m in (6, 30)
)
BOUNDS = tuple(
    Institutions(f"bounds {wide:g} spreads wide", alike(0.05), 15, (200, 200), 20, wide)
    for wide in (4.0, 100.0)
)
NOISE = tuple(
    Institutions(f"noise {noise:g}", alike(0.05), 15, (200, 200), 20, noise=noise) for noise in (0.05, 3.0)
)
GRID = (*REGULAR, *UNEQUAL, *ODD, *BOUNDS, *NOISE)

#: Two classes: the same laws as log-odds, of fewer sizes, one that is rare, and scores that leave no doubt.
CLASS_GRID = (
    *(Classes(one) for one in REGULAR if one.features in (5, 20) and one.count * one.rows[0] <= 10_000),
    *(Classes(one) for one in (*UNEQUAL[:2], *ODD, *BOUNDS)),
    Classes(Institutions("between 0.05", alike(0.05), 10, (200, 200), 10), shift=-4.0),
    Classes(Institutions("between 0.05", alike(0.05), 10, (1000, 1000), 10), shift=-4.0),
    Classes(Institutions("between 0.05", alike(0.05), 10, (200, 200), 10), steep=5.0),
    Classes(Institutions("between 0.05", alike(0.05), 10, (1000, 1000), 10), steep=5.0),
)
