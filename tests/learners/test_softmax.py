"""The batched softmax learner against scikit-learn, SciPy, dense formulas and brute force."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.linear_model import LogisticRegression

from cloister.errors import InputError
from cloister.learners.linear import newton
from cloister.learners.linear.newton import probabilities
from cloister.learners.linear.softmax import laplace, mode, posterior

VARIANCES = np.array([1.0, 0.01, 30.0, 0.2])


@pytest.fixture(params=["factors", "conjugate gradients"], autouse=True, scope="module")
def _solved_by(request):
    """Everything here holds for few weights and, with no weights few, for many."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "factors":
            patch.setattr(newton, "FEW_WEIGHTS", 0)
        yield


def make(seed=0, k=5, n=9, d=3, classes=2, scale=1.0, offset=1.0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, n + 1, k)
    weight = np.where(np.arange(n) < sizes[:, None], rng.uniform(0.2, 2.0, (k, n)), 0.0)
    X = scale * rng.normal(size=(k, n, d)) * (weight > 0)[..., None]
    y = rng.integers(0, classes, (k, n)) * (weight > 0)
    return SimpleNamespace(
        X=X,
        offset=offset * rng.normal(size=(k, n, classes - 1)),
        y=y.astype(float),
        weight=weight,
        classes=classes,
    )


def fit_all(b, variances=VARIANCES, **options):
    return laplace(b.X, b.offset, b.y, b.weight, variances, classes=b.classes, **options)


def with_reference(scores):
    return np.concatenate([np.zeros((len(scores), 1)), scores], axis=1)


def log_likelihood(v, X, offset, y, weight):
    """One task, the textbook way."""
    logs = log_softmax(with_reference(offset + X @ v.T), axis=1)
    return float(weight @ logs[np.arange(len(y)), y.astype(int)])


def gradient(v, X, offset, y, weight):
    """Gradient of minus the log-likelihood of one task."""
    chance = softmax(with_reference(offset + X @ v.T), axis=1)
    hot = np.eye(len(v) + 1)[y.astype(int)]
    return ((chance - hot)[:, 1:] * weight[:, None]).T @ X


def hessian(v, X, offset, weight):
    """Hessian of minus the log-likelihood of one task, a sum of Kronecker products."""
    chance = softmax(with_reference(offset + X @ v.T), axis=1)[:, 1:]
    return sum(
        a * np.kron(np.diag(p) - np.outer(p, p), np.outer(x, x))
        for a, p, x in zip(weight, chance, X, strict=True)
    )


def class_covariance(q):
    """Covariance of differences from class 0, if all classes have weights of variance one half."""
    return (np.eye(q) + 1) / 2


def prior_covariance(v):
    return np.kron(class_covariance(len(v)), np.eye(v.shape[1]))


def prior_penalty(v):
    return float(np.sum(v * np.linalg.solve(class_covariance(len(v)), v))) / 2


def task(b, i):
    return b.X[i], b.offset[i], b.y[i], b.weight[i]


def off_mode(b, v, t, i):
    """Length of the Newton step that is left at v in task i, relative to v."""
    X, offset, _, weight = task(b, i)
    K = prior_covariance(v)
    slope = v.ravel() + t * K @ gradient(v, *task(b, i)).ravel()
    step = np.linalg.solve(np.eye(v.size) + t * K @ hessian(v, X, offset, weight), slope)
    return np.linalg.norm(step) / (1 + np.linalg.norm(v))


# --- the mode


