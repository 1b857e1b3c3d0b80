"""How much tasks gain by sharing a prior, against learning alone: eleven real tables, two synthetic ones.

Rows of each task are split 70/30 again and again; nMSE (log-loss where the target is a class) on the rows
held out, relation replace, default delta, seeded noise. A gain is 1 - loss / single-task loss, in percent,
averaged over re-splits, with its standard error. A task counts as harmed if its own held-out loss is more
than 5 % worse than alone; on so few rows that is mostly luck, so the non-private share stands beside it.

The single-task loss is our own, and beside it scikit-learn's on each task's rows in its own units, so that no
gain is won from a weak yardstick (`benchmarks.harm`). Targets are for gains over the learning alone of when
they were set, which was mostly worse: losses are compared like for like (`benchmarks.earlier_losses`). What
mixed-effects models of everybody's rows gain stands there too (`benchmarks.mixed_models`). What is slow of
this is measured on the first re-splits only.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from benchmarks import Figures, Table, Tables, Targets, mixed_models
from benchmarks.earlier_losses import comparison, earlier_figures, earlier_goals
from benchmarks.harm import alone_classes, alone_numbers
from cloister import Plan, Tasks, datasets
from cloister import run as run_plan
from cloister.algorithms import (
    Independent,
    Joint,
    Locate,
    SharedPrior,
    Subspace,
    Support,
)
from cloister.algorithms.prior.structure import Structure
from cloister.core.spec import Target
from cloister.datasets.real import Dataset
from cloister.engines.local import Local
from cloister.learners import Classification, Regression
from cloister.mechanisms import NoNoise
from cloister.tables.codebook import Codebook
from cloister.tables.column_types import Numeric
from harness.cells import Cells
from harness.sources import data_file

NAME = "prior-accuracy"
DATA = (
    "landmine.npz",
    "school.npz",
)

TABLES = (
    "school",
    "exam",
    "hsb82",
    "star",
    "chem97",
    "bdf",
    "scotssec",
    "verbagg",
    "chem97_high",
    "contraception",
    "landmine",
)
FILES = {"school": "school.npz", "landmine": "landmine.npz"}
QUICK = ("exam", "hsb82", "bdf", "scotssec", "contraception")
EPSILONS = (0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 8.0)
#: Noise is drawn so often for each re-split of fewer than 1000 tasks.
DRAWS = 3
#: (tasks, re-splits): slow peers (cross-validated classes, random slopes) are fitted to so many re-splits of
#: tables with fewer tasks, and to none of larger ones.
SLOW_SPLITS = ((1000, 2), (4000, 1))
#: What stands beside us in the table: scikit-learn task by task, and mixed-effects models of all rows.
PEERS = ("scikit", "intercepts", "slopes")
#: Structures with data made for them: at these epsilons, this nMSE at most.
MADE_FOR = {
    ("low_rank", "joint"): {1.0: 0.053},
    ("low_rank", "lowrank"): {0.5: 0.070, 1.0: 0.039, 5.0: 0.018},
    ("group_sparse", "sparse"): {0.1: 0.013, 0.5: 0.012},
}
MADE = ("low_rank", "group_sparse")
#: What tables of the docs call them, and the epsilons that they show.
TITLES = {
    "school": "School",
    "exam": "Exam",
    "hsb82": "High school and beyond (Hsb82)",
    "star": "STAR",
    "chem97": "Chem97",
    "bdf": "bdf",
    "scotssec": "ScotsSec",
    "verbagg": "VerbAgg, log-loss",
    "chem97_high": "Chem97 score ≥ 8, log-loss",
    "contraception": "Contraception, log-loss",
    "landmine": "Landmine, log-loss",
    "radon": "Radon in houses",
    "immunization": "Immunized children, log-loss",
    "low_rank": "made, weights of rank 4",
    "group_sparse": "made, 4 features of 30 matter",
}
SHOWN = (0.1, 0.5, 1.0, 8.0)
STRUCTURES: dict[str, type[Structure]] = {"joint": Joint, "lowrank": Subspace, "sparse": Support}
Learner = Regression | Classification


@dataclass(frozen=True)
class Outcome:
    """One re-split: losses alone (0), without noise (infinity), by epsilon, of peers; tasks harmed."""

    loss: dict[float, float]
    harmed: dict[float, float]
    peer: dict[str, float] = field(default_factory=dict)


@lru_cache(maxsize=1)
def loaded(name: str) -> Dataset:
    """Load a table, with its built-in codebook."""
    if name in FILES:
        found: Dataset = getattr(datasets, f"load_{name}")(data_file(FILES[name]))
        return found
    return datasets.load(name)


@lru_cache(maxsize=1)
def table(name: str) -> tuple[Tasks, Learner]:
    """Return a table's rows, encoded, and the learner for them."""
    data = loaded(name)
    book = data.codebook
    tasks = Tasks.from_arrays(book.encode(data.X), book.encode_target(data.y), data.task)
    if isinstance(book.target, Numeric):
        return tasks, Regression(book.width)
    return tasks, Classification(book.width, len(book.target.levels))


