"""Blends, and the round that asks how far tasks rely on the shared model: bounds, by hand, and less harm."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import chi2

from cloister import Plan, Tasks, check_algorithm, run
from cloister.algorithms import (
    ChooseAtHome,
    Decomposed,
    EntrySparse,
    Independent,
    Locate,
    LowRank,
    MeanRegularized,
    MetaSGD,
)
from cloister.algorithms.blends import BY_ROWS, PARTS, QUESTION, UNHEARD, log_prior, majorities
from cloister.algorithms.stacking import _normal, _replay, votes
from cloister.channel import Relation
from cloister.errors import PlanError
from cloister.learners import Classification, Convex, ExactSolver, LeastSquares, Logistic, Regression
from cloister.learners.home import Home
from cloister.mechanisms import Gaussian, NoNoise
from cloister.sampling import Everyone, Poisson

D = 3
LOSS, LEARNER = LeastSquares(D), Regression(D)
MEAN = MeanRegularized(LOSS, lam=0.2, rounds=3, lr=1.0)


def make(m=12, n=8, spread=0.3, seed=0):
    """Tasks with levels and slopes around common ones, and the weights that they were drawn with."""
    rng = np.random.default_rng(seed)
    w = np.array([0.2, 0.5, -0.4]) + spread * rng.normal(size=(m, D))
    X = np.concatenate([np.ones((m, n, 1)), rng.uniform(-1, 1, (m, n, D - 1))], axis=2) / math.sqrt(D)
    y = (X @ w[:, :, None])[..., 0] + 0.15 * rng.normal(size=(m, n))
    return Tasks.from_list(list(X), list(y)), w


# What is said ----------------------------------------------------------------------------------------------

LOSSES = arrays(np.float64, (4, 2), elements=st.floats(0, np.inf) | st.just(np.nan))


@given(LOSSES)
def test_a_task_says_yes_or_no_or_nothing(losses):
    said = votes(*losses.T)
    assert set(said.ravel()) <= {0.0, 1.0}
    assert (said.sum(axis=1) <= 1).all()


@pytest.mark.parametrize("question", [QUESTION, BY_ROWS], ids=["all", "by rows"])
def test_the_sensitivity_is_attained(question):
    """One task says yes, in its place another no, be it with as many rows: the sum moves by the root of 2."""
    yes, *others = np.eye(question.dim)
    for no in others:
        moved = question.total(yes[None]) - question.total(no[None])
        assert np.linalg.norm(moved) == pytest.approx(question.sensitivity(Relation.REPLACE), rel=1e-5)
        silent = question.total(yes[None] * 0)
        assert np.linalg.norm(question.total(no[None]) - silent) == pytest.approx(1.0, rel=1e-5)


def expected_parts(*answers):
    """What tasks with rows to spare, and those with few, expect before they look at their rows."""
    return [float(PARTS @ np.exp(log_prior(one))) for one in majorities(np.array(answers))]


def test_doubt_falls_back_on_oneself():
    expected = [expected_parts((0.9, error))[0] for error in (0.0, 0.1, 0.2, 0.3, math.inf)]
    assert expected == sorted(expected, reverse=True)
    assert expected[0] == pytest.approx(0.8, abs=0.03)  # nine yes less one no of ten
    assert expected[-1] == expected[-2] == 0.0  # it may be that less than half say yes


def test_rare_and_large_losses_are_not_outvoted_by_halves():
    """Eleven of twenty gain: no majority beyond doubt, so nobody relies on it, whatever is at stake."""
    assert expected_parts((0.55, 0.04)) == [0.0, 0.0]


def test_those_of_about_as_many_rows_go_before_all():
    """As far as they were heard: they may say no where all say yes, and yes where all are in doubt."""
    all_yes, doubt, no, yes = (0.9, 0.1), (0.9, 0.4), (0.3, 0.2), (0.95, 0.05)
    many, few = expected_parts(all_yes, yes, no)
    assert few == 0.0 < expected_parts(all_yes)[0] < many
    assert expected_parts(all_yes, UNHEARD, UNHEARD) == expected_parts(all_yes)
    assert expected_parts(doubt, no, yes) == [0.0, expected_parts(yes)[1]]
    assert expected_parts(all_yes, (0.7, 0.2), UNHEARD)[0] < expected_parts(all_yes)[0]


# The round -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm",
    [
        MEAN,
        Decomposed(LowRank(LOSS, rounds=2, warmup=3, lr=0.5), EntrySparse(0.1)),
        MetaSGD(Convex(LOSS), ExactSolver(), rounds=2),
    ],
    ids=lambda a: type(a).__name__,
)
def test_contract(algorithm):
    check_algorithm(ChooseAtHome(algorithm, LEARNER, folds=3, asks=0.1, by_rows=True), make()[0])


def test_contract_with_classes_and_variants():
    tasks = make()[0]
    classes = Tasks(tasks.ids, tasks.X, (tasks.y > 0.1).astype(int), tasks.weight, tasks.offsets)
    kinds = [MeanRegularized(Logistic(D), lam=lam, rounds=2, steps=2) for lam in (0.1, 0.2)]
    chooser = ChooseAtHome(kinds[0], Classification(D), folds=2, variants=(kinds[1],), asks=0.1)
    check_algorithm(chooser, classes)


def test_messages_about_models_are_those_of_the_algorithm():
    """Of one round more, and no dearer: what was asked before is the same."""
    tasks = make()[0]
    boards = [
        run(Plan(a, NoNoise(), n_tasks=12), tasks).board
        for a in (MEAN, ChooseAtHome(MEAN, LEARNER, asks=0.1))
    ]
    assert len(boards[1].releases) == 4
    for one, two in zip(boards[0].releases, boards[1].releases[:3], strict=True):
        np.testing.assert_array_equal(one.value, two.value)
    plan = Plan(ChooseAtHome(MEAN, LEARNER, asks=0.1), n_tasks=12).calibrate(5.0)
    assert plan.guarantee.epsilon <= 5.0
    assert sum(one.share for one in plan.rounds) == pytest.approx(1.0)


@pytest.mark.parametrize("sampling", [Everyone(), Poisson(0.5)], ids=repr)
def test_a_model_is_the_posterior_mean_of_blends(sampling):
    """By hand: held-out squares of five blends, times the prior that the board says."""
    tasks, _ = make(m=60, spread=0.02)
    plan = Plan(ChooseAtHome(MEAN, LEARNER, folds=4, asks=0.1), sampling=sampling, n_tasks=60).calibrate(20.0)
    done = run(plan, tasks, random_state=0)
    prior = log_prior(majorities(done.board["blend"])[0])
    assert np.isfinite(prior).all()
    assert np.isfinite(done.board["blend"]).all()
    for i in (0, 7):
        at = slice(*tasks.offsets[i : i + 2])
        (block,) = Tasks.from_list([tasks.X[at]], [tasks.y[at]]).blocks()
        took_part = np.array([[done.private.coins[t, i] for t in range(3)] + [False]])
        inner = plan.algorithm.inside(done.board)

        def both(block, inner=inner, took_part=took_part):
            own = LEARNER.finish(Home(LEARNER.prepare(block), block), (), {})
            return _replay(MEAN, inner, took_part, block)["coef"], own["coef"]

        error = np.zeros(5)
        for training, weight in plan.algorithm._folds(block):
            shared, own = both(training)
            for j, part in enumerate(PARTS):
                left = block.y - block.X @ (part * shared + (1 - part) * own)[0]
                error[j] += float((weight * left**2).sum())
        odds = np.exp(prior) * (error / error.min()) ** -4.0
        part = float(odds @ PARTS / odds.sum())
        shared, own = both(block)
        expected = part * shared + (1 - part) * own
        np.testing.assert_allclose(done.private.models["coef"][i], expected[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("relation", "sensitivity"), [("replace", math.sqrt(2)), ("zero_out", 1.0)])
def test_the_noise_of_the_answers_is_that_of_their_price(relation, sensitivity):
    """Tasks of one row say nothing: what is posted is noise, told from two thirds and three halves of it."""
    ones = Tasks.from_arrays(np.ones((20, D)), np.zeros(20), np.arange(20))
    asked = ChooseAtHome(
        MeanRegularized(LOSS, rounds=1, steps=1, finetune=1), LEARNER, asks=0.5, by_rows=True
    )
    plan = Plan(asked, Gaussian(2.0), n_tasks=20, relation=relation)
    posted = [run(plan, ones, random_state=seed).board.releases[-1] for seed in range(50)]
    assert posted[0].value.size == 4
    assert posted[0].noise == pytest.approx(sensitivity / (2.0 * math.sqrt(plan.rounds[-1].share)))
    square = sum(float((one.value / one.noise) @ (one.value / one.noise)) for one in posted)
    likely = [1e-5 < chi2(200).cdf(square / scale**2) < 1 - 1e-5 for scale in (1, 2 / 3, 3 / 2)]
    assert likely == [True, False, False]


def test_a_task_says_it_for_those_of_about_as_many_rows():
    """Of eight rows in the first two numbers, of two in the last two; with the sums of both all are heard."""
    tasks, _ = make(m=30, spread=0.0)
    kept = np.arange(240)[(np.arange(240) % 8 < 2) | (np.arange(240) >= 80)]  # ten have two rows
    some = Tasks.from_arrays(tasks.X[kept], tasks.y[kept], np.repeat(np.arange(30), 8)[kept])
    asked, together = (ChooseAtHome(MEAN, LEARNER, asks=0.1, by_rows=one) for one in (True, None))
    done, plain = (run(Plan(one, NoNoise(), n_tasks=30), some) for one in (asked, together))
    apart = done.board.releases[-1].value.reshape(2, 2)
    np.testing.assert_allclose(apart.sum(axis=1), [20, 10])
    np.testing.assert_allclose(apart.sum(axis=0), plain.board.releases[-1].value)
    np.testing.assert_allclose(done.board["blend"][0], plain.board["blend"])


def test_asked_tasks_are_not_taken_in_by_chance():
    """Eight rows, and a mean drowned in noise: who merely chooses loses, who asks does not.

    Squared error over that alone: over seeds 0 to 9 at most 1.0002 asked, and 0.969 to 1.076 without it.
    """
    shared = MeanRegularized(LOSS, lam=0.5, lr=1.0)
    kinds = (Independent(LEARNER), ChooseAtHome(shared, LEARNER, asks=0.1), ChooseAtHome(shared, LEARNER))
    squares = np.diag([1.0, 1 / 3, 1 / 3]) / D  # of a row's columns, on average
    errors = np.zeros(3)
    for seed in (1, 2, 5):
        tasks, w = make(m=80, seed=seed)
        for i, kind in enumerate(kinds):
            done = run(Plan(kind, n_tasks=80).calibrate(0.2), tasks, random_state=seed)
            away = done.private.models["coef"] - w
            errors[i] += float(np.einsum("ij,jk,ik->", away, squares, away)) / 80 + 0.15**2
    alone, asked, chosen = errors
    assert asked < 1.01 * alone
    assert chosen > 1.01 * alone


def test_tasks_that_are_alike_rely_on_each_other():
    """Heard: the board says so, and the gain is larger than by a choice of each for itself."""
    tasks, w = make(m=300, n=5, spread=0.0)

    def done(algorithm):
        return run(Plan(algorithm, n_tasks=300).calibrate(2.0), tasks, random_state=0)

    asked, chosen = (
        done(ChooseAtHome(MeanRegularized(LOSS, lam=0.5, lr=1.0), LEARNER, asks=a)) for a in (0.1, None)
    )
    errors = [float(((one.private.models["coef"] - w) ** 2).sum()) for one in (asked, chosen)]
    assert asked.board["blend"][0] > 0.5
    assert errors[0] < errors[1]


def test_a_task_of_one_row_follows_the_board():
    """It cannot hold any out: its model is the blend that all tasks would expect."""
    tasks, _ = make(m=30, n=8, spread=0.0)
    X, y = ([a[i : i + 8] for i in range(0, 240, 8)] for a in (tasks.X, tasks.y))
    X[3], y[3] = X[3][:1], y[3][:1]
    data = Tasks.from_list(X, y)
    shared, alone = (
        run(Plan(a, NoNoise(), n_tasks=30), data).private.models["coef"][3]
        for a in (MEAN, Independent(LEARNER))
    )
    done = run(Plan(ChooseAtHome(MEAN, LEARNER, asks=0.1), NoNoise(), n_tasks=30), data)
    part = expected_parts(done.board["blend"])[0]
    assert part > 0.5
    np.testing.assert_allclose(done.private.models["coef"][3], part * shared + (1 - part) * alone, atol=1e-9)


def test_few_rows_keep_to_themselves_where_the_spread_of_targets_was_not_found():
    """12 tasks at epsilon 0.5 are heard by nobody: targets in a corner of wide bounds, one to three rows."""
    rng = np.random.default_rng(0)
    X = [np.column_stack([np.full(n, 3**-0.5), rng.uniform(-0.5, 0.5, (n, 2))]) for n in (1, 2, 3) * 4]
    tasks = Tasks.from_list(X, [-0.95 + 1e-3 * rng.normal(size=len(x)) for x in X])
    joint = ChooseAtHome(MEAN, LEARNER, asks=0.1, locate=Locate())
    found = run(Plan(joint, n_tasks=12).calibrate(0.5), tasks, random_state=0)
    assert int(found.board["located_found"]) == 0
    alone = run(Plan(Independent(LEARNER), NoNoise(), n_tasks=12), tasks)
    np.testing.assert_allclose(found.private.models["coef"], alone.private.models["coef"], atol=1e-9)


@pytest.mark.parametrize(("asks", "alone"), [(0.0, True), (1.0, True), (0.1, False)])
def test_what_makes_no_sense_is_refused(asks, alone):
    with pytest.raises(PlanError, match="asks must be a share of the budget"):
        ChooseAtHome(MEAN, LEARNER, asks=asks, alone=alone)


def test_how_much_models_count_for_a_task_does_not_depend_on_who_is_in_its_block():
    """To the bit: NumPy adds nine numbers in another order where a task is alone."""
    worth = np.random.default_rng(0).normal(size=(9, 50))
    alone = np.concatenate([_normal(worth[:, [k]]) for k in range(50)], axis=1)
    np.testing.assert_array_equal(_normal(worth), alone)