@pytest.mark.parametrize("t", [0.01, 1.0, 50.0])
def test_binary_mode_is_that_of_scikit_learn(t):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(4, 30, 3)), rng.integers(0, 2, (4, 30))
    weight = rng.uniform(0.1, 3.0, (4, 30))
    ours = mode(X, 0.0, y, weight, t, classes=2)
    for i in range(4):
        theirs = LogisticRegression(C=t, fit_intercept=False, solver="newton-cholesky", tol=1e-12)
        theirs.fit(X[i], y[i], sample_weight=weight[i])
        np.testing.assert_allclose(ours[i], theirs.coef_, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("t", [0.05, 4.0])
def test_mode_minimises_the_objective(classes, t):
    b = make(2, classes=classes)
    ours = mode(b.X, b.offset, b.y, b.weight, t, classes=classes)
    shape, K = ours.shape[1:], class_covariance(classes - 1)
    for i in range(len(ours)):
        found = minimize(
            lambda v, i=i: (
                prior_penalty(v.reshape(shape)) / t - log_likelihood(v.reshape(shape), *task(b, i))
            ),
            np.zeros(ours[i].size),
            jac=lambda v, i=i: (
                (np.linalg.solve(K, v.reshape(shape)) / t).ravel()
                + gradient(v.reshape(shape), *task(b, i)).ravel()
            ),
            options={"gtol": 1e-10},
        )
        np.testing.assert_allclose(ours[i].ravel(), found.x, atol=1e-6)


@pytest.mark.parametrize("classes", [3, 5])
def test_no_class_is_special(classes):
    """Another reference class: the same chances and evidence, up to their order."""
    b, other = (make(15, classes=classes, offset=0.0) for _ in range(2))
    other.y = (b.y + 1) % classes
    first, second = (fit_all(c) for c in (b, other))
    np.testing.assert_allclose(first.log_evidence, second.log_evidence, atol=1e-8)
    here, there = (probabilities(b.X[:, None] @ fit.mode.swapaxes(2, 3)) for fit in (first, second))
    np.testing.assert_allclose(here, np.roll(there, -1, axis=-1), atol=1e-7)


@pytest.mark.parametrize("t", [0.05, 4.0])
def test_several_classes_are_those_of_scikit_learn(t):
    """Its penalty is on every class's weights, of variance t/2 here."""
    rng = np.random.default_rng(16)
    X, y = rng.normal(size=(1, 40, 3)), rng.integers(0, 4, (1, 40))
    ours = mode(X, 0.0, y, np.ones((1, 40)), t, classes=4)[0]
    theirs = LogisticRegression(C=t / 2, fit_intercept=False, tol=1e-10, max_iter=1000).fit(X[0], y[0])
    np.testing.assert_allclose(ours, theirs.coef_[1:] - theirs.coef_[0], atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    classes=st.integers(2, 4),
    scale=st.sampled_from([1e-3, 0.3, 1.0, 10.0, 100.0]),
    offset=st.sampled_from([0.0, 1.0, 10.0]),
)
def test_gradient_is_zero_at_every_mode(seed, classes, scale, offset):
    b = make(seed, classes=classes, scale=scale, offset=offset)
    fit = fit_all(b)
    for i in range(len(b.X)):
        for j, t in enumerate(VARIANCES):
            assert off_mode(b, fit.mode[i, j], t, i) < 1e-8


def test_mode_is_the_mode_of_laplace_and_order_of_variances_is_kept():
    b = make(3, classes=3)
    fit = fit_all(b)
    for j, t in enumerate(VARIANCES):
        alone = mode(b.X, b.offset, b.y, b.weight, t, classes=3)
        np.testing.assert_allclose(fit.mode[:, j], alone, atol=1e-8)
    np.testing.assert_array_equal(fit.variances, VARIANCES)


@pytest.mark.parametrize("start", [0.3, -20.0, 1e200, 1e300, np.nan, np.inf])
def test_start_does_not_matter(start):
    b = make(4)
    first = mode(b.X, b.offset, b.y, b.weight, 2.0, classes=2)
    again = mode(b.X, b.offset, b.y, b.weight, 2.0, classes=2, start=np.full_like(first, start))
    np.testing.assert_allclose(again, first, atol=1e-8)
    warm = mode(b.X, b.offset, b.y, b.weight, 2.0, classes=2, start=first, max_iter=1)
    np.testing.assert_allclose(warm, first, atol=1e-8)


def test_whitening_gives_any_gaussian_prior():
    rng = np.random.default_rng(5)
    b = make(5, k=1, d=2, offset=0.0)
    m, L, t = rng.normal(size=2), np.array([[1.5, 0.0], [-0.7, 0.4]]), 0.8
    v = mode(b.X @ L, (b.X @ m)[..., None], b.y, b.weight, t, classes=2)[0, 0]
    w = m + L @ v
    precision = np.linalg.inv(t * L @ L.T)
    slope = precision @ (w - m) + gradient(w[None], *task(b, 0))[0]
    np.testing.assert_allclose(slope, 0.0, atol=1e-8)


# --- the evidence and the posterior


@pytest.mark.parametrize(("classes", "d"), [(2, 3), (3, 3), (4, 3), (3, 20), (2, 40)])
def test_evidence_and_posterior_follow_the_dense_formulas(classes, d):
    b = make(6, classes=classes, d=d)
    fit = fit_all(b)
    average = softmax(fit.log_evidence, axis=1)
    mean, covariance = posterior(fit, average)
    for i in range(len(b.X)):
        X, offset, _, weight = task(b, i)
        first, second = 0.0, 0.0
        for j, t in enumerate(VARIANCES):
            v = fit.mode[i, j]
            H = hessian(v, X, offset, weight)
            K = prior_covariance(v)
            expected = log_likelihood(v, *task(b, i)) - prior_penalty(v) / t
            expected -= np.linalg.slogdet(np.eye(v.size) + t * K @ H)[1] / 2
            assert fit.log_evidence[i, j] == pytest.approx(expected, abs=1e-8)
            first = first + average[i, j] * v.ravel()
            second = second + average[i, j] * (np.linalg.inv(H + np.linalg.inv(t * K)) + np.outer(v, v))
        np.testing.assert_allclose(mean[i].ravel(), first, atol=1e-10)
        np.testing.assert_allclose(covariance[i], second - np.outer(first, first), atol=1e-8)


@pytest.mark.parametrize(("d", "classes"), [(1, 2), (2, 2), (1, 3)])
def test_evidence_is_close_to_the_integral(d, classes):
    b = make(7, k=4, n=12, d=d, classes=classes)
    fit = fit_all(b)
    axis = np.linspace(-8, 8, 161)
    q = classes - 1
    grid = np.stack(np.meshgrid(*[axis] * (q * d)), axis=-1).reshape(-1, q, d)
    log_prior = -np.sum(grid**2, axis=(1, 2)) / 2 + q * d * np.log(axis[1] - axis[0])
    for i in range(4):
        for j, t in enumerate(VARIANCES):
            X, offset, y, weight = task(b, i)
            root = np.linalg.cholesky(t * class_covariance(q))
            scores = offset + X @ (root @ grid).swapaxes(1, 2)
            chosen = np.concatenate([np.zeros_like(scores[..., :1]), scores], axis=-1)
            chosen = chosen[:, np.arange(len(y)), y.astype(int)]
            values = (chosen - np.logaddexp.reduce(scores, axis=-1, initial=0.0)) @ weight
            exact = logsumexp(values + log_prior) - q * d / 2 * np.log(2 * np.pi)
            # A tight prior leaves little to approximate; a loose one lets the likelihood's skew show.
            assert fit.log_evidence[i, j] == pytest.approx(exact, abs=min(0.1 * t, 0.3))


def test_no_information_leaves_the_prior():
    X, y = np.zeros((2, 3, 2)), np.array([[0, 1, 1], [0, 0, 0]])
    weight = np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    fit = laplace(X, 0.0, y, weight, VARIANCES, classes=2)
    np.testing.assert_array_equal(fit.mode, 0.0)
    np.testing.assert_allclose(fit.log_evidence, np.array([[-3 * np.log(2)], [0.0]]) * np.ones(4), atol=1e-14)
    mean, covariance = posterior(fit, np.full((2, 4), 0.25))
    np.testing.assert_array_equal(mean, 0.0)
    np.testing.assert_allclose(covariance, np.tile(VARIANCES.mean() * np.eye(2), (2, 1, 1)))


# --- hard tasks


HARD = {
    "separable": ([[1.0, 2.0], [1.0, 3.0], [1.0, -1.0]], [1, 1, 0]),
    "one class": ([[1.0, 2.0], [1.0, 3.0], [1.0, -1.0]], [1, 1, 1]),
    "the reference only": ([[1.0, 2.0], [1.0, 3.0], [1.0, -1.0]], [0, 0, 0]),
    "one row": ([[1.0, -0.4]], [1]),
    "constant features": ([[1.0, 1.0]] * 3, [0, 1, 1]),
    "large features": ([[1.0, 2e4], [1.0, -3e4], [1.0, 1e4]], [1, 0, 0]),
    "large and separable": ([[1.0, 2e5], [1.0, -3e5], [1.0, 1e5]], [1, 0, 1]),
    "twins": ([[1e3, 1e3], [-2e3, -2e3], [1e3, 1e3]], [1, 1, 0]),
    "mixed units": ([[1e-6, 1e4], [-1e-6, 3e4], [2e-6, -2e4]], [0, 1, 1]),
}


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", HARD)
def test_hard_tasks_converge(name, classes):
    X, y = (np.array(part, dtype=float)[None] for part in HARD[name])
    shape = (*y.shape, classes - 1)
    b = SimpleNamespace(X=X, offset=np.zeros(shape), y=y, weight=np.ones_like(y), classes=classes)
    fit = fit_all(b)
    assert np.isfinite(fit.log_evidence).all()
    longer = fit_all(b, tol=0.0, max_iter=300)
    np.testing.assert_allclose(fit.mode, longer.mode, atol=1e-7)
    for j, t in enumerate(VARIANCES):
        assert off_mode(b, fit.mode[0, j], t, 0) < 1e-7


@pytest.mark.parametrize("classes", [2, 3])
def test_long_steps_reach_far_modes(classes):
    b = make(14, k=50, classes=classes, scale=30.0, offset=3.0)
    fit, longer = (fit_all(b, np.array([1000.0]), max_iter=most).mode for most in (50, 1000))
    np.testing.assert_allclose(fit, longer, rtol=1e-8, atol=1e-8)


def test_both_classes_are_equally_accurate():
    X = 1e9 * np.array([[[1.0], [-2.0], [3.0]]])
    y = np.array([[1, 0, 1]])
    there, back = (mode(X, 0.0, label, np.ones((1, 3)), 1.0, classes=2) for label in (y, 1 - y))
    np.testing.assert_allclose(there, -back, rtol=1e-6)


def test_zero_rows_and_zero_tasks():
    fit = laplace(np.zeros((2, 0, 3)), 0.0, np.zeros((2, 0)), np.zeros((2, 0)), VARIANCES, classes=3)
    np.testing.assert_array_equal(fit.mode, np.zeros((2, 4, 2, 3)))
    np.testing.assert_array_equal(fit.log_evidence, np.zeros((2, 4)))
    fit = laplace(np.zeros((0, 5, 3)), 0.0, np.zeros((0, 5)), np.zeros((0, 5)), VARIANCES, classes=2)
    assert fit.mode.shape == (0, 4, 1, 3)


@pytest.mark.parametrize("offset", [0.0, 1e100, -1e100])
@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_largest_numbers_do_not_overflow(offset, label, classes):
    X, y, weight = np.full((1, 4, 2), 1e100), np.full((1, 4), label), np.full((1, 4), 1e30)
    X[0, :2, 1] *= -1
    X[0, 3, 0] = 1.0
    fit = laplace(X, offset, y, weight, np.array([1e-19, 1.0, 9e19]), classes=classes)
    assert np.isfinite(fit.mode).all()
    assert np.isfinite(fit.log_evidence).all()
    assert np.isfinite(posterior(fit, np.full((1, 3), 1 / 3))[1]).all()


@pytest.mark.parametrize(
    ("part", "value"),
    [(part, value) for part in ("X", "offset", "weight") for value in (np.nan, np.inf, -np.inf, 1e300)]
    + [("weight", -1.0), ("y", 2.0), ("y", 0.5), ("y", -1.0), ("y", np.nan), ("y", np.inf), ("X", -1e101)],
)
def test_unusable_data_are_no_data(part, value):
    b = make(8)
    b.weight[2] += 1.0
    getattr(b, part)[2, 1] = value
    fit = fit_all(b)
    np.testing.assert_array_equal(fit.mode[2], 0.0)
    np.testing.assert_array_equal(fit.log_evidence[2], 0.0)
    assert np.all(fit.mode[[0, 1, 3, 4]] != 0)


# --- rows never mix


def everything(b):
    start = np.full((len(b.X), b.classes - 1, b.X.shape[2]), 0.1)
    fit = fit_all(b, start=start)
    mean, covariance = posterior(fit, softmax(fit.log_evidence, axis=1))
    single = mode(b.X, b.offset, b.y, b.weight, 3.0, classes=b.classes, start=start)
    return fit.mode, fit.log_evidence, mean, covariance, single


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300, 1e100, 1e6, "separable", "absent"])
def test_a_task_does_not_touch_the_others(value, classes):
    b, c = (make(9, k=6, classes=classes) for _ in range(2))
    if value == "absent":
        c.X[3], c.y[3], c.weight[3] = 0.0, 0.0, 0.0
    elif value == "separable":
        c.weight[3] = 1.0
        c.X[3] = 1e4 * np.random.default_rng(0).normal(size=c.X[3].shape)
        c.y[3] = c.X[3, :, 0] > 0
    else:
        c.weight[3] = 1.0
        c.X[3] = value * np.where(np.arange(c.X[3].size) % 2, 1.0, -1.0).reshape(c.X[3].shape)
    others = [0, 1, 2, 4, 5]
    for before, after in zip(everything(b), everything(c), strict=True):
        assert before[others].tobytes() == after[others].tobytes()
        assert before[3].tobytes() != after[3].tobytes()


