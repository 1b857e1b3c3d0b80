"""Records that say where weights lie: what one moves, what is made of the sums, and what tasks keep of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import expit
from scipy.stats import chi2
from sklearn.linear_model import LogisticRegression

import cloister as cl
from cloister.algorithms import Independent, LocateRecords, PooledPrior
from cloister.algorithms.histograms import BINS, MIDDLES, places_and_spreads
from cloister.algorithms.prior.pooled import Look, Place, posterior
from cloister.algorithms.prior.pooled_prior import OwnRecords
from cloister.audit.isolation import check_isolation
from cloister.core.lifts import svec
from cloister.core.tasks import Block
from cloister.engines import local
from cloister.errors import InputError, PlanError
from cloister.estimators import SharedPriorClassifier, SharedPriorRegressor, SingleTaskClassifier
from cloister.learners import Classification, Regression
from cloister.learners.home import Home
from cloister.learners.linear.average import Candidate
from cloister.learners.linear.residuals import OfNumbers
from cloister.mechanisms import Gaussian, NoNoise
from cloister.tables.column_types import Numeric
from cloister.tables.targets import Count, Ordered

D, SIZE = 4, 5
LOCATE = LocateRecords((1, 2, 3, 4), indicators=(4,))
PRIOR = PooledPrior(Regression(SIZE), LOCATE)
CLASSES = PooledPrior(Classification(SIZE), replace(LOCATE, targets=False))


def institutions(
    count: int, rows: int, seed: int = 0, slopes: float = 1.0
) -> tuple[cl.Tasks, np.ndarray, np.ndarray]:
    """Return encoded rows of tasks that are alike, fresh rows of each, and what to expect of these."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(count), rows + 50)
    X = 0.1 * rng.standard_normal((len(task), D)) + [0.3, -0.2, 0.0, 0.0]
    X[:, 3] = rng.random(len(task)) < 0.1
    weights = slopes * (1 + 0.1 * rng.standard_normal((count, D))) * [1.0, -1.0, 0.5, 0.2]
    expected = (X * weights[task]).sum(axis=1) + 0.05 * rng.standard_normal(count)[task]
    y = expected + 0.1 * rng.standard_normal(len(task))
    Z = np.column_stack([np.ones(len(task)), X]).clip(-1, 1) / np.sqrt(SIZE)
    fresh = np.tile(np.arange(rows + 50) >= rows, count)
    tasks = cl.Tasks.from_arrays(Z[~fresh], y[~fresh].clip(-1, 1), task[~fresh])
    return tasks, Z[fresh].reshape(count, 50, SIZE), expected[fresh].reshape(count, 50)


def of_classes(tasks: cl.Tasks) -> cl.Tasks:
    """Return the same rows with a class for what is above the middle."""
    return replace(tasks, y=(tasks.y > np.median(tasks.y)) * 1.0)


def plan_of(tasks: cl.Tasks, mechanism=None, rows=None, algorithm=PRIOR) -> cl.Plan:
    unit = cl.Unit.record(len(tasks.y) if rows is None else rows)
    return cl.Plan(algorithm, mechanism or Gaussian(), n_tasks=len(tasks), unit=unit, delta=1e-6)


def excess(done, fresh: np.ndarray, expected: np.ndarray) -> float:
    return float(np.mean((done.plan.algorithm.predict(done.private.models, fresh) - expected) ** 2))


# ------------------------------------------------------------------ what leaves

SMALL = institutions(3, 20)[0]
#: Priors of numbers and of classes, with rows of their kind.
KINDS = {PRIOR: SMALL, CLASSES: of_classes(SMALL)}
BOARDS = {
    prior: cl.run(plan_of(rows, NoNoise(), algorithm=prior), rows).board for prior, rows in KINDS.items()
}
CHANNELS = {
    prior: [one.channels[0] for one in plan_of(rows, NoNoise(), algorithm=prior).rounds]
    for prior, rows in KINDS.items()
}
ROWS = st.tuples(arrays(float, SIZE, elements=st.floats(-3, 3)), st.floats(-1e3, 1e3))
ROUNDS = (0, 1, 3)
kinds = pytest.mark.parametrize("prior", KINDS, ids=("numbers", "classes"))


