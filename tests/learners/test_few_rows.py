"""Tasks of one to three rows: what they can tell, and whom they rely on."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister import SharedPriorRegressor, Tasks
from cloister.core.channel import GRID
from cloister.estimators import SingleTaskRegressor
from cloister.learners import Classification, CountRegression, OrderedClassification, Regression
from cloister.learners.home import Home
from cloister.learners.linear.average import Candidate
from cloister.learners.linear.home_constants import TRUST
from cloister.learners.linear.question import relied_on

HEARD = {"trust": np.array([0.8, 0.1])}
SLOPES = Candidate(0.9, np.array([5.0, 2.0, -1.0]), 0.1 * np.eye(3), True)


def models(learner, X, y, candidates, answers):
    (block,) = Tasks.from_list([X], [y]).blocks()
    return learner.finish(Home(learner.prepare(block), block), candidates, answers)


def rows(n, seed=0):
    X = np.random.default_rng(seed).uniform(-0.5, 0.5, (n, 3))
    X[:, 0] = 1 / math.sqrt(3)
    return X


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("answers", [{}, {"trust": np.array([0.0, math.inf])}], ids=["nobody", "not heard"])
def test_a_task_of_few_rows_keeps_to_itself_if_nobody_was_heard(n, answers):
    """Its model is its mean, to the bit what it would be without any candidate."""
    X, y = rows(n), np.array([0.9, 0.7, 0.8])[:n]
    found = models(Regression(3), X, y, [SLOPES], answers)
    assert np.array_equal(found["coef"], models(Regression(3), X, y, [], {})["coef"])
    np.testing.assert_allclose(found["coef"] @ X.T, y.mean(), rtol=1e-9)
    unheard = replace(SLOPES, heard=0.0)  # its units were not
    assert np.array_equal(models(Regression(3), X, y, [unheard], HEARD)["coef"], found["coef"])


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_one_row_takes_slopes_as_far_as_others_rely_on_them_and_its_own_level(shift):
    """Wherever its target is, and whatever level a candidate has: without the noise's level nobody knows."""
    found = models(Regression(3), rows(1), np.array([0.3 + shift]), [SLOPES], HEARD)
    share = 0.8 - 0.1 * TRUST.doubts
    np.testing.assert_allclose(found["coef"][0, 1:], share * SLOPES.mean[1:], rtol=1e-6)
    assert (rows(1) @ found["coef"][0])[0] == pytest.approx(0.3 + shift)
    assert found["shared_weight"][0] == pytest.approx(share)


def test_rows_tell_slopes_apart_by_what_they_leave_over():
    """The formula: odds are those of before times the ratio of what is left, to the power of (n - 1) / 2."""
    X, rng = rows(3), np.random.default_rng(1)
    y = X @ SLOPES.mean + 0.2 * rng.normal(size=3)
    share = 0.8 - 0.1 * TRUST.doubts
    left = [np.square(z - z.mean()).sum() for z in (y - X @ SLOPES.mean, y)]
    odds = share / (1 - share) * left[1] / left[0]
    found = models(Regression(3), X, y, [SLOPES], HEARD)["shared_weight"][0]
    assert found == pytest.approx(odds / (1 + odds), rel=1e-6)
    assert models(Regression(3), X, 0 * y + 0.5, [SLOPES], HEARD)["shared_weight"][0] == pytest.approx(share)


def test_what_is_relied_on_is_the_least_that_was_heard():
    (found,) = relied_on([SLOPES], {"trust": np.array([0.8, 0.1])})
    assert found.weight == pytest.approx(0.8 - 0.1 * TRUST.doubts)
    assert relied_on([SLOPES], {"trust": np.array([1.0, 0.0])})[0].weight == pytest.approx(1 - TRUST.least)
    assert relied_on([SLOPES], {"trust": np.array([0.6, 0.1])}) == relied_on([SLOPES], {}) == []


