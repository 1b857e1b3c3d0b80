"""Theorem 14: transfer risk of a stream falls with its length, and with the rows of a task.

Fresh tasks adapt from the mean iterate of a stream of linear regressions in 30 dimensions around one
centre. Shown is their squared error above that of the truth, at home, against the number of tasks (10 rows
each) and the rows of a task (400 tasks); λ is 0.03 for 10 rows and falls as one over the root of the rows,
as the theorem asks. Noises are those of Theorems 12 and 13; ε is 10, and 1 to 100 for the longest stream.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from cloister.datasets import around_centres
from papers.figure import Cell, Claim, Data, Found, Options, Outcome, Row, by, digits, judge, mean, say
from papers.meta.learning import SETTING, fresh_error
from papers.meta.theorem_12 import EPSILON, NOISES, OTHERS, streamed
from papers.pictures import at, curve, legend

NOT_COVERED = "the constants L and V of the bound, which is not compared as a number."
COUNTS, ROWS = (100, 400, 1600), (5, 10, 20, 40)
TASKS, FEW = 400, 10
#: Of the longest stream.
EPSILONS = tuple(sorted((EPSILON, *OTHERS)))


def cells(options: Options) -> list[Cell]:
    shapes = [(tasks, FEW, EPSILON) for tasks in COUNTS]
    shapes += [(TASKS, rows, EPSILON) for rows in ROWS if rows != FEW]
    shapes += [(COUNTS[-1], FEW, epsilon) for epsilon in EPSILONS if epsilon != EPSILON]
    return [
        {"tasks": tasks, "rows": rows, "noise": noise, "epsilon": epsilon, "seed": seed}
        for seed in options.replications(full=5, quick=2)
        for tasks, rows, epsilon in shapes
        for noise in NOISES
        if noise != "none" or epsilon == EPSILON
    ]


def measure(cell: Cell, options: Options) -> float:
    """Return what fresh tasks have in squared error above the noise of the targets."""
    tasks, seed = cell["tasks"], cell["seed"]
    data = around_centres(seed, tasks, centres=1, rows=cell["rows"])
    setting = replace(SETTING, lam=SETTING.lam * (FEW / cell["rows"]) ** 0.5)
    stream = setting.stream(data.centres.shape[1], tasks)
    done = streamed(data, stream, cell["noise"], cell["epsilon"], seed)
    return digits(fresh_error(data, done) - data.noise**2)


def summarise(found: Found) -> Data:
    data: Data = {}
    for (tasks, rows, noise, epsilon), values in by(found, "tasks", "rows", "noise", "epsilon").items():
        other = "" if epsilon == EPSILON else f", ε = {epsilon:g}"
        data[f"{tasks} tasks of {rows} rows{other}, {noise}"] = mean(values)
    return data


def _slope(data: Data, noise: str) -> float:
    heights = [data[f"{TASKS} tasks of {rows} rows, {noise}"][0] for rows in ROWS]
    return float(np.polyfit(np.log(ROWS), np.log(heights), 1)[0])


def table(data: Data) -> list[Row]:
    shapes = list(dict.fromkeys(key.rsplit(", ", 1)[0] for key in data))
    rows: list[Row] = [
        (
            shape if "ε" in shape else f"{shape}, ε = {EPSILON:g}",
            "",
            *(say(data[f"{shape}, {noise}"], ".3g") for noise in NOISES[1:]),
        )
        for shape in shapes
    ]
    rows.append(("slope in rows", "-0.5 at most", *(f"{_slope(data, noise):.2f}" for noise in NOISES[1:])))
    return rows


def over_epsilon(data: Data, noise: str) -> dict[float, list[float]]:
    """Return the longest stream's risk at every ε."""
    shape = f"{COUNTS[-1]} tasks of {FEW} rows"
    keys = {e: f"{shape}, {noise}" if e == EPSILON else f"{shape}, ε = {e:g}, {noise}" for e in EPSILONS}
    return {epsilon: data[key] for epsilon, key in keys.items() if key in data}


def draw(data: Data, figure: Any) -> None:
    figure.set_size_inches(9.0, 3.6)
    panels = figure.subplots(1, 3, sharey=True)
    left, middle, right = panels
    labels = ("no noise", "tree as printed", "tree, least noise", "Toeplitz")
    for noise, label, whose in zip(NOISES, labels, ("no noise", "paper", "repaired", "ours"), strict=True):
        curve(left, list(COUNTS), [data[f"{m} tasks of {FEW} rows, {noise}"] for m in COUNTS], label, whose)
        curve(middle, list(ROWS), [data[f"{TASKS} tasks of {n} rows, {noise}"] for n in ROWS], label, whose)
        spent = over_epsilon(data, noise)
        curve(right, list(spent), list(spent.values()), label, whose)
    left.set(xlabel="tasks", ylabel="error above the truth's", yscale="log")
    left.set_title(f"{FEW} rows a task, ε = {EPSILON:g}")
    middle.set(xlabel="rows of a task", title=f"{TASKS} tasks, ε = {EPSILON:g}")
    right.set(xlabel="ε", title=f"{COUNTS[-1]} tasks of {FEW} rows")
    for axes, places in zip(panels, (COUNTS, ROWS, EPSILONS), strict=True):
        at(axes, list(places))
    legend(figure, 4)


def claims(data: Data) -> list[Claim]:
    def value(m: int, noise: str) -> float:
        return float(data[f"{m} tasks of {FEW} rows, {noise}"][0])

    def falls(noise: str) -> Outcome:
        points = [value(m, noise) for m in COUNTS]
        return judge([a > b for a, b in pairwise(points)], ", ".join(f"{point:.2g}" for point in points))

    def rows(noise: str) -> Outcome:
        return judge([_slope(data, noise) <= -0.5], f"n to the {_slope(data, noise):.2f}")

    def spends(noise: str) -> Outcome:
        points = [value for value, _ in over_epsilon(data, noise).values()]
        return judge([a > b for a, b in pairwise(points)], ", ".join(f"{point:.2g}" for point in points))

    return [
        Claim(
            f"Theorem 14: at ε = {EPSILON:g} transfer risk falls with the length of the stream (100, 400, "
            "1600)",
            "",
            falls("published"),
            falls("tree"),
        ),
        Claim(
            "Theorem 14: and with the rows of a task at least as 1/√n (5 to 40)",
            "power -0.5",
            rows("published"),
            rows("tree"),
        ),
        Claim(
            f"Theorem 14: and with ε (1 to 100, {COUNTS[-1]} tasks)",
            "",
            spends("published"),
            spends("tree"),
        ),
    ]


def finding(data: Data) -> str:
    value = lambda m, noise: data[f"{m} tasks of {FEW} rows, {noise}"][0]  # noqa: E731
    return (
        f"Sixteen times the tasks take transfer risk from {value(COUNTS[0], 'tree'):.2g} to "
        f"{value(COUNTS[-1], 'tree'):.2g} with the least noise in a tree, and from "
        f"{value(COUNTS[0], 'toeplitz'):.2g} to {value(COUNTS[-1], 'toeplitz'):.2g} with noise that cancels "
        f"in totals; as printed it ends at {value(COUNTS[-1], 'published'):.2g}."
    )
