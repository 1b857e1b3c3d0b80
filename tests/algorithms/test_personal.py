"""Personal parameters stay at home: under every algorithm, in every round, and for whoever comes late."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan, Tasks, adapt, check_algorithm, replay, run
from cloister.algorithms import (
    FTMRL,
    AdaptiveFedAvg,
    ClusteredMetaSGD,
    CrossValidatedTuning,
    Ditto,
    FedAvg,
    FedProx,
    FedRep,
    FineTuning,
    Increment,
    LocalOnly,
    MetaSGD,
    Personalized,
    Position,
    ServerAdam,
)
from cloister.engines import Batched
from cloister.errors import PlanError
from cloister.learners import EWC, Descent, Module
from cloister.mechanisms import Gaussian, NoNoise
from cloister.sampling import Poisson

M, SEED = 5, 0
SHARED, SIZE = 4, 8


class Apart(nn.Module):
    """Two linear models of the same rows; only the loss says whether they have to do with each other."""

    def __init__(self):
        super().__init__()
        self.own, self.common = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x):
        return torch.cat([self.common(x), self.own(x)], dim=1)


def apart(outputs, targets):
    """Fit a target's fraction by the shared model, and its whole part by the personal one."""
    whole = targets.floor()
    return (outputs[:, 0] - (targets - whole)) ** 2 + (outputs[:, 1] - whole) ** 2


def together(outputs, targets):
    return (outputs.sum(1) - targets) ** 2


def learner(loss=apart):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Module(Apart(), loss, personal=("own.*",))


def make_tasks(seed=0, count=M):
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(count), rng.integers(2, 4, count))
    return Tasks.from_arrays(rng.normal(size=(len(ids), 3)), rng.integers(0, 4, len(ids)) + 0.5, ids)


STEPS = Descent(0.05, batch=2, steps=2)
ALGORITHMS = {
    "FedAvg": FedAvg(learner(), STEPS, rounds=3, server=ServerAdam()),
    "FedAvg tuned": FedAvg(learner(), STEPS, rounds=2, finetune=FineTuning(STEPS, EWC(1.0))),
    "FedProx": FedProx(learner(), STEPS, rounds=2, lam=0.5),
    "AdaptiveFedAvg": AdaptiveFedAvg(learner(), STEPS, rounds=2),
    "Ditto": Ditto(learner(), STEPS, rounds=2),
    "Personalized": Personalized(
        learner(), STEPS, rounds=2, finetune=CrossValidatedTuning((FineTuning(STEPS),), 2, 2)
    ),
    "Increment": Personalized(learner(), STEPS, rounds=2, message=Increment(0.5)),
    "Position": Personalized(learner(), STEPS, rounds=2, message=Position()),
    "FedRep": FedRep(learner(), STEPS, rounds=2, head=Descent(0.1, steps=3)),
    "MetaSGD": MetaSGD(learner(), STEPS, rounds=2),
    "FTMRL": FTMRL(learner(), STEPS, rounds=2, lam_meta=5.0),
    "ClusteredMetaSGD": ClusteredMetaSGD(learner(), STEPS, rounds=6, models=2, radius=2.0),
    "LocalOnly": LocalOnly(learner(), STEPS),
}
#: Numbers of a message beside those of the shared parameters of one model.
BESIDE = {"AdaptiveFedAvg": 1, "ClusteredMetaSGD": SHARED + 2}
EVERY = pytest.mark.parametrize("name", ALGORITHMS)
TASKS = make_tasks()
OTHER = replace(TASKS, y=TASKS.y + np.where(np.repeat(TASKS.ids, TASKS.sizes) == 2, 3.0, 0.0))


def silent(algorithm, tasks=TASKS, **kwargs):
    return run(
        Plan(algorithm, NoNoise(), Poisson(0.4), n_tasks=len(tasks)), tasks, random_state=SEED, **kwargs
    )


@EVERY
def test_no_message_and_no_board_has_a_coordinate_of_them(name):
    """What only the personal model fits is changed: every release and every public array stays to the bit."""
    algorithm = ALGORITHMS[name]
    one, two = silent(algorithm), silent(algorithm, OTHER)
    for release in one.board.releases:
        assert len(release.value) == SHARED + BESIDE.get(name, 0)
    assert one.board.head == two.board.head
    changed = (one.private.models["coef"] != two.private.models["coef"]).any(axis=0)
    assert one.private.models["coef"].shape == (M, SIZE)
    assert not changed[:SHARED].any()
    assert changed[SHARED:].all()


@EVERY
def test_replay_gives_them_again_and_late_tasks_train_their_own(name):
    algorithm = ALGORITHMS[name]
    done = silent(algorithm)
    again = replay(done.plan, done.board, TASKS, coins=done.private.coins, seeds=done.private.seeds)
    np.testing.assert_array_equal(again["coef"], done.private.models["coef"])
    late = adapt(done.plan, done.board, make_tasks(seed=5, count=2))["coef"]
    start = algorithm.learner.start()[SHARED:]
    assert (late[:, SHARED:] != start).all()
    new = algorithm.model_without_data(done.board)["coef"]
    assert new.shape == (1, SIZE)
    np.testing.assert_array_equal(new[0, SHARED:], start)
    assert algorithm.predict({"coef": late}, np.zeros((2, 4, 3), np.float32)).shape == (2, 4, 2)


@EVERY
def test_engines_agree(name):
    """To what 32 bits hold, on blocks of another size."""
    done = silent(replace(ALGORITHMS[name], learner=learner(together)))
    other = silent(replace(ALGORITHMS[name], learner=learner(together)), engine=Batched("cpu", block=2))
    np.testing.assert_allclose(other.private.models["coef"], done.private.models["coef"], atol=1e-5)


