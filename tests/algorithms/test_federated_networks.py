"""Networks trained together: contract, equivalences, limits, and what the curator does with an update."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan, Tasks, check_algorithm, run
from cloister.algorithms import (
    Ditto,
    FedAvg,
    FedProx,
    FineTuning,
    Increment,
    LocalOnly,
    Offset,
    Personalized,
    Position,
    ServerAdam,
    ServerAdamW,
    ServerAverage,
    ServerMomentum,
)
from cloister.errors import PlanError
from cloister.learners import EWC, Adam, Descent, Module, Quadratic, SymmetrizedKL
from cloister.mechanisms import Gaussian, NoNoise
from cloister.sampling import FixedSize, Poisson

M = 9
FAR = 1e6  # a clip that nothing reaches


def half_square(outputs, targets):
    return 0.5 * (outputs[:, 0] - targets) ** 2


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Module(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))


def make_tasks(seed=0, count=M):
    rng = np.random.default_rng(seed)
    ids = np.repeat([f"t{i}" for i in range(count)], rng.integers(1, 7, count))
    return Tasks.from_arrays(rng.normal(size=(len(ids), 3)), rng.integers(0, 3, len(ids)), ids)


STEPS = Descent(0.1, batch=2, momentum=0.5, decay=0.9)
ALGORITHMS = [
    FedAvg(network(), STEPS, rounds=3, server=ServerMomentum(0.5)),
    FedAvg(network(), STEPS, rounds=2, finetune=FineTuning(Descent(0.1, steps=3), EWC(2.0))),
    FedProx(network(), STEPS, rounds=2, lam=0.5, server=ServerAdam()),
    FedProx(network(), Adam(0.01, batch=4), rounds=2, server=ServerAdamW(to_start=True)),
    Ditto(network(), STEPS, rounds=2, finetune=FineTuning(Descent(0.1), SymmetrizedKL(1.0))),
    Personalized(network(), STEPS, rounds=3, finetune=FineTuning(Descent(0.1), Quadratic(1.0))),
    Personalized(network(), STEPS, rounds=2, message=Increment(1.0)),
    Personalized(network(), STEPS, rounds=2, message=Position(), server=ServerAverage(0.5)),
    LocalOnly(network(), Descent(0.1, batch=2, steps=5)),
]


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(a, marks=pytest.mark.slow if a in ALGORITHMS[5:7] else ()) for a in ALGORITHMS],
    ids=lambda a: type(a).__name__,
)
def test_they_keep_the_contract(algorithm):
    check_algorithm(algorithm, make_tasks(count=5))


# --- equivalences ----------------------------------------------------------------------------------------


def silent(algorithm, tasks, sampling=None, seed=0):
    plan = Plan(algorithm, NoNoise(), n_tasks=len(tasks))
    plan = plan if sampling is None else replace(plan, sampling=sampling)
    return run(plan, tasks, random_state=seed)


def full_slopes(learner, weights, tasks):
    """Return each task's gradient at its own weights, by one full-batch step of size 1."""
    block = next(tasks.blocks([np.arange(len(tasks))]))
    start = weights.astype(np.float32)
    return start - learner.descend(start, block, Descent(1.0, steps=1), 0)


def test_one_full_step_is_gradient_descent_on_the_printed_objective():
    """DPMTL, eq. (2): sum_k f_k(w_k) + lam/2 |w_k - mean|^2, where the mean is that of all models."""
    tasks, learner, lam, lr, rounds = make_tasks(), network(), 0.7, 0.3, 8
    done = silent(Personalized(learner, Descent(lr), clip=FAR, rounds=rounds, lam=lam), tasks)
    w = np.repeat(learner.start()[None], M, axis=0)
    for _ in range(rounds):
        leaf = torch.tensor(w, requires_grad=True)
        pull = lam / 2 * ((leaf - leaf.mean(dim=0)) ** 2).sum()
        w = w - lr * (full_slopes(learner, w, tasks) + torch.autograd.grad(pull, leaf)[0].numpy())
    np.testing.assert_allclose(done.private.models["coef"], w, atol=5e-6)
    np.testing.assert_allclose(done.board["mean"], w.mean(axis=0), atol=5e-6)


