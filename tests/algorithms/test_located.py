"""Where targets are: a search over bins, what it costs, and what is relative to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Plan, Tasks, run
from cloister.algorithms import (
    ChooseAtHome,
    Decomposed,
    EntrySparse,
    Locate,
    LowRank,
    MetaSGD,
    Rescaled,
    SharedPrior,
)
from cloister.algorithms.locate import (
    BINS,
    MOST,
    ROUNDS,
    Search,
    _medians,
    look_closer,
    measure_spread,
    octaves,
    one_hot,
    search_share,
    significant_window,
)
from cloister.core.tasks import Block
from cloister.engines.check import check_algorithm
from cloister.engines.run import adapt, replay
from cloister.errors import PlanError
from cloister.learners import Classification, Convex, ExactSolver, LeastSquares, Regression
from cloister.mechanisms import NoNoise
from cloister.plan.algorithm import Budget

ALGORITHM = SharedPrior(Regression(2), locate=Locate())
(SEARCH,) = ALGORITHM.searches
META = MetaSGD(Convex(LeastSquares(2)), ExactSolver(20), lam=0.1, clip=0.05, rounds=3)


def make(center, spread, m=200, n=8, seed=0):
    rng = np.random.default_rng(seed)
    X = np.stack([np.ones((m, n)), rng.uniform(-1, 1, (m, n))], axis=2) / math.sqrt(2)
    y = center + spread * (0.5 * rng.normal(size=(m, 1)) + X[..., 1] + 0.3 * rng.normal(size=(m, n)))
    return Tasks.from_list(list(X), list(np.clip(y, -1, 1)))


@pytest.mark.parametrize("center", [-0.9, 0.0, 0.37])
@pytest.mark.parametrize("spread", [0.3, 0.01, 0.001])
def test_targets_are_found_however_narrow(center, spread):
    """At epsilon 1, 200 tasks: within a unit of where they are, the unit not far from their spread."""
    if abs(center) + 2 * spread > 1:
        pytest.skip("beyond the bounds")
    tasks = make(center, spread)
    board = run(Plan(ALGORITHM, n_tasks=200).calibrate(1.0), tasks, random_state=1).board
    unit = float(board["located_unit"])
    assert int(board["located_found"]) > 0
    assert abs(float(board["located_center"]) - center) < max(unit, 3 * spread)
    assert spread < unit <= max(100 * spread, 0.3)


def test_a_hundred_times_the_width_changes_little():
    """Models of the same targets in bounds of one and of a hundred widths, compared in the targets' units."""
    X = make(0.0, 0.3).X.reshape(200, 8, 2)
    rng = np.random.default_rng(3)
    z = rng.normal(size=(200, 1)) + 2 * X[..., 1] + 0.5 * rng.normal(size=(200, 8))
    errors = []
    for width in (5.0, 500.0):
        tasks = Tasks.from_list(list(X), list(z / width - 0.2))
        coef = run(Plan(ALGORITHM, n_tasks=200).calibrate(4.0), tasks, random_state=0).private.models["coef"]
        fitted = (X @ coef[..., None])[..., 0]
        errors.append(np.mean(((fitted + 0.2) * width - z) ** 2))
    assert errors[1] == pytest.approx(errors[0], rel=0.05)


def test_nothing_heard_is_said():
    board = run(Plan(ALGORITHM, n_tasks=20).calibrate(0.1), make(0.5, 0.01, m=20), random_state=0).board
    assert int(board["located_found"]) == 0
    assert (float(board["located_center"]), float(board["located_unit"])) == (0.0, 1.0)


def test_the_search_takes_a_tenth_at_most_and_no_more_than_is_needed():
    shares = [search_share(m, 0.3) for m in (10, 150, 100_000)]
    assert shares[0] < 1e-5
    assert shares[1] == MOST == 0.1
    assert shares[2] < 1e-3
    rounds = ALGORITHM.schedule(150, Budget(0.3))
    assert sum(one.share for one in rounds) == pytest.approx(1.0)
    assert sum(one.share for one in rounds[:ROUNDS]) == pytest.approx(MOST)


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=4, max_size=4),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=4, max_size=4),
    st.floats(-1, 1),
    st.tuples(st.floats(-1, 1), st.floats(-1, 1)).map(sorted),
)
def test_a_task_is_in_one_bin_or_in_none(y, weight, center, ends):
    """So the exact sensitivity of the sum is 1 (zero-out) and sqrt(2) (replace), whatever the data."""
    block = Block(np.zeros(1), np.ones((1, 4, 1)), np.array([y]), np.array([weight]), np.zeros(1, np.uint64))
    with np.errstate(all="ignore"):
        squares = SEARCH.squares(block, np.array([center]))
        for places in (_medians(block)[:, None], octaves(squares, *np.array(ends))):
            message = one_hot(np.clip(places, 0, BINS - 1), (block.weight > 0).any(axis=1))
            assert sorted(message.ravel().tolist()) in ([0.0] * BINS, [0.0] * (BINS - 1) + [1.0])


