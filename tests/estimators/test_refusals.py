"""Slips that would cost privacy, or make a promise that does not hold, are refused in a sentence."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from sklearn.base import clone

from cloister import Codebook, Ledger, Plan, SharedPriorRegressor, estimators, load, tune
from cloister.algorithms import LowRank
from cloister.errors import BudgetError, InputError, PlanError, PrivateDataError
from cloister.estimators import (
    LowRankRegressor,
    MeanRegularizedRegressor,
    PooledRegressor,
    SingleTaskRegressor,
)
from cloister.learners import LeastSquares
from cloister.mechanisms import L2Laplace
from cloister.privacy.randomness import SeededRandomness
from cloister.sampling import OnePass

RNG = np.random.default_rng(0)
X, IDS = RNG.uniform(0, 1, (120, 2)), np.repeat(np.arange(12), 10)
Y = X.mean(axis=1)
BOUNDS = {0: (0, 1), 1: (0, 1), "y": (0, 1)}


def test_a_forgotten_task_is_not_taken_for_a_model_of_ones_own():
    spent = Ledger(1.0, 1e-3)
    for settings in ({}, {"bounds": BOUNDS}, {"ledger": spent}, {"epsilon": 1.0}):
        for face in (SharedPriorRegressor, LowRankRegressor, PooledRegressor):
            fitting = face(**{k: v for k, v in settings.items() if k in face().get_params()})
            with pytest.raises(InputError, match=r"task=, or pass one id a row.*use SingleTaskRegressor"):
                fitting.fit(X, Y)
    assert not spent.history
    model = SharedPriorRegressor(bounds=BOUNDS, random_state=0).fit(X, Y, tasks=IDS)
    with pytest.raises(InputError, match="Got neither"):
        model.predict(X)
    with pytest.raises(InputError, match="for several tasks"):
        SingleTaskRegressor(bounds=BOUNDS).fit(X, Y)


def test_persons_are_not_taken_for_protected_where_tasks_are():
    with pytest.raises(InputError, match=r"unit=Unit.person\(rows, most\), or leave person out"):
        SharedPriorRegressor(bounds=BOUNDS).fit(X, Y, tasks=IDS, person=IDS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", "1"),
        ("delta", "small"),
        ("random_state", np.random.default_rng(0)),
        ("ledger", "l.ledger"),
    ],
)
def test_parameters_of_the_wrong_kind(name, value):
    with pytest.raises(InputError, match=f"{name} must be"):
        SharedPriorRegressor(bounds=BOUNDS).set_params(**{name: value}).fit(X, Y, tasks=IDS)


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        ("score", "X has no column 'score' with the targets. It is an array, without names"),
        (None, "y must be one column.*Got a single NoneType"),
        (Y[:, None], r"y must be one column.*Got shape \(120, 1\).*y\[:, 0\]"),
    ],
)
def test_targets_that_are_no_column(y, sentence):
    with pytest.raises(InputError, match=sentence):
        SharedPriorRegressor(bounds=BOUNDS).fit(X, y, tasks=IDS)


@pytest.mark.parametrize(
    ("X", "y", "more", "sentence"),
    [
        (X[:0], Y[:0], {"tasks": IDS[:0]}, "X must have rows to fit. Got none."),
        (X, Y, {"sample_weight": "age"}, "one number a row. Got 'age'. Pass a column of numbers itself."),
        (X, Y, {"sample_weight": ["a"] * 120}, "one number a row. Got entries that are no numbers."),
        (X, Y, {"journal": 3}, "journal must be the path of a folder. Got 3. Write journal="),
        ({0: X[:, 0], "0": X[:, 1]}, Y, {}, "a name of its own. Got '0' more than once. Rename or drop"),
    ],
)
def test_arguments_of_fit_of_the_wrong_kind(X, y, more, sentence):
    spent = Ledger(1.0, 1e-3)
    with pytest.raises(InputError, match=sentence):
        SharedPriorRegressor(bounds=BOUNDS, ledger=spent).fit(X, y, **{"tasks": IDS, **more})
    assert not spent.history


@pytest.mark.parametrize("library", ["pandas", "pyarrow"])
def test_a_column_that_is_there_twice(library):
    module = pytest.importorskip(library)
    if library == "pandas":
        table = module.DataFrame(X, columns=["age", "age"])
    else:
        table = module.Table.from_arrays([module.array(X[:, 0]), module.array(X[:, 1])], ["age", "age"])
    for y in (Y, "age"):
        with pytest.raises(InputError, match="Got 'age' more than once"):
            SharedPriorRegressor(bounds=BOUNDS).fit(table, y, tasks=IDS)


def test_rows_of_other_tasks_are_not_predicted_by_one_tasks_model():
    table = {"school": IDS, "a": X[:, 0], "b": X[:, 1]}
    bounds = {"a": (0, 1), "b": (0, 1), "score": (0, 1)}
    fitted = SharedPriorRegressor("school", bounds=bounds, random_state=0).fit(table, Y)
    own = {name: column[30:40] for name, column in table.items()}
    bare = {name: own[name] for name in "ab"}
    for model in (fitted.task_model(3), fitted.replay(own, Y[30:40])):
        np.testing.assert_allclose(model.predict(own), fitted.predict(own))
        np.testing.assert_array_equal(model.predict(bare), model.predict(own))
        with pytest.raises(InputError, match=r"the model of task '3', but column 'school' names other tasks"):
            model.predict(table)
    with pytest.raises(InputError, match=r"missing \['b'\], unknown \[\]\. Add what is missing"):
        fitted.predict({"school": IDS, "a": X[:, 0]})


def test_bounds_by_name_of_an_array():
    with pytest.raises(InputError, match=r"columns have no names\. Got bounds of \['age'\].*\['x0', 'x1'\]"):
        SharedPriorRegressor(bounds={0: (0, 1), "age": (0, 1), "y": (0, 1)}).fit(X, Y, tasks=IDS)


def test_a_target_among_the_features():
    table = {"a": X[:, 0], "b": X[:, 1], "score": Y}
    bounds = {"a": (0, 1), "b": (0, 1), "score": (0, 1)}
    book = Codebook.from_mapping(bounds, ["a", "b"], target="score")
    with pytest.raises(InputError, match="X has the target's column 'score' among its features"):
        SharedPriorRegressor(bounds=book).fit(table, Y, tasks=IDS)
    with pytest.raises(InputError, match=r"no column 'scores' with the targets\. It has: a, b, score"):
        SharedPriorRegressor(bounds=book).fit(table, "scores", tasks=IDS)


def test_missing_values_at_predict_name_the_task():
    model = SharedPriorRegressor(bounds=BOUNDS, random_state=0).fit(X, Y, tasks=IDS)
    with pytest.raises(InputError, match="Row 1, of task 3, has a missing value"):
        model.predict([[0.1, np.nan]], tasks=[3])


@pytest.mark.parametrize("model", [SharedPriorRegressor(bounds=BOUNDS), SingleTaskRegressor()])
def test_missing_targets_are_named_and_counted_with_what_to_type(model):
    holes = np.where(np.isin(np.arange(len(Y)), (2, 5)), np.nan, Y)
    sentence = (
        rf"Row 3, of task {IDS[2]}, has .* \(the first of 2 rows\).*X\[keep\], y\[keep\] and tasks\[keep\]"
    )
    with pytest.raises(PrivateDataError, match=rf"{sentence}.*keep = (~np\.isnan|np\.isfinite)\(y\)"):
        model.fit(X, holes, tasks=IDS)


def test_missing_features_of_arrays_and_frames_are_left_out_by_what_is_there():
    holes = np.where(np.arange(len(X))[:, None] == 2, [0.5, np.nan], X)
    with pytest.raises(PrivateDataError, match=r"Row 3, .*tasks\[keep\], keep = np\.isfinite\(X\[:, 1\]\)"):
        SingleTaskRegressor().fit(holes, Y, tasks=IDS)
    with pytest.raises(PrivateDataError, match=r"Row 3, .*df\.dropna\(subset=\['b'\]\)"):
        SingleTaskRegressor().fit({"a": holes[:, 0], "b": holes[:, 1]}, Y, tasks=IDS)


def test_saving_never_overwrites_unless_forced(tmp_path):
    model = LowRankRegressor(bounds=BOUNDS, rounds=2, random_state=0).fit(X, Y, tasks=IDS)
    model.save(tmp_path / "run")
    with pytest.raises(InputError, match="is already there"):
        model.save(tmp_path / "run")
    model.save(tmp_path / "run", force=True)


def test_a_voted_model_is_saved_with_the_price_of_the_choice(tmp_path):
    ledger = Ledger(5.0, 1e-3)
    grid = [MeanRegularizedRegressor(lam=lam, bounds=BOUNDS, rounds=2, random_state=0) for lam in (0.0, 0.5)]
    best, choice = tune.fit_best(grid, X, Y, tasks=IDS)
    again = load(best.save(tmp_path / "run"))
    assert again.guarantee_ == best.guarantee_ == choice.guarantee
    assert again.guarantee_.epsilon > again.plan_.guarantee.epsilon
    np.testing.assert_array_equal(again.coef_, best.coef_)
    with pytest.raises(InputError, match="Leave sampling out"):
        tune.fit_best([grid[0].set_params(sampling=OnePass()), grid[1]], X, Y, tasks=IDS)
    grid[0].set_params(sampling=None)
    with pytest.raises(InputError, match="same ledger"):
        tune.fit_best([grid[0], grid[1].set_params(ledger=ledger)], X, Y, tasks=IDS)
    assert not ledger.history


def test_a_ledger_checks_its_numbers():
    with pytest.raises(BudgetError, match="epsilon > 0"):
        Ledger(-1.0, 1e-3)
    with pytest.raises(PlanError, match="at most 1/12"):
        SharedPriorRegressor(bounds=BOUNDS, ledger=Ledger(5.0, 0.5)).fit(X, Y, tasks=IDS)


def test_pure_noise_needs_no_delta_and_other_noise_does():
    algorithm = LowRank(LeastSquares(3), rounds=2)
    plan = Plan(algorithm, L2Laplace(), n_tasks=50, delta=0.0).calibrate(2.0)
    assert plan.guarantee.delta == 0
    assert 1.99 < plan.guarantee.epsilon <= 2.0
    with pytest.raises(PlanError, match="delta must be above 0"):
        Plan(algorithm, n_tasks=50, delta=0.0)


def test_what_is_said_about_noise_is_true():
    loud = SharedPriorRegressor(bounds=BOUNDS, epsilon=float("inf")).fit(X, Y, tasks=IDS)
    assert "Noise: none" in str(loud.guarantee_)
    assert "Noise" not in str(SingleTaskRegressor().fit(X, Y).guarantee_)


def test_a_tasks_seed_does_not_give_away_the_noise():
    assert SeededRandomness(7).task_seeds(["a"])[0] != 7


@pytest.mark.parametrize("name", sorted(set(estimators.__all__) - {"FewShotModel"}))
def test_parameters_are_keywords_and_survive_a_clone(name):
    if name == "FewShotClassifier":
        pytest.importorskip("torch", reason="needs the extra torch")
    kind = getattr(estimators, name)
    first, *others = inspect.signature(kind).parameters.values()
    assert first.name == ("net" if name == "FewShotClassifier" else "task")
    assert {p.kind for p in others} == {inspect.Parameter.KEYWORD_ONLY}
    changed = clone(kind().set_params(**{others[0].name: 0.25}))
    assert repr(changed) == f"{name}({others[0].name}=0.25)"
    assert changed != clone(changed)  # by identity, as scikit-learn's own


def test_a_plan_for_targets_of_the_other_kind_is_refused_as_the_fit_is():
    numbers = Codebook.from_mapping({"age": (0, 1), "y": (0, 1)}, ["age"], "y")
    classes = Codebook.from_mapping({"age": (0, 1), "y": ["a", "b"]}, ["age"], "y")
    with pytest.raises(InputError, match=r"target has classes\. Use SharedPriorClassifier\."):
        SharedPriorRegressor().plan(100, classes)
    with pytest.raises(InputError, match=r"target is a number\. Use LowRankRegressor, or list classes\."):
        estimators.LowRankClassifier().plan(100, numbers)
    grid = [SharedPriorRegressor(bounds=BOUNDS), estimators.LowRankClassifier(bounds=BOUNDS)]
    with pytest.raises(InputError, match=r"target is a number\. Use LowRankRegressor"):
        tune.fit_best(grid, X, Y, tasks=IDS)
