"""What a summary says, from the board alone: as an independent computation has it, and covering the truth."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from cloister import Plan, Tasks, datasets, load, run
from cloister.algorithms import SharedPrior
from cloister.app.run_findings import RunFindings
from cloister.app.summary import Coefficient
from cloister.errors import InputError
from cloister.estimators import (
    LowRankRegressor,
    MeanRegularizedRegressor,
    PooledRegressor,
    SharedPriorClassifier,
    SharedPriorRegressor,
    SingleTaskRegressor,
)
from cloister.learners import Regression
from cloister.sampling import Poisson
from cloister.tables.codebook import Codebook

BOUNDS = {"age": (0, 10), "dose": (0, 10), "target": (-40, 100)}
#: Value at zero and slopes of the population, and how far tasks lie from them.
TRUTH, SPREAD = np.array([25.0, 2.0, -1.0]), np.array([3.0, 0.4, 0.4])


def table(seed: int, m: int = 300, rows: tuple[int, int] = (5, 15)) -> tuple[dict, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(m), rng.integers(rows[0], rows[1] + 1, m))
    X = rng.normal(5, 2, (len(task), 2)).clip(0, 10)
    weights = SPREAD * rng.normal(size=(m, 3))
    y = TRUTH[0] + X @ TRUTH[1:] + weights[task, 0] + ((X - 5) * weights[task, 1:]).sum(axis=1)
    return dict(zip(("age", "dose"), X.T, strict=True)), y + 3 * rng.normal(size=len(task)), task


def fitted(seed: int, epsilon: float = 1.0, **more: object) -> SharedPriorRegressor:
    X, y, task = table(seed)
    model = SharedPriorRegressor(epsilon=epsilon, bounds=BOUNDS, random_state=seed, **more)
    return model.fit(X, y, tasks=task)


@pytest.fixture(scope="module")
def model():
    return fitted(4)  # whose noise lets all that a page may say be heard


def independent(model: SharedPriorRegressor) -> tuple[np.ndarray, np.ndarray]:
    """Compute estimates and standard errors anew: plain loops, dense matrices, user's units by lstsq."""
    shared = model.plan_.algorithm
    assert isinstance(shared, SharedPrior)
    board = shared.main_part(model.billboard_)
    d, clip = 3, 0.5
    points, heard, noise, moments = [], [], [], []
    for r in range(1, board.capacity - 2):  # a question before, two after
        before, release = board.before(r), board.releases[r]
        points.append(before["mean"])
        a, m = (0.6, 0.15)[release.channel], release.denominator
        heard.append(clip * release.value[:d] / np.sqrt(a) / m)
        noise.append(clip * release.noise / np.sqrt(a) / m)
        upper, rest = np.zeros((d, d)), release.value[d:] / np.sqrt(1 - a) / m
        rest = dict(zip([(i, j) for i in range(d) for j in range(i, d)], rest, strict=True))
        for (i, j), value in rest.items():
            upper[i, j] = upper[j, i] = clip**2 * value / (1 if i == j else np.sqrt(2))
        moments.append(upper)
    points, heard, noise, moments = map(np.array, (points, heard, noise, moments))
    root = points[-1]
    for _ in range(8):
        miss = 0.35 * ((points - root) ** 2).sum(axis=1) / clip / np.sqrt(d)
        w = 1 / (noise**2 + miss**2 + (1e-3 * clip) ** 2)
        origin = np.average(points, axis=0, weights=w)
        x, level = points - origin, np.average(heard, axis=0, weights=w)
        g = heard - level
        slope = (0.4 / 0.0225 - (w[:, None] * x * g).sum()) / (1 / 0.0225 + (w[:, None] * x * x).sum())
        slope = np.clip(slope, 0.1, 1)
        unsure = ((w / w.sum() * noise) ** 2).sum()
        root = origin + slope / (slope**2 + unsure / clip**2) * level
    usual, A, unsure = min(slope, 0.95), np.zeros((d, d)), []
    for j in range(d):
        prior = np.diag(np.where(np.arange(d) == j, (0.7 * usual) ** 2, (0.6 * usual) ** 2 / d))
        precision = np.linalg.inv(prior) + (x * w[:, None]).T @ x
        unsure.append(np.linalg.inv(precision))
        A[j] = unsure[j] @ (np.linalg.inv(prior)[j] * usual - (x * w[:, None]).T @ g[:, j])
    values, vectors = np.linalg.eigh((A + A.T) / 2)
    A = vectors @ np.diag(np.clip(values, 0.1, 1)) @ vectors.T
    center = origin + np.linalg.solve(A, level)
    values, vectors = np.linalg.eigh(np.average(moments, axis=0, weights=w))
    inside = np.eye(d) / w.sum() + vectors @ np.diag(values.clip(0)) @ vectors.T / m
    total, away = inside, center - origin
    for _ in range(100):
        moved = np.linalg.solve(A, np.linalg.solve(A, total).T) + np.outer(away, away)
        total = inside + np.diag([np.trace(V @ moved) for V in unsure])
    mean = board["mean"]  # what priors are around
    covariance = np.linalg.solve(A, np.linalg.solve(A, total).T) + np.outer(mean - center, mean - center)
    unit, place = float(model.billboard_["located_unit"]), float(model.billboard_["located_center"])
    corners = np.array([[0, 0], [10, 0], [0, 10]], dtype=float)
    rows = model.codebook_.encode(dict(zip(("age", "dose"), corners.T, strict=True)))
    found = board["features_found"] == 2
    rows[:, 1:] -= np.where(found, board["features_center"], 0.0) / np.sqrt(3)
    rows[:, 1:] /= np.where(found, board["features_unit"], 1.0)
    turn = np.linalg.solve(np.column_stack([np.ones(3), corners]), 70 * unit * rows)
    value = turn @ mean + [30 + 70 * place, 0, 0]
    return value, np.sqrt(np.diag(turn @ covariance @ turn.T))


