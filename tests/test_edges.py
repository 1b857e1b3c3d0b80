"""Edges where privacy could leak past a correct proof: each is refused before anything is charged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cloister as cl
from cloister.errors import InputError

N = 40


def data(ids=None, count=N, rows=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-0.5, 0.5, (count * rows, 3))
    ids = np.arange(count) if ids is None else ids
    return cl.Tasks.from_arrays(X, X.sum(axis=1), [name for name in ids for _ in range(rows)])


def plan(count=N):
    return cl.Plan(
        cl.MeanRegularized(cl.LeastSquares(3), rounds=1, clip=1.0), n_tasks=count, delta=1e-3
    ).calibrate(1.0)


class TestATaskIsInARunOnce:
    """One that is there twenty times speaks twenty times for the price of one: epsilon 30, not 1."""

    def test_no_tasks_can_be_made_that_hold_one_twice(self):
        tasks = data()
        again = np.r_[np.zeros(20, dtype=int), np.arange(1, 21)]
        for make in (
            lambda: tasks.select(again),
            lambda: tasks.select([1, -N + 1]),
            lambda: replace(tasks, ids=np.zeros(N, dtype=int)),
            lambda: cl.Tasks(np.zeros(N, int), tasks.X, tasks.y, tasks.weight, tasks.offsets),
            lambda: cl.Tasks(tasks.ids % 2 + 0.0, tasks.X, tasks.y, tasks.weight, tasks.offsets),
        ):
            with pytest.raises(InputError, match=r"Each task may be in a run once"):
                make()
        with pytest.raises(InputError, match="no two alike"):
            cl.Tasks.from_list([tasks.X[:1]] * 2, [tasks.y[:1]] * 2, [3, 3.0][:1] * 2)

    def test_rows_are_in_one_task(self):
        tasks = data()
        for offsets in (tasks.offsets[:-1], tasks.offsets + 1, tasks.offsets[::-1], tasks.offsets // 2):
            with pytest.raises(InputError, match="must lie one after the other"):
                replace(tasks, offsets=offsets)

    @pytest.mark.parametrize(
        "go",
        [
            lambda tasks, board, ledger: cl.run(plan(), tasks, ledger=ledger),
            lambda tasks, board, ledger: cl.run_clusters(
                plan(), tasks, {i: i % 2 for i in range(N)}, ledger=ledger
            ),
            lambda tasks, board, ledger: cl.replay(plan(), board, tasks),
        ],
        ids=["run", "clusters", "replay"],
    )
    def test_names_that_were_changed_afterwards_are_refused_before_the_charge(self, go):
        tasks, ledger = data(), cl.Ledger(epsilon=9.0, delta=1e-3)
        board = cl.run(plan(), tasks).board
        tasks.ids[:20] = 0
        with pytest.raises(InputError, match=r"Each task may be in a run once"):
            go(tasks, board, ledger)
        assert not ledger.history
