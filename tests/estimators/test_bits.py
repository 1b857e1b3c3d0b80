"""A task's own model is the same to the last bit, whoever is beside it and however many rows they have."""

from __future__ import annotations

import numpy as np
import pytest

import cloister as cl

SIZES = (1, 2, 3, 5, 9)


def table(kind: str, tasks: int = 15, columns: int = 9):
    """Return rows in bounds that a search narrows, outcomes of a kind, and tasks of few and of many rows."""
    rng = np.random.default_rng(1)
    task = np.repeat(np.arange(tasks), np.resize(SIZES, tasks))
    X = rng.uniform(4, 6, (len(task), columns))
    score = (X - 5) @ rng.normal(size=columns) + 0.3 * rng.normal(size=tasks)[task]
    outcome, limits = {
        "number": (score + rng.normal(0, 0.3, len(task)), (-100, 100)),
        "count": (rng.poisson(np.exp(score)), {"kind": "count", "bounds": [0, 200]}),
        "classes": ((score + rng.logistic(size=len(task)) > 0).astype(int), [0, 1]),
        "ordered": (
            np.digitize(score + rng.logistic(size=len(task)), [-1, 1]),
            {"kind": "ordered", "classes": [0, 1, 2]},
        ),
    }[kind]
    return X, outcome, task, {**dict.fromkeys(range(columns), (0, 100)), "y": limits}


@pytest.mark.parametrize("kind", ["number", "count", "classes", "ordered"])
def test_a_task_alone_has_the_model_that_it_has_among_others(kind):
    X, y, task, book = table(kind)
    family = cl.SharedPriorRegressor if kind in ("number", "count") else cl.SharedPriorClassifier
    run = family(bounds=book, epsilon=20.0, random_state=0).fit(X, y, tasks=task).run_
    tasks = cl.Tasks.from_arrays(run.codebook.encode(X), run.codebook.encode_target(y), task)
    together = cl.replay(run.plan, run.board, tasks)
    for at in range(len(SIZES)):  # one of each size
        alone = cl.replay(run.plan, run.board, tasks.select(np.array([at])))
        for name, array in alone.items():
            np.testing.assert_array_equal(array[0], together[name][at], err_msg=f"{name} of task {at}")
