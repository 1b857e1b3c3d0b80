"""The methods that MP-MTL's trade-offs between privacy and accuracy compare.

Where a method has settings, they are chosen for each epsilon by a fifth of the training rows, and nobody pays
for that: the paper does so too, by five folds. Shared priors have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from cloister import Plan, Tasks
from cloister.algorithms import (
    GroupSparse,
    Joint,
    LowRank,
    Mean,
    ModelAveraging,
    SharedPrior,
    Subspace,
    Support,
)
from cloister.algorithms.baselines import l1_logistic, lasso, pooled_ridge, ridge
from cloister.channel import Relation
from cloister.core.arrays import Floats
from cloister.mechanisms import NoNoise
from papers.mpmtl.instance_level import aggregation_scale, instance_budget, round_budgets
from papers.mpmtl.problems import Problem, Setting
from papers.mpmtl.relationship import Relationship, dp_mtrl, laplace_ball, mtrl
from papers.mpmtl.wishart import published_plan

#: Fits a problem at an epsilon (0 where there is no noise) with a seed for the noise.
Fit = Callable[[Problem, float, int], Floats]
Family = type[LowRank] | type[GroupSparse]


def grid(**values: Sequence[float]) -> list[Setting]:
    """Return all combinations."""
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


LAMS, ROUNDS = (0.01, 0.03, 0.1, 0.3), (1, 3, 10, 30)
PUBLISHED = grid(lam=LAMS, rounds=ROUNDS)
REPAIRED = grid(shift=(0.0, 0.3, 1.0), lam=LAMS, rounds=ROUNDS)
PENALTIES = (0.001, 0.003, 0.01, 0.02, 0.05, 0.1)
QUIET = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
RIDGES = (0.0003, 0.001, 0.003, 0.01, 0.03)


def _shared(family: Family, problem: Problem, setting: Setting) -> LowRank | GroupSparse:
    return family(problem.loss, lr=problem.lr, clip=problem.clip, **setting)


def published(family: Family, problem: Problem, epsilon: float, seed: int) -> Floats:
    """Fit by Algorithm 2 or 3 as published. NOT PRIVATE."""

    def fit(inner: Problem, setting: Setting) -> Floats:
        algorithm = _shared(family, inner, setting)
        return inner.run(published_plan(algorithm, len(inner.train), epsilon), seed)

    return problem.validated(PUBLISHED, fit)


def repaired(family: Family, problem: Problem, epsilon: float, seed: int) -> Floats:
    """Fit by the library's version, whose guarantee holds."""

    def fit(inner: Problem, setting: Setting) -> Floats:
        return inner.run(inner.plan(_shared(family, inner, setting)).calibrate(epsilon), seed)

    return problem.validated(REPAIRED, fit)


def squares(problem: Problem) -> Tasks:
    """Return training rows for DP-MTRL, which minimises squares whatever the targets: 0 becomes -1."""
    train = problem.train
    return (
        Tasks(train.ids, train.X, 2 * train.y - 1, train.weight, train.offsets) if problem.binary else train
    )


def group_mtrl(problem: Problem, epsilon: float, seed: int) -> Floats:
    """Fit by DP-MTRL, which protects rows, at the price of a group: a task's rows (Proposition 3)."""

    def fit(inner: Problem, setting: Setting) -> Floats:
        row = instance_budget(epsilon, problem.delta, int(problem.train.sizes.max()))
        budgets = round_budgets(*row, [1.0] * setting["rounds"])
        return dp_mtrl(squares(inner), Relationship(**setting), budgets, seed).weights

    return problem.validated(grid(coupling=(0.1, 1.0, 10.0, 100.0, 1000.0), rounds=(1, 3)), fit)


def quiet_mtrl(problem: Problem, epsilon: float, seed: int) -> Floats:
    """Fit by DP-MTRL as quiet as its printed ratio: epsilon is spent on one row, and less than it needs."""

    def fit(inner: Problem, setting: Setting) -> Floats:
        budgets = round_budgets(epsilon, problem.delta, [1.0] * setting["rounds"])
        return dp_mtrl(squares(inner), Relationship(**setting), budgets, seed, quiet=True).weights

    return problem.validated(grid(coupling=QUIET, rounds=(1, 3)), fit)


