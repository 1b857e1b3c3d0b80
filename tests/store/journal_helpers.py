"""What tests of journals share: a small run, and ways to stop it."""

from __future__ import annotations

import numpy as np

from cloister import Plan, Tasks
from cloister.algorithms import MeanRegularized
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian
from cloister.sampling import Poisson

M = 12
PLAN = Plan(
    MeanRegularized(LeastSquares(3), rounds=4, steps=2, batch=2),
    Gaussian(0.5),
    Poisson(0.6),
    n_tasks=M,
    delta=1e-2,
)


def make_tasks(seed=0):
    rng = np.random.default_rng(seed)
    ids = np.repeat([f"t{i:02d}" for i in range(M)], rng.integers(1, 6, M))
    X = rng.uniform(-0.5, 0.5, (len(ids), 3))
    return Tasks.from_arrays(X, X.sum(axis=1), ids)


TASKS = make_tasks()


class Stopped(Exception):
    pass


def stop_after(rounds):
    def progress(posted):
        if posted.done == rounds:
            raise Stopped

    return progress


def names(folder):
    return {path.name for path in folder.iterdir()}
