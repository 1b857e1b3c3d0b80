"""How long the covariance family takes: trace norm on School, 100 rounds of 320 tasks, memory of 100,000.

Trace norm on School (30 % of the rows, of unit length, targets over 70; lam is 10 for summed losses of the
unscaled targets) runs without noise for a fixed number of rounds; how far it stays from the converged
objective is measured afterwards. Times are compared with those of as many rounds of accelerated proximal
gradient written out in NumPy, in the same run, both on one thread. Memory is that of a process of its own,
data taken off: it should be a small multiple of tasks times features, whatever the rounds.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import Figures, Table, Targets
from cloister import Plan, Tasks
from cloister import run as run_plan
from cloister.algorithms import LowRank
from cloister.datasets import synthetic
from cloister.engines import Local
from cloister.learners import LeastSquares
from cloister.mechanisms import NoNoise
from harness.sources import data_file

NAME = "covariance-speed"
PATHS = (
    "src/cloister/algorithms/covariance.py",
    "src/cloister/engines/local.py",
)
DATA = ("school.npz",)

DIM, ROWS = 30, 10
# 10 / 70, over about 33 rows a school
SCHOOL_LAM, SCHOOL_ROUNDS, CONVERGED = 0.0043, 600, 6_000


def school() -> Tasks:
    """Return 30 % of every school's pupils, rows of unit length."""
    with np.load(data_file("school.npz")) as data:
        X, y, task = data["X"].astype(float), data["y"].astype(float), data["task"]
    X[:, 3:5] /= 100
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return Tasks.from_arrays(X, y / 70, task).split(test=0.7, seed=0)[0]


def objective(weights: np.ndarray, tasks: Tasks, lam: float) -> float:
    """Return the printed objective: the tasks' mean losses, plus lam times the trace norm."""
    owner = np.repeat(np.arange(len(tasks)), tasks.sizes)
    square = 0.5 * (tasks.y - np.einsum("nd,nd->n", tasks.X, weights[owner])) ** 2
    return float((np.bincount(owner, square) / tasks.sizes).sum() + lam * np.linalg.norm(weights, "nuc"))


def solve(tasks: Tasks, rounds: int) -> tuple[float, float]:
    """Run trace-norm multi-task learning without noise; return CPU seconds on one core and the objective."""
    loss = LeastSquares(tasks.X.shape[1])
    algorithm = LowRank(loss, lam=SCHOOL_LAM, clip=1e3, rounds=rounds, warmup=0, lr=1.1)
    start = time.process_time()
    done = run_plan(Plan(algorithm, NoNoise(), n_tasks=len(tasks)), tasks, engine=Local(threads=1))
    return time.process_time() - start, objective(done.private.models["coef"], tasks, SCHOOL_LAM)


def plain(tasks: Tasks, lam: float, rounds: int) -> float:
    """Return CPU seconds of as many rounds of accelerated proximal gradient, without the library."""
    start = time.process_time()
    rows = [slice(*ends) for ends in zip(tasks.offsets[:-1], tasks.offsets[1:], strict=True)]
    gram = np.stack([tasks.X[own].T @ tasks.X[own] / len(tasks.X[own]) for own in rows])
    moment = np.stack([tasks.X[own].T @ tasks.y[own] / len(tasks.X[own]) for own in rows])
    weights = ahead = np.zeros_like(moment)
    for t in range(1, rounds + 1):
        left, values, right = np.linalg.svd(
            ahead - np.einsum("tde,te->td", gram, ahead) + moment, full_matrices=False
        )
        before, weights = weights, left * np.maximum(values - lam, 0.0) @ right
        ahead = weights + (t - 1) / (t + 2) * (weights - before)
    return time.process_time() - start


def memory(n_tasks: int) -> float:
    """Return the bytes a run of so many tasks needs beyond its data, over those of one model a task."""
    rng = np.random.default_rng(0)
    X = rng.random((n_tasks * ROWS, DIM)) / DIM**0.5
    tasks = Tasks.from_arrays(X, rng.uniform(-1, 1, len(X)), np.repeat(np.arange(n_tasks), ROWS))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan = Plan(LowRank(LeastSquares(DIM), rounds=10, warmup=5), n_tasks=n_tasks).calibrate(epsilon=1.0)
    run_plan(plan, tasks, random_state=0)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * (after - before) / (8 * n_tasks * DIM)


def run(quick: bool) -> tuple[Figures, Targets, Table]:
    """Time and weigh.

    Parameters
    ----------
    quick : bool
        10,000 tasks instead of 100,000.
    """
    made = synthetic.low_rank(0)
    tasks = Tasks.from_list(list(made.X_train), list(made.y_train / made.target_bound))
    plan = Plan(LowRank(LeastSquares(DIM), lam=0.02, clip=1.5, rounds=100), n_tasks=len(tasks)).calibrate(1.0)
    with threadpool_limits(limits=1):
        start = time.process_time()
        run_plan(plan, tasks, random_state=0, engine=Local(threads=1))
        figures: Figures = {"low_rank_100_rounds_s": time.process_time() - start}
        figures["low_rank_over_plain"] = figures["low_rank_100_rounds_s"] / plain(tasks, 0.02, 100)
    targets: Targets = {"low_rank_over_plain": ("<=", 5.0), "memory_models": ("<=", 40.0)}
    command = [sys.executable, "-m", "benchmarks.covariance_speed", str(10_000 if quick else 100_000)]
    figures["memory_models"] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    if data_file("school.npz").exists():
        solve(school(), 5)  # imports and caches
        with threadpool_limits(limits=1):
            figures["school_trace_norm_s"], reached = min(solve(school(), SCHOOL_ROUNDS) for _ in range(3))
            reference = min(plain(school(), SCHOOL_LAM, SCHOOL_ROUNDS) for _ in range(3))
            figures["school_trace_norm_over_plain"] = figures["school_trace_norm_s"] / reference
            best = min(reached, solve(school(), CONVERGED)[1])
        figures["school_gap"] = (reached - best) / best
        targets |= {"school_trace_norm_over_plain": ("<=", 2.0), "school_gap": ("<=", 1e-6)}
    rows = [["figure", "measured"], *([name, f"{value:.4g}"] for name, value in figures.items())]
    return figures, targets, rows


if __name__ == "__main__":
    sys.stdout.write(json.dumps(memory(int(sys.argv[1]))))