def said(prior: PooledPrior, row: np.ndarray, target: float, at: int) -> np.ndarray:
    """Return what a record adds to the sum of the histograms, or of a look."""
    block = cl.core.tasks.Block(
        np.zeros(1), row[None, None], np.array([[target]]), np.ones((1, 1)), np.zeros(1, np.uint64)
    )
    return CHANNELS[prior][at].total(prior.send({}, block, BOARDS[prior].before(at))[0])


@kinds
@given(one=ROWS, other=ROWS)
@settings(max_examples=60, deadline=None)
def test_no_two_records_differ_by_more_than_is_priced(prior, one, other):
    for at in ROUNDS:
        channel, mine, yours = CHANNELS[prior][at], said(prior, *one, at), said(prior, *other, at)
        assert np.linalg.norm(mine - yours) <= channel.sensitivity("replace") * (1 + 1e-12)
        assert np.linalg.norm(mine) <= channel.sensitivity("zero_out") * (1 + 1e-12)


@kinds
def test_what_is_priced_is_attained(prior):
    """By records with all values in other bins, and by residuals of either sign on a row of full length.

    Of classes it is attained in the first look, from where either class is a residual of a whole clip.
    """
    root, ends = np.sqrt(SIZE), (-9.0, 9.0) if prior is PRIOR else (0.0, 1.0)
    low, high = (np.array([1.0, *[sign] * D]) / root for sign in (-1, 1))
    pairs = [(said(prior, low, -1.0, 0), said(prior, high, 1.0, 0))]
    pairs.append((said(prior, high, ends[0], 1), said(prior, high, ends[1], 1)))
    for channel, (one, other) in zip(CHANNELS[prior], pairs, strict=False):
        assert np.linalg.norm(one - other) == pytest.approx(channel.sensitivity("replace"), abs=1e-9)
        assert np.linalg.norm(one) == pytest.approx(channel.sensitivity("zero_out"), abs=1e-9)


@kinds
def test_the_noise_is_that_of_one_record(prior):
    """Releases less the sums that they are of: normal numbers of the scale that mu says.

    A scale two thirds or one and a half times as large would be told apart; false alarms one in a million.
    """
    rows = KINDS[prior]
    plan = plan_of(rows, Gaussian(0.5), algorithm=prior)
    for seed in range(2):
        board = cl.run(plan, rows, random_state=seed).board
        block = cl.core.tasks.Block(
            np.arange(60), rows.X[:, None], rows.y[:, None], np.ones((60, 1)), np.zeros(60, np.uint64)
        )
        for at, one in enumerate(plan.rounds):
            (channel,) = one.channels
            total = channel.total(prior.send({}, block, board.before(at))[0])
            scale = channel.sensitivity("replace") / (0.5 * np.sqrt(one.share))
            noise = (board.releases[at].value - total) / scale
            low, high = chi2.ppf([5e-7, 1 - 5e-7], noise.size)
            if at == 0:  # 320 numbers, or 256
                assert low * 1.5**2 > noise.size > high / 1.5**2
            assert low < np.square(noise).sum() < high


def test_records_speak_by_themselves():
    cl.check_algorithm(PRIOR, SMALL, unit=cl.Unit.record(60))
    cl.check_algorithm(PooledPrior(Regression(SIZE)), SMALL, unit=cl.Unit.record(60))
    level = cl.Tasks.from_arrays(np.ones((60, 1)), SMALL.y, np.arange(60) % 3)
    cl.check_algorithm(PooledPrior(Regression(1), LocateRecords()), level, unit=cl.Unit.record(60))


@pytest.mark.slow
def test_records_with_classes_speak_by_themselves():
    cl.check_algorithm(CLASSES, KINDS[CLASSES], unit=cl.Unit.record(60))


@pytest.mark.slow
def test_the_auditor_convicts_who_clips_a_sum_of_classes(monkeypatch):
    plan = cl.Plan(PooledPrior(Classification(3)), n_tasks=4, unit=cl.Unit.record(100)).calibrate(1.0)
    assert check_isolation(plan).holds

    def clipped_once(channel, exact, messages, groups, honest=local._summed):
        return honest(channel, exact, messages.sum(axis=0, keepdims=True), groups[:1])

    monkeypatch.setattr(local, "_summed", clipped_once)
    assert not check_isolation(plan).holds


# ------------------------------------------------------------------ what is made of it


