"""Counts: scikit-learn's Poisson regression and scipy's negative binomial, what may leave, and odd tasks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import nbinom
from sklearn.linear_model import PoissonRegressor

import cloister as cl
from cloister import Plan, Tasks, run
from cloister.algorithms import Independent, Mean, SharedPrior
from cloister.audit.noise_checks import examine
from cloister.audit.releases import ReleaseSource, in_release_units
from cloister.channel import Relation
from cloister.core.channel import GRID
from cloister.core.tasks import Block
from cloister.learners import CountRegression
from cloister.learners.home import Home
from cloister.learners.linear.average import Candidate
from cloister.learners.linear.counts import SPREADS, CountRows
from cloister.learners.linear.likelihood import find_mode, modes_by_variance
from cloister.mechanisms import NoNoise
from cloister.privacy.noise import GaussianLaw
from cloister.privacy.randomness import SeededRandomness

K, N, DIM = 6, 10, 3


def block(y, X=None, seed=0):
    rng = np.random.default_rng(seed)
    k, n = np.shape(y)
    X = rng.normal(size=(k, n, DIM)) if X is None else X
    return Block(np.arange(k), X, np.asarray(y, float), np.ones((k, n)), np.zeros(k, np.uint64))


def likelihood(rows, spread, offset=0.0):
    return CountRows.of(
        rows.X, np.full(rows.y.shape, offset), rows, np.full(len(rows), spread, dtype=np.float64)
    )


def made(tasks=60, rows=6, seed=0, level=1.0):
    """Draw tasks whose rates differ; one column beside the intercept."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (tasks, rows))
    X = np.stack([np.ones_like(x), x], axis=2) / math.sqrt(2)
    mean = np.exp(level + 0.5 * x + 0.4 * rng.normal(size=(tasks, 1)))
    return Tasks.from_list(list(X), list(rng.poisson(mean).astype(float)))


# --- the likelihood ---------------------------------------------------------------------------------------


def test_modes_are_those_of_poisson_regression():
    """scikit-learn's penalty is a prior variance of 1 / (alpha n)."""
    rng = np.random.default_rng(1)
    rows = block(rng.poisson(2.0, (K, N)))
    ours = find_mode(likelihood(rows, SPREADS[0]), 2.0)
    for i in range(K):
        theirs = PoissonRegressor(alpha=1 / (2 * N), fit_intercept=False, tol=1e-12, max_iter=10_000)
        np.testing.assert_allclose(ours[i], theirs.fit(rows.X[i], rows.y[i]).coef_, atol=2e-5)


def test_the_likelihood_is_negative_binomial_and_its_slopes_are_its_own():
    rng = np.random.default_rng(2)
    rows = likelihood(block(rng.poisson(3.0, (K, N))), 0.5, 0.7)
    u = 0.3 * rng.normal(size=(K, DIM))
    there = rows.slope(u)
    mean = np.exp(rows.offset + np.einsum("knd,kd->kn", rows.X, u))
    expected = nbinom.logpmf(rows.y, 2.0, 1 / (1 + 0.5 * mean)).sum(axis=1)
    np.testing.assert_allclose(-there.value, expected, rtol=1e-10)
    for j, step in enumerate(1e-5 * np.eye(DIM)):
        up, down = rows.slope(u + step), rows.slope(u - step)
        np.testing.assert_allclose((up.value - down.value) / 2e-5, there.gradient[:, j], rtol=1e-5)
        np.testing.assert_allclose((up.gradient - down.gradient) / 2e-5, there.curvature[:, j], rtol=1e-5)


def test_laplace_evidence_is_close_to_the_integral():
    rows = likelihood(block([[3.0] * 6, [0.0] * 6], np.full((2, 6, 1), 0.7)), 0.1)
    found = modes_by_variance(rows, np.array([0.5, 2.0]))
    grid = np.linspace(-12, 12, 4001)
    for i, t in enumerate(found.variances):
        values = -np.array([rows.value(np.full((2, 1), u)) for u in grid]) - (grid**2 / (2 * t))[:, None]
        exact = np.log(np.trapezoid(np.exp(values), grid, axis=0) / math.sqrt(2 * math.pi * t))
        np.testing.assert_allclose(found.log_evidence[:, i], exact, atol=0.1)


