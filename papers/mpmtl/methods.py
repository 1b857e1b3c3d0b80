"""The methods that figures of MP-MTL and the benchmark "covariance" compare, and the problems for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks import data_file
from cloister import Plan, Tasks, datasets
from cloister import run as run_plan
from cloister.algorithms import (
    GroupSparse,
    Independent,
    Joint,
    LowRank,
    Mean,
    ModelAveraging,
    SharedPrior,
    Subspace,
    Support,
)
from cloister.algorithms.baselines import lasso, pooled_ridge, ridge
from cloister.algorithms.relationship import Relationship, dp_mtrl, laplace_ball, mtrl
from cloister.arrays import Floats
from cloister.channel import Channel, Relation
from cloister.engines.local import Local
from cloister.learners import LeastSquares, Regression
from cloister.lifts import svec
from cloister.mechanisms import Gaussian, NoNoise
from cloister.privacy.instance_level import aggregation_scale, instance_budget, round_budgets
from cloister.privacy.randomness import Randomness, normals

Setting = dict[str, Any]
#: Fits: problem, epsilon (ignored by those without noise), one setting of the grid, seed of the noise.
Fit = Callable[["Problem", float, Setting, int], Floats]


@dataclass(frozen=True, eq=False)
class Problem:
    """Training and test part; the shared penalty that suits it, a step size, and radii K to try."""

    train: Tasks
    test: Tasks
    shared: type[LowRank] | type[GroupSparse]
    lr: float
    clips: tuple[float, ...]

    @property
    def dim(self) -> int:
        """Number of features."""
        return int(self.train.X.shape[1])

    @property
    def delta(self) -> float:
        """The paper's choice, 1 / (m log m)."""
        return 1 / (len(self.train) * math.log(len(self.train)))

    def score(self, weights: Floats) -> float:
        """Return the mean squared error over all test rows, over the targets' variance."""
        owner = np.searchsorted(self.train.ids, np.repeat(self.test.ids, self.test.sizes))
        error = self.test.y - np.einsum("nd,nd->n", self.test.X, weights[owner])
        return float(np.square(error).mean() / self.test.y.var())

    def plan(self, algorithm: Any, mechanism: Any = None) -> Plan:
        """Return a plan for these tasks, with Gaussian noise to be calibrated unless told."""
        return Plan(algorithm, mechanism or Gaussian(), n_tasks=len(self.train), delta=self.delta)

    def run(self, plan: Plan, seed: int = 0) -> Floats:
        """Run a plan on the training part; return the weights."""
        found: Floats = run_plan(plan, self.train, random_state=seed, engine=Local(1)).private.models["coef"]
        return found


def load(name: str, seed: int) -> Problem:
    """Draw a synthetic problem, or split School's rows 30/70."""
    if name == "school":
        with np.load(data_file("school.npz"), allow_pickle=False) as file:
            X, y, task = np.asarray(file["X"], dtype=float), np.asarray(file["y"], dtype=float), file["task"]
        X[:, 3:5] /= 100
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        train, test = Tasks.from_arrays(X, y / 70, task).split(test=0.7, seed=seed)
        return Problem(train, test, LowRank, 1.0, (0.5, 1.0))
    made = getattr(datasets, name)(seed)

    def tasks(X: Floats, y: Floats, bound: float) -> Tasks:
        scaled = np.clip(y.ravel() / made.target_bound, -bound, bound)
        return Tasks.from_arrays(X.reshape(-1, X.shape[2]), scaled, np.repeat(np.arange(len(y)), y.shape[1]))

    train, test = tasks(made.X_train, made.y_train, 1.0), tasks(made.X_test, made.y_test, math.inf)
    return Problem(train, test, LowRank if name == "low_rank" else GroupSparse, 5.0, (1.5, 2.5))


