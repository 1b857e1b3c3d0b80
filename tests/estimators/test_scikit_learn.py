"""scikit-learn manners: classes, names of columns, tables of every kind, metadata, searches, notebooks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.metrics import get_scorer, roc_auc_score

from cloister import SharedPriorClassifier, SharedPriorRegressor, load
from cloister.estimators import LowRankClassifier

TASKS, ROWS = 24, 8
BOUNDS = {"age": (0, 100), "sex": ["F", "M"], "score": (0, 50)}


def pupils(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    n = TASKS * ROWS
    table = pd.DataFrame({"school": np.repeat([f"s{i:02d}" for i in range(TASKS)], ROWS)})
    table["age"], table["sex"] = rng.uniform(0, 100, n), rng.choice(["F", "M"], n)
    table["score"] = np.clip(0.4 * table["age"] + rng.normal(0, 2, n), 0, 50)
    return table


PUPILS = pupils()
MARK = np.array(["low", "middle", "high"])[np.digitize(PUPILS["score"], [13, 26])]
GRADE = np.where(PUPILS["score"] > 20, "high", "low")
X = PUPILS[["school", "age", "sex"]]


@pytest.fixture(scope="module")
def fitted() -> SharedPriorRegressor:
    return SharedPriorRegressor("school", epsilon=4.0, bounds=BOUNDS, random_state=0).fit(PUPILS, "score")


@pytest.mark.parametrize(
    ("goal", "listed"), [(GRADE, ["low", "high"]), (MARK, ["low", "middle", "high"])], ids=["two", "three"]
)
def test_classes_are_sorted_whatever_the_order_of_the_codebook(goal, listed):
    """Scorers take the second of `classes_` for the positive one; models keep the order of the codebook."""
    bounds = {"age": (0, 100), "sex": ["F", "M"], "target": listed}
    model = SharedPriorClassifier("school", epsilon=8.0, bounds=bounds, random_state=0).fit(X, goal)
    assert model.classes_.tolist() == sorted(listed)
    chances = model.predict_proba(X)
    np.testing.assert_array_equal(model.predict(X), model.classes_[chances.argmax(axis=1)])
    assert model.score(X, goal) > 0.7
    own = model.task_model("s03")
    mine = X[X["school"] == "s03"]
    assert own.codebook.target.levels == tuple(listed)
    columns = [listed.index(level) for level in sorted(listed)]
    np.testing.assert_allclose(model.predict_proba(mine), own.predict_proba(mine)[:, columns], rtol=1e-12)
    scores = np.column_stack([mine["age"], mine["sex"] == "M"]) @ np.atleast_2d(model.coef_[3]).T
    scores = np.exp(np.column_stack([np.zeros(ROWS), scores + model.intercept_[3]]))
    by_hand = scores / scores.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(mine), by_hand, rtol=1e-9)
    auc = get_scorer("roc_auc" if len(listed) == 2 else "roc_auc_ovr")(model, X, goal)
    high = roc_auc_score(goal == "high", chances[:, 0])
    assert auc > 0.85
    assert high > 0.85


def test_equally_likely_classes_are_the_same_on_every_way():
    """A board without a model says that all classes are as likely: the codebook's first, sorted or not."""
    bounds = {"age": (0, 100), "sex": ["F", "M"], "target": ["low", "high"]}
    model = LowRankClassifier("school", bounds=bounds, rounds=2, random_state=0).fit(X, GRADE)
    stranger = X[:2].assign(school="nobody")
    assert model.predict_proba(stranger).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert model.predict(stranger).tolist() == model._fitted.predict(stranger).tolist() == ["low", "low"]


def _plain(table: pd.DataFrame, *_: object) -> np.ndarray:
    codes = {"F": 0.0, "M": 1.0}
    return table.assign(school=table["school"].str[1:].astype(int), sex=table["sex"].map(codes)).to_numpy(
        float
    )


@pytest.mark.parametrize(
    "kind",
    [pd.DataFrame, pl.from_pandas, pa.Table.from_pandas, lambda table: table.to_dict("list"), _plain],
    ids=["pandas", "polars", "pyarrow", "dict", "numpy"],
)
def test_every_kind_of_table_is_fitted_predicted_saved_and_loaded(kind, fitted, tmp_path):
    rows, again = kind(X), None
    if kind is _plain:
        bounds = {1: (0, 100), 2: [0.0, 1.0], "y": (0, 50)}
        model = SharedPriorRegressor(0, epsilon=4.0, bounds=bounds, random_state=0)
        model.fit(rows, PUPILS["score"].to_numpy())
    else:
        model = SharedPriorRegressor("school", epsilon=4.0, bounds=BOUNDS, random_state=0)
        model.fit(kind(PUPILS), "score")
        np.testing.assert_array_equal(
            model.predict(kind(PUPILS)), model.predict(rows)
        )  # its target is not seen
        assert model.score(kind(PUPILS), "score") == model.score(rows, PUPILS["score"]) > 0.8
    np.testing.assert_allclose(model.coef_, fitted.coef_, rtol=1e-9)
    again = load(model.save(tmp_path / "run"))
    np.testing.assert_array_equal(again.predict(rows), model.predict(rows))
    np.testing.assert_array_equal(again.get_feature_names_out(), model.get_feature_names_out())


def test_columns_of_coefficients_have_names(fitted):
    assert fitted.get_feature_names_out().tolist() == ["age", "sex[M]"]
    assert fitted.get_feature_names_out(["age", "sex"]).shape == fitted.coef_.shape[1:]
    with pytest.raises(ValueError, match="input_features is not equal to feature_names_in_"):
        fitted.get_feature_names_out(["sex", "age"])
