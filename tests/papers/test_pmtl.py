"""Figures of private multi-task learning on tiny data: prices as published numbers, models as replayed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan, Tasks, run
from cloister.algorithms import FineTuning, Personalized
from cloister.datasets import fedprox
from cloister.engines import Batched, Local
from cloister.errors import InputError
from cloister.evaluation import evaluate
from cloister.learners import EWC, Descent, Module, Quadratic
from cloister.sampling import Poisson
from papers.pmtl import runs as pmtl
from papers.pmtl.runs import (
    CELEBA,
    FEMNIST,
    STACK_OVERFLOW,
    Setting,
    epsilon_over_rounds,
    figure_2,
    figure_3,
    table_1,
    tuned_run,
    tunings,
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


@pytest.fixture(scope="module")
def setting():
    return Setting(learner(), SOLVER, rounds=4)


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


# Figure 3 ---------------------------------------------------------------------------------------------------


def test_figure_3_scores_the_runs_it_says(halves, setting):
    shown = figure_3(*halves, setting, epsilons=(1.0, math.inf), replications=2, engine=CPU)
    assert set(shown.accuracy) == set(shown.worst_decile) == {"mtl", "fedavg", "fedprox", "alone"}
    np.testing.assert_array_equal(shown.epsilon, [1.0, math.inf])
    for name, values in shown.accuracy.items():
        assert values.shape == (2, 2)
        assert (shown.worst_decile[name] <= values).all()
    for name in ("mtl", "fedavg", "fedprox"):
        algorithm = setting.algorithms()[name]
        for e, epsilon in enumerate(shown.epsilon):
            plan = setting.plan(algorithm, M, float(epsilon))
            by_hand = evaluate(run(plan, halves[0], random_state=1, engine=CPU), halves[1])
            assert (shown.accuracy[name][e, 1], shown.worst_decile[name][e, 1]) == (
                by_hand.mean,
                by_hand.worst_decile,
            )
            assert plan.guarantee.epsilon <= epsilon
    alone = shown.accuracy["alone"]
    np.testing.assert_array_equal(alone[0], alone[1])
    assert shown.accuracy["mtl"][1].mean() > shown.accuracy["fedavg"][1].mean()  # tasks differ, no noise


def test_training_alone_is_as_long_as_all_rounds_together(setting):
    assert pmtl._whole(setting).epochs == 4
    assert pmtl._whole(replace(setting, solver=Descent(lr=0.1, steps=3))).steps == 12


# Table 1 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mtl", "fedavg", "fedprox"])
@pytest.mark.parametrize("way", [FineTuning(SOLVER, Quadratic(0.5)), FineTuning(SOLVER, EWC(1.0))])
def test_tuning_from_a_board_is_what_a_run_that_ends_with_it_does(halves, setting, name, way):
    plan = setting.plan(setting.algorithms()[name], M, 8.0)
    plan = replace(plan, sampling=Poisson(0.5))
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


def test_table_1_tunes_one_run_in_every_way(halves, setting, monkeypatch):
    runs = []
    monkeypatch.setattr(pmtl, "run", lambda *args, **how: runs.append(args) or run(*args, **how))
    ways = tunings(Descent(lr=0.1, batch=10, epochs=2))
    shown = table_1(*halves, setting, ways, epsilons=(4.0, math.inf), replications=1, engine=CPU)
    assert shown.tunings == ("none", "vanilla", "mean-regularised", "symmetrised KL", "EWC")
    assert len(runs) == 4  # two methods, two budgets: no run for any way of tuning
    assert shown.mtl.shape == shown.fedavg.shape == (5, 2, 1)
    for found in (shown.mtl, shown.fedavg):
        assert ((found >= 0) & (found <= 1)).all()
        assert len(set(found[:, 0, 0])) > 1
    untuned = figure_3(*halves, setting, epsilons=(4.0,), engine=CPU)
    assert shown.mtl[0, 0] == untuned.accuracy["mtl"]
    assert shown.fedavg[0, 0] == untuned.accuracy["fedavg"]
    assert shown.fedavg[1, 0, 0] > shown.fedavg[0, 0, 0]  # tasks differ: tuning a model for all helps
