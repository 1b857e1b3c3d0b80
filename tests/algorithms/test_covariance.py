"""Model-protected learning: without noise its objective's minimum, with loud noise single-task learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import kstest
from threadpoolctl import threadpool_limits

from cloister import Plan, Tasks, check_algorithm, replay, run
from cloister.algorithms import Decomposed, EntrySparse, GeometricBudget, GroupSparse, LowRank, PowerBudget
from cloister.algorithms.covariance import ModelProtected
from cloister.core.lifts import unsvec
from cloister.errors import PlanError
from cloister.learners import LeastSquares, Logistic, Softmax
from cloister.mechanisms import Gaussian, L2Laplace, NoNoise
from cloister.sampling import Poisson

M, N, D = 16, 12, 6
BOTH = pytest.mark.parametrize("family", [LowRank, GroupSparse])


@pytest.fixture(scope="module")
def data():
    """Two shared directions, four active features, some noise; targets for regression and for two classes."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(M, N, D))
    w = rng.normal(size=(M, 2)) @ (rng.normal(size=(2, D)) * (np.arange(D) < 4))
    scores = np.einsum("knd,kd->kn", X, w)
    y = scores + 0.3 * rng.normal(size=(M, N))
    return X, y, (rng.random((M, N)) < 1 / (1 + np.exp(-scores))).astype(float)


def fit(algorithm, X, y, mechanism=None, seed=0):
    tasks = Tasks.from_list(list(X), list(y))
    return run(Plan(algorithm, mechanism or NoNoise(), n_tasks=len(X)), tasks, random_state=seed)


# What follows is plain proximal gradient descent on the d x m matrix W, as in a textbook.


def losses(W, X, y, logistic):
    scores = np.einsum("knd,dk->kn", X, W)
    each = np.logaddexp(0, scores) - y * scores if logistic else (scores - y) ** 2 / 2
    return each.mean(axis=1).sum()


def slopes(W, X, y, logistic):
    scores = np.einsum("knd,dk->kn", X, W)
    residual = (1 / (1 + np.exp(-scores)) if logistic else scores) - y
    return np.einsum("knd,kn->dk", X, residual) / X.shape[1]


def norm(W, family):
    return np.linalg.norm(W, "nuc") if family is LowRank else np.linalg.norm(W, axis=1).sum()


def shrink(W, by, family):
    if family is LowRank:
        U, s, V = np.linalg.svd(W, full_matrices=False)
        return U * np.maximum(s - by, 0) @ V
    rows = np.linalg.norm(W, axis=1, keepdims=True)
    return W * np.maximum(rows - by, 0) / rows


def minimum(X, y, family, lam, strong=0.0, logistic=False):
    """FISTA with restarts until nothing moves; return the optimal W and objective."""
    step = 1 / (max(np.linalg.norm(x, 2) ** 2 / len(x) for x in X) + strong)
    before = W = np.zeros((X.shape[2], len(X)))
    t = 1
    for _ in range(30_000):
        ahead = W + (t - 1) / (t + 2) * (W - before)
        slope = slopes(ahead, X, y, logistic) + strong * ahead
        new = shrink(ahead - step * slope, step * lam, family)
        t = 1 if ((ahead - new) * (new - W)).sum() > 0 else t + 1
        before, W = W, new
        if np.abs(W - before).max() < 1e-13 and t > 5:
            break
    return W, objective(W, X, y, family, lam, strong, logistic)


def objective(W, X, y, family, lam, strong=0.0, logistic=False):
    return losses(W, X, y, logistic) + lam * norm(W, family) + strong / 2 * (W**2).sum()


def safe_step(X):
    return 1 / max(np.linalg.norm(x, 2) ** 2 / len(x) for x in X)