def own_models(problem: Problem, lam: float) -> Floats:
    """Fit every task by itself with a ridge of this strength on the mean of its losses."""
    if not problem.binary:
        return mtrl(problem.train, Relationship(coupling=lam), np.eye(len(problem.train)))[0]
    lr = 1 / (1 / problem.lr + lam)
    alone = LowRank(problem.loss, 0.0, 1e3, rounds=200, lr=lr, warmup=0, strong=lam)
    return problem.run(Plan(alone, NoNoise(), n_tasks=len(problem.train)))


def group_average(problem: Problem, epsilon: float, seed: int) -> Floats:
    """Fit by DP-AGGR at the price of a group; the slope of squares is read from the data, as for DP-MTRL."""

    def fit(inner: Problem, lam: float) -> Floats:
        train, own = inner.train, own_models(inner, lam)
        residual = train.y - np.einsum("nd,nd->n", train.X, np.repeat(own, train.sizes, axis=0))
        slope = 1.0 if inner.binary else float(np.abs(residual).max())
        scale = aggregation_scale(epsilon, train.sizes.tolist(), lam, slope) if epsilon else 0.0
        noise = laplace_ball(np.random.default_rng(seed), np.array([scale]), (1, inner.dim))
        return np.repeat(own.mean(axis=0) + noise, len(train), axis=0)

    return problem.validated((0.01, 0.1, 1.0, 10.0, 100.0), fit)


def average(problem: Problem, epsilon: float, seed: int) -> Floats:
    """Average models, with the task protected directly: what DP-AGGR does, at the true price."""

    def fit(inner: Problem, setting: Setting) -> Floats:
        plan = inner.plan(ModelAveraging(inner.loss, **setting))
        return inner.run(plan.calibrate(epsilon), seed)

    return problem.validated(grid(lam=(0.003, 0.03, 0.3), clip=(0.3, 1.0)), fit)


def prior(structure: type[Any], problem: Problem, epsilon: float, seed: int) -> Floats:
    """Learn a shared prior; nothing to tune."""
    algorithm = SharedPrior(problem.learner, structure())
    plan = replace(problem.plan(algorithm), relation=Relation.REPLACE)
    return problem.run(plan.calibrate(epsilon), seed)


def silent(family: Family, problem: Problem) -> Floats:
    """Fit the penalised problem without noise, its penalty validated."""

    def fit(inner: Problem, lam: float) -> Floats:
        algorithm = family(inner.loss, lam=lam, clip=1e3, rounds=200, lr=inner.lr, warmup=0)
        return inner.run(inner.plan(algorithm, NoNoise()))

    return problem.validated(PENALTIES, fit)


def relationship(problem: Problem) -> Floats:
    """Fit MTRL without noise, its coupling validated."""
    fit = lambda inner, coupling: mtrl(squares(inner), Relationship(0.0, coupling, 20))[0]  # noqa: E731
    return problem.validated((0.003, 0.01, 0.03, 0.1), fit)


def pooled_logistic(problem: Problem, lam: float) -> Floats:
    """Fit one model to all rows of all tasks."""
    train = problem.train
    rows = Tasks(train.ids[:1], train.X, train.y, train.weight, np.array([0, len(train.y)]))
    return np.repeat(own_models(replace(problem, train=rows), lam), len(train), axis=0)


#: Without epsilon: what tasks do alone, and what would be if privacy were no concern.
ALONE: dict[str, Callable[[Problem], Floats]] = {
    "ridge": lambda p: p.validated(RIDGES, own_models) if p.binary else ridge(p.train),
    "lasso": lambda p: (
        l1_logistic(p.train) if p.binary else lasso(p.train, lambdas=np.geomspace(1e-5, 1e-1, 9))
    ),
}
NOT_PRIVATE: dict[str, Callable[[Problem], Floats]] = {
    "trace norm": partial(silent, LowRank),
    "l2,1 norm": partial(silent, GroupSparse),
    "MTRL": relationship,
    "pooled": lambda p: p.validated(RIDGES, pooled_logistic) if p.binary else pooled_ridge(p.train),
}
PRIVATE: dict[str, Fit] = {
    "published LR": partial(published, LowRank),
    "published GS": partial(published, GroupSparse),
    "repaired LR": partial(repaired, LowRank),
    "repaired GS": partial(repaired, GroupSparse),
    "DP-MTRL": group_mtrl,
    "quiet DP-MTRL": quiet_mtrl,
    "DP-AGGR": group_average,
    "averaging": average,
    "Subspace": partial(prior, Subspace),
    "Support": partial(prior, Support),
    "Joint": partial(prior, Joint),
    "Mean": partial(prior, Mean),
}
