"""Ordered classes: the likelihood by its definition and by statsmodels, what may leave, and odd tasks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit

import cloister as cl
from cloister import Plan, Tasks, run
from cloister.algorithms import Independent, Mean, SharedPrior
from cloister.channel import Relation
from cloister.core.channel import GRID
from cloister.core.tasks import Block
from cloister.learners import OrderedClassification, OrderedLoss
from cloister.learners.home import Home
from cloister.learners.linear.average import Candidate
from cloister.learners.linear.likelihood import find_mode
from cloister.learners.linear.ordered import usual_cuts

K, N, DIM, CLASSES = 3, 40, 2, 4


def block(y, seed=0):
    rng = np.random.default_rng(seed)
    X = np.stack([np.ones(np.shape(y)), rng.normal(size=np.shape(y))], axis=2) / math.sqrt(2)
    return Block(
        np.arange(len(y)), X, np.asarray(y, float), np.ones(np.shape(y)), np.zeros(len(y), np.uint64)
    )


def drawn(seed=0):
    return block(np.random.default_rng(seed).integers(0, CLASSES, (K, N)), seed)


def shares(weights, X):
    """Return P(y = j) by the definition: cuts that begin at the usual score and grow by increments."""
    usual = np.log(np.arange(CLASSES - 1, 0, -1) / np.arange(1, CLASSES))
    steps = (usual[:-1] - usual[1:]) * np.exp(weights[DIM:] / math.sqrt(DIM))
    cuts = np.concatenate([[0.0], np.cumsum(steps)])
    more = expit((X @ weights[:DIM] + usual[0])[:, None] - cuts)
    whole = np.hstack([np.ones((len(X), 1)), more, np.zeros((len(X), 1))])
    return whole[:, :-1] - whole[:, 1:]


def test_probabilities_losses_and_gradients_are_those_of_the_definition():
    rows, loss = drawn(), OrderedLoss(DIM, CLASSES)
    weights = 0.7 * np.random.default_rng(1).normal(size=(K, loss.size))
    expected = np.stack([shares(w, X) for w, X in zip(weights, rows.X, strict=True)])
    np.testing.assert_allclose(loss.predict(weights, rows.X), expected, atol=1e-12)
    own = np.take_along_axis(expected, rows.y[..., None].astype(int), axis=2)[..., 0]
    given = rows.X, rows.y, rows.weight
    np.testing.assert_allclose(loss.value(weights, *given), -np.log(own).mean(axis=1), rtol=1e-10)
    steps = 1e-5 * np.eye(loss.size)
    slopes = [(loss.value(weights + s, *given) - loss.value(weights - s, *given)) / 2e-5 for s in steps]
    np.testing.assert_allclose(loss.gradient(weights, *given), np.stack(slopes, axis=1), atol=1e-8)


def test_the_curvature_is_all_but_what_bends_down():
    """That of the whole function, less what increments' logarithms bend where it is negative."""
    rows, loss = drawn(2), OrderedLoss(DIM, CLASSES)
    likelihood = loss._likelihood(rows.X, rows.y, rows.weight)
    weights = 0.7 * np.random.default_rng(3).normal(size=(K, loss.size))
    steps = 1e-5 * np.eye(loss.size)
    moved = [(likelihood.slope(weights + s).gradient - likelihood.slope(weights - s).gradient) for s in steps]
    bends = likelihood.slope(weights).gradient[:, DIM:] / math.sqrt(DIM)
    expected = np.stack(moved, axis=2) / 2e-5
    assert bends.min() < 0 < bends.max()
    expected[:, DIM:, DIM:] -= np.minimum(bends, 0.0)[:, :, None] * np.eye(CLASSES - 2)
    found = likelihood.slope(weights).curvature
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.linalg.eigvalsh(found).min() > 0


def test_modes_are_those_of_a_general_optimizer():
    rows, loss = drawn(4), OrderedLoss(DIM, CLASSES)
    ours = find_mode(loss._likelihood(rows.X, rows.y, rows.weight), 2.0)
    for found, X, y in zip(ours, rows.X, rows.y.astype(int), strict=True):

        def posterior(w, X, y):
            return -np.log(shares(w, X)[np.arange(N), y]).sum() + w @ w / 4

        theirs = minimize(posterior, np.zeros(loss.size), args=(X, y))
        np.testing.assert_allclose(found, theirs.x, atol=1e-4)


def test_wide_priors_give_the_model_of_statsmodels():
    ordinal = pytest.importorskip("statsmodels.miscmodels.ordinal_model")
    rows = block(np.random.default_rng(5).integers(0, CLASSES, (1, 400)))
    loss = OrderedLoss(DIM, CLASSES)
    ours = find_mode(loss._likelihood(rows.X, rows.y, rows.weight), 1e6)
    model = ordinal.OrderedModel(rows.y[0].astype(int), rows.X[0, :, 1:], distr="logit")
    theirs = model.fit(method="bfgs", disp=False)
    np.testing.assert_allclose(loss.predict(ours, rows.X)[0], theirs.predict(rows.X[0, :, 1:]), atol=1e-4)