@pytest.mark.parametrize("start", [-300.0, 300.0])
def test_no_start_makes_it_fail(start):
    rows = block([[0, 0, 0, 0], [5, 0, 90, 1], [1e12, 1, 1, 1]], np.full((3, 4, 1), 1.0))
    far = likelihood(rows, SPREADS[0], start)
    away = find_mode(far, 1e6)[:, 0]
    total = -start + np.log(np.array([24.0, 2.5e11]))
    np.testing.assert_allclose(away[1:], total, rtol=1e-3)
    assert away[0] < -start


# --- odd tasks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "y", [[0.0], [50.0], [0.0] * 5, [100.0] * 5, [1e12] * 3, [math.nan, 1.0], [-1.0, 3.0], [math.inf] * 4]
)
def test_any_task_has_a_model(y):
    """Alone it predicts its own smoothed rate, or the middle of what is possible if its rows are no data."""
    X = np.tile([0.6, 0.3], (1, len(y), 1))
    rows = block([y], X)
    learner = CountRegression(2, 100.0)
    home = Home(learner.prepare(rows), rows)
    models = learner.finish(home, (), {})
    assert all(np.isfinite(array).all() for array in models.values())
    score = float((X[0] @ models["coef"][0])[0]) + 0.5 * math.log(101)
    usable = all(0 <= value < 1e15 for value in y)
    due = (sum(y) + 0.5) / len(y) if usable else math.sqrt(101)
    assert math.exp(score) == pytest.approx(due, rel=0.15 if usable else 1.0)
    assert np.isfinite(learner.offset(home, np.array([3.0, -50.0]))).all()


def test_alone_is_what_is_left_where_nothing_is_heard():
    """At a tiny epsilon no mean stands out: models are those of the single-task learner, to the bit."""
    tasks, learner = made(20), CountRegression(2)
    told = run(Plan(SharedPrior(learner, Mean()), n_tasks=20).calibrate(1e-3), tasks, random_state=1)
    assert int(told.board["since"]) == 0
    alone = run(Plan(Independent(learner), n_tasks=20), tasks)
    for name in ("coef", "covariance"):
        np.testing.assert_allclose(told.private.models[name], alone.private.models[name], rtol=1e-9)


def test_a_prior_without_width_is_pooled():
    rows, learner = next(made(4).blocks()), CountRegression(2)
    mean = np.array([0.3, -0.2])
    home = Home(learner.prepare(rows), rows)
    found = learner.finish(home, [Candidate(1.0, mean, 1e-6 * np.eye(2), False)], {})
    np.testing.assert_allclose(found["coef"], np.tile(mean, (4, 1)), atol=1e-9)


def test_tasks_learn_from_each_other():
    """Without noise the rates of tasks with two rows are nearer to the truth than alone, by a third."""
    rng, m = np.random.default_rng(3), 200
    level = 0.4 * rng.normal(size=m)
    X = np.full((m, 2, 1), 1.0)
    tasks = Tasks.from_list(list(X), list(rng.poisson(np.exp(1.0 + level)[:, None], (m, 2)).astype(float)))
    learner = CountRegression(1)
    truth = 1.0 + level - 0.5 * math.log(101)
    joint, alone = (
        run(Plan(algorithm, NoNoise(), n_tasks=m), tasks).private.models["coef"][:, 0]
        for algorithm in (SharedPrior(learner), Independent(learner))
    )
    assert np.mean((joint - truth) ** 2) < 2 / 3 * np.mean((alone - truth) ** 2)


# --- what may leave ---------------------------------------------------------------------------------------


def test_a_task_can_move_the_sum_by_the_whole_sensitivity():
    """All counts at their bound in place of none: the offsets that are clipped point opposite ways."""
    X = np.full((2, 200, 1), 1.0)
    rows = block([[1000.0] * 200, [0.0] * 200], X)
    learner = CountRegression(1, 1000.0)
    plan = Plan(SharedPrior(learner, Mean()), n_tasks=50).calibrate(1.0)
    channel = plan.rounds[1].channels[0]
    said = learner.offset(Home(learner.prepare(rows), rows), np.zeros(1))
    one, two = channel.rows(said).astype(float) / GRID
    assert math.dist(one, two) == pytest.approx(channel.sensitivity(Relation.REPLACE), rel=1e-6)
    assert np.linalg.norm(one) == pytest.approx(channel.sensitivity(Relation.ZERO_OUT), rel=1e-6)


