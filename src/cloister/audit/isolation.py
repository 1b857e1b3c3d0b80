"""Isolation by replay: with the billboard frozen, one task's data must not reach another task's model.

A small run of the plan is made on invented tasks. Then one task's data are changed, to other data and to
garbage, and everybody listens to the same billboard again. Every other task's model must be the same to the
last bit. The billboard itself must follow from its noisy releases: whoever has seen nothing else, a copy of
the plan from before the run, has to make the same of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cloister.core.arrays import States
from cloister.core.errors import BillboardError, CloisterError
from cloister.core.roster import Groups
from cloister.core.tasks import Tasks
from cloister.engines.check import GARBAGE
from cloister.engines.run import Run, replay, run
from cloister.plan.plan import Plan

_TASKS = 24
#: Rounds of a run that is made and listened to again some eight times, at most.
_ROUNDS = 50_000


@dataclass(frozen=True)
class Isolation:
    """Whether one task's data reached others past the noise: True if not, False if so, None if not tested."""

    holds: bool | None
    detail: str


def check_isolation(plan: Plan, seed: int = 0) -> Isolation:
    """Test isolation on a small run of the plan with invented tasks.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=2), n_tasks=100).calibrate(epsilon=1.0)
    >>> check_isolation(plan).holds
    True
    """
    if len(plan.rounds) > _ROUNDS:
        return Isolation(None, f"not tested: a run of {len(plan.rounds)} rounds takes too long here")
    size = min(plan.n_tasks, max(_TASKS, getattr(plan.sampling, "size", 0)))
    tasks = invented_tasks(plan, size, seed)
    if tasks is None:
        kind = type(plan.algorithm).__name__
        untold = f"not tested: what rows {kind} takes is not known here"
        if plan.algorithm.network is None:
            return Isolation(None, untold)
        return Isolation(None, f"{untold}; check_algorithm(algorithm, tasks) tests networks on made-up ones")
    small = replace(plan, n_tasks=size)
    if plan.algorithm.groups is not None:  # the first two of them, and half of the tasks in each
        labels = np.resize(np.array(plan.algorithm.groups.names[:2]), size)
        tasks = replace(tasks, groups=labels)
        small = replace(small, algorithm=plan.algorithm.with_groups(Groups.of(labels)))
    untouched = copy.deepcopy(small)
    try:
        finished = run(small, tasks, random_state=seed)
    except CloisterError as error:
        return Isolation(None, f"not tested: a small run on invented data failed ({error})")
    try:
        untouched.check(finished.board)
    except BillboardError as error:
        return Isolation(False, f"the billboard says more than follows from its releases: {error}")
    victim = size // 2
    others = np.arange(size) != victim
    changes = [replace(changed, groups=tasks.groups) for changed in _changes(tasks, victim)]
    for changed in changes:
        reached = _reached(finished, changed, others)
        if reached is not None:
            return Isolation(False, reached)
    return Isolation(True, f"{int(others.sum())} other models, {len(changes)} changes of one task's data")


def invented_tasks(plan: Plan, size: int, seed: int) -> Tasks | None:
    """Return small random tasks of the kind that a plan's algorithm takes; None if it does not say."""
    due = plan.algorithm.rows
    if due is None or due.features is None:
        return None
    rng = np.random.default_rng(seed)
    rows = rng.integers(4, 9, size)
    X = rng.uniform(-1, 1, (int(rows.sum()), *due.features)) / np.sqrt(np.prod(due.features))
    y = rng.integers(0, due.classes, len(X)) if due.classes else rng.uniform(-1, 1, len(X))
    return Tasks.from_arrays(X, y, np.repeat(np.arange(size), rows))


def _changes(tasks: Tasks, victim: int) -> Iterator[Tasks]:
    """Yield the tasks with one task's data changed: to other data, to fewer and more rows, to garbage."""
    rows = slice(int(tasks.offsets[victim]), int(tasks.offsets[victim + 1]))
    X, y = np.array(tasks.X), np.array(tasks.y)
    X[rows], y[rows] = -X[rows], y[rows].max() - y[rows]
    yield replace(tasks, X=X, y=y)
    own, names = np.arange(rows.start, rows.stop), np.repeat(tasks.ids, tasks.sizes)
    for kept in (own[:1], np.tile(own, 3)):
        at = np.concatenate([np.arange(rows.start), kept, np.arange(rows.stop, len(tasks.y))])
        yield Tasks.from_arrays(tasks.X[at], tasks.y[at], names[at], tasks.weight[at])
    for garbage in GARBAGE:
        X = np.array(tasks.X)
        X[rows] = garbage
        yield replace(tasks, X=X)


def _reached(finished: Run, changed: Tasks, others: np.ndarray) -> str | None:
    """Say which of the others' models moved, if any did."""
    private = finished.private
    try:
        with np.errstate(all="ignore"):
            models: States = replay(
                finished.plan, finished.board, changed, coins=private.coins, seeds=private.seeds
            )
    except CloisterError as error:
        return f"one task's data stopped everybody: {error}"
    for name, array in models.items():
        if not np.array_equal(array[others], private.models[name][others], equal_nan=True):
            return f"one task's data moved {name!r} of other tasks, with the billboard frozen"
    return None
