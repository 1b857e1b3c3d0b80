"""Meta-learning of networks: contract, and agreement with convex losses and between engines."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Ledger, Plan, Tasks, adapt, check_algorithm, run
from cloister.algorithms import (
    FTMRL,
    ClusteredMetaSGD,
    CrossValidatedTuning,
    FineTuning,
    MetaSGD,
    ServerAverage,
)
from cloister.engines import Batched, run_partition
from cloister.errors import InputError, PlanError
from cloister.learners import Convex, Descent, ExactSolver, LeastSquares, Module, Quadratic
from cloister.mechanisms import Gaussian
from cloister.sampling import OnePass, Poisson

D, M = 3, 30
KINDS = [
    (MetaSGD, {"server": ServerAverage(5.0)}, Poisson(0.5)),
    (FTMRL, {"lam_meta": 4.0}, OnePass()),
    (ClusteredMetaSGD, {"models": 3, "server": ServerAverage(9.0)}, Poisson(0.5)),
]


def half_square(outputs, targets):
    return 0.5 * (outputs[:, 0] - targets) ** 2


def make_tasks(classes=0, seed=0):
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(M), rng.integers(2, 7, M))
    X = rng.normal(size=(len(ids), D))
    y = rng.integers(0, classes, len(ids)) if classes else (X * rng.normal(size=(M, D))[ids]).sum(1)
    return Tasks.from_arrays(X, y, ids)


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Module(nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 3)))


def finished(algorithm, tasks, sampling, engine=None):
    plan = Plan(algorithm, Gaussian(), sampling, n_tasks=M).calibrate(20.0)
    return run(plan, tasks, random_state=3, **({} if engine is None else {"engine": engine}))


def near(one, two, tolerance=1e-5):
    return np.allclose(one, two, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("kind", "extra", "sampling"), KINDS)
def test_contract(kind, extra, sampling):
    algorithm = kind(network(), Descent(0.1, batch=3, steps=2), lam=0.2, rounds=10, **extra)
    check_algorithm(algorithm, make_tasks(3).select(np.arange(10)))


@pytest.mark.parametrize(("kind", "extra", "sampling"), KINDS)
def test_a_linear_network_and_a_loss_agree(kind, extra, sampling):
    net = nn.Linear(D, 1, bias=False)
    nn.init.zeros_(net.weight)
    solver = Descent(0.1, steps=8, momentum=0.5, weight_decay=0.01, decay=0.99)
    by_torch, by_numpy = (
        finished(kind(learner, solver, lam=0.2, rounds=10, **extra), make_tasks(), sampling)
        for learner in (Module(net, half_square), Convex(LeastSquares(D)))
    )
    assert near(by_torch.board["mean"], by_numpy.board["mean"])
    assert near(by_torch.private.models["coef"], by_numpy.private.models["coef"])


@pytest.mark.parametrize(("kind", "extra", "sampling"), KINDS)
def test_engines_agree(kind, extra, sampling):
    algorithm = kind(network(), Descent(0.1, batch=3, steps=4), lam=0.2, rounds=10, **extra)
    local = finished(algorithm, make_tasks(3), sampling)
    batched = finished(algorithm, make_tasks(3), sampling, Batched("cpu"))
    assert near(local.board["mean"], batched.board["mean"])
    assert all(
        near(local.private.models[name], batched.private.models[name]) for name in batched.private.models
    )
    new = make_tasks(3, seed=8)
    here = adapt(local.plan, local.board, new)
    there = adapt(local.plan, local.board, new, engine=Batched("cpu"))
    assert near(here["coef"], there["coef"])


def test_a_task_may_end_with_fine_tuning_of_its_own():
    algorithm = MetaSGD(
        network(), Descent(0.1, steps=2), rounds=3, finetune=FineTuning(Descent(0.1, steps=5))
    )
    tasks = make_tasks(3)
    done = finished(algorithm, tasks, Poisson(0.5))
    block = next(tasks.blocks([np.arange(M)]))
    learner, model = algorithm.learner, done.board["average"]
    own = learner.descend(learner.spread(model, block), block, Descent(0.1, steps=5), 3)
    assert near(done.private.models["coef"], own)


def test_losses_deal_folds_as_networks_do_and_tasks_choose():
    tasks, convex = make_tasks(), Convex(LeastSquares(D))
    block = next(tasks.blocks([np.arange(M)]))
    for one, two in zip(convex.folds(block, 3), network().folds(block, 3), strict=True):
        assert all(np.array_equal(a.weight, b.weight) for a, b in zip(one, two, strict=True))
    # Told apart by folds: a pull that is far too strong, and none to speak of.
    choice = CrossValidatedTuning(
        (FineTuning(ExactSolver(), Quadratic(1e6)), FineTuning(ExactSolver(), Quadratic(1e-6))), checks=1
    )
    rng = np.random.default_rng(0)
    X = rng.normal(size=(M, 20, D))
    rich = Tasks.from_list(list(X), list(X @ np.arange(1.0, D + 1)))
    done = finished(MetaSGD(convex, ExactSolver(), clip=1e-3, rounds=2, finetune=choice), rich, Poisson(0.5))
    assert near(done.private.models["coef"], np.arange(1.0, D + 1), 1e-3)


def test_a_network_is_not_solved_exactly():
    with pytest.raises(PlanError, match="Descent"):
        MetaSGD(network(), ExactSolver())


def test_a_bare_network_is_refused():
    with pytest.raises(PlanError, match=r"wrap it: Module\(Linear"):
        MetaSGD(nn.Linear(2, 1), Descent(0.1))


@pytest.mark.parametrize(
    ("learner", "solver"),
    [
        (Module(nn.Linear(D + 1, 1)), Descent(0.1)),
        (Module(nn.Linear(D, 1), lambda outputs, targets: outputs.mean()), Descent(0.1)),
        (Convex(LeastSquares(D + 1)), ExactSolver()),
    ],
)
def test_a_learner_that_does_not_fit_the_rows_costs_nothing(learner, solver):
    tasks = Tasks.from_arrays(np.ones((M, D)), np.ones(M), np.arange(M))
    plan = Plan(MetaSGD(learner, solver, rounds=2), n_tasks=M).calibrate(1.0)
    ledger = Ledger(2.0, 1e-2)
    with pytest.raises(InputError):
        run(plan, tasks, ledger=ledger)
    with pytest.raises(InputError):
        run_partition(plan, tasks, dict.fromkeys(range(M), "all"), ledger=ledger)
    assert ledger.history == ()
