"""Local noise: its law, its price against the curator, and that it changes nothing between tasks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from cloister import Plan, Tasks, check_algorithm, run
from cloister.algorithms import (
    Decomposed,
    EntrySparse,
    GroupSparse,
    LocalNoise,
    LowRank,
    MeanRegularized,
    PowerBudget,
)
from cloister.core.tasks import local_uniforms
from cloister.errors import PlanError
from cloister.learners import LeastSquares
from cloister.mechanisms import NoNoise

M, D, K, EPSILON, ROUNDS = 4000, 5, 0.8, 6.0, 3


@pytest.fixture(scope="module")
def spoken():
    """Return (messages with local noise, the same clipped to K) of every round, and the tasks' keys."""
    rng = np.random.default_rng(0)
    tasks = Tasks.from_arrays(rng.normal(size=(2 * M, D)), 3 * rng.normal(size=2 * M), np.arange(2 * M) % M)
    inner = LowRank(LeastSquares(D), lam=0.1, clip=50.0, rounds=ROUNDS, lr=0.1, warmup=5)
    noisy = LocalNoise(inner, EPSILON, clip=K)
    done = run(Plan(noisy, NoNoise(), n_tasks=M), tasks, random_state=1)
    block = next(tasks.blocks([np.arange(M)], seeds=done.private.seeds))
    states, pairs = noisy.init(block, done.board.before(0)), []
    for t in range(ROUNDS):
        board = done.board.before(t)
        clean, _ = inner.send(states, block, board)
        said, states = noisy.send(states, block, board)
        pairs.append((said, clean * np.minimum(1, K / np.linalg.norm(clean, axis=1))[:, None]))
    return pairs, block.keys


def lengths(pairs):
    return np.concatenate([np.linalg.norm(said - clean, axis=1) for said, clean in pairs])


def test_its_length_is_gamma_with_the_scale_of_the_price(spoken):
    """Density exp(-eps_t |b| / 2K) in d dimensions: length Gamma(d, 2K/eps_t); two-sided."""
    pairs, _ = spoken
    scale = 2 * K / (EPSILON / ROUNDS)
    assert stats.kstest(lengths(pairs), stats.gamma(D, scale=scale).cdf).pvalue > 0.01
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(lengths(pairs), stats.gamma(D, scale=wrong * scale).cdf).pvalue < 1e-6


def test_its_direction_is_uniform(spoken):
    """The first coordinate of a uniform direction, squared, is Beta(1/2, (d-1)/2); signs are even."""
    pairs, _ = spoken
    noise = np.concatenate([said - clean for said, clean in pairs])
    directions = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    for axis in range(D):
        law = stats.beta(0.5, (D - 1) / 2).cdf
        assert stats.kstest(directions[:, axis] ** 2, law).pvalue > 0.001
    assert np.abs(directions.mean(axis=0)).max() < 5 / math.sqrt(D * len(directions))
    assert stats.spearmanr(directions[:, 0], np.linalg.norm(noise, axis=1)).pvalue > 0.001


def test_it_is_fresh_for_every_task_and_round_and_needs_the_key(spoken):
    pairs, keys = spoken
    first, second = (said - clean for said, clean in pairs[:2])
    for one, other in ((first, second), (first, np.roll(first, 1, axis=0))):
        assert abs(stats.pearsonr(one.ravel(), other.ravel()).statistic) < 5 / math.sqrt(first.size)
    cheap = local_uniforms(keys, 0, D + 1)  # the streams of minibatches, which one draw gives away
    for column in range(D + 1):
        assert abs(stats.spearmanr(lengths(pairs[:1]), cheap[:, column]).statistic) < 5 / math.sqrt(M)


def test_two_data_sets_of_a_task_are_within_epsilon():
    """The log density of any message differs by at most eps_t: lengths |b|, |b'| differ by at most 2K."""
    rng = np.random.default_rng(4)
    ends = rng.normal(size=(2, 10_000, D))
    ends *= K / np.linalg.norm(ends, axis=2, keepdims=True)
    seen = 3 * rng.normal(size=(10_000, D))
    rate = (EPSILON / ROUNDS) / (2 * K)
    loss = rate * np.abs(np.linalg.norm(seen - ends[0], axis=1) - np.linalg.norm(seen - ends[1], axis=1))
    assert loss.max() <= EPSILON / ROUNDS
    line = rate * abs(
        np.linalg.norm(9 * ends[0, 0] - ends[0, 0]) - np.linalg.norm(9 * ends[0, 0] + ends[0, 0])
    )
    assert line == pytest.approx(EPSILON / ROUNDS)  # attained by opposite models


@pytest.mark.parametrize("epsilon", [0.5, 5.0])
@pytest.mark.parametrize("relation", ["replace", "zero_out"])
@pytest.mark.parametrize(
    "algorithm",
    [
        LowRank(LeastSquares(4), clip=2.0, rounds=7),
        GroupSparse(LeastSquares(4), clip=2.0, rounds=7),
        Decomposed(LowRank(LeastSquares(4), clip=2.0), EntrySparse(0.1)),
        MeanRegularized(LeastSquares(4), clip=2.0, rounds=7),
    ],
)
def test_it_does_not_change_what_tasks_are_promised_from_each_other(algorithm, relation, epsilon):
    """Same schedule, same channel, same noise, same words: the second clip is the plan's own."""
    plan, plain = (
        Plan(a, n_tasks=50, relation=relation).calibrate(epsilon)
        for a in (LocalNoise(algorithm, 3.0, clip=1.0), algorithm)
    )
    assert plan.rounds == plain.rounds
    assert plan.mechanism == plain.mechanism
    assert str(plan.guarantee) == str(plain.guarantee)