def test_a_summary_is_what_an_independent_computation_has(model):
    summary = model.summary()
    estimates, errors = independent(model)
    np.testing.assert_allclose([c.estimate for c in summary.coefficients], estimates, rtol=1e-6)
    np.testing.assert_allclose([c.std_error for c in summary.coefficients], errors, rtol=1e-6)
    stranger = model.predict({"age": [0, 1, 0], "dose": [0, 0, 1]}, tasks=[999] * 3)
    news = [c.new_task for c in summary.coefficients]
    np.testing.assert_allclose(news, [stranger[0], *(stranger[1:] - stranger[0])], rtol=1e-6)
    assert (summary.tasks, summary.rounds) == (300, len(model.plan_.rounds))


def test_an_intercept_that_bounds_tell_as_well_is_not_heard(model):
    """Its error is held against that of a guess between the bounds, in whose middle nobody need be."""
    findings = model.run_.findings
    found, guess = findings.population, 1 / np.sqrt(3)
    for error, heard in ((0.99 * guess, True), (1.01 * guess, False)):
        covariance = found.covariance.copy()
        covariance[0, 0] = error**2
        unsure = replace(findings)
        unsure.__dict__["population"] = replace(found, covariance=covariance)
        summary = unsure.summary(model.guarantee_)
        assert (summary.coefficients[0].estimate is not None) == heard
        assert summary.coefficients[0].new_task is not None
        assert all(c.estimate is not None for c in summary.coefficients[1:])
        assert any(note.startswith('The intercept is "not heard"') for note in summary.notes) != heard


def test_standard_errors_cover():
    """Of 90 coefficients of 30 tables, 84 to 100 % at nominal 95: chance alone is outside in 1 of 10,000.

    (Coefficients of a table are counted as one and a half: they share its noise.)
    """
    hits, ratio = [], []
    for seed in range(30):
        found = fitted(100 + seed).summary().coefficients
        away = np.array([c.estimate for c in found]) - TRUTH
        hits.append(np.abs(away) < 1.96 * np.array([c.std_error for c in found]))
        ratio.append(away / [c.std_error for c in found])
    assert np.mean(hits) >= 0.84
    assert 0.6 < np.std(ratio) < 1.35  # neither too narrow nor too wide


def test_less_noise_is_surer_and_no_noise_is_not_quite_sure():
    """Without noise the error is that of a mean over tasks: not below what the tasks' true weights give."""
    loud, quiet, silent = (
        [c.std_error for c in fitted(1, epsilon).summary().coefficients] for epsilon in (0.7, 8.0, np.inf)
    )
    assert all(a > b for a, b in zip(loud, quiet, strict=True))
    assert all(c > s / np.sqrt(300) for c, s in zip(silent[1:], SPREAD[1:], strict=True))
    assert silent[1] < 3 * quiet[1]


def test_it_is_public_and_within_80_columns(model, tmp_path):
    """The same from the public files alone, and the same for the same board, whatever the tasks' models."""
    text = str(model.summary())
    public = load(model.save(tmp_path / "run", models=False))
    assert str(public.summary()) == text
    assert max(map(len, text.splitlines())) < 80
    for word in ("300 tasks", "std. error", "sd between tasks", "new task", "Targets were found around"):
        assert word in text
    html = model.summary()._repr_html_()
    assert "<th style='text-align: left'>age</th>" in html
    json.dumps(model.summary().to_dict(), allow_nan=False)


def test_what_is_not_heard_is_said():
    summary = fitted(3, epsilon=0.02).summary()
    assert "does not stand out from the noise" in " ".join(str(summary).split())
    blank = replace(summary, coefficients=(Coefficient("age"),))
    assert "age  not heard" in str(blank)
    assert all(c.estimate is c.std_error is c.spread is None for c in summary.coefficients)
    json.dumps(summary.to_dict(), allow_nan=False)


