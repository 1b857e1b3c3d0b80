"""Where targets were found, in words: the user's units, as many digits as are known, or that nothing was."""

from __future__ import annotations

import numpy as np
import pytest

from cloister import Plan
from cloister.algorithms import Locate, MeanRegularized, SharedPrior
from cloister.app.run_findings import RunFindings
from cloister.learners import LeastSquares, Regression
from cloister.tables.codebook import Codebook
from cloister.tables.column_types import Numeric

PLAN = Plan(SharedPrior(Regression(2), locate=Locate()), n_tasks=200)
FEATURES = (Numeric("age", 0, 100),)


def posted(center, unit, found):
    return {
        name: np.array(value)
        for name, value in (("located_center", center), ("located_unit", unit), ("located_found", found))
    }


@pytest.mark.parametrize(
    ("bounds", "center", "unit", "words"),
    [
        ((0, 1000), -0.4064, 0.0052, "around 297, most within about 3 ("),
        ((0, 1000), -0.4064, 0.51, "around 300, most within about 300 ("),
        ((-1, 1), 0.01234, 0.0021, "around 0.012, most within about 0.002 ("),
        ((-1, 1), -0.0001, 0.0021, "around 0.000, most within about 0.002 ("),
        ((1_000_000, 1_200_000), 0.1004, 0.002, "around 1110000, most within about 200 ("),
        ((0, 1000), -0.4064, 1.0, "found all over their bounds, 0 to 1000 ("),
    ],
)
def test_what_was_found_is_in_the_users_units(bounds, center, unit, words):
    book = Codebook(FEATURES, Numeric("y", *bounds))
    text = RunFindings(PLAN, posted(center, unit, 2), book).location
    assert words in text
    assert "a noisy answer, asked privately in 3 rounds" in text


def test_that_nothing_was_heard_is_said():
    text = RunFindings(PLAN, posted(0.0, 1.0, 0), Codebook(FEATURES, Numeric("y", 0, 50))).location
    assert "could not find the targets above the noise" in text
    assert "0 to 50" in text
    assert "Narrower public bounds, a larger epsilon or more tasks would help." in text


def test_where_nothing_could_be_heard_the_remedy_is_said():
    plan = Plan(SharedPrior(Regression(2), locate=Locate()), n_tasks=50).calibrate(1.0)
    text = RunFindings(plan, posted(0.0, 1.0, 0), Codebook(FEATURES, Numeric("y", 0, 50))).location
    assert str(plan.forecast().silent) in text


def test_where_nothing_was_asked_nothing_is_said():
    plan = Plan(MeanRegularized(LeastSquares(2), rounds=2), n_tasks=200)
    assert RunFindings(plan, {}, Codebook(FEATURES, Numeric("y", 0, 50))).location is None


def test_features_that_were_found_are_named_in_the_users_units():
    plan = Plan(SharedPrior(Regression(2), locate=Locate((1,))), n_tasks=200)
    found = {"features_center": [-0.8], "features_unit": [0.06], "features_found": [2]}
    board = posted(0.0, 1.0, 0) | {name: np.array(value) for name, value in found.items()}
    text = RunFindings(plan, board, Codebook(FEATURES, Numeric("y", 0, 50))).location
    assert "found in a part of their bounds: age around 10, most within about 3." in text
    board["features_unit"] = np.array([1.0])  # moved, and as wide as before
    assert "Features" not in RunFindings(plan, board, Codebook(FEATURES, Numeric("y", 0, 50))).location
    board["features_found"] = np.array([1])  # the place, and not how far it spreads
    assert "Features" not in RunFindings(plan, board, Codebook(FEATURES, Numeric("y", 0, 50))).location