def test_histograms_find_columns_with_spikes_and_without():
    rng = np.random.default_rng(0)
    columns = [
        0.3 + 0.05 * rng.standard_normal(20_000),
        np.where(rng.random(20_000) < 0.6, -1.0, rng.uniform(-1, 0, 20_000)),  # many at one end
        (rng.random(20_000) < 0.1) * 1.0,
        np.round(rng.normal(0, 2, 20_000)) / 10,  # whole numbers
    ]
    counts = np.array([np.histogram(one, BINS, (-1, 1))[0] for one in columns], float)
    counts += 40 * rng.standard_normal(counts.shape)
    places, spreads = places_and_spreads(counts, 40.0, 20_000)
    assert np.allclose(places, [one.mean() for one in columns], atol=0.05)
    assert np.allclose(spreads, [one.std() for one in columns], rtol=0.25)
    assert MIDDLES[0] == -1 + 1 / BINS


def test_a_posterior_covers_where_the_mean_is():
    """Of forty looks with noise of known law, errors are what the covariance says: about one a number."""
    rng, size, records = np.random.default_rng(1), 8, 2000
    root, before, errors = rng.normal(size=(size, size)) / size, Place.before(8, 0.1), []
    moments = root @ root.T + 0.3 * np.eye(size) / size
    for _ in range(40):
        truth, looks, point = 0.4 * rng.standard_normal(size), [], np.zeros(size)
        for _ in range(3):
            noise = 40.0 * rng.standard_normal((size, size)) / np.sqrt(2)
            seen = (
                records * moments + np.triu(noise, 1) + np.triu(noise, 1).T + 40.0 * np.diag(noise.diagonal())
            )
            seen[np.diag_indices(size)] = records * moments.diagonal() + np.sqrt(2) * noise.diagonal()
            spread = 0.3 * np.sqrt(records) * np.linalg.cholesky(moments) @ rng.standard_normal(size)
            score = records * moments @ (truth - point) + spread + 12.0 * rng.standard_normal(size)
            looks.append(Look(OfNumbers(), point, 9.0, 0.3, seen, score, 40.0, 12.0))
            found = posterior(looks, records, before)
            point = found.mean
        away = found.mean - truth
        errors.append(float(away @ np.linalg.solve(found.covariance, away)) / size)
    assert 0.3 < np.median(errors) < 1.7
    told = svec(np.block([[seen, score[:, None]], [score[None], np.array([[90.0]])]])) / 2
    again = Look.of(OfNumbers(), point, 1.0, records, told, 20.0)
    assert np.allclose(again.moments, seen)
    assert np.allclose(again.score, score)


def test_tasks_gain_where_all_together_have_enough_rows():
    """Ten institutions of sixty rows at epsilon 1: as task-level privacy could not, they gain a third."""
    alone, joined, silent = [], [], []
    for seed in range(4):
        tasks, fresh, expected = institutions(10, 150, seed)
        single = cl.Plan(Independent(Regression(SIZE)), n_tasks=10)
        alone.append(excess(cl.run(single, tasks), fresh, expected))
        joined.append(
            excess(cl.run(plan_of(tasks).calibrate(1.0), tasks, random_state=seed), fresh, expected)
        )
        silent.append(excess(cl.run(plan_of(tasks, NoNoise()), tasks), fresh, expected))
    assert np.mean(joined) < 0.8 * np.mean(alone)
    assert np.mean(silent) < np.mean(joined) * 1.05


def test_a_task_takes_its_own_records_out_of_the_sums():
    """What is left is what the others said, but for the grid."""
    tasks = institutions(3, 40)[0]
    done = cl.run(plan_of(tasks, NoNoise()), tasks)
    board, block = PRIOR.main_part(done.board), next(tasks.blocks())
    homes = [Home({}, block.take([who]), PRIOR.units(board)) for who in range(3)]
    own = [OwnRecords.of(home, True, PRIOR.residuals) for home in homes]
    for who in range(3):
        look = PRIOR.look(board.releases[1], board.before(1), own[who])
        others = sum(one.X.T @ one.X for one in own if one is not own[who])
        assert np.allclose(look.moments, others, atol=1e-3)
        assert PRIOR.records(board.releases[1], board, own[who]) == pytest.approx(80)
    assert not np.allclose(PRIOR.place(board, own[0]).mean, PRIOR.place(board, own[1]).mean)


