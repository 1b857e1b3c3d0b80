"""A task alone: its model does not depend on the units of its rows, and its evidence is of the same y."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.core.tasks import Block
from cloister.learners import Classification, Regression
from cloister.learners.home import Home
from cloister.learners.linear.average import Candidate, every_class
from cloister.learners.linear.by_evidence import VARIANCES
from cloister.learners.linear.own_ridge import OWN_LAMBDAS, OwnRidge
from cloister.learners.linear.own_units import OwnUnits
from cloister.learners.linear.regression import _alone

TASKS, ROWS, DIM = 4, 9, 3
RNG = np.random.default_rng(0)
X = np.concatenate([np.ones((TASKS, ROWS, 1)), RNG.uniform(-1, 1, (TASKS, ROWS, DIM - 1))], axis=2) / DIM**0.5
Y = 0.4 * RNG.normal(size=(TASKS, 1)) + X[..., 1] - 0.5 * X[..., 2] + 0.1 * RNG.normal(size=(TASKS, ROWS))
#: Other units of features and of targets: as in bounds that are 50 times too wide, and off the middle.
SLOPE, SHIFT, UNIT, CENTER = np.array([0.02, 3.0]), np.array([0.5, -0.3]), 0.01, 0.7


def block(X, y, weight=None):
    weight = np.ones(y.shape) if weight is None else weight
    return Block(np.arange(len(X)), X, y, weight, np.zeros(len(X), np.uint64))


def elsewhere(X):
    return np.concatenate([X[..., :1], SLOPE * X[..., 1:] + SHIFT * X[..., :1]], axis=2)


def alone(learner, one):
    return learner.finish(Home(learner.prepare(one), one), (), {})


def fitted(X, models):
    return (X @ models["coef"][..., None])[..., 0], np.einsum("tri,tij,trj->tr", X, models["covariance"], X)


def test_regression_alone_does_not_depend_on_units():
    learner = Regression(DIM)
    here, there = alone(learner, block(X, Y)), alone(learner, block(elsewhere(X), UNIT * Y + CENTER))
    mean, variance = fitted(X, here)
    moved_mean, moved_variance = fitted(elsewhere(X), there)
    np.testing.assert_allclose(moved_mean, UNIT * mean + CENTER, rtol=1e-8)
    np.testing.assert_allclose(moved_variance, UNIT**2 * variance, rtol=1e-6)
    np.testing.assert_allclose(there["noise"], UNIT**2 * here["noise"], rtol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_classification_alone_does_not_depend_on_units(classes):
    learner = Classification(DIM, classes)
    y = np.floor(classes * np.argsort(np.argsort(Y, axis=1), axis=1) / ROWS)
    here, there = (alone(learner, block(rows, y)) for rows in (X, elsewhere(X)))
    for q in range(classes - 1):
        part = slice(q * DIM, (q + 1) * DIM)
        scores = [
            (rows @ models["coef"][:, part, None]) for rows, models in ((X, here), (elsewhere(X), there))
        ]
        np.testing.assert_allclose(scores[1], scores[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_shared_prior_in_own_units_is_one_in_public_units_for_each_task(classes):
    """The dense way: for every task a candidate whose factor is turned to public units by hand."""
    learner, rng = Classification(DIM, classes), np.random.default_rng(1)
    y = np.floor(classes * np.argsort(np.argsort(Y, axis=1), axis=1) / ROWS)
    mean, factor = rng.normal(size=learner.size), np.diag([0.4, 0.7, 0.7])
    own = Candidate(1.0, mean, every_class(factor, learner.size), False, own_units=True)
    one = block(X, y)
    flat = np.zeros(len(VARIANCES))
    found = learner.around(Home({}, one), own, flat)
    for task in range(TASKS):
        rows = X[task, :, 1:]
        spread, middle = rows.std(axis=0), rows.mean(axis=0)
        back = np.diag(np.append(DIM**0.5, 1 / spread))
        back[0, 1:] = -middle / spread * DIM**0.5
        there = Candidate(1.0, mean, every_class(back @ factor, learner.size), False)
        expected = learner.around(Home({}, one.take(np.array([task]))), there, flat)
        np.testing.assert_allclose(found.scores[task], expected.scores[0], atol=1e-7)
        weights = np.full((1, len(VARIANCES)), 1 / len(VARIANCES))
        ours = found.posterior(np.repeat(weights, TASKS, axis=0))
        theirs = expected.posterior(weights)
        for part, dense in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(part[task], dense[0], rtol=1e-5, atol=1e-6)


def test_evidence_is_of_the_targets_as_they_are():
    """Smaller targets have a larger density, by their unit for every row: what other priors have too."""
    here, there = (_alone(OwnRidge.of(block(X, y), True), {}) for y in (Y, UNIT * Y + CENTER))
    np.testing.assert_allclose(there.worth, here.worth - ROWS * np.log(UNIT), rtol=1e-8)


@pytest.mark.parametrize("learner", [Regression(DIM), Classification(DIM)], ids=["numbers", "classes"])
def test_padding_is_not_looked_at(learner):
    y = Y if isinstance(learner, Regression) else np.sign(Y - np.median(Y, axis=1, keepdims=True)).clip(0)
    padded = [np.concatenate([a, np.full_like(a[:, :4], filler)], axis=1) for a, filler in ((X, 7.0), (y, 1))]
    weight = np.concatenate([np.ones(y.shape), np.zeros((TASKS, 4))], axis=1)
    one, two = alone(learner, block(X, y)), alone(learner, block(*padded, weight))
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, rtol=1e-6, atol=1e-9)


def test_few_rows_have_a_mean_and_no_slopes():
    few, enough = (alone(Regression(DIM), block(X[:, :n], Y[:, :n]))["coef"] for n in (3, 4))
    np.testing.assert_allclose(few[:, 1:], 0, atol=1e-9)
    np.testing.assert_allclose(few[:, 0] / DIM**0.5, Y[:, :3].mean(axis=1))
    assert (np.abs(enough[:, 1:]) > 1e-3).any()


def test_a_column_that_does_not_vary_has_no_slope():
    """Also where its mean is not quite the number itself, because of rounding."""
    same = np.array(X)
    for numbers in np.linspace(0.1, 1.0, 40).reshape(-1, TASKS):
        same[..., 2] = numbers[:, None]
        assert (alone(Regression(DIM), block(same, Y))["coef"][:, 2] == 0).all()


def test_rows_left_out_as_if_they_had_been():
    """The shortcut by leverages, against fits to all rows but one."""
    units = OwnUnits.of(X, np.ones(Y.shape), intercept=True)
    away = (Y - Y.mean(axis=1, keepdims=True)) / Y.std(axis=1, keepdims=True)
    found = OwnRidge.of(block(X, Y), intercept=True).left_out
    for task in range(TASKS):
        for at, penalty in enumerate(OWN_LAMBDAS[:-1]):
            squares = []
            for row in range(ROWS):
                rest = np.arange(ROWS) != row
                rows, y = units.rows[task, rest], away[task, rest]
                inner = rows - rows.mean(axis=0)
                slopes = np.linalg.solve(
                    inner.T @ inner + penalty * np.eye(DIM - 1), inner.T @ (y - y.mean())
                )
                guess = y.mean() + (units.rows[task, row] - rows.mean(axis=0)) @ slopes
                squares.append((away[task, row] - guess) ** 2)
            assert found[task, at] == pytest.approx(-ROWS / 2 * np.log(np.mean(squares)), abs=1e-6)


def test_the_own_prior_weighs_what_candidates_leave():
    """Next to nothing: then a task's model is the candidate's, however well its own would fit."""
    learner, one = Regression(DIM), block(X, Y)
    zero, eye = np.zeros(DIM), 0.05 * np.eye(DIM)
    models = [
        learner.finish(Home(learner.prepare(one), one), (Candidate(weight, zero, eye, True),), {})["coef"]
        for weight in (1.0, 1 - 1e-8, 0.5)
    ]
    np.testing.assert_allclose(models[1], models[0], atol=1e-5)
    assert np.abs(models[2] - models[0]).max() > 1e-3


@pytest.mark.parametrize("seen", [2, 1])
def test_a_column_that_varies_in_one_row_has_no_slope_of_its_own(seen):
    """Rows alike but for `seen` of them, which have large targets: with two there may be a reason for it."""
    rows, y = X.copy(), Y.copy()
    rows[..., 1] = -1 / DIM**0.5
    rows[:, :seen, 1] += 0.05
    y[:, :seen] += 1.0
    slopes = alone(Regression(DIM), block(rows, y))["coef"][:, 1]
    assert (slopes > 5).all() if seen == 2 else (slopes == 0).all()
    twice = np.where(np.arange(ROWS) == 0, 2.0, 1.0) * np.ones((TASKS, 1))
    doubled = alone(Regression(DIM), block(rows, y, twice))["coef"][:, 1]
    assert (doubled > 5).all()  # a weight of two counts as two rows


def test_a_row_far_out_in_a_skewed_column_keeps_its_slope():
    """All rows follow one line; the farthest has all but a thousandth of the column's sum of squares."""
    rows = X.copy()
    rows[..., 1] = 1e-3 * np.linspace(-1, 1, ROWS)
    rows[:, 0, 1] = 0.05
    slopes = alone(Regression(DIM), block(rows, 4.0 * rows[..., 1]))["coef"][:, 1]
    np.testing.assert_allclose(slopes, 4.0, rtol=0.05)
