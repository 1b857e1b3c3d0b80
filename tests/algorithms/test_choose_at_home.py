"""The guard: the contract, the same guarantee, cross-validation by hand, and fewer harmed tasks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cloister import Plan, Tasks, check_algorithm, run
from cloister.algorithms import (
    ChooseAtHome,
    Decomposed,
    EntrySparse,
    Independent,
    LowRank,
    MeanRegularized,
    SharedPrior,
)
from cloister.algorithms.stacking import _average
from cloister.core.tasks import local_uniforms
from cloister.errors import PlanError
from cloister.learners import Classification, LeastSquares, Logistic, Regression, Softmax
from cloister.mechanisms import NoNoise
from cloister.sampling import Everyone, Poisson

D = 3
LOSS = LeastSquares(D)
LEARNER = Regression(D)


def make(m=10, n=9, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    X = [
        np.column_stack([np.ones(k), rng.uniform(-1, 1, (k, D - 1))]) / math.sqrt(D)
        for k in n + np.arange(m) % 3
    ]
    w = np.array([0.3, 0.8, -0.5])
    return X, [x @ w + noise * rng.normal(size=len(x)) for x in X]


@pytest.fixture(scope="module")
def tasks():
    return Tasks.from_list(*make())


@pytest.mark.parametrize(
    "algorithm",
    [
        MeanRegularized(LOSS, rounds=2, batch=4),
        LowRank(LOSS, rounds=3, warmup=5),
        Decomposed(LowRank(LOSS, rounds=2, warmup=3, lr=0.5), EntrySparse(0.1)),
        SharedPrior(LEARNER),
        Independent(LEARNER),
    ],
    ids=lambda a: type(a).__name__,
)
def test_contract(algorithm, tasks):
    check_algorithm(ChooseAtHome(algorithm, LEARNER), tasks)


@pytest.mark.parametrize("loss", [Logistic(D), pytest.param(Softmax(D, 2), marks=pytest.mark.slow)], ids=repr)
def test_contract_with_classes(loss, tasks):
    classes = Tasks(tasks.ids, tasks.X, (tasks.y > 0).astype(int), tasks.weight, tasks.offsets)
    check_algorithm(
        ChooseAtHome(MeanRegularized(loss, rounds=2, steps=2), Classification(D), folds=2), classes
    )


@pytest.mark.parametrize("algorithm", [MeanRegularized(LOSS), SharedPrior(LEARNER)], ids=repr)
def test_the_guarantee_and_the_board_are_those_of_the_algorithm(algorithm, tasks):
    plain, guarded = (
        Plan(a, n_tasks=10).calibrate(2.0) for a in (algorithm, ChooseAtHome(algorithm, LEARNER))
    )
    assert guarded.guarantee == plain.guarantee
    assert guarded.rounds == plain.rounds
    boards = [run(plan, tasks, random_state=0).board for plan in (plain, guarded)]
    for one, two in zip(*(board.releases for board in boards), strict=True):
        np.testing.assert_array_equal(one.value, two.value)


@pytest.mark.parametrize("sampling", [Everyone(), Poisson(0.5)], ids=repr)
def test_the_choice_is_cross_validation_by_hand(tasks, sampling):
    """Every task's average equals that of runs with its fold's rows really taken out, on the same board."""
    algorithm = MeanRegularized(LOSS, lam=0.2, rounds=3, steps=5, lr=1.0)
    plan = Plan(ChooseAtHome(algorithm, LEARNER, folds=3), sampling=sampling, n_tasks=10).calibrate(30.0)
    done = run(plan, tasks, random_state=0)
    own_shares = []
    for i in range(10):
        at = slice(*tasks.offsets[i : i + 2])
        X, y = tasks.X[at], tasks.y[at]
        draws = local_uniforms(np.zeros(1, dtype=np.uint64), 0, len(y))[0]
        fold = np.argsort(np.argsort(draws)) % 3
        score = np.zeros(2)
        for f in range(3):
            kept = fold != f
            for j, weights in enumerate(
                (by_hand(algorithm, done, i, X[kept], y[kept]), alone(X[kept], y[kept]))
            ):
                score[j] += np.sum((y[~kept] - X[~kept] @ weights) ** 2)
        likelihood = score ** (-len(y) / 2)
        own = likelihood[1] / likelihood.sum()
        own_shares.append(own)
        expected = own * alone(X, y) + (1 - own) * by_hand(algorithm, done, i, X, y)
        np.testing.assert_allclose(done.private.models["coef"][i], expected, rtol=1e-9, atol=1e-12)
    assert max(own_shares) > 0.5
    assert min(own_shares) < 0.5 or sampling != Everyone()


def by_hand(algorithm, done, i, X, y):
    """Return a task's model from some of its rows and the board, as it took part."""
    (block,) = Tasks.from_list([X], [y]).blocks()
    states = algorithm.init(block, done.board.before(0))
    for t in range(done.board.rounds):
        if done.private.coins[t, i]:
            _, states = algorithm.send(states, block, done.board.before(t))
    return algorithm.finish(states, block, done.board)["coef"][0]


