"""Fine-tuning at home of each task's own choosing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan, Tasks, check_algorithm, replay, run
from cloister.algorithms import CrossValidatedTuning, Ditto, FedAvg, FineTuning, Personalized
from cloister.algorithms.finetuning import _left_out_loss
from cloister.core.tasks import public_seeds
from cloister.engines import Batched, Local
from cloister.errors import PlanError
from cloister.learners import EWC, Descent, Module, Quadratic, SymmetrizedKL
from cloister.mechanisms import Gaussian, NoNoise

STEPS = Descent(0.1, batch=2, momentum=0.5, decay=0.9)
SHORT, STRONG = FineTuning(Descent(0.3, batch=3, steps=2)), FineTuning(Descent(0.3, epochs=2), Quadratic(1.0))
CHOICE = CrossValidatedTuning((SHORT, STRONG), checks=2, folds=3)
SIZES = [1, 2, 2, 3, 5, 8, 9, 14, 20, 30]
M = len(SIZES)


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Module(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))


def make_tasks(seed=0):
    """Every other task has a rule of its own for its labels; the others' are random."""
    rng = np.random.default_rng(seed)
    X = [rng.normal(size=(rows, 3)) for rows in SIZES]
    rules = [(x @ rng.normal(size=(3, 3))).argmax(axis=1) for x in X]
    return Tasks.from_list(X, [y if i % 2 else rng.integers(0, 3, len(y)) for i, y in enumerate(rules)])


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(network(), STEPS, rounds=2, finetune=CHOICE),
        pytest.param(
            Ditto(
                network(),
                STEPS,
                rounds=2,
                finetune=CrossValidatedTuning((FineTuning(Descent(0.1), SymmetrizedKL(1.0)),), 2),
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Personalized(
                network(), STEPS, rounds=2, finetune=CrossValidatedTuning((FineTuning(STEPS, EWC(1.0)),), 1)
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda a: type(a).__name__,
)
def test_it_keeps_the_contract(algorithm):
    check_algorithm(algorithm, make_tasks().select(np.arange(6)))


def by_hand(learner, start, block, first_round):
    """Choose for one task, in a block of its own, and say what won."""
    rows = np.flatnonzero(block.weight[0] > 0)
    order = rows[np.argsort(block.uniforms(2**31 - 2)[0, rows])]

    def trained(variant, checks, rows):
        weight, model = np.isin(np.arange(block.weight.shape[1]), rows)[None].astype(float), start
        for i in range(checks):
            own = replace(block, weight=weight)
            model = learner.descend(model, own, variant.solver, first_round + i, start[0], variant.penalty)
        return model

    def loss(model, rows):
        net = learner.trainer.net
        torch.nn.utils.vector_to_parameters(torch.from_numpy(model[0]), net.parameters())
        X, y = torch.tensor(block.X[0, rows], dtype=torch.float32), torch.tensor(block.y[0, rows])
        with torch.no_grad():
            return float(nn.functional.cross_entropy(net(X), y, reduction="sum"))

    ways = [("none", SHORT, 0), ("short", SHORT, 1), ("short twice", SHORT, 2)]
    ways += [("strong", STRONG, 1), ("strong twice", STRONG, 2)]
    losses = [
        sum(
            loss(trained(variant, checks, np.setdiff1d(rows, order[i::3])), order[i::3])
            for i in range(min(3, len(rows)))
        )
        for _, variant, checks in ways
    ]
    name, variant, checks = ways[int(np.argmin(losses))]
    return name, trained(variant, checks, rows)


def test_the_choice_is_that_of_each_task_by_hand():
    tasks, learner = make_tasks(), network()
    plan = Plan(FedAvg(learner, STEPS, rounds=2, finetune=CHOICE), NoNoise(), n_tasks=M)
    done = run(plan, tasks, random_state=0)
    start = done.board["mean"][None].astype(np.float32)
    winners = set()
    for i in range(M):
        block = next(tasks.blocks([np.array([i])], done.private.seeds))
        winner, model = by_hand(network(), start, block, first_round=2)
        winners.add(winner)
        np.testing.assert_allclose(done.private.models["coef"][i], model[0], rtol=1e-5, atol=1e-6)
    assert len(winners) >= 3  # else this test tells little
    np.testing.assert_array_equal(done.private.models["coef"][0], start[0])  # one row: nothing to compare by


@pytest.mark.parametrize("engine", [Local(), Batched("cpu", block=3)], ids=lambda e: type(e).__name__)
def test_one_way_of_tuning_leaves_no_rows_out(engine):
    tasks, learner = make_tasks(), network()
    done = run(
        Plan(FedAvg(learner, STEPS, rounds=2, finetune=STRONG), NoNoise(), n_tasks=M), tasks, engine=engine
    )
    block = next(tasks.blocks([np.arange(M)], done.private.seeds))
    start, mean = learner.spread(done.board["mean"], block), done.board["mean"]
    tuned = learner.descend(start, block, STRONG.solver, 2, mean, STRONG.penalty)
    np.testing.assert_allclose(done.private.models["coef"], tuned, rtol=1e-5, atol=1e-6)


def test_folds_part_each_tasks_own_rows():
    learner, block = network(), next(make_tasks().blocks([np.arange(M)], public_seeds(np.arange(M), 5)))
    parts = learner.folds(block, 4)
    np.testing.assert_array_equal(sum(out.weight for _, out in parts), block.weight)
    for i, (rest, out) in enumerate(parts):
        np.testing.assert_array_equal(rest.weight + out.weight, block.weight)
        assert ((rest.weight == 0) | (out.weight == 0)).all()
        np.testing.assert_array_equal(out.weight.sum(axis=1), (np.array(SIZES) + 3 - i) // 4)
        alone = learner.folds(block.take([7]), 4)[i][1]
        np.testing.assert_array_equal(alone.weight[0], out.weight[7])


def test_every_row_counts_the_same_whatever_its_fold():
    learner, block = network(), next(make_tasks().blocks([np.arange(M)], public_seeds(np.arange(M), 5)))
    weights = learner.spread(learner.start(), block)
    summed = _left_out_loss(learner, [weights] * 3, learner.folds(block, 3))
    np.testing.assert_allclose(summed, SIZES * learner.losses(weights, block), rtol=1e-5)


def test_engines_agree_and_replay_is_exact():
    tasks = make_tasks()
    plan = Plan(FedAvg(network(), STEPS, rounds=2, finetune=CHOICE), Gaussian(1.0), n_tasks=M)
    engine = Batched("cpu", block=3)
    one, two = run(plan, tasks, random_state=0), run(plan, tasks, random_state=0, engine=engine)
    np.testing.assert_allclose(two.private.models["coef"], one.private.models["coef"], rtol=1e-5, atol=1e-5)
    again = replay(plan, two.board, tasks, coins=two.private.coins, seeds=two.private.seeds, engine=engine)
    np.testing.assert_array_equal(again["coef"], two.private.models["coef"])


def test_tasks_that_are_contradicted_train_long_and_random_labels_seldom_train_at_all():
    """The public model is sure of the first feature and says half and half of the second.

    30 tasks have the first feature alone, and its opposite as labels: every step lowers the loss of every
    row, so all choose the longest training. 30 have the second alone, and coins as labels: training helps on
    held-out rows only if their coins lean to the same side as the others', with a chance of a half at most.
    That 24 of 30 or more do has a chance below 1 in 1,000.
    """
    rng = np.random.default_rng(0)
    signs = rng.integers(0, 2, (60, 40))
    X = np.zeros((60, 40, 2))
    X[:30, :, 0], X[30:, :, 1] = 2 * signs[:30] - 1, 2 * signs[30:] - 1
    y = np.where(np.arange(60)[:, None] < 30, 1 - signs, rng.integers(0, 2, (60, 40)))
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    tasks = Tasks.from_list(list(X), list(y))

    def models(finetune):
        algorithm = FedAvg(Module(net), Descent(0.1), clip=1e-30, rounds=1, finetune=finetune)
        return run(Plan(algorithm, NoNoise(), n_tasks=60), tasks).private.models["coef"]

    chosen = models(CrossValidatedTuning((FineTuning(Descent(0.2, steps=5)),), checks=4))
    public, longest = models(None), models(FineTuning(Descent(0.2, steps=20)))
    np.testing.assert_allclose(chosen[:30], longest[:30], rtol=1e-5)
    assert (chosen[30:] != public[30:]).any(axis=1).sum() < 24
    assert (longest[30:] != public[30:]).any(axis=1).sum() > 24  # for most there was something to refuse


def test_refused_settings():
    with pytest.raises(PlanError, match=r"at least one variant and one check\. Got 0 and 4"):
        CrossValidatedTuning(())
    with pytest.raises(PlanError, match=r"at least one variant and one check\. Got 1 and 0"):
        CrossValidatedTuning((SHORT,), checks=0)
    with pytest.raises(PlanError, match=r"folds must be at least 2\. Got 1"):
        CrossValidatedTuning((SHORT,), folds=1)