def test_what_places_explain_is_not_taken_for_what_rows_do(monkeypatch):
    """Rows lie elsewhere in each institution, and levels go against that: joining gains, and would harm."""
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        task, places = np.repeat(np.arange(8), 150), 0.2 * rng.standard_normal((8, D))
        X = (0.05 * rng.standard_normal((1200, D)) + places[task]).clip(-1, 1)
        expected = X @ [0.5, -0.5, 0.3, 0.1] - (places @ [0.6, 0.6, -0.6, 0.6])[task]
        y = (expected + 0.1 * rng.standard_normal(1200)).clip(-1, 1)
        Z, old = np.column_stack([np.ones(1200), X]) / np.sqrt(SIZE), np.arange(1200) % 150 < 50
        tasks = cl.Tasks.from_arrays(Z[old], y[old], task[old])
        fresh, truth = Z[~old].reshape(8, 100, SIZE), expected[~old].reshape(8, 100)
        prior = replace(PRIOR, locate=replace(LOCATE, indicators=()))
        ways = [cl.run(cl.Plan(Independent(Regression(SIZE)), n_tasks=8), tasks)]
        ways.append(cl.run(plan_of(tasks, NoNoise(), algorithm=prior), tasks))
        with monkeypatch.context() as trusting:
            trusting.setattr(OwnRecords, "inside", lambda *_: 1.0)
            ways.append(cl.run(plan_of(tasks, NoNoise(), algorithm=prior), tasks))
        found.append([excess(done, fresh, truth) for done in ways])
    alone, joined, trusting = np.mean(found, axis=0)
    assert joined < alone < trusting


@pytest.mark.parametrize("rows", [1, 2, 12, 200])
def test_rows_that_vary_as_all_do_are_rarely_taken_for_less(rows):
    """And those of a task that lies elsewhere, and varies by a fifth, are so where there are many."""
    rng, slopes, found = np.random.default_rng(rows), np.append(0.0, np.ones(D)), []
    spread = np.full(SIZE, 0.1)
    spread[0] = 0.0
    for part in (1.0, 0.2):
        everybody = np.outer(np.eye(SIZE)[0], np.eye(SIZE)[0]) + np.diag(spread)
        X = [1.0, *np.zeros(D)] + np.sqrt(part * spread) * rng.standard_normal((400, rows, SIZE))
        own = [OwnRecords(one, np.zeros(rows), False, PRIOR.residuals) for one in X]
        found.append(np.array([one.inside(np.outer(slopes, slopes), everybody) for one in own]))
    assert np.mean(found[0] < 1) < 0.1
    assert rows < 200 or np.mean(found[1] < 0.4) > 0.9


def test_a_newcomer_takes_nothing_out_of_the_sums():
    """Its model is the one of a plan in which nobody does; a task of the run has another."""
    tasks, new = institutions(3, 40)[0], institutions(3, 40, 9)[0].select([0])
    found = []
    for prior in (PRIOR, replace(PRIOR, leave_own=False)):
        plan = replace(plan_of(tasks, NoNoise()), algorithm=prior)
        found.append((plan, cl.run(plan, tasks).board))
    (plan, board), (other, same) = found
    assert np.array_equal(board.releases[-1].value, same.releases[-1].value)
    joined, left_in, as_member = (
        cl.adapt(plan, board, new),
        cl.replay(other, same, new),
        cl.replay(plan, board, new),
    )
    assert np.array_equal(joined["coef"], left_in["coef"])
    assert not np.allclose(joined["coef"], as_member["coef"])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e200])
def test_rows_that_are_no_data_spoil_no_model(odd):
    tasks = institutions(3, 40)[0]
    X = np.array(tasks.X)
    X[5, 2] = odd
    done = cl.run(plan_of(tasks).calibrate(1.0), replace(tasks, X=X), random_state=0)
    assert np.isfinite(done.private.models["coef"]).all()


def test_a_loose_bound_on_the_number_of_records_costs_little():
    tasks, fresh, expected = institutions(10, 200, 5)
    found = []
    for rows in (2000, 8000):
        plan = plan_of(tasks, Gaussian(0.5), rows)
        done = cl.run(plan, tasks, random_state=1)
        found.append((excess(done, fresh, expected), float(done.board["records"])))
    assert found[0][1] == 2000
    assert found[1][1] == pytest.approx(2000, rel=0.2)
    assert found[1][0] < 1.3 * found[0][0]


