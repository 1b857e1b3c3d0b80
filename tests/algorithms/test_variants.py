"""A task's own average over penalties: the contract, cross-validation by hand, and whom it helps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cloister import Billboard, Plan, Tasks, check_algorithm, replay, run
from cloister.algorithms import (
    ChooseAtHome,
    Decomposed,
    EntrySparse,
    GroupSparse,
    LowRank,
    MeanRegularized,
    SquaredNorm,
)
from cloister.core.tasks import local_uniforms
from cloister.errors import PlanError
from cloister.learners import LeastSquares, Regression
from cloister.mechanisms import NoNoise

D = 4
LOSS = LeastSquares(D)
LEARNER = Regression(D, intercept=False)
LAMS = (0.03, 0.3, 1.0)


def make(seed, m, few, many, dim=D, own=0.1):
    """Draw tasks with weights in a common plane; every other one has more rows and strays from it."""
    rng = np.random.default_rng(seed)
    plane = np.linalg.qr(rng.normal(size=(dim, 2)))[0]
    stray = np.arange(m) % 2
    W = rng.normal(0, 0.4, (m, 2)) @ plane.T + own * stray[:, None] * rng.normal(size=(m, dim))
    X = [rng.normal(size=(many if odd else few, dim)) / math.sqrt(dim) for odd in stray]
    y = [x @ w + 0.1 * rng.normal(size=len(x)) for x, w in zip(X, W, strict=True)]
    return Tasks.from_list(X, y), W


@pytest.fixture(scope="module")
def tasks():
    return make(0, m=12, few=5, many=12)[0]


def low_rank(lam):
    return LowRank(LOSS, lam=lam, rounds=3, warmup=5)


def decomposed(lam):
    return Decomposed(LowRank(LOSS, lam=lam, rounds=2, warmup=3, lr=0.5), SquaredNorm(lam))


def mean(lam):
    return MeanRegularized(LOSS, lam=lam, rounds=2, batch=3)


@pytest.mark.parametrize("kind", [low_rank, decomposed, mean], ids=lambda k: k.__name__)
@pytest.mark.parametrize("alone", [False, True])
def test_contract(kind, alone, tasks):
    first, *others = map(kind, LAMS)
    check_algorithm(ChooseAtHome(first, LEARNER, variants=tuple(others), alone=alone), tasks)


@pytest.mark.parametrize("kind", [low_rank, decomposed, mean], ids=lambda k: k.__name__)
def test_one_candidate_is_the_plain_algorithm(kind, tasks):
    """So it is when candidates are all alike."""
    plain = kind(0.3)
    alike = ChooseAtHome(plain, LEARNER, variants=(kind(0.3),), alone=False)
    found = [
        run(Plan(a, n_tasks=12).calibrate(3.0), tasks, random_state=1).private.models
        for a in (plain, ChooseAtHome(plain, LEARNER, alone=False), alike)
    ]
    for models in found[1:]:
        assert models.keys() == found[0].keys()
        for name, array in models.items():
            np.testing.assert_array_equal(array, found[0][name])


def by_hand(X, y, lam, releases, alone):
    """Return the weights of proximal gradient descent at one penalty, from rows and noisy diagonals."""
    w = np.zeros(D)
    for _ in range(alone):
        w = w - X.T @ (X @ w - y) / len(y)
    for t, (value, noise) in enumerate(releases):
        squares = np.maximum(value + noise * math.sqrt(2 * math.log(2 * D * len(releases) / 1e-3)), 1e-300)
        w = np.maximum(0, 1 - lam / np.sqrt(squares)) * w / max(1, np.linalg.norm(w))
        if t < len(releases) - 1:
            w = w - X.T @ (X @ w - y) / len(y)
    return w


def test_the_choice_is_cross_validation_by_hand(tasks):
    """Weights of every penalty by another program, its errors on rows really taken out, and the average."""
    first, *others = [GroupSparse(LOSS, lam=lam, rounds=3, accelerated=False, warmup=1) for lam in LAMS]
    chooser = ChooseAtHome(first, LEARNER, folds=4, variants=tuple(others), alone=False)
    done = run(Plan(chooser, n_tasks=12).calibrate(8.0), tasks, random_state=3)
    releases = [(release.value, release.noise) for release in done.board.releases]
    best = []
    for i in range(12):
        rows = slice(*tasks.offsets[i : i + 2])
        X, y = tasks.X[rows], tasks.y[rows]
        draws = local_uniforms(np.zeros(1, dtype=np.uint64), 0, len(y))[0]
        count = len(y) if len(y) < 8 else 4  # one at a time, of less than twice as many rows as folds
        fold = np.argsort(np.argsort(draws)) % count
        error = np.zeros(len(LAMS))
        for out in (fold == k for k in range(count)):
            fitted = [by_hand(X[~out], y[~out], lam, releases, 1) for lam in LAMS]
            error += [np.sum((y[out] - X[out] @ w) ** 2) for w in fitted]
        best.append(int(error.argmin()))
        likelihood = error ** (-len(y) / 2)
        shares = likelihood / likelihood.sum()
        expected = shares @ [by_hand(X, y, lam, releases, 1) for lam in LAMS]
        np.testing.assert_allclose(done.private.models["coef"][i], expected, rtol=1e-9, atol=1e-12)
    assert len(set(best)) > 1


def test_nothing_of_the_choice_is_public(tasks):
    """Releases, rounds and price are those of the first candidate alone, whatever stands beside it."""
    first, *others = map(low_rank, LAMS)
    plans = [
        Plan(a, n_tasks=12).calibrate(2.0)
        for a in (first, ChooseAtHome(first, LEARNER, variants=tuple(others)), ChooseAtHome(first, LEARNER))
    ]
    boards = [run(plan, tasks, random_state=0).board for plan in plans]
    for plan, board in zip(plans[1:], boards[1:], strict=True):
        assert plan.guarantee == plans[0].guarantee
        for one, two in zip(board.records, boards[0].records, strict=True):
            assert one.public.keys() == two.public.keys()
            np.testing.assert_array_equal(one.public["matrix"], two.public["matrix"])


def test_a_plan_file_tells_a_latecomer_what_to_choose_from(tasks, tmp_path):
    first, *others = map(decomposed, LAMS)
    plan = Plan(ChooseAtHome(first, LEARNER, variants=tuple(others)), n_tasks=12).calibrate(3.0)
    done = run(plan, tasks, random_state=0)
    board = Billboard.load(done.board.save(tmp_path / "board"))
    plan = Plan.load(plan.save(tmp_path / "plan.toml"))
    again = replay(plan, board, tasks, seeds=done.private.seeds)
    np.testing.assert_array_equal(again["coef"], done.private.models["coef"])


def test_it_helps_where_tasks_should_borrow_differently():
    """Half the tasks have few rows and should borrow much, half stray and should not.

    On seeds 100 to 105 the error of own averages was 0.56 to 0.61 times the best single penalty's.
    """
    dim, lams = 12, (0.03, 0.1, 0.3, 1.0, 3.0)
    data, W = make(7, m=200, few=8, many=60, dim=dim, own=0.17)
    kinds = [LowRank(LeastSquares(dim), lam=lam, lr=5.0, rounds=3) for lam in lams]
    chooser = ChooseAtHome(kinds[0], Regression(dim, intercept=False), variants=tuple(kinds[1:]), alone=False)

    def error(algorithm):
        done = run(Plan(algorithm, n_tasks=200).calibrate(4.0), data, random_state=7)
        return np.mean((done.private.models["coef"] - W) ** 2)

    assert error(chooser) < 0.75 * min(map(error, kinds))


def test_variants_that_say_something_else_are_refused(tasks):
    wrong = ChooseAtHome(low_rank(0.1), LEARNER, variants=(LowRank(LOSS, rounds=4),))
    with pytest.raises(PlanError, match="must have the rounds and channels of the algorithm"):
        Plan(wrong, n_tasks=12).calibrate(1.0)
    other = ChooseAtHome(low_rank(0.1), LEARNER, variants=(GroupSparse(LOSS, rounds=3),))
    with pytest.raises(PlanError, match="must have the rounds and channels"):
        run(Plan(other, NoNoise(), n_tasks=12), tasks)


def test_own_penalties_vary_too(tasks):
    """Whatever leaves the messages' channel alone may vary: here what a task keeps to itself."""
    shared = LowRank(LOSS, rounds=2, warmup=3, lr=0.5)
    variants = (Decomposed(shared, EntrySparse(0.001)),)
    chooser = ChooseAtHome(Decomposed(shared, EntrySparse(1.0)), LEARNER, variants=variants, alone=False)
    done = run(Plan(chooser, NoNoise(), n_tasks=12), tasks, random_state=0)
    models = done.private.models
    assert np.any(models["own"] != 0, axis=1).all()
    np.testing.assert_allclose(models["shared"] + models["own"], models["coef"], rtol=1e-9, atol=1e-12)