@pytest.mark.parametrize("learner", [CountRegression(3), OrderedClassification(3)], ids=["count", "ordered"])
def test_counts_and_ordered_classes_rely_on_what_was_heard(learner):
    """Few rows where a majority is beyond doubt; more rows, where nobody was heard, on a mean that was."""
    shared = Candidate(0.9, np.full(learner.size, 0.5), np.eye(learner.size), True)

    def coef(n, candidate, *trust):
        answers = {"trust": np.array(trust)}
        return models(learner, rows(n), np.arange(n) % 3.0, [candidate], answers)["coef"]

    for n, candidate, *trust in ((3, shared, 0.6, 0.1), (8, replace(shared, heard=0.0), 0.0, math.inf)):
        alone = models(learner, rows(n), np.arange(n) % 3.0, [], {})["coef"]
        assert np.array_equal(coef(n, candidate, *trust), alone)
        assert not np.allclose(coef(n, shared, 0.9, 0.1), alone, rtol=1e-3)


@pytest.mark.parametrize(("part", "least", "most"), [(0.0, 0.2, 0.5), (0.3, 0.5, 0.8), (1.0, 0.8, 1.0)])
def test_few_rows_say_whether_slopes_are_theirs(part, least, most):
    """By all of them together, beside noise that is as large as what slopes change: useless ones lose."""
    rng, learner = np.random.default_rng(3), Regression(3)
    X = [rows(2 + i % 2, i) for i in range(3000)]
    y = [x @ (part * SLOPES.mean) + 0.2 * rng.normal(size=len(x)) for x in X]
    (block,) = Tasks.from_list(X, y).blocks([np.arange(3000)])
    said = learner.questions["trust"].answer(Home(learner.prepare(block), block), [SLOPES], {}).sum(axis=0)
    assert least < said[0] / said.sum() < most


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=3), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_few_rows_say_yes_or_no_about_slopes(y, seed):
    """Exactly on the grid: no negative number, a norm of 1 at most; one row says nothing."""
    (block,) = Tasks.from_list([rows(len(y), seed)], [np.array(y)]).blocks()
    learner = Regression(3)
    question = learner.questions["trust"]
    said = question.answer(Home(learner.prepare(block), block), [SLOPES], {})
    assert (said >= 0).all()
    (units,) = question.channel.rows(said)
    assert sum(Fraction(int(u), GRID) ** 2 for u in units) <= 1
    assert len(y) > 1 or not units.any()


def test_a_row_that_says_nothing_of_the_noise_is_not_heard_about_it():
    learner, sizes = Regression(3), (1, 3, 40)
    (block,) = Tasks.from_list([rows(n) for n in sizes], [rows(n)[:, 1] ** 2 for n in sizes]).blocks(
        [np.arange(3)]
    )
    question = learner.questions["level"]
    said = question.answer(Home(learner.prepare(block), block), (), {}).sum(axis=1)
    assert said[0] == 0
    assert 0 < said[1] < said[2] < 1


def test_two_rows_do_not_know_how_wide_a_column_is():
    """A column that varies by next to nothing in them would have slopes of any length in own units."""
    learner = Classification(2)
    own = Candidate(0.9, np.array([0.0, 1.0]), np.diag([0.4, 1.0]), False, own_units=True)
    X = np.array([[1.0, 0.5], [1.0, 0.5 + 1e-6]]) / math.sqrt(2)
    assert np.abs(models(learner, X, np.array([0.0, 1.0]), [own], {})["coef"]).max() < 3


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_single_rows_far_from_the_middle_of_wide_bounds_lose_nothing(epsilon):
    rng = np.random.default_rng(3)
    task, x = np.arange(150), rng.uniform(-1, 1, (150, 1))
    y = 100 + rng.normal(size=150)
    bounds = {0: (-1, 1), "y": (0, 1e4)}
    joined = SharedPriorRegressor(epsilon=epsilon, bounds=bounds, random_state=0).fit(x, y, tasks=task)
    alone = SingleTaskRegressor(bounds=bounds).fit(x, y, tasks=task)
    errors = [np.square(model.predict(x, tasks=task) - y).mean() for model in (joined, alone)]
    assert errors[0] <= errors[1] + 0.05