@pytest.mark.parametrize("d", [3, 20])
def test_company_changes_no_bit(d):
    b = make(15, k=6, classes=4, d=d)
    together = everything(b)
    for some in ([2], [4, 1]):
        part = {name: getattr(b, name)[some] for name in ("X", "offset", "y", "weight")}
        for one, all_of_them in zip(everything(SimpleNamespace(**part, classes=4)), together, strict=True):
            assert one.tobytes() == all_of_them[some].tobytes()


def test_rows_left_out_are_foreseen_as_by_fits_without_them():
    """One step instead of a fit loses a twentieth, at most, of what it makes of the likelihood."""
    b, exact, inside = make(16, k=3, n=40, d=3), np.zeros((3, 3)), np.zeros((3, 3))
    b.weight[:], variances = b.weight > 0, VARIANCES[VARIANCES <= 1]
    fit = fit_all(b, variances, tested=True)
    for task, row in zip(*np.nonzero(b.weight), strict=True):
        less = b.weight[[task]].copy()
        less[0, row] = 0.0
        without = laplace(b.X[[task]], b.offset[[task]], b.y[[task]], less, variances, classes=2).mode[0]
        one = (*(part[task, [row]] for part in (b.X, b.offset, b.y)), np.ones(1))
        exact[task] += [log_likelihood(v, *one) for v in without]
        inside[task] += [log_likelihood(v, *one) for v in fit.mode[task]]
    assert (inside > exact).all()
    assert (np.abs(fit.left_out - exact) < 0.05 * (inside - exact)).all()


