"""Does joining harm with the papers' estimators, as they are by default? Some tables of `harm`, by its rule.

A cell is a table, a codebook (tight, or the widest), an epsilon and an estimator. Losses, limits and the test
beyond luck are those of `harm`, for each estimator a grid: against scikit-learn on each task's own rows, and
*by joining*, against the single-task estimator, with which nobody joins and which is a cell as well. The
second comparison has less chance in it, as both see the same rows: it shows smaller losses, but also those of
a task that is still ahead of scikit-learn. Raw means above a limit are counted apart.
Tables have up to 150 tasks. Seeds begin at 300: whatever was tuned was tuned on lower ones.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

import numpy as np

from benchmarks import Figures, Targets, harm
from benchmarks import Table as Printed
from benchmarks.harm import LIMIT, SINGLE, SIZE_LIMIT, Cell, Losses, Outcome, log_ratios, losses, summarise
from benchmarks.harm_tables import TABLES, TIGHT, Loose, Table, draw
from cloister import estimators
from harness.cells import Cells

NAME = "family-harm"

FAMILY = ("LowRank", "GroupSparse", "Decomposed", "MeanRegularized", "Meta")
#: What a task does alone; it stands in the grid under the epsilon of `harm` for it.
ALONE = "SingleTask"
#: Those that nothing was tuned on first.
NAMES = (
    "clusters",
    "noise-free off",
    "five unrelated",
    "separable",
    "part rents",
    "part rare",
    "part exact",
    "small slopes",
    "small rare",
    "small six",
    "small unrelated",
    "part visits",
    "small visits",
    "small rents",
    "two rows",
    "one row",
    "three off",
    "slopes off",
    "own slopes",
    "exams few",
    "alike off",
    "unrelated off",
)
QUICK = ("five unrelated", "alike off", "small slopes")
EPSILONS = (0.05, 0.2, 1.0, 8.0)
MOST_TASKS, SCORED = 150, 50
SEEDS = range(300, 308)
SHOWN = 12

#: Losses of scikit-learn, `alone`, and `ours` by the codebook's place, epsilon and estimator.
Drawn = dict[str, Any]
#: An estimator's cells; against scikit-learn first, then against the single-task estimator.
Grids = tuple[list[Cell], list[Cell]]


def measure(job: tuple[str, int, tuple[float, ...]]) -> Drawn:
    """Draw one table once; fit it alone, by us alone, and by every estimator in two codebooks."""
    name, seed, epsilons = job
    table = found(name)
    train, test = draw(table, seed, SCORED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "alone": losses(table, train, test, harm.alone_predictions(table, train, test)),
            "ours": [
                (place, epsilon, kind, ours(table, loose, epsilon, kind, seed))
                for place, loose in enumerate(codebooks(table))
                for epsilon, kind in ((SINGLE, ALONE), *product(epsilons, FAMILY))
            ],
        }


def found(name: str) -> Table:
    table = next(one for one in TABLES if one.name == name)
    return replace(table, tasks=min(table.tasks, MOST_TASKS))


def codebooks(table: Table) -> tuple[Loose, Loose]:
    return TIGHT, table.codebooks[-1]


def ours(table: Table, loose: Loose, epsilon: float, kind: str, seed: int) -> Losses:
    """Fit an estimator at its defaults in a codebook; return its losses, of all tasks and by size."""
    train, test = draw(table, seed, SCORED)
    noisy = {} if kind == ALONE else {"epsilon": epsilon, "random_state": seed}
    kinds = getattr(estimators, kind + ("Classifier" if table.classes else "Regressor"))
    estimator = kinds(bounds=table.codebook(loose), **noisy)
    fitted = estimator.fit(train.X, train.y.astype(int) if table.classes else train.y, tasks=train.task)
    predict = fitted.predict_proba if table.classes else fitted.predict
    return losses(table, train, test, np.asarray(predict(test.X, tasks=test.task)))


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, dict[str, Printed]]:
    """Measure the grid.

    Parameters
    ----------
    quick : bool
        Three tables, two draws, epsilon 1.
    """
    names, seeds = (QUICK, SEEDS[:2]) if quick else (NAMES, SEEDS)
    jobs = [(name, seed, (1.0,) if quick else EPSILONS) for seed in seeds for name in names]
    drawn = [(job[0], value) for job, value in zip(jobs, cells.measured(measure, jobs), strict=True)]
    grids = {kind: compared_grids(drawn, kind) for kind in FAMILY}
    goals = {f"{kind}_failed{end}": ("<=", 0.0) for kind in FAMILY for end in ("", "_by_joining")}
    return figures(grids), goals, {NAME: by_epsilon(grids), f"{NAME}-worst": worst(grids)}


def compared_grids(drawn: list[tuple[str, Drawn]], kind: str) -> Grids:
    """Return an estimator's cells, and those of the single-task one, against both that learn alone."""
    places = {table.name: i for i, table in enumerate(TABLES)}
    against: dict[int, list[Outcome]] = {places[name]: [] for name, _ in drawn}
    joining: dict[int, list[Outcome]] = {place: [] for place in against}
    for name, value in drawn:
        loose = codebooks(found(name))
        ours = {(loose[at], epsilon): each for at, epsilon, of, each in value["ours"] if of in (kind, ALONE)}
        against[places[name]].append(Outcome(value["alone"], ours))
        beside = {key: by_joining(each, ours[key[0], SINGLE]) for key, each in ours.items()}
        joining[places[name]].append(Outcome([1.0] * len(value["alone"]), beside))
    return summarise(against), summarise(joining)