def test_replacing_a_task_moves_it_from_one_bin_to_another():
    """The tight witness: two counts change by one each."""
    tasks, other = make(-0.9, 0.001, m=3), make(0.9, 0.001, m=3)
    plan = Plan(ALGORITHM, NoNoise(), n_tasks=3)
    neighbour = Tasks(
        tasks.ids, tasks.X, np.concatenate([other.y[:8], tasks.y[8:]]), tasks.weight, tasks.offsets
    )
    sums = [run(plan, one).board.releases[0].value for one in (tasks, neighbour)]
    assert np.linalg.norm(sums[0] - sums[1]) == pytest.approx(math.sqrt(2))


def test_noise_alone_is_seldom_heard():
    """2 % of rounds; 5 % would happen by chance once in a million times."""
    rng = np.random.default_rng(0)
    found = sum(significant_window(rng.normal(size=BINS), 1.0) is not None for _ in range(2000))
    assert found < 0.04 * 2000


def test_where_tasks_were_heard_less_is_needed_for_their_spread():
    """100 tasks in a bin, noise of 40 a count: nothing before the place is known, nor for a closer look."""
    counts = 100.0 * (np.arange(BINS) == 4)
    place = Search(-0.9, 0.05, 1, np.array([-0.95, -0.85]))
    for known, found in ((Search(), 0), (place, 2)):
        assert measure_spread(known, counts, 40.0, reach=3.0).found == found
    assert measure_spread(place, counts, 40.0, reach=3.0).unit == pytest.approx(3 / 16)
    assert look_closer(Search(), counts, 40.0).found == 0
    assert look_closer(place, counts, 40.0).center == -0.9


def test_no_shorter_distance_is_told_than_the_bins_can_tell():
    """What is below half a bin is told as that, and counts beyond it are noise."""
    low, high = np.array([-1.0, 0.5]), np.array([1.0, 0.5 + 2 / BINS])
    assert octaves(np.full((1, 2), 1e-12), low, high).tolist() == [[5.0, 10.0]]
    noise_only = 500.0 * (np.arange(BINS) == 20)
    assert measure_spread(Search(), noise_only, 40.0, reach=3.0).found == 0


def test_medians_are_of_rows_that_count():
    """A weight counts as so many rows, padding as none; of two in the middle it is the lower."""
    y, weight = np.array([[0.3, -0.5, 0.1, 0.9, -9.0, 9.0]]), np.array([[1.0, 4.0, 1.0, 3.0, 0.0, 0.0]])
    block = Block(np.zeros(1), np.ones((1, 6, 1)), y, weight, np.zeros(1, np.uint64))
    assert _medians(block).item() == np.sort(np.repeat(y, weight.ravel().astype(int)))[4] == 0.1


@pytest.mark.parametrize(("count", "found"), [(2.2, False), (2.8, True)])
def test_what_is_not_heard_is_asked_again_and_added_up(count, found):
    """Twice 2.2 deviations of noise are 3.1 of both, twice 2.8 are 4."""
    search = Search()
    value = np.where(np.arange(BINS) == 5, count, 0.0)
    for _ in range(2):
        assert search.found == 0
        search = look_closer(search, value, 1.0)
    assert bool(search.found) == found
    if found:
        assert search.center == pytest.approx(-1 + 5.5 * 2 / BINS)


def test_variances_are_in_the_codebooks_units():
    """Targets a hundredth as wide have noise and uncertainty of a ten-thousandth."""
    noise, variances = [], []
    for spread in (0.2, 0.002):
        tasks = make(0.1, spread)
        models = run(Plan(ALGORITHM, n_tasks=200).calibrate(8.0), tasks, random_state=0).private.models
        noise.append(np.median(models["noise"]) / (0.3 * spread) ** 2)
        variances.append(np.median(models["covariance"][:, 0, 0]) / spread**2)
    np.testing.assert_allclose(noise, 1.0, rtol=0.4)
    assert variances[1] == pytest.approx(variances[0], rel=0.4)


