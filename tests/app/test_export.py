"""A task's model as an estimator of scikit-learn's own: the same predictions, with nothing of ours."""

from __future__ import annotations

import builtins
import pickle
import subprocess
import sys
from datetime import date

import numpy as np
import pandas as pd
import polars as pl
import pytest

from cloister import Codebook, SharedPriorRegressor
from cloister.app.task_model import TaskModel
from cloister.errors import InputError, MissingExtraError
from cloister.tables.column_types import Numeric
from cloister.tables.dates import Date

N = 300
RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "unused": np.zeros(N),
        "age": RNG.normal(60, 60, N),  # many beyond their bounds
        "income": RNG.lognormal(8, 3, N),
        "year": 1e9 + RNG.uniform(-0.5, 1.5, N),
        "sex": RNG.choice(["M", "F"], N),
        "code": RNG.choice([3, 1, 2], N),
        "meals": RNG.random(N) < 0.5,
        "size": RNG.choice(["S", "M", "L", "XL"], N),
        "hole": np.where(RNG.random(N) < 0.3, np.nan, RNG.normal(0, 9, N)),
        "kind": pd.Series(RNG.choice(["a", "b", "?"], N)).replace("?", None),
    }
)
PLAIN = {
    "age": (0, 120),
    "year": (1e9, 1e9 + 1),
    "sex": ["M", "F"],
    "code": [3, 1, 2],
    "meals": [False, True],
}
RICH = {
    "income": {"bounds": (1, 1e6), "transform": "log"},
    "age": {"bounds": (0, 120), "knots": (20, 60)},
    "size": {"levels": ["S", "M", "L", "XL"], "ordinal": True},
    "hole": {"bounds": (-10, 10), "missing": 2.5},
    "kind": {"levels": ["b", "a"], "missing": "unknown"},
    "code": [3, 1, 2],
}
STEPS = {
    "age": {"bounds": (0, 120), "cuts": (18, 65)},
    "hole": {"bounds": (-10, 10), "missing": 0, "cuts": (-1, 0, 1)},
    "kind": {"levels": ["b", "a"], "missing": "a"},
}
BOOKS = {
    "plain": (PLAIN, ()),
    "rich": (RICH, [("age", "kind"), ("hole", "income")]),
    "steps": (STEPS, [("age", "hole")]),
}
TARGETS = {"number": (-2, 3), "two": ["low", "high"], "three": ["x", "c", "m"], "boolean": [True, False]}


def task_model(book: str, target: str) -> TaskModel:
    bounds, pairs = BOOKS[book]
    codebook = Codebook.from_mapping(
        {**bounds, "target": TARGETS[target]}, list(bounds), interactions=tuple(pairs)
    )
    rng = np.random.default_rng(1)
    weights = 2 * rng.normal(size=((codebook.classes or 2) - 1) * codebook.width)
    return TaskModel.of("Elm", codebook, {"coef": weights})


def answers(model) -> list[np.ndarray]:
    return [model.predict(TABLE), *([model.predict_proba(TABLE)] if hasattr(model, "classes_") else [])]


@pytest.fixture(scope="module")
def exported():
    return {(b, t): task_model(b, t).to_sklearn() for b in BOOKS for t in TARGETS}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("book", BOOKS)
