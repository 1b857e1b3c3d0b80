"""How much tasks gain by sharing a prior, against learning alone: eleven real tables, two synthetic ones.

Rows of each task are split 70/30 again and again; nMSE (log-loss where the target is a class) on the rows
held out, relation replace, default delta, seeded noise. A gain is 1 - loss / single-task loss, in percent,
averaged over re-splits, with its standard error. A task counts as harmed if its own held-out loss is more
than 5 % worse than alone; on so few rows that is mostly luck, so the non-private share stands beside it.
"""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from benchmarks import Figures, Table, Targets, data_file, track
from cloister import Plan, Tasks, datasets
from cloister import run as run_plan
from cloister.algorithms import Independent, Joint, SharedPrior, Subspace, Support
from cloister.algorithms.structures import Structure
from cloister.engines.local import Local
from cloister.learners import Classification, Regression
from cloister.mechanisms import NoNoise
from cloister.tables.codebook import Numeric

NAME = "prior-accuracy"

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
#: Gain in percent that is expected at epsilon .5 and 1.
GAINS = {
    "school": (2.5, 4.0),
    "exam": (3.5, 5.0),
    "hsb82": (4.5, 5.0),
    "star": (4.0, 4.5),
    "chem97": (30.0, 30.0),
    "bdf": (28.0, 32.0),
    "scotssec": (17.0, 19.0),
    "verbagg": (5.0, 6.5),
    "chem97_high": (26.0, 26.0),
}
#: Structures with data made for them: at these epsilons, this nMSE at most.
MADE_FOR = {
    ("low_rank", "joint"): {1.0: 0.053},
    ("low_rank", "lowrank"): {0.5: 0.070, 1.0: 0.039, 5.0: 0.018},
    ("group_sparse", "sparse"): {0.1: 0.013, 0.5: 0.012},
}
STRUCTURES: dict[str, type[Structure]] = {"joint": Joint, "lowrank": Subspace, "sparse": Support}
Learner = Regression | Classification


@dataclass(frozen=True)
class Outcome:
    """One re-split: losses alone (epsilon 0), without noise (infinity) and by epsilon; tasks harmed."""

    loss: dict[float, float]
    harmed: dict[float, float]


@lru_cache(maxsize=1)
def table(name: str) -> tuple[Tasks, Learner]:
    """Load a table, encoded by its built-in codebook, and the learner for it."""
    if name in FILES:
        data = getattr(datasets, f"load_{name}")(data_file(FILES[name]))
    else:
        data = datasets.load(name)
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


def plan_for(learner: Learner, n_tasks: int, epsilon: float, structure: str = "joint") -> Plan:
    """Return the plan for an epsilon; 0 is every task alone, infinity is no noise."""
    if epsilon == 0:
        return Plan(Independent(learner), n_tasks=n_tasks)
    algorithm = SharedPrior(learner, STRUCTURES[structure]())
    if math.isinf(epsilon):
        return Plan(algorithm, NoNoise(), n_tasks=n_tasks)
    return Plan(algorithm, n_tasks=n_tasks).calibrate(epsilon)


def losses(plan: Plan, train: Tasks, test: Tasks, seed: int) -> tuple[float, NDArray[np.float64]]:
    """Run a plan; return the loss over all held-out rows, and each task's own."""
    coef = run_plan(plan, train, random_state=seed, engine=Local(1)).private.models["coef"]
    owner = np.searchsorted(train.ids, np.repeat(test.ids, test.sizes))
    score = np.einsum("nd,nd->n", test.X, coef[owner])
    if isinstance(plan.algorithm.learner, Classification):
        each, unit = np.logaddexp(0.0, score) - test.y * score, 1.0
    else:
        each, unit = np.square(test.y - score), float(test.y.var())
    return float(each.mean()) / unit, np.add.reduceat(each, test.offsets[:-1]) / test.sizes / unit


