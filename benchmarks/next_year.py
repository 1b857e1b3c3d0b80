"""What starting from last year's board saves: the pupils of Chem97's schools in two halves, one a year.

The first half is fitted at epsilon 1. The second is split 70/30 and fitted anew, or from the first one's
board, at several epsilons; or not at all: tasks replay the old board with their new rows, at no cost. In the
last rows marks have risen by a point in the second year, which a replay cannot know. What counts is the
epsilon at which a start gives the accuracy that a fresh run has at 1, on a line between those measured in log
epsilon; the smallest of these if that one does already. nMSE on held-out rows, relation replace, default
delta, seeded noise.
"""

from __future__ import annotations

import math
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from benchmarks import Figures, Table, Targets
from cloister import Tasks, datasets
from cloister.engines.run import replay
from cloister.estimators import SharedPriorRegressor, SingleTaskRegressor
from harness.cells import Cells

NAME = "next-year"

EPSILONS = (0.03, 0.1, 0.3, 1.0, 3.0)
#: Rise in marks from one year to the next, of ten.
RISES = (0.0, 1.0)
Losses = dict[tuple[str, float], float]


def measure(job: tuple[int, float]) -> list[tuple[str, float, float]]:
    """Measure one split into two years, with one rise in marks; return ways, epsilons and losses."""
    seed, rise = job
    data = datasets.load("chem97")
    book = data.codebook
    rows = Tasks.from_arrays(np.arange(len(data))[:, None], data.y, data.task)
    first, second = rows.split(test=0.5, seed=100 + seed)
    train, test = second.split(test=0.3, seed=seed)

    def part(tasks: Tasks, more: float) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
        at = tasks.X[:, 0].astype(np.intp)
        columns = {name: np.asarray(column)[at] for name, column in data.X.items()}
        return columns | {"school": data.task[at]}, np.clip(data.y[at] + more, 0, 10)

    def loss(model: SharedPriorRegressor | SingleTaskRegressor) -> float:
        X, y = part(test, rise)
        return float(np.mean(np.square(y - model.predict(X))) / np.var(y))

    def model(epsilon: float, **start: object) -> SharedPriorRegressor:
        made = SharedPriorRegressor("school", epsilon=epsilon, bounds=book, random_state=seed + 1000, **start)
        return made.fit(*part(train, rise))

    earlier = SharedPriorRegressor("school", epsilon=1.0, bounds=book, random_state=seed)
    earlier.fit(*part(first, 0.0))
    found: Losses = {("alone", 0.0): loss(SingleTaskRegressor("school", bounds=book).fit(*part(train, rise)))}
    for epsilon in EPSILONS:
        found["fresh", epsilon] = loss(model(epsilon))
        found["start", epsilon] = loss(model(epsilon, start_from=earlier))
    found["replay", 0.0] = replayed(earlier, part(train, rise), part(test, rise))
    return [(*key, value) for key, value in found.items()]


def replayed(earlier: SharedPriorRegressor, train: tuple, test: tuple) -> float:
    """Return the loss of models that tasks make of an old board and their new rows, at no cost."""
    book = earlier.codebook_
    own = Tasks.from_arrays(book.encode(train[0]), book.encode_target(train[1]), train[0]["school"])
    coef = replay(earlier.plan_, earlier.billboard_, own)["coef"]
    rows = coef[np.searchsorted(own.ids, test[0]["school"])]
    guess = book.decode_prediction(np.einsum("nd,nd->n", book.encode(test[0]), rows))
    return float(np.mean(np.square(test[1] - guess)) / np.var(test[1]))


def epsilon_for(goal: float, epsilons: tuple[float, ...], losses: list[float]) -> float:
    """Return the least epsilon that reaches a loss, on a line between those measured; infinity if none."""
    previous: tuple[float, float] | None = None
    for epsilon, loss in zip(epsilons, losses, strict=True):
        if loss <= goal:
            if previous is None:
                return epsilon
            share = (previous[1] - goal) / (previous[1] - loss)
            return math.exp(math.log(previous[0]) + share * math.log(epsilon / previous[0]))
        previous = epsilon, loss
    return math.inf


#: What the table calls them.
WAYS = {"alone": "each school alone", "fresh": "anew", "start": "from year one"}


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Table]:
    """Measure both years.

    Parameters
    ----------
    quick : bool
        One split instead of five.
    """
    jobs = [(seed, rise) for rise in RISES for seed in range(1 if quick else 5)]
    found: dict[float, list[Losses]] = {rise: [] for rise in RISES}
    for (_, rise), losses in zip(jobs, cells.measured(measure, jobs), strict=True):
        found[rise].append({(way, epsilon): loss for way, epsilon, loss in losses})
    shown = [f"{epsilon:g}" for epsilon in EPSILONS]
    table = [["year two", "marks rise by", "ε = 0", *shown]]
    figures: Figures = {}
    for rise, splits in found.items():
        mean = {key: fmean(losses[key] for losses in splits) for key in splits[0]}
        label = "moved_" if rise else ""
        for (way, epsilon), loss in mean.items():
            figures[f"{label}{way}_eps{epsilon:g}"] = loss
        if len(splits) > 1:
            figures[f"{label}fresh_eps1_se"] = _error([losses["fresh", 1.0] for losses in splits])
        started = [mean["start", epsilon] for epsilon in EPSILONS]
        figures[f"{label}epsilon_needed"] = epsilon_for(mean["fresh", 1.0], EPSILONS, started)
        for way, nothing in (("alone", "alone"), ("fresh", ""), ("start", "replay")):
            row = [f"{mean[way, epsilon]:.4f}" if way != "alone" else "" for epsilon in EPSILONS]
            table.append([WAYS[way], f"{rise:g}", f"{mean[nothing, 0.0]:.4f}" if nothing else "", *row])
    return figures, {"epsilon_needed": ("<=", 0.5), "moved_epsilon_needed": ("<=", 1.0)}, table


def _error(values: list[float]) -> float:
    return stdev(values) / math.sqrt(len(values))