@BOTH
@pytest.mark.parametrize(
    ("lam", "options"),
    [
        (0.5, {"rounds": 600}),
        (1.5, {"rounds": 600}),
        (0.5, {"rounds": 1000, "accelerated": False}),
        (0.5, {"rounds": 300, "strong": 0.05}),
        (0.5, {"rounds": 500, "strong": 0.05, "accelerated": False}),
    ],
)
def test_without_noise_it_reaches_the_minimum_of_its_objective(data, family, lam, options):
    X, y, _ = data
    strong = options.get("strong", 0.0)
    lr = 1 / (1 / safe_step(X) + strong)
    found = fit(family(LeastSquares(D), lam=lam, clip=100.0, lr=lr, **_even(options)), X, y)
    best, value = minimum(X, y, family, lam, strong)
    coef = found.private.models["coef"].T
    assert value * (1 - 1e-9) <= objective(coef, X, y, family, lam, strong) <= value * (1 + 1e-6)
    np.testing.assert_allclose(coef, best, atol=2e-3 * np.abs(best).max())
    assert np.linalg.matrix_rank(best, tol=1e-8) < D  # the penalty did something


def _even(options):
    return {"allocation": PowerBudget(0.0), "warmup": 3} | options


@BOTH
def test_logistic_loss_too(data, family):
    X, _, y = data
    algorithm = family(Logistic(D), lam=0.2, clip=100.0, lr=4 * safe_step(X), rounds=600)
    coef = fit(algorithm, X, y).private.models["coef"].T
    _, value = minimum(X, y, family, 0.2, logistic=True)
    assert objective(coef, X, y, family, 0.2, logistic=True) <= value * (1 + 1e-6)


# --- several classes: the weight vectors of a task's classes are columns of W side by side