def test_nothing_is_shared_where_units_are_not_found():
    tasks = institutions(3, 20)[0]
    done = cl.run(plan_of(tasks, Gaussian(0.05)), tasks, random_state=0)
    assert not done.board["located_found"]
    assert not done.private.models["shared_weight"].any()
    alone = cl.run(cl.Plan(Independent(Regression(SIZE)), n_tasks=3), tasks)
    assert np.allclose(done.private.models["coef"], alone.private.models["coef"])
    assert np.isfinite(PRIOR.model_without_data(done.board)["coef"]).all()


def test_useless_features_stay_useless():
    tasks, fresh, expected = institutions(6, 200, 3, slopes=0.0)
    alone = excess(cl.run(cl.Plan(Independent(Regression(SIZE)), n_tasks=6), tasks), fresh, expected)
    done = cl.run(plan_of(tasks).calibrate(1.0), tasks, random_state=0)
    assert excess(done, fresh, expected) < 1.2 * alone


def test_classes_are_held_against_rows_that_are_left_out():
    """Evidence is kind to a narrow prior at a wrong place; what is foreseen is not."""
    size, found = 6, []
    learner, wrong = Classification(size), np.array([0.0, 1.0, -1.0, 1.0, -1.0, 1.0])
    candidates = [Candidate(0.35, wrong, width * np.eye(size), shared=True) for width in (0.5, 2.0)]
    tested = [replace(one, tested=True) for one in candidates]
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X = np.concatenate([np.ones((1, 40, 1)), rng.uniform(-1, 1, (1, 40, size - 1))], axis=2)
        y = (rng.random((1, 40)) < expit(X @ rng.standard_normal(size))) * 1.0
        block = Block(np.zeros(1), X / np.sqrt(size), y, np.ones((1, 40)), np.zeros(1, np.uint64))
        answers = learner.residuals.answers(0.5)
        models = [learner.finish(Home({}, block), some, answers) for some in (candidates, tested)]
        found.append([one["shared_weight"][0] for one in models])
    by_evidence, by_both = np.mean(found, axis=0)
    assert by_evidence > 0.5 > by_both


# ------------------------------------------------------------------ who may ask for it


def test_a_plan_by_task_and_rows_without_numbers_are_refused():
    with pytest.raises(PlanError, match="unit"):
        cl.Plan(PRIOR, n_tasks=3)
    with pytest.raises(PlanError, match="numbers"):
        PooledPrior(Classification(SIZE, 3))
    with pytest.raises(PlanError, match="targets=True"):
        PooledPrior(Regression(SIZE), replace(LOCATE, targets=False))
    with pytest.raises(PlanError, match="targets=False if not"):
        PooledPrior(Classification(SIZE), LOCATE)


def test_an_estimator_takes_a_unit_and_keeps_it(tmp_path):
    rng = np.random.default_rng(0)
    X, task = rng.uniform(0, 1, (900, 2)), np.repeat(np.arange(6), 150)
    y = X @ [2.0, -1.0] + 0.2 * rng.standard_normal(900)
    bounds = {0: (0, 1), 1: (0, 1), "y": (-2, 3)}
    model = SharedPriorRegressor(bounds=bounds, unit=cl.Unit.record(rows=900), random_state=0)
    model.fit(X, y, tasks=task)
    assert (model.guarantee_.unit, model.guarantee_.units) == ("record", 900)
    assert "for each record" in str(model.summary()).replace("\n", " ")
    assert np.mean((model.predict(X, tasks=task) - X @ [2.0, -1.0]) ** 2) < 0.01
    model.save(tmp_path / "run")
    again = cl.load(tmp_path / "run")
    assert again.plan_.unit == cl.Unit.record(900)
    assert np.array_equal(again.predict(X, tasks=task), model.predict(X, tasks=task))
    with pytest.raises(InputError, match="unit must be a Unit"):
        SharedPriorRegressor(bounds=bounds, unit="record").fit(X, y, tasks=task)
    with pytest.raises(InputError, match="for all tasks alike"):
        SharedPriorRegressor(bounds=bounds, unit=cl.Unit.record(900), structure="mean").fit(X, y, tasks=task)
    several = SharedPriorClassifier(bounds=bounds | {"y": [0, 1, 2]}, unit=cl.Unit.record(900))
    weighed = SharedPriorClassifier(
        bounds=bounds | {"y": [0, 1]}, unit=cl.Unit.record(900), class_weight={0: 1, 1: 2}
    )
    unit = cl.Unit.record(900)

    def book(target):
        return cl.Codebook((Numeric("x0", 0, 1), Numeric("x1", 0, 1)), target)

    kinds = {
        "3 classes": several,
        "class_weight": weighed,
        "ordered classes": SharedPriorClassifier(bounds=book(Ordered("y", ["0", "1", "2"])), unit=unit),
        "counts": SharedPriorRegressor(bounds=book(Count("y", 0, 9)), unit=unit),
    }
    for kind, refused in kinds.items():
        with pytest.raises(InputError, match=f"number, or two classes without class_weight. Got {kind}. Use"):
            refused.fit(X, (y > 0) * 1, tasks=task)