def synthetic(name: str, seed: int) -> tuple[Tasks, Tasks]:
    """Draw a synthetic problem: training and test part, targets over their public bound."""
    made = getattr(datasets, name)(seed)

    def tasks(X: NDArray[np.float64], y: NDArray[np.float64], bound: float) -> Tasks:
        scaled = np.clip(y.ravel() / made.target_bound, -bound, bound)
        return Tasks.from_arrays(X.reshape(-1, X.shape[2]), scaled, np.repeat(np.arange(len(y)), y.shape[1]))

    return tasks(made.X_train, made.y_train, 1.0), tasks(made.X_test, made.y_test, math.inf)


def plan_for(
    learner: Learner, n_tasks: int, epsilon: float, structure: str = "joint", book: Codebook | None = None
) -> Plan:
    """Return the plan for an epsilon; 0 is every task alone, infinity is no noise.

    With a codebook, features are looked for, too.
    """
    if epsilon == 0:
        return Plan(Independent(learner), n_tasks=n_tasks)
    search = None
    if isinstance(learner, Regression) and learner.intercept:  # as the estimator does
        search = Locate() if book is None else Locate(book.bounded_columns, intercept=1 / book.row_scale)
    algorithm = SharedPrior(learner, STRUCTURES[structure](), search)
    if math.isinf(epsilon):
        return Plan(algorithm, NoNoise(), n_tasks=n_tasks)
    return Plan(algorithm, n_tasks=n_tasks).calibrate(epsilon)


def losses(plan: Plan, train: Tasks, test: Tasks, seed: int) -> tuple[float, NDArray[np.float64]]:
    """Run a plan; return the loss over all held-out rows, and each task's own."""
    coef = run_plan(plan, train, random_state=seed, engine=Local(1)).private.models["coef"]
    score = np.einsum("nd,nd->n", test.X, coef[owners(train, test)])
    each = row_losses(score, test, plan.algorithm.rows.target is not Target.NUMBER)
    return float(each.mean()), np.add.reduceat(each, test.offsets[:-1]) / test.sizes


def owners(train: Tasks, test: Tasks) -> NDArray[np.intp]:
    """Return the position among the training tasks of each test row's own."""
    return np.searchsorted(train.ids, np.repeat(test.ids, test.sizes))


def row_losses(score: NDArray[np.float64], test: Tasks, classes: bool) -> NDArray[np.float64]:
    """Return every row's log-loss from log-odds, or its squared error over the targets' variance."""
    if classes:
        return np.asarray(np.logaddexp(0.0, score) - test.y * score)
    return np.asarray(np.square(test.y - score) / test.y.var())


def peers(train: Tasks, test: Tasks, classes: bool, split: int) -> dict[str, float]:
    """Return the losses of scikit-learn on each task alone and of mixed models, as far as they are fitted."""
    slow = split < next((splits for tasks, splits in SLOW_SPLITS if len(train) < tasks), 0)
    found: dict[str, NDArray[np.float64] | None] = {}
    if not classes:
        own = np.repeat(np.arange(len(train)), train.sizes)
        found["scikit"] = alone_numbers(train.X[:, 1:], train.y, own, test.X[:, 1:], owners(train, test))
    elif slow:
        found["scikit"] = alone_log_odds(train, test)
    if mixed_models.available() and classes and slow:
        found["intercepts"] = mixed_models.log_odds(train, test)
    elif mixed_models.available() and not classes:
        found["intercepts"] = mixed_models.numbers(train, test)
        found["slopes"] = mixed_models.numbers(train, test, slopes=True) if slow else None
    return {
        name: float(row_losses(score, test, classes).mean())
        for name, score in found.items()
        if score is not None
    }


def alone_log_odds(train: Tasks, test: Tasks) -> NDArray[np.float64]:
    """Return log-odds by cross-validated logistic regression on each task's own rows."""
    score = np.empty(len(test.y))
    for k, start, stop in zip(
        np.searchsorted(train.ids, test.ids), test.offsets[:-1], test.offsets[1:], strict=True
    ):
        own = slice(train.offsets[k], train.offsets[k + 1])
        X, y = train.X[own, 1:], train.y[own].astype(np.intp)
        chances = np.log(alone_classes(X, y, test.X[start:stop, 1:], 2).clip(1e-12))
        score[start:stop] = chances[:, 1] - chances[:, 0]
    return score