@dataclass(frozen=True)
class PublishedWishart(NoNoise):
    """The noise that the paper publishes, in units of the clip: W_d(d + 1, I / (2 epsilon_t)). NOT PRIVATE.

    A neighbour cannot make what it makes with chance 1 - exp(-epsilon_t), so its price is infinite, as the
    price of silence is. No shift is needed, because it is positive; hence it says that its deviation is 0.
    """

    epsilons: tuple[float, ...]
    dim: int

    def perturb(
        self, total: Floats, channel: Channel, noise: float, source: Randomness, round: int
    ) -> Floats:
        """Add the noise, or its diagonal where only that is released."""
        count = (self.dim + 1) * self.dim
        root = normals(source.stream("noise", round).uniforms(count)).reshape(self.dim + 1, self.dim)
        matrix = root.T @ root / (2 * self.epsilons[round])
        return total + (np.diag(matrix) if total.size == self.dim else svec(matrix))


def _shared(problem: Problem, setting: Setting) -> LowRank | GroupSparse:
    return problem.shared(LeastSquares(problem.dim), lr=problem.lr, **setting)


def published(problem: Problem, epsilon: float, setting: Setting, seed: int) -> Floats:
    """Run Algorithm 2 or 3 with the noise and the composition of the paper."""
    algorithm = _shared(problem, setting)
    budgets = round_budgets(epsilon, problem.delta, np.sqrt(algorithm.shares()))
    return problem.run(problem.plan(algorithm, PublishedWishart(budgets, problem.dim)), seed)


def repaired(problem: Problem, epsilon: float, setting: Setting, seed: int) -> Floats:
    """Run the library's version, whose guarantee holds."""
    return problem.run(problem.plan(_shared(problem, setting)).calibrate(epsilon), seed)


def group_mtrl(problem: Problem, epsilon: float, setting: Setting, seed: int) -> Floats:
    """Run DP-MTRL with group privacy."""
    row = instance_budget(epsilon, problem.delta, int(problem.train.sizes.max()))
    budgets = round_budgets(*row, [1.0] * setting["rounds"])
    return dp_mtrl(problem.train, Relationship(**setting), budgets, seed)


def group_average(problem: Problem, epsilon: float, setting: Setting, seed: int) -> Floats:
    """Run DP-AGGR with group privacy; the slope of the loss is read from the data, as for DP-MTRL."""
    train, lam = problem.train, setting["lam"]
    own, _ = mtrl(train, Relationship(coupling=lam), np.eye(len(train)))  # ridge, task by task
    residual = train.y - np.einsum("nd,nd->n", train.X, np.repeat(own, train.sizes, axis=0))
    scale = aggregation_scale(epsilon, train.sizes.tolist(), lam, float(np.abs(residual).max()))
    noise = laplace_ball(np.random.default_rng(seed), np.array([scale]), (1, problem.dim))
    return np.repeat(own.mean(axis=0) + noise, len(train), axis=0)


def average(problem: Problem, epsilon: float, setting: Setting, seed: int) -> Floats:
    """Run averaging with the task protected directly."""
    return problem.run(
        problem.plan(ModelAveraging(LeastSquares(problem.dim), **setting)).calibrate(epsilon), seed
    )


def prior(
    structure: type[Any], relation: Relation, problem: Problem, epsilon: float, _: Setting, seed: int
) -> Floats:
    """Learn a shared prior; nothing to tune."""
    algorithm = SharedPrior(Regression(problem.dim, intercept=False), structure())
    return problem.run(replace(problem.plan(algorithm), relation=relation).calibrate(epsilon), seed)


def validated(problem: Problem, grid: Sequence[float], fit: Callable[[Problem, float], Floats]) -> Floats:
    """Choose a penalty by a fifth of the training rows, and fit again with all of them."""
    rest, held = problem.train.split(test=0.2, seed=0)
    inner = replace(problem, train=rest, test=held)
    best = min(grid, key=lambda lam: inner.score(fit(inner, lam)))
    return fit(problem, best)


def _silent(kind: type[LowRank] | type[GroupSparse], problem: Problem, lam: float) -> Floats:
    algorithm = kind(LeastSquares(problem.dim), lam=lam, clip=1e3, rounds=200, lr=problem.lr, warmup=0)
    return problem.run(problem.plan(algorithm, NoNoise()))