def test_all_three_messages_post_the_same_mean():
    """With everyone there, no clip and no noise, what is said does not matter."""
    tasks = make_tasks()
    boards = [
        silent(Personalized(network(), STEPS, clip=FAR, rounds=4, message=says), tasks).board["mean"]
        for says in (Offset(), Increment(1.0), Position())
    ]
    np.testing.assert_allclose(boards[1], boards[0], atol=5e-6)
    np.testing.assert_allclose(boards[2], boards[0], atol=5e-6)


def test_a_pull_of_one_step_restarts_every_task_from_the_mean():
    """With lam * lr = 1 a full step ends at mean - lr * (slope where the task was).

    In the first round, where all start at the mean, that is FedAvg to the last bits. Later the slope is taken
    at the task's own model, which is lr * slope away: as lam grows the public models agree to first order.
    """
    tasks, learner = make_tasks(), network()

    def boards(lam, rounds):
        solver = Descent(1 / lam)
        personal = silent(Personalized(learner, solver, clip=FAR, rounds=rounds, lam=lam), tasks)
        return personal, silent(FedAvg(learner, solver, clip=FAR, rounds=rounds), tasks).board["mean"]

    first, average = boards(4.0, 1)
    np.testing.assert_allclose(first.board["mean"], average, rtol=1e-6, atol=1e-7)
    second, _ = boards(4.0, 2)
    slopes = full_slopes(learner, first.private.models["coef"], tasks)
    np.testing.assert_allclose(
        second.private.models["coef"], first.board["mean"] - slopes / 4.0, rtol=1e-5, atol=1e-6
    )
    gaps, spreads = [], []
    for lam in (2.0, 20.0, 200.0):
        personal, average = boards(lam, 5)
        moved = np.linalg.norm(average - learner.start())
        gaps.append(np.linalg.norm(personal.board["mean"] - average) / moved)
        spreads.append(np.abs(personal.private.models["coef"] - personal.board["mean"]).max())
    assert gaps[0] > 5 * gaps[1] > 25 * gaps[2]
    assert spreads[0] > 5 * spreads[1] > 25 * spreads[2]


def test_without_a_pull_nothing_is_taken_from_the_board():
    """At lam = 0 models are those of local training, whatever is posted; in full batches, LocalOnly's."""
    tasks, learner = make_tasks(), network()
    block = next(tasks.blocks([np.arange(M)]))
    solver = Descent(0.2, epochs=2, momentum=0.4)
    loud = Plan(Personalized(learner, solver, rounds=3, lam=0.0), Gaussian(0.01), n_tasks=M)
    models = [run(loud, tasks, random_state=seed).private.models["coef"] for seed in (0, 1)]
    alone = learner.spread(learner.start(), block)
    for t in range(3):
        alone = learner.descend(alone, block, solver, t)
    np.testing.assert_array_equal(models[0], models[1])
    np.testing.assert_allclose(models[0], alone, rtol=1e-6, atol=1e-7)
    plain = Plan(Personalized(learner, Descent(0.2, epochs=2), rounds=3, lam=0.0), Gaussian(1.0), n_tasks=M)
    same = run(Plan(LocalOnly(learner, Descent(0.2, steps=6)), n_tasks=M), tasks)
    together = run(plain, tasks, random_state=0)
    np.testing.assert_allclose(
        together.private.models["coef"], same.private.models["coef"], rtol=1e-6, atol=1e-7
    )


def test_fedprox_without_a_pull_is_fedavg_and_ditto_says_what_fedavg_says():
    tasks = make_tasks()
    plain = silent(FedAvg(network(), STEPS, rounds=3), tasks)
    prox = silent(FedProx(network(), STEPS, rounds=3, lam=0.0), tasks)
    ditto = silent(Ditto(network(), STEPS, rounds=3, lam=0.3), tasks)
    np.testing.assert_array_equal(prox.board["mean"], plain.board["mean"])
    np.testing.assert_array_equal(ditto.board["mean"], plain.board["mean"])
    assert not np.allclose(ditto.private.models["coef"], plain.private.models["coef"])


