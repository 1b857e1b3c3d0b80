"""Generated tables for `harm`, each of another kind: what an office, a sensor or a survey may bring.

A law draws rows for given tasks; training and test rows of a task come from one call, so that they follow the
same law. Every table has tight public bounds, and one or two looser codebooks in which it is tried as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Index = NDArray[np.intp]
Interval = tuple[float, float]
#: Draws features and targets: (generator, the task of each row, number of tasks, number of features).
Law = Callable[[np.random.Generator, Index, int, int], tuple[Floats, Floats]]

#: Test rows of a scored task.
FRESH = 100


@dataclass(frozen=True)
class Loose:
    """How far bounds reach beyond the tight ones, below and above, in multiples of the tight range."""

    target: Interval = (0.0, 0.0)
    features: Interval = (0.0, 0.0)

    @property
    def label(self) -> str:
        """How wide the bounds of the target and of the features are, and where the data lies in them."""

        def side(beyond: Interval) -> str:
            low, high = beyond
            place = "" if low == high else " low" if low < high else " high"
            return f"{1 + low + high:g}x{place}"

        return f"{side(self.target)}, {side(self.features)}"


TIGHT = Loose()


@dataclass(frozen=True)
class Table:
    """A law and how much is drawn of it: tasks, rows of each (fewest and most, even in the log), features.

    `target` is the tight interval of a number, or how many classes there are.
    """

    name: str
    law: Law
    tasks: int
    rows: tuple[int, int]
    features: int
    bounds: Interval
    target: Interval | int
    codebooks: tuple[Loose, ...] = (TIGHT,)

    @property
    def classes(self) -> int:
        """How many classes the target has; 0 for a number."""
        return self.target if isinstance(self.target, int) else 0

    def codebook(self, loose: Loose) -> dict[int | str, object]:
        """Return the bounds that an estimator is given."""
        features: dict[int | str, object] = {
            j: stretched(self.bounds, loose.features) for j in range(self.features)
        }
        if isinstance(self.target, int):
            return {**features, "y": list(range(self.target))}
        return {**features, "y": stretched(self.target, loose.target)}


@dataclass(frozen=True)
class Rows:
    """Features, targets and the task of each row."""

    X: Floats
    y: Floats
    task: Index


def stretched(tight: Interval, beyond: Interval) -> Interval:
    """Return bounds that reach so many ranges beyond tight ones."""
    width = tight[1] - tight[0]
    return tight[0] - beyond[0] * width, tight[1] + beyond[1] * width


def draw(table: Table, seed: int, scored: int) -> tuple[Rows, Rows]:
    """Draw training rows of all tasks, and fresh rows of so many of them, chosen at random."""
    rng = np.random.default_rng([seed, *table.name.encode()])
    low, high = np.log(table.rows[0]), np.log(table.rows[1] + 1)
    sizes = np.exp(rng.uniform(low, high, table.tasks)).astype(np.intp).clip(*table.rows)
    chosen = np.sort(rng.permutation(table.tasks)[:scored])
    task = np.concatenate([np.repeat(np.arange(table.tasks), sizes), np.repeat(chosen, FRESH)])
    X, y = table.law(rng, task, table.tasks, table.features)
    X = X.clip(*table.bounds)
    y = y if isinstance(table.target, int) else y.clip(*table.target)
    n = int(sizes.sum())
    return Rows(X[:n], y[:n], task[:n]), Rows(X[n:], y[n:], task[n:])


def _uniform(rng: np.random.Generator, task: Index, d: int, low: float = -1.0) -> Floats:
    return rng.uniform(low, 1.0, (len(task), d))


def _score(X: Floats, weights: Floats, task: Index) -> Floats:
    return np.asarray(np.einsum("nd,nd->n", X, weights[task]))


def _around(rng: np.random.Generator, m: int, d: int, spread: float) -> Floats:
    """Weights of tasks around common ones of length about 1."""
    return np.asarray((rng.normal(size=d) + spread * rng.normal(size=(m, d))) / np.sqrt(d))


def _coin(rng: np.random.Generator, score: Floats) -> Floats:
    return (rng.random(len(score)) < 1 / (1 + np.exp(-score))).astype(np.float64)


def _one_of(rng: np.random.Generator, scores: Floats) -> Floats:
    return np.asarray(np.argmax(scores + rng.gumbel(size=scores.shape), axis=1), dtype=np.float64)


# Numbers.


def sensors(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Temperatures in kelvin: a narrow place far from zero, a common slope, small noise."""
    X = _uniform(rng, task, d, 0.0)
    y = 296 + 0.8 * rng.normal(size=m)[task] + 1.5 * X[:, 0] + 0.3 * rng.normal(size=len(task))
    return X, y


