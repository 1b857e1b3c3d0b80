"""Prediction intervals hold as many held-out rows as they say, of tasks with four to eight rows too."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats
from sklearn.exceptions import NotFittedError

from cloister.app.task_model import TaskModel
from cloister.errors import InputError
from cloister.estimators import SharedPriorClassifier, SharedPriorRegressor, SingleTaskRegressor

M, HELD_OUT = 200, 20
BOUNDS = {0: (0, 10), 1: (0, 10), "y": (-40, 100)}


def table(seed: int, rows: tuple[int, int] = (4, 8)) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, targets, tasks and which rows to train with: a few of each task."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(rows[0], rows[1] + 1, M)
    task = np.repeat(np.arange(M), sizes + HELD_OUT)
    train = np.concatenate([np.arange(size + HELD_OUT) < size for size in sizes])
    X = rng.normal(5, 2, (len(task), 2)).clip(0, 10)
    slopes = [1.5, -1.0] + 0.5 * rng.normal(size=(M, 2))
    level = 30 + 3 * rng.normal(size=M)
    y = level[task] + (slopes[task] * (X - 5)).sum(axis=1) + 3 * rng.normal(size=len(task))
    return X, y, task, train


@pytest.mark.parametrize(
    "model",
    [
        SharedPriorRegressor(epsilon=1.0, bounds=BOUNDS, random_state=0),
        SharedPriorRegressor(epsilon=8.0, bounds=BOUNDS, random_state=0),
        SingleTaskRegressor(bounds=BOUNDS),
        SingleTaskRegressor(),
    ],
    ids=["epsilon 1", "epsilon 8", "alone", "alone, own units"],
)
def test_intervals_cover(model):
    """Of 4,000 rows of 200 tasks: one that covers .945 would be below .93 in about 1 of 1,000 tables."""
    X, y, task, train = table(1)
    model.fit(X[train], y[train], tasks=task[train])
    for coverage, least in ((0.8, 0.76), (0.95, 0.93)):
        lower, upper = model.predict_interval(X[~train], tasks=task[~train], coverage=coverage)
        assert np.mean((lower <= y[~train]) & (y[~train] <= upper)) >= least
    assert np.median(upper - lower) < 40  # it must say something: 95 % of all targets are within 35


def test_an_interval_is_students(tmp_path):
    """By the posterior's moments and its degrees of freedom; through a file; within the public bounds."""
    X, y, task, train = table(2)
    model = SharedPriorRegressor(epsilon=4.0, bounds=BOUNDS, random_state=0)
    model.fit(X[train], y[train], tasks=task[train])
    own = TaskModel.load(model.export(7, tmp_path / "seven.json"))
    rows = {"x0": [4.0, 9.0], "x1": [5.0, 2.0]}
    mean, deviation = own.predict(rows), own.predict_std(rows)
    expected = stats.t.interval(0.9, own.facts["freedom"], mean, deviation)
    np.testing.assert_allclose(own.predict_interval(rows, 0.9), expected)
    columns = np.column_stack([rows["x0"], rows["x1"]])
    np.testing.assert_allclose(model.predict_interval(columns, tasks=[7, 7], coverage=0.9), expected)
    assert own.facts["rows"] == np.sum(task[train] == 7)
    lower, upper = own.predict_interval(rows, 1 - 1e-12)
    assert (lower >= -40).all()
    assert (upper <= 100).all()


def test_a_task_without_rows_may_be_anywhere_if_nothing_was_heard():
    X, y, task, train = table(3)
    model = SharedPriorRegressor(epsilon=0.01, bounds=BOUNDS, random_state=0)
    model.fit(X[train], y[train], tasks=task[train])
    assert np.ravel(model.predict_interval([[5.0, 5.0]], tasks=[999])).tolist() == [-40.0, 100.0]


def test_what_has_no_interval_says_so(tmp_path):
    X, y, task, train = table(4)
    regressor = SharedPriorRegressor(epsilon=4.0, bounds=BOUNDS, random_state=0)
    regressor.fit(X[train], y[train], tasks=task[train])
    with pytest.raises(NotFittedError):
        SharedPriorRegressor(bounds=BOUNDS).predict_interval(X[:1], tasks=task[:1])
    for coverage in (95, "0.9"):
        with pytest.raises(InputError, match="coverage must be a number between 0 and 1"):
            regressor.predict_interval(X[:1], tasks=task[:1], coverage=coverage)
    path = regressor.export(7, tmp_path / "seven.json")
    document = json.loads(path.read_text())
    del document["facts"], document["prior"]
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="earlier version"):
        TaskModel.load(path).predict_interval({"x0": [1.0], "x1": [1.0]})
    bounds = BOUNDS | {"y": [False, True]}
    classifier = SharedPriorClassifier(epsilon=4.0, bounds=bounds, random_state=0)
    few = train & (task < 30)
    classifier.fit(X[few], y[few] > 30, tasks=task[few])
    with pytest.raises(InputError, match="predicts classes"):
        classifier.task_model(7).predict_interval({"x0": [1.0], "x1": [1.0]})


def test_newcomers_intervals_say_something():
    """A task without rows knows nothing of how wide its features are: that must not widen what it is told."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(300), 10)
    x = rng.normal(50, 2, len(task))  # of bounds 0 to 100
    y = np.clip(40 + 2 * (x - 50) + rng.normal(0, 2, 300)[task] + rng.normal(0, 2, len(task)), 0, 100)
    bounds = {"x": (0, 100), "target": (0, 100)}
    model = SharedPriorRegressor(epsilon=2.0, bounds=bounds, random_state=0).fit({"x": x}, y, tasks=task)
    low, high = model.predict_interval({"x": x}, tasks=np.full(len(task), 999))
    assert np.mean((low <= y) & (y <= high)) > 0.8
    assert np.mean(high - low) < 40