def test_who_is_tested_has_the_same_fit():
    """But for the last bits: matrices are then factored one by one."""
    b, share = make(17), np.full((5, 4), 0.25)
    for one, other in zip(
        posterior(fit_all(b), share), posterior(fit_all(b, tested=True), share), strict=True
    ):
        assert np.allclose(one, other, rtol=1e-10, atol=1e-10)
    assert np.allclose(fit_all(b).log_evidence, fit_all(b, tested=True).log_evidence, rtol=1e-10)


def test_padding_changes_nothing():
    b, c = make(10, classes=3), make(10, classes=3)
    k, _, d = b.X.shape
    rubbish = np.random.default_rng(0).normal(size=(k, 4, d))
    rubbish[0] = np.nan
    c.X = np.concatenate([rubbish, b.X], axis=1)
    c.offset = np.concatenate([np.full((k, 4, 2), 7.0), b.offset], axis=1)
    c.y = np.concatenate([np.full((k, 4), 9.0), b.y], axis=1)
    c.weight = np.concatenate([np.zeros((k, 4)), b.weight], axis=1)
    for before, after in zip(everything(b), everything(c), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-9)


def test_a_weight_of_two_is_the_row_twice():
    b = make(11)
    doubled = SimpleNamespace(
        X=np.concatenate([b.X, b.X], axis=1),
        offset=np.concatenate([b.offset, b.offset], axis=1),
        y=np.concatenate([b.y, b.y], axis=1),
        weight=np.concatenate([b.weight, b.weight], axis=1),
        classes=2,
    )
    b.weight = 2 * b.weight
    np.testing.assert_allclose(fit_all(b).log_evidence, fit_all(doubled).log_evidence, atol=1e-9)