# --- limits, with f_k = (w - centre_k)^2 / 2 ---------------------------------------------------------------

CENTRES = np.linspace(-1.0, 3.0, 12)
PARABOLAS = Tasks.from_arrays(np.ones((12, 1)), CENTRES, np.arange(12))


@dataclass(frozen=True)
class AsPrinted(Increment):
    """PMTL, Algorithm 1, line 8: increments over the number of sampled tasks."""

    def step(self, noisy, board):
        return noisy


def public_models(says, lam, rounds, sampling):
    flat = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(flat.weight)
    algorithm = Personalized(
        Module(flat, half_square), Descent(0.7, steps=8), clip=FAR, rounds=rounds, lam=lam, message=says
    )
    board = silent(algorithm, PARABOLAS, sampling).board
    return np.array([board.before(t)["mean"][0] for t in range(rounds + 1)])


@pytest.mark.parametrize("lam", [0.1, 0.5])
def test_increments_over_all_tasks_reach_the_mean(lam):
    """To rounding, though only a quarter takes part: the board is the mean of all models at every moment."""
    means = public_models(Increment(0.25), lam, 120, FixedSize(3))
    np.testing.assert_allclose(means[-1], CENTRES.mean(), atol=1e-4)


@pytest.mark.parametrize("lam", [0.1, 0.5])
def test_offsets_reach_the_mean(lam):
    """Exactly with everyone there; with a quarter of them, on average.

    Sampled, the board is an autoregression about the mean of all centres, driven by the mean of 3 of 12; its
    average over 150 rounds has a standard deviation of 0.66 / sqrt(150). False alarms: 1 in 10,000.
    """
    np.testing.assert_allclose(public_models(Offset(), lam, 60, None)[-1], CENTRES.mean(), atol=1e-4)
    sampled = public_models(Offset(), lam, 180, FixedSize(3))[31:]
    assert abs(sampled.mean() - CENTRES.mean()) < 4 * 0.66 / np.sqrt(150)


def test_the_printed_form_has_another_limit_or_none():
    """With r = m / q = 4 it tends to r * mean / (1 - lam (r - 1)), and diverges from lam = 1/3 on."""
    wrong = public_models(AsPrinted(1.0), 0.1, 120, FixedSize(3))
    np.testing.assert_allclose(wrong[-1], 4 * CENTRES.mean() / (1 - 0.1 * 3), rtol=1e-3)
    away = public_models(AsPrinted(1.0), 0.5, 60, FixedSize(3))
    assert abs(away[-1]) > 100
    assert abs(away[-1]) > 2 * abs(away[-21])  # 4/3 for every four rounds, about


# --- what cannot go wrong by construction ------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [FedAvg, FedProx, Ditto, Personalized])
def test_a_task_counts_the_same_whatever_its_number_of_rows(algorithm):
    """Ten copies of every row of one task change nothing under full batches: there are no n_k weights."""
    tasks = make_tasks()
    mine = np.repeat(tasks.ids, tasks.sizes) == "t3"
    times = np.where(mine, 10, 1)
    fat = Tasks.from_arrays(*(np.repeat(a, times, axis=0) for a in (tasks.X, tasks.y)),
                            np.repeat(np.repeat(tasks.ids, tasks.sizes), times))  # fmt: skip
    assert fat.sizes.sum() > tasks.sizes.sum()
    plan = Plan(algorithm(network(), Descent(0.3, epochs=2), rounds=3, clip=0.5), NoNoise(), n_tasks=M)
    one, two = (run(plan, part, random_state=0).board for part in (tasks, fat))
    np.testing.assert_allclose(one["mean"], two["mean"], atol=1e-6)


def test_denominators_do_not_follow_who_took_part():
    plan = Plan(FedAvg(network(), STEPS, rounds=6), Gaussian(1.0), Poisson(0.3), n_tasks=M)
    done = run(plan, make_tasks(), random_state=0)
    assert len(set(np.sum(done.private.coins, axis=1))) > 1
    assert [release.denominator for release in done.board.releases] == pytest.approx([0.3 * M] * 6)


