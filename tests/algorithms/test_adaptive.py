"""A clip that follows the lengths of updates: to their quantile, in one message of exact sensitivity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan, Tasks, check_algorithm, run
from cloister.algorithms import AdaptiveFedAvg, FedAvg
from cloister.channel import Relation
from cloister.engines import Batched
from cloister.errors import PlanError
from cloister.learners import Descent, Module
from cloister.mechanisms import Gaussian, NoNoise
from cloister.sampling import Poisson

M = 40


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Module(nn.Linear(3, 3))


def make_tasks(count=M, seed=0):
    """Tasks with updates of different lengths: their inputs have different scales."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(count), rng.integers(2, 7, count))
    X = rng.normal(size=(len(ids), 3)) * np.linspace(0.2, 2, count)[ids][:, None]
    return Tasks.from_arrays(X, rng.integers(0, 3, len(ids)), ids)


ALGORITHM = AdaptiveFedAvg(network(), Descent(1e-3, steps=3), clip=1.0, rounds=60)
TASKS = make_tasks()


def lengths(tasks):
    """Return how long updates are at the start."""
    free = replace(ALGORITHM, rounds=1)
    board = Plan(free, NoNoise(), n_tasks=len(tasks)).create_board()
    block = next(tasks.blocks([np.arange(len(tasks))]))
    update, _ = FedAvg.send(free, {}, block, board)
    return np.linalg.norm(update, axis=1)


def test_it_keeps_the_contract():
    check_algorithm(replace(ALGORITHM, rounds=3), make_tasks(9))


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("first", [1e-4, 0.1])
def test_the_clip_finds_the_quantile(quantile, first):
    """Steps are so small that updates stay as long as they were at the start."""
    algorithm = replace(ALGORITHM, quantile=quantile, clip=first)
    done = run(Plan(algorithm, NoNoise(), n_tasks=M), TASKS)
    low, high = np.quantile(lengths(TASKS), [quantile - 0.1, quantile + 0.1])
    assert low < done.board["clip"][0] < high


def test_with_noise_it_comes_near():
    """Noise of 0.33 on the share of a round, which rounds average out. None of 300 seeds was outside."""
    plan = Plan(replace(ALGORITHM, clip=1e-4), Gaussian(4.0), n_tasks=M)
    found = run(plan, TASKS, random_state=0).board["clip"][0]
    low, high = np.quantile(lengths(TASKS), [0.1, 0.9])
    assert low < found < high


def test_a_round_is_federated_averaging_with_the_clip_of_the_board():
    one = run(Plan(replace(ALGORITHM, rounds=1, clip=0.002), NoNoise(), n_tasks=M), TASKS).board["mean"]
    two = run(Plan(FedAvg(network(), ALGORITHM.solver, clip=0.002, rounds=1), NoNoise(), n_tasks=M), TASKS)
    np.testing.assert_allclose(one, two.board["mean"], atol=1e-7)


def test_messages_reach_their_bound_and_no_further():
    """Opposite updates, one clipped and one not quite, are as far apart as is paid for."""
    channel = ALGORITHM.channel(None)
    board = Plan(ALGORITHM, NoNoise(), n_tasks=M).create_board()
    block = next(TASKS.blocks([np.arange(M)]))
    for scale in (1e-6, 1.0, 1e6, 1e30):
        said, _ = replace(ALGORITHM, solver=Descent(scale, steps=1)).send({}, block, board)
        finite = said[np.isfinite(said).all(axis=1)]
        assert (np.linalg.norm(finite.astype(float), axis=1) <= channel.clip * (1 + 1e-6)).all()
    unit = np.zeros(channel.dim)
    unit[0] = 1
    one, two = unit.copy(), -unit
    one[-1], two[-1] = ALGORITHM.vote / 2, -ALGORITHM.vote / 2
    paid = channel.clip * channel.sensitivity(Relation.REPLACE)
    assert np.linalg.norm(one - two) == pytest.approx(paid)


def test_engines_agree():
    plan = Plan(replace(ALGORITHM, rounds=6, clip=0.003), Gaussian(3.0), Poisson(0.7), n_tasks=M)
    one = run(plan, TASKS, random_state=0)
    two = run(plan, TASKS, random_state=0, engine=Batched("cpu", block=7))
    np.testing.assert_allclose(two.board["clip"], one.board["clip"], rtol=1e-5)
    np.testing.assert_allclose(two.board["mean"], one.board["mean"], atol=1e-5)


@pytest.mark.parametrize("wrong", [{"quantile": 1.0}, {"speed": 0.0}, {"vote": -1.0}])
def test_refused(wrong):
    with pytest.raises(PlanError, match=r"quantile must be in \(0, 1\), speed and vote > 0"):
        replace(ALGORITHM, **wrong)
