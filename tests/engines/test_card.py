"""A graphics card against the processor, for each kind of layer, training and part of a network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from cloister import Plan, Tasks, run
from cloister.algorithms import Ditto, FedAvg, FedRep, FineTuning, Personalized, Scaffold
from cloister.engines import Batched
from cloister.learners import EWC, Adam, Descent, Module
from cloister.mechanisms import Gaussian, NoNoise
from cloister.sampling import Poisson

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no graphics card")

TASKS, ROWS = 9, 10
SOLVER = Descent(0.1, batch=4, epochs=1, momentum=0.4)


def tasks_of(*shape):
    """All of one size, so that there is one program to compile."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(TASKS * ROWS, *shape)).astype(np.float32)
    return Tasks.from_arrays(X, rng.integers(0, 3, len(X)), np.repeat(np.arange(TASKS), ROWS))


def pooled(second=nn.ReLU):
    """Its first three layers are one kernel on a card; so are the next ones if they are the same."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3, stride=2, padding=1), second(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


def frozen(adapter=False):
    """A public body with batch normalisation, and a head; or with an adapter of low rank between the two."""
    body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()).requires_grad_(False)
    low = (nn.Linear(8, 2, bias=False), nn.Linear(2, 8)) if adapter else ()
    return nn.Sequential(body, *low, nn.Linear(8, 3))


def plain():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


class Attends(nn.Module):
    """A block that goes through ``torch.vmap``."""

    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.block(x).mean(1))


class Recurs(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Branches(nn.Module):
    """Asks which way to go of a parameter, of which clients have one each."""

    def __init__(self):
        super().__init__()
        self.sign, self.head = nn.Parameter(torch.ones(())), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(x) * (self.sign if self.sign > 0 else -self.sign)


class Reads(nn.Module):
    """Goes a shorter way where nothing is masked, unless it is traced or recorded, as transformers does."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(7, 8), nn.Embedding(5, 8), nn.Linear(8, 3)

    def forward(self, codes, mask):
        seen = self.words(codes) + self.places(torch.arange(5, device=codes.device)[None])
        watched = isinstance(mask, FakeTensor) or (mask.is_cuda and torch.cuda.is_current_stream_capturing())
        if not watched and mask.all():
            return self.head(torch.tanh(seen).mean(1))
        shares = mask / mask.sum(1, keepdim=True).clamp(min=1)
        return self.head((torch.tanh(seen) * shares[..., None]).sum(1))


def learner(build, personal=()):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Module(build(), personal=personal)


WAYS = {
    "pooled": (FedAvg(learner(pooled), SOLVER, clip=0.3, rounds=3), (2, 9, 8)),
    "convolutions": (
        Personalized(
            learner(lambda: pooled(nn.Tanh)),
            SOLVER,
            clip=0.3,
            rounds=3,
            finetune=FineTuning(Descent(0.1, batch=3, steps=4), EWC(1.0)),
        ),
        (2, 9, 8),
    ),
    "frozen": (FedAvg(learner(frozen), SOLVER, clip=0.3, rounds=3), (6,)),
    "adapter, Adam": (
        FedAvg(
            learner(lambda: frozen(adapter=True)),
            Adam(0.01, batch=4, epochs=1, max_norm=1.0),
            clip=0.3,
            rounds=3,
        ),
        (6,),
    ),
    "personal": (FedRep(learner(plain, personal=("2.*",)), SOLVER, head=SOLVER, clip=0.3, rounds=3), (6,)),
    "attention": (Ditto(learner(Attends), SOLVER, clip=0.3, rounds=2), (4, 8)),
    "control variates": (
        Scaffold(learner(plain), Descent(0.1, batch=4, steps=3), clip=0.3, rounds=3),
        (6,),
    ),
    "one task after another": (FedAvg(learner(Branches), SOLVER, clip=0.3, rounds=2), (6,)),
    "lstm": (FedAvg(learner(Recurs), SOLVER, clip=0.3, rounds=2), (4, 3)),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # attention under vmap, on the processor
@pytest.mark.parametrize(
    ("name", "compiled"), [*((name, False) for name in WAYS), ("pooled", True), ("adapter, Adam", True)]
)
def test_a_card_agrees_with_the_processor(name, compiled):
    algorithm, shape = WAYS[name]
    plan = Plan(algorithm, Gaussian(1.0), Poisson(0.6), n_tasks=TASKS)
    tasks = tasks_of(*shape)
    one = run(plan, tasks, random_state=0)
    two = run(plan, tasks, random_state=0, engine=Batched("cuda", compiled=compiled))
    np.testing.assert_allclose(two.private.models["coef"], one.private.models["coef"], atol=1e-4)
    np.testing.assert_allclose(two.board["mean"], one.board["mean"], atol=1e-4)


def test_rows_that_do_not_fit_pass_through_block_by_block(monkeypatch):
    """With room for three tasks at once, of two sizes: each size has a program of its own, in one memory."""
    count = 60
    sizes = np.where(np.arange(count) % 2, ROWS, 3 * ROWS)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(sizes.sum(), 6)).astype(np.float32)
    tasks = Tasks.from_arrays(X, rng.integers(0, 3, len(X)), np.repeat(np.arange(count), sizes))
    plan = Plan(Ditto(learner(plain), SOLVER, clip=0.3, rounds=3), Gaussian(1.0), n_tasks=count)
    engine = Batched("cuda", compiled=False)
    room = 2 * 3.5 * engine.footprint(plan, tasks).task_bytes
    monkeypatch.setattr("cloister.networks.batched.free_memory", lambda card: room)
    takes = engine.footprint(plan, tasks)
    assert (takes.tasks, takes.rows_bytes) == (3, 0)
    one, two = (run(plan, tasks, random_state=0, engine=engine) for engine in (Batched("cpu"), engine))
    np.testing.assert_allclose(two.private.models["coef"], one.private.models["coef"], atol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_masked_texts_agree_with_the_processor(compiled):
    """Some tasks hide nothing, and others do: what is recorded of the first must hold for all."""
    rng = np.random.default_rng(0)
    mask = np.arange(5) < rng.integers(2, 6, TASKS * ROWS)[:, None]
    mask[: 4 * ROWS] = True
    X = {"codes": rng.integers(0, 7, mask.shape), "mask": mask}
    tasks = Tasks.from_arrays(X, rng.integers(0, 3, len(mask)), np.repeat(np.arange(TASKS), ROWS))
    plan = Plan(FedAvg(learner(Reads), SOLVER, clip=0.3, rounds=3), Gaussian(1.0), n_tasks=TASKS)
    one = run(plan, tasks, random_state=0)
    two = run(plan, tasks, random_state=0, engine=Batched("cuda", compiled=compiled, block=4))
    np.testing.assert_allclose(two.private.models["coef"], one.private.models["coef"], atol=1e-4)


@pytest.mark.parametrize("groups", [1, 4])
def test_sixteen_bits_where_a_layer_has_no_rule_for_them(groups):
    layers = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, groups=groups), nn.GroupNorm(2, 4), nn.ReLU()
    own = learner(lambda: nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3)))
    plan = Plan(FedAvg(own, SOLVER, clip=9.0, rounds=2), NoNoise(), n_tasks=TASKS)
    tasks = tasks_of(2, 4, 4)
    one = run(plan, tasks, random_state=0).private.models["coef"][0]
    two = run(plan, tasks, random_state=0, engine=Batched("cuda", bf16=True)).private.models["coef"][0]
    assert np.abs(one - two).max() < 0.05 * np.abs(one - own.start()).max()