def test_a_spread_that_is_not_heard_is_not_printed_on_a_tasks_page(tmp_path):
    model = fitted(3, epsilon=0.2)
    assert all(c.spread is None for c in model.summary().coefficients)
    page = load(model.save(tmp_path / "run")).task_model(0).summary()
    assert all(c.prior is not None and c.prior_sd is None for c in page.coefficients)
    assert str(page).count("not heard") == 3
    assert str(page) == str(model.task_model(0).summary())


def test_why_there_are_no_standard_errors():
    X, y, task = table(3, m=100)
    assert "does not ask how tasks scatter" in str(fitted(3, structure="mean").summary())
    bounds = BOUNDS | {"target": ["low", "middle", "high"]}
    level = np.array(["low", "middle", "high"])[np.searchsorted([25, 35], y)]
    classes = SharedPriorClassifier(epsilon=8.0, bounds=bounds, random_state=0).fit(X, level, tasks=task)
    text = str(classes.summary())
    assert "No standard errors for classes" in text
    first = f"log-odds against target = {classes.codebook_.target.levels[0]}."
    assert all(first in " ".join(str(page).split()) for page in (text, classes.task_model(0).summary()))
    assert "log-odds against target = low" in text
    assert "high: dose" in text


def test_sampled_tasks_have_no_standard_errors():
    """Of any plan: half of the tasks take part in a round, so that rounds differ by more than their noise."""
    X, y, task = table(3)
    book = Codebook.from_mapping(BOUNDS, ["age", "dose"])
    plan = Plan(SharedPrior(Regression(3)), sampling=Poisson(0.5), n_tasks=300).calibrate(epsilon=8.0)
    finished = run(plan, Tasks.from_arrays(book.encode(X), book.encode_target(y), task), random_state=0)
    summary = RunFindings(plan, finished.board, book).summary(finished.guarantee)
    assert any(c.estimate is not None for c in summary.coefficients)
    assert all(c.std_error is None for c in summary.coefficients)
    assert any("not independent of the next" in note for note in summary.notes)


@pytest.mark.parametrize(
    ("estimator", "word"),
    [
        (LowRankRegressor(bounds=BOUNDS), "has no coefficients"),
        (SharedPriorRegressor(bounds=BOUNDS, structure="lowrank"), "has no coefficients"),
        (MeanRegularizedRegressor(bounds=BOUNDS), "a mean of models"),
        (SingleTaskRegressor(bounds=BOUNDS), "Nothing left any task"),
    ],
)
def test_other_estimators_say_what_they_have(estimator, word):
    X, y, task = table(4, m=60)
    assert word in str(estimator.fit(X, y, tasks=task).summary())


class Answered:
    """A board with other answers on it."""

    def __init__(self, board, **answers):
        self.board, self.answers = board, answers

    def __contains__(self, name):
        return name in self.answers or name in self.board

    def __getitem__(self, name):
        return self.answers[name] if name in self.answers else self.board[name]

    def __getattr__(self, name):
        return getattr(self.board, name)


def test_who_relies_on_what_is_shared_is_said_by_rows():
    """A majority among tasks of many rows, or of few, is no majority among the others."""
    X, y, task = table(4, m=60)
    fit = MeanRegularizedRegressor(bounds=BOUNDS, random_state=0).fit(X, y, tasks=task)
    yes, no = (0.9, 0.01), (0.2, 0.01)

    def said(many, few, found=2):
        board = Answered(fit.billboard_, blend=np.array([(0.7, 0.01), many, few]), located_found=found)
        return " ".join(RunFindings(fit.plan_, board, fit.codebook_).summary(fit.guarantee_).notes)

    assert "70% of the tasks that said yes or no" in said(yes, yes)
    assert "all weigh both by their own rows." in said(yes, yes)
    one_sided = "those of {} weigh both by their own rows, the others rely on themselves."
    assert one_sided.format("4 rows or more") in said(yes, no)
    assert one_sided.format("4 rows or more") in said(yes, yes, found=1)  # few rows do not tell the unit
    assert one_sided.format("fewer than 4 rows") in said(no, yes)
    assert "each relies on itself" in said(no, no)


def test_a_pooled_model_has_nothing_public():
    X, y, task = table(4, m=60)
    with pytest.raises(InputError, match="not private"):
        PooledRegressor(bounds=BOUNDS).fit(X, y, tasks=task).summary()