def classes_problem():
    """Three classes, two of the features of no use: rows, labels, and the mean loss of W (D, tasks, 2)."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(M, N, D)) / 2
    y = (X[..., :4] @ rng.normal(size=(4, 3)) + rng.gumbel(size=(M, N, 3))).argmax(axis=2)

    def loss_and_slope(W):
        scores = np.concatenate([np.zeros((M, N, 1)), np.einsum("knd,dkc->knc", X, W)], axis=2)
        chances = softmax(scores, axis=2)
        value = -np.log(np.take_along_axis(chances, y[..., None], 2)).mean(axis=1).sum()
        return value, np.einsum("knd,knc->dkc", X, (chances - np.eye(3)[y])[..., 1:]) / N

    return X, y.astype(float), loss_and_slope


@BOTH
def test_several_classes_share_one_subspace_or_support(family):
    X, y, loss_and_slope = classes_problem()
    step, lam = 2 * safe_step(X), 0.3
    coef = fit(family(Softmax(D, 3), lam=lam, clip=100.0, lr=step, rounds=600), X, y).private.models["coef"]
    W = np.zeros((D, M, 2))
    for _ in range(6000):
        W = shrink((W - step * loss_and_slope(W)[1]).reshape(D, -1), step * lam, family).reshape(W.shape)
    found = coef.reshape(M, 2, D).transpose(2, 0, 1)
    best = loss_and_slope(W)[0] + lam * norm(W.reshape(D, -1), family)
    reached = loss_and_slope(found)[0] + lam * norm(found.reshape(D, -1), family)
    assert best * (1 - 1e-9) <= reached <= best * (1 + 1e-6)
    np.testing.assert_allclose(found, W, atol=2e-3 * np.abs(W).max())
    assert np.linalg.matrix_rank(W.reshape(D, -1), tol=1e-8) < D


@BOTH
def test_several_classes_without_penalty_are_single_tasks(family):
    X, y, loss_and_slope = classes_problem()
    lr, W = safe_step(X), np.zeros((D, M, 2))
    options = {"accelerated": False, "rounds": 9, "warmup": 0}
    found = fit(family(Softmax(D, 3), lam=0.0, clip=100.0, lr=lr, **options), X, y, Gaussian(0.01))
    for _ in range(8):
        W = W - lr * loss_and_slope(W)[1]
    np.testing.assert_allclose(found.private.models["coef"], W.transpose(1, 2, 0).reshape(M, -1), atol=1e-12)
    assert found.board["matrix"].shape == (D, D)


def test_several_classes_with_exceptions():
    """With so dear a part of its own there is none: the shared algorithm with half the step."""
    X, y, _ = classes_problem()
    shared = LowRank(Softmax(D, 3), lam=0.3, clip=100.0, lr=safe_step(X), rounds=50)
    both = fit(Decomposed(shared, EntrySparse(1e6)), X, y).private.models
    np.testing.assert_allclose(both["coef"], fit(shared, X, y).private.models["coef"], atol=1e-12)
    free = fit(Decomposed(shared, EntrySparse(0.01)), X, y).private.models
    assert np.abs(free["own"]).max() > 0.1


@BOTH
@pytest.mark.parametrize(("relation", "sensitivity"), [("replace", math.sqrt(2)), ("zero_out", 1.0)])
def test_several_classes_are_priced_as_one(family, relation, sensitivity):
    """The release has as many numbers as for one class, and the noise of its price."""
    plan = Plan(family(Softmax(100, 4), rounds=8, warmup=1), Gaussian(0.5), n_tasks=8, relation=relation)
    tasks = Tasks.from_arrays(np.zeros((8, 100)), np.zeros(8), np.arange(8))
    releases = run(plan, tasks, random_state=0).board.releases
    assert {release.value.size for release in releases} == {100 * 101 // 2 if family is LowRank else 100}
    for release, round in zip(releases, plan.rounds, strict=True):
        assert release.noise == pytest.approx(sensitivity / (0.5 * math.sqrt(round.share)))
    drawn = np.concatenate([release.value / release.noise for release in releases])
    assert [kstest(drawn / scale, "norm").pvalue > 1e-4 for scale in (1, 2 / 3, 3 / 2)] == [
        True,
        False,
        False,
    ]


@BOTH
@pytest.mark.parametrize("strong", [0.0, 0.1])
def test_its_steps_are_the_papers(data, family, strong):
    """Algorithms 2 and 3 by hand, Steps 3 to 11, for five rounds from W(0) = 0, the ball included."""
    X, y, _ = data
    lr, lam, K = 0.8 * safe_step(X), 0.4, 1.5
    root = math.sqrt(strong * lr)
    W = hat = np.zeros((D, M))
    for t in range(1, 6):
        clipped = W / np.maximum(1, np.linalg.norm(W, axis=0) / K)
        before, hat = hat, shrink(clipped, lr * lam, family) if W.any() else W
        beta = (1 - root) / (1 + root) if strong else (t - 1) / (t + 2)
        Z = hat + beta * (hat - before)
        W = Z - lr * (slopes(Z, X, y, logistic=False) + strong * Z)
    algorithm = family(LeastSquares(D), lam=lam, clip=K, lr=lr, rounds=5, strong=strong, warmup=0)
    np.testing.assert_allclose(fit(algorithm, X, y).private.models["coef"].T, hat, atol=1e-10)
    assert (np.linalg.norm(W, axis=0) > K).any()  # the ball mattered


@BOTH
def test_the_average_of_iterates_is_what_it_says(data, family):
    X, y, _ = data
    algorithm = family(LeastSquares(D), lam=0.3, clip=1.0, lr=safe_step(X), rounds=4)
    boards = fit(algorithm, X, y).board
    prefixes = [
        fit(family(LeastSquares(D), lam=0.3, clip=1.0, lr=safe_step(X), rounds=t), X, y) for t in (1, 2, 3, 4)
    ]
    for t, done in enumerate(prefixes, 1):  # without noise a shorter run is a prefix of a longer one
        np.testing.assert_allclose(done.board["matrix"], boards.before(t)["matrix"], atol=1e-12)
    mean = np.mean([done.private.models["coef"] for done in prefixes], axis=0)
    averaged = family(LeastSquares(D), lam=0.3, clip=1.0, lr=safe_step(X), rounds=4, averaged=True)
    np.testing.assert_allclose(fit(averaged, X, y).private.models["coef"], mean, atol=1e-12)


@BOTH
def test_the_average_counts_only_rounds_a_task_took_part_in(data, family):
    """With lam = 0 and all tasks at their own optimum from the start, any average is that optimum."""
    X, y, _ = data
    algorithm = family(
        LeastSquares(D), 0.0, clip=100.0, lr=safe_step(X), rounds=6, averaged=True, warmup=2000
    )
    plan = Plan(algorithm, Gaussian(0.1), Poisson(0.5), n_tasks=M)
    done = run(plan, Tasks.from_list(list(X), list(y)), random_state=0)
    alone = [np.linalg.lstsq(x, t, rcond=None)[0] for x, t in zip(X, y, strict=True)]
    np.testing.assert_allclose(done.private.models["coef"], alone, atol=1e-6)


@BOTH
@pytest.mark.parametrize("mechanism", [NoNoise(), Gaussian(0.01)])
def test_without_penalty_it_is_single_task_gradient_descent(data, family, mechanism):
    X, y, _ = data
    lr, options = safe_step(X), {"accelerated": False, "rounds": 9, "warmup": 0}
    algorithm = family(LeastSquares(D), lam=0.0, clip=100.0, lr=lr, **options)
    W = np.zeros((D, M))
    for _ in range(8):
        W = W - lr * slopes(W, X, y, logistic=False)
    found = fit(algorithm, X, y, mechanism)
    np.testing.assert_allclose(found.private.models["coef"], W.T, atol=1e-12)
    np.testing.assert_allclose(found.board["matrix"], np.eye(D), atol=1e-12)


@BOTH
def test_loud_noise_is_single_task_learning_in_every_draw_and_would_not_be_without_the_shift(data, family):
    """Proposition 1, repaired: 100 draws, each within 1 % of lam = 0; unshifted, half the directions go."""
    X, y, _ = data
    options = {"clip": 5.0, "lr": safe_step(X), "rounds": 3, "warmup": 50}
    alone = fit(family(LeastSquares(D), lam=0.0, **options), X, y).private.models["coef"]
    algorithm = family(LeastSquares(D), lam=0.5, **options)
    mu = 25.0 / (40 * (100 * algorithm.lr * 0.5) ** 2)  # noise of many (100 lr lam)^2
    worst, lost = 0.0, 0
    for seed in range(100):
        done = fit(algorithm, X, y, Gaussian(mu), seed)
        gap = np.linalg.norm(done.private.models["coef"] - alone, axis=1) / np.linalg.norm(alone, axis=1)
        worst = max(worst, gap.max())
        lost += any(_unshifted_rank(release.value, family) < D for release in done.board.releases)
    assert worst < 0.01
    assert lost > 95


def _unshifted_rank(value, family):
    """Count the directions with a positive eigenvalue, the only ones a proximal operator can keep."""
    return (np.linalg.eigvalsh(unsvec(value, D)) > 0).sum() if family is LowRank else (value > 0).sum()


@pytest.mark.parametrize("dim", [1, 5, 30])
def test_the_shift_keeps_the_covariance_positive(dim):
    """Nothing but noise, 200 draws: the shift, good for one failure in a thousand, does not fail."""
    rng = np.random.default_rng(0)
    with threadpool_limits(1):  # such small matrices do not gain from more
        for family, size in ((LowRank, dim * (dim + 1) // 2), (GroupSparse, dim)):
            algorithm = family(LeastSquares(dim), lam=1e-9, rounds=1)
            for _ in range(200):
                kept = np.linalg.eigvalsh(algorithm.shared_matrix(rng.normal(size=size), 1.0))
                assert kept.min() > 0.99  # with so small a lam, a direction is kept or lost


def test_momentum_and_allocation_are_the_papers():
    """Theorem 6 and section 4.5, with mu/L = strong lr."""
    loss, t = LeastSquares(2), np.arange(1, 8)
    plain, fast = (LowRank(loss, rounds=7, accelerated=fast) for fast in (False, True))
    np.testing.assert_allclose(plain.shares(), 1 / 7)
    np.testing.assert_allclose(fast.shares(), t**0.8 / (t**0.8).sum())  # budgets t^(2/5), squared
    assert [plain.momentum(s) for s in (1, 5)] == [0.0, 0.0]
    assert [fast.momentum(s) for s in (1, 4)] == [0.0, 0.5]
    ratio = 0.04
    plain, fast = (
        GroupSparse(loss, rounds=7, accelerated=fast, strong=0.02, lr=2.0) for fast in (False, True)
    )
    for algorithm, q in ((plain, (1 - ratio) ** 0.4), (fast, (1 - math.sqrt(ratio)) ** 0.2)):
        np.testing.assert_allclose(algorithm.shares(), q ** (-2.0 * t) / (q ** (-2.0 * t)).sum())
    assert plain.momentum(3) == 0.0
    assert fast.momentum(3) == pytest.approx(0.8 / 1.2)
    chosen = LowRank(loss, rounds=2, allocation=GeometricBudget(2.0), strong=0.1)
    np.testing.assert_allclose(chosen.shares(), [0.8, 0.2])


@pytest.mark.parametrize(
    "allocation", [None, PowerBudget(0.4), PowerBudget(-1.0), GeometricBudget(0.9), GeometricBudget(1.1)]
)
def test_shares_sum_to_one_and_squared_budgets_add_up(allocation):
    algorithm = LowRank(LeastSquares(3), rounds=25, allocation=allocation)
    plan = Plan(algorithm, n_tasks=100).calibrate(1.0)
    assert sum(algorithm.shares()) == pytest.approx(1, rel=1e-12)
    assert min(algorithm.shares()) > 0
    channels = [round.channels[0] for round in plan.rounds]
    parts = [c.sensitivity(plan.relation) / plan.noise(t, c) for t, c in enumerate(channels)]
    assert math.fsum(mu**2 for mu in parts) == pytest.approx(plan.mechanism.budget**2, rel=1e-12)
    even = Plan(LowRank(LeastSquares(3), rounds=1), n_tasks=100).calibrate(1.0)
    assert plan.mechanism.budget == pytest.approx(even.mechanism.budget, rel=1e-6)  # allocation is free


@BOTH
@pytest.mark.parametrize(("relation", "sensitivity"), [("replace", math.sqrt(2)), ("zero_out", 1.0)])
def test_what_leaves_moves_by_the_channels_sensitivity_and_no_more(data, family, relation, sensitivity):
    """One task's data becomes anything else: in units of K^2 the clean first sum moves at most this much."""
    X, y, _ = data
    algorithm = family(LeastSquares(D), clip=0.7, lr=safe_step(X), rounds=1)
    board = Plan(algorithm, NoNoise(), n_tasks=M).create_board()
    assert algorithm.channel(board).sensitivity(relation) == sensitivity

    def total(rows, targets):
        changed = [np.concatenate([rows[None], X[1:]]), np.concatenate([targets[None], y[1:]])]
        return fit(algorithm, *changed).board.releases[0].value

    along = [1e3 * np.eye(N, D) @ axis for axis in np.eye(D)]  # targets whose fit is long and along one axis
    silent = total(np.zeros((N, D)), y[0])
    for targets in [*along, *y]:
        other = silent if relation == "zero_out" else total(X[0], y[0])
        assert np.linalg.norm(total(np.eye(N, D), targets) - other) <= sensitivity + 1e-12
    other = silent if relation == "zero_out" else total(np.eye(N, D), along[1])
    assert np.linalg.norm(total(np.eye(N, D), along[0]) - other) == pytest.approx(sensitivity, rel=1e-9)