def test_the_spread_is_asked_within_its_bound_and_attains_it():
    """Many rows that are Poisson, in place of few that are clearly not: messages that point opposite ways."""
    rng, learner = np.random.default_rng(4), CountRegression(1)
    question, units = learner.questions["spread"], []
    for y in (rng.poisson(20.0, 2000), rng.negative_binomial(0.5, 0.5, 20)):
        rows = block([y], np.full((1, len(y), 1), 1.0))
        said = question.answer(Home(learner.prepare(rows), rows), (), {})
        units += list(question.channel.rows(said).astype(float) / GRID)
    np.testing.assert_allclose(np.linalg.norm(units, axis=1), 1.0, rtol=1e-4)
    assert 0.99 < math.dist(*units) / question.channel.sensitivity(Relation.REPLACE) <= 1.0


@pytest.mark.parametrize(("louder", "holds"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_the_question_has_the_noise_of_the_claim(louder, holds):
    """Two thirds and three halves of it are told apart; a false alarm has probability 1e-3 in all."""
    plan = Plan(SharedPrior(CountRegression(2)), n_tasks=200).calibrate(1.0)
    (channel,) = plan.rounds[0].channels
    assert channel == plan.algorithm.learner.questions["spread"].channel
    noise, curator = plan.noise(0, channel), ReleaseSource(plan.mechanism, SeededRandomness(2))
    total = channel.total(np.eye(channel.dim)[:2], plan.mechanism.exact)
    drawn = [
        (curator.releases(total, channel, noise, 1500) - in_release_units(channel, total)) * louder
        for _ in range(2)
    ]
    found = examine(GaussianLaw(noise), *drawn)
    assert (min(found["law"], found["scale"]) > 1e-4) == holds


def test_the_usual_spread_is_heard_and_believed():
    """Without noise tasks of Poisson counts are told that they are, and those beyond it that they are not."""
    rng = np.random.default_rng(5)
    for draw, low, high in ((rng.poisson, 0.0, 0.1), (_spread_out(rng), 0.3, 1.5)):
        y = draw(8.0, (80, 4)).astype(float)
        tasks = Tasks.from_list([np.ones((4, 1))] * 80, list(y))
        models = run(Plan(SharedPrior(CountRegression(1)), NoNoise(), n_tasks=80), tasks).private.models
        assert low <= float(np.median(models["spread"])) <= high


def _spread_out(rng):
    return lambda mean, shape: rng.negative_binomial(1.5, 1.5 / (1.5 + mean), shape)


# --- intervals --------------------------------------------------------------------------------------------


def test_intervals_are_whole_numbers_that_hold_new_counts():
    """Nine in ten, or a little more as counts are whole: 1,500 new rows of 300 tasks, two standard errors."""
    rng, m, n = np.random.default_rng(6), 300, 6
    task, x = np.repeat(np.arange(m), n), rng.uniform(0, 10, m * n)
    days, level = rng.integers(10, 100, m * n), 0.4 * rng.normal(size=m)

    def counts(x, days, task):
        mean = days / 20 * np.exp(0.1 * x + level[task])
        return rng.negative_binomial(3, 3 / (3 + mean))

    bounds = {
        "x": (0, 10),
        "days": (1, 366),
        "y": {"kind": "count", "bounds": (0, 2000), "exposure": "days"},
    }
    rows = {"x": x, "days": days}
    model = cl.SharedPriorRegressor(epsilon=2.0, bounds=bounds, random_state=0)
    model.fit(rows, counts(x, days, task), tasks=task)
    low, high = model.predict_interval(rows, task, coverage=0.9)
    assert (low == np.floor(low)).all()
    assert (high == np.floor(high)).all()
    fresh = counts(x, days, task)
    assert 0.87 < np.mean((low <= fresh) & (fresh <= high)) < 0.97
    mean, deviation = model.predict(rows, task, return_std=True)
    assert ((fresh - mean) / deviation).std() == pytest.approx(1.0, abs=0.25)
    double = model.predict(rows | {"days": 2 * days}, task)
    np.testing.assert_allclose(double, np.minimum(2 * mean, 2000), rtol=1e-9)
