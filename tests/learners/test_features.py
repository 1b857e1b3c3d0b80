"""The frozen prefix of a network: where it ends, that its features are kept, and nothing else changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from networks import Adapted, Pretrained
from torch import nn

from cloister import Ledger, Plan, Tasks, adapt, replay, run
from cloister.algorithms import FedAvg, FedRep, FineTuning, MetaSGD, Personalized
from cloister.core.tasks import padded_size
from cloister.engines import Batched, Local
from cloister.errors import BillboardError, InputError
from cloister.learners import Descent, Module, Quadratic
from cloister.mechanisms import Gaussian, NoNoise
from cloister.networks import body_features
from cloister.networks.body_features import keep_features
from cloister.networks.frozen_body import split
from cloister.sampling import Poisson

#: How far models with features kept may be from those without, in 32 bits.
TOLERANCE = 1e-5


def make_tasks(count=6, seed=0):
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(count), rng.integers(2, 12, count))
    return Tasks.from_arrays(rng.normal(size=(len(ids), 4)), rng.integers(0, 3, len(ids)), ids)


TASKS = make_tasks()


SEEN: list[int] = []


class Counted(nn.Module):
    """A frozen layer that counts, together with all its copies, the rows it has seen."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 5).requires_grad_(False)

    def forward(self, x):
        SEEN.append(len(x))
        return self.layer(x).tanh()


class Parts(nn.Module):
    """Frozen layers and constants, used in ways that tests choose; `tail` comes before what it follows."""

    def __init__(self, forward):
        super().__init__()
        self.way = forward
        self.tail, self.head = nn.Linear(5, 3), nn.Linear(5, 5)
        self.first, self.second = (nn.Linear(i, 5).requires_grad_(False) for i in (4, 5))
        self.scale = nn.Parameter(torch.linspace(0.5, 1.0, 5), requires_grad=False)

    def forward(self, x, mask=None):
        return self.way(self, x) if mask is None else None


def in_place(net, x):
    h = net.first(x)
    h.relu_()
    return net.tail(net.head(h))


def by_shape(net, x):
    h = net.second(torch.relu(net.first(x) * net.scale.exp()))
    return net.tail(net.head(h).view(h.shape[0], -1) * net.scale.exp())


#: what a network does: whether it is cut, and the frozen layers that are left in the rest
WAYS = {
    "two layers": (lambda net, x: net.tail(net.head(net.second(net.first(x).relu()))), True, set()),
    "shapes and constants": (by_shape, True, {"scale"}),
    "frozen ones behind trained ones": (
        lambda net, x: net.tail(net.second(net.head(net.first(x)))),
        True,
        {"second.weight", "second.bias"},
    ),
    "a residual of features": (
        lambda net, x: (lambda h: net.tail(net.head(h) + net.second(h)))(net.first(x)),
        True,
        {"second.weight", "second.bias"},
    ),
    "a residual of rows": (
        lambda net, x: net.tail(net.head(net.first(x)) + x.sum(1, keepdim=True)),
        False,
        None,
    ),
    "a change in place": (in_place, True, set()),
    "a branch on rows": (
        lambda net, x: net.tail(net.head(net.first(x) if x.sum() > -1e9 else x)),
        False,
        None,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_network_is_cut_where_the_rest_sees_one_value(way):
    forward, is_cut, left = WAYS[way]
    torch.manual_seed(0)
    net = Parts(forward)
    found = split(net)
    assert (found is not None) == is_cut
    if is_cut:
        x = torch.randn(3, 4)
        with torch.no_grad():
            torch.testing.assert_close(found.rest(found.body(x)), net(x))
        names = {name: p.requires_grad for name, p in found.rest.named_parameters()}
        assert {name.removeprefix("net.") for name, is_trained in names.items() if not is_trained} == left
        trained = [name for name, is_trained in names.items() if is_trained]
        assert trained == [f"net.{name}" for name, p in net.named_parameters() if p.requires_grad]


def test_networks_without_a_frozen_prefix_are_left_alone():
    for net in (nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3).requires_grad_(False))):
        assert split(net) is None
        learner = Module(net)
        assert keep_features(learner, TASKS) == (learner, TASKS)


