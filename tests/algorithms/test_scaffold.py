"""SCAFFOLD is the paper's, ends at the optimum of all tasks, and tells no more than an update."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cloister import Plan, Tasks, check_algorithm, run
from cloister.algorithms import FedAvg, Scaffold
from cloister.engines import Batched
from cloister.errors import PlanError
from cloister.learners import Adam, Convex, Cosine, Descent, LeastSquares, Logistic, Module
from cloister.mechanisms import Gaussian, NoNoise
from cloister.sampling import FixedSize

M, DIM, STEPS, LR = 8, 3, 20, 0.1
SOLVER = Descent(LR, steps=STEPS)
LEARNER = Convex(LeastSquares(DIM))


def tasks_of(seed=0):
    """Return tasks with optima and curvatures of their own, so that local work drifts."""
    rng = np.random.default_rng(seed)
    X = [rng.normal(size=(12, DIM)) * rng.uniform(0.2, 2.0, DIM) for _ in range(M)]
    return Tasks.from_list(X, [x @ rng.normal(size=DIM) * 2 for x in X])


TASKS = tasks_of()


def curvature(k):
    """Return a task's quadratic, the mean of half its squared errors: its matrix and its slope at zero."""
    rows = slice(*TASKS.offsets[k : k + 2])
    return TASKS.X[rows].T @ TASKS.X[rows] / 12, TASKS.X[rows].T @ TASKS.y[rows] / 12


def plan_of(algorithm, mechanism=None, sampling=None):
    given = {} if sampling is None else {"sampling": sampling}
    return Plan(algorithm, mechanism or NoNoise(), n_tasks=M, **given)


def test_it_ends_at_the_optimum_of_all_and_averaging_does_not():
    matrices, slopes = zip(*(curvature(k) for k in range(M)), strict=True)
    best = np.linalg.solve(np.mean(matrices, axis=0), np.mean(slopes, axis=0))
    ends = {}
    for kind in (FedAvg, Scaffold):
        done = run(plan_of(kind(LEARNER, SOLVER, clip=1e3, rounds=150)), TASKS, random_state=0)
        ends[kind] = np.abs(done.board["mean"] - best).max()
    assert ends[Scaffold] < 1e-4 * ends[FedAvg]
    assert ends[FedAvg] > 0.1