# --- odd tasks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("y", [[0], [3], [0] * 6, [3] * 6, [1] * 6, [0, 3] * 4, [math.nan, 1], [7, 1]])
def test_any_task_has_a_model(y):
    """Alone a task of one class finds it likeliest, and more so the more rows say it."""
    rows = block([y])
    learner = OrderedClassification(DIM, CLASSES)
    models = learner.finish(Home({}, rows), (), {})
    assert all(np.isfinite(array).all() for array in models.values())
    chances = learner.predict(models["coef"], np.array([[[math.sqrt(0.5), 0.0]]]))[0, 0]
    if len(set(y)) == 1:
        assert chances.argmax() == y[0]
        assert chances[y[0]] > (0.45 if len(y) == 1 else 0.7)
    assert np.isfinite(learner.offset(Home({}, rows), np.array([3.0, -50.0, 9.0, -9.0]))).all()


def test_every_class_has_one_weight():
    with pytest.raises(cl.errors.InputError, match="class_weight must be 3 numbers"):
        OrderedClassification(DIM, 3, class_weight=(1.0, 2.0))


def test_alone_is_what_is_left_where_nothing_is_heard():
    rng = np.random.default_rng(6)
    y = [rng.integers(0, 3, 5) for _ in range(12)]
    tasks = Tasks.from_list([block([one]).X[0] for one in y], y)
    learner = OrderedClassification(DIM, 3)
    told = run(Plan(SharedPrior(learner, Mean()), n_tasks=12).calibrate(1e-3), tasks, random_state=1)
    assert int(told.board["since"]) == 0
    alone = run(Plan(Independent(learner), n_tasks=12), tasks)
    for name in ("coef", "covariance"):
        np.testing.assert_allclose(told.private.models[name], alone.private.models[name], rtol=1e-9)


def test_a_prior_without_width_is_pooled():
    rows, learner = drawn(7), OrderedClassification(DIM, CLASSES)
    mean = np.array([0.3, -0.2, 0.1, 0.5])
    found = learner.finish(Home({}, rows), [Candidate(1.0, mean, 1e-6 * np.eye(4), False)], {})
    np.testing.assert_allclose(found["coef"], np.tile(mean, (K, 1)), atol=1e-9)


# --- what may leave ---------------------------------------------------------------------------------------


def test_a_task_can_move_the_sum_by_its_whole_sensitivity():
    """Classes that fall with a column in place of classes that rise with it, with the usual cuts in both."""
    x, chances = np.linspace(-1, 1, 60).repeat(50), np.tile((np.arange(50) + 0.5) / 50, 60)
    start, logs = usual_cuts(3)
    cuts = start - np.array([0.0, np.exp(logs[0])])
    y = [(logit(chances)[:, None] < sign * 6 * x[:, None] + cuts).sum(axis=1) for sign in (1, -1)]
    X = np.stack([np.full_like(x, math.sqrt(0.5)), x], axis=1)
    rows = next(Tasks.from_list([X, X], y).blocks())
    learner = OrderedClassification(DIM, 3)
    plan = Plan(SharedPrior(learner, Mean()), n_tasks=50).calibrate(1.0)
    channel = plan.rounds[0].channels[0]
    one, two = channel.rows(learner.offset(Home({}, rows), np.zeros(3))).astype(float) / GRID
    assert np.linalg.norm(one) == pytest.approx(channel.sensitivity(Relation.ZERO_OUT), rel=1e-5)
    assert math.dist(one, two) > 0.999 * channel.sensitivity(Relation.REPLACE)


def test_order_says_more_than_classes_without_it():
    """Four classes on one column, 80 tasks of 8 rows at epsilon 2; and coefficients in the user's units."""
    rng, m, n = np.random.default_rng(8), 80, 8
    names = np.array(["none", "mild", "bad", "dire"])
    task, level = np.repeat(np.arange(m), n), rng.normal(size=m)

    def severities(x):
        return names[np.searchsorted([-1, 1, 2.5], 0.4 * (x - 5) + level[task] + rng.logistic(size=len(x)))]

    x, new = rng.uniform(0, 10, (2, m * n))
    y, fresh = severities(x), severities(new)
    losses = {}
    for kind in ("ordered", "classes"):
        goal = {"kind": "ordered", "classes": names.tolist()} if kind == "ordered" else names.tolist()
        model = cl.SharedPriorClassifier(epsilon=2.0, bounds={"x": (0, 10), "y": goal}, random_state=0)
        model.fit({"x": x}, y, tasks=task)
        found = model.predict_proba({"x": new}, task)
        losses[kind] = -np.log(found[np.arange(len(new)), np.searchsorted(model.classes_, fresh)]).mean()
        if kind == "ordered":
            assert model.intercept_.shape == (m, 3)
            assert (np.diff(model.intercept_, axis=1) < 0).all()
            score = model.intercept_ + model.coef_ * 4.0
            more = model.predict_proba({"x": np.full(m, 4.0)}, np.arange(m))[:, np.argsort(np.argsort(names))]
            np.testing.assert_allclose(1 - more[:, 0], expit(score[:, 0]), rtol=1e-9)
            np.testing.assert_allclose(more[:, 3], expit(score[:, 2]), rtol=1e-9)
            assert "bad or more" in str(model.summary())
            assert list(model.coefficients("polars").columns) == [
                *("task", "mild or more", "bad or more", "dire or more", "x")
            ]
    assert losses["ordered"] < losses["classes"]
