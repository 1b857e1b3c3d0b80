"""Networks that layers with an axis for tasks do not run: one by one, in 32 bits, traced without numbers."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from networks import Branches
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from cloister import Plan, Tasks, run
from cloister.algorithms import FedAvg
from cloister.engines import Batched
from cloister.learners import Descent, Module
from cloister.mechanisms import NoNoise
from cloister.networks.module_checks import Way, way_to_run
from cloister.networks.network_inputs import RowKind
from cloister.networks.recorded import traced
from cloister.networks.training import Precision, Trainer


def plan_of(net):
    return Plan(FedAvg(Module(net), Descent(0.3, epochs=3), clip=9.0, rounds=2), NoNoise(), n_tasks=3)


def tasks_of(shape, seed=0):
    rng = np.random.default_rng(seed)
    return Tasks.from_arrays(rng.normal(size=(24, *shape)), rng.integers(0, 3, 24), np.arange(24) % 3)


def by_torch(net, tasks, rounds=2, steps=3):
    """Return what the plan's rounds come to, one task after another in torch."""
    public = copy.deepcopy(net)
    for _ in range(rounds):
        start = nn.utils.parameters_to_vector(public.parameters()).detach()
        moved = []
        for task in range(len(tasks)):
            own, rows = copy.deepcopy(public), slice(*tasks.offsets[task : task + 2])
            X, y = torch.tensor(tasks.X[rows], dtype=torch.float32), torch.tensor(tasks.y[rows])
            optimiser = torch.optim.SGD(own.parameters(), 0.3)
            for _ in range(steps):
                optimiser.zero_grad()
                nn.functional.cross_entropy(own(X), y).backward()
                optimiser.step()
            moved.append(nn.utils.parameters_to_vector(own.parameters()).detach() - start)
        nn.utils.vector_to_parameters(start + torch.stack(moved).mean(0), public.parameters())
    return nn.utils.parameters_to_vector(public.parameters()).detach().numpy()


def test_a_network_that_branches_on_its_parameters_runs_one_task_after_another():
    torch.manual_seed(0)
    net, tasks = Branches(), tasks_of((4,))
    assert way_to_run(net, RowKind.of(tasks.X)) is Way.ONE_BY_ONE
    for engine in (Batched("cpu"), Batched("cpu", block=1)):
        found = run(plan_of(net), tasks, engine=engine, random_state=0)
        np.testing.assert_allclose(found.private.models["coef"][0], by_torch(net, tasks), atol=1e-6)


@pytest.mark.parametrize("groups", [1, 2])
def test_sixteen_bits_reach_as_far_as_they_can(groups):
    """A grouped convolution goes through vmap, where it has no rule for them: it alone stays in 32 bits."""
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, groups=groups), nn.GroupNorm(2, 4), nn.ReLU()
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3))
    tasks = tasks_of((2, 4, 4))
    trainer = Trainer(net, nn.functional.cross_entropy, precision=Precision(bf16=True))
    trainer.settle(RowKind.of(tasks.X).synthetic(2))
    assert not trainer.one_by_one  # all else is together
    exact = by_torch(net, tasks)
    start = nn.utils.parameters_to_vector(net.parameters()).detach().numpy()
    found = run(plan_of(net), tasks, engine=Batched("cpu", bf16=True), random_state=0)
    apart = np.abs(found.private.models["coef"][0] - exact).max() / np.abs(exact - start).max()
    assert 1e-6 < apart < 0.05


class Skips(nn.Module):
    """Goes a shorter way where nothing is masked, unless tensors have no numbers; as some libraries do."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        known = x > 0
        if not isinstance(x, FakeTensor) and known.sum() == known.numel():
            return self.head(x)
        return self.head(torch.where(known, x, 0.0))


def test_what_is_traced_holds_for_all_rows():
    """Traced where the shorter way is open, the program is right where it is not."""
    torch.manual_seed(0)
    net = Skips()
    with torch.no_grad():
        program = traced(net, [torch.ones(2, 4)])
        rows = torch.tensor([[1.0, -1.0, 2.0, -2.0]] * 2)
        torch.testing.assert_close(program(rows), net(rows))
