"""Kinds of targets: what a codebook says of them, what it refuses, and what models of each predict."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import GammaRegressor
from sklearn.metrics import mean_gamma_deviance

import cloister as cl
from cloister.errors import InputError, PrivateDataError
from cloister.estimators import PooledRegressor, SingleTaskRegressor
from cloister.tables.codebook import Codebook
from cloister.tables.column_types import Numeric
from cloister.tables.targets import KINDS, Count, Ordered, Positive

X = (Numeric("x", 0, 10), Numeric("days", 1, 366))
BOOKS = [
    Codebook(X, Count("y", 0, 50)),
    Codebook(X, Count("y", 2, 50, exposure="days"), task="ward"),
    Codebook(X, Ordered("y", ["low", "middle", "high"])),
    Codebook(X, Positive("y", 0.5, 1e6)),
]


@pytest.mark.parametrize("book", BOOKS, ids=lambda book: type(book.target).__name__)
def test_a_codebook_is_itself_again_from_a_file_and_a_dictionary(book, tmp_path):
    book.save(tmp_path / "book.toml")
    assert Codebook.load(tmp_path / "book.toml") == book
    assert Codebook.from_dict(book.to_dict()) == book
    assert set(KINDS) == {one.target.entry()["kind"] for one in BOOKS}


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ({"kind": "count", "bounds": (0, 5.5)}, "whole numbers"),
        ({"kind": "count", "bounds": (-1, 5)}, "whole numbers"),
        ({"kind": "count"}, "must have bounds"),
        ({"kind": "count", "bounds": (0, 5), "exposure": "weeks"}, "'weeks'"),
        ({"kind": "count", "bounds": (0, 5), "exposure": "x"}, "positive numbers"),
        ({"kind": "count", "bounds": (0, 5), "classes": [1]}, "may have bounds, exposure"),
        ({"kind": "ordered", "classes": ["no", "yes"]}, "three or more"),
        ({"kind": "ordered", "classes": [*"abc"], "aliases": 5}, "other words for listed levels"),
        ({"kind": "positive", "bounds": (0, 5)}, "finite number at its lower bound"),
        ({"kind": "number", "bounds": (0, 5)}, "one of count, ordered, positive"),
    ],
)
def test_what_cannot_be_is_refused(target, word):
    with pytest.raises(InputError, match=word):
        Codebook.from_mapping({"x": (0, 10), "days": (1, 366), "y": target}, ["x", "days"], "y")


@pytest.mark.parametrize(
    ("place", "cells", "word"),
    [
        (0, [1.0, 2.5], "whole"),
        (0, [-1, 3], "whole"),
        (2, ["low", "tiny"], "levels"),
        (3, [0.0, 1], "above 0"),
    ],
)
def test_cells_of_another_kind_are_refused(place, cells, word):
    with pytest.raises(PrivateDataError, match=word):
        BOOKS[place].encode_target(np.array(cells))


def test_rows_of_counts_have_their_offset_last_and_no_weight_for_it():
    book = BOOKS[1]
    rows = book.encode({"x": [5.0, 5.0, 5.0], "days": [1, 366, 1000]})
    assert (book.width, book.row_width, book.column_names) == (2, 3, ("x",))
    np.testing.assert_allclose(rows[:, 2], [-np.log(366) / 2, np.log(366) / 2, np.log(366) / 2])
    assert (np.linalg.norm(rows[:, :2], axis=1) <= 1).all()
    coef, intercept = book.to_user_units(np.array([0.3, 0.4]))
    score = rows[0, :2] @ np.array([0.3, 0.4]) + rows[0, 2]
    assert book.decode_prediction(score) == pytest.approx(max(2.0, np.exp(intercept + 5 * coef[0])))


def test_positive_numbers_are_predicted_by_their_mean_in_relative_terms():
    """A long tail: joined beats alone, and plain numbers; intervals for 90 % hold 86 to 94 %."""
    rng, m, n = np.random.default_rng(0), 100, 6
    task, level = np.repeat(np.arange(m), n), 0.5 * rng.normal(size=m)
    x = rng.uniform(0, 10, m * n)

    def costs():
        return np.exp(5 + 0.15 * x + level[task] + 0.6 * rng.normal(size=m * n))

    paid, fresh = costs(), costs()
    bounds = {"x": (0, 10), "y": {"kind": "positive", "bounds": (1, 100_000)}}
    plain = bounds | {"y": (0, 100_000)}
    losses = [
        mean_gamma_deviance(fresh, np.maximum(model.fit({"x": x}, paid, task).predict({"x": x}, task), 1))
        for model in (
            cl.SharedPriorRegressor(epsilon=2.0, bounds=bounds, random_state=0),
            SingleTaskRegressor(bounds=bounds),
            cl.SharedPriorRegressor(epsilon=2.0, bounds=plain, random_state=0),
        )
    ]
    assert losses[0] < min(losses[1:])
    joined = cl.SharedPriorRegressor(epsilon=2.0, bounds=bounds, random_state=0).fit({"x": x}, paid, task)
    low, high = joined.predict_interval({"x": x}, task, coverage=0.9)
    assert 0.86 < np.mean((low <= fresh) & (fresh <= high)) < 0.94
    said = " ".join(str(joined.summary()).split())
    assert "most within a factor of" in said
    assert "off by the square root of that factor" in said
    pooled = PooledRegressor(bounds=bounds).fit({"x": x}, paid, task)
    theirs = GammaRegressor(alpha=0, max_iter=10_000, tol=1e-8).fit(x[:, None], paid)
    assert pooled.coef_[0, 0] == pytest.approx(theirs.coef_[0], abs=0.02)