def test_it_is_the_algorithm_of_the_paper():
    """Algorithm 1 with option II, in which sampled tasks send the change of their control variates too."""
    share, rounds = 0.5, 12
    algorithm = Scaffold(LEARNER, SOLVER, clip=1e3, rounds=rounds, share=share)
    done = run(plan_of(algorithm, sampling=FixedSize(M // 2)), TASKS, random_state=3)
    x, c, own = np.zeros(DIM), np.zeros(DIM), np.zeros((M, DIM))
    for coins in done.private.coins:
        moves, changes = [], []
        for k in np.flatnonzero(coins):
            (matrix, slope), y = curvature(k), x
            for _ in range(STEPS):
                y = y - LR * (matrix @ y - slope - own[k] + c)
            new = own[k] - c + (x - y) / (STEPS * LR)
            moves, changes, own[k] = [*moves, y - x], [*changes, new - own[k]], new
        x, c = x + np.mean(moves, axis=0), c + share * np.mean(changes, axis=0)
    np.testing.assert_allclose(done.board["mean"], x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(done.board["control"], c, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip", [1e3, 0.2])
def test_the_public_control_variate_is_the_mean_of_all_clipped_or_not(clip):
    """Of a network's shared parameters, with batches, a schedule and personal ones beside them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(DIM, 4), nn.Tanh(), nn.Linear(4, 1))
    solver = Descent(0.2, batch=5, steps=6, over_rounds=Cosine(9, floor=0.1))
    algorithm = Scaffold(Module(net, nn.MSELoss(), personal=("2.*",)), solver, clip=clip, rounds=3)
    block = next(TASKS.blocks([np.arange(M)]))
    board = type("Board", (dict,), {"rounds": 0})(algorithm.start())
    states = algorithm.init(block, board)
    for _ in range(3):
        told, states = algorithm.send(states, block, board)
        length = np.linalg.norm(told, axis=1, keepdims=True)
        value = (told / np.maximum(length, clip)).sum(axis=0)  # in units of the clip
        board.update(algorithm.update(SimpleNamespace(value=value, denominator=M), board))
        board.rounds += 1
        np.testing.assert_allclose(board["control"], states["control"].mean(axis=0), atol=1e-5)
    assert np.abs(board["control"]).max() > 1e-2
    assert set(states) == {"control", "personal"}


def test_engines_agree_and_tasks_are_apart():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(DIM, 4), nn.Tanh(), nn.Linear(4, 1))
    algorithm = Scaffold(Module(net, nn.MSELoss()), Descent(0.1, batch=5, steps=6), clip=0.5, rounds=3)
    one, two = (run(plan_of(algorithm), TASKS, random_state=0, **e) for e in ({}, {"engine": Batched("cpu")}))
    for name in ("mean", "control"):
        np.testing.assert_allclose(two.board[name], one.board[name], atol=1e-5)
    check_algorithm(algorithm, TASKS)
    check_algorithm(Scaffold(Convex(Logistic(DIM)), SOLVER, rounds=3), Tasks(
        TASKS.ids, TASKS.X, (TASKS.y > 0).astype(float), TASKS.weight, TASKS.offsets
    ))  # fmt: skip


def control_with(y, clip, lr=LR):
    """Return what a round posts if the first task's targets are these: of one column that is 1 throughout."""
    X, targets = np.ones((M, 1)), np.concatenate([[y], np.zeros(M - 1)])
    algorithm = Scaffold(Convex(LeastSquares(1)), Descent(lr, steps=STEPS), clip=clip, rounds=1)
    tasks = Tasks.from_arrays(X, targets, np.arange(M))
    return run(plan_of(algorithm), tasks, random_state=0).board["control"][0]


@settings(max_examples=25, deadline=None)
@given(st.floats(-50, 50), st.floats(-50, 50), st.floats(0.1, 3))
def test_a_task_moves_the_control_variate_by_no_more_than_its_update(one, other, clip):
    """By 2 clip / (m K lr) if its data are replaced, by half of that if it is silent; opposite data do."""
    most = 2 * clip / (M * STEPS * LR)
    assert abs(control_with(one, clip) - control_with(other, clip)) <= most * (1 + 1e-5)
    assert math.isclose(control_with(50.0, clip) - control_with(-50.0, clip), -most, rel_tol=1e-5)
    assert math.isclose(control_with(0.0, clip) - control_with(-50.0, clip), -most / 2, rel_tol=1e-5)


@pytest.mark.noise_seed(0)
def test_noise_of_the_control_variate():
    """Where nothing is told it is the noise of the mean over K lr; false alarm of one in a million."""
    size, clip = 20_000, 0.7
    algorithm = Scaffold(Convex(LeastSquares(size)), SOLVER, clip=clip, rounds=1)
    tasks = Tasks.from_arrays(np.zeros((M, size)), np.zeros(M), np.arange(M))
    done = run(plan_of(algorithm, Gaussian(1.3)), tasks, random_state=0)
    units = done.board.releases[0].noise  # of the sum, in units of the clip
    deviation = units * clip / M / (STEPS * LR)
    square = (done.board["control"].astype(np.float64) ** 2).mean()
    within = lambda scale: abs(square / (scale * deviation) ** 2 - 1) < 4.9 * math.sqrt(2 / size)  # noqa: E731
    assert within(1.0)
    assert not within(2 / 3)
    assert not within(3 / 2)


def test_gradients_and_linear_terms_are_those_of_torch():
    torch.manual_seed(0)
    net, tasks = nn.Linear(DIM, 1), Tasks.from_list([TASKS.X[:5], TASKS.X[5:8]], [TASKS.y[:5], TASKS.y[5:8]])
    learner, block = Module(net, nn.MSELoss()), next(tasks.blocks([np.arange(2)]))
    start = np.repeat(learner.start()[None], 2, axis=0)
    linear = np.array([[0.3, -0.2, 0.1, 0.5], [0.0, 1.0, -1.0, 0.2]], dtype=np.float32)
    found, ended = learner.gradient(start, block), learner.descend(start, block, SOLVER, 0, linear=linear)
    for k, (X, y) in enumerate(((TASKS.X[:5], TASKS.y[:5]), (TASKS.X[5:8], TASKS.y[5:8]))):
        own = learner.module(start[k])
        rows, targets = torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
        for step in range(STEPS):
            own.zero_grad()
            nn.functional.mse_loss(own(rows)[:, 0], targets).backward()
            slope = torch.cat([p.grad.reshape(-1) for p in own.parameters()])
            if step == 0:
                np.testing.assert_allclose(found[k], slope, rtol=1e-5, atol=1e-6)
            flat = nn.utils.parameters_to_vector(own.parameters()) - LR * (slope + torch.tensor(linear[k]))
            nn.utils.vector_to_parameters(flat.detach(), own.parameters())
        np.testing.assert_allclose(ended[k], flat.detach(), rtol=1e-4, atol=1e-5)


def test_what_it_cannot_use_is_refused():
    with pytest.raises(PlanError, match="Use Descent without momentum"):
        Scaffold(LEARNER, Adam(0.1, steps=3))
    with pytest.raises(PlanError, match="a number of steps that is the same for all tasks"):
        Scaffold(Module(nn.Linear(3, 1), nn.MSELoss()), Descent(0.1, batch=5, epochs=2))
    with pytest.raises(PlanError, match=r"share must be .* in \(0, 1\]. Got 0"):
        Scaffold(LEARNER, SOLVER, share=0)
