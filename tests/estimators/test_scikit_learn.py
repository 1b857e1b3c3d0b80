"""scikit-learn manners: classes, names of columns, tables of every kind, metadata, searches, notebooks."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from sklearn import config_context
from sklearn.base import clone
from sklearn.ensemble import StackingRegressor
from sklearn.linear_model import LinearRegression
from sklearn.metrics import get_scorer, roc_auc_score
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from cloister import Ledger, Plan, SharedPriorClassifier, SharedPriorRegressor, Tasks, estimators, load, run
from cloister.algorithms import Independent
from cloister.engines import TaskStream
from cloister.errors import InputError
from cloister.estimators import LowRankClassifier, MeanRegularizedRegressor, SingleTaskRegressor
from cloister.estimators.class_weights import WeighsClasses
from cloister.learners import Regression
from cloister.ledger.charges import exposure

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
    assert model.predict(stranger).tolist() == model.run_.predict(stranger).tolist() == ["low", "low"]


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
    within = make_pipeline(FunctionTransformer(feature_names_out="one-to-one"), clone(fitted))
    assert within.fit(PUPILS, "score").get_feature_names_out().tolist() == ["age", "sex[M]"]
    with pytest.raises(ValueError, match="input_features is not equal to feature_names_in_"):
        fitted.get_feature_names_out(["sex", "age"])


def test_targets_that_lost_their_name_are_found_in_the_bounds(fitted):
    """Stacking and voting pass y on as an array; bounds that name one column beside the features mean it."""
    again = clone(fitted).fit(X, PUPILS["score"].to_numpy())
    assert again.codebook_ == fitted.codebook_
    with pytest.raises(InputError, match=r"Missing: \['target'\]"):
        clone(fitted).set_params(bounds=BOUNDS | {"hair": (0, 1)}).fit(X, PUPILS["score"].to_numpy())
    stacked = StackingRegressor(
        [("one", clone(fitted))], LinearRegression(), cv=KFold(2, shuffle=True, random_state=0)
    )
    assert stacked.fit(X, PUPILS["score"]).score(X, PUPILS["score"]) > 0.8


# Metadata ---------------------------------------------------------------------------------------------------

ROWS_ONLY = X[["age"]].to_numpy()
SCORE, SCHOOL = PUPILS["score"].to_numpy(), np.repeat(np.arange(TASKS), ROWS)
WEIGHT = np.where(np.arange(len(X)) % 3 == 0, 2.0, 1.0)
BESIDE = {0: (0, 100), "y": (0, 50)}


def quick(**parameters) -> MeanRegularizedRegressor:
    return MeanRegularizedRegressor(**{"bounds": BESIDE, "rounds": 2, "epsilon": 8.0} | parameters)


@pytest.mark.skipif(
    sklearn.__version__.startswith("1.8."),
    reason="it copies fitted estimators to route their metadata",
)
def test_metadata_is_routed_through_pipelines_and_searches():
    """Task ids and weights that are asked for arrive, in the fits, the scores and the predictions."""
    by_hand = quick(random_state=0).fit(ROWS_ONLY, SCORE, tasks=SCHOOL, sample_weight=WEIGHT)
    with config_context(enable_metadata_routing=True):
        asking = quick(random_state=0).set_fit_request(tasks=True, sample_weight=True)
        asking.set_predict_request(tasks=True).set_score_request(tasks=True, sample_weight=True)
        beside = {"tasks": SCHOOL, "sample_weight": WEIGHT}
        pipeline = make_pipeline(FunctionTransformer(), asking).fit(ROWS_ONLY, SCORE, **beside)
        np.testing.assert_array_equal(
            pipeline.predict(ROWS_ONLY, tasks=SCHOOL), by_hand.predict(ROWS_ONLY, SCHOOL)
        )
        assert pipeline.score(ROWS_ONLY, SCORE, **beside) == by_hand.score(ROWS_ONLY, SCORE, WEIGHT, SCHOOL)
        cv = KFold(2, shuffle=True, random_state=0)
        grid = {"meanregularizedregressor__lam": [0.05, 0.5]}
        search = GridSearchCV(pipeline, grid, cv=cv, error_score="raise").fit(ROWS_ONLY, SCORE, **beside)
        train, test = next(cv.split(ROWS_ONLY))
        one = quick(random_state=0).fit(ROWS_ONLY[train], SCORE[train], SCHOOL[train], WEIGHT[train])
        expected = one.score(ROWS_ONLY[test], SCORE[test], WEIGHT[test], SCHOOL[test])
        assert search.cv_results_["split0_test_score"][0] == pytest.approx(expected, rel=1e-12)
        assert "journal" not in str(asking.get_metadata_routing())  # a folder is one run's


def test_groups_of_folds_and_groups_of_tasks_have_a_name_each():
    district = np.where(SCHOOL % 2, "north", "south")
    with config_context(enable_metadata_routing=True):
        model = SharedPriorRegressor(bounds=BESIDE, random_state=0).set_fit_request(
            tasks=True, groups="district"
        )
        model.set_score_request(tasks=True)
        beside = {"tasks": SCHOOL, "district": district, "groups": SCHOOL}
        found = cross_validate(
            model,
            ROWS_ONLY,
            SCORE,
            params=beside,
            cv=GroupKFold(2),
            return_estimator=True,
            error_score="raise",
        )
    assert [len(one.task_ids_) for one in found["estimator"]] == [TASKS // 2] * 2
    assert all(one.plan_.algorithm.groups is not None for one in found["estimator"])


# Searches and ledgers ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:These tasks have now been charged")
@pytest.mark.parametrize("by", ["rows", "groups"])
def test_every_clone_of_a_search_is_charged(by):
    """Two settings, three folds and the refit are seven charges, each for the tasks that were in it."""
    ledger = Ledger(epsilon=100.0, delta=1e-3)
    cv = KFold(3, shuffle=True, random_state=0) if by == "rows" else GroupKFold(3)
    model = quick(task=0, bounds={1: (0, 100), "y": (0, 50)}, delta=1e-3, ledger=ledger)
    table = np.column_stack([SCHOOL, ROWS_ONLY])
    search = GridSearchCV(model, {"lam": [0.05, 0.5]}, cv=cv, error_score="raise")
    search.fit(table, SCORE, groups=None if by == "rows" else SCHOOL)
    assert clone(model).ledger is search.best_estimator_.ledger is ledger
    book = search.best_estimator_.codebook_
    in_fold = TASKS if by == "rows" else TASKS * 2 // 3
    fold, whole = (
        exposure(model.plan(tasks, book).cost_under(ledger.relation)) for tasks in (in_fold, TASKS)
    )
    assert len(ledger.history) == 7
    assert ledger.balance.squares == pytest.approx(6 * fold**2 + whole**2, rel=1e-9)
    assert ledger.spent > 2 * search.best_estimator_.guarantee_.epsilon


@pytest.mark.filterwarnings("default:These tasks have now been fitted")
def test_fits_of_the_same_tasks_without_a_ledger_are_warned_of():
    """From the second on; not of other tasks, or of a fit that promises nothing or spends nothing."""
    school = np.char.add("warned ", SCHOOL.astype(str))  # tasks of no other test
    rows, model = ROWS_ONLY, quick()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        quick(random_state=0).fit(rows, SCORE, tasks=school)
        SingleTaskRegressor(bounds=BESIDE).fit(rows, SCORE, tasks=school)
        model.fit(rows, SCORE, tasks=school)
        model.fit(rows, SCORE, tasks=np.char.add("other ", school))
        assert not said
        clone(model).set_params(lam=0.5).fit(rows, SCORE, tasks=school)
    assert ["fitted 2 times without a ledger" in str(one.message) for one in said] == [True]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:These tasks have now been charged")
def test_a_search_in_several_processes_spends_from_one_file(tmp_path):
    ledger = Ledger.create(tmp_path / "l.ledger", "schools", epsilon=100.0, delta=1e-3, n_tasks=TASKS)
    model = quick(task=0, bounds={1: (0, 100), "y": (0, 50)}, delta=1e-3, ledger=ledger)
    cv = KFold(2, shuffle=True, random_state=0)
    search = GridSearchCV(model, {"lam": [0.05, 0.5]}, cv=cv, error_score="raise", n_jobs=2)
    search.fit(np.column_stack([SCHOOL, ROWS_ONLY]), SCORE)
    assert len(ledger.history) == 5


# Pickles ----------------------------------------------------------------------------------------------------


def test_one_rule_for_what_is_pickled(fitted, tmp_path):
    """What holds the models of more than one task is not; what is public, unfitted or one task's own is."""
    tasks = Tasks.from_arrays(np.c_[np.ones(6), np.arange(6.0)], np.arange(6.0), np.arange(6) % 2)
    both = run(Plan(Independent(Regression(2)), n_tasks=2), tasks)
    one = run(Plan(Independent(Regression(2)), n_tasks=1), tasks.select([0]))
    public = load(fitted.save(tmp_path / "public", models=False))
    searched = GridSearchCV(fitted, {"epsilon": [1.0]})
    searched.best_estimator_ = fitted
    for everyones in (fitted, fitted.run_, both, both.private, make_pipeline(fitted), searched):
        for copying in (pickle.dumps, copy.deepcopy):
            with pytest.raises(InputError, match="holds every task's model, so it is not pickled whole"):
                copying(everyones)
    own = SingleTaskRegressor().fit(ROWS_ONLY, SCORE)
    parts = (fitted.plan_, fitted.billboard_, fitted.guarantee_, fitted.codebook_, fitted.task_model("s03"))
    for harmless in (clone(fitted), public, own, one, *parts):
        again = pickle.loads(pickle.dumps(harmless))
        assert type(again) is type(harmless)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(public)).predict(X), public.predict(X))
    assert own.predict(ROWS_ONLY)[0] == pickle.loads(pickle.dumps(own)).predict(ROWS_ONLY)[0]
    with pytest.raises(InputError, match=r"A stream .* is not pickled\. Give it a journal"):
        pickle.dumps(TaskStream.__new__(TaskStream))