ENGINES = {"local": Local(), "batched": Batched("cpu", block=2), "alone": Batched("cpu", block=1)}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_body_sees_every_row_once_a_run(engine, monkeypatch):
    """Padding and a few synthetic rows aside; in every step of every round where features do not fit."""
    algorithm = FedAvg(Module(nn.Sequential(Counted(), nn.Linear(5, 3))), Descent(0.1), rounds=3)
    plan, seen = Plan(algorithm, NoNoise(), n_tasks=6), []
    for most in (body_features.MOST_BYTES, body_features.MOST_BYTES, 0):
        monkeypatch.setattr(body_features, "MOST_BYTES", most)
        SEEN.clear()
        run(plan, TASKS, engine=ENGINES[engine])
        seen.append(sum(SEEN))
    _, kept, computed = seen  # in the first the network is tried on synthetic rows
    once = padded_size(TASKS.sizes).sum()
    assert once <= kept <= once + 8
    assert computed >= 3 * once


ALGORITHMS = {
    "FedAvg": lambda learner: FedAvg(
        learner, Descent(0.3, batch=3), rounds=3, finetune=FineTuning(Descent(0.1), Quadratic(0.1))
    ),
    "Personalized": lambda learner: Personalized(learner, Descent(0.3, batch=3), rounds=3),
    "FedRep": lambda learner: FedRep(learner, Descent(0.3), rounds=2),
    "MetaSGD": lambda learner: MetaSGD(learner, Descent(0.3, batch=3), rounds=2),
}
NETWORKS = {
    "body": lambda: Module(Pretrained(), personal=("head.bias",)),
    "adapter": lambda: Module(Adapted(layers=False), personal=("second.A",)),
    "adapter of layers": lambda: Module(Adapted(layers=True), personal=("second.down.*",)),
}
CASES = [("body", name, "batched") for name in ALGORITHMS]
CASES += [
    ("body", "FedAvg", "local"),
    ("adapter", "FedAvg", "batched"),
    ("adapter of layers", "FedRep", "local"),
]


@pytest.mark.parametrize(("network", "name", "engine"), CASES)
def test_kept_or_not_models_are_the_same(network, name, engine, monkeypatch):
    """Run, replay and adapt, to what 32 bits hold; run and replay of one kind to the bit."""
    torch.manual_seed(1)
    plan = Plan(ALGORITHMS[name](NETWORKS[network]()), NoNoise(), Poisson(0.5), n_tasks=6)
    late, found, where = make_tasks(2, seed=3), [], ENGINES[engine]
    for most in (body_features.MOST_BYTES, 0):
        monkeypatch.setattr(body_features, "MOST_BYTES", most)
        done = run(plan, TASKS, random_state=0, engine=where)
        coins, seeds = done.private.coins, done.private.seeds
        again = replay(plan, done.board, TASKS, coins=coins, seeds=seeds, engine=where)
        np.testing.assert_array_equal(again["coef"], done.private.models["coef"])
        own = adapt(plan, done.board, late, engine=where)["coef"]
        found.append((done.board["mean"], done.private.models["coef"], own))
    for kept, computed in zip(*found, strict=True):
        np.testing.assert_allclose(kept, computed, atol=TOLERANCE)
    assert (np.ptp(found[0][1], axis=0) > 100 * TOLERANCE).any()  # models differ between tasks