def test_a_message_that_is_not_finite_is_zero_and_the_denominator_stays():
    tasks, learner = make_tasks(), network()
    X = tasks.X.copy()
    X[slice(*tasks.offsets[4:6])] = 1e300  # infinite in 32 bits
    plan = Plan(FedAvg(learner, Descent(0.1), clip=FAR, rounds=1), NoNoise(), n_tasks=M)
    done = run(plan, replace(tasks, X=X))
    assert done.private.rejected_messages == 1
    slopes = np.delete(full_slopes(learner, np.repeat(learner.start()[None], M, axis=0), tasks), 4, axis=0)
    np.testing.assert_allclose(
        done.board["mean"], learner.start() - 0.1 * slopes.sum(axis=0) / M, rtol=1e-5, atol=1e-6
    )
    assert done.board.releases[0].denominator == M


# --- the curator's rules -----------------------------------------------------------------------------------


def test_server_rules_are_their_formulas():
    updates = np.random.default_rng(0).normal(size=(4, 3))
    rules = {
        "average": ServerAverage(0.5),
        "momentum": ServerMomentum(0.5, 0.8),
        "adam": ServerAdam(0.1, 0.9, 0.95, 1e-3),
        "to 0": ServerAdamW(0.1, 0.9, 0.95, 1e-3, weight_decay=0.5),
        "to start": ServerAdamW(0.1, 0.9, 0.95, 1e-3, weight_decay=0.5, to_start=True),
    }

    class Board(dict):
        def before(self, round):
            return {0: {"mean": np.ones(3)}}[round]

    boards = {name: Board(mean=np.ones(3), **rule.start(3)) for name, rule in rules.items()}
    for update in updates:
        boards = {name: Board(rules[name].step(board, update)) for name, board in boards.items()}
    np.testing.assert_allclose(boards["average"]["mean"], 1 + 0.5 * updates.sum(axis=0))
    worth = [sum(0.8**s for s in range(4 - t)) for t in range(4)]  # an update goes on moving the mean
    np.testing.assert_allclose(boards["momentum"]["mean"], 1 + 0.5 * np.einsum("t,td->d", worth, updates))
    mean, to_zero, to_start = np.ones((3, 3))
    for t in range(1, 5):
        ages = np.arange(t)[::-1, None]
        first = (0.1 * 0.9**ages * updates[:t]).sum(axis=0) / (1 - 0.9**t)
        second = (0.05 * 0.95**ages * updates[:t] ** 2).sum(axis=0) / (1 - 0.95**t)
        step = 0.1 * first / (np.sqrt(second) + 1e-3)
        mean, to_zero = mean + step, 0.95 * to_zero + step
        to_start = to_start + 0.05 * (1 - to_start) + step
    found = [boards[name]["mean"] for name in ("adam", "to 0", "to start")]
    np.testing.assert_allclose(found, [mean, to_zero, to_start])


def test_the_public_model_moves_by_the_rule():
    """A release of the clip's size, in units of the clip, over the denominator."""
    done = silent(
        FedAvg(network(), Descent(5.0), clip=0.01, rounds=1, server=ServerAverage(2.0)), make_tasks()
    )
    release = done.board.releases[0]
    np.testing.assert_allclose(
        done.board["mean"] - network().start(),
        2.0 * 0.01 * release.value / M,
        atol=1e-7,  # 32 bits
    )
    assert 0.02 / M < np.linalg.norm(done.board["mean"] - network().start()) <= 0.02


def test_a_newcomer_without_data_gets_the_public_model():
    done = silent(FedAvg(network(), STEPS, rounds=1), make_tasks())
    np.testing.assert_array_equal(
        done.plan.algorithm.model_without_data(done.board)["coef"][0], done.board["mean"]
    )


def test_refused_settings():
    with pytest.raises(PlanError, match=r"rounds must be a whole number, at least 1\. Got 0\. Use Local"):
        FedAvg(network(), STEPS, rounds=0)
    with pytest.raises(PlanError, match=r"lam must be a number >= 0 and finite\. Got -1"):
        Personalized(network(), STEPS, lam=-1)
    with pytest.raises(PlanError, match=r"share must be the sampling's probability, in \(0, 1\]\. Got 0"):
        Increment(0)