def test_it_predicts_as_the_model_does(book, target, exported):
    mine, theirs = task_model(book, target), exported[book, target]
    levels = TARGETS[target]
    if target == "number":
        expected = mine.predict(TABLE)
        np.testing.assert_allclose(theirs.predict(TABLE), expected, rtol=1e-9, atol=1e-9)
        assert {-2.0, 3.0} <= set(expected)  # some are clipped to the target's bounds, on both sides
        return
    chances = mine.predict_proba(TABLE)[:, np.argsort(levels)]
    assert theirs.classes_.tolist() == sorted(levels)
    np.testing.assert_allclose(theirs.predict_proba(TABLE), chances, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(theirs.predict(TABLE), mine.predict(TABLE))


@pytest.mark.parametrize("kind", ["int64", "bool", "Int64", "float32", "object"])
@pytest.mark.parametrize("shape", [{}, {"cuts": [0.5]}])
def test_a_number_that_may_be_missing_is_read_from_columns_of_any_type(kind, shape):
    """It is fitted to numbers with a fraction, and a file without missing cells may have whole ones."""
    book = Codebook.from_mapping({"a": {"bounds": (0, 2), "missing": 1, **shape}, "y": (-9, 9)}, ["a"], "y")
    model = TaskModel.of("Elm", book, {"coef": np.arange(1.0, 1 + book.width)})
    table = pd.DataFrame({"a": pd.Series([1, 0, 1], dtype=kind)})
    np.testing.assert_allclose(model.to_sklearn().predict(table), model.predict(table), rtol=1e-9)


WITHOUT_US = """
import pickle, sys
sys.modules["cloister"] = None
import numpy as np
models, table, expected = pickle.load(open(sys.argv[1], "rb"))
for name, model in models.items():
    found = [model.predict(table), *([model.predict_proba(table)] if hasattr(model, "classes_") else [])]
    for one, two in zip(found, expected[name], strict=True):
        assert (one == two).all(), name
print("same")
try:
    import cloister
except ImportError:
    print("without")
"""


def test_a_pickle_of_it_needs_nothing_of_ours(exported, tmp_path):
    expected = {name: answers(model) for name, model in exported.items()}
    (tmp_path / "models.pickle").write_bytes(pickle.dumps((exported, TABLE, expected)))
    command = [sys.executable, "-c", WITHOUT_US, str(tmp_path / "models.pickle")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("same\nwithout\n", "")


def test_columns_are_found_by_name(exported):
    model = exported["plain", "number"]
    expected = model.predict(TABLE)
    np.testing.assert_array_equal(model.predict(TABLE[TABLE.columns[::-1]]), expected)
    np.testing.assert_allclose(
        model.predict(pl.from_pandas(TABLE.drop(columns="kind"))), expected, rtol=1e-12
    )
    with pytest.raises(ValueError, match="sex"):
        model.predict(TABLE.drop(columns="sex"))


def test_cells_that_the_codebook_does_not_take_are_refused(exported):
    model = exported["plain", "number"]
    for wrong in ({"sex": "X"}, {"code": 7}, {"age": np.nan}):
        with pytest.raises(ValueError, match=r"unknown categories|NaN"):
            model.predict(TABLE[:2].assign(**wrong))


def test_the_model_of_a_fit_on_an_array():
    x, school = RNG.uniform(0, 1, (60, 2)), np.repeat(np.arange(6), 10)
    model = SharedPriorRegressor(bounds={0: (0, 1), 1: (0, 1), "y": (0, 1)}, random_state=0)
    model.fit(x, x.mean(axis=1), tasks=school)
    own = model.task_model(3).to_sklearn()
    np.testing.assert_allclose(own.predict(x), model.predict(x, tasks=[3] * 60), rtol=1e-9)


def test_what_no_stock_transformer_makes_is_refused_in_a_sentence():
    book = Codebook((Date("enrolled", date(2020, 1, 1), date(2024, 1, 1)),), Numeric("y", 0, 1))
    with pytest.raises(InputError, match=r"'enrolled' is of type Date.*Use save\(path\)"):
        TaskModel.of("Elm", book, {"coef": np.zeros(2)}).to_sklearn()
    mixed = Codebook.from_mapping({"a": {"levels": [1, 2], "missing": "none"}, "y": (0, 1)}, ["a"], "y")
    with pytest.raises(InputError, match=r"cannot stand for this model.*Use save\(path\)"):
        TaskModel.of("Elm", mixed, {"coef": np.zeros(3)}).to_sklearn()


def test_without_pandas_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without(name, *rest):
        if name == "pandas":
            raise ModuleNotFoundError(name=name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"needs the package 'pandas'.*'cloister\[tables\]'"):
        task_model("plain", "number").to_sklearn()