def measure(job: tuple[str, str, int]) -> dict[str, dict[str, float]]:
    """Measure one re-split (or one draw) of one data set under one structure."""
    name, structure, split = job
    learner: Learner
    made = (name, structure) in MADE_FOR
    if made:
        train, test = synthetic(name, split)
        learner = Regression(train.X.shape[1], intercept=False)
    else:
        tasks, learner = table(name)
        train, test = tasks.split(test=0.3, seed=split)
    draws = DRAWS if len(train) < 1000 else 1
    alone, own = losses(plan_for(learner, len(train), 0.0), train, test, 0)
    classes = isinstance(learner, Classification)
    outcome = Outcome({0.0: alone}, {}, {} if made else peers(train, test, classes, split))
    for epsilon in (*EPSILONS, math.inf):
        plan = plan_for(learner, len(train), epsilon, structure, None if made else loaded(name).codebook)
        seeds = range(1000 * split, 1000 * split + (1 if math.isinf(epsilon) else draws))
        drawn = [losses(plan, train, test, seed) for seed in seeds]
        outcome.loss[epsilon] = fmean(loss for loss, _ in drawn)
        outcome.harmed[epsilon] = fmean(float((each > 1.05 * own).mean()) for _, each in drawn)
    return asdict(outcome)  # type: ignore[return-value]


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Tables]:
    """Measure every data set.

    Parameters
    ----------
    quick : bool
        Two re-splits of the small tables only.
    """
    splits = 2 if quick else 10
    missing = [name for name, file in FILES.items() if not quick and not data_file(file).exists()]
    sets = [(name, "joint") for name in (QUICK if quick else TABLES) if name not in missing]
    sets += [] if quick else list(MADE_FOR)
    found = measure_all(sets, splits, cells)
    figures = summarise(found)
    shown = tables(found)
    for name in missing:
        note = f"not measured: no {data_file(FILES[name])}, set CLOISTER_DATA"
        shown[NAME].append([TITLES[name], note] + [""] * (len(shown[NAME][0]) - 2))
    return figures, goals(quick), shown


def measure_all(
    sets: list[tuple[str, str]], splits: int, cells: Cells
) -> dict[tuple[str, str], list[Outcome]]:
    """Measure re-splits of several data sets, each under its structure."""
    jobs = [(name, structure, split) for name, structure in sets for split in range(splits)]
    found: dict[tuple[str, str], list[Outcome]] = {key: [] for key in sets}
    for (name, structure, _), value in zip(jobs, cells.measured(measure, jobs), strict=True):
        by_epsilon = [{float(e): x for e, x in value[part].items()} for part in ("loss", "harmed")]
        found[name, structure].append(Outcome(*by_epsilon, value["peer"]))
    return found


def gains(outcomes: list[Outcome], epsilon: float) -> list[float]:
    """Return the gain in percent of every re-split."""
    return [100 * (1 - outcome.loss[epsilon] / outcome.loss[0.0]) for outcome in outcomes]


def gains_over_scikit(outcomes: list[Outcome], epsilon: float) -> list[float]:
    """Return the gain in percent over scikit-learn alone, of every re-split on which that was fitted."""
    return [100 * (1 - o.loss[epsilon] / o.peer["scikit"]) for o in outcomes if "scikit" in o.peer]


def gains_of_peer(outcomes: list[Outcome], peer: str) -> list[float]:
    """Return the gain in percent of a peer over our single-task loss, of every re-split it was fitted to."""
    return [100 * (1 - o.peer[peer] / o.loss[0.0]) for o in outcomes if peer in o.peer]


