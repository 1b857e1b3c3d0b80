"""Where features are in their bounds: a search for all of them at once, and what is relative to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Plan, Tasks, run
from cloister.algorithms import ChooseAtHome, Joint, Locate, LowRank, MetaSGD, Rescaled, SharedPrior
from cloister.algorithms.locate import (
    BINS,
    MOST,
    ROUNDS,
    bins,
    octaves,
    one_hot,
    search_share,
    significant_window,
    threshold,
)
from cloister.audit import audit
from cloister.core.tasks import Block
from cloister.engines.check import check_algorithm
from cloister.engines.run import replay
from cloister.errors import PlanError
from cloister.learners import Classification, Convex, ExactSolver, LeastSquares, Regression
from cloister.mechanisms import NoNoise

INSIDE = SharedPrior(Regression(3))
FEATURES, BOTH = Locate((1, 2), targets=False), Locate((1, 2))
ALGORITHM = SharedPrior(Regression(3), locate=FEATURES)
(SEARCH,) = ALGORITHM.searches


def make(center, spread, m=300, n=8, seed=0):
    """Return tasks whose first feature is narrow, and whose second one fills its bounds."""
    rng = np.random.default_rng(seed)
    x = np.stack([center + spread * rng.uniform(-1, 1, (m, n)), rng.uniform(-1, 1, (m, n))], axis=2)
    slopes = np.array([0.4 / spread, 0.2]) * (1 + 0.2 * rng.normal(size=(m, 1, 2)))
    y = (
        ((x - [center, 0]) * slopes).sum(axis=2)
        + 0.1 * rng.normal(size=(m, 1))
        + 0.1 * rng.normal(size=(m, n))
    )
    X = np.concatenate([np.ones((m, n, 1)), x], axis=2) / math.sqrt(3)
    return Tasks.from_list(list(X), list(np.clip(y, -1, 1)))


def error(tasks, coef):
    fitted = np.einsum("nd,nd->n", tasks.X, np.repeat(coef, 8, axis=0))
    return float(np.mean((tasks.y - fitted) ** 2))


@pytest.mark.parametrize(("center", "spread"), [(-0.9, 0.1), (0.5, 0.01), (0.2, 0.001)])
def test_features_are_found_however_narrow(center, spread):
    """At epsilon 2, 300 tasks; a feature that fills its bounds stays nearly what it is."""
    board = run(Plan(ALGORITHM, n_tasks=300).calibrate(2.0), make(center, spread), random_state=0).board
    assert board["features_found"][0] == 2
    assert abs(board["features_center"][0] - center) < max(2 * spread, 2 / BINS**2)
    assert spread / 2 < board["features_unit"][0] < max(8 * spread, 8 / BINS**2)
    assert board["features_unit"][1] > 0.7


def test_a_hundred_times_the_width_changes_little():
    errors = []
    for spread in (0.5, 0.005):
        tasks, fresh = make(0.4, spread), make(0.4, spread)
        done = run(Plan(ALGORITHM, n_tasks=300).calibrate(4.0), tasks, random_state=0)
        errors.append(error(fresh, done.private.models["coef"]))
    assert errors[1] == pytest.approx(errors[0], rel=0.1)


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=12, max_size=12),
    st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=4, max_size=4),
)
def test_a_task_is_in_one_bin_of_each_column_or_in_none(x, weight):
    """So no message has a norm above 1, nor a negative number: the sensitivity is that of one column."""
    X, nothing = np.array(x).reshape(1, 4, 3), np.zeros((1, 4))
    block = Block(np.zeros(1), X, nothing, np.array([weight]), np.zeros(1, np.uint64))
    with np.errstate(all="ignore"):
        places = bins(SEARCH.places(block), -1.0, 1.0)
        for at in (places, octaves(SEARCH.squares(block, np.zeros(2)), -1.0, 1.0)):
            message = one_hot(at, (block.weight > 0).any(axis=1)).reshape(2, BINS)
            assert set(np.unique(message)) <= {0.0, 1 / math.sqrt(2)}
            assert ((message > 0).sum(axis=1) <= 1).all()


def test_replacing_a_task_moves_it_from_one_bin_to_another_in_every_column():
    """The tight witness: two counts of each column change, by one over the root of the columns."""
    tasks, other = make(-0.9, 0.001, m=3), make(0.9, 0.001, m=3)
    X = np.concatenate([other.X[:8] * [1, 1, 0] + [0, 0, 0.5], tasks.X[8:]])
    before = Tasks(
        tasks.ids, np.concatenate([tasks.X[:8] * [1, 1, 0], X[8:]]), tasks.y, tasks.weight, tasks.offsets
    )
    after = Tasks(tasks.ids, X, tasks.y, tasks.weight, tasks.offsets)
    plan = Plan(ALGORITHM, NoNoise(), n_tasks=3)
    sums = [run(plan, one).board.releases[0].value for one in (before, after)]
    assert np.linalg.norm(sums[0] - sums[1]) == pytest.approx(math.sqrt(2))


@pytest.mark.usefixtures("brief_search")
@pytest.mark.parametrize("relation", ["replace", "zero_out"])
def test_the_search_is_acquitted(relation):
    """A false alarm has probability 1e-4."""
    plan = Plan(ALGORITHM, n_tasks=40, relation=relation).calibrate(1.0)
    found = audit(plan, draws=1000, confidence=0.9999, random_state=0)
    assert found.verdict == "No contradiction found."
    assert found.isolation.holds
    assert found.sensitivity.ratio == pytest.approx(1.0, abs=1e-6)


def test_the_search_takes_a_tenth_at_most_and_nothing_where_nothing_could_be_heard():
    assert search_share(300, 0.3, 3) == MOST
    assert search_share(300, 0.3, 100) < 1e-5
    assert search_share(100_000, 0.3, 30) < 1e-3


def test_what_is_heard_of_one_number_may_be_noise_among_many():
    """Noise alone moves some column of fifty in 2 % of searches; 5 % would happen once in a million times."""
    rng = np.random.default_rng(0)
    found = sum(
        any(significant_window(one, 1.0, threshold(50)) is not None for one in rng.normal(size=(50, BINS)))
        for _ in range(300)
    )
    assert found < 0.08 * 300


def test_nothing_found_leaves_rows_as_they_are():
    tasks = make(0.5, 0.01, m=20)
    plain, searched = (Plan(one, NoNoise(), n_tasks=20) for one in (INSIDE, ALGORITHM))
    board = run(Plan(ALGORITHM, n_tasks=20).calibrate(0.1), tasks, random_state=0).board
    block = next(tasks.blocks())
    assert not board["features_found"].any()
    assert ALGORITHM.units(board).rows(block)[0] is block
    assert run(searched, tasks).private.models["coef"].shape == run(plain, tasks).private.models["coef"].shape


def test_models_are_in_the_codebooks_units():
    """Weights, covariances and noise of a task are those of its rows as the codebook has them."""
    tasks = make(0.4, 0.02)
    done = run(Plan(ALGORITHM, NoNoise(), n_tasks=300), tasks)
    models, unit = done.private.models, done.board["features_unit"][0]
    assert unit < 0.1
    assert error(tasks, models["coef"]) < 0.02
    assert np.median(models["noise"]) == pytest.approx(0.01, rel=0.3)
    slopes = np.median(models["coef"][:, 1]) / math.sqrt(3)
    assert slopes == pytest.approx(0.4 / 0.02, rel=0.1)
    assert np.median(models["covariance"][:, 1, 1]) > 10 * np.median(models["covariance"][:, 2, 2])
    again = replay(
        Plan(ALGORITHM, NoNoise(), n_tasks=300), done.board, Tasks.from_list([tasks.X[:8]], [tasks.y[:8]])
    )
    np.testing.assert_allclose(again["coef"][0], models["coef"][0], rtol=1e-9)


def test_long_rows_are_made_short_at_home():
    """One row far out: its task's rows and targets shrink by one factor, which leaves its weights alone."""
    tasks = make(0.0, 0.01, m=200)
    X = tasks.X.copy()
    X[0, 1] = 1 / math.sqrt(3)
    wild = Tasks(tasks.ids, X, tasks.y, tasks.weight, tasks.offsets)
    board = run(Plan(ALGORITHM, n_tasks=200).calibrate(4.0), wild, random_state=0).board
    block = next(wild.blocks())
    relative, _ = ALGORITHM.units(board).rows(block)
    lengths = block.X[:, :8, 0] / relative.X[:, :8, 0]
    assert np.linalg.norm(relative.X, axis=2).max() <= 1 + 1e-12
    assert (lengths[0] > 5).all()
    assert lengths[1:].max() < 1.5
    np.testing.assert_allclose(lengths * relative.y[:, :8], block.y[:, :8])