@BOTH
def test_the_release_has_the_noise_of_its_price(family):
    """Tasks with nothing to say: what is posted is noise, of deviation Delta / (mu sqrt(share))."""
    tasks = Tasks.from_arrays(np.zeros((8, 60)), np.zeros(8), np.arange(8))
    algorithm = family(LeastSquares(60), clip=3.0, rounds=6, warmup=1)
    board = run(Plan(algorithm, Gaussian(0.5), n_tasks=8), tasks, random_state=0).board
    for release, share in zip(board.releases, algorithm.shares(), strict=True):
        assert release.noise == pytest.approx(math.sqrt(2) / (0.5 * math.sqrt(share)))
        assert release.value.std() == pytest.approx(release.noise, rel=5 / math.sqrt(2 * release.value.size))


def test_only_the_framework_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        ModelProtected(LeastSquares(2))


@BOTH
@pytest.mark.parametrize(
    "options",
    [{}, {"averaged": True}, {"strong": 0.1, "allocation": GeometricBudget(0.9)}, {"accelerated": False}],
)
def test_it_keeps_the_contract_of_an_algorithm(family, options):
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 9, 15)
    tasks = Tasks.from_list([rng.normal(size=(n, 3)) for n in sizes], [rng.normal(size=n) for n in sizes])
    algorithm = family(LeastSquares(3), lam=0.2, clip=2.0, rounds=4, lr=0.1, warmup=10, **options)
    check_algorithm(algorithm, tasks)
    plan = Plan(algorithm, n_tasks=15).calibrate(1.0)
    assert Plan.from_toml(plan.to_toml()) == plan