def spread(values: list[float]) -> float:
    """Return the standard error of a mean; 0 for a single value."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def summarise(found: dict[tuple[str, str], list[Outcome]]) -> Figures:
    """Turn outcomes into figures."""
    figures: Figures = {}
    for (name, structure), outcomes in found.items():
        label = name if structure == "joint" else f"{name}_{structure}"
        for epsilon in (0.0, *EPSILONS, math.inf):
            values, gain = [o.loss[epsilon] for o in outcomes], gains(outcomes, epsilon)
            figures[f"{label}_loss_eps{epsilon:g}"] = fmean(values)
            if epsilon:
                figures[f"{label}_gain_eps{epsilon:g}"] = fmean(gain)
                figures[f"{label}_gain_se_eps{epsilon:g}"] = spread(gain)
                figures[f"{label}_harmed_eps{epsilon:g}"] = fmean(o.harmed[epsilon] for o in outcomes)
        if structure == "joint":
            lost = {epsilon: [o.loss[epsilon] for o in outcomes] for epsilon in (0.5, 1.0)}
            figures |= earlier_figures(name, lost)
        for peer in PEERS:
            if values := [o.peer[peer] for o in outcomes if peer in o.peer]:
                figures[f"{label}_loss_{peer}"] = fmean(values)
                figures[f"{label}_gain_{peer}"] = fmean(gains_of_peer(outcomes, peer))
        for epsilon in (0.0, *EPSILONS, math.inf):
            if over := gains_over_scikit(outcomes, epsilon):
                figures[f"{label}_gain_over_scikit_eps{epsilon:g}"] = fmean(over)
                figures[f"{label}_gain_over_scikit_se_eps{epsilon:g}"] = spread(over)
    for epsilon in (0.05, 0.1):
        joint = [fmean(gains(o, epsilon)) for (_, structure), o in found.items() if structure == "joint"]
        figures[f"worst_gain_eps{epsilon:g}"] = min(joint)
    return figures


def goals(quick: bool) -> Targets:
    """Return what the figures should be."""
    targets = earlier_goals(list(QUICK if quick else TABLES))
    targets |= {f"worst_gain_eps{epsilon:g}": (">=", -2.0) for epsilon in (0.05, 0.1)}
    if quick:
        return targets
    for (name, structure), most in MADE_FOR.items():
        label = name if structure == "joint" else f"{name}_{structure}"
        targets |= {f"{label}_loss_eps{epsilon:g}": ("<=", loss) for epsilon, loss in most.items()}
    return targets | {"landmine_gain_eps1": (">=", -1.0)}


def tables(found: dict[tuple[str, str], list[Outcome]]) -> Tables:
    """Return gains on real tables, losses everywhere, and other yardsticks; all epsilons are figures."""
    real = {name: outcomes for (name, structure), outcomes in found.items() if name not in MADE}
    shown = [f"ε = {SHOWN[0]:g}", *(f"{epsilon:g}" for epsilon in SHOWN[1:]), "no noise"]
    gained: Table = [["data", "tasks", "alone", *shown]]
    for name, outcomes in real.items():
        row = [f"{fmean(gains(outcomes, epsilon)):.1f}" for epsilon in (*SHOWN, math.inf)]
        row[SHOWN.index(1.0)] = mean(gains(outcomes, 1.0))
        gained.append([TITLES[name], str(len(table(name)[0])), loss(outcomes, 0.0), *row])
    lost: Table = [["data", "alone", *shown]]
    for (name, structure), outcomes in found.items():
        label = TITLES[name] + f", {structure}" * (name in MADE)
        lost.append([label, *(loss(outcomes, epsilon) for epsilon in (0.0, *SHOWN, math.inf))])
    by_epsilon = {
        name: (TITLES[name], {epsilon: [o.loss[epsilon] for o in outcomes] for epsilon in (0.0, 1.0)})
        for name, outcomes in real.items()
    }
    return {NAME: gained, "losses": lost, "earlier": comparison(by_epsilon), "beside": beside(real)}


def beside(real: dict[str, list[Outcome]]) -> Table:
    """Return what scikit-learn and mixed models do, and how many tasks are harmed."""
    head = [
        "data",
        "alone",
        "scikit-learn alone",
        "gain % over it, ε = 1",
        "mixed model: gain %",
        "with slopes",
    ]
    rows: Table = [[*head, "harmed, ε = 1 (no noise)"]]
    for name, outcomes in real.items():
        scikit = [o.peer["scikit"] for o in outcomes if "scikit" in o.peer]
        harmed = [f"{fmean(o.harmed[epsilon] for o in outcomes):.0%}" for epsilon in (1.0, math.inf)]
        rows.append(
            [
                TITLES[name],
                loss(outcomes, 0.0),
                f"{fmean(scikit):.4f}" if scikit else "",
                mean(gains_over_scikit(outcomes, 1.0)),
                *(mean(gains_of_peer(outcomes, peer)) for peer in PEERS[1:]),
                f"{harmed[0]} ({harmed[1]})",
            ]
        )
    return rows


def loss(outcomes: list[Outcome], epsilon: float) -> str:
    return f"{fmean(o.loss[epsilon] for o in outcomes):.4f}"


def mean(values: list[float]) -> str:
    return f"{fmean(values):.1f} ± {spread(values):.1f}" if values else ""
