"""Plots show what tables say, return axes, and say that they are private."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
from scipy import stats

from cloister.errors import InputError, MissingExtraError
from cloister.estimators import LowRankRegressor, SharedPriorRegressor, SingleTaskRegressor
from cloister.report import plots

matplotlib = pytest.importorskip("matplotlib")
BOUNDS = {"age": (0, 10), "y": (-40, 100)}


@pytest.fixture(autouse=True)
def _no_window():
    from matplotlib import pyplot

    before = matplotlib.get_backend()
    pyplot.switch_backend("Agg")
    yield
    pyplot.close("all")
    pyplot.switch_backend(before)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(60), rng.integers(8, 40, 60))
    age = rng.uniform(0, 10, len(task))
    y = 20 + 2 * age + (3 * rng.normal(size=60))[task] + 3 * rng.normal(size=len(task))
    return {"age": age}, y, task, rng.random(len(task)) < 0.6


@pytest.fixture(scope="module")
def models(table):
    X, y, task, train = table
    rows = {"age": X["age"][train]}
    shared = SharedPriorRegressor(epsilon=4.0, bounds=BOUNDS, random_state=0).fit(
        rows, y[train], tasks=task[train]
    )
    return shared, SingleTaskRegressor(bounds=BOUNDS).fit(rows, y[train], tasks=task[train])


def test_a_caterpillar_shows_every_tasks_coefficient(models):
    model, _ = models
    axes = plots.caterpillar(model, "age", coverage=0.9)
    dots = axes.containers[0].lines[0].get_xdata()
    np.testing.assert_allclose(dots, np.sort(model.coef_[:, 0]))
    first = model.task_model(model.task_ids_[np.argmin(model.coef_[:, 0])])
    expected = stats.t.interval(
        0.9, first.facts["freedom"], first.coef[0], first.summary().coefficients[1].std_error
    )
    bar = axes.containers[0].lines[2][0].get_segments()[0]
    np.testing.assert_allclose(bar[:, 0], expected)
    assert "private" in axes.get_title()
    assert "90 % intervals" in axes.get_xlabel()


def test_shrinkage_goes_from_alone_to_together(models):
    model, alone = models
    from matplotlib import pyplot

    _, axes = pyplot.subplots()
    assert plots.shrinkage(model, alone, "age", ax=axes) is axes
    ends = np.array([line[:, 1] for line in axes.collections[0].get_segments()])
    np.testing.assert_allclose(ends, np.column_stack([alone.coef_[:, 0], model.coef_[:, 0]]))
    assert np.std(ends[:, 1]) < np.std(ends[:, 0])
    assert "private" in axes.get_title()


def test_gain_by_size_is_of_held_out_rows(models, table):
    X, y, task, train = table
    rows, goal, ids = {"age": X["age"][~train]}, y[~train], task[~train]
    axes = plots.gain_by_size(*models, rows, goal, ids)
    shown = np.asarray(axes.collections[0].get_offsets())
    seventh = np.flatnonzero(np.unique(ids) == 7)[0]
    mine = ids == 7
    errors = [np.sqrt(np.mean((m.predict(rows, ids)[mine] - goal[mine]) ** 2)) for m in models]
    np.testing.assert_allclose(shown[seventh], [np.sum(task[train] == 7), errors[1] - errors[0]])
    again = plots.gain_by_size(*models, {**rows, "score": goal}, "score", ids)
    np.testing.assert_array_equal(again.collections[0].get_offsets(), shown)
    assert "private" in axes.get_title()


def test_what_cannot_be_drawn_says_why(models, table, monkeypatch):
    X, y, task, _ = table
    with pytest.raises(InputError, match="must be one of intercept, age"):
        plots.caterpillar(models[0], "dose")
    other = SingleTaskRegressor(bounds=BOUNDS).fit(X, y, tasks=task + 1)
    with pytest.raises(InputError, match="the same tasks"):
        plots.shrinkage(models[0], other)
    without_posterior = LowRankRegressor(bounds=BOUNDS).fit(X, y, tasks=task)
    with pytest.raises(InputError, match="no posterior"):
        plots.caterpillar(without_posterior)
    found = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name=name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'cloister\[tables\]'"):
        plots.caterpillar(models[0])