def test_the_second_clip_bounds_what_is_summed():
    """However loud the local noise, two runs that differ in one task differ by the channel's sensitivity."""
    rng = np.random.default_rng(6)
    X, y = rng.normal(size=(20, 6, 3)), rng.normal(size=(20, 6))
    noisy = LocalNoise(LowRank(LeastSquares(3), clip=0.5, rounds=1, lr=0.1), epsilon=0.01, clip=10.0)
    sums = []
    for factor in (1.0, -1e6, 0.0):
        y[4] *= factor
        plan = Plan(noisy, NoNoise(), n_tasks=20)
        done = run(plan, Tasks.from_list(list(X), list(y)), random_state=0)
        sums.append(done.board.releases[0].value)
    assert np.linalg.norm(sums[0] - sums[1]) <= math.sqrt(2) + 1e-12
    assert np.linalg.norm(sums[0] - sums[2]) <= math.sqrt(2) + 1e-12


def test_a_task_goes_on_with_its_clean_model():
    """Noise reaches a task's own model through the board only: with lam = 0, not at all."""
    rng = np.random.default_rng(6)
    tasks = Tasks.from_arrays(rng.normal(size=(60, 3)), rng.normal(size=60), np.arange(60) % 10)
    plain = LowRank(LeastSquares(3), lam=0.0, clip=5.0, rounds=4, lr=0.1)
    found = [
        run(Plan(a, NoNoise(), n_tasks=10), tasks, random_state=0).private.models["coef"]
        for a in (plain, LocalNoise(plain, epsilon=0.1, clip=5.0))
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-12)


def test_what_is_not_finite_is_said_as_a_noisy_zero():
    """A spoilt task must not stand out: its message is noise like any other."""
    X = np.ones((3, 2, 2))
    X[1] = 1e308
    tasks = Tasks.from_list(list(X), list(X[..., 0]))
    noisy = LocalNoise(LowRank(LeastSquares(2), clip=1.0, rounds=2), epsilon=4.0)
    done = run(Plan(noisy, NoNoise(), n_tasks=3), tasks, random_state=0)
    assert done.private.rejected_messages == 0


@pytest.mark.parametrize(
    "algorithm",
    [
        LowRank(LeastSquares(3), lam=0.2, clip=2.0, rounds=4, lr=0.05, warmup=10),
        Decomposed(GroupSparse(LeastSquares(3), rounds=3, lr=0.05, warmup=10), EntrySparse(0.1)),
        MeanRegularized(LeastSquares(3), lr=0.05),
    ],
)
def test_it_keeps_the_contract_of_an_algorithm(algorithm):
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 9, 15)
    tasks = Tasks.from_list([rng.normal(size=(n, 3)) for n in sizes], [rng.normal(size=n) for n in sizes])
    noisy = LocalNoise(algorithm, epsilon=20.0, clip=1.5)
    check_algorithm(noisy, tasks)
    plan = Plan(noisy, n_tasks=15).calibrate(1.0)
    assert Plan.from_toml(plan.to_toml()) == plan


def test_the_second_promise_says_what_it_rests_on():
    text = LocalNoise(LowRank(LeastSquares(2)), epsilon=2.5).local_guarantee
    for words in ("2.5-locally differentially private", "key is known to the task alone", "simulated"):
        assert words in text
    assert "baseline" in LocalNoise.__doc__


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": math.inf}, {"epsilon": 1.0, "clip": 0.0}])
def test_parameters_that_make_no_sense_are_refused(wrong):
    with pytest.raises(PlanError, match="must be > 0 and finite"):
        LocalNoise(LowRank(LeastSquares(2)), **wrong)


def test_only_an_algorithm_can_be_wrapped():
    with pytest.raises(PlanError, match="algorithm must be an algorithm"):
        LocalNoise(LeastSquares(2), epsilon=1.0)


def test_an_allocation_shares_the_local_budget_over_rounds():
    """Budgets like t: round t of three has t/6 of epsilon; lengths of 4000 noises say so, two-sided."""
    rng = np.random.default_rng(5)
    tasks = Tasks.from_arrays(rng.normal(size=(M, D)), rng.normal(size=M), np.arange(M))
    inner = LowRank(LeastSquares(D), lam=0.1, clip=50.0, rounds=ROUNDS, lr=0.1, warmup=0)
    noisy = LocalNoise(inner, EPSILON, K, PowerBudget(1.0))
    done = run(Plan(noisy, NoNoise(), n_tasks=M), tasks, random_state=1)
    block = next(tasks.blocks([np.arange(M)], seeds=done.private.seeds))
    states, quiet = noisy.init(block, done.board.before(0)), []
    for t in range(ROUNDS):
        board = done.board.before(t)
        clean, _ = inner.send(states, block, board)
        said, states = noisy.send(states, block, board)
        clipped = clean * np.minimum(1, K / np.maximum(np.linalg.norm(clean, axis=1), 1e-300))[:, None]
        scale = 2 * K / (EPSILON * (t + 1) / 6)
        quiet.append(scale)
        found = np.linalg.norm(said - clipped, axis=1)
        assert stats.kstest(found, stats.gamma(D, scale=scale).cdf).pvalue > 1e-3
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(found, stats.gamma(D, scale=wrong * scale).cdf).pvalue < 1e-6
    assert sum(2 * K / scale for scale in quiet) == pytest.approx(EPSILON)
