"""How long a shared prior over 100,000 tasks takes, how much memory, and how both grow.

Regression on tasks of 30 rows and 30 features, targets located, mean and covariance shared at epsilon 1, as
estimators do it; each size is fitted in a process of its own, data included in its memory. The stage in which
every task solves one ridge regression is timed against scikit-learn's Ridge in a loop, in turns, both on one
thread. The whole fit of 100,000 tasks is compared with as many of these, by processor seconds.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time

import numpy as np

from benchmarks import Figures, Table, Targets
from cloister import Plan, Tasks
from cloister import run as run_plan
from cloister.algorithms import Locate, SharedPrior
from cloister.core.tasks import Block
from cloister.learners import Regression
from cloister.learners.linear.ridge import summary
from harness.cells import track

NAME = "prior-scale"
PATHS = (
    "src/cloister/algorithms/prior",
    "src/cloister/algorithms/locate.py",
    "src/cloister/algorithms/staged.py",
    "src/cloister/learners/home.py",
    "src/cloister/learners/linear",
)

ROWS = DIM = 30
SIZES = (12_500, 25_000, 50_000, 100_000)
QUICK_SIZES = (1_000, 2_000, 4_000)


def make(n_tasks: int, seed: int = 0) -> Tasks:
    """Draw tasks whose weights scatter around a common mean; rows of unit length, an intercept first."""
    rng = np.random.default_rng(seed)
    X = rng.random((n_tasks * ROWS, DIM))
    X -= 0.5
    X *= 1.7 / math.sqrt(DIM)  # rows are about of unit length
    X[:, 0] = 1 / math.sqrt(DIM)
    y = 0.05 * rng.standard_normal(len(X))
    weights = 0.2 * (rng.standard_normal(DIM) + 0.5 * rng.standard_normal((n_tasks, DIM)))
    y += np.einsum("tnd,td->tn", X.reshape(n_tasks, ROWS, DIM), weights).ravel()
    return Tasks.from_arrays(X, np.clip(y, -1, 1, out=y), np.repeat(np.arange(n_tasks), ROWS))


def fit(n_tasks: int) -> dict[str, float]:
    """Fit so many tasks; return wall and processor seconds, and the peak memory of this process in GB."""
    tasks = make(n_tasks)
    start, used = time.perf_counter(), time.process_time()
    plan = Plan(SharedPrior(Regression(DIM), locate=Locate()), n_tasks=n_tasks).calibrate(epsilon=1.0)
    run_plan(plan, tasks, random_state=0)
    wall, used = time.perf_counter() - start, time.process_time() - used
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return {"seconds": wall, "cpu_seconds": used, "memory_gb": kilobytes * 1024 / 1e9}


def ridge(n_tasks: int, turns: int = 4) -> dict[str, float]:
    """Return microseconds a task for one ridge regression: ours, and scikit-learn's in a loop."""
    from sklearn.linear_model import Ridge
    from threadpoolctl import threadpool_limits

    learner, point = Regression(DIM), np.zeros(DIM)
    blocks = list(make(n_tasks).blocks())
    size = sum(map(len, blocks))
    ours = loop = gap = 0.0
    with threadpool_limits(limits=1):
        for turn in range(turns):
            start = time.perf_counter()
            found = [_ridge(block, learner.ridge, point) for block in blocks]
            ours += time.perf_counter() - start
            block, some = blocks[turn % len(blocks)], slice(0, n_tasks // turns)
            start = time.perf_counter()
            models = [
                Ridge(alpha=learner.ridge, fit_intercept=False).fit(X, y)
                for X, y in zip(block.X[some], block.y[some], strict=True)
            ]
            loop += (time.perf_counter() - start) / len(models)
            coef = np.stack([model.coef_ for model in models])
            gap = max(gap, float(np.abs(coef - found[turn % len(blocks)][some]).max()))
    return {"ours": 1e6 * ours / size / turns, "loop": 1e6 * loop / turns, "gap": gap}


def _ridge(block: Block, ridge: float, point: np.ndarray) -> np.ndarray:
    """Solve for every task, as it does to say where its weights lie."""
    stats = summary(block.X, block.y, block.weight)
    return stats.offset(ridge, point)


def apart(what: str, n_tasks: int) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.prior_scale", what, str(n_tasks)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ))
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def slope(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """Return the power of the number of tasks with which time grows."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def run(quick: bool) -> tuple[Figures, Targets, Table]:
    """Fit at every size.

    Parameters
    ----------
    quick : bool
        A few thousand tasks; time and memory of 100,000 are then not measured.
    """
    sizes = QUICK_SIZES if quick else SIZES
    jobs = [("ridge", 4_000), *(("fit", size) for size in sizes)]
    alone, *fits = [apart(*job) for job in track(jobs, len(jobs), NAME)]
    figures = {
        "ridge_us": alone["ours"],
        "sklearn_ridge_us": alone["loop"],
        "ridge_times_faster": alone["loop"] / alone["ours"],
        "ridge_largest_difference": alone["gap"],
        "slope": slope(sizes, [found["seconds"] for found in fits]),
        "cpu_slope": slope(sizes, [found["cpu_seconds"] for found in fits]),  # others' load does not count
    }
    if not quick:
        figures |= {f"fit_100k_{key}": value for key, value in fits[-1].items()}
        figures["fit_100k_over_sklearn_ridges"] = fits[-1]["cpu_seconds"] / (sizes[-1] * 1e-6 * alone["loop"])
    targets: Targets = {
        "ridge_times_faster": (">=", 15.0),
        "ridge_largest_difference": ("<=", 1e-8),
        "slope": ("<=", 1.1),
        "fit_100k_over_sklearn_ridges": ("<=", 2.5),
        "fit_100k_memory_gb": ("<", 6.0),
    }
    rows = [["tasks", "seconds", "processor seconds", "us a task", "peak memory GB"]]
    for size, found in zip(sizes, fits, strict=True):
        wall, used, memory = found["seconds"], found["cpu_seconds"], found["memory_gb"]
        rows.append([f"{size:,}", f"{wall:.1f}", f"{used:.1f}", f"{1e6 * wall / size:.0f}", f"{memory:.2f}"])
    return figures, targets, rows


if __name__ == "__main__":
    print(json.dumps({"fit": fit, "ridge": ridge}[sys.argv[1]](int(sys.argv[2]))))
