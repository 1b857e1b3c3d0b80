"""The generated tables of the benchmark `harm` are what they say, and a harmed cell is found."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from benchmarks.family_harm import ALONE, compared_grids
from benchmarks.harm import SINGLE, Outcome, alone_classes, figures, log_likelihood, losses, summarise
from benchmarks.harm_tables import FRESH, TABLES, TIGHT, Loose, Rows, draw, stretched

SMALL = [table for table in TABLES if table.tasks < 1000]


@pytest.mark.parametrize("table", SMALL, ids=lambda table: table.name)
def test_tables_are_what_they_say(table):
    train, test = draw(table, 0, 3)
    again, _ = draw(table, 0, 3)
    other, _ = draw(table, 1, 3)
    assert np.array_equal(train.X, again.X)
    assert np.array_equal(train.y, again.y)
    assert not np.array_equal(train.y[:2], other.y[:2]) or not np.array_equal(train.X[:2], other.X[:2])
    sizes = np.bincount(train.task, minlength=table.tasks)
    assert len(sizes) == table.tasks
    assert table.rows[0] <= sizes.min() <= sizes.max() <= table.rows[1]
    assert np.unique(test.task, return_counts=True)[1].tolist() == [FRESH] * 3
    assert train.X.shape[1] == test.X.shape[1] == table.features
    for loose in (TIGHT, *table.codebooks):
        book = table.codebook(loose)
        assert len(book) == table.features + 1
        if table.classes:
            assert set(np.unique(train.y)) == set(book["y"])
        else:
            assert book["y"][0] <= train.y.min() < train.y.max() <= book["y"][1]


def test_grid_reaches_from_small_to_large():
    assert len({table.name for table in TABLES}) == len(TABLES)
    assert (min(t.tasks for t in TABLES), max(t.tasks for t in TABLES)) == (5, 5000)
    assert (min(t.features for t in TABLES), max(t.features for t in TABLES)) == (1, 100)
    assert (min(t.rows[0] for t in TABLES), max(t.rows[1] for t in TABLES)) == (1, 200)
    assert stretched((290, 302), (24.0, 58.0)) == (2, 998)
    assert Loose((0.0, 99.0)).label == "100x low, 1x"


def test_a_cell_fails_only_beyond_luck():
    rng = np.random.default_rng(0)
    alone = [1.0, 1.0, None, None, 1.0, *[None] * 3]

    def outcomes(loss, of_one_row=1.0):
        noise = rng.normal(0, 0.01, 20)
        ours = [[loss + z, of_one_row + z, None, None, loss + z, *[None] * 3] for z in noise]
        return [Outcome(alone, {(TIGHT, SINGLE): alone, (TIGHT, 1.0): each}) for each in ours]

    def failed(*losses, name="shared_failed"):
        return figures(summarise({0: outcomes(*losses)}))[name]

    assert failed(1.01) == 0
    assert failed(1.03) == 1
    assert failed(1.03, name="single_failed") == 0
    assert failed(1.0, 1.04) == 0
    assert failed(1.0, 1.1) == 1, "tasks of one row pay for it"


def test_what_the_single_task_estimator_loses_too_is_not_lost_by_joining():
    alone, single = [1.0, None, 1.0, *[None] * 5], [1.2, None, 1.2, *[None] * 5]

    def grids(loss, name="two rows"):
        losses = [
            [loss + z, None, loss + z, *[None] * 5] for z in np.random.default_rng(0).normal(0, 0.01, 8)
        ]
        ours = [[(0, SINGLE, ALONE, single), (0, 1.0, "Meta", one)] for one in losses]
        return compared_grids([(name, {"alone": alone, "ours": one}) for one in ours], "Meta")

    assert [[cell.failed for cell in grid] for grid in grids(1.2)] == [[True, True], [False, False]]
    assert [sum(cell.failed for cell in grid) for grid in grids(1.4)] == [2, 1]
    assert {round(cell.relative, 1) for cell in grids(1.4)[1]} == {0.0, 0.2}


def test_losses_are_told_by_the_number_of_rows():
    train = Rows(np.zeros((4, 1)), np.zeros(4), np.array([0, 1, 1, 1]))
    test = Rows(np.zeros((4, 1)), np.zeros(4), np.array([0, 0, 1, 1]))
    found = losses(TABLES[0], train, test, np.array([3.0, 1.0, 1.0, 1.0]))
    assert found == [3.0, 5.0, None, 1.0, *[None] * 4]


def test_alone_smooths_only_what_a_task_has_not_seen():
    X, asked = np.linspace(-1, 1, 12)[:, None], np.array([[-1.0], [1.0]])
    none_seen = alone_classes(X, np.ones(12, dtype=np.intp), asked, 2)
    assert np.allclose(none_seen, [0.5 / 13, 12.5 / 13])
    two_seen = alone_classes(X, np.repeat([0, 2], 6), asked, 3)
    assert np.allclose(two_seen[:, 1], 0.5 / 13.5)
    assert np.allclose(two_seen.sum(axis=1), 1.0)
    assert two_seen[0, 0] > 0.8 > 0.2 > two_seen[1, 0]


@pytest.mark.parametrize("classes", [2, 3])
def test_scorer_is_scikit_learns(classes):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2)), np.arange(30) % classes
    fitted = LogisticRegression().fit(X, y)
    assert np.isclose(log_likelihood(fitted, X, y), -log_loss(y, fitted.predict_proba(X)))