# Notebooks --------------------------------------------------------------------------------------------------


def test_notebooks_show_the_diagram_and_the_public_facts_and_nothing_of_any_task(fitted):
    """Warnings are errors here: scikit-learn's reader of docstrings must not stumble over ours."""
    with config_context(display="diagram"):
        assert "guarantee" not in clone(fitted)._repr_html_()
        alone = fitted._repr_mimebundle_()["text/html"]
        within = make_pipeline(FunctionTransformer(), fitted)._repr_html_()
    assert f"<td>{TASKS}, each with a model of its own" in alone
    assert "<th>guarantee</th><td>DOES NOT HOLD (the noise is drawn from a seed" in alone
    for shown in (alone, within):
        assert "SharedPriorRegressor" in shown
        assert "coef_" not in shown
        assert "intercept_" not in shown


# Classes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [name for name in estimators.__all__ if not name.startswith(("FewShot", "Several"))]
)
def test_an_estimator_is_its_parameters_and_an_algorithm(name):
    """Between it and scikit-learn's classes there is one for its family, and one for all.

    Some classifiers weigh classes, which numbers have none of.
    """
    kind = getattr(estimators, name)
    ours = [each for each in kind.__mro__[1:] if each.__module__.startswith("cloister.")]
    assert len([each for each in ours if each is not WeighsClasses]) == 2
    own = [each for each in vars(kind) if not each.startswith(("__", "set_", "_abc"))]
    assert set(own) <= {"_kind", "score", "class_weight"}  # a leaf says what it is
    numbers, classes = (
        getattr(estimators, name.replace("Regressor", end).replace("Classifier", end))().get_params()
        for end in ("Regressor", "Classifier")
    )
    assert numbers == {key: value for key, value in classes.items() if key != "class_weight"}


def test_what_only_numbers_or_classes_have():
    assert hasattr(MeanRegularizedRegressor(), "predict_interval")
    assert not hasattr(MeanRegularizedRegressor(), "predict_proba")
    assert hasattr(LowRankClassifier(), "predict_proba")
    assert not hasattr(LowRankClassifier(), "predict_interval")
    bounds = {"age": (0, 100), "sex": ["F", "M"], "target": ["low", "high"]}
    model = LowRankClassifier("school", bounds=bounds, rounds=2, random_state=0).fit(X, GRADE)
    with pytest.raises(InputError, match=r"Classes have no standard deviation\. Use predict_proba\."):
        model.predict(X, return_std=True)