@BOTH
def test_a_newcomer_joins_by_replay(data, family):
    """The last task takes no part; with the board of the others it gets a better model than alone."""
    X, y, _ = data
    algorithm = family(LeastSquares(D), lam=0.6, clip=100.0, lr=safe_step(X), rounds=100)
    done = fit(algorithm, X[:-1], y[:-1])
    late = replay(done.plan, done.board, Tasks.from_list([X[-1]], [y[-1]]))["coef"]
    everyone = fit(algorithm, X, y).private.models["coef"][-1:]
    alone = np.linalg.lstsq(X[-1], y[-1], rcond=None)[0]
    assert np.linalg.norm(late - everyone) < 0.5 * np.linalg.norm(alone - everyone)


@BOTH
@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"warmup": -1},
        {"lam": -0.1},
        {"lam": math.nan},
        {"lr": 0.0},
        {"lr": math.inf},
        {"strong": 1.0, "lr": 1.0},
        {"strong": -1.0},
    ],
)
def test_parameters_that_make_no_sense_are_refused(family, wrong):
    with pytest.raises(PlanError, match="must be"):
        family(LeastSquares(2), **wrong)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_allocations_that_make_no_sense_are_refused(wrong):
    with pytest.raises(PlanError, match="must be"):
        GeometricBudget(wrong)
    with pytest.raises(PlanError, match="must be finite"):
        PowerBudget(wrong if wrong != wrong else math.inf)


