"""Many features: what a shared prior gives at 30, 100 and 300 of them, and how long it takes.

1000 tasks of 60 rows whose weights lie in a common subspace of rank 4; rows of unit length, relation replace,
default delta, seeded noise. The nMSE is exact, from the weights that made the data, noise of the targets
included. With 300 features a task has a fifth as many rows, and the covariance has 45,150 numbers.
"""

from __future__ import annotations

import math
import time
from statistics import fmean, stdev

import numpy as np

from benchmarks import Figures, Table, Targets
from cloister import Plan, Tasks
from cloister import run as run_plan
from cloister.algorithms import Independent, Joint, SharedPrior, Subspace
from cloister.core.arrays import Floats
from cloister.engines import Local
from cloister.learners import Regression
from cloister.mechanisms import NoNoise
from harness.cells import track

NAME = "wide"

TASKS, ROWS, RANK, SEEDS = 1000, 60, 4, 3
DIMS = (30, 100, 300)
#: Of the targets in [-1, 1], as in the synthetic data of the other benchmarks.
SIGNAL, NOISE = math.sqrt(113.0) / 50, 1 / 50
METHODS: tuple[tuple[str, type[Joint] | type[Subspace] | None, float], ...] = (
    ("alone", None, 0.0),
    ("subspace_eps1", Subspace, 1.0),
    ("subspace_eps8", Subspace, 8.0),
    ("subspace_no_noise", Subspace, math.inf),
    ("auto_eps1", Joint, 1.0),
    ("auto_eps8", Joint, 8.0),
    ("auto_no_noise", Joint, math.inf),
)


def make(dim: int, n_tasks: int, seed: int) -> tuple[Tasks, Floats]:
    """Draw tasks and the weights that made them."""
    rng = np.random.default_rng([seed, dim])
    mix = rng.normal(size=(n_tasks, RANK))
    weights = SIGNAL * (mix / np.linalg.norm(mix, axis=1, keepdims=True)) @ rng.normal(size=(RANK, dim))
    X = rng.normal(size=(n_tasks, ROWS, dim))
    X /= np.linalg.norm(X, axis=2, keepdims=True)
    y = (X @ weights[..., None])[..., 0] + NOISE * rng.normal(size=(n_tasks, ROWS))
    owner = np.repeat(np.arange(n_tasks), ROWS)
    return Tasks.from_arrays(X.reshape(-1, dim), np.clip(y.ravel(), -1, 1), owner), weights


def plan_for(dim: int, n_tasks: int, structure: type[Joint] | type[Subspace] | None, epsilon: float) -> Plan:
    """Return the plan of a method."""
    learner = Regression(dim, intercept=False)
    if structure is None:
        return Plan(Independent(learner), n_tasks=n_tasks)
    algorithm = SharedPrior(learner, structure())
    if math.isinf(epsilon):
        return Plan(algorithm, NoNoise(), n_tasks=n_tasks)
    return Plan(algorithm, n_tasks=n_tasks).calibrate(epsilon)


def measure(dim: int, n_tasks: int, seed: int) -> dict[str, tuple[float, float]]:
    """Return every method's nMSE and its seconds, on one draw."""
    tasks, weights = make(dim, n_tasks, seed)
    power = np.square(weights).sum(axis=1).mean() / dim + NOISE**2
    found = {}
    for label, structure, epsilon in METHODS:
        plan = plan_for(dim, n_tasks, structure, epsilon)
        start = time.process_time()
        coef = run_plan(plan, tasks, random_state=seed, engine=Local(threads=1)).private.models["coef"]
        seconds = time.process_time() - start
        error = np.square(coef - weights).sum(axis=1).mean() / dim + NOISE**2
        found[label] = (float(error / power), seconds)
    return found


def run(quick: bool) -> tuple[Figures, Targets, Table]:
    """Measure every width.

    Parameters
    ----------
    quick : bool
        300 tasks, up to 100 features, one draw; too few tasks for the targets, which are left out.
    """
    dims, n_tasks, seeds = ((30, 100), 300, 1) if quick else (DIMS, TASKS, SEEDS)
    jobs = [(dim, n_tasks, seed) for dim in dims for seed in range(seeds)]
    figures: Figures = {}
    shown = (label.replace("_", " ").replace("eps", "ε = ") for label, _, _ in METHODS)
    rows = [["features", *shown, "slowest fit, processor s"]]
    drawn = list(track((measure(*job) for job in jobs), len(jobs), NAME))
    for dim in dims:
        found = [one for one, job in zip(drawn, jobs, strict=True) if job[0] == dim]
        cells = []
        for label, _, _ in METHODS:
            losses, seconds = zip(*(one[label] for one in found), strict=True)
            spread = stdev(losses) if len(losses) > 1 else 0.0
            figures |= {f"{label}_d{dim}": fmean(losses), f"{label}_d{dim}_sd": spread}
            figures[f"{label}_d{dim}_cpu_s"] = fmean(seconds)
            cells.append(f"{fmean(losses):.4f} ± {spread:.4f}")
        slowest = max(figures[f"{label}_d{dim}_cpu_s"] for label, _, _ in METHODS)
        rows.append([str(dim), *cells, f"{slowest:.1f}"])
    return figures, {} if quick else goals(), rows


def goals() -> Targets:
    """Return what the figures should be: earlier one-draw measurements at 100 features, rounded up."""
    return {
        "subspace_eps1_d100": ("<=", 0.055),
        "subspace_eps8_d100": ("<=", 0.017),
        "auto_eps1_d100": ("<=", 0.062),
        "auto_eps8_d100": ("<=", 0.021),
    }
