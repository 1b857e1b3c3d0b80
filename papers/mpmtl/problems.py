"""The data of MP-MTL's trade-offs between privacy and accuracy: two simulations, School, and LSOA II."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cloister import Plan, Tasks, datasets, run
from cloister.core.arrays import Floats
from cloister.datasets.own_tables import load_lsoa
from cloister.engines import Local
from cloister.learners import Classification, LeastSquares, Logistic, Regression
from cloister.mechanisms import Gaussian
from cloister.metrics import average_auc
from harness.sources import data_file
from papers.figure import Options, Skipped
from papers.mpmtl.wishart import paper_delta

Setting = dict[str, Any]

DATA = ("school.npz",)


@dataclass(frozen=True, eq=False)
class Problem:
    """Training and test part, and what is public about them: a step size and a radius K for models.

    Targets are numbers, or 0 and 1 if it is `binary`: losses are logistic then.
    """

    train: Tasks
    test: Tasks
    lr: float
    clip: float
    binary: bool = False

    @property
    def dim(self) -> int:
        """Number of features."""
        return int(self.train.X.shape[1])

    @property
    def delta(self) -> float:
        """The paper's choice, 1 / (m log m)."""
        return paper_delta(len(self.train))

    @property
    def loss(self) -> LeastSquares | Logistic:
        return Logistic(self.dim) if self.binary else LeastSquares(self.dim)

    @property
    def learner(self) -> Regression | Classification:
        """What a shared prior learns with."""
        return (Classification if self.binary else Regression)(self.dim, intercept=False)

    def score(self, weights: Floats) -> float:
        """Return the mean squared error over all test rows, over the targets' variance (nMSE).

        Of binary targets it is 1 less the mean over tasks of the area under the ROC curve (aAUC).
        """
        names = np.repeat(self.test.ids, self.test.sizes)
        found = np.einsum("nd,nd->n", self.test.X, weights[np.searchsorted(self.train.ids, names)])
        if self.binary:
            return 1 - float(average_auc(self.test.y, found, names))
        return float(np.square(self.test.y - found).mean() / self.test.y.var())

    def plan(self, algorithm: Any, mechanism: Any = None) -> Plan:
        """Return a plan for these tasks, with Gaussian noise to be calibrated unless told."""
        return Plan(algorithm, mechanism or Gaussian(), n_tasks=len(self.train), delta=self.delta)

    def run(self, plan: Plan, seed: int = 0) -> Floats:
        """Run a plan on the training part; return the weights."""
        found: Floats = run(plan, self.train, random_state=seed, engine=Local(1)).private.models["coef"]
        return found

    def validated(self, grid: Sequence[Any], fit: Callable[[Problem, Any], Floats]) -> Floats:
        """Choose among settings by a fifth of the training rows, unpaid, and fit again with all of them."""
        if len(grid) == 1:
            return fit(self, grid[0])
        rest, held = self.train.split(test=0.2, seed=0)
        inner = replace(self, train=rest, test=held)
        return fit(self, min(grid, key=lambda setting: inner.score(fit(inner, setting))))


def load(name: str, seed: int, percent: int = 30, options: Options | None = None) -> Problem:
    """Draw a simulation, or split rows of real tasks: so many percent of each task's are for training."""
    if name == "lsoa":
        train, test = lsoa((options or Options()).path("lsoa")).split(test=1 - percent / 100, seed=seed)
        return Problem(train, test, lr=4.0, clip=5.0, binary=True)
    if name == "school":
        with np.load(school(), allow_pickle=False) as file:
            X, y, task = np.asarray(file["X"], dtype=float), np.asarray(file["y"], dtype=float), file["task"]
        X[:, 3:5] /= 100
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        train, test = Tasks.from_arrays(X, y / 70, task).split(test=1 - percent / 100, seed=seed)
        return Problem(train, test, lr=1.0, clip=1.0)
    made = getattr(datasets, name)(seed)

    def tasks(X: Floats, y: Floats, bound: float) -> Tasks:
        scaled = np.clip(y.ravel() / made.target_bound, -bound, bound)
        return Tasks.from_arrays(X.reshape(-1, X.shape[2]), scaled, np.repeat(np.arange(len(y)), y.shape[1]))

    train, test = tasks(made.X_train, made.y_train, 1.0), tasks(made.X_test, made.y_test, math.inf)
    return Problem(train, test, lr=5.0, clip=1.5)


@cache
def lsoa(path: Path) -> Tasks:
    """Read a copy of LSOA II: a CSV table as `load_lsoa` takes it, or an .npz file with X, y and task."""
    if path.suffix != ".npz":
        return load_lsoa(path)
    with np.load(path, allow_pickle=False) as file:
        X, y, task = np.asarray(file["X"], dtype=float), np.asarray(file["y"], dtype=float), file["task"]
    return Tasks.from_arrays(X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12), y, task)


def school() -> Any:
    """Return where School is."""
    path = data_file("school.npz")
    if not path.exists():
        raise Skipped(f"there is no {path}. Set CLOISTER_DATA to the folder that has school.npz.")
    return path