def test_what_cannot_be_heard_is_not_found():
    """Where all tasks in one bin would drown, whatever stands out is noise: nothing is made of it."""
    tasks = make(0.3, 0.05, m=24)
    plan = Plan(ALGORITHM, n_tasks=24).calibrate(0.05)
    assert not any(int(run(plan, tasks, random_state=s).board["located_found"]) for s in range(60))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wild", [np.nan, np.inf, 1e200, 1.7e308])
def test_targets_that_are_no_data_harm_nobody_and_leave_a_model(wild):
    tasks = make(0.3, 0.05, m=12)
    y = tasks.y.copy()
    y[:8] = wild
    spoilt = Tasks(tasks.ids, tasks.X, y, tasks.weight, tasks.offsets)
    coef = run(Plan(ALGORITHM, NoNoise(), n_tasks=12), spoilt).private.models["coef"]
    assert np.isfinite(coef).all()


def test_a_task_without_rows_says_nothing():
    block = Block(np.zeros(2), np.ones((2, 0, 2)), np.ones((2, 0)), np.ones((2, 0)), np.zeros(2, np.uint64))
    speaks = np.zeros(2, dtype=bool)
    assert not one_hot(SEARCH.places(block), speaks).any()
    assert not one_hot(octaves(SEARCH.squares(block, np.zeros(1)), -1.0, 1.0), speaks).any()


def test_replay_and_newcomers_are_in_the_codebooks_units():
    tasks = make(0.6, 0.01)
    plan = Plan(ALGORITHM, n_tasks=200).calibrate(8.0)
    done = run(plan, tasks, random_state=0)
    assert done.board["located_found"] == 2
    own = Tasks.from_list([tasks.X[56:64]], [tasks.y[56:64]])
    again = replay(plan, done.board, own)
    np.testing.assert_allclose(again["coef"][0], done.private.models["coef"][7], rtol=1e-9)
    assert ALGORITHM.model_without_data(done.board)["coef"][0, 0] / math.sqrt(2) == pytest.approx(
        0.6, abs=0.02
    )


def test_contract():
    """Few tasks, in bins of which some are as loud as others; and a search that needs little budget."""
    low_rank = LowRank(LeastSquares(2), rounds=2, warmup=3)
    guarded = ChooseAtHome(low_rank, Regression(2), folds=2, locate=Locate())
    for algorithm in (ALGORITHM, guarded, Rescaled(META, Locate())):
        check_algorithm(algorithm, make(0.5, 0.1, m=20))


def test_parts_of_weights_are_in_the_codebooks_units_too():
    """The shared part has the center, the own part is beside it."""
    shared = LowRank(LeastSquares(2), lam=0.01, rounds=3, warmup=20, lr=0.5)
    plan = Plan(Rescaled(Decomposed(shared, EntrySparse(0.01)), Locate()), NoNoise(), n_tasks=50)
    models = run(plan, make(-0.7, 0.01, m=50)).private.models
    np.testing.assert_allclose(models["shared"] + models["own"], models["coef"], rtol=1e-12)
    assert np.abs(models["own"]).max() < 0.03
    np.testing.assert_allclose(models["shared"][:, 0] / math.sqrt(2), -0.7, atol=0.03)


def test_what_keeps_nothing_between_rounds_adapts_without_any():
    """A new task goes straight from the board to its model; listening to all rounds gives the same."""
    plan = Plan(Rescaled(META, Locate()), n_tasks=200).calibrate(4.0)
    done = run(plan, make(0.6, 0.01), random_state=0)
    new = make(0.6, 0.01, m=3, seed=5)
    assert plan.algorithm.init(next(new.blocks()), done.board.before(0)) == {}
    np.testing.assert_allclose(adapt(plan, done.board, new)["coef"], replay(plan, done.board, new)["coef"])


def test_classes_are_refused():
    with pytest.raises(PlanError, match="numbers"):
        SharedPrior(Classification(2), locate=Locate())


def test_windows_that_stand_out_alike_are_told_apart_by_no_noise():
    """Tasks in three places, in two as many in one bin as in four: the last bits of noise must not choose."""
    counts = np.zeros(32)
    counts[[3, 20]], counts[11:15] = 2.0, 1.0
    for noise in (1e-13, -1e-13):
        moved = counts + noise * np.arange(32)
        assert significant_window(moved, 1e-12) == significant_window(counts, 0.0) == (3, 4)