def test_apart_each_task_is_in_its_own_chunk():
    """Then its features follow from its own rows and size, to the last bit, whoever else is there."""
    torch.manual_seed(0)
    sizes = np.array([3, 3, 9, 10, 9])  # of two padded sizes
    rows = np.random.default_rng(0).normal(size=(sizes.sum(), 4))
    tasks = Tasks.from_arrays(rows, np.zeros(len(rows)), np.repeat(np.arange(5), sizes))
    learner = Module(nn.Sequential(Counted(), nn.Linear(5, 3)))
    _, every = keep_features(learner, tasks, together=1)
    assert SEEN[-5:] == [3, 3, 10, 10, 10]
    for i in range(5):
        _, one = keep_features(learner, tasks.select([i]), together=1)
        np.testing.assert_array_equal(one.X, every.X[slice(*tasks.offsets[i : i + 2])])
    _, together = keep_features(learner, tasks)
    assert SEEN[-2:] == [6, 30]
    np.testing.assert_allclose(together.X, every.X, atol=1e-6)


def test_apart_nobody_learns_from_the_last_bits_how_many_rows_others_have(monkeypatch):
    """A task sends the same to the bit, though features would fit but for one row more of another task."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(300, 65).requires_grad_(False), nn.Tanh(), nn.Linear(65, 2))
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(46, 300)), rng.integers(0, 2, 46)
    monkeypatch.setattr(body_features, "MOST_BYTES", 45 * 65 * 4)
    algorithm = FedAvg(Module(net), Descent(0.5, batch=1, epochs=3), rounds=1, clip=0.05)
    plan, engine, sent = Plan(algorithm, NoNoise(), n_tasks=2), Batched("cpu", block=1), []
    assert engine.doubts_of(plan) == ()
    for rows in (45, 46):
        tasks = Tasks.from_arrays(X[:rows], y[:rows], np.arange(rows) // 40)
        with engine.workers(plan, tasks, np.array([1, 2], dtype=np.uint64)) as workers:
            board = plan.create_board()
            workers.start(board)
            sent.append(np.asarray(workers.collect(board, algorithm.channel(board), np.array([True, False]))))
    np.testing.assert_array_equal(*sent)


def test_long_tasks_are_taken_in_pieces(monkeypatch):
    torch.manual_seed(0)
    learner = Module(Pretrained())
    _, whole = keep_features(learner, TASKS)
    monkeypatch.setattr(body_features, "AT_ONCE", 3)
    _, pieces = keep_features(learner, TASKS)
    np.testing.assert_allclose(pieces.X, whole.X, atol=1e-6)


def test_names_that_read_like_patterns_are_names():
    """A parameter called `*`, or `[a]`, is personal by itself, and no other with it."""
    body = nn.Linear(4, 5).requires_grad_(False)
    heads = OrderedDict({"[a]": nn.Linear(5, 5), "a": nn.Linear(5, 5), "*": nn.Linear(5, 3)})
    net = nn.Sequential(OrderedDict(body=body, heads=nn.Sequential(heads)))
    learner = Module(net, personal=("heads.[[]a].*", "heads.[*].bias"))
    rest, _ = keep_features(learner, TASKS)
    assert rest is not learner
    assert list(rest.layout.personal) == [f"net.{name}" for name in learner.layout.personal]
    assert list(rest.layout.shared) == [f"net.{name}" for name in learner.layout.shared]


def test_absurd_codes_stop_nobody():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Sequential(nn.Embedding(5, 4), nn.Flatten()).requires_grad_(False), nn.Linear(8, 3)
    )
    codes = np.array([[0, 1], [4, 2], [99, -7]])
    tasks = Tasks.from_arrays(codes, [0, 1, 2], [0, 0, 1])
    plan = Plan(FedAvg(Module(net), Descent(0.1), rounds=1), NoNoise(), n_tasks=2)
    nearest = replace(tasks, X=np.array([[0, 1], [4, 2], [4, 0]]))
    one, two = (run(plan, part, random_state=0).private.models["coef"] for part in (tasks, nearest))
    np.testing.assert_array_equal(one, two)


def test_a_board_is_refused_with_another_body():
    """One number of it is enough; nothing else of the plan tells them apart."""
    torch.manual_seed(0)
    net = Pretrained()
    done = run(Plan(FedAvg(Module(net), Descent(0.1), rounds=1), NoNoise(), n_tasks=6), TASKS)
    assert len(done.board.releases[0].value) == 18  # the head alone
    with torch.no_grad():
        net.body[0].weight[0, 0] += 1e-3
    other = replace(done.plan, algorithm=replace(done.plan.algorithm, learner=Module(net)))
    for again in (replay, adapt):
        with pytest.raises(BillboardError, match=r"another plan.* of the same network, its frozen"):
            again(other, done.board, TASKS)


def test_other_threads_run_their_networks_while_one_is_traced():
    torch.manual_seed(0)
    other, found = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), []

    def meanwhile(net, x):
        thread = threading.Thread(target=lambda: found.append(other(torch.ones(2, 4))))
        thread.start()
        thread.join()
        return net.tail(net.head(net.first(x)))

    assert split(Parts(meanwhile)) is not None
    torch.testing.assert_close(found[0], other(torch.ones(2, 4)))


class Experts(nn.Module):
    """A frozen layer of experts with room for a part of a batch: who comes too late gets nothing.

    With eight rows there is room for all: whatever tries a network on a few rows sees nothing of it.
    """

    def __init__(self, room=1.25, least=8):
        super().__init__()
        self.room, self.least = room, least
        self.router = nn.Linear(4, 4).requires_grad_(False)
        self.experts = nn.ModuleList(nn.Linear(4, 5).requires_grad_(False) for _ in range(4))

    def forward(self, x):
        chosen = self.router(x).argmax(1)
        place = (torch.nn.functional.one_hot(chosen, 4).cumsum(0) - 1).gather(1, chosen[:, None])[:, 0]
        kept = place < max(self.least, int(self.room * x.shape[0] / 4))
        every = torch.stack([expert(x) for expert in self.experts], 1)
        return torch.where(kept[:, None], every[torch.arange(x.shape[0]), chosen], 0.0)


class Asks(nn.Module):
    """Branches on its rows, so that its frozen layer cannot be cut off."""

    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.body(x) if x.sum() == x.sum() or True else x)


@pytest.mark.parametrize("wrap", [lambda body: nn.Sequential(body, nn.Linear(5, 3)), Asks])
@pytest.mark.parametrize("engine", [Local(), Batched("cpu")], ids=repr)
def test_a_body_that_mixes_larger_batches_only_is_refused(wrap, engine):
    torch.manual_seed(0)
    for least, mixes in ((8, True), (10_000, False)):
        net = wrap(Experts(least=least))
        plan = Plan(FedAvg(Module(net), Descent(0.1), rounds=1), NoNoise(), n_tasks=len(TASKS))
        if mixes:
            with pytest.raises(InputError, match=r"mixes examples: among \d+ rows.*no capacity"):
                run(plan, TASKS, random_state=0, engine=engine)
        else:
            run(plan, TASKS, random_state=0, engine=engine)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("engine", [Local(), Batched("cpu")], ids=repr)
def test_a_frozen_layer_behind_a_trained_one_must_keep_rows_apart_too(engine, kept, monkeypatch):
    """Whether features of what comes first are kept or not; and nothing is charged for being told so."""
    torch.manual_seed(0)
    first = nn.Linear(4, 4).requires_grad_(False)
    net = nn.Sequential(first, nn.Linear(4, 4), Experts(), nn.Linear(5, 3))
    if not kept:
        monkeypatch.setattr("cloister.networks.body_features.MOST_BYTES", 0)
    ledger = Ledger(9.0, 0.1)
    plan = Plan(FedAvg(Module(net), Descent(0.1), rounds=1), Gaussian(9.0), n_tasks=len(TASKS))
    with pytest.raises(InputError, match=r"mixes examples: among \d+ rows"):
        run(plan, TASKS, random_state=0, engine=engine, ledger=ledger)
    assert not ledger.history
