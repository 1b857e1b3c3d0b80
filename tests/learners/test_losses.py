"""Losses: gradients against finite differences, constants respected and attained, tasks kept apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax

from cloister.errors import InputError
from cloister.learners.linear.losses import LeastSquares, Logistic, Loss, Softmax

DIM = 3
LOSSES = [LeastSquares(DIM), Logistic(DIM), Softmax(DIM, 2), Softmax(DIM, 4)]
BOUNDED = LOSSES[1:]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
every_bounded = pytest.mark.parametrize("loss", BOUNDED, ids=repr)
seeds = st.integers(0, 2**32 - 1)


def make(loss: Loss, seed=0, k=4, n=7, scale=1.0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, n + 1, k)
    weight = np.where(np.arange(n) < sizes[:, None], rng.uniform(0.2, 2.0, (k, n)), 0.0)
    X = scale * rng.normal(size=(k, n, DIM)) * (weight > 0)[..., None]
    if isinstance(loss, LeastSquares):
        y = rng.normal(size=(k, n))
    else:
        y = rng.integers(0, loss.classes if isinstance(loss, Softmax) else 2, (k, n)).astype(float)
    return rng.normal(size=(k, loss.size)), X, y * (weight > 0), weight


@every_loss
@settings(max_examples=25, deadline=None)
@given(seed=seeds, scale=st.sampled_from([0.1, 1.0, 5.0]))
def test_gradient_is_the_slope_of_the_value(loss, seed, scale):
    weights, X, y, weight = make(loss, seed, scale=scale)
    step = 1e-5
    slopes = np.stack(
        [
            (loss.value(weights + step * e, X, y, weight) - loss.value(weights - step * e, X, y, weight))
            / (2 * step)
            for e in np.eye(loss.size)
        ],
        axis=1,
    )
    np.testing.assert_allclose(loss.gradient(weights, X, y, weight), slopes, rtol=1e-6, atol=1e-7)


@every_loss
@settings(max_examples=25, deadline=None)
@given(seed=seeds, scale=st.sampled_from([0.1, 1.0, 5.0]), apart=st.sampled_from([1e-3, 1.0, 10.0]))
def test_gradient_is_smooth(loss, seed, scale, apart):
    weights, X, y, weight = make(loss, seed, scale=scale)
    other = weights + apart * np.random.default_rng(seed).normal(size=weights.shape)
    change = loss.gradient(weights, X, y, weight) - loss.gradient(other, X, y, weight)
    bound = loss.smoothness(X, weight) * np.linalg.norm(weights - other, axis=1)
    assert np.all(np.linalg.norm(change, axis=1) <= bound * (1 + 1e-9) + 1e-12)


@every_bounded
@settings(max_examples=25, deadline=None)
@given(seed=seeds, scale=st.sampled_from([0.1, 1.0, 5.0]), apart=st.sampled_from([1e-3, 1.0, 10.0]))
def test_value_is_lipschitz(loss, seed, scale, apart):
    weights, X, y, weight = make(loss, seed, scale=scale)
    other = weights + apart * np.random.default_rng(seed).normal(size=weights.shape)
    change = np.abs(loss.value(weights, X, y, weight) - loss.value(other, X, y, weight))
    bound = loss.lipschitz(X, weight) * np.linalg.norm(weights - other, axis=1)
    assert np.all(change <= bound * (1 + 1e-9) + 1e-12)


def one_row(loss, y):
    return np.array([[[0.6, 0.0, 0.8]]]) * 3, np.array([[y]]), np.ones((1, 1))


def class_weights(loss, scores, X):
    """Flat weights that give one row these scores."""
    return (np.array(scores)[:, None] * X[0, 0] / (X[0, 0] @ X[0, 0])).reshape(1, loss.size)


@pytest.mark.parametrize(
    ("loss", "scores", "direction"),
    [
        (LeastSquares(DIM), [0.0], [1.0]),
        (Logistic(DIM), [0.0], [1.0]),
        (Softmax(DIM, 2), [0.0], [1.0]),
        # Two of four classes share the mass, and the step moves it from one to the other.
        (Softmax(DIM, 4), [30.0, 30.0, 0.0], [1.0, -1.0, 0.0]),
    ],
    ids=repr,
)
def test_smoothness_is_attained(loss, scores, direction):
    X, y, weight = one_row(loss, 1.0)
    weights = class_weights(loss, scores, X)
    step = 1e-4 * class_weights(loss, direction, X)
    change = loss.gradient(weights + step, X, y, weight) - loss.gradient(weights - step, X, y, weight)
    rate = np.linalg.norm(change) / np.linalg.norm(2 * step)
    assert rate == pytest.approx(loss.smoothness(X, weight)[0], rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "scores", "y"),
    [
        (Logistic(DIM), [-40.0], 1.0),
        (Softmax(DIM, 2), [-40.0], 1.0),
        (Softmax(DIM, 4), [40.0, 0.0, 0.0], 2.0),
    ],
    ids=repr,
)
def test_lipschitz_constant_is_attained(loss, scores, y):
    X, y, weight = one_row(loss, y)
    slope = np.linalg.norm(loss.gradient(class_weights(loss, scores, X), X, y, weight))
    assert slope == pytest.approx(loss.lipschitz(X, weight)[0], rel=1e-9)


def test_a_square_has_no_lipschitz_constant():
    _, X, _, weight = make(LeastSquares(DIM))
    weight[1] = 0.0
    np.testing.assert_array_equal(LeastSquares(DIM).lipschitz(X, weight), [np.inf, 0.0, np.inf, np.inf])


def test_smoothness_is_the_top_eigenvalue_of_the_mean_of_squares():
    _, X, _, weight = make(LeastSquares(DIM), seed=3)
    for i, top in enumerate(LeastSquares(DIM).smoothness(X, weight)):
        gram = X[i].T @ np.diag(weight[i] / weight[i].sum()) @ X[i]
        assert top == pytest.approx(np.linalg.norm(gram, 2))


def test_two_classes_are_logistic():
    weights, X, y, weight = make(Logistic(DIM), seed=4)
    plain, soft = Logistic(DIM), Softmax(DIM, 2)
    for name in ("value", "gradient"):
        expected = getattr(plain, name)(weights, X, y, weight)
        np.testing.assert_allclose(getattr(soft, name)(weights, X, y, weight), expected, atol=1e-14)
    np.testing.assert_allclose(soft.predict(weights, X)[..., 1], plain.predict(weights, X))
    np.testing.assert_array_equal(soft.smoothness(X, weight), plain.smoothness(X, weight))
    np.testing.assert_array_equal(soft.lipschitz(X, weight), plain.lipschitz(X, weight))


def test_values_by_hand():
    weights, X, y, weight = make(Softmax(DIM, 4), seed=5)
    scores = np.stack(
        [X @ np.zeros(DIM)] + [np.einsum("knd,kd->kn", X, w) for w in np.split(weights, 3, 1)], -1
    )
    logs = log_softmax(scores, axis=-1)
    np.testing.assert_allclose(Softmax(DIM, 4).predict(weights, X), np.exp(logs))
    chosen = np.take_along_axis(logs, y.astype(int)[..., None], axis=-1)[..., 0]
    expected = -(weight * chosen).sum(axis=1) / weight.sum(axis=1)
    np.testing.assert_allclose(Softmax(DIM, 4).value(weights, X, y, weight), expected)

    weights, X, y, weight = make(LeastSquares(DIM), seed=5)
    residual = y - np.einsum("knd,kd->kn", X, weights)
    expected = (weight * residual**2).sum(axis=1) / weight.sum(axis=1) / 2
    np.testing.assert_allclose(LeastSquares(DIM).value(weights, X, y, weight), expected)


@every_loss
def test_extreme_scores_are_exact(loss):
    weights = np.zeros((1, loss.size))
    weights[0, 0] = 1e6
    X, weight = np.array([[[1.0, 0.0, 0.0]]]), np.ones((1, 1))
    wrong, right = np.array([[0.0]]), np.array([[1e6 if isinstance(loss, LeastSquares) else 1.0]])
    assert loss.value(weights, X, right, weight) == 0.0
    assert loss.value(weights, X, wrong, weight) == (5e11 if isinstance(loss, LeastSquares) else 1e6)
    assert np.isfinite(loss.gradient(-weights, X, right, weight)).all()


@every_loss
def test_a_task_without_rows_has_loss_zero(loss):
    weights, X, y, weight = make(loss)
    X[2], y[2], weight[2] = 0.0, 0.0, 0.0
    for result in (
        loss.value(weights, X, y, weight),
        loss.gradient(weights, X, y, weight),
        loss.smoothness(X, weight),
        loss.lipschitz(X, weight),
    ):
        np.testing.assert_array_equal(result[2], 0.0)
        assert np.all(result[[0, 1, 3]] != 0)
    none = np.zeros((4, 0))
    assert loss.value(weights, X[:, :0], none, none).tolist() == [0.0] * 4
    assert loss.gradient(weights, X[:, :0], none, none).tolist() == [[0.0] * loss.size] * 4
    assert loss.lipschitz(X[:, :0], none).tolist() == [0.0] * 4


@every_loss
def test_padding_changes_nothing(loss):
    weights, X, y, weight = make(loss, seed=6)
    wide = [np.concatenate([part, np.zeros_like(part)], axis=1) for part in (X, y, weight)]
    for name in ("value", "gradient"):
        expected = getattr(loss, name)(weights, X, y, weight)
        np.testing.assert_allclose(getattr(loss, name)(weights, *wide), expected, atol=1e-14)
    np.testing.assert_allclose(loss.smoothness(wide[0], wide[2]), loss.smoothness(X, weight))
    np.testing.assert_array_equal(loss.lipschitz(wide[0], wide[2]), loss.lipschitz(X, weight))


@every_loss
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, 1e6])
@pytest.mark.parametrize("part", ["X", "y", "weights"])
def test_a_task_does_not_touch_the_others(loss, value, part):
    weights, X, y, weight = make(loss, seed=7)
    other = {"X": X.copy(), "y": y.copy(), "weights": weights.copy()}
    other[part][1] = value
    before = everything(loss, weights, X, y, weight)
    after = everything(loss, other["weights"], other["X"], other["y"], weight)
    for old, new in zip(before, after, strict=True):
        assert old[[0, 2, 3]].tobytes() == new[[0, 2, 3]].tobytes()


def everything(loss, weights, X, y, weight):
    return (
        loss.value(weights, X, y, weight),
        loss.gradient(weights, X, y, weight),
        loss.smoothness(X, weight),
        loss.lipschitz(X, weight),
        loss.predict(weights, X),
    )


@every_loss
def test_constants_of_unusable_data_are_infinite(loss):
    _, X, _, weight = make(loss)
    X[0, 0, 0], X[1, 0, 0] = np.nan, np.inf
    assert loss.smoothness(X, weight)[:2].tolist() == [np.inf, np.inf]
    assert loss.lipschitz(X, weight)[:2].tolist() == [np.inf, np.inf]


def test_at_least_two_classes():
    with pytest.raises(InputError, match=r"classes must be at least 2\. Got 1\."):
        Softmax(DIM, 1)