def test_a_later_run_starts_from_what_an_earlier_one_found():
    algorithm = SharedPrior(Regression(3), locate=BOTH)
    plan = Plan(algorithm, n_tasks=300).calibrate(4.0)
    done = run(plan, make(0.4, 0.02), random_state=0)
    earlier = plan.prior_on(done.board)
    assert earlier.features[0] == (done.board["features_center"][0], done.board["features_unit"][0])
    later = SharedPrior(Regression(3), Joint(earlier), BOTH)
    again = run(Plan(later, n_tasks=300).calibrate(0.2), make(0.4, 0.02, seed=1), random_state=0)
    assert again.board["features_unit"][0] == earlier.features[0][1]
    assert len(again.board.releases) < len(done.board.releases)
    with pytest.raises(PlanError, match="looked for 2 columns"):
        SharedPrior(Regression(3), Joint(earlier), Locate((1,)))


def test_contract():
    low_rank = LowRank(LeastSquares(3), rounds=2, warmup=3)
    guarded = ChooseAtHome(low_rank, Regression(3), folds=2, locate=BOTH)
    meta = MetaSGD(Convex(LeastSquares(3)), ExactSolver(20), lam=0.1, clip=0.05, rounds=3)
    for algorithm in (SharedPrior(Regression(3), locate=BOTH), guarded, Rescaled(meta, BOTH)):
        check_algorithm(algorithm, make(0.5, 0.1, m=20))


@pytest.mark.parametrize("columns", [(0,), (3,), (1, 1)])
def test_columns_that_cannot_be_searched_are_refused(columns):
    with pytest.raises(PlanError, match="columns must be some of 1 to 2"):
        SharedPrior(Regression(3), locate=Locate(columns))


def test_classes_are_refused():
    with pytest.raises(PlanError, match="numbers"):
        SharedPrior(Classification(2), locate=FEATURES)


def test_rounds_of_both_searches_come_first():
    plan = Plan(SharedPrior(Regression(3), locate=BOTH), n_tasks=300).calibrate(1.0)
    dims = [one.channels[0].dim for one in plan.rounds[: 2 * ROUNDS]]
    assert dims == [BINS] * ROUNDS + [2 * BINS] * ROUNDS