def test_groups_have_a_common_mean():
    """Tasks of five groups that differ: the mean over all of them is what is estimated."""
    X, y, task = table(5)
    shift = np.linspace(-6, 6, 5)
    model = SharedPriorRegressor(epsilon=8.0, bounds=BOUNDS, random_state=0)
    model.fit(X, y + shift[task % 5], tasks=task, groups=np.array([f"g{i % 5}" for i in task]))
    summary = model.summary()
    assert summary.groups == 5
    away = [(c.estimate - true) / c.std_error for c, true in zip(summary.coefficients, TRUTH, strict=True)]
    assert np.abs(away).max() < 3
    own = model.task_model(0).summary()  # its prior is its group's
    assert own.coefficients[0].prior < summary.coefficients[0].new_task - 2


def test_a_tasks_own_page(model, tmp_path):
    """Its posterior in the user's units, by the independent way of its predictions; through its file too."""
    own = model.task_model(7)
    page = own.summary()
    rows = {"age": [0, 1, 0], "dose": [0, 0, 1]}
    middle = LinearRegression().fit(np.column_stack([*rows.values()]), own.predict(rows))
    found = [c.estimate for c in page.coefficients]
    np.testing.assert_allclose(found, [middle.intercept_, *middle.coef_], rtol=1e-6, atol=1e-9)
    deviation = np.sqrt(own.predict_std({"age": [0.0], "dose": [0.0]}) ** 2 - page.residual**2)
    assert page.coefficients[0].std_error == pytest.approx(deviation[0], rel=1e-6)
    X, y, task = table(4)
    assert page.rows == np.sum(task == 7)
    assert 0 <= page.shared_weight <= 1
    news = [c.new_task for c in model.summary().coefficients]
    np.testing.assert_allclose([c.prior for c in page.coefficients], news)
    alone = SingleTaskRegressor(bounds=BOUNDS).fit(X, y, tasks=task)
    heard = np.isfinite(model.billboard_["level"][1])  # what others say of the noise is all that differs
    own_rows = [alone.intercept_[7], *alone.coef_[7]]
    np.testing.assert_allclose([c.alone for c in page.coefficients], own_rows, rtol=0.2 if heard else 1e-6)
    text = str(page)
    assert text == str(load(model.export(7, tmp_path / "seven.json")).summary())
    assert "Private: for this task alone" in text
    assert max(map(len, text.splitlines())) < 80
    assert "<table>" in page._repr_html_()
    json.dumps(page.to_dict(), allow_nan=False)
    mine = task == 7
    again = model.replay({name: x[mine] for name, x in X.items()}, y[mine], task=7)
    assert str(again.summary()) == text


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_are_of_the_users_library(library):
    nw = pytest.importorskip("narwhals")
    X, y, task = table(6, m=60)
    frame = nw.from_dict({name: x.tolist() for name, x in X.items()}, backend=library).to_native()
    model = SharedPriorRegressor(epsilon=8.0, bounds=BOUNDS, random_state=0).fit(frame, y, tasks=task)
    for found in (model.coefficients(), model.summary().to_frame(), model.summary().to_frame(library)):
        assert type(found) is type(frame)
    labelled = nw.from_native(model.coefficients())
    assert labelled.columns == ["task", "intercept", "age", "dose"]
    assert labelled["task"].to_list() == model.task_ids_.tolist()
    np.testing.assert_array_equal(labelled["dose"].to_numpy(), model.coef_[:, 1])
    np.testing.assert_array_equal(labelled["intercept"].to_numpy(), model.intercept_)


def test_frames_of_classes_and_of_other_tables():
    X, y, task = table(7, m=60)
    bounds = BOUNDS | {"target": ["low", "middle", "high"]}
    level = np.array(["low", "middle", "high"])[np.searchsorted([25, 35], y)]
    classes = SharedPriorClassifier(epsilon=8.0, bounds=bounds, random_state=0).fit(X, level, tasks=task)
    frame = classes.coefficients("pandas")
    assert frame.columns.tolist()[:3] == ["task", "low: intercept", "low: age"]  # classes_ are sorted
    np.testing.assert_array_equal(frame["middle: dose"], classes.coef_[:, 1, 1])
    with pytest.raises(InputError, match="one of pandas, polars, pyarrow"):
        classes.coefficients("excel")
    alone = SingleTaskRegressor().fit(X, y, tasks=task)
    assert alone.coefficients("polars").columns == ["task", "intercept", "age", "dose"]


def test_a_real_table():
    """On 2,410 schools the slope of the GCSE score is what all rows together say, within its error."""
    data = datasets.load("chem97")
    model = SharedPriorRegressor(epsilon=1.0, bounds=data.codebook, random_state=0)
    found = model.fit(data.X, data.y, tasks=data.task).summary().coefficients
    assert isinstance(model.codebook_, Codebook)
    pooled = LinearRegression().fit(model.codebook_.user_columns(data.X), data.y)
    assert abs(found[2].estimate - pooled.coef_[1]) < 5 * found[2].std_error
    assert found[2].std_error < 0.2
