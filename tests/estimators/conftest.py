"""Models of one table of schools, fitted once for each file of tests."""

from __future__ import annotations

import pytest
from schools import BOUNDS, KINDS, make_table

from cloister import SharedPriorClassifier, SharedPriorRegressor


@pytest.fixture(scope="module")
def table():
    return make_table()


@pytest.fixture(scope="module")
def fitted(table):
    X, y, _ = table
    return SharedPriorRegressor("school", epsilon=2.0, bounds=BOUNDS, random_state=0).fit(X, y)


@pytest.fixture(scope="module")
def classified(table):
    X, _, kind = table
    return SharedPriorClassifier("school", epsilon=2.0, bounds=KINDS, random_state=0).fit(X, kind)
