"""A graphics card against the processor, for each kind of layer, training and part of a network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan, Tasks, run
from cloister.algorithms import Ditto, FedAvg, FedRep, FineTuning, Personalized
from cloister.engines import Batched
from cloister.learners import EWC, Adam, Descent, Module
from cloister.mechanisms import Gaussian
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
