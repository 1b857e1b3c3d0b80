"""Several engines are one: the same board, the same models, whoever computes what."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan, Tasks, replay, run
from cloister.algorithms import FedAvg, FineTuning, MeanRegularized, Personalized
from cloister.engines import Batched, Local, MultiDevice
from cloister.engines.devices import LazySum, deal
from cloister.errors import PlanError
from cloister.learners import EWC, Descent, LeastSquares, Module
from cloister.mechanisms import Gaussian, L2Laplace, NoNoise
from cloister.sampling import Poisson

M = 14
FLOATING = Gaussian(1.0, exact=False)
CPU = Batched("cpu", block=3)
ENGINES = {
    "two local": MultiDevice((Local(), Local())),
    "two batched": MultiDevice((CPU, CPU)),
    "of each": MultiDevice((Local(1), CPU, CPU)),
    "more than tasks": MultiDevice((CPU,) * 20),
    "several of several": MultiDevice((MultiDevice((CPU, CPU)), CPU)),
}


def make_tasks(sizes):
    rng = np.random.default_rng(0)
    ids = np.repeat([f"t{i:02d}" for i in range(M)], sizes)
    return Tasks.from_arrays(rng.normal(size=(len(ids), 3)), rng.integers(0, 3, len(ids)), ids)


EQUAL = make_tasks([6] * M)
RAGGED = make_tasks([1, 2, 2, 3, 3, 4, 5, 6, 9, 9, 14, 20, 30, 31])


def algorithm():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
    tuned = FineTuning(Descent(0.1, batch=3, steps=4), EWC(1.0))
    return Personalized(Module(net), Descent(0.2, batch=4, momentum=0.4), clip=0.3, rounds=3, finetune=tuned)


@cache
def on_one_engine(mechanism):
    plan = Plan(algorithm(), mechanism, Poisson(0.7), n_tasks=M)
    return run(plan, RAGGED, random_state=0, engine=CPU)


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [*((name, Gaussian(1.0)) for name in ENGINES), *(("of each", m) for m in (FLOATING, NoNoise()))],
    ids=str,
)
def test_several_engines_are_one(name, mechanism):
    engine, one = ENGINES[name], on_one_engine(mechanism)
    plan = one.plan
    two = run(plan, RAGGED, random_state=0, engine=engine)
    np.testing.assert_allclose(two.board["mean"], one.board["mean"], atol=1e-5)
    np.testing.assert_allclose(two.private.models["coef"], one.private.models["coef"], rtol=1e-5, atol=1e-5)
    tape = replay(plan, two.board, RAGGED, coins=two.private.coins, seeds=two.private.seeds,
                  engine=engine)  # fmt: skip
    np.testing.assert_array_equal(tape["coef"], two.private.models["coef"])


@pytest.mark.parametrize("inner", [Local(), CPU], ids=["local", "batched"])
def test_boards_are_the_same_to_the_bit(inner):
    """With exact noise sums are whole numbers; tasks of one size are computed alike in any block."""
    plan = Plan(algorithm(), Gaussian(1.0), Poisson(0.7), n_tasks=M)
    one, two, three = (
        run(plan, EQUAL, random_state=0, engine=e)
        for e in (inner, MultiDevice((inner,) * 2), MultiDevice((inner,) * 5))
    )
    assert one.board.head == two.board.head == three.board.head
    np.testing.assert_array_equal(one.private.models["coef"], two.private.models["coef"])


def test_linear_models_and_other_noise():
    rng = np.random.default_rng(0)
    X, ids = rng.uniform(-0.5, 0.5, (70, 3)), np.arange(70) % M
    tasks = Tasks.from_arrays(X, X.sum(axis=1), ids)
    for mechanism in (Gaussian(1.0), L2Laplace(5.0)):
        plan = Plan(MeanRegularized(LeastSquares(3), rounds=3, steps=2), mechanism, n_tasks=M)
        one, two = (run(plan, tasks, random_state=0, engine=e) for e in (Local(), ENGINES["two local"]))
        np.testing.assert_allclose(two.board["mean"], one.board["mean"], atol=1e-12)


def test_garbage_is_counted_wherever_it_is():
    tasks = make_tasks([6] * M)
    tasks.X[tasks.offsets[3]] = tasks.X[tasks.offsets[9]] = np.nan
    plan = Plan(FedAvg(algorithm().learner, Descent(0.2), rounds=2), Gaussian(1.0), n_tasks=M)
    assert run(plan, tasks, random_state=0, engine=ENGINES["two batched"]).private.rejected_messages == 4


def test_a_sum_is_not_looked_at_before_it_is_needed():
    """The curator draws noise while devices compute."""
    looked = []

    class Slow:
        size = 3

        def __array__(self, dtype=None, copy=None):
            looked.append(True)
            return np.arange(3)

    total = LazySum([Slow(), Slow()])
    assert not looked
    np.testing.assert_array_equal(np.asarray(total) + 1, [1, 3, 5])
    assert len(looked) == 2


def test_tasks_are_dealt_out_whatever_their_sizes():
    shares = deal(50, 8)
    assert sorted(np.concatenate(shares).tolist()) == list(range(50))
    assert {len(share) for share in shares} == {6, 7}


def test_refused():
    with pytest.raises(PlanError, match="must be a tuple of engines, one at least"):
        MultiDevice(())
    with pytest.raises(PlanError, match="must be a tuple of engines, one at least"):
        MultiDevice(("cuda:0", "cuda:1"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two graphics cards")
def test_two_cards_agree_with_the_processor():
    plan = Plan(algorithm(), Gaussian(1.0), Poisson(0.7), n_tasks=M)
    cards = MultiDevice((Batched("cuda:0"), Batched("cuda:1")))
    one, two = (run(plan, RAGGED, random_state=0, engine=e) for e in (CPU, cards))
    np.testing.assert_allclose(two.private.models["coef"], one.private.models["coef"], atol=1e-4)
