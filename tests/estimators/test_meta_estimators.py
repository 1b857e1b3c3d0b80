"""The faces of meta-learning: a public start, tasks that choose, and new tasks that adapt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from cloister import Tasks, replay
from cloister.app.task_model import TaskModel
from cloister.errors import InputError
from cloister.estimators import MetaClassifier, MetaRegressor, SingleTaskRegressor

M, N = 200, 6
BOUNDS = {"age": (0, 100), "sex": ["F", "M"], "target": (0, 50)}
THREE = {"age": (0, 100), "sex": ["F", "M"], "target": ["no", "perhaps", "yes"]}


def draw(count, seed, groups=1):
    """Return tasks with a common slope, or with slopes of two opposite groups."""
    rng = np.random.default_rng(seed)
    school = np.repeat([f"s{i:03d}" for i in range(count)], N)
    age, sex = rng.uniform(0, 100, count * N), rng.choice(["F", "M"], count * N)
    sign = np.where(np.arange(count) % groups, -1.0, 1.0).repeat(N)
    own = np.repeat(rng.normal(0, 1, count), N)
    score = np.clip(25 + sign * 0.4 * (age - 50) + own + rng.normal(0, 1, count * N), 0, 50)
    return pd.DataFrame({"school": school, "age": age, "sex": sex}), pd.Series(score, name="target")


@pytest.fixture(scope="module")
def fitted():
    X, y = draw(M, 0)
    return MetaRegressor("school", epsilon=2.0, bounds=BOUNDS, random_state=0).fit(X, y), X, y


def test_a_new_task_adapts_as_replay_would_have_it(fitted):
    model, X, y = fitted
    assert model.guarantee_.epsilon <= 2.0
    assert model.score(X, y) > 0.9
    new, target = draw(1, 99)
    head = model.billboard_.head
    adapted = model.adapt(new, target, task="newcomer")
    assert isinstance(adapted, TaskModel)
    assert adapted.task == "newcomer"
    rows = model.codebook_.encode({"age": new["age"].to_numpy(), "sex": new["sex"].to_numpy()})
    tasks = Tasks.from_arrays(rows, model.codebook_.encode_target(target.to_numpy()), np.zeros(N, dtype=int))
    heard = replay(model.plan_, model.billboard_, tasks)["coef"][0]
    np.testing.assert_allclose(adapted.weights, heard, atol=1e-12)
    without = model.adapt(new.drop(columns="school"), target)
    np.testing.assert_array_equal(without.weights, adapted.weights)
    assert model.billboard_.head == head


def test_few_rows_are_enough_where_others_went_before(fitted):
    model, _, _ = fitted
    errors = []
    for seed in range(100, 110):
        X, y = draw(1, seed)
        adapted, alone = model.adapt(X[:2], y[:2]), y[:2].mean()
        errors.append([np.mean((adapted.predict(X[2:]) - y[2:]) ** 2), np.mean((alone - y[2:]) ** 2)])
    adapted, alone = np.mean(errors, axis=0)
    assert adapted < alone / 5


def test_a_task_without_rows_gets_the_start_itself(fitted):
    model, X, y = fitted
    stranger = model.predict(X[:5].assign(school="zz"))
    assert np.abs(stranger - y[:5]).max() < 15  # of a range of 50
    board = model.billboard_
    units = replace(model.plan_.algorithm.units(board), target=None)
    average = units.models({"coef": board["average"][None]})["coef"][0]
    coef, intercept = model.codebook_.to_user_units(board["located_unit"] * average)
    intercept = intercept + 25 * board["located_center"]
    by_hand = intercept + np.column_stack([X["age"][:5], X["sex"][:5] == "M"]) @ coef
    np.testing.assert_allclose(stranger, by_hand)


def test_opposite_groups_want_two_starts():
    X, y = draw(M, 1, groups=2)
    new, target = draw(20, 5, groups=2)
    errors = []
    for models in (1, 2):
        model = MetaRegressor("school", epsilon=10.0, models=models, bounds=BOUNDS, random_state=0).fit(X, y)
        found = []
        for _, index in new.groupby("school").groups.items():
            adapted = model.adapt(new.loc[index[:3]], target[index[:3]])
            found.append(np.mean((adapted.predict(new.loc[index[3:]]) - target[index[3:]]) ** 2))
        errors.append(np.mean(found))
    assert errors[1] < errors[0] / 2
    assert model.predict(X[:3].assign(school="zz")).shape == (3,)  # of the start that most use


def test_classes_and_a_choice_at_home():
    X, y = draw(60, 2)
    three = np.array(THREE["target"])[np.digitize(y, [18, 32])]
    fields = {"epsilon": 3.0, "bounds": THREE, "random_state": 0, "rounds": 8}
    model = MetaClassifier("school", lam=(0.02, 0.2), **fields).fit(X, three)
    assert model.score(X, three) > 0.7
    assert model.plan_.guarantee == MetaClassifier("school", **fields).plan(60, model.codebook_).guarantee
    one = X[X["school"] == "s000"]
    adapted = model.adapt(one, three[: len(one)])
    assert set(adapted.predict(one)) <= set(THREE["target"])


def test_refusals(fitted):
    model, X, y = fitted
    with pytest.raises(InputError, match="one task"):
        model.adapt(X, y)
    with pytest.raises(InputError, match="one target for each"):
        model.adapt(X[:3].drop(columns="school"), y[:2])
    with pytest.raises(InputError, match="'auto'"):
        clone(model).set_params(lr="fast").fit(X, y)


@pytest.mark.parametrize(
    "fields",
    [
        *({"lam": lam} for lam in (0.0, -1.0, np.inf, np.nan, (0.1, 0.0))),
        *({name: value} for name in ("models", "rounds") for value in (0, 1.5, "many", None)),
        {"clip": None},
        {"tail": "half"},
    ],
)
def test_numbers_that_make_no_plan_are_refused_in_a_sentence(fields):
    X, y = draw(20, 1)
    with pytest.raises(InputError, match=f"{next(iter(fields))} must be"):
        MetaRegressor("school", bounds=BOUNDS, **fields).fit(X, y)


def test_noise_in_the_start_does_not_ruin_guarded_tasks():
    X, y = draw(20, 3)
    held, wide = np.arange(len(y)) % 3 == 0, BOUNDS | {"target": (0, 5000)}

    def error(guard):
        model = MetaRegressor("school", epsilon=0.05, bounds=wide, random_state=0, guard=guard, rounds=5)
        return np.square(model.fit(X[~held], y[~held]).predict(X[held]) - y[held]).mean()

    alone = SingleTaskRegressor("school", bounds=wide).fit(X[~held], y[~held]).predict(X[held])
    least = np.square(alone - y[held]).mean()
    assert error(True) < 1.2 * least
    assert error(False) > 10 * least