PENALTIES = (0.001, 0.003, 0.01, 0.02, 0.05, 0.1)
COUPLINGS = (0.003, 0.01, 0.03, 0.1)
#: Without epsilon: what tasks do alone, and what would be if privacy were no concern.
PLAIN: dict[str, tuple[str, Callable[[Problem], Floats]]] = {
    "ridge": ("alone: ridge, common lambda (not private)", lambda p: ridge(p.train)),
    "ridge_own": ("alone: ridge, own lambda by own CV", lambda p: ridge(p.train, own=True)),
    "evidence": (
        "alone: ridge averaged by own evidence",
        lambda p: p.run(p.plan(Independent(Regression(p.dim, intercept=False)))),
    ),
    "lasso": (
        "alone: lasso, common lambda (not private)",
        lambda p: lasso(p.train, lambdas=np.geomspace(1e-5, 1e-1, 9)),
    ),
    "pooled": ("one ridge for all (not private)", lambda p: pooled_ridge(p.train)),
    "trace": (
        "trace norm, lambda validated (not private)",
        lambda p: validated(p, PENALTIES, partial(_silent, LowRank)),
    ),
    "l21": (
        "l2,1 norm, lambda validated (not private)",
        lambda p: validated(p, PENALTIES, partial(_silent, GroupSparse)),
    ),
    "mtrl": (
        "MTRL, coupling validated (not private)",
        lambda p: validated(p, COUPLINGS, lambda q, c: mtrl(q.train, Relationship(0.0, c, 20))[0]),
    ),
}


@dataclass(frozen=True)
class Method:
    """A method with noise: its label, how it fits, and the settings to choose from in hindsight."""

    label: str
    fit: Fit
    grid: Callable[[Problem], list[Setting]] = lambda _: [{}]


def _grid(**values: Sequence[float]) -> list[Setting]:
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def _shared_grid(problem: Problem) -> list[Setting]:
    lams = (0.01, 0.03, 0.1, 0.3, 1.0)
    return _grid(lam=lams, clip=problem.clips, rounds=(1, 3, 10, 30), strong=(0.0, 1e-3))


def _repaired_grid(problem: Problem) -> list[Setting]:
    lams, shifts = (0.01, 0.03, 0.1, 0.3), (0.0, 0.3, 1.0)
    return _grid(shift=shifts, lam=lams, clip=problem.clips, rounds=(1, 3, 10), strong=(0.0, 1e-3))


REPLACE, ZERO = Relation.REPLACE, Relation.ZERO_OUT
NOISY: dict[str, Method] = {
    "published": Method("MP-MTL Alg. 2/3, published, NOT PRIVATE *", published, _shared_grid),
    "repaired": Method("MP-MTL Alg. 2/3, repaired *", repaired, _repaired_grid),
    "dp_mtrl": Method(
        "DP-MTRL by group privacy, claim not proven *",
        group_mtrl,
        lambda _: _grid(coupling=(0.1, 1.0, 10.0, 100.0, 1000.0), rounds=(1, 3)),
    ),
    "dp_aggr": Method(
        "DP-AGGR by group privacy, claim not proven *",
        group_average,
        lambda _: _grid(lam=(0.01, 0.1, 1.0, 10.0, 100.0)),
    ),
    "averaged": Method(
        "averaging, task protected directly *",
        average,
        lambda _: _grid(lam=(0.003, 0.03, 0.3), clip=(0.3, 1.0)),
    ),
    "subspace": Method("shared prior, Subspace", partial(prior, Subspace, REPLACE)),
    "support": Method("shared prior, Support", partial(prior, Support, REPLACE)),
    "joint": Method("shared prior, Joint", partial(prior, Joint, REPLACE)),
    "mean": Method("shared prior, Mean", partial(prior, Mean, REPLACE)),
    "subspace_zero_out": Method("shared prior, Subspace, zero-out", partial(prior, Subspace, ZERO)),
    "support_zero_out": Method("shared prior, Support, zero-out", partial(prior, Support, ZERO)),
    "joint_zero_out": Method("shared prior, Joint, zero-out", partial(prior, Joint, ZERO)),
}
#: The relation zero-out is shown for the structure that suits a problem.
SHOWN_ZERO_OUT = {"low_rank": "subspace", "group_sparse": "support", "school": "joint"}
