"""Blocks side by side: the same to the bit as one after another, in order, few at a time."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan, Tasks, run
from cloister.algorithms import FedAvg, FineTuning, Personalized
from cloister.engines import Batched
from cloister.learners import EWC, Descent, Module
from cloister.mechanisms import Gaussian, NoNoise
from cloister.networks.body_features import keep_features
from cloister.networks.network_faults import faults_on_rows
from cloister.networks.network_inputs import RowKind
from cloister.networks.placement import AHEAD, side_by_side
from cloister.sampling import Poisson

SIZES = [1, 2, 3, 3, 5, 9, 9, 14, 20, 30]


@contextmanager
def torch_threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def plan_and_tasks():
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(len(SIZES)), SIZES)
    tasks = Tasks.from_arrays(rng.normal(size=(len(ids), 1, 9, 9)), rng.integers(0, 3, len(ids)), ids)
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    tuned = FineTuning(Descent(0.1, batch=3, steps=2), EWC(1.0))
    network = Module(nn.Sequential(*layers), personal=("4.*",))
    algorithm = Personalized(network, Descent(0.2, batch=4, momentum=0.4), rounds=3, finetune=tuned)
    return Plan(algorithm, Gaussian(exact=False), Poisson(0.6), n_tasks=len(SIZES)).calibrate(5.0), tasks


@pytest.mark.parametrize("block", [1, 2])
def test_threads_do_not_change_a_bit(block):
    """Floats, states that are kept from round to round, and personal layers; each thread has its own."""
    plan, tasks = plan_and_tasks()
    found = []
    for threads in (1, 2, 3):
        with torch_threads(threads):
            done = run(plan, tasks, random_state=0, engine=Batched("cpu", block=block))
            assert torch.get_num_threads() == threads
        found.append((done.board.head, done.private.models["coef"].tobytes()))
    assert found[0] == found[1] == found[2]


def test_what_fails_in_a_thread_is_said():
    """And torch has its threads again."""

    def work(part):
        if part == 4:
            raise ValueError("part 4")
        return part

    with torch_threads(2), pytest.raises(ValueError, match="part 4"), side_by_side(2) as each:
        list(each(work, range(100)))
    with torch_threads(2):
        with side_by_side(2) as each:
            assert next(each(work, range(3))) == 0
        assert torch.get_num_threads() == 2


def test_results_come_in_order_and_few_wait():
    begun: list[int] = []

    def work(part):
        begun.append(part)
        time.sleep(0.01 * (part % 2))
        return part

    with side_by_side(2) as each:
        for taken, part in enumerate(each(work, range(30))):
            assert part == taken
            assert len(begun) <= taken + 1 + 2 * AHEAD


class Remembering(nn.Module):
    """A loss of each example that keeps what it computes on itself, as people write them."""

    def forward(self, outputs, targets):
        self.log_p = outputs.log_softmax(-1)
        self.own = self.log_p.gather(1, targets.clamp(0, 2)[:, None])[:, 0]
        return -((1 - self.own.exp()) ** 2) * self.own


def test_a_loss_that_remembers_mixes_no_tasks():
    """Every thread has its own: else a task's gradient would be made of another task's outputs."""
    rng = np.random.default_rng(0)
    tasks = Tasks.from_list([rng.normal(size=(20, 200)) for _ in range(12)], [rng.integers(0, 3, 20)] * 12)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 3))
    algorithm = FedAvg(Module(net, Remembering()), Descent(0.1, batch=20, steps=6), rounds=2)
    plan = Plan(algorithm, Gaussian(), n_tasks=12).calibrate(8.0)
    heads = set()
    for threads in (1, 2, 2, 3):
        with torch_threads(threads):
            heads.add(run(plan, tasks, random_state=0, engine=Batched("cpu", block=2)).board.head)
    assert len(heads) == 1


class Body(nn.Module):
    """Its products have other last bits on two threads than on one, and it keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 5), nn.Linear(8 * 24**2, 20)

    def forward(self, rows):
        self.rows = rows
        return self.second(self.first(rows).relu().flatten(1)) + self.rows.mean((2, 3))


@pytest.mark.parametrize("block", [1, 5])
def test_what_a_frozen_body_makes_of_rows_does_not_depend_on_threads(block):
    """A part of the rows on each thread, with a body of its own."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(8, 1, 28, 28)) for _ in range(40)]
    tasks = Tasks.from_list(rows, [rng.integers(0, 3, 8)] * 40)
    torch.manual_seed(0)
    net = nn.Sequential(Body().requires_grad_(False), nn.Linear(20, 3))
    plan = Plan(FedAvg(Module(net), Descent(0.1, steps=1), rounds=1), NoNoise(), n_tasks=40)
    found = set()
    for threads in (1, 2, 3):
        with torch_threads(threads):
            done = run(plan, tasks, random_state=0, engine=Batched("cpu", block=block))
        found.add((done.board.head, done.private.models["coef"].tobytes()))
    assert len(found) == 1


def test_a_network_is_tried_in_threads_side_by_side():
    """Torch has one source of coins for all: what one thread does with it is not taken for another's."""
    net, kind = nn.Linear(3, 2), RowKind((3,), torch.float32)
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: faults_on_rows(net, kind), range(100)))
    finally:
        sys.setswitchinterval(before)
    assert found == [[]] * 100


class Reusing(nn.Module):
    """It writes what it returns over what it returned before, as code for inference does."""

    def __init__(self):
        super().__init__()
        self.scale, self.kept = nn.Parameter(torch.ones(64)), torch.zeros(128, 64)

    def forward(self, rows):
        return torch.mul(rows, self.scale, out=self.kept[: len(rows)])


def test_a_body_that_reuses_memory_gives_nobody_anothers_features():
    """Threads take turns at every step: where a body is lent too early, some tasks have others' rows."""
    rows = [np.full((2, 64), float(task)) for task in range(4000)]
    tasks = Tasks.from_list(rows, [np.zeros(2, dtype=np.int64)] * 4000)
    network = Module(nn.Sequential(Reusing().requires_grad_(False), nn.Linear(64, 2)))
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-6)
        with side_by_side(4) as each:
            _, found = keep_features(network, tasks, torch.device("cpu"), together=1, each=each)
    finally:
        sys.setswitchinterval(before)
    np.testing.assert_array_equal(found.X, tasks.X)


def test_how_many_threads_share_a_product_does_not_depend_on_sizes():
    """One task is never sampled, and has 20 or 40 rows: others' messages have the same bits."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 3))
    algorithm = FedAvg(Module(net), Descent(0.1, batch=10, steps=4), rounds=2)
    plan = Plan(algorithm, Gaussian(), Poisson(0.4), n_tasks=6).calibrate(8.0)
    heads = []
    for rows in (20, 40):
        rng = np.random.default_rng(1)
        data = [(rng.normal(size=(n, 1, 24, 24)), rng.integers(0, 3, n)) for n in (20, 20, 20, 20, 20, rows)]
        with torch_threads(2):
            done = run(plan, Tasks.from_list(*zip(*data, strict=True)), random_state=1, engine=Batched("cpu"))
        assert not done.private.coins[:, -1].any()
        heads.append(done.board.head)
    assert heads[0] == heads[1]