@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "AdaptiveFedAvg"])
def test_they_change_only_in_rounds_in_which_a_task_takes_part(name):
    """Tasks end with the public model's shared parameters, and with the start where they never spoke."""
    done = silent(ALGORITHMS[name])
    took_part = np.asarray(done.private.coins[:, np.arange(M)]).any(axis=0)
    assert 0 < took_part.sum() < M
    coef, start = done.private.models["coef"], ALGORITHMS[name].learner.start()
    assert (coef[:, :SHARED] == done.board["mean"]).all()
    np.testing.assert_array_equal(
        coef[~took_part, SHARED:], np.tile(start[SHARED:], (M - took_part.sum(), 1))
    )
    assert (coef[took_part, SHARED:] != start[SHARED:]).all()


def test_shared_updates_may_depend_on_them():
    """As the docs say: where the loss ties both, other personal parameters are another message."""
    algorithm = FedAvg(learner(together), STEPS, rounds=1)
    board = Plan(algorithm, NoNoise(), n_tasks=M).create_board()
    block = next(TASKS.blocks([np.arange(M)]))
    states = algorithm.init(block, board)
    moved = {"personal": states["personal"] + np.float32(1)}
    one, two = (algorithm.send(own, block, board)[0] for own in (states, moved))
    assert (one != two).any(axis=1).all()


def test_the_penalty_of_a_meta_problem_leaves_them_free():
    """The gradient is lam times the way of the shared parameters, and solving longer fits personal ones."""
    long = Descent(0.1, steps=60)
    algorithm = MetaSGD(learner(), long, lam=0.5, rounds=1, clip=100.0)
    board = Plan(algorithm, NoNoise(), n_tasks=M).create_board()
    block = next(TASKS.blocks([np.arange(M)]))
    solved, offset = algorithm.solve(board["mean"], {}, block, board)
    free = algorithm.learner.descend(algorithm.learner.spread(board["mean"], block), block, long, 0)
    np.testing.assert_allclose(solved[:, SHARED:], free[:, SHARED:], atol=1e-6)
    np.testing.assert_allclose(offset, solved[:, :SHARED] - board["mean"], atol=1e-6)
    assert (np.abs(offset) < np.abs(free[:, :SHARED] - board["mean"])).mean() > 0.7


# --- FedRep ----------------------------------------------------------------------------------------------


def by_hand(net, part, rows, targets, lr, steps):
    """Take steps of gradient descent on some of a network's parameters; return these, flat."""
    for _ in range(steps):
        slopes = torch.autograd.grad(together(net(rows), targets).mean(), tuple(part.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(part.parameters(), slopes, strict=True):
                parameter -= lr * slope
    return nn.utils.parameters_to_vector(part.parameters()).detach()


def test_fedrep_trains_heads_then_the_body():
    """One round by hand: `head` steps of the personal model, then `solver` steps of the shared one."""
    tasks = make_tasks(seed=3, count=2)
    body, head = Descent(0.05, steps=2), Descent(0.1, steps=3)
    algorithm = FedRep(learner(together), body, rounds=1, clip=1e6, head=head)
    done = run(Plan(algorithm, NoNoise(), n_tasks=2), tasks)
    rows = [slice(*tasks.offsets[k : k + 2]) for k in range(2)]
    data = [(torch.tensor(tasks.X[at]).float(), torch.tensor(tasks.y[at]).float()) for at in rows]
    nets = [copy.deepcopy(algorithm.learner.net) for _ in range(2)]
    told = []
    for net, own in zip(nets, data, strict=True):
        by_hand(net, net.own, *own, 0.1, 3)
        told.append(by_hand(net, net.common, *own, 0.05, 2))
    np.testing.assert_allclose(done.board["mean"], torch.stack(told).mean(0), atol=1e-6)
    for k, (net, own) in enumerate(zip(nets, data, strict=True)):
        nn.utils.vector_to_parameters(torch.tensor(done.board["mean"]), net.common.parameters())
        last = by_hand(net, net.own, *own, 0.1, 3)
        np.testing.assert_allclose(done.private.models["coef"][k], [*done.board["mean"], *last], atol=2e-6)


def test_fedrep_needs_personal_parameters():
    with pytest.raises(
        PlanError, match=r"this learner has no personal ones. Name them, Module\(net, personal"
    ):
        FedRep(Module(nn.Linear(3, 1)), STEPS)


@pytest.mark.parametrize("name", ["FedRep", pytest.param("Ditto", marks=pytest.mark.slow)])
def test_the_contract_is_kept(name):
    check_algorithm(replace(ALGORITHMS[name], learner=learner(together)), make_tasks(count=4))


def test_a_plan_with_personal_parameters_is_saved_and_its_run_goes_on(tmp_path):
    """A journal keeps the states between rounds: personal parameters with them."""
    plan = Plan(ALGORITHMS["FedAvg"], Gaussian(1.0), n_tasks=M)
    whole = run(plan, TASKS, random_state=3)

    def stop(posted):
        if posted.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan, TASKS, random_state=3, journal=tmp_path / "run", progress=stop)
    done = run(plan, TASKS, random_state=3, journal=tmp_path / "run")
    assert done.board.head == whole.board.head
    np.testing.assert_array_equal(done.private.models["coef"], whole.private.models["coef"])
    assert Plan.from_toml(plan.to_toml(), types=[learner()]) == plan
    with pytest.raises(PlanError, match="none that was handed over is the one"):
        Plan.from_toml(plan.to_toml(), types=[Module(Apart(), apart)])