def test_an_allocation_that_starves_a_round_is_refused():
    with pytest.raises(PlanError, match="Every round needs a share"):
        Plan(LowRank(LeastSquares(2), rounds=2000, allocation=GeometricBudget(0.5)), n_tasks=10).calibrate(
            1.0
        )


@BOTH
def test_clipping_is_part_of_the_algorithm(data, family):
    """Models longer than K are shortened before they are projected, at home as on the channel."""
    X, y, _ = data
    done = fit(family(LeastSquares(D), lam=0.1, clip=0.5, lr=safe_step(X), rounds=5), X, y)
    assert (np.linalg.norm(done.private.models["coef"], axis=1) <= 0.5 + 1e-12).all()
    own = fit(Decomposed(LowRank(LeastSquares(D), clip=0.5, lr=safe_step(X) / 2), EntrySparse(0.0)), X, y)
    assert np.linalg.norm(own.private.models["coef"], axis=1).max() > 0.6  # Q is not clipped: it never leaves


@pytest.mark.parametrize(
    ("settings", "growth"),
    [
        # Theorem 11: epsilon_t like t^alpha with alpha = 2/3 or 0; like Q^-t with Q = Q0^(2/3) or Q0'^(1/3),
        # where Q0 = 1 - mu/L and Q0' = 1 - sqrt(mu/L). Here mu/L = 1/4.
        ({}, lambda t: t ** (2 / 3)),
        ({"accelerated": False}, lambda t: 1.0),
        ({"strong": 0.25, "accelerated": False}, lambda t: 0.75 ** (-2 * t / 3)),
        ({"strong": 0.25}, lambda t: 0.5 ** (-t / 3)),
    ],
)
def test_pure_noise_is_allocated_by_theorem_11(settings, growth):
    algorithm = LowRank(LeastSquares(2), rounds=5, lr=1.0, **settings)
    plan = Plan(algorithm, L2Laplace(), n_tasks=50, delta=0.0).calibrate(2.0)
    epsilons = np.array([event.epsilon for event in plan.cost.events])
    due = np.array([growth(t) for t in range(1, 6)])
    np.testing.assert_allclose(epsilons, 2.0 * due / due.sum(), rtol=1e-4)  # they add up to 2, without delta
    gaussian = Plan(algorithm, n_tasks=50).calibrate(2.0)
    uneven = due[0] != due[-1]
    assert (gaussian.rounds != plan.rounds) == uneven  # Theorem 6, which is flatter