def alone(X, y):
    plan = Plan(Independent(LEARNER), n_tasks=1)
    return run(plan, Tasks.from_list([X], [y])).private.models["coef"][0]


def test_fewer_tasks_are_harmed_where_sharing_harms():
    """A mean drowned in noise: unguarded tasks follow it, guarded ones go their own way."""
    rng = np.random.default_rng(1)
    X, y = make(m=60, n=20)
    y = [x @ rng.normal(0, 1, D) + 0.1 * rng.normal(size=len(x)) for x in X]
    tests = [np.column_stack([np.ones(50), rng.uniform(-1, 1, (50, D - 1))]) / math.sqrt(D) for _ in X]
    data = Tasks.from_list(X, y)
    truth = [np.linalg.lstsq(x, t, rcond=None)[0] for x, t in zip(X, y, strict=True)]

    def errors(algorithm):
        plan = Plan(algorithm, n_tasks=60).calibrate(0.5)
        coef = run(plan, data, random_state=0).private.models["coef"]
        return np.array([np.mean((x @ (c - w)) ** 2) for x, c, w in zip(tests, coef, truth, strict=True)])

    single, shared = errors(Independent(LEARNER)), errors(MeanRegularized(LOSS, lam=1.0, lr=1.0))
    guarded = errors(ChooseAtHome(MeanRegularized(LOSS, lam=1.0, lr=1.0), LEARNER))
    assert np.mean(shared > single) > 0.9
    assert np.mean(guarded > 1.01 * single) < 0.1


def test_a_task_of_one_row_keeps_what_is_shared():
    """It cannot fit anything to no rows; rows that cannot be used go to the shared model too."""
    X, y = make(m=12, n=12, noise=0.0)
    X[3], y[3] = X[3][:1], y[3][:1]
    data = Tasks.from_list(X, y)
    shared = MeanRegularized(LOSS, lam=0.5, lr=1.0, rounds=20)
    guarded, plain = (
        run(Plan(a, NoNoise(), n_tasks=12), data, random_state=0).private.models["coef"]
        for a in (ChooseAtHome(shared, LEARNER), shared)
    )
    np.testing.assert_array_equal(guarded[3], plain[3])


def test_an_average_of_posteriors_counts_how_far_they_are_apart():
    """Its covariance is that of the mixture: drawn from one of them by its share, and then from that one."""
    shares = np.array([[0.25], [0.75]])
    models = [
        {"coef": np.array([[0.0, 1.0]]), "covariance": 0.1 * np.eye(2)[None], "cluster": np.array([3])},
        {"coef": np.array([[2.0, 1.0]]), "covariance": 0.2 * np.eye(2)[None], "cluster": np.array([5])},
    ]
    found = _average(shares, models)
    assert found.keys() == {"coef", "covariance"}  # which of several starts was nearest has no average
    np.testing.assert_allclose(found["coef"], [[1.5, 1.0]])
    np.testing.assert_allclose(found["covariance"], [[[0.175 + 0.25 * 0.75 * 4, 0.0], [0.0, 0.175]]])


def test_what_makes_no_sense_is_refused():
    with pytest.raises(PlanError, match="folds must be at least 2"):
        ChooseAtHome(MeanRegularized(LOSS), LEARNER, folds=1)
    with pytest.raises(PlanError, match="a learner for the rows of its algorithms"):
        ChooseAtHome(MeanRegularized(LOSS), Regression(D + 1))
