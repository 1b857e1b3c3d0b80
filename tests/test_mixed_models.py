"""The mixed models that stand beside ours in benchmarks: they must find effects that are there."""

from __future__ import annotations

import numpy as np
import pytest

from cloister import Tasks

pytest.importorskip("statsmodels", reason="statsmodels is not installed: the extra 'benchmarks'")

from benchmarks import mixed_models


def drawn(classes: bool, slope: float) -> tuple[Tasks, Tasks, np.ndarray]:
    """Draw 60 tasks with own intercepts, and slopes if asked; return two parts, and the second's truth."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(60), 24)
    x = rng.uniform(-1, 1, len(task))
    truth = 0.5 + rng.normal(0, 2, 60)[task] + (1 + slope * rng.normal(0, 2, 60)[task]) * x
    noise = rng.normal(0, 0.5, len(task))
    y = (rng.random(len(task)) < 1 / (1 + np.exp(-truth))).astype(float) if classes else truth + noise
    X = np.column_stack([np.ones(len(task)), x])
    train, test = Tasks.from_arrays(X, y, task).split(test=0.3, seed=0)
    _, answer = Tasks.from_arrays(X, truth, task).split(test=0.3, seed=0)
    return train, test, answer.y


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_numbers_are_predicted_by_each_tasks_own_effects(slope: float) -> None:
    train, test, truth = drawn(False, slope)
    found = mixed_models.numbers(train, test, slopes=bool(slope))
    assert found is not None
    assert np.square(found - truth).mean() < 0.045  # noise .25, 17 rows, at most two numbers a task
    if slope:  # a random intercept alone misses what tasks' slopes explain
        plain = mixed_models.numbers(train, test)
        assert plain is not None
        assert np.square(plain - truth).mean() > 0.3


def test_classes_are_predicted_by_each_tasks_own_intercept() -> None:
    train, test, truth = drawn(True, 0.0)
    found = mixed_models.log_odds(train, test)
    assert np.square(found - truth).mean() < 0.4 * truth.var()
