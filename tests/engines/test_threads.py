"""Blocks side by side: the same to the bit as one after another, in order, few at a time."""

from __future__ import annotations

import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan, Tasks, run
from cloister.algorithms import FineTuning, Personalized
from cloister.engines import Batched
from cloister.engines.threads import AHEAD, side_by_side
from cloister.learners import EWC, Descent, Module
from cloister.mechanisms import Gaussian
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
