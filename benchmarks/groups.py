"""What public groups of tasks bring to a shared prior, and when they do not pay.

Schools in their local authorities (Chem97), countries in continents (Gapminder), lecturers in departments
(InstEval); and generated tasks in 5 groups that differ, or do not. Rows of each task are split again and
again; Gapminder once more with 3 or 4 rows a country to learn from, InstEval with a tenth of each lecturer's
ratings. A gain is 1 - loss / single-task loss on the rows held out, in percent; what groups bring is the gain
with groups less that without, with its standard error over re-splits. Relation replace, default delta,
seeded noise, drawn several times a split for small tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from benchmarks import Figures, Table, Targets
from cloister import Plan, Tasks, datasets
from cloister import run as run_plan
from cloister.algorithms import Groups, Independent, Locate, SharedPrior
from cloister.learners import Classification, Regression
from cloister.mechanisms import NoNoise
from cloister.plan.algorithm import Algorithm
from harness.cells import Cells

NAME = "groups"

EPSILONS = (0.5, 1.0, 2.0, 8.0, math.inf)
Learner = Regression | Classification


@dataclass(frozen=True)
class Case:
    """A table, the share of rows held out, re-splits, and draws of noise for each."""

    title: str
    table: str
    test: float
    splits: int
    draws: int


CASES = (
    Case("countries in 5 continents, 4 rows each", "gapminder", 0.7, 6, 2),
    Case("countries in 5 continents, 8 rows each", "gapminder", 0.3, 6, 2),
    Case("generated, 5 groups that differ", "differ", 0.5, 6, 1),
    Case("generated, 5 groups that do not", "alike", 0.5, 6, 1),
    Case("lecturers in 14 departments", "insteval", 0.9, 2, 1),
    Case("schools in 131 authorities", "chem97", 0.3, 2, 1),
)
QUICK = (Case("countries in 5 continents, 4 rows each", "gapminder", 0.7, 2, 1),)
#: What groups bring, in percentage points, at these epsilons; where they do not pay, this loss at most.
BRINGS = {("gapminder", 0.7, 2.0): 1.0, ("gapminder", 0.7, 8.0): 3.0, ("differ", 0.5, 8.0): 1.0}
COSTS = ("chem97", "insteval", "alike")
MOST = 0.5


def load(name: str) -> tuple[Tasks, Learner]:
    """Return a table's tasks with their public groups, and the learner for it."""
    if name in ("differ", "alike"):
        return generated(0.15 if name == "differ" else 0.0), Regression(4)
    data = datasets.load(name)
    book = data.codebook
    tasks = Tasks.from_arrays(book.encode(data.X), book.encode_target(data.y), data.task)
    assert data.group is not None
    labels = dict(zip(data.task.tolist(), data.group.tolist(), strict=True))
    learner = Regression(book.width) if book.classes is None else Classification(book.width, book.classes)
    return tasks.with_groups(labels), learner


def generated(spread: float, count: int = 300, rows: int = 16, dim: int = 4) -> Tasks:
    """Return tasks in 5 groups whose weights differ by so much, in every coordinate."""
    rng = np.random.default_rng(20)
    place = np.arange(count) % 5
    weights = rng.normal(0, 0.5, dim) + (spread * rng.normal(size=(5, dim)))[place]
    weights = math.sqrt(dim) * (weights + rng.normal(0, 0.1, (count, dim)))
    X = rng.uniform(-1, 1, (count, rows, dim)) / math.sqrt(dim)
    X[:, :, 0] = 1 / math.sqrt(dim)
    y = np.einsum("knd,kd->kn", X, weights) + rng.normal(0, 0.2, (count, rows))
    flat = np.clip(y.ravel() / 3, -1, 1)  # a codebook of ±3
    tasks = Tasks.from_arrays(X.reshape(-1, dim), flat, np.repeat(np.arange(count), rows))
    return tasks.with_groups(dict(enumerate(map(str, place))))


def loss(learner: Learner, models: NDArray[np.float64], ids: NDArray[np.int64], held: Tasks) -> float:
    """Return the mean squared error, or the log-loss, over all rows held out."""
    whose = np.repeat(np.searchsorted(ids, held.ids), held.sizes)
    score = np.einsum("nd,nd->n", models[whose], held.X)
    if isinstance(learner, Regression):
        return float(((score - held.y) ** 2).mean())
    return float(np.logaddexp(0.0, np.where(held.y == 1, -score, score)).mean())


def measure(job: tuple[int, bool, int]) -> list[tuple[float, float, float]]:
    """Return every epsilon with the gain without and with groups, for one re-split of a case."""
    place, quick, seed = job
    case = (QUICK if quick else CASES)[place]
    tasks, learner = load(case.table)
    train, held = tasks.split(case.test, seed)
    assert train.groups is not None

    def losses(algorithm: Algorithm, epsilon: float) -> float:
        if math.isinf(epsilon):
            plan, draws = Plan(algorithm, NoNoise(), n_tasks=len(train)), 1
        else:
            plan, draws = Plan(algorithm, n_tasks=len(train)).calibrate(epsilon), case.draws
        found = (run_plan(plan, train, random_state=1000 * seed + draw) for draw in range(draws))
        return fmean(loss(learner, run.private.models["coef"], train.ids, held) for run in found)

    alone = losses(Independent(learner), math.inf)
    bare = shared(learner)
    both = bare, bare.with_groups(Groups.of(train.groups))
    without, within = ([100 * (1 - losses(one, epsilon) / alone) for epsilon in EPSILONS] for one in both)
    return list(zip(EPSILONS, without, within, strict=True))


def shared(learner: Learner) -> Algorithm:
    """Return what the estimators run: a shared prior, of located targets where these are numbers."""
    return SharedPrior(learner, locate=Locate() if isinstance(learner, Regression) else None)


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Table]:
    """Measure all cases."""
    cases = QUICK if quick else CASES
    figures: Figures = {}
    rows: Table = [["tasks", *("no noise" if math.isinf(e) else f"ε = {e:g}" for e in EPSILONS)]]
    jobs = [(place, quick, seed) for place, case in enumerate(cases) for seed in range(case.splits)]
    found: dict[Case, list[dict[float, tuple[float, float]]]] = {case: [] for case in cases}
    for (place, *_), gained in zip(jobs, cells.measured(measure, jobs), strict=True):
        found[cases[place]].append({epsilon: (bare, brought) for epsilon, bare, brought in gained})
    for case, splits in found.items():
        row = [case.title]
        for epsilon in EPSILONS:
            bare, brought = ([split[epsilon][i] for split in splits] for i in (0, 1))
            more = [two - one for one, two in zip(bare, brought, strict=True)]
            error = stdev(more) / math.sqrt(len(more)) if len(more) > 1 else math.nan
            row.append(f"{fmean(bare):.1f} {fmean(more):+.2f} ± {error:.2f}")
            figures[f"{case.table} {case.test:g} held out, eps {epsilon:g}"] = fmean(more)
        rows.append(row)
    targets: Targets = {
        f"{table} {test:g} held out, eps {epsilon:g}": (">=", most)
        for (table, test, epsilon), most in BRINGS.items()
    }
    for case in CASES:
        if case.table in COSTS:
            targets |= {
                f"{case.table} {case.test:g} held out, eps {epsilon:g}": (">=", -MOST) for epsilon in EPSILONS
            }
    return figures, targets, rows
