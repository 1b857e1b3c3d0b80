"""How meta-learning does on six real tables at epsilon 1: tasks that took part, and tasks that come later.

A fifth of the tasks is kept away; they adapt afterwards, with 70 % of their rows, as many as others train on.
Losses on the other rows, nMSE or log-loss, over three splits; relation replace, default delta, seeded noise.
The defaults of `MetaRegressor` and `MetaClassifier` were chosen on these very tables, without their guard.
"""

from __future__ import annotations

import numpy as np

from benchmarks import Figures, Table, Targets
from benchmarks.prior_accuracy import FILES, Learner
from benchmarks.prior_accuracy import table as load
from cloister import Plan, Tasks, adapt, datasets
from cloister import run as run_plan
from cloister.algorithms import Algorithm, Independent, Joint, SharedPrior
from cloister.estimators import MetaClassifier, MetaRegressor
from cloister.learners import Classification
from harness.cells import Cells
from harness.sources import data_file

NAME = "meta-tables"
DATA = (
    "landmine.npz",
    "school.npz",
)
TABLES = ("school", "exam", "hsb82", "chem97", "landmine", "contraception")
METHODS = ("alone", "shared prior", "meta")


def algorithm(method: str, name: str, learner: Learner) -> Algorithm:
    """Return what is compared."""
    if method == "alone":
        return Independent(learner)
    if method == "shared prior":
        return SharedPrior(learner, Joint())
    book = data(name).codebook
    face = MetaClassifier if isinstance(learner, Classification) else MetaRegressor
    return face(bounds=book, guard=False).plan(100).algorithm


def data(name: str) -> datasets.Dataset:
    """Load a table."""
    if name in FILES:
        return getattr(datasets, f"load_{name}")(data_file(FILES[name]))  # type: ignore[no-any-return]
    return datasets.load(name)


def loss(coef: np.ndarray, train: Tasks, test: Tasks, classify: bool) -> float:
    """Return the loss over held-out rows, each by its own task's model."""
    owner = np.searchsorted(train.ids, np.repeat(test.ids, test.sizes))
    score = np.einsum("nd,nd->n", test.X, coef[owner])
    if classify:
        return float(np.mean(np.logaddexp(0.0, score) - test.y * score))
    return float(np.mean(np.square(test.y - score)) / test.y.var())


def measure(job: tuple[str, str, int]) -> tuple[float, float]:
    """Return the loss of tasks that took part, and of tasks that came later."""
    name, method, seed = job
    tasks, learner = load(name)
    later = np.random.default_rng(seed).random(len(tasks)) < 0.2
    train, test = tasks.select(~later).split(0.3, seed)
    new, new_test = tasks.select(later).split(0.3, seed)
    plan = Plan(algorithm(method, name, learner), n_tasks=len(train)).calibrate(1.0)
    finished = run_plan(plan, train, random_state=seed)
    classify = isinstance(learner, Classification)
    adapted = adapt(plan, finished.board, new)["coef"]
    own = finished.private.models["coef"]
    return loss(own, train, test, classify), loss(adapted, new, new_test, classify)


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Table]:
    """Measure every table.

    Parameters
    ----------
    quick : bool
        One split of two small tables.
    """
    names = ("exam", "hsb82") if quick else TABLES
    rows: Table = [["", *(f"{method}: took part, later" for method in METHODS)]]
    figures: Figures = {}
    there = [name for name in names if name not in FILES or data_file(FILES[name]).exists()]
    jobs = [(name, method, seed) for name in there for method in METHODS for seed in range(1 if quick else 3)]
    found = dict(zip(jobs, cells.measured(measure, jobs), strict=True))
    for name in names:
        if name not in there:
            rows.append([name, f"not measured: no {data_file(FILES[name])}, set CLOISTER_DATA", "", ""])
            continue
        row = [name]
        for method in METHODS:
            each = [found[job] for job in jobs if job[:2] == (name, method)]
            known, later = (float(value) for value in np.mean(each, axis=0))
            label = f"{name}_{method.replace(' ', '_')}"
            figures |= {label: known, f"{label}_later": later}
            row.append(f"{known:.3f}, {later:.3f}")
        rows.append(row)
    better = [figures[f"{name}_meta_later"] < figures[f"{name}_alone_later"] for name in names]
    figures["better_than_alone"] = float(sum(better))
    return figures, {"better_than_alone": (">=", 4.0)}, rows