def test_tasks_may_come_in_any_order():
    b = make(12)
    order = np.array([3, 0, 4, 2, 1])
    c = SimpleNamespace(X=b.X[order], offset=b.offset[order], y=b.y[order], weight=b.weight[order], classes=2)
    for before, after in zip(everything(b), everything(c), strict=True):
        np.testing.assert_allclose(after, before[order], rtol=1e-12, atol=1e-14)


# --- small things


def test_arguments_are_left_alone_and_the_fit_says_nothing_private():
    b = make(13)
    before = [part.copy() for part in (b.X, b.offset, b.y, b.weight)]
    fit = fit_all(b)
    posterior(fit, np.full(fit.log_evidence.shape, 0.25))
    for part, copy in zip((b.X, b.offset, b.y, b.weight), before, strict=True):
        np.testing.assert_array_equal(part, copy)
    assert repr(fit) == f"LaplaceFit(variances={VARIANCES!r})"


def test_probabilities():
    scores = np.random.default_rng(0).normal(size=(2, 7, 3)) * 5
    full = np.concatenate([np.zeros((2, 7, 1)), scores], axis=-1)
    np.testing.assert_allclose(probabilities(scores), softmax(full, axis=-1))
    extreme = probabilities(np.array([[1e300, -1e300], [-1e300, -1e300], [1e300, 1e300]]))
    np.testing.assert_array_equal(extreme, [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])


@pytest.mark.parametrize("variances", [[0.0], [-1.0], [np.nan], [1.0, np.inf], [1e20], [], 1.0])
def test_variances_must_be_positive_numbers(variances):
    b = make()
    with pytest.raises(InputError, match="variances must be"):
        fit_all(b, variances=np.array(variances))


def test_at_least_two_classes():
    b = make()
    with pytest.raises(InputError, match=r"classes must be at least 2\. Got 1\."):
        mode(b.X, 0.0, b.y, b.weight, 1.0, classes=1)
