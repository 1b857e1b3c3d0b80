"""Figures of private multi-task learning on tiny data: prices as published numbers, models as replayed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan, Tasks, run
from cloister.algorithms import FedAvg, FedProx, FineTuning, Personalized
from cloister.datasets import fedprox
from cloister.engines import Batched, Local
from cloister.errors import InputError
from cloister.learners import EWC, Descent, Module, Quadratic
from cloister.sampling import Poisson
from papers.pmtl.convergence import plan_of, states_over_rounds, steps_over_rounds
from papers.pmtl.runs import (
    CELEBA,
    FEMNIST,
    STACK_OVERFLOW,
    epsilon_over_rounds,
    figure_2,
    tuned_run,
)

M = 12
CPU = Batched("cpu")
SOLVER = Descent(lr=0.1, batch=10, epochs=1)


def learner():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Module(nn.Linear(6, 3))


@pytest.fixture(scope="module")
def halves():
    """Return training and test rows, 40 a task: the data of FedProx without their largest tasks' rows."""
    drawn = fedprox(0.5, 0.5, n_tasks=M, dim=6, classes=3, seed=0)
    keep = np.concatenate([np.arange(start, start + 40) for start in drawn.offsets[:-1]])
    return Tasks.from_arrays(drawn.X[keep], drawn.y[keep], np.repeat(drawn.ids, 40)).split(0.5)


# Figure 2 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("panel", "multiplier", "hidden", "silent", "replaced"),
    [
        (FEMNIST, 5, 12.1228, 20.4511, 61.3349),
        (STACK_OVERFLOW, 2, 13.5711, 35.8590, 112.7179),
        (CELEBA, 2, 13.9506, 44.4455, 141.6004),
    ],
)
def test_the_published_settings_cost_what_others_compute(panel, multiplier, hidden, silent, replaced):
    """Hidden: dp_accounting 0.6, steps of 1e-4. Visible: a binomial mixture of Gaussian deltas, in SciPy."""
    assert panel.multiplier == pytest.approx(multiplier)
    curves = epsilon_over_rounds(panel.plan(learner(), SOLVER), [panel.rounds])
    assert curves["zero_out, hidden"][0] == pytest.approx(hidden, rel=1e-4)
    assert curves["zero_out, visible"][0] == pytest.approx(silent, abs=1e-4)
    assert curves["replace, visible"][0] == pytest.approx(replaced, abs=1e-4)


def test_epsilon_grows_with_rounds_and_with_what_neighbours_may_do_and_see():
    rounds = [0, 1, 10, 100, 1000]
    curves = epsilon_over_rounds(FEMNIST.plan(learner(), SOLVER), rounds)
    for curve in curves.values():
        assert curve[0] == 0
        assert (np.diff(curve) > 0).all()
    for relation in ("zero_out", "replace"):
        assert (curves[f"{relation}, visible"] >= curves[f"{relation}, hidden"]).all()
    for seen in ("hidden", "visible"):
        assert (curves[f"replace, {seen}"] >= curves[f"zero_out, {seen}"]).all()


def test_the_last_point_is_the_plans_own_guarantee():
    plan = Plan(
        Personalized(learner(), SOLVER, rounds=6), sampling=Poisson(0.5), n_tasks=M, delta=0.01
    ).calibrate(3.0)
    curves = epsilon_over_rounds(plan, [6])
    assert curves["replace, visible"][0] == pytest.approx(plan.guarantee.epsilon)
    assert curves["zero_out, visible"][0] == pytest.approx(plan.guarantee.other_epsilon)


