"""What tasks of a stream get when they arrive and when it ends: linear regressions around one centre.

A thousand tasks join a `TaskStream` one by one, one a round, each with 10 rows in 30 dimensions; relation
replace, default delta, seeded noise, the setting of `papers.meta.learning` as it is. The figures are mean
squared errors on 10 further rows of each task (noise alone is 0.01) over three seeds of data and noise: of
the tasks of each quarter at their arrival, and of all tasks at the end. Alone is the best pull to zero in
hindsight; a choice at home is `ChooseAtHome`, between the stream and a regression of one's own.
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np

from benchmarks import Figures, Table, Targets
from benchmarks.meta import PULLS
from cloister import Plan, Tasks
from cloister.algorithms import ChooseAtHome
from cloister.core.arrays import Floats
from cloister.datasets import around_centres
from cloister.engines import TaskStream
from cloister.learners import Convex, ExactSolver, LeastSquares, Quadratic, Regression
from cloister.mechanisms import Gaussian, NoNoise, Toeplitz
from cloister.plan.algorithm import Algorithm
from cloister.privacy.mechanisms import Mechanism
from cloister.sampling import InOrder
from papers.meta.learning import SETTING

NAME = "arrivals"
#: Noise, epsilon, and whether tasks choose at home.
CELLS = (
    *((mechanism, epsilon, False) for epsilon in (1.0, 3.0, 10.0) for mechanism in (Gaussian(), Toeplitz())),
    (Gaussian(), 1.0, True),
    (Toeplitz(), 1.0, True),
    (NoNoise(), math.inf, False),
)
DIM, ROWS = 30, 10


def alone(X: Floats, y: Floats) -> float:
    """Return the error of tasks that learn from their own rows, at the best of some pulls to zero."""
    learner, zero = Convex(LeastSquares(DIM)), np.zeros(DIM)
    block = next(Tasks.from_list(list(X[:, :ROWS]), list(y[:, :ROWS])).blocks([np.arange(len(X))]))
    start = learner.spread(zero, block)
    coefs = [learner.descend(start, block, ExactSolver(), 0, zero, Quadratic(lam)) for lam in PULLS]
    return min(float(np.mean(errors(coef, X, y))) for coef in coefs)


def errors(coef: Floats, X: Floats, y: Floats) -> Floats:
    """Return the mean squared error of each task's model on its further rows."""
    left = y[:, ROWS:] - np.einsum("tnd,td->tn", X[:, ROWS:], coef)
    return np.asarray((left**2).mean(axis=1))


def joined(plan: Plan, X: Floats, y: Floats, seed: int) -> tuple[Floats, Floats, float]:
    """Let all tasks join; return their errors at arrival and at the end, and the seconds of a join."""
    stream, began = TaskStream(plan, random_state=seed), time.process_time()
    first = [stream.join(i, X[i, :ROWS], y[i, :ROWS])["coef"] for i in range(len(X))]
    seconds = (time.process_time() - began) / len(X)
    last = [stream.model(i, X[i, :ROWS], y[i, :ROWS])["coef"] for i in range(len(X))]
    return errors(np.array(first), X, y), errors(np.array(last), X, y), seconds


def planned(mechanism: Mechanism, epsilon: float, choice: bool, tasks: int) -> Plan:
    algorithm: Algorithm = SETTING.stream(DIM, tasks)
    if choice:
        algorithm = ChooseAtHome(algorithm, Regression(DIM, intercept=False))
    plan = Plan(algorithm, mechanism, InOrder(), n_tasks=tasks)
    return plan if math.isinf(epsilon) else plan.calibrate(epsilon)


def cell(plan: Plan, seeds: range) -> tuple[Floats, Floats]:
    """Return, seed by seed, the errors of each quarter at arrival and of all at the end; and the seconds."""
    tasks, found, took = plan.n_tasks, [], []
    for seed in seeds:
        data = around_centres(seed, tasks, rows=2 * ROWS, centres=1).train
        X, y = data.X.reshape(tasks, 2 * ROWS, DIM), data.y.reshape(tasks, 2 * ROWS)
        arrived, ended, seconds = joined(plan, X, y, seed)
        quarters = arrived.reshape(4, -1).mean(axis=1)
        found.append([*quarters, ended.mean(), alone(X, y)])
        took.append(seconds)
    return np.array(found), np.array(took)


def run(quick: bool) -> tuple[Figures, Targets, Table]:
    """Measure every mechanism and epsilon.

    Parameters
    ----------
    quick : bool
        200 tasks and one seed.
    """
    tasks, seeds = (200, range(1)) if quick else (1000, range(3))
    figures: Figures = {}
    quarters = ["first quarter, at arrival", "second", "third", "last", "all, at the end"]
    rows: Table = [["noise", "ε", *quarters, "alone"]]
    for mechanism, epsilon, choice in CELLS:
        found, took = cell(planned(mechanism, epsilon, choice, tasks), seeds)
        label = type(mechanism).__name__ + choice * ", choice at home"
        name = f"{type(mechanism).__name__.lower()}_eps{epsilon:g}" + choice * "_choice"
        mean, spread = found.mean(axis=0), found.std(axis=0)
        figures |= {f"last_quarter_{name}": mean[3], f"end_{name}": mean[4], "alone": mean[5]}
        figures[f"seconds_a_join_{name}"] = float(took.mean())
        cells = [f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread, strict=True)]
        rows.append([label, "∞" if math.isinf(epsilon) else f"{epsilon:g}", *cells])
        print(rows[-1], file=sys.stderr)
    return figures, {}, rows
