"""Networks where records send: a clipped gradient each, and models that are made at home."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan, Tasks, Unit, check_algorithm, replay, run
from cloister.algorithms import Ditto, FedAvg, FedRep, FineTuning
from cloister.engines import Batched, Local
from cloister.errors import PlanError
from cloister.learners import Descent, Module, Quadratic
from cloister.mechanisms import Gaussian, NoNoise

SIZES = [1, 7, 30, 2, 30]
ROWS = sum(SIZES)
RNG = np.random.default_rng(0)
TASKS = Tasks.from_arrays(
    RNG.normal(size=(ROWS, 4)), RNG.integers(0, 3, ROWS), np.repeat(np.arange(len(SIZES)), SIZES)
)
STEP = Descent(0.5)
AT_HOME = FineTuning(Descent(0.1, batch=4, steps=6), Quadratic(0.3))


def network(personal=()):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Module(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), personal=personal)


def plan_of(algorithm=None, mechanism=None, rows=ROWS, **options):
    federated = FedAvg(network(), STEP, clip=0.1, rounds=3, finetune=AT_HOME)
    given = algorithm or federated, mechanism or Gaussian(1.0)
    return Plan(*given, n_tasks=len(SIZES), unit=Unit.record(rows), **options)


@pytest.mark.parametrize("block", [1, 4, None])
def test_engines_agree(block):
    plan, engine = plan_of(), Batched("cpu", block=block)
    one, two = run(plan, TASKS, random_state=0), run(plan, TASKS, random_state=0, engine=engine)
    np.testing.assert_allclose(two.board["mean"], one.board["mean"], atol=1e-6)
    np.testing.assert_allclose(two.private.models["coef"], one.private.models["coef"], atol=1e-5)
    again = replay(plan, two.board, TASKS, coins=two.private.coins, seeds=two.private.seeds, engine=engine)
    np.testing.assert_array_equal(again["coef"], two.private.models["coef"])


def test_a_round_is_the_mean_of_clipped_gradients_of_rows():
    """Computed once more, row by row, by torch: clipped one by one, then added."""
    clip, learner = 0.8, network()
    plan = plan_of(FedAvg(learner, STEP, clip=clip, rounds=1), NoNoise())
    found = run(plan, TASKS, engine=Batched("cpu")).board["mean"]
    said, lengths = torch.zeros(learner.size), []
    for x, y in zip(torch.tensor(TASKS.X, dtype=torch.float32), torch.tensor(TASKS.y), strict=True):
        loss = nn.functional.cross_entropy(learner.net(x[None]), y[None])
        step = -STEP.lr * torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, learner.net.parameters())]
        )
        lengths.append(float(step.norm()))
        said += step * min(1.0, clip / lengths[-1])
    assert min(lengths) < clip < max(lengths)
    np.testing.assert_allclose(found, learner.start() + said.numpy() / ROWS, atol=1e-6)


def test_persons_are_those_of_the_reference_engine():
    """Of each person four rows send, and the largest tasks have five of two of them."""
    task = np.repeat(np.arange(len(SIZES)), SIZES)
    few, many = (Tasks.from_arrays(TASKS.X, TASKS.y, task, person=np.arange(ROWS) % n) for n in (7, ROWS))
    plan = Plan(plan_of().algorithm, Gaussian(1.0), n_tasks=len(SIZES), unit=Unit.person(ROWS, most=4))
    one, two = run(plan, few, random_state=0), run(plan, few, random_state=0, engine=Batched("cpu"))
    np.testing.assert_allclose(two.board["mean"], one.board["mean"], atol=1e-6)
    all_rows = run(plan, many, random_state=0).board["mean"]
    assert np.abs(all_rows - one.board["mean"]).max() > 1e-4


@pytest.mark.parametrize("engine", [Local(), Batched("cpu")], ids=["local", "batched"])
def test_one_record_moves_the_sum_by_two_clips_and_no_more(engine):
    """Rows whose gradients are opposite, and longer than the clip, attain it."""
    net, clip = nn.Linear(2, 1), 0.25
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    learner = Module(net, nn.MSELoss())
    plan = plan_of(FedAvg(learner, STEP, clip=clip, rounds=1), NoNoise())

    def total(target):
        y = np.zeros(ROWS)
        y[20] = target
        rows = Tasks(TASKS.ids, TASKS.X[:, :2], y, TASKS.weight, TASKS.offsets)
        return ROWS * run(plan, rows, engine=engine).board["mean"]

    opposite = np.linalg.norm(total(1e3) - total(-1e3))
    assert opposite == pytest.approx(2 * clip, rel=1e-6)
    assert opposite <= 2 * clip * (1 + 1e-6)
    assert np.linalg.norm(total(1e3) - total(0.0)) <= clip * (1 + 1e-6)
    assert np.linalg.norm(total(np.nan) - total(1e3)) <= 2 * clip * (1 + 1e-6)


def test_noise_is_of_one_record():
    """3,003 numbers tell their deviation to 1.3 %; an alarm at six times that is false once in 10^9."""
    wide = Module(nn.Linear(1000, 3))
    X = RNG.normal(size=(ROWS, 1000))
    tasks = Tasks.from_arrays(X, TASKS.y, np.repeat(np.arange(len(SIZES)), SIZES))
    algorithm, clip = FedAvg(wide, STEP, clip=0.1, rounds=1), 0.1
    engine = Batched("cpu")
    noisy = run(plan_of(algorithm), tasks, random_state=1, engine=engine).board["mean"]
    exact = run(plan_of(algorithm, NoNoise()), tasks, engine=engine).board["mean"]
    law = 2 * clip / ROWS  # sensitivity under `replace`, times the deviation 1 of mu = 1, of the mean
    apart = {share: abs(np.std(noisy - exact) / (share * law) - 1) for share in (2 / 3, 1, 3 / 2)}
    assert apart[1] < 0.08
    assert min(apart[2 / 3], apart[3 / 2]) > 0.3


def test_few_records_at_a_time_say_the_same(monkeypatch):
    whole = run(plan_of(), TASKS, random_state=0)
    monkeypatch.setattr("cloister.engines.local.MICROBATCH", 200)
    parts = run(plan_of(), TASKS, random_state=0)
    assert parts.board.head == whole.board.head


def test_records_are_checked_and_what_has_states_is_refused():
    check_algorithm(plan_of().algorithm, TASKS, unit=Unit.record(ROWS))
    for algorithm in (
        Ditto(network(), STEP, clip=0.1, rounds=2),
        FedRep(network(("2.*",)), STEP, head=STEP, clip=0.1, rounds=2),
        FedAvg(network(("2.*",)), STEP, clip=0.1, rounds=2),
    ):
        with pytest.raises(PlanError, match="are sent by each task"):
            plan_of(algorithm)