def by_joining(ours: Losses, single: Losses) -> Losses:
    """Return losses in units of those of the single-task estimator."""
    return [None if ratio is None else math.exp(ratio) for ratio in log_ratios(ours, single)]


def figures(grids: dict[str, Grids]) -> Figures:
    """Count failures by estimator, and means above a limit, which may be luck."""
    out: Figures = {}
    for kind, (against, joining) in grids.items():
        told = harm.figures(against)
        out |= {name.replace("shared", kind): told[name] for name in told if name.startswith("shared")}
        out["single_failed"] = told["single_failed"]
        for end, cells in (("", against), ("_by_joining", joining)):
            joint = [cell for cell in cells if cell.epsilon != SINGLE]
            out[f"{kind}_failed{end}"] = sum(cell.failed for cell in joint)
            out[f"{kind}_above_a_limit{end}"] = sum(map(above, joint))
    return out


def above(cell: Cell) -> bool:
    """Say whether a mean over draws is above its limit, of all tasks or of those of a size."""
    return cell.relative > LIMIT or cell.worst_size[1] > SIZE_LIMIT


def by_epsilon(grids: dict[str, Grids]) -> Printed:
    """Return the worst and the median cell of each estimator at each epsilon, in percent of loss."""
    epsilons = sorted({cell.epsilon for cells, _ in grids.values() for cell in cells} - {SINGLE})
    rows: Printed = [["estimator", *(f"ε = {epsilon:g}: worst, median" for epsilon in epsilons)]]
    for kind, (cells, _) in grids.items():
        columns = [[100 * cell.relative for cell in cells if cell.epsilon == epsilon] for epsilon in epsilons]
        rows.append([kind, *(f"{max(one):+.1f}, {median(one):+.1f}" for one in columns)])
    return rows


def worst(grids: dict[str, Grids]) -> Printed:
    """Return the cells that lose most by joining, of all tasks or of those of a size, and those that fail."""
    head = ["table", "bounds of target, features", "epsilon", "estimator", "loss %", "at least %"]
    rows: Printed = [[*head, "by joining %", "that at least %", "worst size by joining, %"]]
    pairs = [
        (kind, cell, beside[cell.table.name, cell.loose, cell.epsilon])
        for kind, (against, joining) in grids.items()
        for beside in ({(one.table.name, one.loose, one.epsilon): one for one in joining},)
        for cell in against
        if cell.epsilon != SINGLE
    ]
    pairs.sort(key=lambda one: (not one[1].failed, not one[2].failed, -one[2].relative))
    for kind, cell, joined in pairs[:SHOWN]:
        size, loss = joined.worst_size
        shown = (cell.relative, cell.bound, joined.relative, joined.bound)
        rows.append([cell.table.name, cell.loose.label, f"{cell.epsilon:g}", kind])
        rows[-1] += [*(f"{100 * value:+.1f}" for value in shown), f"{size}: {100 * loss:+.1f}"]
    return rows
