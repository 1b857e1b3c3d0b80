"""What a solver keeps from step to step is a task's own: it is acquitted, and convicted where it is not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from cloister import Plan
from cloister.algorithms import Ditto, FedAvg, FineTuning, MetaSGD, Personalized
from cloister.audit import audit
from cloister.audit.isolation import check_isolation
from cloister.core.arrays import namespace
from cloister.core.spec import Target
from cloister.learners import Adam, AdamW, Convex, Cosine, LeastSquares, Module
from cloister.networks.module import NetworkRows

SOLVER = Adam(0.1, steps=3, max_norm=0.5, over_steps=Cosine(3, floor=0.5))


class Sized(Module):
    """A network that says which rows it takes, so that the auditor can invent some."""

    @property
    def rows(self):
        return NetworkRows(features=(3,), target=Target.CLASS, classes=3, learner=self)


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Sized(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)))


def line():
    return Convex(LeastSquares(3))


def plan_of(algorithm):
    return Plan(algorithm, n_tasks=100).calibrate(1.0)


def test_a_run_with_adam_is_acquitted():
    """By every test of the auditor: the game at 95 % confidence, with a fixed seed."""
    found = audit(plan_of(FedAvg(line(), SOLVER, rounds=2)), draws=1000, random_state=0)
    assert not found.convicted, found.reasons
    assert found.isolation.holds


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(network(), Adam(0.1, batch=2, epochs=2), rounds=2, finetune=FineTuning(AdamW(0.1, steps=3))),
        Personalized(network(), SOLVER, rounds=2),
        Ditto(network(), SOLVER, rounds=2),
        MetaSGD(line(), SOLVER, rounds=2),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_tasks_with_adam_are_apart(algorithm):
    found = check_isolation(plan_of(algorithm))
    assert found.holds, found.detail


@dataclass(frozen=True)
class SharedMoments(Adam):
    """Measures steps by the squares of all tasks' gradients."""

    def moments(self, gradient, kept, corrections):
        direction, (first, second) = super().moments(gradient, kept, corrections)
        return direction, (first, 0 * second + second.mean(0))


@dataclass(frozen=True)
class NextOnesMoments(Adam):
    """Hands what it keeps to the next task."""

    def moments(self, gradient, kept, corrections):
        direction, kept = super().moments(gradient, kept, corrections)
        return direction, tuple(namespace(own).roll(own, 1, 0) for own in kept)


@dataclass(frozen=True)
class OneLength(Adam):
    """Shortens all gradients by the length of the longest."""

    def shortened(self, gradients):
        return tuple(g / (abs(g).max() + 1e-6) for g in gradients)


@pytest.mark.parametrize("kind", [SharedMoments, NextOnesMoments, OneLength])
@pytest.mark.parametrize("learner", [line, network])
def test_what_tasks_share_in_a_solver_is_convicted(kind, learner):
    found = check_isolation(
        plan_of(FedAvg(learner(), SOLVER, finetune=FineTuning(kind(0.1, steps=3)), rounds=2))
    )
    assert found.holds is False
    assert "other tasks" in found.detail
