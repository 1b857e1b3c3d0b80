"""Frozen bodies, personal parameters and adapters: acquitted as they are, convicted where one is told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan
from cloister.algorithms import Ditto, FedAvg, FedRep, FineTuning, MetaSGD, Personalized
from cloister.audit import audit
from cloister.audit.isolation import check_isolation
from cloister.channel import Channel
from cloister.core.channel import GRID
from cloister.core.spec import Target
from cloister.learners import Descent, Module
from cloister.networks.module import NetworkRows

STEPS = Descent(0.1, batch=2, steps=2)


class Sized(Module):
    """A network that says which rows it takes, so that the auditor can invent some."""

    @property
    def rows(self):
        return NetworkRows(features=(3,), target=Target.CLASS, classes=3, learner=self)


class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Parameter(0.3 * torch.randn(2, 4)), nn.Parameter(0.3 * torch.randn(4, 2))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def network(adapter=False):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5))
        middle = Adapter(nn.Linear(4, 4)) if adapter else nn.Linear(4, 4)
        return nn.Sequential(body.requires_grad_(False), middle, nn.Tanh(), nn.Linear(4, 3))


FROZEN = Sized(network())
PERSONAL = Sized(network(), personal=("3.*",))
ADAPTED = Sized(network(adapter=True), personal=("1.down",))


def plan_of(algorithm):
    return Plan(algorithm, n_tasks=100).calibrate(1.0)


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(FROZEN, STEPS, rounds=2, finetune=FineTuning(STEPS)),
        FedAvg(PERSONAL, STEPS, rounds=2),
        FedRep(PERSONAL, STEPS, rounds=2),
        FedRep(ADAPTED, STEPS, rounds=2),
        Ditto(ADAPTED, STEPS, rounds=2),
        Personalized(ADAPTED, STEPS, rounds=2),
        MetaSGD(PERSONAL, STEPS, rounds=2),
    ],
    ids=lambda algorithm: f"{type(algorithm).__name__} {algorithm.learner.personal}",
)
def test_tasks_are_apart(algorithm):
    found = check_isolation(plan_of(algorithm))
    assert found.holds, found.detail


@pytest.mark.parametrize("learner", [FROZEN, PERSONAL, ADAPTED], ids=["frozen", "personal", "adapter"])
def test_plans_are_acquitted(learner):
    """By every test of the auditor: the game at 95 % confidence, with a fixed seed."""
    found = audit(plan_of(FedAvg(learner, STEPS, rounds=2)), draws=1000, random_state=0)
    assert not found.convicted, found.reasons
    assert found.isolation.holds


@dataclass(frozen=True)
class Posts(FedAvg):
    """Puts the mean of tasks' personal parameters on the board, beside what was released."""

    seen: list = field(default_factory=list, compare=False)

    def send(self, states, block, board):
        messages, states = super().send(states, block, board)
        self.seen.append(states["personal"].mean())
        return messages, states

    def update(self, release, board):
        return {**super().update(release, board), "personal": np.array([self.seen[-1] if self.seen else 0.0])}

    def start(self):
        return {**super().start(), "personal": np.zeros(1)}


@dataclass(frozen=True)
class Next(FedAvg):
    """Hands a task's personal parameters to the next one."""

    def send(self, states, block, board):
        messages, states = super().send(states, block, board)
        return messages, {"personal": np.roll(states["personal"], 1, axis=0)}


@pytest.mark.parametrize(("kind", "reason"), [(Posts, "says more than follows"), (Next, "other tasks")])
def test_personal_parameters_that_reach_others_are_convicted(kind, reason):
    found = check_isolation(plan_of(kind(PERSONAL, STEPS, rounds=2)))
    assert found.holds is False
    assert reason in found.detail


@dataclass(frozen=True)
class Beside(Channel):
    """Clips all numbers of a message but the last."""

    def units(self, messages):
        rows = np.asarray(messages, dtype=np.float64)
        last = np.nan_to_num(rows[:, -1:]).clip(-1e3, 1e3) / self.clip
        return (
            last if self.dim == 1 else np.hstack([Channel(self.dim - 1, self.clip).units(rows[:, :-1]), last])
        )

    def whole(self, messages):
        return np.round(self.units(messages) * GRID)


@dataclass(frozen=True)
class TellsOne(FedAvg):
    """Says the first personal parameter beside the clipped update of the shared ones."""

    @property
    def _channel(self):
        return Beside(self.learner.shared_size + 1, self.clip)

    def send(self, states, block, board):
        messages, states = super().send(states, block, board)
        return np.hstack([messages, states["personal"][:, :1]]), states

    def update(self, release, board):
        return super().update(replace(release, value=release.value[:-1]), board)


def test_a_personal_parameter_that_is_told_is_convicted():
    found = audit(plan_of(TellsOne(PERSONAL, STEPS, rounds=2)), draws=1000, random_state=0)
    assert found.convicted
    assert found.sensitivity.breach
    assert any("times as far as is claimed" in reason for reason in found.reasons)
