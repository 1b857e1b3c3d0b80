"""Overlap: counted exactly, priced as a group, and told."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from cloister import Plan, Tasks
from cloister.algorithms import MeanRegularized
from cloister.channel import Relation
from cloister.errors import InputError
from cloister.learners import LeastSquares
from cloister.plan.overlap import Overlap, overlap
from cloister.privacy import tradeoff
from cloister.sampling import Poisson

ROWS = [[[1.0, 2.0], [3.0, 4.0]], [[3.0, 4.0], [3.0, 4.0], [0.0, 9.0]], [[1.0, 4.0], [3.0, 4.0], [-0.0, 9.0]]]


def made_up() -> Tasks:
    return Tasks.from_list(ROWS, [[0.0] * len(rows) for rows in ROWS])


def plan(sampling=None) -> Plan:
    algorithm = MeanRegularized(LeastSquares(2), rounds=4)
    given = {} if sampling is None else {"sampling": sampling}
    return Plan(algorithm, n_tasks=50, relation=Relation.ZERO_OUT, delta=1e-3, **given).calibrate(1.0)


def test_counts_are_exact():
    """[3, 4] is in all three tasks, twice in one; [0, 9] in two; the others in one."""
    found = overlap(made_up())
    assert (found.largest, found.units) == (3, 4)
    assert found.mean == pytest.approx((3 + 2 + 1 + 1) / 4)
    assert "private: for the operator alone" in str(found)
    assert not hasattr(found, "mark")  # a count does not become a public statement by itself


def test_units_of_the_users_own():
    found = overlap(made_up(), unit=list("aabbbbbc"), name="person")
    assert (found.largest, found.units, found.name) == (2, 3, "person")


def test_whole_numbers_count_by_their_bytes():
    X = np.array([[1, 256], [256, 1], [1, 256]])
    assert overlap(Tasks.from_arrays(X, np.zeros(3), [0, 1, 2])).largest == 2


def test_a_group_has_g_times_the_mu_without_sampling():
    priced = plan()
    mu = tradeoff.mu(priced.guarantee.epsilon, 1e-3)
    for g in (2, 5):
        expected = tradeoff.epsilon(g * mu, 1e-3)
        assert Overlap(g).epsilon(priced) == pytest.approx(expected, rel=1e-4)


def test_a_group_under_hidden_sampling_is_less_private_than_a_task():
    priced = plan(Poisson(0.2, hidden=True))
    found = [Overlap(g).epsilon(priced) for g in (1, 2, 8)]
    assert found[0] == pytest.approx(1.0, rel=1e-3)
    assert found[0] < found[1] < found[2] < math.inf


def test_it_is_said():
    priced, shared = plan(), Overlap(5, "image")
    assert "one image sits in up to 5 tasks" in shared.describe(priced)
    marked = shared.mark(priced)
    assert not marked.guarantee.holds  # not for images: whoever asks no further takes it for theirs
    assert "not for each image, because one sits in up to 5 tasks" in str(marked.guarantee)
    assert "for whole tasks, whatever they share, it does hold" in str(marked.guarantee)
    assert marked.guarantee.epsilon == priced.guarantee.epsilon
    alone = Overlap(1)
    assert alone.mark(priced) is priced
    assert "No row sits in two tasks" in alone.describe(priced)


@pytest.mark.parametrize("largest", range(2, 12))
def test_an_epsilon_is_never_said_to_be_smaller_than_it_is(largest):
    priced, shared = plan(), Overlap(largest)
    for text in (shared.describe(priced), shared.mark(priced).caveats[0]):
        said = float(re.findall(r"epsilon (?:= )?([\d.]+\d)", text)[-1])
        assert shared.epsilon(priced) <= said <= 1.001 * shared.epsilon(priced)


def test_units_must_be_one_a_row():
    with pytest.raises(InputError, match="one entry a row of the tasks, 8 in all"):
        overlap(made_up(), unit=[1, 2])