def measure(job: tuple[str, str, int]) -> tuple[str, str, Outcome]:
    """Measure one re-split (or one draw) of one data set under one structure."""
    name, structure, split = job
    learner: Learner
    if name in TABLES:
        tasks, learner = table(name)
        train, test = tasks.split(test=0.3, seed=split)
    else:
        train, test = synthetic(name, split)
        learner = Regression(train.X.shape[1], intercept=False)
    draws = DRAWS if len(train) < 1000 else 1
    alone, own = losses(plan_for(learner, len(train), 0.0), train, test, 0)
    outcome = Outcome({0.0: alone}, {})
    for epsilon in (*EPSILONS, math.inf):
        plan = plan_for(learner, len(train), epsilon, structure)
        seeds = range(1000 * split, 1000 * split + (1 if math.isinf(epsilon) else draws))
        drawn = [losses(plan, train, test, seed) for seed in seeds]
        outcome.loss[epsilon] = fmean(loss for loss, _ in drawn)
        outcome.harmed[epsilon] = fmean(float((each > 1.05 * own).mean()) for _, each in drawn)
    return name, structure, outcome


def run(quick: bool) -> tuple[Figures, Targets, Table]:
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
    jobs = [(name, structure, split) for name, structure in sets for split in range(splits)]
    found: dict[tuple[str, str], list[Outcome]] = {key: [] for key in sets}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for name, structure, outcome in track(pool.map(measure, jobs), len(jobs), NAME):
            found[name, structure].append(outcome)
    figures = summarise(found)
    rows = [header()] + [row(*key, outcomes) for key, outcomes in found.items()]
    for name in missing:
        note = f"not measured: no {data_file(FILES[name])}, set CLOISTER_DATA"
        rows.append([name, note] + [""] * (len(rows[0]) - 2))
    return figures, goals(quick), rows


def gains(outcomes: list[Outcome], epsilon: float) -> list[float]:
    """Return the gain in percent of every re-split."""
    return [100 * (1 - outcome.loss[epsilon] / outcome.loss[0.0]) for outcome in outcomes]


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
                figures[f"{label}_gain_se_eps{epsilon:g}"] = stdev(gain) / math.sqrt(len(gain))
                figures[f"{label}_harmed_eps{epsilon:g}"] = fmean(o.harmed[epsilon] for o in outcomes)
    for epsilon in (0.05, 0.1):
        joint = [fmean(gains(o, epsilon)) for (_, structure), o in found.items() if structure == "joint"]
        figures[f"worst_gain_eps{epsilon:g}"] = min(joint)
    return figures


def goals(quick: bool) -> Targets:
    """Return what the figures should be."""
    targets: Targets = {}
    for name, (half, one) in GAINS.items():
        if not quick or name in QUICK:
            targets |= {f"{name}_gain_eps1": (">=", one), f"{name}_gain_eps0.5": (">=", half)}
    targets |= {f"worst_gain_eps{epsilon:g}": (">=", -2.0) for epsilon in (0.05, 0.1)}
    if quick:
        return targets
    for (name, structure), most in MADE_FOR.items():
        label = name if structure == "joint" else f"{name}_{structure}"
        targets |= {f"{label}_loss_eps{epsilon:g}": ("<=", loss) for epsilon, loss in most.items()}
    return targets | {"landmine_gain_eps1": (">=", -1.0)}


def header() -> list[str]:
    """Return the names of the table's columns."""
    shown = [f"eps {epsilon:g}: loss, gain %" for epsilon in (0.5, 1.0)]
    gain_only = [f"gain % {epsilon:g}" for epsilon in EPSILONS if epsilon not in (0.5, 1.0)]
    return ["data", "alone", "no noise", *shown, *gain_only, "harmed eps 1 (no noise)"]


def row(name: str, structure: str, outcomes: list[Outcome]) -> list[str]:
    """Return one data set's row."""

    def loss(epsilon: float) -> str:
        return f"{fmean(o.loss[epsilon] for o in outcomes):.4f}"

    def gain(epsilon: float) -> str:
        values = gains(outcomes, epsilon)
        return f"{fmean(values):.1f}±{stdev(values) / math.sqrt(len(values)):.1f}"

    harmed = [f"{fmean(o.harmed[epsilon] for o in outcomes):.0%}" for epsilon in (1.0, math.inf)]
    shown = [f"{loss(epsilon)} {gain(epsilon)}" for epsilon in (math.inf, 0.5, 1.0)]
    rest = [gain(epsilon) for epsilon in EPSILONS if epsilon not in (0.5, 1.0)]
    label = name if structure == "joint" else f"{name}, {structure}"
    return [label, loss(0.0), *shown, *rest, f"{harmed[0]} ({harmed[1]})"]
