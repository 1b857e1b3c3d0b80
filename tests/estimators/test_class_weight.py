"""Weights of classes: as rows that are repeated, public, and the same wherever a model is computed."""

from __future__ import annotations

import numpy as np
import pytest

import cloister as cl
from cloister.errors import InputError
from cloister.estimators import SharedPriorClassifier, SingleTaskClassifier

RNG = np.random.default_rng(0)
TASK = np.repeat(np.arange(40), 10)
X = {"x": RNG.uniform(-1, 1, 400)}
Y = RNG.random(400) < 1 / (1 + np.exp(2 - 2 * X["x"]))


@pytest.mark.parametrize("goal", [[False, True], {"kind": "ordered", "classes": [0, 1, 2]}])
def test_a_weight_is_so_many_rows(goal):
    bounds = {"x": (-1, 1), "y": goal}
    y = Y if isinstance(goal, list) else Y + (X["x"] > 0.5)
    weights = [1.0, 5.0] if isinstance(goal, list) else [1.0, 5.0, 2.0]
    weighed = SingleTaskClassifier(bounds=bounds, class_weight=weights).fit(X, y, TASK)
    plain = SingleTaskClassifier(bounds=bounds).fit(X, y, TASK, np.array(weights)[y.astype(int)])
    np.testing.assert_allclose(weighed.coef_, plain.coef_, rtol=1e-9)


def test_replay_and_a_folder_know_it_from_the_plan(tmp_path):
    bounds = {"x": (-1, 1), "y": [False, True]}
    model = SharedPriorClassifier(bounds=bounds, epsilon=4.0, random_state=0, class_weight={True: 5})
    model.fit(X, Y, TASK)
    plain = SharedPriorClassifier(bounds=bounds, epsilon=4.0, random_state=0).fit(X, Y, TASK)
    assert model.predict_proba(X, TASK)[:, 1].mean() > 0.1 + plain.predict_proba(X, TASK)[:, 1].mean()
    assert plain.plan_.fingerprint != model.plan_.fingerprint
    own = model.replay({"x": X["x"][:10]}, Y[:10])
    np.testing.assert_allclose(own.weights, model.task_model(0).weights, rtol=1e-9)
    model.save(tmp_path / "run")
    assert cl.load(tmp_path / "run").plan_.fingerprint == model.plan_.fingerprint


@pytest.mark.parametrize(
    ("given", "word"),
    [("balanced", "private"), ({"x": 1}, "classes are"), ([1.0], "2 numbers"), ([1, -1], "> 0")],
)
def test_what_is_no_weight_is_refused(given, word):
    model = SharedPriorClassifier(bounds={"x": (-1, 1), "y": [False, True]}, class_weight=given)
    with pytest.raises(InputError, match=word):
        model.fit(X, Y, TASK)