@pytest.mark.parametrize("engine", [Local(), CPU], ids=["local", "batched"])
def test_figure_2_shows_the_loss_that_models_had(halves, engine):
    algorithm = Personalized(learner(), SOLVER, rounds=4, lam=0.1)
    plan = Plan(algorithm, sampling=Poisson(0.5), n_tasks=M).calibrate(8.0)
    shown = figure_2(plan, halves[0], points=3, engine=engine)
    np.testing.assert_array_equal(shown.rounds, [0, 2, 4])
    assert (shown.delta, set(map(len, shown.epsilon.values()))) == (plan.delta, {3})
    done = run(plan, halves[0], random_state=0, engine=engine)
    block = next(halves[0].blocks([np.arange(M)], done.private.seeds))
    weights = [algorithm.init(block, done.board.before(0))["weights"]]
    for t, coins in enumerate(done.private.coins):
        moved = algorithm.send({"weights": weights[-1]}, block, done.board.before(t))[1]["weights"]
        weights.append(np.where(coins[:, None], moved, weights[-1]))
    np.testing.assert_allclose(weights[-1], done.private.models["coef"], rtol=1e-4, atol=1e-5)
    losses = [algorithm.learner.losses(weights[t], block).mean() for t in shown.rounds]
    np.testing.assert_allclose(shown.loss, losses, rtol=1e-5)
    assert shown.loss[-1] < shown.loss[0]
    assert "loss" not in repr(shown)


# Theorems 3 and 5 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [Local(), CPU], ids=["local", "batched"])
def test_steps_of_all_tasks_and_moves_of_those_with_a_coin(halves, engine):
    """A step is the gradient of the task's own objective times its size, whoever takes part."""
    cell = {"tasks": M, "epsilon": None, "rate": 0.5}
    plan = plan_of("true", cell, learner(), step=0.1, clip=9.0, lam=0.2, rounds=4, delta=1 / M)
    done = run(plan, halves[0], random_state=0, engine=engine)
    walk = list(states_over_rounds(done, halves[0], engine))
    rows = halves[0]
    for t, step in enumerate(steps_over_rounds(done, halves[0], engine)):
        coins = np.asarray(done.private.coins[t])
        assert 0 < coins.sum() < M
        np.testing.assert_allclose((walk[t + 1][1] - walk[t][1])[coins], step[coins], atol=1e-6)
        assert not (walk[t + 1][1] - walk[t][1])[~coins].any()
        public, own = (torch.tensor(np.asarray(part), dtype=torch.float32) for part in walk[t])
        for k, (start, stop) in enumerate(pairwise(rows.offsets)):
            weights = own[k].clone().requires_grad_()
            X, y = (torch.tensor(part[start:stop]) for part in (rows.X, rows.y))
            scores = X.float() @ weights[:18].view(3, 6).T + weights[18:]
            loss = nn.functional.cross_entropy(scores, y.long())
            (loss + 0.1 * ((weights - public) ** 2).sum()).backward()
            np.testing.assert_allclose(step[k], -0.1 * weights.grad.numpy(), atol=1e-5)


# Table 1 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Personalized, FedAvg, FedProx])
@pytest.mark.parametrize("way", [FineTuning(SOLVER, Quadratic(0.5)), FineTuning(SOLVER, EWC(1.0))])
def test_tuning_from_a_board_is_what_a_run_that_ends_with_it_does(halves, kind, way):
    algorithm = kind(learner(), SOLVER, clip=0.5, rounds=4)
    plan = Plan(algorithm, sampling=Poisson(0.5), n_tasks=M).calibrate(8.0)
    done = run(plan, halves[0], random_state=0, engine=CPU)
    tuned = tuned_run(done, halves[0], way, CPU)
    whole = run(
        replace(plan, algorithm=replace(plan.algorithm, finetune=way)), halves[0], random_state=0, engine=CPU
    )
    np.testing.assert_array_equal(tuned.private.models["coef"], whole.private.models["coef"])
    assert not np.array_equal(tuned.private.models["coef"], done.private.models["coef"])
    assert tuned.board is done.board
    assert tuned.guarantee == done.guarantee
    with pytest.raises(InputError, match="tuned already"):
        tuned_run(whole, halves[0], way, CPU)
