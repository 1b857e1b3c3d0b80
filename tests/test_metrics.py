"""Scores by task, against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score

from cloister.errors import InputError
from cloister.metrics import average_auc, nmse, per_task, spread

RNG = np.random.default_rng(0)
Y, P, TASKS = RNG.normal(size=60), RNG.normal(size=60), RNG.permutation(np.repeat(["c", "a", "b"], 20))


def test_nmse_is_one_minus_r2():
    assert nmse(Y, P) == pytest.approx(1 - r2_score(Y, P))
    assert nmse(Y, np.full(60, Y.mean())) == pytest.approx(1.0)
    each = [1 - r2_score(Y[t == TASKS], P[t == TASKS]) for t in "abc"]
    assert nmse(Y, P, TASKS) == pytest.approx(np.mean(each))


def test_nmse_leaves_out_tasks_that_do_not_vary():
    y = np.where(TASKS == "a", 3.0, Y)
    assert nmse(y, P, TASKS) == pytest.approx(
        np.mean([1 - r2_score(Y[t == TASKS], P[t == TASKS]) for t in "bc"])
    )
    with pytest.raises(InputError, match="no task has targets that vary"):
        nmse(np.ones(4), np.ones(4), [1, 1, 2, 2])


def test_auc_is_averaged_over_tasks_with_both_classes():
    y = (Y > 0).astype(int)
    each = {t: roc_auc_score(y[t == TASKS], P[t == TASKS]) for t in "abc"}
    assert average_auc(y, P, TASKS) == pytest.approx(np.mean(list(each.values())))
    y[TASKS == "b"] = 1
    assert average_auc(y, P, TASKS) == pytest.approx((each["a"] + each["c"]) / 2)
    with pytest.raises(InputError, match="no task has rows of both classes"):
        average_auc([1, 1], [0.2, 0.3], ["a", "b"])


def test_any_metric_per_task():
    ids, scores = per_task(mean_absolute_error, Y, P, TASKS)
    assert ids.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(scores, [np.abs(Y - P)[t == TASKS].mean() for t in "abc"])
    order = RNG.permutation(60)
    np.testing.assert_allclose(per_task(mean_absolute_error, Y[order], P[order], TASKS[order])[1], scores)


def test_rows_must_match():
    with pytest.raises(InputError, match="one entry a row"):
        nmse([1.0, 2.0], [1.0])
    with pytest.raises(InputError, match="one entry a row, and at least one row"):
        nmse([], [])
    with pytest.raises(InputError, match="y has 2 rows, tasks 1"):
        nmse([1.0, 2.0], [1.0, 2.0], ["a"])


def test_the_spread_over_tasks():
    scores = np.append(RNG.permutation(np.arange(1.0, 22.0)), np.nan)
    result = spread(scores)
    assert (result.n_tasks, result.mean, result.median) == (21, 11.0, 11.0)
    assert result.worst_decile == 2.0  # a tenth of 21, rounded up: 1, 2 and 3
    assert (result.low, result.high) == (pytest.approx(3.0), pytest.approx(19.0))
    assert result.deviation == pytest.approx(np.sqrt((21**2 - 1) / 12))
    assert str(result).startswith("private diagnostics: not private, keep at home\n21 tasks: mean 11, worst")
    assert spread([0.5]).worst_decile == 0.5
    with pytest.raises(InputError, match="no task has a score"):
        spread([np.nan])
    for bad in ([[1.0]], [1.0, np.inf]):
        with pytest.raises(InputError, match="one finite score a task"):
            spread(bad)
