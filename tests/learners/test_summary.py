"""Two forms of a block, one posterior: Gram matrices and rows agree with each other and dense algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cloister import Tasks, check_algorithm
from cloister.algorithms import Joint, SharedPrior, Subspace
from cloister.core.tasks import Block
from cloister.learners import Regression
from cloister.learners.home import Home
from cloister.learners.linear.average import Candidate, loose_intercept
from cloister.learners.linear.ridge import RowSummary, Statistics, ridge_fit, statistics, summary, summary_of

D, N = 7, 4
LAMBDAS, SCALES = np.array([1e-4, 0.3, 20.0]), np.array([0.01, 1.0])
RNG = np.random.default_rng(0)
CENTER = 0.2 * RNG.normal(size=D)
FACTORS = {
    "plain": 0.3 * np.eye(D),
    "loose": 0.5 * loose_intercept(D, 100.0, True),
    "full": RNG.normal(size=(D, D)),
    "singular": RNG.normal(size=(D, D)) @ np.diag([1.0] * 3 + [0.0] * (D - 3)),
}
TURN, OTHER = (np.linalg.qr(RNG.normal(size=(D, D))).Q for _ in range(2))
FACTORS |= {
    "turned": 0.3 * TURN,
    "one direction": TURN @ np.diag([0.4] * (D - 1) + [4.0]) @ OTHER,
    "narrow direction": TURN @ np.diag([0.4] * (D - 1) + [0.1]) @ OTHER,
}


@pytest.mark.parametrize("rows", [30, N])
@pytest.mark.parametrize("factor", [FACTORS[name] for name in ("plain", "loose", "full", "one direction")])
def test_rows_left_out_are_foreseen_by_a_fit_to_the_others(rows, factor):
    """Whichever form: as by fits that lack the row."""
    rng = np.random.default_rng(rows)
    X, y, whole = rng.normal(size=(rows, D)), rng.normal(size=rows), np.ones((1, rows))
    block = Block(np.zeros(1), X[None], y[None], whole, np.zeros(1, np.uint64))
    fit = ridge_fit(summary(block.X, block.y, whole), CENTER, factor, LAMBDAS, SCALES)
    square = np.zeros(len(LAMBDAS))
    for out in range(rows):
        kept = np.arange(rows) != out
        other = summary(X[None, kept], y[None, kept], whole[:, kept])
        weights = CENTER + ridge_fit(other, CENTER, factor, LAMBDAS, SCALES).solutions[0]
        square += (y[out] - weights @ X[out]) ** 2 / rows
    np.testing.assert_allclose(fit.left_out(block)[0], -rows / 2 * np.log(square), rtol=1e-3)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(3, N, D)) / math.sqrt(D), rng.normal(size=(3, N))
    X[..., 0] = 1 / math.sqrt(D)
    return X, y, np.array([[1.0, 2.0, 0.5, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0] * 4])  # padded, and empty


def covariance(fit):
    found = np.einsum("tdk,tlk,tek->tlde", fit.basis, fit.spread, fit.basis)
    if fit.prior is not None:
        found = found + fit.rest[..., None, None] * fit.prior
    if fit.bump is not None:
        bump = np.einsum("tdk,tlk->tld", fit.basis, fit.bump)
        found = found + bump[..., :, None] * bump[..., None, :]
    return found


@pytest.mark.parametrize("name", FACTORS)
def test_both_forms_give_the_posterior_of_dense_algebra(data, name):
    X, y, weight = data
    P = FACTORS[name] @ FACTORS[name].T
    rows, gram = summary(*data), statistics(*data)
    assert isinstance(rows, RowSummary)
    for form in (rows, gram):
        fit = ridge_fit(form, CENTER, FACTORS[name], LAMBDAS, SCALES)
        for i in range(3):
            A, b = np.sqrt(weight[i])[:, None] * X[i], np.sqrt(weight[i]) * (y[i] - X[i] @ CENTER)
            for j, lam in enumerate(LAMBDAS):
                total = np.eye(N) + A @ P @ A.T / lam  # covariance of the targets over the noise's
                gain = P @ A.T @ np.linalg.inv(total) / lam
                np.testing.assert_allclose(fit.solutions[i, j], gain @ b, rtol=1e-7, atol=1e-9)
                square = b @ np.linalg.solve(total, b)
                np.testing.assert_allclose(fit.residual[i, j], square, rtol=1e-6, atol=1e-9)
                spread = (P - gain @ A @ P) / lam
                tolerance = 1e-9 * (1 + np.abs(P).max() / lam)  # what rounding leaves of a large prior
                np.testing.assert_allclose(covariance(fit)[i, j], spread, atol=tolerance)
                evidence = -0.5 * np.linalg.slogdet(total)[1] + 0.5 * np.log(SCALES)
                evidence -= 0.5 * (weight[i].sum() + 1) * np.log(SCALES + square)
                np.testing.assert_allclose(fit.log_evidence[:, i, j], evidence, rtol=1e-7, atol=1e-8)


def test_what_is_isotropic_but_for_one_direction_takes_no_decomposition_of_its_own(data):
    for form in (summary(*data), statistics(*data)):
        plain = ridge_fit(form, CENTER, np.eye(D), LAMBDAS, SCALES).basis
        alike = {
            name
            for name, factor in FACTORS.items()
            if np.array_equal(
                ridge_fit(form, CENTER, factor, LAMBDAS, SCALES).basis[..., : plain.shape[2]], plain
            )
        }
        assert alike == {"plain", "loose", "turned", "one direction"}


@pytest.mark.parametrize("name", FACTORS)
def test_tasks_may_have_lambdas_of_their_own(data, name):
    own = LAMBDAS * np.array([[1.0], [0.01], [100.0]])
    for form in (summary(*data), statistics(*data)):
        fit = ridge_fit(form, CENTER, FACTORS[name], own, SCALES)
        for i, lambdas in enumerate(own):
            alone = ridge_fit(form, CENTER, FACTORS[name], lambdas, SCALES)
            np.testing.assert_allclose(fit.solutions[i], alone.solutions[i])
            np.testing.assert_allclose(fit.log_evidence[:, i], alone.log_evidence[:, i])
            np.testing.assert_allclose(covariance(fit)[i], covariance(alone)[i], atol=1e-9)


def test_offsets_agree(data):
    point = np.linspace(-1, 1, D)
    rows, gram = summary(*data), statistics(*data)
    found = [form.offset(0.05, point) for form in (rows, gram)]
    np.testing.assert_allclose(found[0], found[1], atol=1e-12)
    assert not found[0][2].any()


def test_the_smaller_form_is_taken_and_survives_as_a_state(data):
    X, y, weight = data
    tall = summary(X[..., :3], y, weight)
    assert isinstance(tall, Statistics)
    for form in (tall, summary(*data)):
        again = summary_of(form.arrays() | {"inverse": np.zeros(1)})
        assert type(again) is type(form)
        np.testing.assert_array_equal(again.count, form.count)
    there = X[..., :3] * weight[..., None]
    older = {"gram": there.swapaxes(1, 2) @ X[..., :3], "cross": (y[:, None] @ there)[:, 0]}
    older |= {"square": tall.square, "count": tall.count, "values": tall.values, "vectors": tall.vectors}
    point = np.ones(3)
    np.testing.assert_allclose(summary_of(older).offset(0.1, point), tall.offset(0.1, point), atol=1e-12)


@pytest.mark.parametrize("garbage", [np.inf, np.nan, 1e300])
def test_garbage_counts_as_no_data(data, garbage):
    X, y, weight = (array.copy() for array in data)
    X[0, 1, 2] = garbage
    form = summary(X, y, weight)
    assert form.count.tolist() == [0.0, 2.0, 0.0]
    assert all(np.isfinite(array).all() for array in form.arrays().values())


def test_models_do_not_depend_on_the_form():
    """Padding, which tips a block to Gram matrices, changes nothing."""
    rng = np.random.default_rng(2)
    X, y, weight = np.zeros((5, 9, D)), np.zeros((5, 9)), np.zeros((5, 9))
    X[:, :N], y[:, :N], weight[:, :N] = rng.normal(size=(5, N, D)), rng.normal(size=(5, N)), 1.0
    keys = np.zeros(5, np.uint64)
    blocks = [Block(np.arange(5), X[:, :k], y[:, :k], weight[:, :k], keys) for k in (N, 9)]
    learner = Regression(D)
    candidates = [Candidate(0.5, CENTER, factor, True) for factor in FACTORS.values()]
    short, padded = (
        learner.finish(Home(learner.prepare(block), block), candidates, np.array([-3.0, 0.7]))
        for block in blocks
    )
    for name, array in short.items():
        np.testing.assert_allclose(array, padded[name], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("structure", [Joint(), Subspace()], ids=repr)
@pytest.mark.parametrize("most", [D - 1, D + 2])
def test_contract_with_fewer_rows_than_columns(structure, most):
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, most + 1, 20)
    X = [rng.normal(size=(n, D)) / math.sqrt(D) for n in sizes]
    tasks = Tasks.from_list(X, [x[:, 0] + 0.1 * rng.normal(size=len(x)) for x in X])
    check_algorithm(SharedPrior(Regression(D, intercept=False), structure), tasks)