def costs(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Gamma-distributed amounts whose mean is multiplicative in features and task."""
    X = _uniform(rng, task, d, 0.0)
    mean = np.exp(7.5 + 0.5 * rng.normal(size=m)[task] + 0.8 * X[:, 0] - 0.4 * X[:, 1])
    return X, rng.gamma(1.5, mean / 1.5)


def counts(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Small Poisson counts with many features of little weight."""
    X = _uniform(rng, task, d, 0.0)
    rate = np.exp(0.4 * rng.normal(size=m)[task] + (X - 0.5) @ rng.normal(0, 0.5, d))
    return X, rng.poisson(rate).astype(np.float64)


def unrelated(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Every task has weights and an intercept of its own: nothing to share but the scale."""
    X = _uniform(rng, task, d)
    own = rng.normal(size=(m, d)) / np.sqrt(d)
    y = 2 * rng.normal(size=m)[task] + 1.5 * _score(X, own, task) + 0.5 * rng.normal(size=len(task))
    return X, y


def heavy_tails(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Student noise of 2.5 degrees of freedom around a common linear law."""
    X = _uniform(rng, task, d)
    return X, _score(X, _around(rng, m, d, 0.3), task) + 0.4 * rng.standard_t(2.5, len(task))


def useless(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Draw normal features that say nothing; tasks differ in their level."""
    return rng.normal(size=(len(task), d)), rng.normal(size=m)[task] + rng.normal(size=len(task))


def noise_free(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Draw a linear law with a thousandth of noise; tasks have slopes of their own."""
    X = _uniform(rng, task, d)
    return X, 1 + _score(X, _around(rng, m, d, 0.5), task) + 1e-3 * rng.normal(size=len(task))


def nonlinear(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Add a sine, a kink and a product: no linear model is right."""
    X = _uniform(rng, task, d)
    y = np.sin(3 * X[:, 0]) + np.abs(X[:, 1]) + X[:, 0] * X[:, 2] + 0.3 * rng.normal(size=m)[task]
    return X, y + 0.2 * rng.normal(size=len(task))


def clusters(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Three groups of tasks, each with its own weights; the mean of all fits none."""
    X = _uniform(rng, task, d)
    own = (2 * rng.normal(size=(3, d)))[rng.integers(3, size=m)] / np.sqrt(d)
    return X, _score(X, own, task) + 0.4 * rng.normal(size=len(task))


def some_constant(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Four tasks of ten have one value of the target in all rows."""
    X = _uniform(rng, task, d)
    moving = _score(X, _around(rng, m, d, 0.3), task) + 0.3 * rng.normal(size=len(task))
    return X, rng.normal(size=m)[task] + np.where((rng.random(m) < 0.4)[task], 0.0, moving)


def uneven_noise(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Noise whose deviation differs from task to task, by a factor of seven either way."""
    X = _uniform(rng, task, d)
    deviation = 0.4 * np.exp(rng.normal(size=m).clip(-2, 2))[task]
    return X, _score(X, _around(rng, m, d, 0.4), task) + deviation * rng.normal(size=len(task))


def indicators(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """All levels of two factors as indicators, and one column twice: features are collinear."""
    levels = (d - 2) // 2
    first, second = np.eye(levels)[rng.integers(levels, size=(2, len(task)))]
    number = rng.uniform(size=(len(task), 1))
    X = np.hstack([first, second, number, number])
    y = 3 + _score(X, _around(rng, m, X.shape[1], 0.3), task) + 0.3 * rng.normal(size=len(task))
    return X, y


def ratings(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Whole numbers from 1 to 5, most of them 4 or 5."""
    X = _uniform(rng, task, d)
    y = 4.3 + 0.5 * rng.normal(size=m)[task] + X[:, 0] + 0.8 * rng.normal(size=len(task))
    return X, y.round()


def many_zeros(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Three rows of four are zero, the others log-normal."""
    X = _uniform(rng, task, d)
    some = rng.random(len(task)) < 0.25 * np.exp(0.3 * rng.normal(size=m).clip(-2, 2))[task]
    amount = np.exp(1 + 0.5 * X[:, 0] + 0.7 * rng.normal(size=len(task)))
    return X, np.where(some, amount, 0.0)


def ceiling(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Shares that stop at 1, where many rows are."""
    X = _uniform(rng, task, d)
    y = 0.9 + 0.1 * rng.normal(size=m)[task] + 0.2 * X[:, 0] + 0.1 * rng.normal(size=len(task))
    return X, y.clip(0, 1)


def own_places(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Keep a task's features within 2 % of their range, each task elsewhere; slopes are steep."""
    centre = rng.uniform(-1, 1, (m, d))
    near = rng.normal(size=(len(task), d))
    y = rng.normal(size=m)[task] + _score(near, _around(rng, m, d, 0.3), task)
    return centre[task] + 0.02 * near, y + 0.3 * rng.normal(size=len(task))


def other_unit(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """One task of six reports in a unit a hundred times smaller."""
    X = _uniform(rng, task, d)
    y = 5 + _score(X, _around(rng, m, d, 0.3), task) + 0.3 * rng.normal(size=len(task))
    return X, y * np.where(rng.random(m) < 1 / 6, 100.0, 1.0)[task]


def alike(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """One law for all tasks, with much noise."""
    X = _uniform(rng, task, d)
    return X, 2 + X @ (rng.normal(size=d) / np.sqrt(d)) + rng.normal(size=len(task))


def few_matter(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Three features matter, the same for all tasks, with weights of the task's own."""
    X = _uniform(rng, task, d)
    own = np.hstack([2 * rng.normal(size=(m, 3)), np.zeros((m, d - 3))])
    return X, _score(X, own, task) + 0.5 * rng.normal(size=len(task))


def skewed_features(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Log-normal features, whose logarithm matters."""
    X = np.exp(rng.normal(size=(len(task), d)))
    y = 0.5 * rng.normal(size=m)[task] + _score(np.log(X), _around(rng, m, d, 0.3), task)
    return X, y + 0.5 * rng.normal(size=len(task))


def exams(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Grades on a scale from zero up: levels and slopes vary a little around common ones."""
    X = 10 * _uniform(rng, task, d, 0.0)
    slopes = rng.normal(size=d) / np.sqrt(d) + 0.2 * rng.normal(size=(m, d))
    return X, 5 + rng.normal(size=m)[task] + _score(X, slopes, task) + rng.normal(size=len(task))


def levels(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Let a task's rows be nearly alike, at a level of its own; features say nothing."""
    return _uniform(rng, task, d), 100 + rng.normal(size=m)[task] + 0.05 * rng.normal(size=len(task))


def rents(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Log-normal amounts: tasks differ by half, rows of one by a tenth."""
    X = _uniform(rng, task, d, 0.0)
    level = 6.5 + 0.5 * rng.normal(size=m)[task] + 0.3 * X[:, 0]
    return X, np.exp(level + 0.1 * rng.normal(size=len(task)))


def visits(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Skewed counts, half of them zero; two features matter a little."""
    X = _uniform(rng, task, d, 0.0)
    rate = np.exp(0.3 + 0.8 * rng.normal(size=m)[task] + 0.5 * X[:, 0] - 0.5 * X[:, -1])
    return X, np.where(rng.random(len(task)) < 0.5, 0, rng.poisson(rate)).astype(np.float64)


# Classes.


def common_slopes(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Two classes; slopes and levels vary around common ones."""
    X = _uniform(rng, task, d)
    level = 0.5 * rng.normal(size=m)[task]
    return X, _coin(rng, level + 4 * _score(X, _around(rng, m, d, 0.4), task))


def rare(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """One row of thirty has the event."""
    X = _uniform(rng, task, d)
    level = -3.6 + 0.5 * rng.normal(size=m)[task]
    return X, _coin(rng, level + 2 * _score(X, _around(rng, m, d, 0.3), task))


def opposite(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Half of the tasks have the weights of the others, with the opposite sign."""
    X = _uniform(rng, task, d)
    weights = 4 * rng.choice([-1.0, 1.0], (m, 1)) * _around(rng, 1, d, 0.0)
    return X, _coin(rng, _score(X, weights, task))


def own_slopes(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Two classes, every task with weights and a level of its own."""
    X = _uniform(rng, task, d)
    weights = 3 * rng.normal(size=(m, d)) / np.sqrt(d)
    return X, _coin(rng, rng.normal(size=m)[task] + _score(X, weights, task))


def coins(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Features say nothing; a task has its own share of heads."""
    return rng.normal(size=(len(task), d)), _coin(rng, rng.normal(size=m)[task])


def separable(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Part the classes by a hyperplane of the task's own, without an error."""
    X = _uniform(rng, task, d)
    return X, (_score(X, _around(rng, m, d, 0.3), task) > 0).astype(np.float64)


def exclusive_or(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Take the sign of a product of two features, one label of ten wrong."""
    X = _uniform(rng, task, d)
    wrong = rng.random(len(task)) < 0.1
    return X, ((X[:, 0] * X[:, 1] > 0) ^ wrong).astype(np.float64)


def one_class(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Half of the tasks never see the other class, either of them."""
    X = _uniform(rng, task, d)
    level = rng.choice([-30.0, 0.0, 0.0, 30.0], m)[task]
    return X, _coin(rng, level + 3 * _score(X, _around(rng, m, d, 0.3), task))


def skewed_classes(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Two classes by the logarithm of log-normal features."""
    X = np.exp(rng.normal(size=(len(task), d)))
    return X, _coin(rng, 2 * _score(np.log(X), _around(rng, m, d, 0.3), task))


def three(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Three classes with slopes around common ones."""
    X = _uniform(rng, task, d)
    return X, _one_of(rng, np.stack([4 * _score(X, _around(rng, m, d, 0.3), task) for _ in range(3)], 1))


def six(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Six classes, the last of them rare; many tasks do not see them all."""
    X = _uniform(rng, task, d)
    scores = [3 * _score(X, _around(rng, m, d, 0.3), task) - 0.6 * k for k in range(6)]
    return X, _one_of(rng, np.stack(scores, 1))


def three_unrelated(rng: np.random.Generator, task: Index, m: int, d: int) -> tuple[Floats, Floats]:
    """Three classes whose shares are the task's own; features say nothing."""
    return _uniform(rng, task, d), _one_of(rng, rng.normal(size=(m, 3))[task])


#: Bounds a hundred times too wide, the data in the middle or near the lower end; ten times, near the upper.
WIDE, HIGH_LIMIT, LOW_LIMIT = Loose((49.5, 49.5)), Loose((0.0, 99.0)), Loose((9.0, 0.0))
FEATURES = Loose(features=(4.5, 4.5))
#: Bounds of features three, ten and a hundred times too wide, the data near one end.
FEATURES_OFF = tuple(Loose(features=beyond) for beyond in ((0.0, 2.0), (0.0, 9.0), (99.0, 0.0)))
EVERYTHING = Loose((2.0, 27.0), (0.0, 29.0))

NUMBERS = (
    Table("sensors", sensors, 200, (8, 8), 2, (0, 1), (290, 302), (TIGHT, Loose((24.0, 58.0)))),
    Table("costs", costs, 120, (10, 40), 4, (0, 1), (0, 100_000), (Loose((0.0, 1.0)), HIGH_LIMIT)),
    Table("counts", counts, 100, (15, 60), 20, (0, 1), (0, 20), (TIGHT, Loose((0.0, 17.0), (5.0, 4.0)))),
    Table("unrelated", unrelated, 120, (5, 25), 4, (-1, 1), (-8, 8), (Loose((2.6, 2.6)), WIDE)),
    Table("unrelated wide", unrelated, 60, (10, 40), 100, (-1, 1), (-8, 8), (TIGHT, EVERYTHING)),
    Table("heavy tails", heavy_tails, 100, (10, 40), 5, (-1, 1), (-40, 40), (TIGHT, HIGH_LIMIT)),
    Table("useless", useless, 100, (10, 40), 30, (-4, 4), (-7, 7), (TIGHT, LOW_LIMIT)),
    Table("noise-free", noise_free, 80, (4, 40), 5, (-1, 1), (-3, 5), (TIGHT, WIDE)),
    Table("nonlinear", nonlinear, 100, (6, 60), 3, (-1, 1), (-4, 4), (TIGHT, EVERYTHING)),
    Table("clusters", clusters, 120, (6, 24), 5, (-1, 1), (-7, 7), (TIGHT, HIGH_LIMIT)),
    Table("some constant", some_constant, 100, (4, 30), 3, (-1, 1), (-6, 6), (TIGHT, LOW_LIMIT)),
    Table("uneven noise", uneven_noise, 100, (8, 60), 4, (-1, 1), (-12, 12), (TIGHT, WIDE)),
    Table("indicators", indicators, 80, (10, 60), 12, (0, 1), (0, 6), (TIGHT, EVERYTHING)),
    Table("ratings", ratings, 150, (3, 15), 3, (-1, 1), (1, 5), (TIGHT, Loose((0.25, 23.75)))),
    Table("many zeros", many_zeros, 100, (10, 80), 6, (-1, 1), (0, 60), (TIGHT, HIGH_LIMIT)),
    Table("ceiling", ceiling, 150, (5, 20), 2, (-1, 1), (0, 1), (TIGHT, HIGH_LIMIT)),
    Table("own places", own_places, 100, (8, 40), 4, (-1.1, 1.1), (-7, 7), (TIGHT, EVERYTHING)),
    Table("other unit", other_unit, 100, (8, 30), 4, (-1, 1), (0, 900), (TIGHT, HIGH_LIMIT)),
    Table("alike", alike, 200, (2, 10), 6, (-1, 1), (-4, 8), (TIGHT, LOW_LIMIT)),
    Table("few matter", few_matter, 60, (20, 60), 100, (-1, 1), (-10, 10), (TIGHT, FEATURES)),
    Table("skewed features", skewed_features, 100, (10, 60), 5, (0, 40), (-8, 8), (TIGHT, EVERYTHING)),
    Table("one feature", sensors, 40, (3, 100), 1, (0, 1), (290, 302), (TIGHT, HIGH_LIMIT)),
    Table("ragged", uneven_noise, 150, (2, 200), 8, (-1, 1), (-12, 12), (TIGHT, EVERYTHING)),
    Table("five tasks", alike, 5, (10, 200), 5, (-1, 1), (-4, 8), (TIGHT, WIDE)),
    Table("five unrelated", unrelated, 5, (5, 50), 3, (-1, 1), (-8, 8), (TIGHT, HIGH_LIMIT)),
    Table("5,000 small", sensors, 5000, (2, 5), 2, (0, 1), (290, 302), (TIGHT, Loose((24.0, 58.0)))),
    Table("5,000 unrelated", unrelated, 5000, (4, 12), 3, (-1, 1), (-8, 8), (TIGHT, WIDE)),
    Table("exams", exams, 300, (8, 8), 3, (0, 10), (-40, 50), (TIGHT, *FEATURES_OFF)),
    Table("exams few", exams, 60, (6, 30), 2, (0, 10), (-40, 50), FEATURES_OFF),
    Table("exams wide", exams, 150, (10, 40), 12, (0, 10), (-40, 50), FEATURES_OFF),
    Table("exams many", exams, 2000, (4, 10), 5, (0, 10), (-40, 50), FEATURES_OFF),
    Table("alike off", alike, 200, (2, 10), 6, (-1, 1), (-4, 8), FEATURES_OFF),
    Table("unrelated off", unrelated, 300, (5, 25), 4, (-1, 1), (-8, 8), FEATURES_OFF),
    Table("noise-free off", noise_free, 300, (4, 40), 5, (-1, 1), (-3, 5), FEATURES_OFF),
    Table("skewed off", skewed_features, 200, (10, 60), 5, (0, 40), (-8, 8), FEATURES_OFF),
)

CLASSES = (
    Table("common slopes", common_slopes, 120, (8, 40), 4, (-1, 1), 2, (TIGHT, FEATURES)),
    Table("rare", rare, 120, (15, 80), 4, (-1, 1), 2, (TIGHT, Loose(features=(1.5, 1.5)))),
    Table("opposite", opposite, 100, (8, 40), 4, (-1, 1), 2, (TIGHT, Loose(features=(0.0, 9.0)))),
    Table("own slopes", own_slopes, 100, (8, 60), 4, (-1, 1), 2, (TIGHT, FEATURES)),
    Table("coins", coins, 80, (10, 60), 12, (-4, 4), 2, (TIGHT, FEATURES)),
    Table("separable", separable, 80, (8, 40), 3, (-1, 1), 2, (TIGHT, FEATURES)),
    Table("exclusive or", exclusive_or, 80, (8, 40), 3, (-1, 1), 2, (TIGHT, FEATURES)),
    Table("one class", one_class, 100, (5, 40), 3, (-1, 1), 2, (TIGHT, Loose(features=(0.0, 99.0)))),
    Table("skewed classes", skewed_classes, 80, (8, 40), 4, (0, 40), 2, (TIGHT, Loose(features=(0.0, 24.0)))),
    Table("classes wide", common_slopes, 12, (20, 60), 100, (-1, 1), 2, (FEATURES,)),
    Table("classes ragged", own_slopes, 100, (2, 200), 6, (-1, 1), 2, (Loose(features=(49.5, 49.5)),)),
    Table("five coins", coins, 5, (10, 100), 2, (-4, 4), 2, (TIGHT, FEATURES)),
    Table("5,000 rare", rare, 5000, (4, 12), 3, (-1, 1), 2, (FEATURES,)),
    Table("three", three, 80, (10, 40), 4, (-1, 1), 3, (TIGHT, FEATURES)),
    Table("six", six, 60, (15, 60), 4, (-1, 1), 6, (FEATURES,)),
    Table("three unrelated", three_unrelated, 60, (5, 40), 5, (-1, 1), 3, (FEATURES,)),
    Table("slopes off", common_slopes, 300, (8, 20), 3, (-1, 1), 2, FEATURES_OFF),
    Table("three off", three, 100, (10, 40), 3, (-1, 1), 3, FEATURES_OFF),
)

#: Tasks of one, two or three rows, all of them or a part; what is loose has the targets far from the middle.
MIDDLE, NOTHING_FITS = Loose((49.5, 49.5), (4.5, 4.5)), Loose((0.0, 99.0), (0.0, 9.0))
SMALL = (
    Table("one row", sensors, 150, (1, 1), 1, (0, 1), (290, 302), (TIGHT, Loose((24.0, 58.0)), HIGH_LIMIT)),
    Table("two rows", sensors, 150, (2, 2), 2, (0, 1), (290, 302), (TIGHT, Loose((24.0, 58.0)), HIGH_LIMIT)),
    Table("three rows", sensors, 150, (3, 3), 2, (0, 1), (290, 302), (TIGHT, HIGH_LIMIT)),
    Table("small levels", levels, 150, (1, 3), 1, (-1, 1), (95, 105), (TIGHT, Loose((9.5, 9.5)), HIGH_LIMIT)),
    Table("2,000 levels", levels, 2000, (1, 1), 1, (-1, 1), (95, 105), (TIGHT, HIGH_LIMIT)),
    Table("small rents", rents, 150, (1, 3), 4, (0, 1), (100, 5000), (TIGHT, HIGH_LIMIT)),
    Table("part rents", rents, 120, (1, 40), 4, (0, 1), (100, 5000), (TIGHT, NOTHING_FITS)),
    Table("small visits", visits, 150, (1, 3), 20, (0, 1), (0, 12), (Loose((0, 29.4), (4.5, 4.5)), TIGHT)),
    Table("part visits", visits, 120, (1, 40), 20, (0, 1), (0, 12), (Loose((0, 29.4), (4.5, 4.5)), TIGHT)),
    Table("small costs", costs, 150, (1, 3), 4, (0, 1), (0, 100_000), (Loose((0.0, 1.0)), HIGH_LIMIT)),
    Table("part zeros", many_zeros, 100, (1, 40), 6, (-1, 1), (0, 60), (TIGHT, HIGH_LIMIT)),
    Table("small unrelated", unrelated, 120, (1, 3), 4, (-1, 1), (-8, 8), (TIGHT, MIDDLE, NOTHING_FITS)),
    Table("part unrelated", unrelated, 120, (1, 40), 4, (-1, 1), (-8, 8), (TIGHT, MIDDLE, NOTHING_FITS)),
    Table("small alike", alike, 300, (1, 3), 6, (-1, 1), (-4, 8), (TIGHT, NOTHING_FITS)),
    Table("part exact", noise_free, 100, (1, 30), 5, (-1, 1), (-3, 5), (TIGHT, HIGH_LIMIT, NOTHING_FITS)),
    Table("small clusters", clusters, 120, (1, 3), 5, (-1, 1), (-7, 7), (TIGHT, HIGH_LIMIT)),
    Table("small wide", few_matter, 100, (1, 3), 50, (-1, 1), (-10, 10), (TIGHT, NOTHING_FITS)),
    Table("part wide", few_matter, 80, (1, 60), 50, (-1, 1), (-10, 10), (TIGHT, NOTHING_FITS)),
    Table("part skewed", skewed_features, 100, (1, 40), 5, (0, 40), (-8, 8), (TIGHT, NOTHING_FITS)),
    Table("five small", unrelated, 5, (1, 3), 3, (-1, 1), (-8, 8), (TIGHT, HIGH_LIMIT)),
    Table("small coins", coins, 120, (1, 3), 3, (-4, 4), 2, (TIGHT, FEATURES)),
    Table("small rare", rare, 200, (1, 3), 4, (-1, 1), 2, (TIGHT, FEATURES)),
    Table("part rare", rare, 120, (1, 60), 20, (-1, 1), 2, (TIGHT, FEATURES)),
    Table("small slopes", common_slopes, 150, (1, 3), 8, (-1, 1), 2, (TIGHT, Loose(features=(0.0, 9.0)))),
    Table("small one class", one_class, 120, (1, 3), 3, (-1, 1), 2, (TIGHT, FEATURES)),
    Table("part own slopes", own_slopes, 100, (1, 40), 4, (-1, 1), 2, (TIGHT, FEATURES)),
    Table("small six", six, 120, (1, 3), 4, (-1, 1), 6, (FEATURES,)),
    Table("part six", six, 80, (1, 30), 4, (-1, 1), 6, (TIGHT, FEATURES)),
    Table("1,500 rents", rents, 1500, (1, 2), 3, (0, 1), (100, 5000), (TIGHT, HIGH_LIMIT)),
    Table("600 visits", visits, 600, (1, 12), 20, (0, 1), (0, 12), (Loose((0, 29.4), (4.5, 4.5)),)),
    Table("half of one row", exams, 200, (1, 6), 3, (0, 10), (-40, 50), (TIGHT, NOTHING_FITS)),
    Table("one outcome", rare, 300, (1, 1), 2, (-1, 1), 2, (TIGHT, FEATURES)),
    Table("small opposite", opposite, 150, (1, 3), 3, (-1, 1), 2, (TIGHT, Loose(features=(0.0, 9.0)))),
    Table("small three", three_unrelated, 150, (1, 3), 2, (-1, 1), 3, (TIGHT, FEATURES)),
)

TABLES = NUMBERS + CLASSES + SMALL