def test_a_classifier_takes_a_unit(tmp_path):
    """Eight institutions of sixty rows foresee better than alone; what is saved says the same again."""
    rng = np.random.default_rng(0)
    X, task = rng.uniform(0, 1, (480 + 8 * 200, 8)), np.tile(np.arange(8), 260)
    chance = 1 / (1 + np.exp(-(X - 0.5) @ np.tile([4.0, -3.0], 4)))
    y = np.where(rng.random(len(X)) < chance, "yes", "no")
    bounds, unit = dict.fromkeys(range(8), (0, 1)) | {"y": ["no", "yes"]}, cl.Unit.record(480)
    own, fresh = slice(480), slice(480, None)
    told = []
    for model in (
        SingleTaskClassifier(bounds=bounds),
        SharedPriorClassifier(bounds=bounds, epsilon=8.0, delta=1e-6, unit=unit, random_state=0),
    ):
        model.fit(X[own], y[own], tasks=task[own])
        told.append(model.predict_proba(X[fresh], tasks=task[fresh])[:, 1])
    alone, joined = (float(np.square(one - chance[fresh]).mean()) for one in told)
    assert joined < 0.7 * alone
    assert model.guarantee_.unit == "record"
    model.save(tmp_path / "run")
    again = cl.load(tmp_path / "run")
    assert np.array_equal(again.predict_proba(X[fresh], tasks=task[fresh])[:, 1], told[1])
    stranger = again.predict_proba(X[fresh], tasks=np.full(1600, 99))[:, 1]
    assert float(np.square(stranger - chance[fresh]).mean()) < alone
    models = cl.replay(
        again.plan_,
        again.billboard_,
        SharedPriorClassifier(bounds=bounds).reader.encode(X[own], y[own], task[own]).tasks,
    )
    assert np.allclose(models["coef"], model.run_.models["coef"])


def test_classes_are_foreseen_as_by_one_logistic_regression_of_all_rows():
    """Without noise three looks find its weights, of rows that are shorter than they are too."""
    rng = np.random.default_rng(0)
    X, weights = 0.1 * rng.standard_normal((6000, D)), 10 * np.array([1.0, -2.0, 0.5, 0.0])
    y = (rng.random(6000) < 1 / (1 + np.exp(1 - X @ weights))) * 1.0
    rows = cl.Tasks.from_arrays(np.column_stack([np.ones(6000), X]) / np.sqrt(SIZE), y, np.arange(6000) % 6)
    board = CLASSES.main_part(cl.run(plan_of(rows, NoNoise(), algorithm=CLASSES), rows).board)
    told = CLASSES.units(board).models({"coef": CLASSES.place(board).mean[None]})["coef"][0]
    together = LogisticRegression(C=1e9, tol=1e-9).fit(X, y)
    assert np.allclose(told[1:] / np.sqrt(SIZE), together.coef_[0], atol=0.5)
    assert abs(told[0] / np.sqrt(SIZE) - together.intercept_[0]) < 0.05


def test_an_estimator_protects_persons():
    """Three rows of each person send at most: k times the noise; a fourth moves no release."""
    rng = np.random.default_rng(0)
    X, task = rng.uniform(0, 1, (900, 1)), np.repeat(np.arange(6), 150)
    y, person = X[:, 0] + 0.2 * rng.standard_normal(900), np.arange(900) // 5
    bounds, unit = {0: (0, 1), "y": (-2, 3)}, cl.Unit.person(900, most=3)
    model = SharedPriorRegressor(bounds=bounds, epsilon=9.0, unit=unit, random_state=0)
    with pytest.raises(InputError, match="person=labels to"):
        model.fit(X, y, tasks=task)
    told = []
    for late in (0.0, 1.0):
        moved = np.where(np.arange(900) % 5 > 2, late, y)
        told.append(model.fit(X, moved, tasks=task, person=person).run_.board.head)
    assert model.guarantee_.unit == "person"
    assert told[0] == told[1]
